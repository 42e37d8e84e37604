// How the CPU implementation lays out its saved set and its workspace. Each carve_* runs over an Arena: with memory it
// hands out blocks, without it counts, so a byte query and the call it is for cannot disagree.
#pragma once

#include "core/arena.h"
#include "ops/kda/cpu/kernels.h"
#include "ops/kda/documents.h"
#include "ops/kda/problem.h"

namespace cake::kda {

/// What a forward keeps (`light`). Per head: chunk products, the states at inner segment borders, transitions.
struct SavedMemory {
  float *pairs = nullptr, *borders = nullptr, *transitions = nullptr;
};

/// Sizes the layouts depend on.
struct Extents {
  std::int64_t B = 0, S = 0, H = 0, HV = 0, Kp = 0, Vp = 0;
  Totals totals;
  std::int64_t state_floats() const { return Kp * Vp; }
  std::int64_t transition_floats() const { return Kp * Kp; }
};

SavedMemory carve_saved(Arena& arena, const Extents& extents);
/// Scratch of every worker, as a table of `workers` entries (nullptr while counting).
Scratch* carve_workers(Arena& arena, const Extents& extents, int workers, bool backward);

/// Tables of the documents, in every workspace.
struct Tables {
  Document* documents = nullptr;
  SegmentId* segments = nullptr;
};
Tables carve_tables(Arena& arena, const Extents& extents);

/// Bytes of a saved set.
std::size_t saved_bytes(const Extents& extents);
/// Bytes of a workspace for `workers` workers. `saving`: borders and transitions lie in the saved set.
std::size_t forward_bytes(const Extents& extents, bool saving, int workers);
/// `recompute`: no saved set is given. `params`: dA_log or ddt_bias is wanted.
std::size_t backward_bytes(const Extents& extents, bool recompute, bool params, int workers);
/// Workers to use, at most `threads`, such that bytes_for(workers) <= bytes; at least 1.
template <class BytesFor>
int fitting_workers(std::size_t bytes, int threads, BytesFor bytes_for) {
  while (threads > 1 && bytes_for(threads) > bytes) --threads;
  return threads;
}

}  // namespace cake::kda
