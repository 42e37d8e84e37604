// Fixed-order products of small matrices in 16-column panels.
//
// Panel layout of an R x C matrix (C padded to a multiple of 16): element (r, c) at (c / 16) * stride + r * 16 + c %
// 16, with `stride` floats between panels. C(i, p) = init + sum over k of A(i, k) B(k, p): one accumulator per element,
// k ascending, fused multiply-add. So the tile shape below never changes the bits and is chosen per level. Tests:
// tests/core/gemm_test.cc; benchmark: cake bench (the rate at 64x128x128 is its yardstick).
#pragma once

#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {

#if defined(CAKE_ISA_v4)
inline constexpr int kTileRows = 8, kTilePanels = 2;
#elif defined(CAKE_ISA_v3)
inline constexpr int kTileRows = 6, kTilePanels = 1;
#else
inline constexpr int kTileRows = 2, kTilePanels = 1;
#endif

/// How an accumulator starts: from zero, from C, from C times a factor per row, from C times a factor per column.
enum class Init { kZero, kAdd, kScaleRows, kScaleCols };
/// How A is read: as stored, or transposed (A(i, k) is the stored element (k, i)).
enum class Op { kPlain, kTransposed };

/// A matrix in panels.
struct Panels {
  float* data;
  std::int64_t stride;  ///< floats between panels
  Panels at_panel(std::int64_t p) const { return {data + p * stride, stride}; }
  Panels at_row(std::int64_t r) const { return {data + r * kLanes, stride}; }
};

template <int kRows, int kPanels, Op kOp, Init kInit>
CAKE_INLINE void gemm_tile(int depth, const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                           float* c, std::int64_t c_stride, const float* factors) {
  F acc[kRows][kPanels];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kInit == Init::kZero) {
        acc[i][p] = zero();
      } else if constexpr (kInit == Init::kAdd) {
        acc[i][p] = load(c + p * c_stride + i * kLanes);
      } else if constexpr (kInit == Init::kScaleRows) {
        acc[i][p] = load(c + p * c_stride + i * kLanes) * set1(factors[i]);
      } else {
        acc[i][p] = load(c + p * c_stride + i * kLanes) * load(factors + p * kLanes);
      }
    }
  }
  const auto step = [&](const float* arow, std::int64_t a_next, const float* brow) __attribute__((always_inline)) {
    F bv[kPanels];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) bv[p] = load(brow + p * b_stride);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const F av = set1(arow[i * a_next]);
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) acc[i][p] = fma(av, bv[p], acc[i][p]);
    }
  };
  if constexpr (kOp == Op::kPlain) {
    for (int k0 = 0; k0 < depth; k0 += kLanes, a += a_stride, b += kLanes * kLanes) {
#pragma GCC unroll 4
      for (int k = 0; k < kLanes; ++k) step(a + k, kLanes, b + k * kLanes);
    }
  } else {
#pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) step(a + k * kLanes, 1, b + k * kLanes);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) store(c + p * c_stride + i * kLanes, acc[i][p]);
  }
}

/// One column of tiles. Rows are taken in groups that never cross a 16-row border (a transposed A changes panel there).
template <int kPanels, Op kOp, Init kInit>
__attribute__((noinline)) static void gemm_column(int rows, int depth, const float* a, std::int64_t a_stride,
                                                  const float* b, std::int64_t b_stride, float* c,
                                                  std::int64_t c_stride, const float* factors) {
  const auto tile = [&]<int kRows>(int i) __attribute__((always_inline)) {
    const float* at = kOp == Op::kPlain ? a + i * kLanes : a + (i / kLanes) * a_stride + i % kLanes;
    const float* f = kInit == Init::kScaleRows ? factors + i : factors;
    gemm_tile<kRows, kPanels, kOp, kInit>(depth, at, a_stride, b, b_stride, c + i * kLanes, c_stride, f);
  };
  // A plain A may be tiled over all rows; a transposed one starts again at each 16.
  const int border = kOp == Op::kPlain ? rows : kLanes;
  for (int base = 0; base < rows; base += border) {
    const int end = base + border < rows ? base + border : rows;
    int i = base;
    for (; i + kTileRows <= end; i += kTileRows) tile.template operator()<kTileRows>(i);
    if constexpr (kTileRows > 4) {
      for (; i + 4 <= end; i += 4) tile.template operator()<4>(i);
    }
    if constexpr (kTileRows > 2) {
      for (; i + 2 <= end; i += 2) tile.template operator()<2>(i);
    }
    for (; i < end; ++i) tile.template operator()<1>(i);
  }
}

/// C[rows, 16 panels] = init + op(A)[rows, depth] B[depth, 16 panels].
/// depth is a multiple of 16 for a plain A and any number for a transposed one. `factors` has one number per row
/// (kScaleRows) or per column (kScaleCols).
template <Op kOp, Init kInit>
CAKE_INLINE void gemm(int rows, int panels, int depth, Panels a, Panels b, Panels c, const float* factors = nullptr) {
  int p = 0;
  const auto column_factors = [&](int at) { return kInit == Init::kScaleCols ? factors + at * kLanes : factors; };
  for (; p + kTilePanels <= panels; p += kTilePanels) {
    gemm_column<kTilePanels, kOp, kInit>(rows, depth, a.data, a.stride, b.data + p * b.stride, b.stride,
                                         c.data + p * c.stride, c.stride, column_factors(p));
  }
  if constexpr (kTilePanels > 1) {
    for (; p < panels; ++p) {
      gemm_column<1, kOp, kInit>(rows, depth, a.data, a.stride, b.data + p * b.stride, b.stride, c.data + p * c.stride,
                                 c.stride, column_factors(p));
    }
  }
}

/// Transposes rows x (16 panels) into panels of the transpose: dst(c, r) = src(r, c). rows is a multiple of 16.
CAKE_INLINE void transpose_panels(int rows, int panels, Panels src, Panels dst) {
  for (int r = 0; r < rows; r += kLanes) {
    for (int p = 0; p < panels; ++p) {
      transpose16(src.data + p * src.stride + r * kLanes, kLanes,
                  dst.data + (r / kLanes) * dst.stride + p * kLanes * kLanes, kLanes);
    }
  }
}

}  // namespace cake::CAKE_ISA_NAMESPACE
