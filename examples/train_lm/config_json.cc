#include "config_json.h"

#include "cake/core/error.h"

namespace cake::train_lm {

nlohmann::ordered_json config_to_json(const TrainConfig& c) {
  nlohmann::ordered_json j;
  j["package"] = package_on_one_rank(c.package);  // ranks are no part of a run's configuration
  j["layers"] = c.model.layers;
  j["width"] = c.model.width;
  j["heads"] = c.model.heads;
  j["ablate"] = c.model.ablate_kda ? "kda" : "";
  j["batch-tokens"] = c.batch_tokens;
  j["document-tokens"] = c.document_tokens;
  j["shards"] = c.shards;
  j["seed"] = c.seed;
  j["learning-rate"] = c.optimizer.learning_rate;
  j["warmup-steps"] = c.optimizer.warmup_steps;
  j["schedule-steps"] = c.optimizer.schedule_steps;
  j["final-ratio"] = c.optimizer.final_ratio;
  j["beta1"] = c.optimizer.beta1;
  j["beta2"] = c.optimizer.beta2;
  j["epsilon"] = c.optimizer.epsilon;
  j["weight-decay"] = c.optimizer.weight_decay;
  j["clip-norm"] = c.optimizer.clip_norm;
  return j;
}

TrainConfig config_from_json(const nlohmann::ordered_json& j) {
  TrainConfig c;
  j.at("package").get_to(c.package);
  j.at("layers").get_to(c.model.layers);
  j.at("width").get_to(c.model.width);
  j.at("heads").get_to(c.model.heads);
  c.model.ablate_kda = j.at("ablate").get<std::string>() == "kda";
  j.at("batch-tokens").get_to(c.batch_tokens);
  j.at("document-tokens").get_to(c.document_tokens);
  j.at("shards").get_to(c.shards);
  j.at("seed").get_to(c.seed);
  j.at("learning-rate").get_to(c.optimizer.learning_rate);
  j.at("warmup-steps").get_to(c.optimizer.warmup_steps);
  j.at("schedule-steps").get_to(c.optimizer.schedule_steps);
  j.at("final-ratio").get_to(c.optimizer.final_ratio);
  j.at("beta1").get_to(c.optimizer.beta1);
  j.at("beta2").get_to(c.optimizer.beta2);
  j.at("epsilon").get_to(c.optimizer.epsilon);
  j.at("weight-decay").get_to(c.optimizer.weight_decay);
  j.at("clip-norm").get_to(c.optimizer.clip_norm);
  return c;
}

void require_same_config(const TrainConfig& saved, const TrainConfig& given, const std::string& file) {
  const nlohmann::ordered_json before = config_to_json(saved), now = config_to_json(given);
  for (const auto& [name, value] : before.items()) {
    if (now.at(name) != value) {
      throw InvalidArgument(name + ": got " + now.at(name).dump() + ", expected " + value.dump() +
                            ", with which the checkpoint \"" + file + "\" was made");
    }
  }
}

}  // namespace cake::train_lm
