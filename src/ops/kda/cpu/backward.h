// Backward over the chunks of a segment, from the last to the first (spec/kda section 3). With dS' the gradient at a
// chunk's end, S and u, Vn rebuilt by a forward pass over the segment, q scaled by the output scale:
//   dVn = Aqk^T dO + Kg dS';  dR = (I + L)^-T dVn;  dV = beta dR
//   dP = tril(dO Vn^T);  dL = -stril(dR Vn^T);  dbeta = dR . u + dL . P
//   dS = diag(gC) dS' + Qg^T dO - Kgam^T (beta dR)
//   dQ, dK: state terms dO S^T, -(beta dR) S^T, Vn dS'^T with their decays, and the terms inside the chunk (combine.h)
// Fixed order: see chunk.h and panel_gemm.h; rows of a chunk add up by one tree (parameter gradients).
#pragma once

#include "ops/kda/cpu/combine.h"
#include "ops/kda/cpu/forward.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

using cake::kda::BackwardRun;
using cake::kda::GradientRows;
using cake::kda::GroupedRows;

/// dO rows into the upper half of s.ddo.
static void load_dout(const Chunk& c, const Rows& dout) {
  for (int i = 0; i < c.rows; ++i) {
    if (i + kPrefetchRows < c.rows) prefetch_row(dout, c.first + i + kPrefetchRows, c.head->V);
    for (int p = 0; p < c.vpanels; ++p) {
      store(c.s->ddo + p * kPanel2 + i * kLanes, load_operand(dout, c.first + i, p * kLanes, c.head->V));
    }
  }
  for (int p = 0; p < c.vpanels; ++p) {
    for (int i = c.rows; i < c.rows16(); ++i) store(c.s->ddo + p * kPanel2 + i * kLanes, zero());
  }
}

/// dR into s.dr, -dR into the lower half of s.ddo.
static void gradient_rows(const Chunk& c, const float* grad_state, bool zero_grad) {
  Scratch& s = *c.s;
  const Panels dr{s.dr, kPanel};
  if (zero_grad) {
    zero_rows(s.dr, c.vpanels, 0, c.rows16());
  } else {
    const Panels ds{const_cast<float*>(grad_state), std::int64_t{c.head->Kp} * kLanes};
    gemm<Op::kPlain, Init::kZero>(c.rows16(), c.vpanels, c.head->Kp, {s.kg, kPanel}, ds, dr);
  }
  for (int b = 0; b < c.blocks; ++b) {
    gemm<Op::kTransposed, Init::kAdd>(kBlock, c.vpanels, (c.blocks - b) * kBlock,
                                      Panels{s.pairs, kPanel2}.at_panel(b).at_row(b * kBlock),
                                      Panels{s.ddo, kPanel2}.at_row(b * kBlock), dr.at_row(b * kBlock));
  }
  solve_lower_transposed(c, s.dr, c.vpanels);
  for (int p = 0; p < c.vpanels; ++p) {
    float* x = s.ddo + std::int64_t{p} * kPanel2 + c.rows16() * kLanes;
    for (int i = 0; i < c.rows16(); ++i) store(x + i * kLanes, neg(load(s.dr + p * kPanel + i * kLanes)));
  }
}

/// The lower half of s.ddo times beta.
CAKE_INLINE void scale_rows_by_beta(const Chunk& c) {
  for (int p = 0; p < c.vpanels; ++p) {
    float* x = c.s->ddo + std::int64_t{p} * kPanel2 + c.rows16() * kLanes;
    for (int i = 0; i < c.rows16(); ++i) store(x + i * kLanes, load(x + i * kLanes) * set1(c.s->beta[i]));
  }
}

/// dS = diag(gC) dS' + [Qg; Kgam]^T [dO; -beta dR].
CAKE_INLINE void step_grad_state(const Chunk& c, float* grad_state, bool zero_grad) {
  const Panels ds{grad_state, std::int64_t{c.head->Kp} * kLanes}, a{c.s->qkg, kPanel2}, b{c.s->ddo, kPanel2};
  if (zero_grad) {
    gemm<Op::kTransposed, Init::kZero>(c.head->Kp, c.vpanels, 2 * c.rows16(), a, b, ds);
  } else {
    gemm<Op::kTransposed, Init::kScaleRows>(c.head->Kp, c.vpanels, 2 * c.rows16(), a, b, ds, c.s->chunk_decay);
  }
}

/// dP and dL into s.dpl, from s.ddo and Vn.
static void gradient_pairs(const Chunk& c, const float* vn) {
  Scratch& s = *c.s;
  const std::int64_t vt_panel = std::int64_t{c.head->Vp} * kLanes;
  transpose_panels(c.rows16(), c.vpanels, {const_cast<float*>(vn), kPanel}, {s.vn_t, vt_panel});
  for (int b = 0; b < c.blocks; ++b) {
    for (int half = 0; half < 2; ++half) {
      gemm<Op::kPlain, Init::kZero>(kBlock, b + 1, c.head->Vp,
                                    Panels{s.ddo, kPanel2}.at_row(half * c.rows16() + b * kBlock), {s.vn_t, vt_panel},
                                    Panels{s.dpl, kPanel2}.at_row(b * 2 * kBlock + half * kBlock));
    }
    float* diagonal = s.dpl + b * kPanel2 + b * 2 * kBlock * kLanes;
    mask_lower(diagonal);
    mask_strict(diagonal + kBlock * kLanes);
  }
}

/// dbeta = dR . u + dL . P, through the sigmoid; then dL becomes beta dL. Rows past the end have beta 0.
static void gradient_beta(const Chunk& c, const float* u, const MutableRows& dbeta) {
  Scratch& s = *c.s;
  for (int i = 0; i < c.rows16(); ++i) {
    const int b = i / kBlock, r = i % kBlock;
    float* dl = s.dpl + (b * 2 * kBlock + kBlock + r) * kLanes;
    F acc = zero();
    for (int p = 0; p < c.vpanels; ++p) {
      acc = fma(load(s.dr + p * kPanel + i * kLanes), load(u + p * kPanel + i * kLanes), acc);
    }
    const F beta = set1(s.beta[i]);
    for (int p = 0; p <= b; ++p) {
      const F x = load(dl + p * kPanel2);
      acc = fma(x, load(s.pairs + p * kPanel2 + (kRows + i) * kLanes), acc);
      store(dl + p * kPanel2, x * beta);
    }
    if (i >= c.rows || dbeta.data == nullptr) continue;
    F grad = set1(reduce_add(acc));
    if (c.head->beta_kind != BetaKind::kValue) {
      grad = grad * sigmoid_slope(set1(load_scalar(c.head->beta, c.first + i)));
      if (c.head->beta_kind == BetaKind::kTwiceSigmoid) grad = grad + grad;
    }
    store_result(dbeta, c.first + i, 0, 1, grad);
  }
}

/// Terms that meet the state: s.inter, s.inter_col, and gC (S . dS') into s.cross[0].
static void gradient_state_terms(const Chunk& c, const float* state, bool zero_state, const float* grad_state,
                                 bool zero_grad, const float* vn) {
  Scratch& s = *c.s;
  const std::int64_t st_panel = std::int64_t{c.head->Kp} * kLanes, t_panel = std::int64_t{c.head->Vp} * kLanes;
  const int rows16 = c.rows16();
  if (zero_state) {
    for (int p = 0; p < c.kpanels; ++p) {
      for (int r = 0; r < 2 * rows16; ++r) store(s.inter + std::int64_t{p} * kPanel2 + r * kLanes, zero());
    }
  } else {
    transpose_panels(c.head->Kp, c.vpanels, {const_cast<float*>(state), st_panel}, {s.state_t, t_panel});
    gemm<Op::kPlain, Init::kZero>(2 * rows16, c.kpanels, c.head->Vp, {s.ddo, kPanel2}, {s.state_t, t_panel},
                                  {s.inter, kPanel2});
  }
  if (zero_grad) {
    zero_rows(s.inter_col, c.kpanels, 0, rows16);
  } else {
    transpose_panels(c.head->Kp, c.vpanels, {const_cast<float*>(grad_state), st_panel}, {s.grad_state_t, t_panel});
    gemm<Op::kPlain, Init::kZero>(rows16, c.kpanels, c.head->Vp, {const_cast<float*>(vn), kPanel},
                                  {s.grad_state_t, t_panel}, {s.inter_col, kPanel});
  }
  for (int p = 0; p < c.kpanels; ++p) {
    F acc = zero();
    if (!zero_state && !zero_grad) {
      for (int v = 0; v < c.head->Vp; ++v) {
        acc = fma(load(s.state_t + p * t_panel + v * kLanes), load(s.grad_state_t + p * t_panel + v * kLanes), acc);
      }
    }
    store(s.cross + p * kLanes, acc * load(s.chunk_decay + p * kLanes));
  }
}

/// A finished row of dq or dk from the gradient of the (normalised) row, `stride` floats between panels.
CAKE_INLINE void finish_row(const Head& h, const Rows& x, std::int64_t row, float rstd, const float* grad,
                            std::int64_t stride, const MutableRows& out) {
  const int panels = h.Kp / kLanes;
  F along = zero();
  const F r = set1(rstd);
  if (h.l2norm) {
    F acc = zero();
    for (int p = 0; p < panels; ++p) acc = fma(load(grad + p * stride), load_operand(x, row, p * kLanes, h.K) * r, acc);
    along = set1(reduce_add(acc));
  }
  for (int p = 0; p < panels; ++p) {
    F y = load(grad + p * stride);
    if (h.l2norm) y = r * (y - along * (load_operand(x, row, p * kLanes, h.K) * r));
    store_result(out, row, p * kLanes, h.K, y);
  }
}

/// dq and dk rows, or the partial rows of a grouped head. s.gq holds gradients of the scaled q.
static void finish_qk(const Chunk& c, const GradientRows& g) {
  Scratch& s = *c.s;
  const F scale = set1(c.head->scale);
  for (int p = 0; p < c.kpanels; ++p) {
    for (int i = 0; i < c.rows; ++i)
      store(s.gq + p * kPanel + i * kLanes, load(s.gq + p * kPanel + i * kLanes) * scale);
  }
  for (int i = 0; i < c.rows; ++i) {
    const std::int64_t row = c.first + i;
    if (g.partial_q != nullptr) {
      for (int p = 0; p < c.kpanels; ++p) {
        store(g.partial_q + row * g.partial_stride + p * kLanes, load(s.gq + p * kPanel + i * kLanes));
        store(g.partial_k + row * g.partial_stride + p * kLanes, load(s.gk + p * kPanel + i * kLanes));
      }
      continue;
    }
    if (g.dq.data != nullptr) finish_row(*c.head, c.head->q, row, s.rstd[i], s.gq + i * kLanes, kPanel, g.dq);
    if (g.dk.data != nullptr) finish_row(*c.head, c.head->k, row, s.rstd[kRows + i], s.gk + i * kLanes, kPanel, g.dk);
  }
}

/// Sum over the rows of a chunk by the fixed tree: distance 32, 16, 8, 4, 2, 1.
CAKE_INLINE F tree_rows(F* x) {
  for (int step = kRows / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) x[i] = x[i] + x[i + step];
  }
  return x[0];
}

/// dg from s.gg through the gate; the chunk's sums of dx and of the A_log terms into `params` [2][Kp].
static void finish_gate(const Chunk& c, const MutableRows& dg, float* params) {
  const Head& h = *c.head;
  Scratch& s = *c.s;
  for (int p = 0; p < c.kpanels; ++p) {
    F dx[kRows], da[kRows];
    for (int i = 0; i < kRows; ++i) dx[i] = da[i] = zero();
    const F bias = load_bias(h, p * kLanes), factor = set1(h.gate_factor);
    for (int i = 0; i < c.rows; ++i) {
      F grad = load(s.gg + p * kPanel + i * kLanes);
      if (h.gate_kind != GateKind::kLogDecay) {
        const F x = load_operand(h.g, c.first + i, p * kLanes, h.K) + bias;
        if (h.gate_kind == GateKind::kSoftplus) {
          da[i] = grad * log_decay(h, x);
          grad = neg(grad * (factor * sigmoid(x)));
        } else {
          grad = (grad * set1(h.lower_bound)) * (factor * sigmoid_slope(factor * x));
          da[i] = grad * x;
        }
        dx[i] = grad;
      }
      if (dg.data != nullptr) store_result(dg, c.first + i, p * kLanes, h.K, grad);
    }
    if (params != nullptr) {
      store(params + p * kLanes, tree_rows(dx));
      store(params + h.Kp + p * kLanes, tree_rows(da));
    }
  }
}

static void write_dv(const Chunk& c, const MutableRows& dv) {
  if (dv.data == nullptr) return;
  for (int i = 0; i < c.rows; ++i) {
    for (int p = 0; p < c.vpanels; ++p) {
      const float* x = c.s->ddo + std::int64_t{p} * kPanel2 + (c.rows16() + i) * kLanes;
      store_result(dv, c.first + i, p * kLanes, c.head->V, neg(load(x)));
    }
  }
}

/// One chunk of the forward once more: u and Vn, and the state after it into `state`.
static void rebuild_chunk(const SegmentRun& run, std::int64_t at, float* state, bool zero_state, float* u, float* vn,
                          float* next) {
  const Chunk c = make_chunk(run, at);
  load_chunk(c, true);
  decay_chunk<false>(c);
  copy_pairs<false>(c, run.pair_memory + at / kRows * kda::pair_floats(kRows));
  scale_neg_l(c);
  advance_rows<false>(c, state, zero_state, c.vpanels, c.vpanels, u, vn);
  if (next == nullptr) return;
  if (next != state) {
    if (zero_state) {
      clear_state(*run.head, next);
    } else {
      copy_state(*run.head, state, next);
    }
  }
  advance_state(c, next, zero_state, c.vpanels, vn);
}

/// The states at the starts of the ranges, into s.range_states.
static void rebuild_ranges(const SegmentRun& run, std::int64_t chunks) {
  const Head& h = *run.head;
  Scratch& s = *run.scratch;
  const std::int64_t size = std::int64_t{h.Kp} * h.Vp, last_range = (chunks - 1) / s.tape_chunks;
  // `state` may be the caller's border state: the pass runs on memory of its own.
  float* state = s.grad_state_t;
  if (run.zero_state) {
    clear_state(h, state);
  } else {
    copy_state(h, run.state, state);
  }
  for (std::int64_t n = 0; n <= last_range * s.tape_chunks; ++n) {
    if (n % s.tape_chunks == 0) copy_state(h, state, s.range_states + n / s.tape_chunks * size);
    if (n < last_range * s.tape_chunks) {
      rebuild_chunk(run, n * kRows, state, n == 0 && run.zero_state, nullptr, s.vn, state);
    }
  }
}

/// Forward over the chunks first .. end - 1 of the segment once more: states, u and Vn onto the tape.
static void rebuild(const SegmentRun& run, std::int64_t first, std::int64_t end, const float* start) {
  const Head& h = *run.head;
  for (std::int64_t n = first; n < end; ++n) {
    const Tape tape = tape_at(h, run.scratch->tape, n - first);
    const bool zero_state = n == 0 && run.zero_state;
    if (n == first) {
      if (zero_state) {
        clear_state(h, tape.state);
      } else {
        copy_state(h, start, tape.state);
      }
    }
    float* next = n + 1 < end ? tape_at(h, run.scratch->tape, n + 1 - first).state : nullptr;
    rebuild_chunk(run, n * kRows, tape.state, zero_state, tape.u, tape.vn, next);
  }
}

/// Operands, decays, products and dO of one chunk of the backward.
template <bool kKeepFactors>
CAKE_INLINE Chunk open_chunk(const BackwardRun& run, std::int64_t at) {
  const SegmentRun& r = run.run;
  const Chunk c = make_chunk(r, at);
  load_chunk(c, false);
  decay_chunk<kKeepFactors>(c);
  copy_pairs<false>(c, r.pair_memory + at / kRows * kda::pair_floats(kRows));
  scale_neg_l(c);
  load_dout(c, run.dout);
  return c;
}

CAKE_INLINE std::int64_t last_chunk(const SegmentRun& run) { return (run.rows - 1) / kRows * kRows; }

/// Chunk n of the segment from its tape; the gradient of its end state becomes that of its start state.
static void backward_chunk(const BackwardRun& run, std::int64_t n, const Tape& tape, bool zero_grad) {
  const SegmentRun& r = run.run;
  Scratch& s = *r.scratch;
  const Chunk c = open_chunk<true>(run, n * kRows);
  const bool zero_state = n == 0 && r.zero_state;
  gradient_rows(c, run.grad_state, zero_grad);
  gradient_pairs(c, tape.vn);
  gradient_beta(c, tape.u, run.gradients.dbeta);
  scale_rows_by_beta(c);
  write_dv(c, run.gradients.dv);
  gradient_state_terms(c, tape.state, zero_state, run.grad_state, zero_grad, tape.vn);
  step_grad_state(c, run.grad_state, zero_grad);
  gradient_off_diagonal(c);
  combine(c);
  finish_qk(c, run.gradients);
  const GradientRows& g = run.gradients;
  float* sums = g.chunk_params != nullptr ? g.chunk_params : g.params != nullptr ? s.chunk_params : nullptr;
  finish_gate(c, g.dg, sums == nullptr ? nullptr : sums + n * 2 * std::int64_t{r.head->Kp});
}

static void backward_segment(const BackwardRun& run) {
  const SegmentRun& r = run.run;
  Scratch& s = *r.scratch;
  const Head& h = *r.head;
  const std::int64_t chunks = last_chunk(r) / kRows + 1, range = r.tape != nullptr ? chunks : s.tape_chunks;
  const bool ranges = chunks > range;
  if (ranges) rebuild_ranges(r, chunks);
  for (std::int64_t first = (chunks - 1) / range * range; first >= 0; first -= range) {
    const std::int64_t end = first + range < chunks ? first + range : chunks;
    if (r.tape == nullptr) {
      rebuild(r, first, end, ranges ? s.range_states + first / range * std::int64_t{h.Kp} * h.Vp : r.state);
    }
    for (std::int64_t n = end - 1; n >= first; --n) {
      const Tape tape = r.tape != nullptr ? tape_at(h, r.tape, n) : tape_at(h, s.tape, n - first);
      backward_chunk(run, n, tape, n == chunks - 1 && run.zero_grad_state);
    }
  }
  if (run.gradients.params == nullptr) return;
  // The chain over the chunks, left to right from zero.
  for (int i = 0; i < 2 * h.Kp; i += kLanes) {
    F acc = zero();
    for (std::int64_t n = 0; n < chunks; ++n) acc = acc + load(s.chunk_params + n * 2 * h.Kp + i);
    store(run.gradients.params + i, acc);
  }
}

/// c of a segment: the dS recurrence alone.
static void summarise_adjoint_segment(const BackwardRun& run) {
  bool zero_grad = run.zero_grad_state;
  for (std::int64_t at = last_chunk(run.run); at >= 0; at -= kRows) {
    const Chunk c = open_chunk<false>(run, at);
    gradient_rows(c, run.grad_state, zero_grad);
    scale_rows_by_beta(c);
    step_grad_state(c, run.grad_state, zero_grad);
    zero_grad = false;
  }
}

static void finish_grouped_rows(const GroupedRows& g, Scratch* s) {
  const Head& h = *g.head;
  const int panels = h.Kp / kLanes;
  for (std::int64_t row = 0; row < g.rows; ++row) {
    for (int side = 0; side < 2; ++side) {
      const MutableRows& out = side == 0 ? g.dq : g.dk;
      if (out.data == nullptr) continue;
      const float* partial = (side == 0 ? g.partial_q : g.partial_k) + row * g.row_stride;
      for (int p = 0; p < panels; ++p) {
        F acc = load(partial + p * kLanes);
        for (int j = 1; j < g.group; ++j) acc = acc + load(partial + j * g.head_stride + p * kLanes);
        store(s->gq + p * kLanes, acc);
      }
      const Rows& x = side == 0 ? h.q : h.k;
      const float rstd = load_row(x, row, h.K, panels, h.l2norm, 1.0f, s->q);
      finish_row(h, x, row, rstd, s->gq, kLanes, out);
    }
  }
}

}  // namespace
}  // namespace cake::CAKE_ISA_NAMESPACE
