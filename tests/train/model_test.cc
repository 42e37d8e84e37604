// The whole model against a float64 model: the loss, and every parameter's gradient by finite differences.
#include "examples/train_lm/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cake/core/error.h"
#include "tests/train/reference_model.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the model under test

Batch sample_batch() {
  Batch batch;
  batch.cu_seqlens = {0, 1, 4, 69, 150};
  for (std::size_t t = 0; t < 150; ++t) {
    batch.inputs.push_back(static_cast<std::uint8_t>((t * 7 + t * t / 3) % 60 + 60));
    batch.targets.push_back(static_cast<std::uint8_t>((t * 11 + 5) % 70 + 50));
  }
  return batch;
}

struct Case {
  ModelConfig config;
  ParameterTable table;
  std::vector<float> parameters, gradient;
  double loss = 0.0;

  explicit Case(const ModelConfig& c) : config(c), table(c), parameters(initial_parameters(table, c, 3)) {
    // Away from the special initial values (norm weights of 1), so that no term of the gradient is hidden.
    const auto noise = random_floats(parameters.size(), 9, 0.1f);
    for (const Parameter& p : table.all()) {
      for (std::int64_t i = p.offset; i < p.offset + p.numel; ++i) {
        parameters[static_cast<std::size_t>(i)] += noise[static_cast<std::size_t>(i)];
      }
    }
    gradient.assign(parameters.size(), 1e9f);
    const auto package = make_kda_package(kDefaultPackage);
    Model model(c, *package, 150, 3);
    loss = model.loss_and_gradient(sample_batch(), parameters.data(), gradient.data());
  }
};

ModelConfig config() {
  ModelConfig c;
  c.layers = 2;
  c.width = 32;
  c.heads = 2;
  return c;
}

TEST(Model, LossAndEveryGradientMatchFloat64) {
  const Case c(config());
  const ref::Array p = widen(c.parameters);
  const auto loss = [&](const ref::Array& v) { return ref::model_loss(c.config, c.table, sample_batch(), v); };
  EXPECT_NEAR(c.loss, loss(p), 2e-6);

  for (const Parameter& tensor : c.table.all()) {
    const auto begin = static_cast<std::size_t>(tensor.offset), n = static_cast<std::size_t>(tensor.numel);
    double norm = 0.0;
    for (std::size_t i = 0; i < n; ++i) norm += std::pow(static_cast<double>(c.gradient[begin + i]), 2);
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-6) << tensor.name << " has no gradient";
    // Along the gradient (its whole length must be right) and along two random directions.
    for (std::uint64_t kind = 0; kind < 3; ++kind) {
      const auto random = random_floats(n, 100 + kind);
      ref::Array direction(n);
      for (std::size_t i = 0; i < n; ++i)
        direction[i] = static_cast<double>(kind == 0 ? c.gradient[begin + i] : random[i]);
      const double length = std::sqrt(std::inner_product(direction.begin(), direction.end(), direction.begin(), 0.0));
      double expected = 0.0;
      constexpr double kStep = 1e-4;
      ref::Array above = p, below = p;
      for (std::size_t i = 0; i < n; ++i) {
        const double unit = direction[i] / length;
        above[begin + i] += kStep * unit;
        below[begin + i] -= kStep * unit;
        expected += unit * static_cast<double>(c.gradient[begin + i]);
      }
      const double slope = (loss(above) - loss(below)) / (2.0 * kStep);
      EXPECT_NEAR(slope, expected, 3e-5 * norm + 2e-9) << tensor.name << ", direction " << kind;
    }
  }
}

TEST(Model, GapsBetweenTensorsHaveNoGradient) {
  const Case c(config());
  std::vector<bool> used(c.gradient.size(), false);
  for (const Parameter& p : c.table.all()) {
    for (std::int64_t i = p.offset; i < p.offset + p.numel; ++i) used[static_cast<std::size_t>(i)] = true;
  }
  std::int64_t gaps = 0;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    ++gaps;
    EXPECT_EQ(c.gradient[i], 0.0f) << i;
  }
  EXPECT_GT(gaps, 0);
}

TEST(Model, AblationZeroesKdaAndNothingElse) {
  ModelConfig ablated = config();
  ablated.ablate_kda = true;
  const Case c(ablated);
  EXPECT_NEAR(c.loss, ref::model_loss(c.config, c.table, sample_batch(), widen(c.parameters)), 2e-6);
  EXPECT_GT(std::abs(c.loss - Case(config()).loss), 1e-3);
  for (const Parameter& p : c.table.all()) {
    bool any = false;
    for (std::int64_t i = p.offset; i < p.offset + p.numel; ++i) any |= c.gradient[static_cast<std::size_t>(i)] != 0.0f;
    EXPECT_EQ(any, p.name.find(".kda.") == std::string::npos) << p.name;
  }
}

TEST(Model, DocumentsDoNotSeeEachOther) {
  // The loss of two packed documents is the sum of the losses of each alone.
  const auto package = make_kda_package(kDefaultPackage);
  const ModelConfig c = config();
  const ParameterTable table(c);
  const auto parameters = initial_parameters(table, c, 1);
  std::vector<float> gradient(parameters.size());
  const auto loss_of = [&](const Batch& b) {
    Model model(c, *package, static_cast<std::int64_t>(b.inputs.size()), 2);
    return model.loss_and_gradient(b, parameters.data(), gradient.data());
  };
  const auto part = [](const Batch& b, std::size_t from, std::size_t to) {
    Batch out;
    out.inputs.assign(b.inputs.begin() + static_cast<std::ptrdiff_t>(from),
                      b.inputs.begin() + static_cast<std::ptrdiff_t>(to));
    out.targets.assign(b.targets.begin() + static_cast<std::ptrdiff_t>(from),
                       b.targets.begin() + static_cast<std::ptrdiff_t>(to));
    out.cu_seqlens = {0, static_cast<std::int32_t>(to - from)};
    return out;
  };
  Batch both = sample_batch();
  both.cu_seqlens = {0, 69, 150};
  const double together = loss_of(both) * 150.0;
  EXPECT_NEAR(together, loss_of(part(both, 0, 69)) * 69.0 + loss_of(part(both, 69, 150)) * 81.0, 5e-5);
}

TEST(Model, RefusesBadConfigurations) {
  const auto message = [](int layers, int width, int heads) {
    return message_of([=] {
      ModelConfig c;
      c.layers = layers;
      c.width = width;
      c.heads = heads;
      c.validate();
    });
  };
  EXPECT_EQ(message(0, 32, 2), "layers: got 0, expected 1 to 1024");
  EXPECT_EQ(message(1, 32, 0), "heads: got 0, expected 1 to 4096");
  EXPECT_EQ(message(1, 8, 1), "width: got 8, expected 16 to 65536");
  for (const auto& [width, heads] : {std::pair{40, 2}, {33, 2}, {1024, 2}}) {
    EXPECT_NE(message(1, width, heads).find("multiple of 16, at most 256"), std::string::npos);
  }
}

TEST(Model, RefusesBatchOfAnotherSize) {
  const auto package = make_kda_package(kDefaultPackage);
  Model model(config(), *package, 128, 3);
  const Batch batch = sample_batch();
  const std::vector<float> p(static_cast<std::size_t>(model.table().size()));
  std::vector<float> g(p.size());
  EXPECT_THROW(model.loss_and_gradient(batch, p.data(), g.data()), InvalidArgument);
}

TEST(KdaPackage, BothModesGiveTheSameLossAndGradientsButForTheLastBits) {
  const ModelConfig c = config();
  const ParameterTable table(c);
  const auto parameters = initial_parameters(table, c, 1);
  const Batch batch = sample_batch();
  const auto run = [&](const char* name, std::vector<float>& gradient) {
    gradient.resize(parameters.size());
    const auto package = make_kda_package(name);
    Model model(c, *package, 150, 3);
    return model.loss_and_gradient(batch, parameters.data(), gradient.data());
  };
  std::vector<float> det, nondet;
  EXPECT_EQ(run(kDefaultPackage, det), run(kNondetPackage, nondet)) << "forwards have the same bits";
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < det.size(); ++i) {
    error += std::pow(static_cast<double>(det[i]) - nondet[i], 2);
    norm += std::pow(static_cast<double>(det[i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LE(std::sqrt(error / norm), 1e-6);
}

TEST(KdaPackage, NamesTheModuleItLacks) {
  const auto make = [] { make_kda_package("cake_kda_forward"); };
  EXPECT_THROW(make(), NotSupported);
  for (const char* name : {"cake_kda_forward", kDefaultPackage, kNondetPackage}) {
    EXPECT_NE(message_of(make).find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace cake::test
