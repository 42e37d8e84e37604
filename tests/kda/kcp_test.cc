// KDA over ranks against one rank, bit by bit: every output, gradient, parameter gradient and partial sum, for world
// sizes, layouts, cuts anywhere (inside chunks, one-row fragments, empty ranks) and documents around chunk and segment
// borders.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::Fragment;
using kcp::Layout;
using kcp::Partition;
using Lengths = std::vector<std::int64_t>;
using Cuts = std::vector<std::int64_t>;

TEST(KdaKcp, EveryLayoutAndWorldSize) {
  for (const bool raw_gate : {false, true}) {
    const KdaProblem p = make_problem(kcp_spec(
        {0, 1, 63, 64, 65, kShortSegments && !kSanitized ? 4097 : kSegment + 1, 2 * kSegment + 1, 3 * kSegment + 1, 0},
        raw_gate));
    const OneRank one = one_rank(p);
    for (const int W : {1, 2, 3, 4, 5, 8}) {
      if (kSlow && raw_gate && W != 3 && W != 8) continue;
      for (const Layout layout : all_kcp_layouts()) {
        SCOPED_TRACE(std::string(kcp::layout_name(layout)) + " over " + std::to_string(W));
        KcpRun how;
        how.exchange = all_exchanges()[static_cast<std::size_t>(W) % 3];
        expect_one_rank_bits(p, one, Partition::make(offsets_of(p), W, layout), how);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(KdaKcp, TheLengthsOneByOne) {
  for (const std::int64_t length : Lengths{0, 1, 63, 64, 65, 4097, 2 * kSegment + 1, 3 * kSegment + 1}) {
    if (kSanitized && length > 1000) continue;
    const KdaProblem p = make_problem(kcp_spec({length}, length % 2 == 1));
    const OneRank one = one_rank(p);
    for (const int W : {2, 3, 5}) {
      SCOPED_TRACE(std::to_string(length) + " rows over " + std::to_string(W));
      expect_one_rank_bits(p, one, Partition::make(offsets_of(p), W));
    }
    if (HasFailure()) return;
  }
}

TEST(KdaKcp, CutsInsideMiddleSegments) {
  const KdaProblem p = make_problem(kcp_spec({70, 3 * kSegment + 1, 5}, true));
  const OneRank one = one_rank(p);
  const std::int64_t first = 70, middle = first + kSegment, end = first + 3 * kSegment + 1;
  for (const Cuts& cuts : std::vector<Cuts>{
           {middle + 1},                                       // one row into a middle segment
           {middle + 64},                                      // a chunk into it
           {middle + 65, middle + 66},                         // one row between two cuts of a chunk
           {middle + 10, middle + 20, middle + 30},            // one chunk on four ranks
           {middle + 33, middle + 97, middle + kSegment + 1},  // both middle segments, every cut inside a chunk
           {middle + 64, middle + 64},                         // a rank without rows inside a segment
           {middle, middle + kSegment, end - 1},               // segment borders, and the last row alone
           {first, end},                                       // document borders
           {0, 0, end + 5},                                    // all rows on one rank of four
       }) {
    SCOPED_TRACE("first cut " + std::to_string(cuts[0]) + " of " + std::to_string(cuts.size()));
    const Partition partition = Partition::from_cut_points(offsets_of(p), cuts);
    for (const kcp::Exchange exchange : {kcp::Exchange::kRelay, kcp::Exchange::kGather}) {
      KcpRun how;
      how.exchange = exchange;
      expect_one_rank_bits(p, one, partition, how);
    }
    if (HasFailure()) return;
  }
}

TEST(KdaKcp, OneChunkRowByRow) {
  // 64 ranks would be slow: every fourth row has a rank of its own, and those between are dealt around.
  const KdaProblem p = make_problem(kcp_spec({66, 3}));
  std::vector<std::vector<Fragment>> fragments(5);
  for (std::int64_t row = 0; row < 66; ++row) fragments[static_cast<std::size_t>(row * 7 % 5)].push_back({0, row, 1});
  fragments[4].push_back({1, 2, 1});
  fragments[0].push_back({1, 0, 2});
  fragments[2].push_back({1, 1, 0});
  expect_one_rank_bits(p, one_rank(p), Partition::from_fragments(offsets_of(p), fragments));
}

TEST(KdaKcp, RanksWithoutDocumentsAndPacksWithoutRows) {
  for (const Lengths& lengths : std::vector<Lengths>{{}, {0}, {0, 0, 0}, {1}, {0, 2, 0}, {64}}) {
    const KdaProblem p = make_problem(kcp_spec(lengths, true));
    const OneRank one = one_rank(p);
    for (const int W : {1, 2, 4}) {
      for (const Layout layout : all_kcp_layouts()) {
        for (const bool recompute : {false, true}) {
          SCOPED_TRACE(p.spec.text() + " over " + std::to_string(W));
          KcpRun how;
          how.recompute = recompute;
          expect_one_rank_bits(p, one, Partition::make(offsets_of(p), W, layout), how);
        }
      }
    }
    if (HasFailure()) return;
  }
}

/// A problem of few short documents; in builds with short segments many have several segments.
KdaSpec random_spec(Random& random) {
  KdaSpec spec = kcp_spec({}, random.chance(0.5));
  for (std::int64_t n = random.integer(1, 4); n > 0; --n) {
    spec.lengths.push_back(random.chance(0.4) ? random.pick<std::int64_t>({0, 1, 63, 64, 65, 128})
                           : random.chance(kShortSegments ? 0.6 : 0.08) ? random.integer(1, 4 * kSegment)
                                                                        : random.integer(1, 300));
  }
  spec.seed = random.bits() % 100000;
  spec.initial_state = random.chance(0.5);
  spec.d_final_state = random.chance(0.7);
  spec.H = random.integer(1, 2);
  spec.HV = spec.H * random.integer(1, 2);
  spec.dtype = spec.raw_gate_dtype = random.pick(float_dtypes());
  spec.beta_fp32 = random.chance(0.3);
  if (!spec.options.use_gate_in_kernel) spec.gate = random.pick(all_gate_regimes());
  if (spec.options.use_gate_in_kernel) {
    spec.dt_bias = random.chance(0.8);
    spec.flat_dt_bias = random.chance(0.3);
    spec.A_log = random.chance(0.8);
  }
  if (random.chance(0.3)) spec.options.scale = 0.7f;
  return spec;
}

void check_seed(std::uint64_t seed) {
  Random random(seed);
  const KdaSpec spec = random_spec(random);
  const KdaProblem p = make_problem(spec);
  const OneRank one = one_rank(p);
  const int W = static_cast<int>(random.integer(2, 5));
  for (const Partition& partition :
       {random_cuts(random, offsets_of(p), W), random_fragments(random, offsets_of(p), W)}) {
    SCOPED_TRACE("CAKE_TEST_SEED=" + std::to_string(seed) + ": " + spec.text() + "; " + partition_text(partition));
    expect_one_rank_bits(p, one, partition, random_run(random));
  }
}

TEST(KdaKcp, RandomCutsAndFragments) {
  if (const char* text = std::getenv("CAKE_TEST_SEED"); text != nullptr && *text != '\0') {
    check_seed(std::strtoull(text, nullptr, 10));
    return;
  }
  const std::uint64_t seeds = kSanitized ? 10 : kShortSegments ? 120 : 110;  // two cut sets each
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) check_seed(seed);
}

TEST(KdaKcp, FreshSeeds) {
  if (std::getenv("CAKE_TEST_SEED") != nullptr) GTEST_SKIP() << "CAKE_TEST_SEED is set";
  const std::uint64_t first = std::random_device{}();
  std::printf("fresh seeds from %llu on\n", static_cast<unsigned long long>(first));
  const std::uint64_t seeds = kSanitized ? 2 : 10;
  for (std::uint64_t seed = first; seed < first + seeds && !HasFailure(); ++seed) check_seed(seed);
}

TEST(KdaKcp, TheSameBitsOnEveryRepeat) {
  const KdaProblem p = make_problem(kcp_spec({kSegment + 100, 30}, true));
  const OneRank one = one_rank(p);
  const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{70, kSegment + 110});
  for (int repeat = 0; repeat < 10; ++repeat) {
    KcpRun how;
    how.threads = 1 + repeat % 3;
    how.shuffle = static_cast<std::uint64_t>(repeat);
    expect_one_rank_bits(p, one, partition, how);
  }
}

TEST(KdaKcp, ThePartialsFoldToTheTotal) {
  // Not only equal to each other: each partial is that of its document alone, and in pack order they add up.
  const KdaProblem p = make_problem(kcp_spec({70, 2 * kSegment + 30, 0, 5}, true));
  const OneRank one = one_rank(p);
  EXPECT_EQ(one.partials.size(), 5u) << "documents of 1, 3, 0 and 1 segments";
  const std::size_t Kp = static_cast<std::size_t>((p.spec.K + 15) / 16 * 16);
  for (std::int64_t h = 0; h < p.spec.HV; ++h) {
    for (std::int64_t d = 0; d < p.spec.K; ++d) {
      float sum = 0.0f;
      for (const auto& [key, sums] : one.partials) {
        sum += sums.at(static_cast<std::size_t>(h) * 2 * Kp + static_cast<std::size_t>(d));
      }
      EXPECT_EQ(static_cast<double>(sum), one.tensors.at("ddt_bias").at(h * p.spec.K + d)) << "head " << h;
    }
  }
  const KdaProblem alone = select_documents(p, {3});
  EXPECT_EQ(one_rank(alone).partials.at({0, 0}), one.partials.at({3, 0}));
}

}  // namespace
}  // namespace cake::test
