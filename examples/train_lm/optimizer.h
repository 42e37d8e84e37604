// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101), clipping by the global norm, and a
// learning rate with linear warm-up and cosine fall. All scalars are float64 with plain operations: no libm.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.h"

namespace cake::train_lm {

/// Settings of the optimizer.
struct OptimizerConfig {
  double learning_rate = 4e-3;  ///< at the top of the schedule
  std::int64_t warmup_steps = 20;
  std::int64_t schedule_steps = 1;  ///< where the cosine ends
  double final_ratio = 0.1;         ///< of the learning rate, from the end of the cosine on
  double beta1 = 0.9, beta2 = 0.98;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  ///< 0: no clipping

  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// cos(pi x) for x in [0, 1], error below 1e-14.
double cos_pi(double x);
/// Learning rate of a step, counted from 0.
double learning_rate_at(const OptimizerConfig& config, std::int64_t step);

/// First and second moments and the running products of the betas.
class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, const ParameterTable& table);

  /// Global L2 norm of a gradient: fixed blocks, then a float64 chain over them.
  double gradient_norm(const std::vector<float>& gradient) const;
  /// Updates `parameters` for step `step` (from 0); `norm` is gradient_norm(gradient). Returns the learning rate.
  double update(std::int64_t step, const std::vector<float>& gradient, double norm, std::vector<float>& parameters);

  /// State of a checkpoint.
  std::vector<float> first, second;   ///< moments, laid out as the parameters
  double power1 = 1.0, power2 = 1.0;  ///< beta^(updates done)

 private:
  struct Block {
    std::int64_t offset, count;
    bool decays;
  };
  OptimizerConfig config_;
  std::vector<Block> blocks_;
};

}  // namespace cake::train_lm
