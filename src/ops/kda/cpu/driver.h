// KDA on the CPU: which task runs which segment, and in what order the segments of a document meet.
//
// Forward: (1) segment 0 of every document runs from its initial state, segments 1 .. n-2 are summarised from zero as
// (M, b); (2) per document B_{j+1} = M_j B_j + b_j; (3) segments 1 .. n-1 run from their B_j. Backward mirrors it from
// the right. A task is one (segment, value head); its result depends on nothing else.
#pragma once

#include "ops/kda/cpu/memory.h"
#include "ops/kda/cpu/order.h"

namespace cake::kda {

#ifdef CAKE_PLANT_ORDER_FAULT
using DetOrder = AnyOrder;  // the fault `cake audit` must find
#else
using DetOrder = FixedOrder;
#endif

/// Workspace of a forward, less the workers' scratch.
struct ForwardMemory {
  Tables tables;
  float *borders = nullptr, *transitions = nullptr;  ///< only when nothing is saved
};
ForwardMemory carve_forward(Arena& arena, const Extents& extents, bool saving);

/// Workspace of a backward, less the workers' scratch.
struct BackwardMemory {
  Tables tables;
  SavedMemory saved;                                 ///< only for a recompute
  float* grad_borders = nullptr;                     ///< gradients of the states at inner borders
  float *partial_q = nullptr, *partial_k = nullptr;  ///< grouped heads: [B * S, HV, Kp] each
  float* sums = nullptr;                             ///< [HV][2][Kp]
  DetOrder order;
  void take(Arena& arena, const Extents& extents, bool recompute, bool params);
};

/// One checked call.
struct Call {
  const Problem* problem;
  const Operands* operands;
  const Settings* settings;
  Extents extents;
  int workers = 1;
};

/// Runs the forward. `saved`: memory of the saved set, or nullptr.
void forward_cpu(const Call& call, const ForwardResults& results, Arena& workspace, const SavedMemory* saved);
/// Runs the backward. `saved`: of the forward, or nullptr to recompute it in the workspace.
void backward_cpu(const Call& call, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                  const BackwardResults& results, bool params, Arena& workspace, const SavedMemory* saved);

}  // namespace cake::kda
