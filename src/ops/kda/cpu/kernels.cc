// The KDA kernels of one instruction-set level; compiled once per level.
#include "ops/kda/cpu/kernels.h"

#include "ops/kda/cpu/backward.h"
#include "ops/kda/cpu/forward.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

void fold(int Kp, int Vp, const float* transition, const float* state, float* next, bool adjoint) {
  const Panels m{const_cast<float*>(transition), std::int64_t{Kp} * kLanes};
  const Panels x{const_cast<float*>(state), std::int64_t{Kp} * kLanes}, y{next, std::int64_t{Kp} * kLanes};
  if (adjoint) {
    gemm<Op::kTransposed, Init::kAdd>(Kp, Vp / kLanes, Kp, m, x, y);
  } else {
    gemm<Op::kPlain, Init::kAdd>(Kp, Vp / kLanes, Kp, m, x, y);
  }
}

void add(float* sum, const float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += kLanes) store(sum + i, load(sum + i) + load(x + i));
}

float tree_sum(const float* x, std::int64_t n) {
  F acc = zero();
  for (std::int64_t i = 0; i < n; i += kLanes) acc = acc + load(x + i);
  return reduce_add(acc);
}

float gate_factor(float a_log) {
  float y[kLanes];
  store(y, min(exp(set1(a_log)), set1(__FLT_MAX__)));
  return y[0];
}

}  // namespace

extern const kda::Kernels kKdaKernels;
const kda::Kernels kKdaKernels = {
    forward_segment, summarise_segment, summarise_adjoint_segment, backward_segment, fold, finish_grouped_rows, add,
    tree_sum,        gate_factor,
};

}  // namespace cake::CAKE_ISA_NAMESPACE
