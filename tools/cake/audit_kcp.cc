#include "audit_kcp.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "audit_kcp_call.h"
#include "audit_kda_call.h"
#include "audit_kda_run.h"
#include "cake/core/canonical.h"
#include "core/fpenv.h"
#include "digest.h"
#include "kda_case.h"

namespace cake::tool {
namespace {

using audit_kda::Call;
using audit_kda::Pack;
using audit_kda::Partial;
using audit_kda::Problem;
using audit_kda::RanksCall;

constexpr const char* kPartials = "partials";
constexpr const char* kByDocument = "ddt_bias_by_document";

/// Digest of the sums by (document, segment), whatever ranks they come from.
std::string digest_of_partials(std::vector<Partial> partials) {
  std::stable_sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
    return std::tie(a.document, a.segment) < std::tie(b.document, b.segment);
  });
  std::vector<std::byte> bytes;
  const auto append = [&](const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), from, from + size);
  };
  for (const Partial& partial : partials) {
    append(&partial.document, sizeof partial.document);
    append(&partial.segment, sizeof partial.segment);
    append(partial.sums.data(), partial.sums.size() * sizeof(float));
  }
  return sha256(bytes.data(), bytes.size());
}

/// ddt_bias of each document on its own, [documents][HV][K]: its segments' sums added from the first to the last. This
/// is what the package on one rank gives for the document alone.
std::vector<float> ddt_bias_by_document(const KdaCase& c, const std::vector<Partial>& partials) {
  const ScopedFpEnv env;
  std::map<std::pair<std::int64_t, std::int64_t>, const Partial*> sorted;
  for (const Partial& partial : partials) sorted[{partial.document, partial.segment}] = &partial;
  std::vector<float> sums(c.lengths.size() * static_cast<std::size_t>(c.HV * c.K));
  for (const auto& [key, partial] : sorted) {
    if (key.first < 0) continue;  // not by document: the digest will say so
    float* sum = sums.data() + key.first * c.HV * c.K;
    for (std::int64_t h = 0; h < c.HV; ++h) {
      for (std::int64_t i = 0; i < c.K; ++i) {
        sum[h * c.K + i] += partial->sums[static_cast<std::size_t>(2 * h * c.K + i)];
      }
    }
  }
  return sums;
}

/// The problems of a KDA package over ranks.
template <class Package>
class KcpAuditSubject : public AuditSubject {
 public:
  KcpAuditSubject() {
    constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;
    add("packed-fp32", "fp32, raw softplus gate, grouped heads, states",
        {{64, 0, 1, 65, 63, 120}, 0, false, 2, 4, 48, 32, kF32, KdaGate::kSoftplus, true, true, false, true, 21});
    add("packed-bf16", "bf16, raw bounded gate, negative eigenvalues, ragged V",
        {{1, 63, 100, 0, 65, 64}, 0, false, 1, 3, 64, 40, kBf16, KdaGate::kLowerBound, true, true, true, false, 22});
    add("plain-fp16", "fp16, log decays with -1000 among them",
        {{190, 64, 150}, 0, false, 2, 2, 128, 64, kF16, KdaGate::kPlain, false, false, false, true, 23});
    add("segments-fp32", "fp32, documents of several segments, gates so weak that states outlive them",
        {{kSegment + 71, 65, 0, 2 * kSegment + 1, 3},
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
         24,
         true});
  }

  bool promises_bits() const override { return Package::kDeterministic; }
  const std::vector<AuditProblem>& problems() const override { return texts_; }
  bool over_ranks() const override { return true; }
  const char* reference_package() const override { return Package::OneRank::kName; }

  AuditRun run(std::size_t index, const Variation& variation) const override {
    const Problem& problem = problems_.at(index);
    std::vector<Partial> partials;
    std::string detail;
    const auto collect = [&](const RanksCall<Package>& call, const Pack&) {
      const std::vector<Partial> more = call.partials();
      partials.insert(partials.end(), more.begin(), more.end());
      if (variation.packing != Packing::kAlone) detail = call.detail();
    };
    AuditRun outcome = audit_kda::run_packs<RanksCall<Package>>(problem, variation, collect);
    outcome.detail = detail;
    if (compares_partials(problem)) {
      outcome.digests.push_back({kPartials, digest_of_partials(partials)});
      add_by_document(outcome, ddt_bias_by_document(problem.kda, partials));
    }
    return outcome;
  }

  /// The package on one rank. It shows no partials: those by segment come from this package on one rank, and what they
  /// add up to, document by document, from calls with one document.
  AuditRun reference(std::size_t index) const override {
    const Problem& problem = problems_.at(index);
    using OneRank = Call<typename Package::OneRank>;
    const Variation plain;
    AuditRun outcome = audit_kda::run_packs<OneRank>(problem, plain, [](const OneRank&, const Pack&) {});
    if (!compares_partials(problem)) return outcome;
    const AuditRun own = run(index, plain);
    const auto found = std::find_if(own.digests.begin(), own.digests.end(),
                                    [](const TensorDigest& entry) { return entry.tensor == kPartials; });
    outcome.digests.push_back(*found);
    std::vector<float> sums;
    Variation alone;
    alone.packing = Packing::kAlone;
    audit_kda::run_packs<OneRank>(problem, alone, [&](const OneRank& call, const Pack&) {
      KdaArrays results = empty_kda_results(problem.kda);
      call.scatter(results);
      const KdaArray& part = results.at("ddt_bias");
      const std::size_t at = sums.size();
      sums.resize(at + part.bytes.size() / sizeof(float));
      std::memcpy(sums.data() + at, part.bytes.data(), part.bytes.size());
    });
    add_by_document(outcome, sums);
    return outcome;
  }

 private:
  /// Sums by segment are part of the promise of bits; without it a rank keeps one sum.
  static bool compares_partials(const Problem& problem) {
    return Package::kDeterministic && problem.operands.count("A_log") != 0;
  }
  static void add_by_document(AuditRun& outcome, const std::vector<float>& sums) {
    outcome.digests.push_back({kByDocument, sha256(sums.data(), sums.size() * sizeof(float))});
  }
  void add(const char* name, const char* description, const KdaCase& c) {
    problems_.push_back(audit_kda::make_problem(name, description, c));
    texts_.push_back(problems_.back().text);
  }

  std::vector<AuditProblem> texts_;
  std::vector<Problem> problems_;
};

}  // namespace

template <class Package>
const AuditSubject& kcp_audit_subject() {
  static const KcpAuditSubject<Package> subject;
  return subject;
}

template const AuditSubject& kcp_audit_subject<KdaDetKcp>();
template const AuditSubject& kcp_audit_subject<KdaNondetKcp>();

}  // namespace cake::tool
