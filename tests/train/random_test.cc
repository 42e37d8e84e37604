// Philox4x32-10 against the known answers of its authors (Random123, kat_vectors), and what is built on it.
#include "examples/train_lm/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cake::test {
namespace {

using train_lm::philox;
using train_lm::Random;
using train_lm::RandomStream;
using Block = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, StreamsAndSeedsDiffer) {
  const auto first = [](std::uint64_t seed, RandomStream stream, std::uint32_t substream) {
    return Random(seed, stream, substream).bits();
  };
  const std::uint32_t base = first(1, RandomStream::kInit, 0);
  EXPECT_EQ(base, first(1, RandomStream::kInit, 0));
  EXPECT_NE(base, first(2, RandomStream::kInit, 0));
  EXPECT_NE(base, first(1 + (std::uint64_t{1} << 32), RandomStream::kInit, 0));
  EXPECT_NE(base, first(1, RandomStream::kOrder, 0));
  EXPECT_NE(base, first(1, RandomStream::kInit, 1));
}

TEST(Random, UniformHasTheRightMoments) {
  Random random(5, RandomStream::kInit, 0);
  constexpr int kCount = 100000;
  double sum = 0.0, squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0 / 3.0, 0.005);
}

TEST(Random, ShuffleIsAPermutationAndReachesEveryPlace) {
  std::vector<int> seen(25, 0);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<int> items(5);
    std::iota(items.begin(), items.end(), 0);
    Random random(seed, RandomStream::kOrder, 0);
    random.shuffle(items);
    for (std::size_t i = 0; i < 5; ++i) ++seen[i * 5 + static_cast<std::size_t>(items[i])];
    std::sort(items.begin(), items.end());
    ASSERT_EQ(items, (std::vector<int>{0, 1, 2, 3, 4}));
  }
  for (const int count : seen) EXPECT_NEAR(count, 80, 40);
}

}  // namespace
}  // namespace cake::test
