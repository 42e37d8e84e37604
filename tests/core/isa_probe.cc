// Compiled once per instruction-set level by cake_add_isa_objects.
#include "isa_probe.h"

#include "core/simd/panel_gemm.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

template <F (*kOp)(F, F)>
void binary(const float* a, const float* b, float* y) {
  store(y, kOp(load(a), load(b)));
}
template <F (*kOp)(F)>
void unary(const float* a, float* y) {
  store(y, kOp(load(a)));
}

void mask_bits(const float* a, std::uint32_t mask, float* y) { store(y, bits_and(load(a), mask)); }
void exponents(const float* a, int bias, float* y) { store(y, exponent(load(a), bias)); }
void select(const float* p, const float* q, const float* x, const float* y, float* out) {
  store(out, select_gt(load(p), load(q), load(x), load(y)));
}
float sum(const float* a) { return reduce_add(load(a)); }

template <int kLane>
void insert_from(int lane, const float* w, const float* k, float* y) {
  if (lane == kLane) {
    store(y, insert_lane<kLane>(load(w), load(k)));
  } else if constexpr (kLane + 1 < kLanes) {
    insert_from<kLane + 1>(lane, w, k, y);
  }
}

template <Op kOp, Init kInit>
void gemm_of(int rows, int panels, int depth, Panels a, Panels b, Panels c, const float* factors) {
  gemm<kOp, kInit>(rows, panels, depth, a, b, c, factors);
}

void panel_gemm(int op, int init, int rows, int panels, int depth, const float* a, std::int64_t a_stride,
                const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride, const float* factors) {
  using Function = void (*)(int, int, int, Panels, Panels, Panels, const float*);
  static constexpr Function kTable[2][4] = {
      {gemm_of<Op::kPlain, Init::kZero>, gemm_of<Op::kPlain, Init::kAdd>, gemm_of<Op::kPlain, Init::kScaleRows>,
       gemm_of<Op::kPlain, Init::kScaleCols>},
      {gemm_of<Op::kTransposed, Init::kZero>, gemm_of<Op::kTransposed, Init::kAdd>,
       gemm_of<Op::kTransposed, Init::kScaleRows>, gemm_of<Op::kTransposed, Init::kScaleCols>}};
  kTable[op][init](rows, panels, depth, {const_cast<float*>(a), a_stride}, {const_cast<float*>(b), b_stride},
                   {c, c_stride}, factors);
}

void transpose(int rows, int panels, const float* src, std::int64_t src_stride, float* dst, std::int64_t dst_stride) {
  transpose_panels(rows, panels, {const_cast<float*>(src), src_stride}, {dst, dst_stride});
}

}  // namespace

extern const test::IsaProbe kIsaProbe;
const test::IsaProbe kIsaProbe = {
    binary<(operator+)>, binary<(operator-)>,
    binary<(operator*)>, binary<(operator/)>,
    binary<min>,         binary<max>,
    binary<bits_or>,     binary<bits_add_shifted<23>>,
    unary<sqrt>,         unary<neg>,
    unary<abs>,          mask_bits,
    exponents,           select,
    insert_from<0>,      sum,
    panel_gemm,          transpose,
};

}  // namespace cake::CAKE_ISA_NAMESPACE
