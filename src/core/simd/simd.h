// Sixteen fp32 lanes, the one logical SIMD width of the CPU implementation.
//
// F is one zmm, two ymm or four xmm registers. Only IEEE-exact operations (add, sub, mul, div, sqrt, fma, moves,
// compares, integer bit operations) are used, so every level gives the same bits; the base level has no fused
// multiply-add instruction and emulates it exactly. Everything is inline and lives in a namespace per level
// (cake::isa_base, isa_v3, isa_v4): copies of one source built for different levels share no symbol.
// Include this only from files compiled by cake_add_isa_objects. Tests: tests/core/simd_test.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

#if !defined(CAKE_ISA)
#error "compile this file through cake_add_isa_objects (cmake/CakeIsa.cmake)"
#endif
#define CAKE_ISA_CONCAT_(a, b) a##b
#define CAKE_ISA_CONCAT(a, b) CAKE_ISA_CONCAT_(a, b)
/// Namespace of the level this file is compiled for.
#define CAKE_ISA_NAMESPACE CAKE_ISA_CONCAT(isa_, CAKE_ISA)
#define CAKE_INLINE static inline __attribute__((always_inline))

namespace cake::CAKE_ISA_NAMESPACE {

inline constexpr int kLanes = 16;

#if defined(CAKE_ISA_v4)

struct F {
  __m512 v;
};
CAKE_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
CAKE_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
CAKE_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
CAKE_INLINE F zero() { return {_mm512_setzero_ps()}; }
CAKE_INLINE F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
CAKE_INLINE F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
CAKE_INLINE F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
CAKE_INLINE F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
CAKE_INLINE F sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
/// a * b + c with one rounding.
CAKE_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// The smaller; the second operand if one is NaN.
CAKE_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
CAKE_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
/// a > b ? x : y per lane; y where a or b is NaN.
CAKE_INLINE F select_gt(F a, F b, F x, F y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
/// Lane kLane of k put into w.
template <int kLane>
CAKE_INLINE F insert_lane(F w, F k) {
  return {_mm512_mask_mov_ps(w.v, static_cast<__mmask16>(1u << kLane), k.v)};
}
CAKE_INLINE F bits_and(F a, std::uint32_t mask) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int>(mask))))};
}
CAKE_INLINE F bits_or(F a, F b) {
  return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
/// Integer addition of the bit patterns, `b` shifted left by kShift first.
template <int kShift>
CAKE_INLINE F bits_add_shifted(F a, F b) {
  return {_mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_slli_epi32(_mm512_castps_si512(b.v), kShift)))};
}
/// (float)((int)(bits >> 23) - bias): the unbiased exponent of a positive normal number.
CAKE_INLINE F exponent(F a, int bias) {
  return {
      _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(_mm512_castps_si512(a.v), 23), _mm512_set1_epi32(bias)))};
}
/// Sum of the lanes by the fixed tree: distance 8, then 4, 2, 1.
CAKE_INLINE float reduce_add(F a) {
  __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  y = _mm_add_ss(y, _mm_shuffle_ps(y, y, 1));
  return _mm_cvtss_f32(y);
}
CAKE_INLINE F from_halves(__m256 lo, __m256 hi) { return {_mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1)}; }
CAKE_INLINE __m256 low_half(F a) { return _mm512_castps512_ps256(a.v); }
CAKE_INLINE __m256 high_half(F a) { return _mm512_extractf32x8_ps(a.v, 1); }

#elif defined(CAKE_ISA_v3)

struct F {
  __m256 a, b;
};
CAKE_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CAKE_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
CAKE_INLINE F set1(float x) {
  const __m256 t = _mm256_set1_ps(x);
  return {t, t};
}
CAKE_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
CAKE_INLINE F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
CAKE_INLINE F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
CAKE_INLINE F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
CAKE_INLINE F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
CAKE_INLINE F sqrt(F x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
CAKE_INLINE F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
CAKE_INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
CAKE_INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
CAKE_INLINE F select_gt(F p, F q, F x, F y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_GT_OQ))};
}
template <int kLane>
CAKE_INLINE F insert_lane(F w, F k) {
  if constexpr (kLane < 8) {
    w.a = _mm256_blend_ps(w.a, k.a, 1 << (kLane & 7));
  } else {
    w.b = _mm256_blend_ps(w.b, k.b, 1 << (kLane & 7));
  }
  return w;
}
CAKE_INLINE F bits_and(F x, std::uint32_t mask) {
  const __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(mask)));
  return {_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m)};
}
CAKE_INLINE F bits_or(F x, F y) { return {_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)}; }
template <int kShift>
CAKE_INLINE __m256 bits_add_shifted(__m256 x, __m256 y) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(y), kShift)));
}
template <int kShift>
CAKE_INLINE F bits_add_shifted(F x, F y) {
  return {bits_add_shifted<kShift>(x.a, y.a), bits_add_shifted<kShift>(x.b, y.b)};
}
CAKE_INLINE __m256 exponent(__m256 x, int bias) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(bias)));
}
CAKE_INLINE F exponent(F x, int bias) { return {exponent(x.a, bias), exponent(x.b, bias)}; }
CAKE_INLINE float reduce_add(F x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  y = _mm_add_ss(y, _mm_shuffle_ps(y, y, 1));
  return _mm_cvtss_f32(y);
}
CAKE_INLINE F from_halves(__m256 lo, __m256 hi) { return {lo, hi}; }
CAKE_INLINE __m256 low_half(F x) { return x.a; }
CAKE_INLINE __m256 high_half(F x) { return x.b; }

#elif defined(CAKE_ISA_base)

struct F {
  __m128 q[4];
};
template <class Op>
CAKE_INLINE F each(Op op) {
  return {{op(0), op(1), op(2), op(3)}};
}
CAKE_INLINE F load(const float* p) {
  return each([=](int i) { return _mm_loadu_ps(p + 4 * i); });
}
CAKE_INLINE void store(float* p, F x) {
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(p + 4 * i, x.q[i]);
}
CAKE_INLINE F set1(float x) {
  return each([=](int) { return _mm_set1_ps(x); });
}
CAKE_INLINE F zero() { return set1(0.0f); }
CAKE_INLINE F operator+(F x, F y) {
  return each([&](int i) { return _mm_add_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F operator-(F x, F y) {
  return each([&](int i) { return _mm_sub_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F operator*(F x, F y) {
  return each([&](int i) { return _mm_mul_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F operator/(F x, F y) {
  return each([&](int i) { return _mm_div_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F sqrt(F x) {
  return each([&](int i) { return _mm_sqrt_ps(x.q[i]); });
}
// Exact fused multiply-add of two lanes: the product of two fp32 is exact in fp64, the sum is rounded to odd
// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008), so the final rounding to fp32 is right.
CAKE_INLINE __m128d fma_round_to_odd(__m128d a, __m128d b, __m128d c) {
  const __m128d p = _mm_mul_pd(a, b);
  const __m128d s = _mm_add_pd(p, c);
  const __m128d t = _mm_sub_pd(s, p);
  const __m128d err = _mm_add_pd(_mm_sub_pd(p, _mm_sub_pd(s, t)), _mm_sub_pd(c, t));
  const __m128d nil = _mm_setzero_pd();
  const __m128d inexact = _mm_or_pd(_mm_cmplt_pd(err, nil), _mm_cmpgt_pd(err, nil));
  const __m128i sum_bits = _mm_castpd_si128(s);
  const __m128i one = _mm_set1_epi64x(1);
  const __m128i even = _mm_sub_epi64(_mm_and_si128(sum_bits, one), one);  // all ones where the last bit is 0
  const __m128i differ = _mm_srli_epi64(_mm_xor_si128(sum_bits, _mm_castpd_si128(err)), 63);
  const __m128i step = _mm_sub_epi64(one, _mm_add_epi64(differ, differ));  // +1 away from zero, -1 towards it
  return _mm_castsi128_pd(_mm_add_epi64(sum_bits, _mm_and_si128(_mm_and_si128(step, even), _mm_castpd_si128(inexact))));
}
CAKE_INLINE __m128 fma4(__m128 x, __m128 y, __m128 z) {
  const __m128d lo = fma_round_to_odd(_mm_cvtps_pd(x), _mm_cvtps_pd(y), _mm_cvtps_pd(z));
  const __m128d hi = fma_round_to_odd(_mm_cvtps_pd(_mm_movehl_ps(x, x)), _mm_cvtps_pd(_mm_movehl_ps(y, y)),
                                      _mm_cvtps_pd(_mm_movehl_ps(z, z)));
  return _mm_movelh_ps(_mm_cvtpd_ps(lo), _mm_cvtpd_ps(hi));
}
CAKE_INLINE F fma(F x, F y, F z) {
  return each([&](int i) { return fma4(x.q[i], y.q[i], z.q[i]); });
}
CAKE_INLINE F min(F x, F y) {
  return each([&](int i) { return _mm_min_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F max(F x, F y) {
  return each([&](int i) { return _mm_max_ps(x.q[i], y.q[i]); });
}
CAKE_INLINE F select_gt(F p, F q, F x, F y) {
  return each([&](int i) {
    const __m128 m = _mm_cmpgt_ps(p.q[i], q.q[i]);
    return _mm_or_ps(_mm_and_ps(m, x.q[i]), _mm_andnot_ps(m, y.q[i]));
  });
}
template <int kLane>
CAKE_INLINE F insert_lane(F w, F k) {
  alignas(16) std::uint32_t lane[4] = {};
  lane[kLane & 3] = ~0u;
  const __m128 m = _mm_castsi128_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(lane)));
  w.q[kLane / 4] = _mm_or_ps(_mm_and_ps(m, k.q[kLane / 4]), _mm_andnot_ps(m, w.q[kLane / 4]));
  return w;
}
CAKE_INLINE F bits_and(F x, std::uint32_t mask) {
  const __m128 m = _mm_castsi128_ps(_mm_set1_epi32(static_cast<int>(mask)));
  return each([&](int i) { return _mm_and_ps(x.q[i], m); });
}
CAKE_INLINE F bits_or(F x, F y) {
  return each([&](int i) { return _mm_or_ps(x.q[i], y.q[i]); });
}
template <int kShift>
CAKE_INLINE F bits_add_shifted(F x, F y) {
  return each([&](int i) {
    return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x.q[i]), _mm_slli_epi32(_mm_castps_si128(y.q[i]), kShift)));
  });
}
CAKE_INLINE F exponent(F x, int bias) {
  return each([&](int i) {
    return _mm_cvtepi32_ps(_mm_sub_epi32(_mm_srli_epi32(_mm_castps_si128(x.q[i]), 23), _mm_set1_epi32(bias)));
  });
}
CAKE_INLINE float reduce_add(F x) {
  __m128 y = _mm_add_ps(_mm_add_ps(x.q[0], x.q[2]), _mm_add_ps(x.q[1], x.q[3]));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  y = _mm_add_ss(y, _mm_shuffle_ps(y, y, 1));
  return _mm_cvtss_f32(y);
}

#else
#error "unknown CAKE_ISA level"
#endif

CAKE_INLINE F neg(F a) { return zero() - a; }
CAKE_INLINE F abs(F a) { return bits_and(a, 0x7fffffffu); }

/// Transposes a 16 x 16 tile: dst[c * dst_stride + r] = src[r * src_stride + c]. The tiles do not overlap.
CAKE_INLINE void transpose16(const float* src, std::int64_t src_stride, float* dst, std::int64_t dst_stride) {
#if defined(CAKE_ISA_base)
  for (int r = 0; r < kLanes; r += 4) {
    for (int c = 0; c < kLanes; c += 4) {
      const float* s = src + r * src_stride + c;
      float* d = dst + c * dst_stride + r;
      __m128 x0 = _mm_loadu_ps(s), x1 = _mm_loadu_ps(s + src_stride);
      __m128 x2 = _mm_loadu_ps(s + 2 * src_stride), x3 = _mm_loadu_ps(s + 3 * src_stride);
      _MM_TRANSPOSE4_PS(x0, x1, x2, x3);
      _mm_storeu_ps(d, x0);
      _mm_storeu_ps(d + dst_stride, x1);
      _mm_storeu_ps(d + 2 * dst_stride, x2);
      _mm_storeu_ps(d + 3 * dst_stride, x3);
    }
  }
#else
  for (int r = 0; r < kLanes; r += 8) {
    for (int c = 0; c < kLanes; c += 8) {
      const float* s = src + r * src_stride + c;
      float* d = dst + c * dst_stride + r;
      // Rows i and i + 4 share a register, so that only in-lane shuffles remain.
      const auto pair = [&](int i, int col) {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(s + i * src_stride + col)),
                                    _mm_loadu_ps(s + (i + 4) * src_stride + col), 1);
      };
      for (int col = 0; col < 8; col += 4) {
        const __m256 x0 = pair(0, col), x1 = pair(1, col), x2 = pair(2, col), x3 = pair(3, col);
        const __m256 t0 = _mm256_unpacklo_ps(x0, x1), t1 = _mm256_unpackhi_ps(x0, x1);
        const __m256 t2 = _mm256_unpacklo_ps(x2, x3), t3 = _mm256_unpackhi_ps(x2, x3);
        _mm256_storeu_ps(d + (col + 0) * dst_stride, _mm256_shuffle_ps(t0, t2, 0x44));
        _mm256_storeu_ps(d + (col + 1) * dst_stride, _mm256_shuffle_ps(t0, t2, 0xee));
        _mm256_storeu_ps(d + (col + 2) * dst_stride, _mm256_shuffle_ps(t1, t3, 0x44));
        _mm256_storeu_ps(d + (col + 3) * dst_stride, _mm256_shuffle_ps(t1, t3, 0xee));
      }
    }
  }
#endif
}

}  // namespace cake::CAKE_ISA_NAMESPACE
