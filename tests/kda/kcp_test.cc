// KDA over ranks against one rank, bit by bit: every output, gradient and parameter gradient, for world sizes, layouts,
// cuts anywhere (inside chunks, one-row fragments, empty ranks) and documents around chunk and segment borders.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kda/kcp_run.h"

namespace cake::test {
namespace {

using kcp::Fragment;
using kcp::Layout;
using kcp::Partition;

/// Compares all ranks' results with those of one rank.
void expect_one_rank_bits(const KdaProblem& p, const KdaResults& one, const Partition& partition, int threads) {
  const int W = partition.world_size();
  std::vector<RankResults> ranks(static_cast<std::size_t>(W));
  ThreadGroup(W).run([&](Communicator& comm) {
    ranks[static_cast<std::size_t>(comm.rank())] = run_rank(p, partition, comm, threads);
  });
  for (const auto& [name, whole] : one) {
    for (int r = 0; r < W; ++r) {
      const HostTensor& got = ranks[static_cast<std::size_t>(r)].at(name);
      if (is_state(name)) continue;
      const HostTensor& expected = whole;
      EXPECT_TRUE(
          same_bits(got, is_parameter_gradient(name) ? expected : pick_rows(expected, partition.global_rows(r)), name))
          << "rank " << r << " of " << W;
    }
    if (!is_state(name)) continue;
    HostTensor sum(DType::kFloat32, whole.shape);
    for (std::int64_t i = 0; i < whole.numel(); ++i) {
      double total = 0.0;
      for (const RankResults& rank : ranks) total += rank.at(name).at(i);
      sum.set(i, total);
    }
    EXPECT_TRUE(same_bits(sum, whole, name)) << "summed over " << W << " ranks";
  }
}

KdaSpec spec_of(std::vector<std::int64_t> lengths) {
  KdaSpec spec;
  spec.lengths = std::move(lengths);
  spec.H = 1;
  spec.HV = 2;
  spec.K = kShortSegments ? 20 : 6;
  spec.V = kShortSegments ? 12 : 5;
  spec.initial_state = true;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
  spec.gate = kFaintGate;
  spec.seed = 41;
  return spec;
}

/// Fragments at random, many of one row, dealt to random ranks.
Partition random_fragments(Random& random, const std::vector<std::int32_t>& offsets, int W) {
  std::vector<std::vector<Fragment>> fragments(static_cast<std::size_t>(W));
  for (std::int64_t d = 0; d + 1 < static_cast<std::int64_t>(offsets.size()); ++d) {
    const std::int64_t rows = offsets[static_cast<std::size_t>(d) + 1] - offsets[static_cast<std::size_t>(d)];
    for (std::int64_t at = 0; at < rows;) {
      const std::int64_t n =
          std::min(rows - at, random.integer(1, random.pick<std::int64_t>({1, 5, 100, 3 * kSegment / 2})));
      fragments[static_cast<std::size_t>(random.integer(0, W - 1))].push_back({d, at, n});
      at += n;
    }
  }
  return Partition::from_fragments(offsets, fragments);
}

TEST(KdaKcp, EveryLayoutAndWorldSize) {
  for (const bool raw_gate : {false, true}) {
    KdaSpec spec = spec_of({0, 1, 63, 64, 65, kSegment + 1, 2 * kSegment + 1, 3 * kSegment + 1, 0});
    if (raw_gate) {
      use_every_activation(spec);
      spec.options.lower_bound = kFaintBound;
    }
    const KdaProblem p = make_problem(spec);
    const KdaResults one = run(p);
    for (const int W : {1, 2, 3, 4, 5, 8}) {
      for (const Layout layout : {Layout::kContiguous, Layout::kZigzag, Layout::kZigzagPerDocument}) {
        SCOPED_TRACE(std::string(kcp::layout_name(layout)) + " over " + std::to_string(W));
        expect_one_rank_bits(p, one, Partition::make(offsets_of(p), W, layout), 1);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(KdaKcp, RandomCutsAndFragments) {
  Random random(11);
  const int cases = kShortSegments ? 100 : 30;
  for (int repeat = 0; repeat < cases; ++repeat) {
    KdaSpec spec = spec_of({});
    for (std::int64_t n = random.integer(1, 4); n > 0; --n) {
      spec.lengths.push_back(random.chance(0.4) ? random.pick<std::int64_t>({0, 1, 63, 64, 65})
                             : random.chance(kShortSegments ? 0.6 : 0.15) ? random.integer(1, 4 * kSegment)
                                                                          : random.integer(1, 300));
    }
    spec.seed = static_cast<std::uint64_t>(1000 + repeat);
    spec.initial_state = random.chance(0.5);
    spec.d_final_state = random.chance(0.7);
    spec.HV = spec.H * random.integer(1, 2);
    spec.dtype = spec.raw_gate_dtype = random.pick(float_dtypes());
    if (random.chance(0.5)) {
      use_every_activation(spec);
      spec.options.lower_bound = kFaintBound;
    } else {
      spec.gate = random.pick(all_gate_regimes());
    }
    const KdaProblem p = make_problem(spec);
    const KdaResults one = run(p);
    const auto offsets = offsets_of(p);
    const int W = static_cast<int>(random.integer(2, 5));
    SCOPED_TRACE("repeat " + std::to_string(repeat) + ": " + spec.text());
    std::vector<std::int64_t> cuts(static_cast<std::size_t>(W - 1));
    for (std::int64_t& cut : cuts) cut = random.integer(0, offsets.back());
    std::sort(cuts.begin(), cuts.end());
    expect_one_rank_bits(p, one, Partition::from_cut_points(offsets, cuts), 1);
    expect_one_rank_bits(p, one, random_fragments(random, offsets, W), 2);
    if (HasFailure()) return;
  }
}

TEST(KdaKcp, ADecayOfItsOwnForEveryHead) {
  KdaSpec spec = spec_of({300, 700, 20});
  spec.H = 2;
  spec.HV = 4;
  spec.gate = GateRegime::kPerHead;
  spec.beta_max = 1.0;
  const KdaProblem p = make_problem(spec);
  const KdaResults one = run(p);
  EXPECT_TRUE(matches_reference(p, one));
  for (const int W : {2, 4}) expect_one_rank_bits(p, one, Partition::make(offsets_of(p), W), 1);
}

TEST(KdaKcp, AForwardRunsAgain) {
  const KdaProblem p = make_problem(spec_of({kSegment + 100}));
  const KdaResults one = run(p);
  for (int repeat = 0; repeat < 2; ++repeat) {
    expect_one_rank_bits(p, one, Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{70}), 1);
  }
}

TEST(KdaKcp, TheWrongNumberOfRowsIsRefused) {
  const KdaProblem p = make_problem(spec_of({100}));
  ThreadGroup group(1);
  kda::Operands x;
  x.q = p.q.view();
  x.k = p.k.view();
  x.v = p.v.view();
  x.g = p.g.view();
  x.beta = p.beta.view();
  const Partition other = Partition::make(std::vector<std::int32_t>{0, 99}, 1);
  EXPECT_THROW(kda::KcpKda(other, group.communicator(0), x, {}), InvalidArgument);
}

}  // namespace
}  // namespace cake::test
