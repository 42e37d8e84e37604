#include "audit_kda.h"

#include "audit_kda_call.h"
#include "audit_kda_run.h"
#include "cake/core/canonical.h"
#include "kda_case.h"

namespace cake::tool {
namespace {

using audit_kda::Call;
using audit_kda::Pack;
using audit_kda::Problem;

/// The problems of a KDA package.
template <class Package>
class KdaAuditSubject : public AuditSubject {
 public:
  KdaAuditSubject() {
    constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;
    add("packed-fp32", "fp32, raw softplus gate, grouped heads, states",
        {{64, 0, 1, 65, 63, 120}, 3, false, 2, 4, 48, 32, kF32, KdaGate::kSoftplus, true, true, false, true, 11});
    add("packed-bf16", "bf16, raw bounded gate, negative eigenvalues, ragged V",
        {{1, 63, 100, 0, 65, 64}, 5, false, 1, 3, 64, 40, kBf16, KdaGate::kLowerBound, true, true, true, false, 12});
    add("batch-fp16", "fp16, log decays with -1000 among them, B documents without offsets",
        {{150, 150, 150}, 0, true, 2, 2, 128, 64, kF16, KdaGate::kPlain, false, false, false, false, 13});
    add("segments-fp32", "fp32, documents of several segments, states",
        {{2 * kSegment + 71, 65, 0, kSegment, 3 * kSegment + 1},
         0,
         false,
         1,
         2,
         16,
         16,
         kF32,
         KdaGate::kSoftplus,
         true,
         true,
         false,
         true,
         14});
    add("segments-bf16", "bf16, documents around segment borders",
        {{kSegment + 1, 1, 2 * kSegment + 1, kSegment - 1},
         1,
         false,
         1,
         1,
         32,
         16,
         kBf16,
         KdaGate::kLowerBound,
         true,
         true,
         false,
         true,
         15});
  }

  bool promises_bits() const override { return Package::kDeterministic; }
  const std::vector<AuditProblem>& problems() const override { return texts_; }

  AuditRun run(std::size_t index, const Variation& variation) const override {
    const auto nothing = [](const Call<Package>&, const Pack&) {};
    return audit_kda::run_packs<Call<Package>>(problems_.at(index), variation, nothing);
  }

 private:
  void add(const char* name, const char* description, const KdaCase& c) {
    problems_.push_back(audit_kda::make_problem(name, description, c));
    texts_.push_back(problems_.back().text);
  }

  std::vector<AuditProblem> texts_;
  std::vector<Problem> problems_;
};

}  // namespace

template <class Package>
const AuditSubject& kda_audit_subject() {
  static const KdaAuditSubject<Package> subject;
  return subject;
}

template const AuditSubject& kda_audit_subject<KdaDet>();
template const AuditSubject& kda_audit_subject<KdaNondet>();

}  // namespace cake::tool
