// Elementary functions on sixteen lanes: no libm, only IEEE-exact steps, equal bits on every level.
//
// Range reduction after Cody and Waite ("Software Manual for the Elementary Functions", 1980); the minimax polynomials
// of exp and log are those of the Cephes Mathematical Library (S. L. Moshier, expf and logf). The errors stated at each
// function were measured over every fp32 number of its range and are held by tests/core/simd_math_test.cc over dense
// sweeps; one ulp is the spacing of fp32 at the exact result. Inputs and results below the smallest normal number count
// as zero, as the tasks' floating-point environment has it (core/fpenv.h).
#pragma once

#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {

/// e^x, error below 1.02 ulp on [-87, 88.37]; 0 below -87, infinity above 88.37, NaN stays NaN.
CAKE_INLINE F exp(F x) {
  const F magic = set1(12582912.0f);  // 1.5 * 2^23: adding it leaves round(x / ln 2) in the low bits
  const F n = fma(x, set1(1.44269504088896341f), magic);
  const F whole = n - magic;
  F r = fma(whole, set1(-0.693359375f), x);
  r = fma(whole, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r);
  p = p + set1(1.0f);
  // times 2^n, exact here; as a product, because adding to the exponent bits would turn a NaN into a number
  F y = p * bits_add_shifted<23>(set1(1.0f), n);
  y = select_gt(set1(-87.0f), x, zero(), y);
  return select_gt(x, set1(88.37f), set1(__builtin_inff()), y);
}

/// ln x for positive normal x, error below 0.83 ulp (near 1 too); not for x <= 0, infinity or NaN.
CAKE_INLINE F log(F x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2))
  F e = exponent(x, 126);
  F m = bits_or(bits_and(x, 0x007fffffu), set1(0.5f));
  const F root = set1(0.707106781186547524f);
  e = select_gt(root, m, e - set1(1.0f), e);
  m = select_gt(root, m, (m + m) - set1(1.0f), m - set1(1.0f));
  const F z = m * m;
  F p = set1(7.0376836292e-2f);
  p = fma(p, m, set1(-1.1514610310e-1f));
  p = fma(p, m, set1(1.1676998740e-1f));
  p = fma(p, m, set1(-1.2420140846e-1f));
  p = fma(p, m, set1(1.4249322787e-1f));
  p = fma(p, m, set1(-1.6668057665e-1f));
  p = fma(p, m, set1(2.0000714765e-1f));
  p = fma(p, m, set1(-2.4999993993e-1f));
  p = fma(p, m, set1(3.3333331174e-1f));
  p = (p * m) * z;
  p = fma(e, set1(-2.12194440e-4f), p);
  p = fma(z, set1(-0.5f), p);
  return fma(e, set1(0.693359375f), m + p);
}

/// ln(1 + x) for finite x >= 0, error below 1.26 ulp; NaN stays NaN.
CAKE_INLINE F log1p(F x) {
  const F u = set1(1.0f) + x;
  const F lost = x - (u - set1(1.0f));  // what rounding 1 + x dropped
  return log(u) + lost / u;
}

/// 1 / (1 + e^-x), error below 2.49 ulp (1.5 for x >= 0); 0 below -88.37.
CAKE_INLINE F sigmoid(F x) { return set1(1.0f) / (set1(1.0f) + exp(neg(x))); }

/// The derivative of the sigmoid, y (1 - y), without the cancellation of 1 - y near 1: e / (1 + e)^2 with e = e^-|x|.
CAKE_INLINE F sigmoid_slope(F x) {
  const F e = exp(neg(abs(x))), u = set1(1.0f) + e;
  return e / (u * u);
}

/// ln(1 + e^x), error below 2 ulp, no overflow; 0 below -87.
CAKE_INLINE F softplus(F x) { return max(x, zero()) + log1p(exp(neg(abs(x)))); }

/// 1 / sqrt(x), error below 1.5 ulp.
CAKE_INLINE F rsqrt(F x) { return set1(1.0f) / sqrt(x); }

}  // namespace cake::CAKE_ISA_NAMESPACE
