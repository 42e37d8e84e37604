#include "optimizer.h"

#include <algorithm>
#include <string>

#include "cake/core/error.h"
#include "core/fpenv.h"
#include "core/parallel.h"
#include "core/simd/simd_kernels.h"
#include "kernels.h"

namespace cake::train_lm {
namespace {

constexpr std::int64_t kBlock = 16384;  // numbers of one task
constexpr std::int64_t kPiece = 1024;   // numbers of one fp32 sum of squares

void check(bool good, const char* name, double got, const char* expected) {
  if (!good) throw InvalidArgument(std::string(name) + ": got " + std::to_string(got) + ", expected " + expected);
}

}  // namespace

void OptimizerConfig::validate() const {
  check(learning_rate > 0.0 && learning_rate <= 1.0, "learning-rate", learning_rate, "above 0, at most 1");
  check(warmup_steps >= 0, "warmup-steps", static_cast<double>(warmup_steps), "0 or more");
  check(schedule_steps >= 1, "schedule-steps", static_cast<double>(schedule_steps), "1 or more");
  check(weight_decay >= 0.0 && weight_decay <= 1.0, "weight-decay", weight_decay, "0 to 1");
  check(clip_norm >= 0.0 && clip_norm <= 1e30, "clip-norm", clip_norm, "0 (no clipping) to 1e30");
}

double cos_pi(double x) {
  // cos(pi x) = sin(pi (1/2 - x)); Taylor series of the sine on [-pi/2, pi/2] by Horner, degree 21.
  const double y = 3.14159265358979323846 * (0.5 - x), z = y * y;
  double sum = 1.0;
  for (int k = 20; k >= 2; k -= 2) sum = 1.0 - z / static_cast<double>(k * (k + 1)) * sum;
  return y * sum;
}

double learning_rate_at(const OptimizerConfig& c, std::int64_t step) {
  if (step < c.warmup_steps)
    return c.learning_rate * static_cast<double>(step + 1) / static_cast<double>(c.warmup_steps);
  const std::int64_t fall = c.schedule_steps - c.warmup_steps;
  const double x =
      fall <= 0 ? 1.0 : std::min(1.0, static_cast<double>(step - c.warmup_steps) / static_cast<double>(fall));
  return c.learning_rate * (c.final_ratio + (1.0 - c.final_ratio) * 0.5 * (1.0 + cos_pi(x)));
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& table)
    : first(static_cast<std::size_t>(table.size()), 0.0f),
      second(static_cast<std::size_t>(table.size()), 0.0f),
      config_(config) {
  config.validate();
  for (const Parameter& p : table.all()) {
    const std::int64_t padded = (p.numel + 15) / 16 * 16;
    for (std::int64_t at = 0; at < padded; at += kBlock) {
      blocks_.push_back({p.offset + at, std::min(kBlock, padded - at), p.decays});
    }
  }
}

double Optimizer::gradient_norm(const std::vector<float>& gradient) const {
  const ScopedFpEnv env;
  const SimdKernels& simd = simd_kernels();
  std::vector<double> squares(blocks_.size(), 0.0);
  parallel_for(static_cast<std::int64_t>(blocks_.size()), 0, [&](std::int64_t task, int) {
    const Block& block = blocks_[static_cast<std::size_t>(task)];
    const float* g = gradient.data() + block.offset;
    double sum = 0.0;
    for (std::int64_t at = 0; at < block.count; at += kPiece) {
      sum += static_cast<double>(simd.dot(g + at, g + at, std::min(kPiece, block.count - at)));
    }
    squares[static_cast<std::size_t>(task)] = sum;
  });
  double total = 0.0;
  for (const double s : squares) total += s;
  return __builtin_sqrt(total);  // the instruction: sqrt is exact by IEEE 754
}

double Optimizer::update(std::int64_t step, const std::vector<float>& gradient, double norm,
                         std::vector<float>& parameters) {
  const ScopedFpEnv env;
  const double learning_rate = learning_rate_at(config_, step);
  power1 *= config_.beta1;
  power2 *= config_.beta2;
  const bool clip = config_.clip_norm > 0.0 && norm > config_.clip_norm;
  AdamWStep s{};
  s.learning_rate = static_cast<float>(learning_rate);
  s.beta1 = static_cast<float>(config_.beta1);
  s.beta2 = static_cast<float>(config_.beta2);
  s.inv_correction1 = static_cast<float>(1.0 / (1.0 - power1));
  s.inv_correction2 = static_cast<float>(1.0 / (1.0 - power2));
  s.epsilon = static_cast<float>(config_.epsilon);
  s.gradient_scale = clip ? static_cast<float>(config_.clip_norm / norm) : 1.0f;
  const TrainKernels& kernels = train_kernels();
  parallel_for(static_cast<std::int64_t>(blocks_.size()), 0, [&](std::int64_t task, int) {
    const Block& block = blocks_[static_cast<std::size_t>(task)];
    AdamWStep mine = s;
    mine.weight_decay = block.decays ? static_cast<float>(config_.weight_decay) : 0.0f;
    kernels.adamw(block.count, mine, gradient.data() + block.offset, parameters.data() + block.offset,
                  first.data() + block.offset, second.data() + block.offset);
  });
  return learning_rate;
}

}  // namespace cake::train_lm
