// The SIMD vocabulary lane by lane against plain scalar C++, on every level of this machine.
#include "core/simd/simd_kernels.h"

#include <cmath>
#include <limits>
#include <vector>

#include "cake/core/dtype.h"
#include "core/fpenv.h"
#include "isa_probe.h"
#include "test_util.h"

namespace cake {
namespace isa_base {
extern const test::IsaProbe kIsaProbe;
}
namespace isa_v3 {
extern const test::IsaProbe kIsaProbe;
}
namespace isa_v4 {
extern const test::IsaProbe kIsaProbe;
}
namespace test {
const IsaProbe& isa_probe(CpuIsa isa) {
  return isa == CpuIsa::kV4 ? isa_v4::kIsaProbe : isa == CpuIsa::kV3 ? isa_v3::kIsaProbe : isa_base::kIsaProbe;
}
}  // namespace test

namespace {

using test::bits_of;
using test::from_bits;
using test::is_nan;
using test::isa_probe;
using test::IsaProbe;
using test::Random;
using test::same_number;

constexpr int kLanes = 16;

// Numbers that break careless code, then random ones.
float interesting(Random& random) {
  static const float kNumbers[] = {0.0f,
                                   -0.0f,
                                   1.0f,
                                   -1.0f,
                                   std::numeric_limits<float>::infinity(),
                                   -std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN(),
                                   std::numeric_limits<float>::max(),
                                   std::numeric_limits<float>::min(),
                                   -std::numeric_limits<float>::min(),
                                   0x1p-149f,
                                   -0x1.8p-130f};
  const std::int64_t pick = random.below(8);
  if (pick == 0) return kNumbers[random.below(static_cast<std::int64_t>(std::size(kNumbers)))];
  return pick < 4 ? random.any_bits() : random.uniform(-10.0f, 10.0f);
}

void fill(Random& random, float* x, int n = kLanes) {
  for (int i = 0; i < n; ++i) x[i] = interesting(random);
}

class EachLevel : public ::testing::TestWithParam<CpuIsa> {
 protected:
  const IsaProbe& probe() const { return isa_probe(GetParam()); }
  const SimdKernels& kernels() const { return simd_kernels(GetParam()); }
};

TEST_P(EachLevel, ArithmeticEqualsScalar) {
  Random random(21);
  float a[kLanes], b[kLanes], y[kLanes];
  for (int repeat = 0; repeat < 20000; ++repeat) {
    fill(random, a);
    fill(random, b);
    const auto expect_lanes = [&](const char* name, auto scalar) {
      for (int i = 0; i < kLanes; ++i) {
        ASSERT_TRUE(same_number(y[i], scalar(a[i], b[i])))
            << name << " of " << a[i] << ", " << b[i] << " gave " << y[i];
      }
    };
    probe().add(a, b, y);
    expect_lanes("add", [](float p, float q) { return p + q; });
    probe().sub(a, b, y);
    expect_lanes("sub", [](float p, float q) { return p - q; });
    probe().mul(a, b, y);
    expect_lanes("mul", [](float p, float q) { return p * q; });
    probe().div(a, b, y);
    expect_lanes("div", [](float p, float q) { return p / q; });
    probe().sqrt(a, y);
    expect_lanes("sqrt", [](float p, float) { return std::sqrt(p); });
    // The second operand where one is NaN, and for equal operands (so for zeros of either sign).
    probe().min(a, b, y);
    expect_lanes("min", [](float p, float q) { return p < q ? p : q; });
    probe().max(a, b, y);
    expect_lanes("max", [](float p, float q) { return p > q ? p : q; });
    probe().neg(a, y);
    expect_lanes("neg", [](float p, float) { return 0.0f - p; });
  }
}

TEST_P(EachLevel, BitOperations) {
  Random random(22);
  float a[kLanes], b[kLanes], y[kLanes];
  for (int repeat = 0; repeat < 2000; ++repeat) {
    fill(random, a);
    fill(random, b);
    const auto expect_bits = [&](const char* name, auto scalar) {
      for (int i = 0; i < kLanes; ++i) ASSERT_EQ(bits_of(y[i]), scalar(bits_of(a[i]), bits_of(b[i]))) << name;
    };
    probe().abs(a, y);
    expect_bits("abs", [](std::uint32_t p, std::uint32_t) { return p & 0x7fffffffu; });
    probe().bits_or(a, b, y);
    expect_bits("or", [](std::uint32_t p, std::uint32_t q) { return p | q; });
    probe().add_shifted_23(a, b, y);
    expect_bits("add shifted", [](std::uint32_t p, std::uint32_t q) { return p + (q << 23); });
    const auto mask = static_cast<std::uint32_t>(random.next());
    probe().bits_and(a, mask, y);
    expect_bits("and", [=](std::uint32_t p, std::uint32_t) { return p & mask; });
    for (float& x : a) x = std::fabs(x);
    probe().exponent(a, 126, y);
    for (int i = 0; i < kLanes; ++i) ASSERT_EQ(y[i], static_cast<float>(static_cast<int>(bits_of(a[i]) >> 23) - 126));
  }
}

TEST_P(EachLevel, SelectTakesTheSecondWhereNothingCompares) {
  Random random(23);
  float p[kLanes], q[kLanes], x[kLanes], y[kLanes], out[kLanes];
  for (int repeat = 0; repeat < 5000; ++repeat) {
    fill(random, p);
    fill(random, q);
    fill(random, x);
    fill(random, y);
    if (repeat % 3 == 0) p[repeat % kLanes] = q[repeat % kLanes];
    probe().select_gt(p, q, x, y, out);
    for (int i = 0; i < kLanes; ++i) ASSERT_EQ(bits_of(out[i]), bits_of(p[i] > q[i] ? x[i] : y[i]));
  }
}

TEST_P(EachLevel, InsertLane) {
  float w[kLanes], k[kLanes], y[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    w[i] = static_cast<float>(i);
    k[i] = static_cast<float>(100 + i);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    probe().insert_lane(lane, w, k, y);
    for (int i = 0; i < kLanes; ++i) EXPECT_EQ(y[i], i == lane ? k[i] : w[i]) << "lane " << lane;
  }
}

// The tree, written out: distance 8, 4, 2, 1.
float tree_sum(const float* x) {
  float t[kLanes];
  for (int i = 0; i < kLanes; ++i) t[i] = x[i];
  for (int distance = 8; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) t[i] = t[i] + t[i + distance];
  }
  return t[0];
}

TEST_P(EachLevel, ReduceAddIsTheFixedTree) {
  Random random(24);
  float x[kLanes];
  int order_matters = 0;
  for (int repeat = 0; repeat < 20000; ++repeat) {
    for (float& v : x) v = random.uniform(-1.0f, 1.0f) * std::ldexp(1.0f, static_cast<int>(random.below(20)));
    const float want = tree_sum(x);
    ASSERT_EQ(bits_of(probe().reduce_add(x)), bits_of(want));
    float chain = 0.0f;
    for (const float v : x) chain += v;
    order_matters += bits_of(chain) != bits_of(want) ? 1 : 0;
  }
  EXPECT_GT(order_matters, 1000) << "the data must tell one order from another";
}

TEST_P(EachLevel, SumAndDotOfAnyLength) {
  Random random(25);
  std::vector<float> x(203), y(203);
  for (float& v : x) v = random.uniform(-3.0f, 3.0f);
  for (float& v : y) v = random.uniform(-3.0f, 3.0f);
  for (std::int64_t n = 0; n <= 203; ++n) {
    float sum_lanes[kLanes] = {}, dot_lanes[kLanes] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      sum_lanes[i % kLanes] += x[at];
      dot_lanes[i % kLanes] = std::fma(x[at], y[at], dot_lanes[i % kLanes]);
    }
    ASSERT_EQ(bits_of(kernels().sum(x.data(), n)), bits_of(tree_sum(sum_lanes))) << n;
    ASSERT_EQ(bits_of(kernels().dot(x.data(), y.data(), n)), bits_of(tree_sum(dot_lanes))) << n;
  }
}

TEST_P(EachLevel, Transpose) {
  constexpr std::int64_t kSrc = 19, kDst = 23;
  std::vector<float> src(16 * kSrc), dst(16 * kDst, -1.0f);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i);
  kernels().transpose16(src.data(), kSrc, dst.data(), kDst);
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t c = 0; c < kDst; ++c) {
      const float want = c < 16 ? src[static_cast<std::size_t>(c * kSrc + r)] : -1.0f;  // nothing outside is written
      EXPECT_EQ(dst[static_cast<std::size_t>(r * kDst + c)], want);
    }
  }
}

TEST_P(EachLevel, HalfPrecisionEqualsTheScalarConversions) {
  const auto check_all = [&] {
    std::vector<std::uint16_t> halves(0x10000 + 5);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const auto n = static_cast<std::int64_t>(halves.size());  // not a multiple of 16: the tail runs too
    std::vector<float> wide(halves.size());
    kernels().bf16_to_float(halves.data(), wide.data(), n);
    for (std::size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(bits_of(wide[i]), bits_of(bf16_to_float(halves[i]))) << i;
    kernels().fp16_to_float(halves.data(), wide.data(), n);
    for (std::size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(bits_of(wide[i]), bits_of(fp16_to_float(halves[i]))) << i;

    Random random(26);
    std::vector<float> floats(400003);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i] = i % 3 == 0   ? random.any_bits()
                  : i % 3 == 1 ? random.uniform(-70000.0f, 70000.0f)
                               : from_bits((bits_of(random.any_bits()) & 0xffff0000u) | 0x8000u);  // half-way for bf16
    }
    std::vector<std::uint16_t> narrow(floats.size());
    kernels().float_to_bf16(floats.data(), narrow.data(), static_cast<std::int64_t>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(narrow[i], float_to_bf16(floats[i])) << bits_of(floats[i]);
    kernels().float_to_fp16(floats.data(), narrow.data(), static_cast<std::int64_t>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(narrow[i], float_to_fp16(floats[i])) << bits_of(floats[i]);
  };
  check_all();
  const ScopedFpEnv env;  // flush-to-zero must not reach the conversions
  check_all();
}

TEST_P(EachLevel, ArrayFunctionsTakeAnyLengthAndMayWorkInPlace) {
  Random random(27);
  std::vector<float> x(70);
  for (float& v : x) v = random.uniform(0.1f, 4.0f);
  for (const auto function :
       {kernels().exp, kernels().log, kernels().log1p, kernels().sigmoid, kernels().softplus, kernels().rsqrt}) {
    std::vector<float> whole(70);
    function(x.data(), whole.data(), 70);
    for (std::int64_t n = 0; n <= 70; ++n) {
      std::vector<float> y(x);
      function(y.data(), y.data(), n);
      for (std::size_t i = 0; i < 70; ++i) {
        ASSERT_EQ(bits_of(y[i]), bits_of(static_cast<std::int64_t>(i) < n ? whole[i] : x[i])) << n << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, EachLevel, ::testing::ValuesIn(supported_cpu_isas()),
                         [](const auto& level) { return std::string(cpu_isa_name(level.param)); });

}  // namespace
}  // namespace cake
