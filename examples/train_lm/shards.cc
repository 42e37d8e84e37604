#include "shards.h"

#include <algorithm>

#include "cake/core/cpu_isa.h"
#include "kernels.h"

namespace cake::train_lm {

ShardPlan::ShardPlan(std::int64_t rows, int shards) {
  const std::int64_t blocks = (rows + kShardRows - 1) / kShardRows;
  borders_.resize(static_cast<std::size_t>(shards) + 1);
  for (int i = 0; i <= shards; ++i) {
    borders_[static_cast<std::size_t>(i)] = std::min(rows, blocks * i / shards * kShardRows);
  }
}

void ShardReducer::reduce(std::int64_t n, float* out,
                          const std::function<void(std::int64_t, std::int64_t, float*)>& partial) {
  const int shards = plan_.count();
  partials_.resize(std::max(partials_.size(), static_cast<std::size_t>(n * shards)));
  float* partials = partials_.data();
  const CpuIsa isa = current_cpu_isa();
  parallel_for(shards, 0, [&](std::int64_t shard, int) {
    const ScopedCpuIsa level(isa);  // a worker thread does not inherit the caller's scope
    partial(plan_.begin(static_cast<int>(shard)), plan_.size(static_cast<int>(shard)), partials + shard * n);
  });
  constexpr std::int64_t kBlock = 4096;
  const TrainKernels& kernels = train_kernels();
  parallel_for((n + kBlock - 1) / kBlock, 0, [&](std::int64_t block, int) {
    const std::int64_t at = block * kBlock;
    kernels.fold(shards, n, partials + at, std::min(kBlock, n - at), out + at);
  });
}

double ShardReducer::sum_rows(const float* values) const {
  double total = 0.0;
  for (int shard = 0; shard < plan_.count(); ++shard) {
    double part = 0.0;
    for (std::int64_t t = plan_.begin(shard); t < plan_.end(shard); ++t) part += static_cast<double>(values[t]);
    total += part;
  }
  return total;
}

void for_row_blocks(std::int64_t rows, const std::function<void(std::int64_t, std::int64_t)>& fn) {
  parallel_for((rows + kShardRows - 1) / kShardRows, 0, [&](std::int64_t block, int) {
    const std::int64_t begin = block * kShardRows;
    fn(begin, std::min(kShardRows, rows - begin));
  });
}

}  // namespace cake::train_lm
