#include "ops/kda/cpu/memory.h"

#include "ops/kda/cpu/driver.h"

namespace cake::kda {

SavedMemory carve_saved(Arena& arena, const Extents& x) {
  SavedMemory m;
  m.pairs = arena.take<float>(x.totals.pair_floats * x.HV);
  m.borders = arena.take<float>(x.totals.borders * x.HV * x.state_floats());
  m.transitions = arena.take<float>(x.totals.transitions * x.HV * x.transition_floats());
  return m;
}

Tables carve_tables(Arena& arena, const Extents& x) {
  Tables t;
  t.documents = arena.take<Document>(x.totals.documents);
  t.segments = arena.take<SegmentId>(x.totals.segments);
  return t;
}

namespace {

Scratch carve_scratch(Arena& arena, const Extents& x, bool backward) {
  // A chunk's matrices: columns times the floats of a panel, 16 columns wide.
  constexpr std::int64_t kRows = kPanel / 16, kRows2 = kPanel2 / 16, kBlocks = kChunk / kSubChunk;
  const std::int64_t Kp = x.Kp, Vp = x.Vp;
  // A summary runs on V + K columns.
  const std::int64_t wide = x.totals.transitions > 0 ? Vp + Kp : Vp;
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
  const std::int64_t chunks = (x.totals.longest_segment + kChunk - 1) / kChunk;
  s.e = take(Kp * kRows);
  s.d = take(Kp * kRows);
  s.before = take(kBlocks * Kp);
  s.after = take(kBlocks * Kp);
  s.tape = take(chunks * (Kp * Vp + 2 * Vp * kRows));
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

Scratch* carve_workers(Arena& arena, const Extents& extents, int workers, bool backward) {
  auto* table = arena.take<Scratch>(workers);
  for (int w = 0; w < workers; ++w) {
    const Scratch s = carve_scratch(arena, extents, backward);
    if (table != nullptr) table[w] = s;
  }
  return table;
}

std::size_t saved_bytes(const Extents& extents) {
  Arena count;
  carve_saved(count, extents);
  return count.bytes_needed();
}

std::size_t forward_bytes(const Extents& extents, bool saving, int workers) {
  Arena count;
  carve_forward(count, extents, saving);
  carve_workers(count, extents, workers, false);
  return count.bytes_needed();
}

std::size_t backward_bytes(const Extents& extents, bool recompute, bool params, int workers) {
  Arena count;
  BackwardMemory memory;
  memory.take(count, extents, recompute, params);
  carve_workers(count, extents, workers, true);
  return count.bytes_needed();
}

}  // namespace cake::kda
