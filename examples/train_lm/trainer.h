// A training run: text, model, optimizer and position. One step is a function of this state alone, never of threads,
// ranks, instruction set or interruptions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data.h"
#include "kda_op.h"
#include "model.h"
#include "optimizer.h"

namespace cake::train_lm {

/// Everything that fixes the bits of a run beside the text. A checkpoint carries it, and so it goes on with any number
/// of ranks.
struct TrainConfig {
  std::string package = kDefaultPackage;  ///< one over ranks is recorded as the one on one rank: they give equal bits
  ModelConfig model;
  OptimizerConfig optimizer;
  std::int64_t batch_tokens = 4096;
  std::int64_t document_tokens = 1024;
  int shards = kDefaultShards;
  std::uint64_t seed = 1;

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// One line of the log.
struct StepRecord {
  double loss = 0.0;  ///< nats per byte, before the update
  double learning_rate = 0.0;
  double gradient_norm = 0.0;  ///< before clipping
};

/// What a checkpoint holds.
struct TrainState {
  TrainConfig config;
  std::string text_digest;  ///< of the corpus: "sha256:..."
  std::int64_t text_bytes = 0;
  DataPosition position;
  double power1 = 1.0, power2 = 1.0;
  std::vector<float> parameters, first, second;  ///< flat arrays of ParameterTable
  std::vector<StepRecord> history;               ///< one record per step done
};

/// One rank's trainer. Over ranks every rank has one, made from the same configuration, state and text; all hold the
/// same parameters and optimizer state, and constructors and step() are collective.
class Trainer {
 public:
  /// A fresh run. Throws InvalidArgument for a bad configuration, for ranks as RankShards, and on every rank when ranks
  /// disagree; NotSupported for a package this build lacks.
  Trainer(const TrainConfig& config, std::shared_ptr<const Corpus> corpus, const Ranks& ranks = {});
  /// Goes on from a saved state. Also throws InvalidArgument when `corpus` is not the text the state was made from.
  Trainer(const TrainState& state, std::shared_ptr<const Corpus> corpus, const Ranks& ranks = {});
  /// The same with a corpus of its own.
  Trainer(const TrainConfig& config, Corpus corpus, const Ranks& ranks = {});
  Trainer(const TrainState& state, Corpus corpus, const Ranks& ranks = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// One step. Throws std::runtime_error, leaving the parameters as they were, when loss or gradient is not finite.
  StepRecord step();
  std::int64_t steps_done() const { return static_cast<std::int64_t>(history_.size()); }
  const std::vector<StepRecord>& history() const { return history_; }
  const TrainConfig& config() const { return config_; }
  const Corpus& corpus() const { return *corpus_; }
  const ParameterTable& table() const { return model_.table(); }
  const std::vector<float>& parameters() const { return parameters_; }

  /// SHA-256 of the parameters: the fp32 numbers (little endian) of every tensor in table order, without gaps.
  std::string digest() const;
  /// A copy of the state, for a checkpoint.
  TrainState state() const;

 private:
  /// A fresh run or, with `state`, one that goes on.
  Trainer(const TrainConfig& config, std::shared_ptr<const Corpus> corpus, const Ranks& ranks, const TrainState* state);
  void restore(const TrainState& state);
  void require_equal_ranks(Communicator& communicator) const;

  TrainConfig config_;
  std::shared_ptr<const Corpus> corpus_;
  std::string text_digest_;
  std::unique_ptr<KdaPackage> package_;
  Model model_;
  Optimizer optimizer_;
  Batcher batcher_;
  std::vector<float> parameters_, gradient_;
  std::vector<StepRecord> history_;
};

/// SHA-256 of a corpus: its file borders and bytes.
std::string corpus_digest(const Corpus& corpus);
/// Mean loss of the last twentieth of the steps (rounded up): what `loss_last` means.
double final_loss(const std::vector<StepRecord>& history);

}  // namespace cake::train_lm
