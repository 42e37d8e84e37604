// How the CPU implementation lays out its saved set and its workspace. Each carve_* runs over an Arena: with memory it
// hands out blocks, without it counts, so a byte query and the call it is for cannot disagree.
#pragma once

#include "core/arena.h"
#include "ops/kda/cpu/kernels.h"
#include "ops/kda/documents.h"
#include "ops/kda/problem.h"

namespace cake::kda {

/// What a forward keeps. Per head: chunk products, the states at inner segment borders, transitions, and with `tape`
/// the states, u and Vn of the chunks. Laid out document after document, whatever groups the call forms.
struct SavedMemory {
  float *pairs = nullptr, *borders = nullptr, *transitions = nullptr, *tape = nullptr;
};

/// Sizes the layouts depend on.
struct Extents {
  std::int64_t H = 0, HV = 0, Kp = 0, Vp = 0;
  GroupedTotals totals;
  std::int64_t state_floats() const { return Kp * Vp; }
  std::int64_t transition_floats() const { return Kp * Kp; }
};

/// Options that change memory and nothing else.
struct MemoryOptions {
  bool tape = false;             ///< saved set with the chunk states
  std::int64_t tail_passes = 1;  ///< ranges of a segment's chunks whose states live at the same time, one by one
};

/// Over `totals`: of all documents (a saved set) or of the largest group (a recompute in the workspace).
SavedMemory carve_saved(Arena& arena, const Extents& extents, const Totals& totals, bool tape);
/// The part of a saved set that starts after `before`.
SavedMemory advance(const SavedMemory& saved, const Extents& extents, const Totals& before);
/// Scratch of every worker, as a table of `workers` entries (nullptr while counting).
Scratch* carve_workers(Arena& arena, const Extents& extents, const MemoryOptions& options, int workers, bool backward);

/// Tables of a group's documents, in every workspace.
struct Tables {
  Document* documents = nullptr;
  SegmentId* segments = nullptr;
};
Tables carve_tables(Arena& arena, const Extents& extents);

/// Workspace of a forward, less the workers' scratch.
struct ForwardMemory {
  Tables tables;
  SavedMemory kept;  ///< borders and transitions, when nothing is saved
};
ForwardMemory carve_forward(Arena& arena, const Extents& extents, bool saving);

/// Workspace of a backward, less the workers' scratch and what the order of the mode needs.
struct BackwardMemory {
  Tables tables;
  SavedMemory recomputed;                            ///< only for a recompute
  float* grad_borders = nullptr;                     ///< gradients of the states at inner borders
  float *partial_q = nullptr, *partial_k = nullptr;  ///< grouped heads: [rows of the group, HV, Kp] each
  float* sums = nullptr;                             ///< [HV][2][Kp]; only for parameter gradients
};
BackwardMemory carve_backward(Arena& arena, const Extents& extents, bool recompute, bool params);

/// Bytes of a saved set.
std::size_t saved_bytes(const Extents& extents, bool tape);
/// Bytes of a workspace for `workers` workers. `saving`: borders and transitions lie in the saved set.
std::size_t forward_bytes(const Extents& extents, bool saving, int workers);
/// `recompute`: no saved set is given. `params`: dA_log or ddt_bias is wanted; Order: of the mode.
template <class Order>
std::size_t backward_bytes(const Extents& extents, const MemoryOptions& options, bool recompute, bool params,
                           int workers) {
  Arena count;
  carve_backward(count, extents, recompute, params);
  Order order;
  if (params) order.take(count, extents.totals.largest.segments, extents.HV, 2 * extents.Kp);
  carve_workers(count, extents, options, workers, true);
  return count.bytes_needed();
}
/// Workers to use, at most `threads`, such that bytes_for(workers) <= bytes; at least 1.
template <class BytesFor>
int fitting_workers(std::size_t bytes, int threads, BytesFor bytes_for) {
  while (threads > 1 && bytes_for(threads) > bytes) --threads;
  return threads;
}

}  // namespace cake::kda
