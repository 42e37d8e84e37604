// The determinism alert: what a nondeterministic backward does when the caller's policy forbids it.
#pragma once

#include <functional>
#include <string>

#include "cake/core/export.h"

namespace cake {

/// What a nondet backward does at its launch point.
enum class DeterminismPolicy {
  kAllow,   ///< run silently
  kWarn,    ///< call the warning handler once, then run
  kForbid,  ///< throw NondeterminismAlert before any caller-visible memory is written
};

/// This thread's default policy (initially kAllow).
CAKE_API DeterminismPolicy default_determinism_policy();
/// Sets this thread's default policy.
CAKE_API void set_default_determinism_policy(DeterminismPolicy policy);

/// Receives the text of a warning.
using WarningHandler = void (*)(const std::string& message);
/// Sets the process's warning handler (null: write to stderr); returns the one before.
CAKE_API WarningHandler set_warning_handler(WarningHandler handler);

/// Called by a nondet backward with T > 0 before its first launch. `entry` is the public name of the entry point,
/// `setting` the switch the caller used ("DeterminismPolicy::kForbid", or torch's own in Python).
/// Throws NondeterminismAlert under kForbid.
CAKE_API void alert_not_deterministic(const char* entry, DeterminismPolicy policy, const char* setting);

/// What another language's binding says in the alerts of this thread: its own entry and setting.
struct AlertWords {
  std::string entry;                               ///< for example "cake_kda_nondet"
  std::string setting;                             ///< the caller's switch
  std::string advice;                              ///< follows the message; may be empty
  std::function<void(const std::string&)> warn{};  ///< receives the warning; what it throws ends the call
};
/// Makes the alerts of this thread use `words` for a scope.
class CAKE_API ScopedAlertWords {
 public:
  /// `words` must outlive the scope.
  explicit ScopedAlertWords(const AlertWords& words);
  ~ScopedAlertWords();
  ScopedAlertWords(const ScopedAlertWords&) = delete;
  ScopedAlertWords& operator=(const ScopedAlertWords&) = delete;

 private:
  const AlertWords* before_;
};

/// Sets this thread's default policy for a scope.
class ScopedDeterminismPolicy {
 public:
  /// The policy until the end of the scope.
  explicit ScopedDeterminismPolicy(DeterminismPolicy policy) : before_(default_determinism_policy()) {
    set_default_determinism_policy(policy);
  }
  ~ScopedDeterminismPolicy() { set_default_determinism_policy(before_); }
  ScopedDeterminismPolicy(const ScopedDeterminismPolicy&) = delete;
  ScopedDeterminismPolicy& operator=(const ScopedDeterminismPolicy&) = delete;

 private:
  DeterminismPolicy before_;
};

}  // namespace cake
