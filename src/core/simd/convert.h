// Sixteen lanes to and from bf16 and fp16, with the rounding of core/dtype.h.
#pragma once

#include "cake/core/dtype.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {

/// Sixteen bf16 numbers as fp32.
CAKE_INLINE F load_bf16(const std::uint16_t* p) {
#if defined(CAKE_ISA_base)
  const __m128i nil = _mm_setzero_si128();
  const __m128i lo = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i hi = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8));
  return {{_mm_castsi128_ps(_mm_unpacklo_epi16(nil, lo)), _mm_castsi128_ps(_mm_unpackhi_epi16(nil, lo)),
           _mm_castsi128_ps(_mm_unpacklo_epi16(nil, hi)), _mm_castsi128_ps(_mm_unpackhi_epi16(nil, hi))}};
#else
  const auto half = [](const std::uint16_t* q) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  };
  return from_halves(half(p), half(p + 8));
#endif
}

/// Rounds sixteen fp32 numbers to bf16 (nearest even) and stores them.
CAKE_INLINE void store_bf16(std::uint16_t* p, F x) {
#if defined(CAKE_ISA_base)
  float t[kLanes];
  store(t, x);
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_bf16(t[i]);
#else
  const auto half = [](__m256 v) {
    const __m256i u = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    const __m256i magnitude = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    const __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half(low_half(x)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), half(high_half(x)));
#endif
}

/// Sixteen fp16 numbers as fp32.
CAKE_INLINE F load_fp16(const std::uint16_t* p) {
#if defined(CAKE_ISA_base)
  float t[kLanes];
  for (int i = 0; i < kLanes; ++i) t[i] = fp16_to_float(p[i]);
  return load(t);
#else
  return from_halves(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8))));
#endif
}

/// Rounds sixteen fp32 numbers to fp16 (nearest even) and stores them.
CAKE_INLINE void store_fp16(std::uint16_t* p, F x) {
#if defined(CAKE_ISA_base)
  float t[kLanes];
  store(t, x);
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_fp16(t[i]);
#else
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(low_half(x), kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(high_half(x), kNearest));
#endif
}

}  // namespace cake::CAKE_ISA_NAMESPACE
