// The SIMD vocabulary of one instruction-set level behind function pointers: the pieces that core/simd/simd_kernels.h
// does not export. Arrays are of 16 floats unless said otherwise.
#pragma once

#include <cstdint>

#include "cake/core/cpu_isa.h"

namespace cake::test {

struct IsaProbe {
  void (*add)(const float* a, const float* b, float* y);
  void (*sub)(const float* a, const float* b, float* y);
  void (*mul)(const float* a, const float* b, float* y);
  void (*div)(const float* a, const float* b, float* y);
  void (*min)(const float* a, const float* b, float* y);
  void (*max)(const float* a, const float* b, float* y);
  void (*bits_or)(const float* a, const float* b, float* y);
  void (*add_shifted_23)(const float* a, const float* b, float* y);
  void (*sqrt)(const float* a, float* y);
  void (*neg)(const float* a, float* y);
  void (*abs)(const float* a, float* y);
  void (*bits_and)(const float* a, std::uint32_t mask, float* y);
  void (*exponent)(const float* a, int bias, float* y);
  void (*select_gt)(const float* p, const float* q, const float* x, const float* y, float* out);
  void (*insert_lane)(int lane, const float* w, const float* k, float* y);
  float (*reduce_add)(const float* a);
  /// C = init + op(A) B in panels; op 0 plain, 1 transposed; init 0 zero, 1 add, 2 scale rows, 3 scale columns.
  void (*panel_gemm)(int op, int init, int rows, int panels, int depth, const float* a, std::int64_t a_stride,
                     const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride, const float* factors);
  void (*transpose_panels)(int rows, int panels, const float* src, std::int64_t src_stride, float* dst,
                           std::int64_t dst_stride);
};

/// The probe of a level this machine supports.
const IsaProbe& isa_probe(CpuIsa isa);

}  // namespace cake::test
