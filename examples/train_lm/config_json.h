// The configuration of a run as JSON: in checkpoints and logs, under the names of the options of `cake train`.
#pragma once

#include <nlohmann/json.hpp>

#include "trainer.h"

namespace cake::train_lm {

nlohmann::ordered_json config_to_json(const TrainConfig& config);
/// Inverse. Throws nlohmann::json::exception for a missing field or one of another type.
TrainConfig config_from_json(const nlohmann::ordered_json& json);
/// Throws InvalidArgument naming the first option whose value in `given` differs from the one in `saved`; `file` is
/// the checkpoint's name.
void require_same_config(const TrainConfig& saved, const TrainConfig& given, const std::string& file);

}  // namespace cake::train_lm
