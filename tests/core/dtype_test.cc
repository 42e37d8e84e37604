#include "cake/core/dtype.h"

#include <immintrin.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/fpenv.h"
#include "test_util.h"

namespace cake {
namespace {

using test::bits_of;
using test::from_bits;
using test::is_nan;
using test::Random;

// A binary format by its numbers alone: the oracle below knows nothing about bit tricks.
struct Format {
  int fraction_bits, min_exponent, max_exponent;
};
constexpr Format kBf16{7, -126, 127};
constexpr Format kFp16{10, -14, 15};

// The value of a finite bit pattern, in double.
double value_of(std::uint16_t bits, const Format& f) {
  const int exponent_bits = 15 - f.fraction_bits;
  const int exponent = (bits >> f.fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const double significand = fraction + (exponent == 0 ? 0 : 1 << f.fraction_bits);
  const double magnitude =
      std::ldexp(significand, (exponent == 0 ? 1 : exponent) - 1 + f.min_exponent - f.fraction_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_special(std::uint16_t bits, const Format& f) {
  const int exponent_bits = 15 - f.fraction_bits;
  return ((bits >> f.fraction_bits) & ((1 << exponent_bits) - 1)) == (1 << exponent_bits) - 1;
}

// Round to nearest even by arithmetic in double: the spacing at x, then nearbyint (the mode here is nearest even).
double rounded(float x, const Format& f) {
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude == 0) return x;
  const int exponent = std::max(std::ilogb(magnitude), f.min_exponent);
  const double spacing = std::ldexp(1.0, exponent - f.fraction_bits);
  const double result = std::nearbyint(magnitude / spacing) * spacing;
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -f.fraction_bits), f.max_exponent);
  const double out = result > largest ? std::numeric_limits<double>::infinity() : result;
  return std::signbit(x) ? -out : out;
}

TEST(Dtype, SizesNamesKinds) {
  const struct {
    DType dtype;
    int size;
    const char* name;
    bool is_float;
  } cases[] = {{DType::kFloat32, 4, "fp32", true},
               {DType::kBFloat16, 2, "bf16", true},
               {DType::kFloat16, 2, "fp16", true},
               {DType::kInt32, 4, "int32", false},
               {DType::kInt64, 8, "int64", false}};
  for (const auto& c : cases) {
    EXPECT_EQ(dtype_size(c.dtype), c.size);
    EXPECT_STREQ(dtype_name(c.dtype), c.name);
    EXPECT_EQ(dtype_is_float(c.dtype), c.is_float);
  }
  EXPECT_STREQ(dtype_name(static_cast<DType>(200)), "unknown dtype");
}

TEST(Dtype, EveryPatternWidensExactly) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float from_bf16 = bf16_to_float(bits), from_fp16 = fp16_to_float(bits);
    if (!is_special(bits, kBf16)) {
      ASSERT_EQ(static_cast<double>(from_bf16), value_of(bits, kBf16)) << i;
    }
    if (!is_special(bits, kFp16)) {
      ASSERT_EQ(static_cast<double>(from_fp16), value_of(bits, kFp16)) << i;
    }
    ASSERT_EQ(std::signbit(from_bf16), (bits & 0x8000) != 0);
    ASSERT_EQ(std::signbit(from_fp16), (bits & 0x8000) != 0);
    if (is_special(bits, kFp16)) {
      const bool nan = (bits & 0x3ff) != 0;
      ASSERT_EQ(is_nan(from_fp16), nan);
      ASSERT_EQ(std::isinf(from_fp16), !nan);
      if (nan) {
        ASSERT_NE(bits_of(from_fp16) & 0x400000u, 0u) << "a NaN becomes quiet";
      }
    }
    if (is_special(bits, kBf16)) {
      ASSERT_EQ(bits_of(from_bf16), i << 16);
    }
  }
}

TEST(Dtype, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const bool bf16_nan = is_nan(bf16_to_float(bits)), fp16_nan = is_nan(fp16_to_float(bits));
    ASSERT_EQ(float_to_bf16(bf16_to_float(bits)), bf16_nan ? (bits | 0x40) : bits) << i;
    ASSERT_EQ(float_to_fp16(fp16_to_float(bits)), fp16_nan ? (bits | 0x200) : bits) << i;
  }
}

void expect_narrowing(float x) {
  const std::uint16_t bf16 = float_to_bf16(x), fp16 = float_to_fp16(x);
  if (is_nan(x)) {
    // Quiet, the sign and the upper payload kept.
    ASSERT_EQ(bf16, static_cast<std::uint16_t>((bits_of(x) >> 16) | 0x40u));
    ASSERT_EQ(fp16,
              static_cast<std::uint16_t>(((bits_of(x) >> 16) & 0x8000u) | 0x7e00u | ((bits_of(x) >> 13) & 0x3ffu)));
    return;
  }
  if (std::isinf(x)) {
    ASSERT_EQ(bf16, std::signbit(x) ? 0xff80 : 0x7f80);
    ASSERT_EQ(fp16, std::signbit(x) ? 0xfc00 : 0x7c00);
    return;
  }
  const double want_bf16 = rounded(x, kBf16), want_fp16 = rounded(x, kFp16);
  const auto same = [](std::uint16_t bits, double want, const Format& f) {
    if (std::isinf(want)) return is_special(bits, f) && (bits & ((1 << f.fraction_bits) - 1)) == 0;
    return !is_special(bits, f) && value_of(bits, f) == want;
  };
  ASSERT_TRUE(same(bf16, want_bf16, kBf16)) << x << " " << bits_of(x);
  ASSERT_TRUE(same(fp16, want_fp16, kFp16)) << x << " " << bits_of(x);
  ASSERT_EQ((bf16 & 0x8000) != 0, std::signbit(x));
  ASSERT_EQ((fp16 & 0x8000) != 0, std::signbit(x));
}

TEST(Dtype, NarrowingRoundsToNearestEven) {
  Random random(1);
  for (int i = 0; i < 400000; ++i) expect_narrowing(random.any_bits());
  // Around every representable number of each format: the number, the half-way point to its neighbour, and one fp32
  // step to either side of both.
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    for (const float x : {bf16_to_float(bits), fp16_to_float(bits)}) {
      if (is_nan(x)) continue;
      const bool half = x == fp16_to_float(bits) && !is_nan(fp16_to_float(bits));
      const float next = half ? fp16_to_float(static_cast<std::uint16_t>(bits + 1))
                              : bf16_to_float(static_cast<std::uint16_t>(bits + 1));
      expect_narrowing(x);
      if (std::isfinite(x) && std::isfinite(next)) {
        const auto middle = static_cast<float>((static_cast<double>(x) + static_cast<double>(next)) / 2);
        for (const float y : {middle, std::nextafterf(middle, x), std::nextafterf(middle, next)}) expect_narrowing(y);
      }
      if (std::isfinite(x)) {
        expect_narrowing(std::nextafterf(x, 1e38f));
        expect_narrowing(std::nextafterf(x, -1e38f));
      }
    }
  }
  for (const float x : {65504.0f, 65519.0f, 65519.996f, 65520.0f, 65536.0f, 3.4e38f, 5.96e-8f, 2.98e-8f, 2.9802322e-8f,
                        2.9802326e-8f, 1e-45f, 0.0f}) {
    expect_narrowing(x);
    expect_narrowing(-x);
  }
  for (const std::uint32_t nan : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    expect_narrowing(from_bits(nan));
  }
}

// The tasks' floating-point environment must not reach the conversions.
TEST(Dtype, ConversionsIgnoreFlushToZero) {
  const ScopedFpEnv env;
  EXPECT_EQ(bits_of(bf16_to_float(1)), 0x00010000u);
  EXPECT_EQ(float_to_bf16(from_bits(0x00010000u)), 1);
  EXPECT_EQ(bits_of(fp16_to_float(1)), bits_of(0x1p-24f));
  EXPECT_EQ(float_to_fp16(0x1p-24f), 1);
}

__attribute__((target("avx,f16c"))) float widen_with_hardware(std::uint16_t bits) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
}
__attribute__((target("avx,f16c"))) std::uint16_t narrow_with_hardware(float x) {
  return static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}

TEST(Dtype, Fp16EqualsTheProcessorsConversion) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP() << "this processor has no F16C";
  for (std::uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    ASSERT_EQ(bits_of(fp16_to_float(bits)), bits_of(widen_with_hardware(bits))) << i;
  }
  Random random(2);
  for (int i = 0; i < 2000000; ++i) {
    const float x = random.any_bits();
    ASSERT_EQ(float_to_fp16(x), narrow_with_hardware(x)) << bits_of(x);
    const float y = random.uniform(-70000.0f, 70000.0f);
    ASSERT_EQ(float_to_fp16(y), narrow_with_hardware(y)) << bits_of(y);
    const float z = random.uniform(-0x1p-13f, 0x1p-13f);
    ASSERT_EQ(float_to_fp16(z), narrow_with_hardware(z)) << bits_of(z);
  }
}

}  // namespace
}  // namespace cake
