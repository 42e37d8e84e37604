// Where the tools cut a pack into the shares of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cake::tool {

/// Random sets of cuts for every number of ranks.
struct RandomCuts {
  int sets = 20;
  std::uint64_t seed = 1;
};

/// Reads "random:20", or "random:20:7" with a seed. Throws InvalidArgument.
RandomCuts parse_cuts(const std::string& text);

/// ranks - 1 cuts of the packed rows, not decreasing, drawn from the seed: anywhere, some of them on borders of
/// documents and some equal, so that ranks between them are empty.
std::vector<std::int64_t> random_cut_points(std::span<const std::int32_t> cu_seqlens, int ranks, std::uint64_t seed);

/// How a benchmark cuts.
enum class BenchCut {
  kSegment,  ///< on the borders of canonical segments that are nearest to even shares
  kEven,     ///< even shares
};
/// "segment" or "even".
const char* bench_cut_name(BenchCut cut);
/// Inverse of bench_cut_name. Throws InvalidArgument.
BenchCut parse_bench_cut(const std::string& name);

/// ranks - 1 ascending cuts, none of which leaves a rank without rows. Throws InvalidArgument where there are none.
std::vector<std::int64_t> bench_cut_points(std::span<const std::int32_t> cu_seqlens, int ranks, BenchCut cut);

/// "12, 200".
std::string cut_points_text(std::span<const std::int64_t> cuts);

/// Offsets of `documents` documents in `rows` rows, equally long but for the first (2/3 of that) and the last (4/3):
/// cuts into 2 or 4 even shares fall inside a document.
std::vector<std::int32_t> shifted_documents(std::int64_t rows, std::int64_t documents);

}  // namespace cake::tool
