#include "shards.h"

#include <algorithm>
#include <string>

#include "cake/core/cpu_isa.h"
#include "kernels.h"

namespace cake::train_lm {
namespace {

constexpr std::int64_t kSliceMultiple = 16;  // floats of one vector

/// out[n] = sum of `parts` rows of n floats, in order, on the threads.
void fold_rows(std::int64_t parts, const float* rows, std::int64_t n, float* out) {
  constexpr std::int64_t kBlock = 4096;
  const TrainKernels& kernels = train_kernels();
  parallel_for((n + kBlock - 1) / kBlock, 0, [&](std::int64_t block, int) {
    const std::int64_t at = block * kBlock;
    kernels.fold(parts, n, rows + at, std::min(kBlock, n - at), out + at);
  });
}

void grow(std::vector<float>& v, std::int64_t n) { v.resize(std::max(v.size(), static_cast<std::size_t>(n))); }

std::size_t bytes(std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

}  // namespace

ShardPlan::ShardPlan(std::int64_t rows, int shards) {
  const std::int64_t blocks = (rows + kShardRows - 1) / kShardRows;
  borders_.resize(static_cast<std::size_t>(shards) + 1);
  for (int i = 0; i <= shards; ++i) {
    borders_[static_cast<std::size_t>(i)] = std::min(rows, blocks * i / shards * kShardRows);
  }
}

RankShards::RankShards(const ShardPlan& plan, int ranks, kcp::Layout layout) : plan_(plan) {
  const auto refuse = [](const std::string& text) { throw InvalidArgument(text); };
  if (ranks < 1 || ranks > kMaxRanks) {
    refuse("ranks: got " + std::to_string(ranks) + ", expected 1 to " + std::to_string(kMaxRanks));
  }
  if (ranks > plan.count()) {
    refuse("ranks: got " + std::to_string(ranks) + ", expected at most " + std::to_string(plan.count()) +
           ", the number of shards: a rank holds whole shards of the batch");
  }
  if (layout == kcp::Layout::kZigzagPerDocument) {
    refuse(
        "layout: got zigzag_per_document, expected contiguous or zigzag: it cuts every document by itself, and a rank "
        "of "
        "the trainer holds whole shards of the batch, which fix the order of all sums");
  }
  const std::int64_t parts = layout == kcp::Layout::kZigzag ? 2 * std::int64_t{ranks} : ranks;
  const auto border = [&](std::int64_t part) { return static_cast<int>(plan.count() * part / parts); };
  runs_.resize(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    std::vector<ShardRun>& mine = runs_[static_cast<std::size_t>(r)];
    const auto add = [&](std::int64_t part) {
      const ShardRun run{border(part), border(part + 1)};
      if (run.count() == 0) return;
      if (!mine.empty() && mine.back().end == run.first) {
        mine.back().end = run.end;
      } else {
        mine.push_back(run);
      }
    };
    add(r);
    if (layout == kcp::Layout::kZigzag) add(parts - 1 - r);
  }
}

int RankShards::count(int rank) const {
  int count = 0;
  for (const ShardRun& run : runs(rank)) count += run.count();
  return count;
}

std::vector<std::pair<std::int64_t, std::int64_t>> RankShards::row_ranges(int rank) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const ShardRun& run : runs(rank)) {
    const std::int64_t begin = plan_.begin(run.first), end = plan_.end(run.end - 1);
    if (begin == end) continue;
    // Empty shards of other ranks may lie between two runs.
    if (!ranges.empty() && ranges.back().second == begin) {
      ranges.back().second = end;
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  return ranges;
}

std::int64_t RankShards::rows(int rank) const {
  std::int64_t rows = 0;
  for (const auto& [begin, end] : row_ranges(rank)) rows += end - begin;
  return rows;
}

ShardReducer::ShardReducer(const ShardPlan& plan) : ShardReducer(plan, Ranks{}) {}

ShardReducer::ShardReducer(const ShardPlan& plan, const Ranks& ranks)
    : plan_(plan),
      ranks_(plan, ranks.communicator == nullptr ? 1 : ranks.communicator->size(), ranks.layout),
      communicator_(ranks.communicator),
      rank_(ranks.communicator == nullptr ? 0 : ranks.communicator->rank()) {
  for (const ShardRun& run : ranks_.runs(rank_)) {
    for (int shard = run.first; shard < run.end; ++shard) {
      local_.push_back({shard, rows_});
      rows_ += plan_.size(shard);
    }
  }
}

std::pair<std::int64_t, std::int64_t> ShardReducer::slice(std::int64_t n, int rank) const {
  const std::int64_t ranks = ranks_.ranks();
  const std::int64_t width = (n + ranks * kSliceMultiple - 1) / (ranks * kSliceMultiple) * kSliceMultiple;
  return {std::min(n, rank * width), std::min(n, (rank + 1) * width)};
}

void ShardReducer::reduce(std::int64_t n, float* out,
                          const std::function<void(std::int64_t, std::int64_t, float*)>& partial) {
  const auto shards = static_cast<std::int64_t>(local_.size());
  grow(partials_, n * shards);
  if (ranks_.ranks() > 1) {
    const auto [begin, end] = slice(n, rank_);
    grow(packed_, n * shards);
    grow(gathered_, (end - begin) * plan_.count());
  }
  const CpuIsa isa = current_cpu_isa();
  parallel_for(shards, 0, [&](std::int64_t i, int) {
    const ScopedCpuIsa level(isa);  // a worker thread does not inherit the caller's scope
    const Local& local = local_[static_cast<std::size_t>(i)];
    float* sum = partials_.data() + i * n;
    partial(local.begin, plan_.size(local.shard), sum);
    if (ranks_.ranks() == 1) return;
    for (int r = 0; r < ranks_.ranks(); ++r) {
      const auto [begin, end] = slice(n, r);
      float* to = r == rank_ ? gathered_.data() + local.shard * (end - begin)
                             : packed_.data() + shards * begin + i * (end - begin);
      std::copy(sum + begin, sum + end, to);
    }
  });
  if (ranks_.ranks() == 1) {
    fold_rows(shards, partials_.data(), n, out);
  } else {
    exchange_and_fold(n, out);
  }
}

void ShardReducer::exchange_and_fold(std::int64_t n, float* out) {
  const auto shards = static_cast<std::int64_t>(local_.size());
  const auto [own_begin, own_end] = slice(n, rank_);
  const std::int64_t own = own_end - own_begin;
  // A message per run of shards: it lands where the fold reads it.
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int r = 0; r < ranks_.ranks(); ++r) {
    if (r == rank_) continue;
    const auto [begin, end] = slice(n, r);
    const std::int64_t width = end - begin;
    const float* at = packed_.data() + shards * begin;
    for (const ShardRun& run : ranks_.runs(rank_)) {
      if (width > 0) sends.push_back({r, at, bytes(run.count() * width)});
      at += run.count() * width;
    }
    for (const ShardRun& run : ranks_.runs(r)) {
      if (own > 0) receives.push_back({r, gathered_.data() + run.first * own, bytes(run.count() * own)});
    }
  }
  communicator_->exchange(sends, receives);

  const std::int64_t most = slice(n, 0).second;  // the first slice is the longest
  grow(folded_, most);
  grow(slices_, most * ranks_.ranks());
  fold_rows(plan_.count(), gathered_.data(), own, folded_.data());
  communicator_->all_gather(folded_.data(), bytes(most), slices_.data());
  std::copy(slices_.begin(), slices_.begin() + n, out);
}

double ShardReducer::sum_rows(const float* values) const {
  int most = 0;
  for (int r = 0; r < ranks_.ranks(); ++r) most = std::max(most, ranks_.count(r));
  std::vector<double> mine;
  for (const Local& local : local_) {
    double part = 0.0;
    for (std::int64_t t = local.begin; t < local.begin + plan_.size(local.shard); ++t) {
      part += static_cast<double>(values[t]);
    }
    mine.push_back(part);
  }
  mine.resize(static_cast<std::size_t>(most), 0.0);
  std::vector<double> all = mine, parts(static_cast<std::size_t>(plan_.count()));
  if (ranks_.ranks() > 1) {
    all.resize(mine.size() * static_cast<std::size_t>(ranks_.ranks()));
    communicator_->all_gather(mine.data(), mine.size() * sizeof(double), all.data());
  }
  for (int r = 0; r < ranks_.ranks(); ++r) {
    const double* from = all.data() + static_cast<std::size_t>(r) * mine.size();
    for (const ShardRun& run : ranks_.runs(r)) {
      std::copy(from, from + run.count(), parts.data() + run.first);
      from += run.count();
    }
  }
  double total = 0.0;
  for (const double part : parts) total += part;
  return total;
}

void for_row_blocks(std::int64_t rows, const std::function<void(std::int64_t, std::int64_t)>& fn) {
  parallel_for((rows + kShardRows - 1) / kShardRows, 0, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kShardRows;
    fn(begin, std::min(kShardRows, rows - begin));
  });
}

}  // namespace cake::train_lm
