// Hostile packed tables: every cu_seqlens is either one that a plain reading accepts, and then runs, or is refused by
// name with nothing written. CAKE_TEST_CASES sets the number of tables.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "tests/kda/guarded_call.h"
#include "tests/support/kda_packages.h"
#include "tests/support/random.h"

namespace cake::test {
namespace {

constexpr std::int64_t kRowsOfBuffer = 40;

/// The rules in one sentence: first 0, never decreasing, last at most S.
bool legal(const std::vector<std::int32_t>& offsets) {
  return !offsets.empty() && offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()) &&
         offsets.back() <= kRowsOfBuffer;
}

std::int32_t draw_offset(Random& random) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max(),
                         kMin = std::numeric_limits<std::int32_t>::min();
  if (random.chance(0.1)) return random.pick<std::int32_t>({kMax, kMin, -1, 41, 1 << 30, kMin + 1, kMax - 40});
  if (random.chance(0.1)) return static_cast<std::int32_t>(random.bits());
  return static_cast<std::int32_t>(random.integer(0, kRowsOfBuffer));
}

std::vector<std::int32_t> draw_table(Random& random) {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(random.integer(0, 9)));
  for (std::int32_t& x : offsets) x = draw_offset(random);
  if (random.chance(0.7)) std::sort(offsets.begin(), offsets.end());
  if (!offsets.empty() && random.chance(0.8)) offsets.front() = 0;
  return offsets;
}

/// A forward and a backward with the table, `stride` elements apart in memory.
void check_table(const std::vector<std::int32_t>& offsets, std::int64_t stride, bool recompute) {
  std::string words;
  for (const std::int32_t x : offsets) words += std::to_string(x) + " ";
  SCOPED_TRACE("cu_seqlens " + words + "stride " + std::to_string(stride));
  KdaSpec spec;
  spec.lengths = {kRowsOfBuffer};
  spec.H = spec.HV = 1;
  spec.K = spec.V = 3;
  spec.d_final_state = false;
  static const KdaProblem problem = make_problem(spec);
  std::vector<std::int32_t> memory(offsets.size() * static_cast<std::size_t>(std::max<std::int64_t>(stride, 1)) + 1,
                                   std::numeric_limits<std::int32_t>::min());
  for (std::size_t i = 0; i < offsets.size(); ++i) memory[i * static_cast<std::size_t>(stride)] = offsets[i];
  Inputs inputs = problem.inputs();
  inputs.cu_seqlens =
      ConstTensorView::contiguous(memory.data(), DType::kInt32, {static_cast<std::int64_t>(offsets.size())});
  inputs.cu_seqlens.strides[0] = stride;
  LaidOutTensor out(problem.v.dtype, problem.v.shape), dk(problem.k.dtype, problem.k.shape);
  out.fill(kSentinel);
  dk.fill(kSentinel);
  Gradients gradients;
  gradients.dk = dk.view();
  Saved saved;
  std::string error;
  try {
    forward(inputs, {out.view(), {}}, {}, nullptr, recompute ? nullptr : &saved);
    backward(inputs, problem.dout.view(), {}, gradients, {}, nullptr, recompute ? nullptr : &saved);
  } catch (const InvalidArgument& refused) {
    error = refused.what();
  }
  EXPECT_TRUE(out.guards_intact() && dk.guards_intact());
  if (legal(offsets)) {
    EXPECT_EQ(error, "");
    const std::vector<double> rows = out.gather().doubles();
    for (std::size_t i = static_cast<std::size_t>(offsets.back()) * 3; i < rows.size(); ++i) EXPECT_EQ(rows[i], 0.0);
    for (const double x : dk.gather().doubles()) EXPECT_NE(x, kSentinel);
    return;
  }
  EXPECT_EQ(error.find("cu_seqlens"), 0u) << "message: " << error;
  for (const double x : out.gather().doubles()) ASSERT_EQ(x, kSentinel);
  for (const double x : dk.gather().doubles()) ASSERT_EQ(x, kSentinel);
}

/// The byte queries read the same tables.
void check_queries(const std::vector<std::int32_t>& offsets) {
  if (offsets.empty()) return;  // there it means "not known"
  kda_det_train::Shape shape;
  shape.S = kRowsOfBuffer;
  shape.num_docs = static_cast<std::int64_t>(offsets.size()) - 1;
  shape.K = shape.V = 3;
  shape.cu_seqlens = offsets;
  if (legal(offsets)) {
    EXPECT_LE(saved_bytes(shape), std::size_t{1} << 24);
    return;
  }
  EXPECT_THROW(saved_bytes(shape), InvalidArgument);
  EXPECT_THROW(backward_workspace_bytes(shape, true), InvalidArgument);
}

TEST(KdaOffsetsFuzz, EveryTableRunsOrIsRefused) {
  const char* text = std::getenv("CAKE_TEST_CASES");
  const long cases = text == nullptr || *text == '\0' ? 3000 : std::strtol(text, nullptr, 10);
  Random random(2026);
  long accepted = 0;
  for (long i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
    const std::vector<std::int32_t> offsets = draw_table(random);
    check_table(offsets, random.pick<std::int64_t>({1, 1, 2, 5}), random.chance(0.5));
    check_queries(offsets);
    accepted += legal(offsets) ? 1 : 0;
  }
  // The generator must reach both sides.
  EXPECT_GT(accepted, cases / 10);
  EXPECT_LT(accepted, cases * 9 / 10);
}

}  // namespace
}  // namespace cake::test
