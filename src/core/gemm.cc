#include "core/gemm.h"

#include <algorithm>
#include <memory>
#include <string>

#include "cake/core/error.h"
#include "core/parallel.h"

namespace cake {
namespace isa_base {
extern const SimdKernels kSimdKernels;
}
namespace isa_v3 {
extern const SimdKernels kSimdKernels;
}
namespace isa_v4 {
extern const SimdKernels kSimdKernels;
}

const SimdKernels& simd_kernels(CpuIsa isa) {
  if (!cpu_isa_supported(isa))
    throw NotSupported(std::string("instruction-set level ") + cpu_isa_name(isa) + ": not on this CPU");
  switch (isa) {
    case CpuIsa::kBase: return isa_base::kSimdKernels;
    case CpuIsa::kV3: return isa_v3::kSimdKernels;
    case CpuIsa::kV4: return isa_v4::kSimdKernels;
  }
  return isa_base::kSimdKernels;
}

const SimdKernels& simd_kernels() { return simd_kernels(current_cpu_isa()); }

void dense_gemm(std::int64_t m, std::int64_t n, std::int64_t k, DenseOperand a, DenseOperand b, float* c,
                std::int64_t c_stride, bool accumulate) {
  if (m <= 0 || n <= 0) return;
  const SimdKernels& kernels = simd_kernels();
  const std::int64_t row_blocks = (m + kDenseRows - 1) / kDenseRows;
  const std::int64_t col_blocks = (n + kDenseCols - 1) / kDenseCols;
  parallel_for(row_blocks * col_blocks, 0, [&](std::int64_t task, int) {
    // The packing buffer belongs to the thread: its content never outlives a block.
    thread_local const std::unique_ptr<float[]> pack(new float[kDensePackFloats]);
    const std::int64_t i = task / col_blocks * kDenseRows, j = task % col_blocks * kDenseCols;
    const int rows = static_cast<int>(std::min<std::int64_t>(kDenseRows, m - i));
    const int cols = static_cast<int>(std::min<std::int64_t>(kDenseCols, n - j));
    const DenseOperand at{a.data + i * a.row_stride, a.row_stride, a.col_stride};
    const DenseOperand bt{b.data + j * b.col_stride, b.row_stride, b.col_stride};
    kernels.dense_block(rows, cols, k, at, bt, c + i * c_stride + j, c_stride, accumulate, pack.get());
  });
}

}  // namespace cake
