// Logical shards: the split, and that shards may be formed anywhere (any thread, any rank) with the same bits.
#include "examples/train_lm/shards.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cake/core/parallel.h"
#include "core/gemm.h"
#include "examples/train_lm/layers.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the shards under test

TEST(ShardPlan, CoversTheBatchAtMultiplesOf64) {
  for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{63}, std::int64_t{64},
                                  std::int64_t{65}, std::int64_t{1000}, std::int64_t{4096}, std::int64_t{100000}}) {
    for (const int shards : {1, 2, 7, 24}) {
      const ShardPlan plan(rows, shards);
      ASSERT_EQ(plan.count(), shards);
      EXPECT_EQ(plan.begin(0), 0);
      EXPECT_EQ(plan.end(shards - 1), rows);
      std::int64_t least = rows, most = 0;
      for (int s = 0; s < shards; ++s) {
        EXPECT_GE(plan.size(s), 0);
        if (s > 0) {
          EXPECT_EQ(plan.begin(s), plan.end(s - 1));
          EXPECT_TRUE(plan.begin(s) % 64 == 0 || plan.begin(s) == rows);
        }
        least = std::min(least, plan.size(s));
        most = std::max(most, plan.size(s));
      }
      EXPECT_LE(most - least, 128) << "shards should be even";
    }
  }
}

TEST(ShardReducer, EqualsShardsFormedOneByOneAndAddedInOrder) {
  constexpr std::int64_t kT = 1000, kK = 32, kN = 48;
  auto x = random_floats(kT * kK, 1), dy = random_floats(kT * kN, 2);
  const ShardPlan plan(kT, 7);
  std::vector<float> expected(kK * kN, 0.0f), part(kK * kN);
  for (int s = 0; s < plan.count(); ++s) {  // as ranks would: each shard alone, in another order than it is added
    dense_gemm(kK, kN, plan.size(s), {x.data() + plan.begin(s) * kK, 1, kK}, {dy.data() + plan.begin(s) * kN, kN, 1},
               part.data(), kN, false);
    for (std::size_t i = 0; i < part.size(); ++i) expected[i] = s == 0 ? part[i] : expected[i] + part[i];
  }
  for (const int threads : {1, 2, 5}) {
    const ScopedNumThreads scope(threads);
    ShardReducer reducer(plan);
    std::vector<float> dw(kK * kN, -1.0f);
    linear_weight(reducer, kK, kN, {x.data(), kK}, {dy.data(), kN}, dw.data());
    EXPECT_EQ(dw, expected) << threads << " threads";
  }
}

TEST(ShardReducer, OrderOfShardsIsPartOfTheBits) {
  // Values chosen so that another order of addition gives another sum: the fold must be left to right.
  ShardReducer reducer(ShardPlan(256, 4));
  const float values[4] = {1.0f, 1e8f, -1e8f, 0.5f};
  float out[17];
  reducer.reduce(17, out, [&](std::int64_t begin, std::int64_t, float* dst) {
    for (int i = 0; i < 17; ++i) dst[i] = values[begin / 64];
  });
  for (const float v : out) EXPECT_EQ(v, 0.5f);  // ((1 + 1e8) - 1e8) + 0.5, where 1 is lost
}

TEST(ShardReducer, SumOfRowsIsPerShard) {
  std::vector<float> rows(130, 0.25f);
  const ShardReducer reducer(ShardPlan(130, 3));
  EXPECT_EQ(reducer.sum_rows(rows.data()), 32.5);
}

}  // namespace
}  // namespace cake::test
