// Fused multiply-add: the base level emulates it and must give the bits of the instruction.
#include <immintrin.h>

#include <cmath>
#include <vector>

#include "core/fpenv.h"
#include "core/simd/simd_kernels.h"
#include "test_util.h"

namespace cake {
namespace {

using test::bits_of;
using test::from_bits;
using test::is_nan;
using test::Random;
using test::same_number;

struct Cases {
  std::vector<float> a, b, c;
  void add(float x, float y, float z) {
    a.push_back(x);
    b.push_back(y);
    c.push_back(z);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(a.size()); }
};

float step(float x, std::int64_t n) { return from_bits(bits_of(x) + static_cast<std::uint32_t>(n)); }

Cases any_bits(std::int64_t n) {
  Random random(31);
  Cases cases;
  for (std::int64_t i = 0; i < n; ++i) cases.add(random.any_bits(), random.any_bits(), random.any_bits());
  return cases;
}

// The addend is near minus the product: the sum keeps only what a separate multiplication would have rounded away.
Cases near_cancelling(std::int64_t n) {
  Random random(32);
  Cases cases;
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::ldexp(random.uniform(1.0f, 2.0f), static_cast<int>(random.below(120)) - 60);
    const float b = std::ldexp(random.uniform(-2.0f, -1.0f), static_cast<int>(random.below(120)) - 60);
    cases.add(a, b, step(-(a * b), random.below(9) - 4));
  }
  return cases;
}

// The exact sum lies just beside the middle of two fp32 numbers, closer than fp64 can tell.
Cases near_halfway(std::int64_t n) {
  Random random(33);
  Cases cases;
  for (std::int64_t i = 0; i < n; ++i) {
    const int exponent = static_cast<int>(random.below(200)) - 100;
    const float c = std::ldexp(random.uniform(1.0f, 2.0f), exponent);
    const float half_ulp = std::ldexp(1.0f, exponent - 24);
    // (1 + d)(1 - d) half_ulp = half_ulp (1 - d^2), with d from 2^-23 up
    const float d = std::ldexp(1.0f, -23 + static_cast<int>(random.below(6)));
    const float sign = random.below(2) == 0 ? 1.0f : -1.0f;
    cases.add(1.0f + d, sign * half_ulp * (1.0f - d), random.below(2) == 0 ? c : -c);
    cases.add(1.0f + d, sign * half_ulp * (1.0f + d), c);
  }
  return cases;
}

// Results around the smallest normal number, and operands below it.
Cases near_underflow(std::int64_t n) {
  Random random(34);
  Cases cases;
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::ldexp(random.uniform(1.0f, 2.0f), -60 - static_cast<int>(random.below(10)));
    const float b = std::ldexp(random.uniform(-2.0f, 2.0f), -60 - static_cast<int>(random.below(10)));
    const float c = random.below(3) == 0
                        ? 0.0f
                        : std::ldexp(random.uniform(-2.0f, 2.0f), -120 - static_cast<int>(random.below(29)));
    cases.add(a, b, c);
    const float smallest = 0x1p-126f;  // c one half step below it: the rounding decides whether the result is tiny
    cases.add(from_bits(static_cast<std::uint32_t>(random.next()) & 0x007fffffu), random.uniform(-4.0f, 4.0f),
              step(smallest, random.below(5) - 2));
    cases.add(0x1p-75f, -0x1p-76f * random.uniform(1.0f, 2.0f), smallest);
  }
  return cases;
}

Cases near_overflow(std::int64_t n) {
  Random random(35);
  Cases cases;
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::ldexp(random.uniform(1.0f, 2.0f), 63), b = std::ldexp(random.uniform(1.0f, 2.0f), 63);
    cases.add(a, b, std::ldexp(random.uniform(-2.0f, 2.0f), 127 - static_cast<int>(random.below(30))));
  }
  return cases;
}

std::vector<float> run(CpuIsa isa, const Cases& cases, bool flush) {
  std::vector<float> y(cases.a.size());
  if (flush) {
    const ScopedFpEnv env;
    simd_kernels(isa).fma(cases.a.data(), cases.b.data(), cases.c.data(), y.data(), cases.size());
  } else {
    simd_kernels(isa).fma(cases.a.data(), cases.b.data(), cases.c.data(), y.data(), cases.size());
  }
  return y;
}

__attribute__((target("fma"))) void fma_with_instruction(const Cases& cases, bool flush, std::vector<float>& y) {
  const unsigned before = _mm_getcsr();
  if (flush) _mm_setcsr(0x1f80u | 0x8000u | 0x0040u);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(cases.a[i]), _mm_set_ss(cases.b[i]), _mm_set_ss(cases.c[i])));
  }
  _mm_setcsr(before);
}

// Independent of the library: std::fma, which is exact; with flush-to-zero the instruction, where there is one.
bool oracle(const Cases& cases, bool flush, std::vector<float>& y) {
  y.resize(cases.a.size());
  if (!flush) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::fma(cases.a[i], cases.b[i], cases.c[i]);
    return true;
  }
  if (!__builtin_cpu_supports("fma")) return false;
  fma_with_instruction(cases, flush, y);
  return true;
}

void expect_exact(const char* name, const Cases& cases) {
  for (const bool flush : {false, true}) {
    std::vector<float> want;
    if (!oracle(cases, flush, want)) continue;
    for (const CpuIsa isa : supported_cpu_isas()) {
      const std::vector<float> got = run(isa, cases, flush);
      int wrong = 0;
      for (std::size_t i = 0; i < got.size() && wrong < 5; ++i) {
        if (same_number(got[i], want[i])) continue;
        ++wrong;
        ADD_FAILURE() << name << " on " << cpu_isa_name(isa) << (flush ? " flushing" : "") << ": fma(" << std::hexfloat
                      << cases.a[i] << ", " << cases.b[i] << ", " << cases.c[i] << ") gave " << got[i] << ", expected "
                      << want[i];
      }
    }
  }
}

TEST(Fma, AnyBits) { expect_exact("any bits", any_bits(2000000)); }
TEST(Fma, NearCancelling) { expect_exact("near cancelling", near_cancelling(2000000)); }
TEST(Fma, NearHalfway) { expect_exact("near half-way", near_halfway(1000000)); }
TEST(Fma, NearUnderflow) { expect_exact("near underflow", near_underflow(700000)); }
TEST(Fma, NearOverflow) { expect_exact("near overflow", near_overflow(500000)); }

TEST(Fma, Specials) {
  const float inf = INFINITY, nan = NAN, big = 3.4e38f, tiny = 0x1p-149f;
  const float numbers[] = {0.0f, -0.0f, 1.0f, -1.0f, inf, -inf, nan, big, -big, tiny, -tiny, 0x1p-126f, 0x1p127f};
  Cases cases;
  for (const float a : numbers) {
    for (const float b : numbers) {
      for (const float c : numbers) cases.add(a, b, c);
    }
  }
  expect_exact("specials", cases);
}

// The cases above are worth something only if simpler emulations fail on them.
TEST(Fma, CasesTellEmulationsApart) {
  const Cases cancelling = near_cancelling(20000), halfway = near_halfway(20000);
  int two_roundings = 0, through_double = 0;
  for (std::size_t i = 0; i < cancelling.a.size(); ++i) {
    const float product = cancelling.a[i] * cancelling.b[i];
    const float want = std::fma(cancelling.a[i], cancelling.b[i], cancelling.c[i]);
    two_roundings += same_number(product + cancelling.c[i], want) ? 0 : 1;
  }
  for (std::size_t i = 0; i < halfway.a.size(); ++i) {
    const double sum = static_cast<double>(halfway.a[i]) * halfway.b[i] + halfway.c[i];
    const float want = std::fma(halfway.a[i], halfway.b[i], halfway.c[i]);
    through_double += same_number(static_cast<float>(sum), want) ? 0 : 1;
  }
  EXPECT_GT(two_roundings, 10000);
  EXPECT_GT(through_double, 1000);
}

}  // namespace
}  // namespace cake
