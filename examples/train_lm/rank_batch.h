// One rank's part of a batch: its rows, where they stand in their documents, and the context of the packages over
// ranks. With one rank and no communicator it is the whole batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cake/kcp.h"
#include "data.h"
#include "layers.h"
#include "shards.h"

namespace cake::train_lm {

class RankBatch {
 public:
  /// `shards` says which rows a rank holds; `communicator` may be null for the only rank.
  RankBatch(const RankShards& shards, int rank, Communicator* communicator);

  /// Takes this rank's rows of a batch. Collective with a communicator: every rank gives the same batch.
  void load(const Batch& batch);

  /// Rows of this rank: the same for every batch.
  std::int64_t rows() const { return rows_; }
  const std::vector<std::uint8_t>& inputs() const { return inputs_; }
  const std::vector<std::uint8_t>& targets() const { return targets_; }
  /// Offsets of the documents of the whole batch.
  const std::vector<std::int32_t>& cu_seqlens() const { return cu_seqlens_; }
  /// Null without a communicator.
  const kcp::Context* context() const { return context_ ? &*context_ : nullptr; }
  /// Valid until the next load.
  DocumentRows documents() const { return {before_.data(), after_.data(), runs_, context()}; }

 private:
  RankShards shards_;
  int rank_;
  Communicator* communicator_;
  std::int64_t rows_;
  std::vector<std::uint8_t> inputs_, targets_;
  std::vector<std::int32_t> cu_seqlens_, before_, after_;
  std::vector<RowRun> runs_;
  std::optional<kcp::Context> context_;
};

}  // namespace cake::train_lm
