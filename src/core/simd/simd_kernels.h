// Array forms of the SIMD vocabulary, one table per instruction-set level: what code outside the per-level namespaces
// (the dense GEMM, the trainer, tests, benchmarks) calls.
#pragma once

#include <cstdint>

#include "cake/core/cpu_isa.h"
#include "cake/core/export.h"

namespace cake {

/// How a dense operand lies in memory.
struct DenseOperand {
  const float* data;
  std::int64_t row_stride;  ///< floats from (r, c) to (r + 1, c)
  std::int64_t col_stride;  ///< floats from (r, c) to (r, c + 1); one of the two strides is 1
};

/// Functions over arrays of n floats (any n); in and out may be the same array.
struct SimdKernels {
  void (*exp)(const float* x, float* y, std::int64_t n);
  void (*log)(const float* x, float* y, std::int64_t n);
  void (*log1p)(const float* x, float* y, std::int64_t n);
  void (*sigmoid)(const float* x, float* y, std::int64_t n);
  void (*softplus)(const float* x, float* y, std::int64_t n);
  void (*rsqrt)(const float* x, float* y, std::int64_t n);
  /// y = a * b + c, one rounding.
  void (*fma)(const float* a, const float* b, const float* c, float* y, std::int64_t n);
  /// Sum in lanes (lane l adds x[l], x[l + 16], ... ascending), then the fixed tree over the lanes.
  float (*sum)(const float* x, std::int64_t n);
  /// Sum of x * y in the same order, fused.
  float (*dot)(const float* x, const float* y, std::int64_t n);
  void (*bf16_to_float)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*float_to_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*fp16_to_float)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*float_to_fp16)(const float* x, std::uint16_t* y, std::int64_t n);
  /// dst = transpose of a 16 x 16 tile.
  void (*transpose16)(const float* src, std::int64_t src_stride, float* dst, std::int64_t dst_stride);
  /// One block of the dense GEMM (core/gemm.h): C[rows, cols] (= or +=) A[rows, depth] B[depth, cols]. `pack` holds
  /// kDensePackFloats floats. rows <= kDenseRows, cols <= kDenseCols; any depth.
  void (*dense_block)(int rows, int cols, std::int64_t depth, DenseOperand a, DenseOperand b, float* c,
                      std::int64_t c_stride, bool accumulate, float* pack);
  /// Panel GEMM 64 x 128 x 128, `repeats` times (benchmark yardstick). a, b, c: panels.
  void (*panel_gemm_64x128x128)(const float* a, const float* b, float* c, int repeats);
  /// A register-resident loop of fused multiply-adds; returns the floating-point operations done.
  double (*fma_loop)(std::int64_t iterations);
};

/// Block sizes of the dense GEMM: constants, so that they never follow the machine.
inline constexpr int kDenseRows = 128;
inline constexpr int kDenseCols = 128;
inline constexpr int kDenseDepth = 256;
inline constexpr std::int64_t kDensePackFloats =
    std::int64_t{kDenseDepth} * (kDenseRows + kDenseCols) + std::int64_t{kDenseRows} * kDenseCols;

/// The table of one level. Throws NotSupported if this machine lacks it.
CAKE_API const SimdKernels& simd_kernels(CpuIsa isa);
/// The table of current_cpu_isa().
CAKE_API const SimdKernels& simd_kernels();

}  // namespace cake
