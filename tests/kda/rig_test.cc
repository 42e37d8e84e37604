// The library's own memory poisoned, a busy machine, repeats: both packages, memory they allocate themselves.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cake/core/parallel.h"
#include "tests/kda/cases.h"
#include "tests/support/rig.h"

namespace cake::test {
namespace {

KdaProblem problem(std::uint64_t seed) {
  KdaSpec spec;
  spec.lengths = {2 * kSegment + 1, 0, 65};
  spec.rows_past_end = 7;
  spec.HV = 2;
  spec.K = kShortSegments ? 40 : 9;
  spec.V = kShortSegments ? 24 : 8;
  spec.initial_state = true;
  use_every_activation(spec);
  spec.seed = seed;
  return make_problem(spec);
}

/// Sizes of what a call allocates when it is given nothing.
std::vector<std::size_t> sizes_of(const KdaProblem& p) {
  const auto shape = p.shape();
  const auto& options = p.spec.options;
  return {forward_workspace_bytes(shape, options), forward_workspace_bytes(shape, options, true),
          backward_workspace_bytes(shape, false, options), backward_workspace_bytes(shape, true, options),
          saved_bytes(shape, options)};
}

class KdaRig : public testing::TestWithParam<bool> {};

TEST_P(KdaRig, PoisonedHeap) {
  const KdaProblem p = problem(1);
  const KdaResults expected = run(p);
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    for (const bool recompute : {false, true}) {
      KdaRun how;
      how.nondet = GetParam();
      how.memory = Memory::kNone;
      how.recompute = recompute;
      poison_heap(sizes_of(p), poison);
      const KdaResults got = run(p, how);
      EXPECT_TRUE(matches_reference(p, got)) << poison;
      if (!GetParam()) {
        EXPECT_TRUE(same_bits(got, expected)) << poison;
      }
    }
  }
}

TEST_P(KdaRig, ABusyMachine) {
  const KdaProblem p = problem(2);
  const KdaResults expected = run(p);
  const ReferenceResults reference = run_reference(p);
  const BusyMachine busy(3);
  for (int repeat = 0; repeat < 10; ++repeat) {
    KdaRun how;
    how.nondet = GetParam();
    how.threads = 1 + repeat % 4;
    const KdaResults got = run(p, how);
    EXPECT_TRUE(matches_reference(p, got, reference));
    if (!GetParam()) {
      EXPECT_TRUE(same_bits(got, expected)) << repeat;
    }
  }
}

TEST_P(KdaRig, OperandsAreLeftAlone) {
  const KdaProblem p = problem(3), copy = problem(3);
  KdaRun how;
  how.nondet = GetParam();
  run(p, how);
  EXPECT_TRUE(same_bits(p.q, copy.q) && same_bits(p.k, copy.k) && same_bits(p.v, copy.v) && same_bits(p.g, copy.g) &&
              same_bits(p.beta, copy.beta) && same_bits(p.dout, copy.dout) &&
              same_bits(*p.initial_state, *copy.initial_state) && same_bits(*p.d_final_state, *copy.d_final_state));
}

INSTANTIATE_TEST_SUITE_P(Packages, KdaRig, testing::Bool(),
                         [](const auto& package) { return std::string(package.param ? "Nondet" : "Det"); });

}  // namespace
}  // namespace cake::test
