#include "trainer.h"

#include <stdexcept>
#include <utility>

#include "cake/core/error.h"
#include "config_json.h"
#include "digest.h"

namespace cake::train_lm {
namespace {

const TrainConfig& validated(const TrainConfig& config) {
  config.validate();
  return config;
}

/// True when the model runs over the group. One rank needs no communication unless the user asks for a package over
/// ranks by name.
bool over_ranks(const TrainConfig& config, const Ranks& ranks) {
  const bool named = is_package_over_ranks(config.package);
  if (ranks.communicator != nullptr) return named || ranks.communicator->size() > 1;
  if (!named) return false;
  throw InvalidArgument("package: got \"" + config.package +
                        "\" and no communicator, expected one for a package over ranks");
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

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<const Corpus> corpus, const Ranks& ranks)
    : Trainer(config, std::move(corpus), ranks, nullptr) {}
Trainer::Trainer(const TrainState& state, std::shared_ptr<const Corpus> corpus, const Ranks& ranks)
    : Trainer(state.config, std::move(corpus), ranks, &state) {}
Trainer::Trainer(const TrainConfig& config, Corpus corpus, const Ranks& ranks)
    : Trainer(config, std::make_shared<const Corpus>(std::move(corpus)), ranks) {}
Trainer::Trainer(const TrainState& state, Corpus corpus, const Ranks& ranks)
    : Trainer(state, std::make_shared<const Corpus>(std::move(corpus)), ranks) {}

Trainer::Trainer(const TrainConfig& config, std::shared_ptr<const Corpus> corpus, const Ranks& ranks,
                 const TrainState* state)
    : config_(validated(config)),
      corpus_(std::move(corpus)),
      text_digest_(corpus_digest(*corpus_)),
      package_(make_kda_package(config.package, over_ranks(config, ranks))),
      model_(config.model, *package_, config.batch_tokens, config.shards,
             over_ranks(config, ranks) ? ranks : Ranks{nullptr, ranks.layout}),
      optimizer_(config.optimizer, model_.table()),
      batcher_(*corpus_, config.seed, config.batch_tokens, config.document_tokens),
      parameters_(initial_parameters(model_.table(), config.model, config.seed)),
      gradient_(parameters_.size(), 0.0f) {
  if (state != nullptr) restore(*state);
  if (ranks.communicator != nullptr) require_equal_ranks(*ranks.communicator);
}

void Trainer::restore(const TrainState& state) {
  if (text_digest_ != state.text_digest) {
    throw InvalidArgument("text: the checkpoint was made from another text: got " +
                          std::to_string(corpus_->bytes.size()) + " bytes with " + text_digest_ + ", expected " +
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

void Trainer::require_equal_ranks(Communicator& communicator) const {
  Sha256 moments;
  for (const std::vector<float>* v : {&optimizer_.first, &optimizer_.second}) {
    moments.add(v->data(), v->size() * sizeof(float));
  }
  AgreementFields fields;
  const nlohmann::ordered_json options = config_to_json(config_);
  for (const auto& [name, value] : options.items()) fields.emplace_back(name, value.dump());
  fields.emplace_back("text", text_digest_);
  fields.emplace_back("steps done", std::to_string(steps_done()));
  fields.emplace_back("parameters", digest());
  fields.emplace_back("moments", moments.finish_text());
  require_agreement(communicator, "ranks of the run", fields);
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
  s.text_bytes = static_cast<std::int64_t>(corpus_->bytes.size());
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
