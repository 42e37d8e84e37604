// Logical shards: the fixed split of a batch that fixes the order of every sum over tokens.
//
// A batch of T rows is split into a fixed number of shards at multiples of 64 rows. The split depends on T and on the
// number of shards only, never on threads or ranks. Every sum over tokens (weight gradients, loss) is formed per shard
// from zero and the shards are then added left to right. A rank holds whole shards, so over ranks the same partials are
// formed elsewhere: ShardReducer is the one place where shards meet. It moves them and adds them in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cake/comm.h"
#include "cake/kcp.h"
#include "core/parallel.h"

namespace cake::train_lm {

/// Rows between possible shard borders.
inline constexpr std::int64_t kShardRows = 64;
/// Shards of a batch unless the user says otherwise.
inline constexpr int kDefaultShards = 24;
/// Most ranks of a run.
inline constexpr int kMaxRanks = 64;

/// The ranks of a run, as one of them sees it.
struct Ranks {
  Communicator* communicator = nullptr;  ///< none: this process alone, no communication
  kcp::Layout layout = kcp::Layout::kContiguous;
};

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

/// Shards [first, end).
struct ShardRun {
  int first = 0, end = 0;
  int count() const { return end - first; }
};

/// Which shards, and so which rows, each rank holds. The split into shards does not depend on it.
class RankShards {
 public:
  /// contiguous: rank r of R holds shards [S r / R, S (r + 1) / R). zigzag: run r and run 2 R - 1 - r of 2 R such runs.
  /// Throws InvalidArgument for ranks below 1, above kMaxRanks or above the number of shards, and for
  /// zigzag_per_document, which cuts documents and not the batch.
  RankShards(const ShardPlan& plan, int ranks, kcp::Layout layout);

  int ranks() const { return static_cast<int>(runs_.size()); }
  /// A rank's shards in the order of its rows; one or two runs, none empty. Runs of adjacent shards are one.
  const std::vector<ShardRun>& runs(int rank) const { return runs_[static_cast<std::size_t>(rank)]; }
  int count(int rank) const;
  /// Rows [first, second) of the batch that a rank holds, in the order in which they lie on it; no range is empty or
  /// touches the one before.
  std::vector<std::pair<std::int64_t, std::int64_t>> row_ranges(int rank) const;
  std::int64_t rows(int rank) const;

 private:
  ShardPlan plan_;
  std::vector<std::vector<ShardRun>> runs_;
};

/// Sums over tokens: partial per shard, then left to right over the shards. Rows are this rank's, in its own order.
class ShardReducer {
 public:
  /// One rank with all shards.
  explicit ShardReducer(const ShardPlan& plan);
  /// This rank's view of a group, whose ranks make the same calls. Errors as RankShards.
  ShardReducer(const ShardPlan& plan, const Ranks& ranks);

  const ShardPlan& plan() const { return plan_; }
  const RankShards& ranks() const { return ranks_; }
  int rank() const { return rank_; }
  /// Rows of this rank.
  std::int64_t rows() const { return rows_; }

  /// `partial(begin, rows, dst)` writes all n floats of the sum over this rank's rows [begin, begin + rows) (zeros for
  /// no rows); it runs inside a task. out[n] becomes the sum over all shards, with equal bits on every rank.
  void reduce(std::int64_t n, float* out,
              const std::function<void(std::int64_t begin, std::int64_t rows, float* dst)>& partial);

  /// Sum of per-row values over the batch: float64 chain per shard, then a chain over the shards. `values` are those of
  /// this rank's rows.
  double sum_rows(const float* values) const;

 private:
  /// A shard on this rank.
  struct Local {
    int shard;
    std::int64_t begin;  ///< of its rows
  };
  /// Floats [first, second) of n that a rank adds up: multiples of 16 apart, the last ones shorter or empty.
  std::pair<std::int64_t, std::int64_t> slice(std::int64_t n, int rank) const;
  void exchange_and_fold(std::int64_t n, float* out);

  ShardPlan plan_;
  RankShards ranks_;
  Communicator* communicator_;
  int rank_;
  std::int64_t rows_ = 0;
  std::vector<Local> local_;
  std::vector<float> partials_;           ///< [local shards][n]
  std::vector<float> packed_, gathered_;  ///< by slice: [local shards][slice] to send; all shards of the own slice
  std::vector<float> folded_, slices_;    ///< the own slice, summed; those of all ranks
};

/// Calls fn(begin, rows) for blocks of 64 rows on the threads. For work whose rows do not depend on each other.
void for_row_blocks(std::int64_t rows, const std::function<void(std::int64_t begin, std::int64_t rows)>& fn);

}  // namespace cake::train_lm
