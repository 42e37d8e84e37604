// Accuracy of the vectorised elementary functions against long double libm over dense sweeps, and equal bits on every
// level. The limits here are the errors core/simd/math.h states.
#include <cmath>
#include <limits>
#include <vector>

#include "core/fpenv.h"
#include "core/simd/simd_kernels.h"
#include "test_util.h"

namespace cake {
namespace {

using test::bits_of;
using test::from_bits;
using test::is_nan;
using test::same_number;

using Function = void (*)(const float*, float*, std::int64_t);
using Oracle = long double (*)(long double);

// Floats between lo and hi in steps of `stride` representable numbers, both ends included.
std::vector<float> sweep(float lo, float hi, std::uint32_t stride) {
  const auto order = [](float x) {  // monotonic integer
    const std::uint32_t u = bits_of(x);
    return (u & 0x80000000u) != 0 ? -static_cast<std::int64_t>(u & 0x7fffffffu) : static_cast<std::int64_t>(u);
  };
  std::vector<float> xs;
  for (std::int64_t at = order(lo); at <= order(hi); at += stride) {
    xs.push_back(at < 0 ? from_bits(0x80000000u | static_cast<std::uint32_t>(-at))
                        : from_bits(static_cast<std::uint32_t>(at)));
  }
  xs.push_back(hi);
  return xs;
}

std::vector<float> run_in_task_mode(Function function, const std::vector<float>& xs) {
  const ScopedFpEnv env;  // as every task of the library runs
  std::vector<float> ys(xs.size());
  function(xs.data(), ys.data(), static_cast<std::int64_t>(xs.size()));
  return ys;
}

struct Worst {
  long double ulps = 0, absolute = 0;
  float at_ulps = 0;
};

// Error in units of the spacing of fp32 at the exact value. Inputs and results below the smallest normal number are
// zero by the tasks' floating-point environment and are left out.
Worst measure(Function function, Oracle oracle, const std::vector<float>& xs) {
  const std::vector<float> ys = run_in_task_mode(function, xs);
  Worst worst;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    if (test::is_subnormal(xs[i])) continue;
    const long double exact = oracle(xs[i]);
    if (std::fabs(exact) < 0x1p-126L) {
      EXPECT_LE(std::fabs(ys[i]), 0x1p-126f) << xs[i];
      continue;
    }
    const long double error = std::fabs(static_cast<long double>(ys[i]) - exact);
    const long double ulps = error / std::ldexp(1.0L, std::ilogb(exact) - 23);
    worst.absolute = std::max(worst.absolute, error);
    if (!(ulps <= worst.ulps)) {
      worst.ulps = ulps;
      worst.at_ulps = xs[i];
    }
  }
  return worst;
}

Function highest(Function SimdKernels::*function) { return simd_kernels(supported_cpu_isas().back()).*function; }

void expect_ulps(const char* name, Function SimdKernels::*function, Oracle oracle, const std::vector<float>& xs,
                 double limit) {
  const Worst worst = measure(highest(function), oracle, xs);
  std::cout << name << ": " << xs.size() << " inputs, worst " << static_cast<double>(worst.ulps) << " ulp at "
            << worst.at_ulps << " (stated: below " << limit << ")\n";
  EXPECT_LT(worst.ulps, limit) << name << " at " << worst.at_ulps;
}

constexpr std::uint32_t kStride = 997;  // about two million inputs over the whole range

TEST(SimdMath, Exp) {
  expect_ulps(
      "exp", &SimdKernels::exp, [](long double x) { return std::exp(x); }, sweep(-87.0f, 88.37f, kStride), 1.02);
}

TEST(SimdMath, Log) {
  const auto oracle = [](long double x) { return std::log(x); };
  expect_ulps("log", &SimdKernels::log, oracle, sweep(0x1p-126f, 3.4e38f, 499), 0.83);
  expect_ulps("log near 1", &SimdKernels::log, oracle, sweep(0.5f, 2.0f, 13), 0.83);
  EXPECT_EQ(bits_of(run_in_task_mode(highest(&SimdKernels::log), {1.0f})[0]), 0u);
}

TEST(SimdMath, Log1p) {
  expect_ulps(
      "log1p", &SimdKernels::log1p, [](long double x) { return std::log1p(x); }, sweep(0.0f, 3.4e38f, kStride), 1.26);
  expect_ulps(
      "log1p of [0, 1]", &SimdKernels::log1p, [](long double x) { return std::log1p(x); }, sweep(0x1p-30f, 1.0f, 101),
      1.26);
}

TEST(SimdMath, Sigmoid) {
  expect_ulps(
      "sigmoid", &SimdKernels::sigmoid, [](long double x) { return 1 / (1 + std::exp(-x)); },
      sweep(-87.0f, 100.0f, kStride), 2.49);
}

TEST(SimdMath, Softplus) {
  expect_ulps(
      "softplus", &SimdKernels::softplus,
      [](long double x) { return std::fmax(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))); },
      sweep(-87.0f, 1e30f, kStride), 2.0);
}

TEST(SimdMath, Rsqrt) {
  expect_ulps(
      "rsqrt", &SimdKernels::rsqrt, [](long double x) { return 1 / std::sqrt(x); }, sweep(0x1p-126f, 3.4e38f, kStride),
      1.5);
}

TEST(SimdMath, EndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto one = [](Function SimdKernels::*function, float x) { return run_in_task_mode(highest(function), {x})[0]; };
  EXPECT_EQ(one(&SimdKernels::exp, 0.0f), 1.0f);
  EXPECT_EQ(one(&SimdKernels::exp, -0.0f), 1.0f);
  EXPECT_GT(one(&SimdKernels::exp, -87.0f), 0.0f);
  EXPECT_EQ(bits_of(one(&SimdKernels::exp, std::nextafterf(-87.0f, -inf))), 0u);
  EXPECT_EQ(bits_of(one(&SimdKernels::exp, -1000.0f)), 0u);
  EXPECT_EQ(bits_of(one(&SimdKernels::exp, -3e38f)), 0u);
  EXPECT_EQ(bits_of(one(&SimdKernels::exp, -inf)), 0u);
  EXPECT_LT(one(&SimdKernels::exp, 88.37f), inf);
  EXPECT_EQ(one(&SimdKernels::exp, std::nextafterf(88.37f, inf)), inf);
  EXPECT_EQ(one(&SimdKernels::exp, inf), inf);
  EXPECT_EQ(one(&SimdKernels::sigmoid, 0.0f), 0.5f);
  EXPECT_EQ(bits_of(one(&SimdKernels::sigmoid, -inf)), 0u);
  EXPECT_EQ(bits_of(one(&SimdKernels::sigmoid, -100.0f)), 0u);
  EXPECT_EQ(one(&SimdKernels::sigmoid, inf), 1.0f);
  EXPECT_EQ(bits_of(one(&SimdKernels::softplus, -inf)), 0u);
  EXPECT_EQ(one(&SimdKernels::softplus, inf), inf);
  EXPECT_EQ(one(&SimdKernels::softplus, 1e30f), 1e30f);
  EXPECT_EQ(bits_of(one(&SimdKernels::log1p, 0.0f)), 0u);
  EXPECT_EQ(one(&SimdKernels::rsqrt, 4.0f), 0.5f);
  EXPECT_EQ(one(&SimdKernels::rsqrt, 0.0f), inf);
  EXPECT_EQ(one(&SimdKernels::rsqrt, inf), 0.0f);
  EXPECT_TRUE(is_nan(one(&SimdKernels::rsqrt, -1.0f)));
}

TEST(SimdMath, NanStaysNan) {
  for (const std::uint32_t payload : {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0x7fc000ffu, 0x7f800001u, 0x7fffffffu,
                                      0xffffffffu, 0x7fc00155u, 0xff8aaaaau}) {
    for (const auto function :
         {&SimdKernels::exp, &SimdKernels::log1p, &SimdKernels::sigmoid, &SimdKernels::softplus, &SimdKernels::rsqrt}) {
      for (const CpuIsa isa : supported_cpu_isas()) {
        EXPECT_TRUE(is_nan(run_in_task_mode(simd_kernels(isa).*function, {from_bits(payload)})[0]))
            << std::hex << payload;
      }
    }
  }
}

// exp is never above 1 for negative arguments, and never decreases over a fine sweep: gates rely on the first.
TEST(SimdMath, ExpOfNegativeIsAtMostOne) {
  const std::vector<float> xs = sweep(-87.0f, -0.0f, 251);
  const std::vector<float> ys = run_in_task_mode(highest(&SimdKernels::exp), xs);
  for (std::size_t i = 0; i < xs.size(); ++i) ASSERT_TRUE(ys[i] <= 1.0f && ys[i] > 0.0f) << xs[i];
}

TEST(SimdMath, EveryLevelGivesTheSameBits) {
  std::vector<float> xs = sweep(-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), 6007);
  for (const float x : {0.0f, -0.0f, 1.0f, NAN, INFINITY, -INFINITY}) xs.push_back(x);
  for (const bool flush : {true, false}) {
    for (const auto function : {&SimdKernels::exp, &SimdKernels::log, &SimdKernels::log1p, &SimdKernels::sigmoid,
                                &SimdKernels::softplus, &SimdKernels::rsqrt}) {
      std::vector<float> want;
      for (const CpuIsa isa : supported_cpu_isas()) {
        std::vector<float> got(xs.size());
        if (flush) {
          got = run_in_task_mode(simd_kernels(isa).*function, xs);
        } else {
          (simd_kernels(isa).*function)(xs.data(), got.data(), static_cast<std::int64_t>(xs.size()));
        }
        if (want.empty()) want = got;
        for (std::size_t i = 0; i < xs.size(); ++i) {
          ASSERT_TRUE(same_number(got[i], want[i]))
              << cpu_isa_name(isa) << " at " << xs[i] << (flush ? " flushing" : "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace cake
