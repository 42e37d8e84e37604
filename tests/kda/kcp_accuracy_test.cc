// KDA over ranks against the float64 reference, document by document, head by head and rank by rank, for both packages.
// The fault reports behind the cases are those of context-parallel gradients and of everything a border may touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::Partition;
using Cuts = std::vector<std::int64_t>;

/// Each rank's part of each row tensor, head by head: a border that spoils one rank's rows must not hide in a whole
/// document's norm.
void expect_rank_by_rank(const KdaProblem& p, const Partition& partition, const std::vector<RankResults>& ranks,
                         const ReferenceResults& reference) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto rows = partition.global_rows(static_cast<int>(r));
    if (rows.empty()) continue;
    for (const auto& [name, part] : ranks[r].tensors) {
      if (is_state(name) || is_parameter_gradient(name)) continue;
      const std::vector<double>& whole = reference.tensors.at(name);
      const std::int64_t heads = part.shape[2];
      const std::int64_t width = part.numel() / static_cast<std::int64_t>(rows.size()) / heads;
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<double> got, expected;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          for (std::int64_t c = 0; c < width; ++c) {
            got.push_back(part.at((static_cast<std::int64_t>(i) * heads + h) * width + c));
            expected.push_back(whole.at(static_cast<std::size_t>((rows[i] * heads + h) * width + c)));
          }
        }
        EXPECT_LT(relative_l2(got, expected), kda_limit(name, part.dtype, p.spec.dtype))
            << name << ", head " << h << " of rank " << r << " of " << ranks.size() << ": " << p.spec.text();
      }
    }
  }
}

/// Both packages over a partition against the reference; det also against one rank.
void check(const KdaProblem& p, const Partition& partition, const ReferenceResults& reference, bool by_rank = true,
           const KcpRun& how = {}) {
  SCOPED_TRACE(p.spec.text() + "; " + partition_text(partition));
  const auto det = run_ranks<DetKcp>(p, partition, how);
  const KdaResults whole = gathered(p, partition, det);
  EXPECT_TRUE(same_bits(whole, run(p)));
  EXPECT_TRUE(matches_reference(p, whole, reference));
  const auto nondet = run_ranks<NondetKcp>(p, partition, how);
  EXPECT_TRUE(matches_reference(p, gathered(p, partition, nondet), reference));
  if (by_rank) {
    expect_rank_by_rank(p, partition, det, reference);
    expect_rank_by_rank(p, partition, nondet, reference);
  }
}

void check(const KdaSpec& spec, const Cuts& cuts) {
  const KdaProblem p = make_problem(spec);
  check(p, Partition::from_cut_points(offsets_of(p), cuts), run_reference(p));
}

KdaSpec ordinary(std::vector<std::int64_t> lengths) {
  KdaSpec spec;
  spec.lengths = std::move(lengths);
  spec.H = 2;
  spec.HV = 4;
  spec.K = 24;
  spec.V = 20;
  spec.seed = 61;
  return spec;
}

// O11: earlier ranks' dk, dv, dg and dbeta were 10 % off when the adjoint state was handed back without the head's
// gate. A decay of its own for every head, and a pack in which no rank starts at a document's first row.
TEST(KdaKcpAccuracy, ADecayOfItsOwnForEveryHead) {
  for (const bool initial : {false, true}) {
    KdaSpec spec = ordinary({70, 512, 33});
    spec.gate = GateRegime::kPerHead;
    spec.initial_state = initial;
    spec.K = 32;
    const KdaProblem p = make_problem(spec);
    const ReferenceResults reference = run_reference(p);
    for (const int W : {2, 4}) {
      for (const kcp::Layout layout : all_kcp_layouts()) {
        check(p, Partition::make(offsets_of(p), W, layout), reference);
        if (HasFailure()) return;
      }
    }
    check(p, Partition::from_cut_points(offsets_of(p), Cuts{71, 300, 301}), reference);
  }
}

TEST(KdaKcpAccuracy, GatesOfOneHeadFromAlmostNothingToStrong) {
  KdaSpec spec = ordinary({kShortSegments ? 3 * kSegment + 20 : 512, 65});
  spec.H = 1;
  spec.HV = 5;
  spec.initial_state = true;
  KdaProblem p = make_problem(spec);
  constexpr std::array<double, 5> kRates = {-0.002, -0.02, -0.2, -1.0, -5.0};
  Random random(3);
  for (std::int64_t i = 0; i < p.g.numel(); ++i) {
    p.g.set(i, kRates[static_cast<std::size_t>(i / spec.K % spec.HV)] * random.uniform(0.5, 1.5));
  }
  const ReferenceResults reference = run_reference(p);
  for (const int W : {2, 3, 4}) check(p, Partition::make(offsets_of(p), W), reference);
}

TEST(KdaKcpAccuracy, LongDocumentsWhoseStatesReachOverSegments) {
  for (const bool raw_gate : {false, true}) {
    const KdaProblem p = make_problem(kcp_spec({3 * kSegment + 1, 64}, raw_gate));
    const ReferenceResults reference = run_reference(p);
    for (const kcp::Exchange exchange : {kcp::Exchange::kRelay, kcp::Exchange::kGather}) {
      KcpRun how;
      how.exchange = exchange;
      how.threads = 2;
      check(p, Partition::from_cut_points(offsets_of(p), Cuts{kSegment / 2, kSegment + 70, 2 * kSegment}), reference,
            true, how);
    }
  }
}

TEST(KdaKcpAccuracy, EveryDtype) {
  for (const DType dtype : float_dtypes()) {
    KdaSpec spec = ordinary({130, 0, 65});
    use_every_activation(spec);
    spec.dtype = spec.raw_gate_dtype = dtype;
    spec.initial_state = true;
    check(spec, Cuts{50, 131});
  }
}

// O01: a decay of exactly 1, everywhere or on alternate tokens. O02, O03: strong decay, whose gradients must not be
// noise nor overflow where a chunk is cut.
TEST(KdaKcpAccuracy, DecaysOfNothingAndStrongOnes) {
  for (const GateRegime gate :
       {GateRegime::kZero, GateRegime::kAlternating, GateRegime::kMinus1, GateRegime::kMinus5, GateRegime::kMinus20,
        GateRegime::kOneChannel, GateRegime::kHoles, GateRegime::kHardResets}) {
    KdaSpec spec = ordinary({192});
    spec.gate = gate;
    check(spec, Cuts{64, 100});
  }
}

// O04: a chain of calls through states and a chain of ranks are the same thing: cuts at 1, 63, 64, 65 and (1, 1, 198).
TEST(KdaKcpAccuracy, TheCutsOfAChainOfCalls) {
  KdaSpec spec = ordinary({200});
  spec.initial_state = true;
  const KdaProblem p = make_problem(spec);
  const ReferenceResults reference = run_reference(p);
  for (const Cuts& cuts : std::vector<Cuts>{{1}, {63}, {64}, {65}, {1, 2}, {199}}) {
    check(p, Partition::from_cut_points(offsets_of(p), cuts), reference, false);
  }
}

// O05, O06: tails of every kind, empty documents first, in the middle and last, cut at each of their borders.
TEST(KdaKcpAccuracy, TailsAndEmptyDocuments) {
  for (const bool initial : {false, true}) {
    KdaSpec spec = ordinary({0, 1, 2, 15, 16, 17, 0, 63, 64, 65, 127, 129, 0});
    spec.initial_state = initial;
    const KdaProblem p = make_problem(spec);
    const ReferenceResults reference = run_reference(p);
    Cuts borders(p.offsets.begin() + 1, p.offsets.end() - 1);
    check(p, Partition::from_cut_points(offsets_of(p), borders), reference, false);
    for (std::int64_t& cut : borders) cut = std::min(cut + 1, p.offsets.back());
    check(p, Partition::from_cut_points(offsets_of(p), borders), reference, false);
    check(p, Partition::make(offsets_of(p), 3, kcp::Layout::kZigzagPerDocument), reference, false);
  }
}

// O06: a pack with the empty documents removed gives the same rows.
TEST(KdaKcpAccuracy, EmptyDocumentsChangeNoRow) {
  KdaSpec spec = ordinary({0, 0, 65, 0, 70, 0});
  spec.initial_state = true;
  const KdaProblem p = make_problem(spec);
  const KdaProblem q = select_documents(p, {2, 4});
  const Partition with = Partition::from_cut_points(offsets_of(p), Cuts{0, 30, 65});
  const Partition without = Partition::from_cut_points(offsets_of(q), Cuts{0, 30, 65});
  const auto a = run_ranks<DetKcp>(p, with), b = run_ranks<DetKcp>(q, without);
  for (std::size_t r = 0; r < a.size(); ++r) {
    for (const auto& [name, tensor] : b[r].tensors) {
      if (is_state(name)) continue;
      EXPECT_TRUE(same_bits(a[r].tensors.at(name), tensor, name));
    }
  }
}

// O10: grouped value heads; the group's sum crosses borders with the rows of cut chunks.
TEST(KdaKcpAccuracy, GroupedHeads) {
  for (const auto& [H, HV] : std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 6}, {3, 3}, {1, 8}}) {
    KdaSpec spec = ordinary({130});
    spec.H = H;
    spec.HV = HV;
    check(spec, Cuts{40, 90});
  }
}

TEST(KdaKcpAccuracy, ScaledCorrelatedAndRepeatedData) {
  for (const DataKind data : {DataKind::kScaled, DataKind::kCorrelated, DataKind::kRepeated}) {
    KdaSpec spec = ordinary({140, 30});
    spec.data = data;
    spec.options.use_qk_l2norm_in_kernel = true;
    const KdaProblem p = make_problem(spec);
    check(p, Partition::from_cut_points(offsets_of(p), Cuts{20, 85}), run_reference(p), false);
  }
}

// NaN in one document stays in it, whatever ranks its rows share chunks and messages with.
TEST(KdaKcpAccuracy, NaNStaysInItsDocument) {
  KdaSpec spec = ordinary({100, 90, 60});
  spec.initial_state = true;
  const KdaProblem clean = make_problem(spec);
  KdaProblem p = clean;
  const std::int64_t width = spec.H * spec.K;
  for (std::int64_t i = 130 * width; i < 131 * width; ++i) p.k.set(i, __builtin_nan(""));
  const KdaResults expected = run(clean);
  for (const kcp::Exchange exchange : {kcp::Exchange::kRelay, kcp::Exchange::kGather}) {
    KcpRun how;
    how.exchange = exchange;
    const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{50, 120, 170});
    const KdaResults got = gathered(p, partition, run_ranks<DetKcp>(p, partition, how));
    for (const auto& [name, tensor] : got) {
      for (const std::int64_t d : {0, 2}) {
        EXPECT_TRUE(
            same_bits(document_part(p, name, tensor, {d}), document_part(p, name, expected.at(name), {d}), name))
            << "document " << d;
      }
    }
    const std::vector<double> spoiled = document_part(p, "out", got.at("out"), {1}).doubles();
    EXPECT_TRUE(std::any_of(spoiled.begin(), spoiled.end(), [](double x) { return x != x; }));
  }
}

}  // namespace
}  // namespace cake::test
