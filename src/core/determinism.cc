#include "cake/core/determinism.h"

#include <atomic>
#include <cstdio>

#include "cake/core/error.h"

namespace cake {
namespace {

thread_local DeterminismPolicy t_policy = DeterminismPolicy::kAllow;
std::atomic<WarningHandler> g_handler{nullptr};

}  // namespace

DeterminismPolicy default_determinism_policy() { return t_policy; }
void set_default_determinism_policy(DeterminismPolicy policy) { t_policy = policy; }
WarningHandler set_warning_handler(WarningHandler handler) { return g_handler.exchange(handler); }

void alert_not_deterministic(const char* entry, DeterminismPolicy policy, const char* setting) {
  if (policy == DeterminismPolicy::kAllow) return;
  const std::string text =
      std::string(entry) + " does not have a deterministic implementation, but you set '" + setting + "'.";
  if (policy == DeterminismPolicy::kForbid) throw NondeterminismAlert(text);
  if (const WarningHandler handler = g_handler.load(); handler != nullptr) {
    handler(text);
  } else {
    std::fprintf(stderr, "cake: warning: %s\n", text.c_str());
  }
}

}  // namespace cake
