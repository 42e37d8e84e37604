// The array forms of one instruction-set level (see simd_kernels.h); compiled once per level.
#include "core/simd/simd_kernels.h"

#include "core/simd/convert.h"
#include "core/simd/math.h"
#include "core/simd/panel_gemm.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

// Calls op on groups of 16, the last one padded with zeros.
template <class In, class Out, class Op>
CAKE_INLINE void map(const In* x, Out* y, std::int64_t n, Op op) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) op(x + i, y + i);
  if (i < n) {
    In in[kLanes] = {};
    Out out[kLanes];
    for (std::int64_t l = 0; l < n - i; ++l) in[l] = x[i + l];
    op(in, out);
    for (std::int64_t l = 0; l < n - i; ++l) y[i + l] = out[l];
  }
}

template <F (*kFunction)(F)>
void map_function(const float* x, float* y, std::int64_t n) {
  map(x, y, n, [](const float* in, float* out) { store(out, kFunction(load(in))); });
}

void fma_array(const float* a, const float* b, const float* c, float* y, std::int64_t n) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, fma(load(a + i), load(b + i), load(c + i)));
  for (; i < n; ++i) {
    float out[kLanes];
    store(out, fma(set1(a[i]), set1(b[i]), set1(c[i])));
    y[i] = out[0];
  }
}

CAKE_INLINE F load_part(const float* x, std::int64_t n) {
  float t[kLanes] = {};
  for (std::int64_t l = 0; l < n; ++l) t[l] = x[l];
  return load(t);
}

float sum_array(const float* x, std::int64_t n) {
  F acc = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) acc = acc + load(x + i);
  if (i < n) acc = acc + load_part(x + i, n - i);
  return reduce_add(acc);
}

float dot_array(const float* x, const float* y, std::int64_t n) {
  F acc = zero();
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) acc = fma(load(x + i), load(y + i), acc);
  if (i < n) acc = fma(load_part(x + i, n - i), load_part(y + i, n - i), acc);
  return reduce_add(acc);
}

void bf16_to_float_array(const std::uint16_t* x, float* y, std::int64_t n) {
  map(x, y, n, [](const std::uint16_t* in, float* out) { store(out, load_bf16(in)); });
}
void float_to_bf16_array(const float* x, std::uint16_t* y, std::int64_t n) {
  map(x, y, n, [](const float* in, std::uint16_t* out) { store_bf16(out, load(in)); });
}
void fp16_to_float_array(const std::uint16_t* x, float* y, std::int64_t n) {
  map(x, y, n, [](const std::uint16_t* in, float* out) { store(out, load_fp16(in)); });
}
void float_to_fp16_array(const float* x, std::uint16_t* y, std::int64_t n) {
  map(x, y, n, [](const float* in, std::uint16_t* out) { store_fp16(out, load(in)); });
}

void transpose16_array(const float* src, std::int64_t src_stride, float* dst, std::int64_t dst_stride) {
  transpose16(src, src_stride, dst, dst_stride);
}

/// Copies rows x cols of a matrix whose columns are adjacent into panels; the padding becomes zero.
void pack_rows(int rows, int cols, const float* src, std::int64_t row_stride, float* dst, int dst_rows) {
  for (int c = 0; c < cols; c += kLanes) {
    float* panel = dst + static_cast<std::int64_t>(c / kLanes) * dst_rows * kLanes;
    const int width = cols - c < kLanes ? cols - c : kLanes;
    for (int r = 0; r < rows; ++r) {
      const float* s = src + r * row_stride + c;
      store(panel + r * kLanes, width == kLanes ? load(s) : load_part(s, width));
    }
    for (int r = rows; r < dst_rows; ++r) store(panel + r * kLanes, zero());
  }
}

/// The same for a matrix whose rows are adjacent: element (r, c) at src[c * col_stride + r].
void pack_cols(int rows, int cols, const float* src, std::int64_t col_stride, float* dst, int dst_rows) {
  for (int c = 0; c < cols; c += kLanes) {
    float* panel = dst + static_cast<std::int64_t>(c / kLanes) * dst_rows * kLanes;
    for (int r = 0; r < dst_rows; r += kLanes) {
      if (c + kLanes <= cols && r + kLanes <= rows) {
        transpose16(src + c * col_stride + r, col_stride, panel + r * kLanes, kLanes);
        continue;
      }
      for (int i = 0; i < kLanes; ++i) {
        for (int l = 0; l < kLanes; ++l) {
          const bool inside = r + i < rows && c + l < cols;
          panel[(r + i) * kLanes + l] = inside ? src[(c + l) * col_stride + r + i] : 0.0f;
        }
      }
    }
  }
}

int round_up16(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

void dense_block(int rows, int cols, std::int64_t depth, DenseOperand a, DenseOperand b, float* c,
                 std::int64_t c_stride, bool accumulate, float* pack) {
  float* pa = pack;
  float* pb = pa + kDenseDepth * kDenseRows;
  float* pc = pb + kDenseDepth * kDenseCols;
  const int rows16 = round_up16(rows), cols16 = round_up16(cols);
  const Panels cp{pc, std::int64_t{rows16} * kLanes};
  if (accumulate) pack_rows(rows, cols, c, c_stride, pc, rows16);
  for (std::int64_t k = 0; k < depth || k == 0; k += kDenseDepth) {
    const int part = static_cast<int>(depth - k < kDenseDepth ? depth - k : kDenseDepth);
    const int part16 = round_up16(part);
    const float* bs = b.data + k * b.row_stride;
    const bool b_rows = b.col_stride == 1;
    if (b_rows) {
      pack_rows(part, cols, bs, b.row_stride, pb, part16);
    } else {
      pack_cols(part, cols, bs, b.col_stride, pb, part16);
    }
    const Panels bp{pb, std::int64_t{part16} * kLanes};
    const float* as = a.data + k * a.col_stride;
    const bool first = k == 0 && !accumulate;
    if (a.col_stride == 1) {
      pack_rows(rows, part, as, a.row_stride, pa, rows16);
      const Panels ap{pa, std::int64_t{rows16} * kLanes};
      if (first) {
        gemm<Op::kPlain, Init::kZero>(rows, cols16 / kLanes, part16, ap, bp, cp);
      } else {
        gemm<Op::kPlain, Init::kAdd>(rows, cols16 / kLanes, part16, ap, bp, cp);
      }
    } else {
      pack_rows(part, rows, as, a.col_stride, pa, part16);
      const Panels ap{pa, std::int64_t{part16} * kLanes};
      if (first) {
        gemm<Op::kTransposed, Init::kZero>(rows, cols16 / kLanes, part, ap, bp, cp);
      } else {
        gemm<Op::kTransposed, Init::kAdd>(rows, cols16 / kLanes, part, ap, bp, cp);
      }
    }
  }
  for (int j = 0; j < cols; j += kLanes) {
    const int width = cols - j < kLanes ? cols - j : kLanes;
    for (int i = 0; i < rows; ++i) {
      const float* s = pc + (j / kLanes) * cp.stride + i * kLanes;
      float* d = c + i * c_stride + j;
      if (width == kLanes) {
        store(d, load(s));
      } else {
        for (int l = 0; l < width; ++l) d[l] = s[l];
      }
    }
  }
}

void panel_gemm_64x128x128(const float* a, const float* b, float* c, int repeats) {
  const Panels ap{const_cast<float*>(a), 64 * kLanes}, bp{const_cast<float*>(b), 128 * kLanes}, cp{c, 64 * kLanes};
  for (int i = 0; i < repeats; ++i) gemm<Op::kPlain, Init::kZero>(64, 8, 128, ap, bp, cp);
}

double fma_loop(std::int64_t iterations) {
  constexpr int kChains = sizeof(F) == 64 && alignof(F) == 64 ? 12 : 6;  // enough to hide the latency on every level
  // From memory that the compiler does not know: chains (or halves of one) that it knows to be equal become one.
  float seeds[kChains * kLanes];
  for (float& x : seeds) x = 1.0f;
  asm volatile("" : : "r"(seeds) : "memory");
  F acc[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) acc[i] = load(seeds + i * kLanes);
  const F m = set1(0.99f * seeds[0]), c = set1(0.01f * seeds[0]);
  for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) acc[i] = fma(acc[i], m, c);
  }
  F total = acc[0];
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) total = total + acc[i];
  float sink = reduce_add(total);
  asm volatile("" : "+x"(sink));
  return 2.0 * kLanes * kChains * static_cast<double>(iterations);
}

}  // namespace

extern const SimdKernels kSimdKernels;
const SimdKernels kSimdKernels = {
    map_function<exp>,
    map_function<log>,
    map_function<log1p>,
    map_function<sigmoid>,
    map_function<softplus>,
    map_function<rsqrt>,
    fma_array,
    sum_array,
    dot_array,
    bf16_to_float_array,
    float_to_bf16_array,
    fp16_to_float_array,
    float_to_fp16_array,
    transpose16_array,
    dense_block,
    panel_gemm_64x128x128,
    fma_loop,
};

}  // namespace cake::CAKE_ISA_NAMESPACE
