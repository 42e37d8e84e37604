#include "ops/kda/cpu/memory.h"

namespace cake::kda {

SavedMemory carve_saved(Arena& arena, const Extents& x, const Totals& totals, bool tape) {
  SavedMemory m;
  m.pairs = arena.take<float>(totals.pair_floats * x.HV);
  m.borders = arena.take<float>(totals.borders * x.HV * x.state_floats());
  m.transitions = arena.take<float>(totals.transitions * x.HV * x.transition_floats());
  if (tape) m.tape = arena.take<float>(totals.chunks * x.HV * tape_floats(x.Kp, x.Vp));
  return m;
}

SavedMemory advance(const SavedMemory& saved, const Extents& x, const Totals& before) {
  SavedMemory m = saved;
  m.pairs += before.pair_floats * x.HV;
  m.borders += before.borders * x.HV * x.state_floats();
  m.transitions += before.transitions * x.HV * x.transition_floats();
  if (m.tape != nullptr) m.tape += before.chunks * x.HV * tape_floats(x.Kp, x.Vp);
  return m;
}

Tables carve_tables(Arena& arena, const Extents& x) {
  Tables t;
  t.documents = arena.take<Document>(x.totals.largest.documents);
  t.segments = arena.take<SegmentId>(x.totals.largest.segments);
  return t;
}

ForwardMemory carve_forward(Arena& arena, const Extents& x, bool saving) {
  ForwardMemory m;
  m.tables = carve_tables(arena, x);
  if (!saving) {
    m.kept.borders = arena.take<float>(x.totals.largest.borders * x.HV * x.state_floats());
    m.kept.transitions = arena.take<float>(x.totals.largest.transitions * x.HV * x.transition_floats());
  }
  return m;
}

BackwardMemory carve_backward(Arena& arena, const Extents& x, bool recompute, bool params) {
  BackwardMemory m;
  m.tables = carve_tables(arena, x);
  if (recompute) m.recomputed = carve_saved(arena, x, x.totals.largest, false);
  m.grad_borders = arena.take<float>(x.totals.largest.borders * x.HV * x.state_floats());
  if (x.HV != x.H) {
    m.partial_q = arena.take<float>(x.totals.largest.rows * x.HV * x.Kp);
    m.partial_k = arena.take<float>(x.totals.largest.rows * x.HV * x.Kp);
  }
  if (params) m.sums = arena.take<float>(x.HV * 2 * x.Kp);
  return m;
}

namespace {

Scratch carve_scratch(Arena& arena, const Extents& x, const MemoryOptions& options, bool backward) {
  // A chunk's matrices: columns times the floats of a panel, 16 columns wide.
  constexpr std::int64_t kRows = kPanel / 16, kRows2 = kPanel2 / 16, kBlocks = kChunk / kSubChunk;
  const std::int64_t Kp = x.Kp, Vp = x.Vp;
  // A summary runs on V + K columns.
  const std::int64_t wide = x.totals.largest.transitions > 0 ? Vp + Kp : Vp;
  const auto take = [&](std::int64_t n) { return arena.take<float>(n); };
  Scratch s{};
  s.q = take(Kp * kRows);
  s.k = take(Kp * kRows);
  s.v = take(Vp * kRows);
  s.a = take(Kp * kRows);
  s.beta = take(kChunk);
  s.rstd = take(2 * kChunk);
  s.qke = take(Kp * kRows2);
  s.qkg = take(Kp * kRows2);
  s.kd = take(Kp * kRows);
  s.kg = take(Kp * kRows);
  s.block_decay = take(kBlocks * Kp);
  s.chunk_decay = take(Kp);
  s.kt = take(kBlocks * Kp * kSubChunk);
  s.kdt = take(kBlocks * Kp * kSubChunk);
  s.w = take(Kp * kSubChunk);
  s.pairs = take(kChunk * kRows2);
  s.neg_l = take(kChunk * kRows);
  s.oq = take(wide * kRows2);
  s.vn = take(wide * kRows);
  s.state = take(wide * Kp);
  if (!backward) return s;
  const std::int64_t chunks = (x.totals.largest.longest_segment + kChunk - 1) / kChunk;
  s.e = take(Kp * kRows);
  s.d = take(Kp * kRows);
  s.before = take(kBlocks * Kp);
  s.after = take(kBlocks * Kp);
  if (!options.tape) {
    s.tape_chunks = (chunks + options.tail_passes - 1) / options.tail_passes;
    s.tape = take(s.tape_chunks * tape_floats(Kp, Vp));
    if (s.tape_chunks < chunks) s.range_states = take((chunks + s.tape_chunks - 1) / s.tape_chunks * Kp * Vp);
  }
  s.grad_state = take(Kp * Vp);
  s.state_t = take(Kp * Vp);
  s.grad_state_t = take(Kp * Vp);
  s.vn_t = take(kBlocks * Vp * kSubChunk);
  s.ddo = take(Vp * kRows2);
  s.dr = take(Vp * kRows);
  s.dpl = take(kChunk * kRows2);
  s.inter = take(Kp * kRows2);
  s.inter_col = take(Kp * kRows);
  s.off_row = take(Kp * kRows2);
  s.off_col = take(Kp * kRows);
  s.cross = take(kBlocks * Kp);
  s.gq = take(Kp * kRows);
  s.gk = take(Kp * kRows);
  s.gg = take(Kp * kRows);
  s.chunk_params = take(chunks * 2 * Kp);
  return s;
}

}  // namespace

Scratch* carve_workers(Arena& arena, const Extents& extents, const MemoryOptions& options, int workers, bool backward) {
  auto* table = arena.take<Scratch>(workers);
  for (int w = 0; w < workers; ++w) {
    const Scratch s = carve_scratch(arena, extents, options, backward);
    if (table != nullptr) table[w] = s;
  }
  return table;
}

std::size_t saved_bytes(const Extents& extents, bool tape) {
  Arena count;
  carve_saved(count, extents, extents.totals.sum, tape);
  return count.bytes_needed();
}

std::size_t forward_bytes(const Extents& extents, bool saving, int workers) {
  Arena count;
  carve_forward(count, extents, saving);
  carve_workers(count, extents, {}, workers, false);
  return count.bytes_needed();
}

}  // namespace cake::kda
