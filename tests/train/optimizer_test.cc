// Schedule values, AdamW against float64, clipping.
#include "examples/train_lm/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the optimizer under test

TEST(Schedule, CosineMatchesTheLibrary) {
  for (int i = 0; i <= 1000; ++i) {
    const double x = i / 1000.0;
    EXPECT_NEAR(cos_pi(x), std::cos(3.14159265358979323846 * x), 1e-14) << x;
  }
}

TEST(Schedule, WarmUpThenCosineThenFloor) {
  OptimizerConfig c;
  c.learning_rate = 1.0;
  c.warmup_steps = 4;
  c.schedule_steps = 104;
  c.final_ratio = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate_at(c, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(c, 3), 1.0);
  EXPECT_NEAR(learning_rate_at(c, 4), 1.0, 1e-14);
  EXPECT_NEAR(learning_rate_at(c, 54), 0.55, 1e-14);  // half way
  EXPECT_NEAR(learning_rate_at(c, 29), 0.1 + 0.9 * 0.5 * (1.0 + std::sqrt(0.5)), 1e-14);
  EXPECT_NEAR(learning_rate_at(c, 104), 0.1, 1e-14);
  EXPECT_NEAR(learning_rate_at(c, 100000), 0.1, 1e-14);
}

TEST(Schedule, WithoutWarmUpAndShorterThanTheWarmUp) {
  OptimizerConfig c;
  c.learning_rate = 1.0;
  c.warmup_steps = 0;
  c.schedule_steps = 10;
  EXPECT_NEAR(learning_rate_at(c, 0), 1.0, 1e-14);
  c.warmup_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate_at(c, 9), 0.5);
  EXPECT_NEAR(learning_rate_at(c, 20), 0.1, 1e-14);
}

TEST(Optimizer, RefusesBadSettings) {
  const auto message = [](auto change) {
    return message_of([&] {
      OptimizerConfig c;
      change(c);
      c.validate();
    });
  };
  EXPECT_NE(message([](auto& c) { c.learning_rate = 0.0; }).find("learning-rate: got 0"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.learning_rate = std::nan(""); }).find("learning-rate"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.warmup_steps = -1; }).find("warmup-steps: got -1"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.schedule_steps = 0; }).find("schedule-steps"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.weight_decay = 2.0; }).find("weight-decay"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.clip_norm = -1.0; }).find("clip-norm"), std::string::npos);
}

// Three updates against AdamW in float64, with and without clipping; decay must reach the matrices alone.
void compare_with_float64(double clip_norm) {
  const ModelConfig model = small_config().model;
  const ParameterTable table(model);
  OptimizerConfig c;
  c.warmup_steps = 0;
  c.schedule_steps = 3;
  c.clip_norm = clip_norm;
  Optimizer optimizer(c, table);
  std::vector<float> p = initial_parameters(table, model, 1);
  std::vector<double> exact = widen(p), m(p.size(), 0.0), v(p.size(), 0.0);
  for (int step = 0; step < 3; ++step) {
    std::vector<float> g(p.size(), 0.0f);
    const auto noise = random_floats(p.size(), static_cast<std::uint64_t>(50 + step), 0.1f);
    double squares = 0.0;
    for (const Parameter& t : table.all()) {
      for (auto i = static_cast<std::size_t>(t.offset); i < static_cast<std::size_t>(t.offset + t.numel); ++i) {
        g[i] = noise[i];
        squares += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      }
    }
    const double norm = optimizer.gradient_norm(g);
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * std::sqrt(squares));
    const double lr = optimizer.update(step, g, norm, p);
    EXPECT_EQ(lr, learning_rate_at(c, step));
    const double scale = clip_norm > 0.0 && norm > clip_norm ? clip_norm / norm : 1.0;
    for (const Parameter& t : table.all()) {
      for (auto i = static_cast<std::size_t>(t.offset); i < static_cast<std::size_t>(t.offset + t.numel); ++i) {
        const double gi = static_cast<double>(g[i]) * scale;
        m[i] = c.beta1 * m[i] + (1.0 - c.beta1) * gi;
        v[i] = c.beta2 * v[i] + (1.0 - c.beta2) * gi * gi;
        const double mh = m[i] / (1.0 - std::pow(c.beta1, step + 1)), vh = v[i] / (1.0 - std::pow(c.beta2, step + 1));
        exact[i] -= lr * (mh / (std::sqrt(vh) + c.epsilon) + (t.decays ? c.weight_decay * exact[i] : 0.0));
      }
    }
  }
  EXPECT_LT(relative_error(widen(p), exact), 1e-6);
}

TEST(Optimizer, MatchesFloat64WithoutClipping) { compare_with_float64(0.0); }
TEST(Optimizer, MatchesFloat64WithClipping) { compare_with_float64(0.01); }

TEST(Optimizer, DecayReachesMatricesAlone) {
  const ParameterTable table(small_config().model);
  for (const Parameter& p : table.all()) {
    const bool vector = p.name.find("norm") != std::string::npos || p.name.find("A_log") != std::string::npos ||
                        p.name.find("dt_bias") != std::string::npos;
    EXPECT_EQ(p.decays, !vector) << p.name;
  }
}

}  // namespace
}  // namespace cake::test
