// Forward over the chunks of a segment. With S the state at a chunk's start (spec: the fused form):
//   u = V - Kgam S;  R = beta u;  Vn = (I + L)^-1 R;  O = Qg S + Aqk Vn;  S' = diag(gC) S + Kg^T Vn
// No inverse is formed: forward substitution. Fixed order: see chunk.h and panel_gemm.h.
#pragma once

#include "ops/kda/cpu/chunk.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

/// u and Vn for `panels` columns from s.qkg, s.pairs and the state; columns from v_panels on have V = 0 (a summary's
/// transition). With kQueries the rows of Qg S come too, into s.oq.
template <bool kQueries>
static void advance_rows(const Chunk& c, const float* state, bool zero_state, int panels, int v_panels, float* u,
                         float* vn) {
  Scratch& s = *c.s;
  const int rows16 = c.rows16();
  const int from = kQueries ? 0 : rows16;  // rows of qkg: Qg first, then Kgam
  if (zero_state) {
    for (int p = 0; p < panels; ++p) {
      for (int r = from; r < 2 * rows16; ++r) store(s.oq + std::int64_t{p} * kPanel2 + r * kLanes, zero());
    }
  } else {
    const Panels st{const_cast<float*>(state), std::int64_t{c.head->Kp} * kLanes};
    gemm<Op::kPlain, Init::kZero>(2 * rows16 - from, panels, c.head->Kp, Panels{s.qkg, kPanel2}.at_row(from), st,
                                  Panels{s.oq, kPanel2}.at_row(from));
  }
  for (int p = 0; p < panels; ++p) {
    for (int i = 0; i < rows16; ++i) {
      const F v = p < v_panels ? load(s.v + p * kPanel + i * kLanes) : zero();
      const F x = v - load(s.oq + std::int64_t{p} * kPanel2 + (rows16 + i) * kLanes);
      if (u != nullptr) store(u + p * kPanel + i * kLanes, x);
      store(vn + p * kPanel + i * kLanes, x * set1(s.beta[i]));
    }
  }
  solve_lower(c, vn, panels);
}

/// S' = diag(gC) S + Kg^T Vn.
CAKE_INLINE void advance_state(const Chunk& c, float* state, bool zero_state, int panels, const float* vn) {
  const Panels st{state, std::int64_t{c.head->Kp} * kLanes}, kg{c.s->kg, kPanel}, x{const_cast<float*>(vn), kPanel};
  if (zero_state) {
    gemm<Op::kTransposed, Init::kZero>(c.head->Kp, panels, c.rows16(), kg, x, st);
  } else {
    gemm<Op::kTransposed, Init::kScaleRows>(c.head->Kp, panels, c.rows16(), kg, x, st, c.s->chunk_decay);
  }
}

static void write_output(const Chunk& c, const float* vn, const MutableRows& out) {
  Scratch& s = *c.s;
  for (int b = 0; b < c.blocks; ++b) {
    gemm<Op::kPlain, Init::kAdd>(kBlock, c.vpanels, (b + 1) * kBlock, Panels{s.pairs, kPanel2}.at_row(b * kBlock),
                                 {const_cast<float*>(vn), kPanel}, Panels{s.oq, kPanel2}.at_row(b * kBlock));
  }
  for (int i = 0; i < c.rows; ++i) {
    for (int p = 0; p < c.vpanels; ++p) {
      store_result(out, c.first + i, p * kLanes, c.head->V, load(s.oq + std::int64_t{p} * kPanel2 + i * kLanes));
    }
  }
}

static void forward_segment(const SegmentRun& run) {
  float* pair_memory = run.pair_memory;
  bool zero_state = run.zero_state;
  const bool with_out = run.out.data != nullptr;
  for (std::int64_t at = 0; at < run.rows; at += kRows) {
    const Chunk c = make_chunk(run, at);
    load_chunk(c, run.run_state);
    decay_chunk<false>(c);
    get_pairs(c, run.pairs, pair_memory);
    if (pair_memory != nullptr) pair_memory += kda::pair_floats(c.rows);
    if (!run.run_state) continue;
    scale_neg_l(c);
    float *u = nullptr, *vn = c.s->vn;
    if (run.tape != nullptr) {
      const Tape tape = tape_at(*run.head, run.tape, at / kRows);
      u = tape.u;
      vn = tape.vn;
      if (zero_state) {
        clear_state(*run.head, tape.state);
      } else {
        copy_state(*run.head, run.state, tape.state);
      }
    }
    if (with_out) {
      advance_rows<true>(c, run.state, zero_state, c.vpanels, c.vpanels, u, vn);
      write_output(c, vn, run.out);
    } else {
      advance_rows<false>(c, run.state, zero_state, c.vpanels, c.vpanels, u, vn);
    }
    advance_state(c, run.state, zero_state, c.vpanels, vn);
    zero_state = false;
  }
}

/// The same recurrence on V + K columns, the K extra ones starting from the identity with V = 0: b and M.
static void summarise_segment(const SegmentRun& run, float* transition) {
  const Head& h = *run.head;
  Scratch& s = *run.scratch;
  const int kpanels = h.Kp / kLanes, vpanels = h.Vp / kLanes;
  const std::int64_t state_panel = std::int64_t{h.Kp} * kLanes;
  float* m = s.state + vpanels * state_panel;
  if (run.resume) {
    for (std::int64_t i = 0; i < vpanels * state_panel; i += kLanes) store(s.state + i, load(run.state + i));
    for (std::int64_t i = 0; i < kpanels * state_panel; i += kLanes) store(m + i, load(transition + i));
  } else {
    for (std::int64_t i = 0; i < (vpanels + kpanels) * state_panel; i += kLanes) store(s.state + i, zero());
    for (int d = 0; d < h.Kp; ++d) m[(d / kLanes) * state_panel + d * kLanes + d % kLanes] = 1.0f;
  }
  float* pair_memory = run.pair_memory;
  for (std::int64_t at = 0; at < run.rows; at += kRows) {
    const Chunk c = make_chunk(run, at);
    load_chunk(c, true);
    decay_chunk<false>(c);
    get_pairs(c, run.pairs, pair_memory);
    if (pair_memory != nullptr) pair_memory += kda::pair_floats(c.rows);
    scale_neg_l(c);
    advance_rows<false>(c, s.state, false, vpanels + kpanels, vpanels, nullptr, s.vn);
    advance_state(c, s.state, false, vpanels + kpanels, s.vn);
  }
  for (std::int64_t i = 0; i < vpanels * state_panel; i += kLanes) store(run.state + i, load(s.state + i));
  for (std::int64_t i = 0; i < kpanels * state_panel; i += kLanes) store(transition + i, load(m + i));
}

}  // namespace
}  // namespace cake::CAKE_ISA_NAMESPACE
