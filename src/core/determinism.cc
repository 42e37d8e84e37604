#include "cake/core/determinism.h"

#include <atomic>
#include <cstdio>

#include "cake/core/error.h"

namespace cake {
namespace {

thread_local DeterminismPolicy t_policy = DeterminismPolicy::kAllow;
thread_local const AlertWords* t_words = nullptr;
std::atomic<WarningHandler> g_handler{nullptr};

}  // namespace

DeterminismPolicy default_determinism_policy() { return t_policy; }
void set_default_determinism_policy(DeterminismPolicy policy) { t_policy = policy; }
ScopedAlertWords::ScopedAlertWords(const AlertWords& words) : before_(t_words) { t_words = &words; }
ScopedAlertWords::~ScopedAlertWords() { t_words = before_; }
WarningHandler set_warning_handler(WarningHandler handler) { return g_handler.exchange(handler); }

void alert_not_deterministic(const char* entry, DeterminismPolicy policy, const char* setting) {
  if (policy == DeterminismPolicy::kAllow) return;
  const AlertWords* words = t_words;
  std::string text = words != nullptr ? words->entry : std::string(entry);
  text += " does not have a deterministic implementation, but you set '";
  text += words != nullptr ? words->setting : std::string(setting);
  text += "'.";
  if (words != nullptr && !words->advice.empty()) text += " " + words->advice;
  if (policy == DeterminismPolicy::kForbid) throw NondeterminismAlert(text);
  if (words != nullptr && words->warn) {
    words->warn(text);
    return;
  }
  if (const WarningHandler handler = g_handler.load(); handler != nullptr) {
    handler(text);
  } else {
    std::fprintf(stderr, "cake: warning: %s\n", text.c_str());
  }
}

}  // namespace cake
