// Logical shards: the fixed split of a batch that fixes the order of every sum over tokens.
//
// A batch of T rows is split into a fixed number of shards at multiples of 64 rows. The split depends on T and on the
// number of shards only, never on threads or ranks. Every sum over tokens (weight gradients, loss) is formed per shard
// from zero and the shards are then added left to right. ShardReducer is the one place where shards meet: a run over
// ranks, each holding whole shards, only has to bring the partials together between the two phases of reduce().
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/parallel.h"

namespace cake::train_lm {

/// Rows between possible shard borders.
inline constexpr std::int64_t kShardRows = 64;
/// Shards of a batch unless the user says otherwise.
inline constexpr int kDefaultShards = 24;

/// The split of one batch.
class ShardPlan {
 public:
  /// `rows` >= 0, `shards` >= 1. A shard may be empty; the last one holds a ragged end.
  ShardPlan(std::int64_t rows, int shards);

  int count() const { return static_cast<int>(borders_.size()) - 1; }
  std::int64_t rows() const { return borders_.back(); }
  std::int64_t begin(int shard) const { return borders_[static_cast<std::size_t>(shard)]; }
  std::int64_t end(int shard) const { return borders_[static_cast<std::size_t>(shard) + 1]; }
  std::int64_t size(int shard) const { return end(shard) - begin(shard); }

 private:
  std::vector<std::int64_t> borders_;
};

/// Sums over tokens: partial per shard, then left to right over the shards.
class ShardReducer {
 public:
  explicit ShardReducer(const ShardPlan& plan) : plan_(plan) {}
  const ShardPlan& plan() const { return plan_; }

  /// `partial(begin, rows, dst)` writes all n floats of the sum over rows [begin, begin + rows) (zeros for no rows);
  /// it runs inside a task. out[n] becomes the sum over shards.
  void reduce(std::int64_t n, float* out,
              const std::function<void(std::int64_t begin, std::int64_t rows, float* dst)>& partial);

  /// Sum of per-row values: float64 chain per shard, then a chain over the shards.
  double sum_rows(const float* values) const;

 private:
  ShardPlan plan_;
  std::vector<float> partials_;
};

/// Calls fn(begin, rows) for blocks of 64 rows on the threads. For work whose rows do not depend on each other.
void for_row_blocks(std::int64_t rows, const std::function<void(std::int64_t begin, std::int64_t rows)>& fn);

}  // namespace cake::train_lm
