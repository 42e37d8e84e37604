// Dense fp32 GEMM with a fixed order: one accumulator per element of C, k ascending, fused multiply-add. The bits are a
// function of the operands alone: neither threads nor block sizes nor the instruction set change them.
#pragma once

#include "core/simd/simd_kernels.h"

namespace cake {

/// C[m, n] (= or +=) A[m, k] B[k, n]; C has adjacent columns and rows `c_stride` floats apart. Runs on the threads of
/// parallel_for (on the caller's alone inside a task). Operands and C do not overlap. m, n, k >= 0.
CAKE_API void dense_gemm(std::int64_t m, std::int64_t n, std::int64_t k, DenseOperand a, DenseOperand b, float* c,
                         std::int64_t c_stride, bool accumulate);

}  // namespace cake
