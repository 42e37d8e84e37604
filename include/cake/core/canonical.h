// The constants that fix the bits of every det package. Changing one changes bits: it needs a CHANGELOG entry.
#pragma once

#include <cstdint>

namespace cake {

/// Rows of a chunk, counted from a document's first row.
inline constexpr std::int64_t kChunk = 64;
/// Rows of a sub-chunk: decays are running products inside one.
inline constexpr std::int64_t kSubChunk = 16;

/// Tokens of a canonical segment on the CPU, counted from a document's first row. Splitting a document of 16384 tokens
/// costs 24 % on one core and gives 1.6 times the speed with four cores for one head (docs/perf/kda_cpu.md has the
/// table); a document of at most this many tokens pays nothing.
/// A test build (CMake: CAKE_TEST_SEGMENT) makes it short, so that short documents exercise folds.
#ifdef CAKE_TEST_SEGMENT
inline constexpr std::int64_t kSegment = CAKE_TEST_SEGMENT;
#else
inline constexpr std::int64_t kSegment = 4096;
#endif
static_assert(kSegment % kChunk == 0, "a segment is a whole number of chunks");

}  // namespace cake
