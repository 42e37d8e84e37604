// The convolution and the gated norm around KDA against float64, documents of every awkward length included.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "examples/train_lm/layers.h"
#include "tests/train/reference_model.h"
#include "tests/train/test_util.h"

namespace cake::test {
namespace {

using namespace train_lm;  // NOLINT(google-build-using-namespace): the layers under test
using ref::Array;

double dot(const Array& a, const Array& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

// Rows of a wider matrix, as the fused projection has them.
std::vector<float> widened_rows(const std::vector<float>& x, std::size_t n, std::size_t stride) {
  std::vector<float> wide(x.size() / n * stride, 9e9f);
  for (std::size_t t = 0; t < x.size() / n; ++t) {
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(t * n), n,
                wide.begin() + static_cast<std::ptrdiff_t>(t * stride));
  }
  return wide;
}

TEST(ConvSilu, ForwardAndGradientsRespectDocuments) {
  constexpr std::size_t kN = 16, kStride = 21;
  const std::vector<std::int32_t> cu{0, 1, 3, 6, 10, 10, 15, 79, 144};
  const auto rows = static_cast<std::size_t>(cu.back());
  std::vector<std::int32_t> before(rows), after(rows);
  for (std::size_t d = 0; d + 1 < cu.size(); ++d) {
    for (std::int32_t t = cu[d]; t < cu[d + 1]; ++t) {
      before[static_cast<std::size_t>(t)] = std::min(t - cu[d], 3);
      after[static_cast<std::size_t>(t)] = std::min(cu[d + 1] - 1 - t, 3);
    }
  }
  const auto x = random_floats(rows * kN, 1, 2.0f), w = random_floats(4 * kN, 2), dy = random_floats(rows * kN, 3);
  std::vector<float> wide = widened_rows(x, kN, kStride), c(rows * kN), y(rows * kN);
  const auto t = static_cast<std::int64_t>(rows);
  const RowRun all{0, t, 0, 0};
  const DocumentRows docs{before.data(), after.data(), {&all, 1}, nullptr};
  BorderRows border;
  conv_silu_forward(kN, {wide.data(), kStride}, docs, w.data(), c.data(), y.data(), border);
  EXPECT_LT(relative_error(widen(y), ref::conv_silu(widen(x), widen(w), kN, cu)), 1e-6);

  std::vector<float> dc = dy, dwide(wide.size(), 5.0f), dw(4 * kN);
  ShardReducer reducer(ShardPlan(t, 3));
  conv_silu_backward(reducer, kN, dc.data(), {wide.data(), kStride}, docs, w.data(), c.data(), border,
                     {dwide.data(), kStride}, dw.data());
  Array dx;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < kN; ++i) dx.push_back(static_cast<double>(dwide[row * kStride + i]));
    for (std::size_t i = kN; i < kStride; ++i) ASSERT_EQ(dwide[row * kStride + i], 5.0f) << "wrote beyond its columns";
  }
  const auto by_x = [&](const Array& v) { return dot(ref::conv_silu(v, widen(w), kN, cu), widen(dy)); };
  const auto by_w = [&](const Array& v) { return dot(ref::conv_silu(widen(x), v, kN, cu), widen(dy)); };
  EXPECT_LT(relative_error(dx, numeric_gradient(by_x, widen(x))), 2e-6);
  EXPECT_LT(relative_error(widen(dw), numeric_gradient(by_w, widen(w))), 2e-6);
}

TEST(GatedNorm, ForwardAndGradients) {
  constexpr std::size_t kT = 70, kHeads = 2, kN = 16, kD = kHeads * kN, kStride = 50;
  const auto o = random_floats(kT * kD, 4, 2.0f), z = random_floats(kT * kD, 5, 3.0f), w = random_floats(kN, 6);
  const auto dy = random_floats(kT * kD, 7);
  std::vector<float> wide = widened_rows(z, kD, kStride), y(kT * kD), rstd(kT * kHeads);
  gated_norm_forward(kT, kHeads, kN, o.data(), {wide.data(), kStride}, w.data(), y.data(), rstd.data());
  EXPECT_LT(relative_error(widen(y), ref::gated_norm(widen(o), widen(z), widen(w))), 1e-6);

  std::vector<float> d_o(kT * kD), dwide(wide.size(), 5.0f), dw(kN);
  ShardReducer reducer(ShardPlan(kT, 2));
  gated_norm_backward(reducer, kHeads, kN, dy.data(), o.data(), {wide.data(), kStride}, w.data(), rstd.data(),
                      d_o.data(), {dwide.data(), kStride}, dw.data());
  const Array dz = ref::columns(widen(dwide), kStride, 0, kD);
  const auto by_o = [&](const Array& v) { return dot(ref::gated_norm(v, widen(z), widen(w)), widen(dy)); };
  const auto by_z = [&](const Array& v) { return dot(ref::gated_norm(widen(o), v, widen(w)), widen(dy)); };
  const auto by_w = [&](const Array& v) { return dot(ref::gated_norm(widen(o), widen(z), v), widen(dy)); };
  EXPECT_LT(relative_error(widen(d_o), numeric_gradient(by_o, widen(o))), 2e-6);
  EXPECT_LT(relative_error(dz, numeric_gradient(by_z, widen(z))), 2e-6);
  EXPECT_LT(relative_error(widen(dw), numeric_gradient(by_w, widen(w))), 2e-6);
}

}  // namespace
}  // namespace cake::test
