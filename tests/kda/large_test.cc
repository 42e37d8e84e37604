// Memory is linear in the number of tokens: 65536 tokens, 2 heads, K = V = 128, fp32, forward and a backward that
// recomputes, in a process that never holds 4 GiB.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cake/core/canonical.h"
#include "cake/kda_det_train.h"

namespace cake::test {
namespace {

using namespace kda_det_train;  // NOLINT: the whole vocabulary of the package is under test

constexpr std::int64_t kHeads = 2, kWidth = 128;

std::vector<float> numbers(std::size_t count, std::uint32_t seed, float low, float high) {
  std::vector<float> x(count);
  for (float& value : x) {
    seed = seed * 1664525u + 1013904223u;
    value = low + (high - low) * static_cast<float>(seed >> 8) * 0x1p-24f;
  }
  return x;
}

/// Operands and gradients of T tokens; the first tokens are the same for every T.
struct Tensors {
  explicit Tensors(std::int64_t tokens) : T(tokens) {
    const auto n = static_cast<std::size_t>(T * kHeads * kWidth);
    q = numbers(n, 1, -0.1f, 0.1f);
    k = numbers(n, 2, -0.1f, 0.1f);
    v = numbers(n, 3, -1.0f, 1.0f);
    g = numbers(n, 4, -0.1f, 0.0f);
    dout = numbers(n, 5, -1.0f, 1.0f);
    beta = numbers(static_cast<std::size_t>(T * kHeads), 6, 0.0f, 1.0f);
    for (auto* x : {&out, &dq, &dk, &dv, &dg}) x->resize(n);
    dbeta.resize(beta.size());
  }
  TensorView rows(std::vector<float>& x) const {
    return TensorView::contiguous(x.data(), DType::kFloat32, {1, T, kHeads, kWidth});
  }
  TensorView scalars(std::vector<float>& x) const {
    return TensorView::contiguous(x.data(), DType::kFloat32, {1, T, kHeads});
  }
  Inputs inputs() {
    Inputs in;
    in.q = rows(q);
    in.k = rows(k);
    in.v = rows(v);
    in.g = rows(g);
    in.beta = scalars(beta);
    return in;
  }
  void run() {
    forward(inputs(), {rows(out), {}});
    Gradients gradients;
    gradients.dq = rows(dq);
    gradients.dk = rows(dk);
    gradients.dv = rows(dv);
    gradients.dg = rows(dg);
    gradients.dbeta = scalars(dbeta);
    backward(inputs(), rows(dout), {}, gradients);
  }

  std::int64_t T;
  std::vector<float> q, k, v, g, beta, dout, out, dq, dk, dv, dg, dbeta;
};

TEST(KdaLarge, SixtyFiveThousandTokensWithinFourGiB) {
  Tensors x(65536);
  x.run();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  std::printf("peak resident memory %.2f GiB\n", gib);
  EXPECT_LT(gib, 4.0);
  for (const auto* tensor : {&x.out, &x.dq, &x.dk, &x.dv, &x.dg, &x.dbeta}) {
    EXPECT_TRUE(std::all_of(tensor->begin(), tensor->end(), [](float value) { return std::isfinite(value); }));
  }
  // Appended tokens leave the outputs of earlier ones alone, over all segment borders.
  Tensors start(2 * kSegment + 100);
  start.run();
  EXPECT_TRUE(std::equal(start.out.begin(), start.out.end(), x.out.begin()));
}

TEST(KdaLarge, BytesGrowLinearly) {
  Shape shape;
  shape.H = shape.HV = kHeads;
  shape.K = shape.V = kWidth;
  const auto bytes = [&](std::int64_t T) {
    shape.S = T;
    shape.cu_seqlens = {0, static_cast<std::int32_t>(T)};
    return std::vector<double>{static_cast<double>(saved_bytes(shape)),
                               static_cast<double>(backward_workspace_bytes(shape, true, {}, 2)),
                               static_cast<double>(forward_workspace_bytes(shape, {}, false, 2))};
  };
  const auto one = bytes(1 << 16), two = bytes(1 << 17), four = bytes(1 << 18);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(four[i] - two[i], 2.0 * (two[i] - one[i]), 0.01 * four[i]) << "query " << i;
    EXPECT_LE(two[i], 2.01 * one[i]) << "query " << i;
  }
}

}  // namespace
}  // namespace cake::test
