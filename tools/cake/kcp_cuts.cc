#include "kcp_cuts.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "cake/core/canonical.h"
#include "cake/core/error.h"
#include "digest.h"

namespace cake::tool {
namespace {

constexpr int kMostSets = 10000;
constexpr std::string_view kRandom = "random:";

/// Reads a whole number that fills `text`.
template <class Number>
bool read(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Borders of canonical segments between the first and the last row, ascending.
std::vector<std::int64_t> segment_borders(std::span<const std::int32_t> offsets) {
  std::vector<std::int64_t> borders;
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    for (std::int64_t row = offsets[d]; row < offsets[d + 1]; row += kSegment) borders.push_back(row);
  }
  if (!borders.empty()) borders.erase(borders.begin());  // the first row of the pack is no border
  return borders;
}

}  // namespace

RandomCuts parse_cuts(const std::string& text) {
  RandomCuts cuts;
  const std::string_view all = text;
  bool good = all.substr(0, kRandom.size()) == kRandom;
  if (good) {
    const std::string_view rest = all.substr(kRandom.size());
    const std::size_t colon = rest.find(':');
    good = read(rest.substr(0, colon), cuts.sets) && cuts.sets >= 1 && cuts.sets <= kMostSets;
    if (good && colon != std::string_view::npos) good = read(rest.substr(colon + 1), cuts.seed);
  }
  if (good) return cuts;
  throw InvalidArgument("--cuts: got \"" + text + "\", expected random:SETS or random:SETS:SEED with 1 to " +
                        std::to_string(kMostSets) + " sets, for example random:20");
}

std::vector<std::int64_t> random_cut_points(std::span<const std::int32_t> cu_seqlens, int ranks, std::uint64_t seed) {
  Random random(seed * 1024 + static_cast<std::uint64_t>(ranks));
  const auto below = [&](std::uint64_t n) { return random.bits() % n; };
  const auto rows = static_cast<std::uint64_t>(cu_seqlens.back());
  std::vector<std::int64_t> cuts;
  for (int r = 1; r < ranks; ++r) {
    const std::uint64_t kind = below(8);
    if (kind == 0 && !cuts.empty()) {
      cuts.push_back(cuts[below(cuts.size())]);
    } else if (kind == 1) {
      cuts.push_back(cu_seqlens[below(cu_seqlens.size())]);
    } else {
      cuts.push_back(static_cast<std::int64_t>(below(rows + 1)));
    }
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

const char* bench_cut_name(BenchCut cut) { return cut == BenchCut::kSegment ? "segment" : "even"; }

BenchCut parse_bench_cut(const std::string& name) {
  for (const BenchCut cut : {BenchCut::kSegment, BenchCut::kEven}) {
    if (name == bench_cut_name(cut)) return cut;
  }
  throw InvalidArgument("--cut: got \"" + name + "\", expected segment or even");
}

std::vector<std::int64_t> bench_cut_points(std::span<const std::int32_t> cu_seqlens, int ranks, BenchCut cut) {
  const std::int64_t rows = cu_seqlens.back();
  const std::vector<std::int64_t> borders = segment_borders(cu_seqlens);
  std::vector<std::int64_t> cuts;
  for (int r = 1; r < ranks; ++r) {
    std::int64_t row = rows * r / ranks;
    if (cut == BenchCut::kSegment && !borders.empty()) {
      const auto nearer = [row](std::int64_t a, std::int64_t b) { return std::abs(a - row) < std::abs(b - row); };
      row = *std::min_element(borders.begin(), borders.end(), nearer);
    }
    const bool on_border = cut == BenchCut::kEven || !borders.empty();
    if (!on_border || row <= (cuts.empty() ? 0 : cuts.back()) || row >= rows) {
      throw InvalidArgument(std::string("--cut: got ") + bench_cut_name(cut) + ", which leaves one of " +
                            std::to_string(ranks) + " ranks without rows: T=" + std::to_string(rows) + " has " +
                            std::to_string(borders.size() + 1) + " segment(s) of at most " + std::to_string(kSegment) +
                            " tokens; expected a larger T, fewer ranks" + (cut == BenchCut::kEven ? "" : ", or even"));
    }
    cuts.push_back(row);
  }
  return cuts;
}

std::string cut_points_text(std::span<const std::int64_t> cuts) {
  std::string text;
  for (const std::int64_t cut : cuts) {
    if (!text.empty()) text += ", ";
    text += std::to_string(cut);
  }
  return text;
}

std::vector<std::int32_t> shifted_documents(std::int64_t rows, std::int64_t documents) {
  std::vector<std::int32_t> offsets = {0};
  for (std::int64_t d = 1; d < documents; ++d) {
    offsets.push_back(static_cast<std::int32_t>(rows * (3 * d - 1) / (3 * documents)));
  }
  offsets.push_back(static_cast<std::int32_t>(rows));
  return offsets;
}

}  // namespace cake::tool
