#include "core/arena.h"

#include <cstring>
#include <vector>

#include "test_util.h"

namespace cake {
namespace {

using test::expect_error;

// The same carving code counts and takes, as kernels use the arena.
struct Blocks {
  float* a;
  std::uint16_t* b;
  double* c;
};
Blocks carve(Arena& arena, std::int64_t n) {
  Blocks blocks{};
  blocks.a = arena.take<float>(n);
  blocks.b = arena.take<std::uint16_t>(3 * n + 1);
  blocks.c = arena.take<double>(n / 2);
  return blocks;
}

TEST(Arena, CountsWithoutMemory) {
  Arena arena;
  EXPECT_TRUE(arena.counting());
  EXPECT_EQ(arena.bytes_needed(), 0u);
  EXPECT_EQ(arena.take<float>(1), nullptr);
  EXPECT_EQ(arena.bytes_needed(), 64u + 63u);
  EXPECT_EQ(arena.take<float>(17), nullptr);
  EXPECT_EQ(arena.bytes_needed(), 64u + 128u + 63u);
}

TEST(Arena, PromisedSizeIsEnoughAtEveryAlignment) {
  for (const std::int64_t n : {0, 1, 15, 16, 17, 1000}) {
    Arena counter;
    carve(counter, n);
    const std::size_t bytes = counter.bytes_needed();
    std::vector<unsigned char> memory(bytes + 64 + 64, 0xa5);
    for (std::size_t offset = 0; offset < 64; ++offset) {
      Arena arena(memory.data() + offset, bytes, "workspace");
      EXPECT_FALSE(arena.counting());
      const Blocks blocks = carve(arena, n);
      EXPECT_EQ(arena.bytes_needed(), bytes);
      for (const void* p : {static_cast<const void*>(blocks.a), static_cast<const void*>(blocks.b),
                            static_cast<const void*>(blocks.c)}) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % kArenaAlignment, 0u);
      }
      // The blocks lie inside and do not overlap: fill each and look at all of them afterwards.
      const auto fill = [](void* p, int value, std::size_t size) {
        if (size > 0) std::memset(p, value, size);
      };
      const std::size_t na = sizeof(float) * static_cast<std::size_t>(n);
      const std::size_t nb = sizeof(std::uint16_t) * static_cast<std::size_t>(3 * n + 1);
      const std::size_t nc = sizeof(double) * static_cast<std::size_t>(n / 2);
      fill(blocks.a, 1, na);
      fill(blocks.b, 2, nb);
      fill(blocks.c, 3, nc);
      const auto holds = [](const void* p, int value, std::size_t size) {
        const auto* at = static_cast<const unsigned char*>(p);
        for (std::size_t i = 0; i < size; ++i) {
          if (at[i] != value) return false;
        }
        return true;
      };
      EXPECT_TRUE(holds(blocks.a, 1, na) && holds(blocks.b, 2, nb) && holds(blocks.c, 3, nc));
      for (std::size_t i = 0; i < offset; ++i) ASSERT_EQ(memory[i], 0xa5);
      for (std::size_t i = offset + bytes; i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xa5);
      std::fill(memory.begin(), memory.end(), static_cast<unsigned char>(0xa5));
    }
  }
}

TEST(Arena, TooSmallNamesItself) {
  alignas(64) unsigned char memory[256];
  Arena arena(memory, sizeof memory, "workspace");
  EXPECT_NE(arena.take<float>(64), nullptr);
  expect_error<OutOfMemory>([&] { arena.take<float>(1); }, {"workspace", "256", "320"});
  // One byte short is too small.
  Arena exact(memory, 128, "saved");
  EXPECT_NE(exact.take<float>(32), nullptr);
  Arena shorter(memory, 127, "saved");
  expect_error<OutOfMemory>([&] { shorter.take<float>(32); }, {"saved", "127", "128"});
}

TEST(Arena, NoMemoryGivenIsNotCounting) {
  Arena arena(nullptr, 0, "workspace");
  EXPECT_FALSE(arena.counting());
  expect_error<OutOfMemory>([&] { arena.take<float>(1); }, {"workspace", "0 bytes"});
  // Memory smaller than the bytes skipped for alignment.
  alignas(64) unsigned char memory[64];
  Arena tiny(memory + 1, 8, "workspace");
  expect_error<OutOfMemory>([&] { tiny.take<char>(1); }, {"workspace"});
}

TEST(Arena, NullWithBytesCannotBeUsed) {
  Arena arena(nullptr, 4096, "workspace");
  expect_error<OutOfMemory>([&] { arena.take<float>(1); }, {"workspace"});
}

}  // namespace
}  // namespace cake
