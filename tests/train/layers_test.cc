// Layers of the trainer against float64: the forward by the plain formula, the backward by central differences of it.
#include "examples/train_lm/layers.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/train/reference_model.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the layers under test
using ref::Array;

constexpr double kForward = 1e-6, kBackward = 2e-6;

double dot(const Array& a, const Array& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

TEST(Linear, ForwardAndGradients) {
  constexpr std::int64_t kT = 70, kK = 16, kN = 34;  // 34: the fused projection has an odd number of columns
  const auto x = random_floats(kT * kK, 1), w = random_floats(kK * kN, 2), dy = random_floats(kT * kN, 3);
  std::vector<float> y(kT * kN), dx(kT * kK), dw(kK * kN);
  linear_forward(kT, kK, kN, {const_cast<float*>(x.data()), kK}, w.data(), {y.data(), kN});
  EXPECT_LT(relative_error(widen(y), ref::linear(widen(x), widen(w), kK, kN)), kForward);

  std::vector<float> sum = dy;
  linear_forward(kT, kK, kN, {const_cast<float*>(x.data()), kK}, w.data(), {sum.data(), kN}, true);
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], y[i] + dy[i], 1e-5f);

  ShardReducer reducer(ShardPlan(kT, 3));
  linear_input(kT, kK, kN, {const_cast<float*>(dy.data()), kN}, w.data(), {dx.data(), kK});
  linear_weight(reducer, kK, kN, {const_cast<float*>(x.data()), kK}, {const_cast<float*>(dy.data()), kN}, dw.data());
  const auto by_x = [&](const Array& v) { return dot(ref::linear(v, widen(w), kK, kN), widen(dy)); };
  const auto by_w = [&](const Array& v) { return dot(ref::linear(widen(x), v, kK, kN), widen(dy)); };
  EXPECT_LT(relative_error(widen(dx), numeric_gradient(by_x, widen(x))), kBackward);
  EXPECT_LT(relative_error(widen(dw), numeric_gradient(by_w, widen(w))), kBackward);
}

TEST(RmsNorm, ForwardAndGradients) {
  constexpr std::int64_t kT = 130, kN = 32;
  const auto x = random_floats(kT * kN, 4, 3.0f), w = random_floats(kN, 5), dy = random_floats(kT * kN, 6);
  std::vector<float> y(kT * kN), rstd(kT), dw(kN);
  rmsnorm_forward(kT, kN, x.data(), w.data(), y.data(), rstd.data());
  EXPECT_LT(relative_error(widen(y), ref::rmsnorm(widen(x), widen(w))), kForward);

  const auto stream = random_floats(kT * kN, 7);  // the gradient is added to the residual stream's
  std::vector<float> dx = stream;
  ShardReducer reducer(ShardPlan(kT, 2));
  rmsnorm_backward(reducer, kN, dy.data(), x.data(), w.data(), rstd.data(), dx.data(), dw.data());
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] -= stream[i];
  const auto by_x = [&](const Array& v) { return dot(ref::rmsnorm(v, widen(w)), widen(dy)); };
  const auto by_w = [&](const Array& v) { return dot(ref::rmsnorm(widen(x), v), widen(dy)); };
  EXPECT_LT(relative_error(widen(dx), numeric_gradient(by_x, widen(x))), kBackward);
  EXPECT_LT(relative_error(widen(dw), numeric_gradient(by_w, widen(w))), kBackward);
}

TEST(RmsNorm, RowOfZerosStaysZero) {
  const std::vector<float> x(16, 0.0f), w(16, 2.0f), dy(16, 1.0f);
  std::vector<float> y(16, 7.0f), dx(16, 0.0f), dw(16, 7.0f);
  float rstd = 0.0f;
  rmsnorm_forward(1, 16, x.data(), w.data(), y.data(), &rstd);
  EXPECT_EQ(y, x);
  ShardReducer reducer(ShardPlan(1, 4));
  rmsnorm_backward(reducer, 16, dy.data(), x.data(), w.data(), &rstd, dx.data(), dw.data());
  EXPECT_EQ(dw, x);
  EXPECT_NEAR(dx[0], 2.0f / 1e-3f, 1e-1f);
}

TEST(SwiGlu, ForwardAndGradient) {
  constexpr std::int64_t kT = 67, kN = 16;
  auto u = random_floats(kT * 2 * kN, 8, 4.0f);
  u[0] = 90.0f;  // far into both saturations of the sigmoid
  u[1] = -90.0f;
  const auto dh = random_floats(kT * kN, 9);
  std::vector<float> h(kT * kN), du = u;
  swiglu_forward(kT, kN, u.data(), h.data());
  EXPECT_LT(relative_error(widen(h), ref::swiglu(widen(u), kN)), kForward);
  swiglu_backward(kT, kN, dh.data(), du.data());
  const auto by_u = [&](const Array& v) { return dot(ref::swiglu(v, kN), widen(dh)); };
  EXPECT_LT(relative_error(widen(du), numeric_gradient(by_u, widen(u))), kBackward);
}

TEST(Embedding, ForwardAndGradient) {
  constexpr std::int64_t kT = 200, kN = 16;
  std::vector<std::uint8_t> bytes(kT);
  for (std::size_t t = 0; t < bytes.size(); ++t) bytes[t] = static_cast<std::uint8_t>(t * t % 251);
  const auto table = random_floats(256 * kN, 10), dx = random_floats(kT * kN, 11);
  std::vector<float> x(kT * kN), dtable(256 * kN);
  embedding_forward(kT, kN, bytes.data(), table.data(), x.data());
  ShardReducer reducer(ShardPlan(kT, 3));
  embedding_backward(reducer, kN, bytes.data(), dx.data(), dtable.data());
  Array expected(256 * kN, 0.0);
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    for (std::size_t i = 0; i < kN; ++i) {
      ASSERT_EQ(x[t * kN + i], table[bytes[t] * kN + i]);
      expected[bytes[t] * kN + i] += static_cast<double>(dx[t * kN + i]);
    }
  }
  EXPECT_LT(relative_error(widen(dtable), expected), kBackward);
}

TEST(CrossEntropy, LossAndGradient) {
  constexpr std::int64_t kT = 66;
  auto logits = random_floats(kT * 256, 12, 5.0f);
  logits[5] = 200.0f;  // a row that is sure of itself, and wrong
  std::vector<std::uint8_t> targets(kT);
  for (std::size_t t = 0; t < targets.size(); ++t) targets[t] = static_cast<std::uint8_t>(t * 37 + 1);
  std::vector<float> gradient = logits, rows(kT);
  const ShardReducer reducer(ShardPlan(kT, 2));
  const double loss = cross_entropy(reducer, gradient.data(), targets.data(), rows.data());
  const Array exact = widen(logits);
  EXPECT_NEAR(loss, ref::cross_entropy(exact, targets), 1e-5);
  const auto by_logits = [&](const Array& v) { return ref::cross_entropy(v, targets); };
  // Differences of some columns of each row only: the whole would take a minute.
  Array analytic, numeric;
  for (std::size_t i = 0; i < exact.size(); i += 251) {
    Array moved = exact;
    moved[i] += 1e-4;
    const double above = by_logits(moved);
    moved[i] -= 2e-4;
    numeric.push_back((above - by_logits(moved)) / 2e-4);
    analytic.push_back(static_cast<double>(gradient[i]));
  }
  EXPECT_LT(relative_error(analytic, numeric), 1e-5);
  for (std::size_t t = 0; t < targets.size(); ++t) {  // the gradient of every row adds up to zero
    const double sum = std::accumulate(gradient.begin() + static_cast<std::ptrdiff_t>(t * 256),
                                       gradient.begin() + static_cast<std::ptrdiff_t>(t * 256 + 256), 0.0);
    EXPECT_NEAR(sum, 0.0, 1e-7);
  }
}

}  // namespace
}  // namespace cake::test
