// A subject of the audit whose results change under the variations that a test picks.
#pragma once

#include <string>
#include <vector>

#include "audit.h"

namespace cake::tool {

/// The subject whose second process is imitated by running it here (parts_test.cc).
extern const AuditSubject* g_subject;

class FaultySubject : public AuditSubject {
 public:
  using Fault = bool (*)(const Variation&);
  FaultySubject(Fault fault, Fault spills, bool promises, const char* reference = nullptr)
      : fault_(fault), spills_(spills), promises_(promises), reference_(reference) {
    g_subject = this;
  }
  ~FaultySubject() override { g_subject = nullptr; }
  FaultySubject(const FaultySubject&) = delete;
  FaultySubject& operator=(const FaultySubject&) = delete;
  bool promises_bits() const override { return promises_; }
  const std::vector<AuditProblem>& problems() const override { return problems_; }
  /// With a reference it runs over ranks.
  bool over_ranks() const override { return reference_ != nullptr; }
  const char* reference_package() const override { return reference_; }
  AuditRun reference(std::size_t) const override { return {{{"good", "0"}, {"bad", "0"}, {"order", "0"}}}; }
  AuditRun run(std::size_t, const Variation& v) const override {
    AuditRun outcome;
    outcome.digests = {{"good", "0"}, {"bad", fault_(v) ? "1" : "0"}};
    outcome.digests.push_back({"order", {}});
    if (v.packing == Packing::kTogether) outcome.digests.back().digest = "0";
    outcome.mxcsr_kept = !spills_(v);
    if (v.over.cuts) outcome.detail = "cuts at 5";
    return outcome;
  }

 private:
  Fault fault_, spills_;
  bool promises_;
  const char* reference_;
  std::vector<AuditProblem> problems_ = {{"problem", "description"}};
};

inline bool never(const Variation&) { return false; }

inline AuditOptions small_options() {
  AuditOptions options;
  options.repeats = 2;
  options.threads = {1, 3};
  options.levels = {CpuIsa::kBase};
  options.ranks = {1, 2, 3};
  options.cuts.sets = 4;
  return options;
}

}  // namespace cake::tool
