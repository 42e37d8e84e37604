#include "trainer.h"

#include <stdexcept>
#include <utility>

#include "cake/core/error.h"
#include "digest.h"

namespace cake::train_lm {
namespace {

const TrainConfig& validated(const TrainConfig& config) {
  config.validate();
  return config;
}

bool finite(double x) { return x - x == 0.0; }

}  // namespace

void TrainConfig::validate() const {
  model.validate();
  optimizer.validate();
  if (shards < 1 || shards > 65536) {
    throw InvalidArgument("shards: got " + std::to_string(shards) + ", expected 1 to 65536");
  }
}

Trainer::Trainer(const TrainConfig& config, Corpus corpus)
    : config_(validated(config)),
      corpus_(std::move(corpus)),
      text_digest_(corpus_digest(corpus_)),
      package_(make_kda_package(config.package)),
      model_(config.model, *package_, config.batch_tokens, config.shards),
      optimizer_(config.optimizer, model_.table()),
      batcher_(corpus_, config.seed, config.batch_tokens, config.document_tokens),
      parameters_(initial_parameters(model_.table(), config.model, config.seed)),
      gradient_(parameters_.size(), 0.0f) {}

Trainer::Trainer(const TrainState& state, Corpus corpus) : Trainer(state.config, std::move(corpus)) {
  if (text_digest_ != state.text_digest) {
    throw InvalidArgument("text: the checkpoint was made from another text: got " +
                          std::to_string(corpus_.bytes.size()) + " bytes with " + text_digest_ + ", expected " +
                          std::to_string(state.text_bytes) + " bytes with " + state.text_digest);
  }
  parameters_ = state.parameters;
  optimizer_.first = state.first;
  optimizer_.second = state.second;
  optimizer_.power1 = state.power1;
  optimizer_.power2 = state.power2;
  batcher_.seek(state.position);
  history_ = state.history;
}

StepRecord Trainer::step() {
  const DataPosition before = batcher_.position();
  const Batch batch = batcher_.next();
  StepRecord record;
  record.loss = model_.loss_and_gradient(batch, parameters_.data(), gradient_.data());
  record.gradient_norm = optimizer_.gradient_norm(gradient_);
  if (!finite(record.loss) || !finite(record.gradient_norm)) {
    batcher_.seek(before);
    throw std::runtime_error("loss or gradient of step " + std::to_string(steps_done() + 1) +
                             " is not finite; a lower --learning-rate may help");
  }
  record.learning_rate = optimizer_.update(steps_done(), gradient_, record.gradient_norm, parameters_);
  history_.push_back(record);
  return record;
}

std::string Trainer::digest() const {
  Sha256 hash;
  for (const Parameter& p : model_.table().all()) {
    hash.add(parameters_.data() + p.offset, static_cast<std::size_t>(p.numel) * sizeof(float));
  }
  return hash.finish_text();
}

TrainState Trainer::state() const {
  TrainState s;
  s.config = config_;
  s.text_digest = text_digest_;
  s.text_bytes = static_cast<std::int64_t>(corpus_.bytes.size());
  s.position = batcher_.position();
  s.power1 = optimizer_.power1;
  s.power2 = optimizer_.power2;
  s.parameters = parameters_;
  s.first = optimizer_.first;
  s.second = optimizer_.second;
  s.history = history_;
  return s;
}

std::string corpus_digest(const Corpus& corpus) {
  Sha256 hash;
  hash.add(corpus.borders.data(), corpus.borders.size() * sizeof(std::int64_t));
  hash.add(corpus.bytes.data(), corpus.bytes.size());
  return hash.finish_text();
}

double final_loss(const std::vector<StepRecord>& history) {
  if (history.empty()) return 0.0;
  const std::size_t count = (history.size() + 19) / 20;
  double sum = 0.0;
  for (std::size_t i = history.size() - count; i < history.size(); ++i) sum += history[i].loss;
  return sum / static_cast<double>(count);
}

}  // namespace cake::train_lm
