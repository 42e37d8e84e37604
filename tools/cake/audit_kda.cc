#include "audit_kda.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "audit_kda_call.h"
#include "cake/core/canonical.h"
#include "core/fpenv.h"
#include "digest.h"
#include "kda_case.h"

namespace cake::tool {
namespace {

using audit_kda::Call;
using audit_kda::Pack;
using audit_kda::Problem;

/// Adds one document's gradient of dt_bias to the fold over documents.
void fold(KdaArray& total, const KdaArray& part, bool first) {
  const ScopedFpEnv env;
  for (std::int64_t i = 0; i < total.width(); ++i) {
    float a = 0.0f, b = 0.0f;
    std::memcpy(&a, total.bytes.data() + 4 * i, 4);
    std::memcpy(&b, part.bytes.data() + 4 * i, 4);
    const float sum = first ? b : a + b;
    std::memcpy(total.bytes.data() + 4 * i, &sum, 4);
  }
}

std::vector<Pack> packs_of(const KdaCase& c, Packing packing) {
  std::vector<std::size_t> order(c.lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (packing == Packing::kReversed) std::reverse(order.begin(), order.end());
  if (packing == Packing::kRotated) {
    std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2), order.end());
  }
  if (packing != Packing::kAlone) return {{order, c.padding}};
  std::vector<Pack> packs;
  packs.reserve(order.size());
  for (const std::size_t d : order) packs.push_back({{d}, 0});
  return packs;
}

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
    const Problem& problem = problems_.at(index);
    AuditRun outcome;
    KdaArrays results = empty_kda_results(problem.kda);
    KdaArray folded;
    const std::vector<Pack> packs = packs_of(problem.kda, variation.packing);
    for (std::size_t i = 0; i < packs.size(); ++i) {
      Call<Package> call(problem, packs[i], variation);
      outcome.mxcsr_kept = call.run() && outcome.mxcsr_kept;
      call.scatter(results);
      const auto part = results.find("ddt_bias");
      if (part == results.end()) continue;
      if (i == 0) folded = part->second;
      fold(folded, part->second, i == 0);
    }
    const bool one_segment = *std::max_element(problem.kda.lengths.begin(), problem.kda.lengths.end()) <= kSegment;
    for (auto& [name, array] : results) {
      TensorDigest entry{name, {}};
      if (array.axis != KdaAxis::kNone || variation.packing == Packing::kTogether) {
        entry.digest = sha256(array.bytes.data(), array.bytes.size());
      } else if (name == "ddt_bias" && variation.packing == Packing::kAlone && one_segment) {
        // A document of one segment alone gives its partial; their fold in pack order is the whole gradient.
        entry.digest = sha256(folded.bytes.data(), folded.bytes.size());
      }
      outcome.digests.push_back(entry);
    }
    return outcome;
  }

 private:
  void add(const char* name, const char* description, const KdaCase& c) {
    std::string lengths;
    for (const std::int64_t length : c.lengths) lengths += (lengths.empty() ? "" : ", ") + std::to_string(length);
    texts_.push_back({name, std::string(description) + "; documents of " + lengths + " tokens"});
    problems_.push_back({texts_.back(), c, draw_kda_operands(c)});
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
