#include "ops/kda/cpu/driver.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/parallel.h"

namespace cake {
namespace isa_base {
extern const kda::Kernels kKdaKernels;
}
namespace isa_v3 {
extern const kda::Kernels kKdaKernels;
}
namespace isa_v4 {
extern const kda::Kernels kKdaKernels;
}
}  // namespace cake

namespace cake::kda {

const Kernels& kernels(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBase: return isa_base::kKdaKernels;
    case CpuIsa::kV3: return isa_v3::kKdaKernels;
    case CpuIsa::kV4: return isa_v4::kKdaKernels;
  }
  return isa_base::kKdaKernels;
}

namespace {

/// Rows of one head of a [B, S, heads, width] view, from row `start` of batch row `batch` on.
template <class Out, class View>
Out head_rows(const View& x, std::int64_t batch, std::int64_t start, std::int64_t head) {
  Out rows;
  if (!x.given) return rows;
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(rows.data)>>, const std::byte, std::byte>;
  const std::int64_t at = batch * x.strides[0] + start * x.strides[1] + head * x.strides[2];
  rows.data = x.data == nullptr ? nullptr : static_cast<Byte*>(x.data) + at * dtype_size(x.dtype);
  rows.row_stride = x.strides[1];
  rows.lane_stride = x.ndim > 3 ? x.strides[3] : 1;
  rows.dtype = x.dtype;
  return rows;
}

/// State n, hv of a [N, HV, K, V] view into panels (padding becomes zero).
void state_in(const ConstTensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, float* panels) {
  const float* base = static_cast<const float*>(x.data) + n * x.strides[0] + hv * x.strides[1];
  std::fill(panels, panels + p.Kp() * p.Vp(), 0.0f);
  for (std::int64_t d = 0; d < p.K; ++d) {
    for (std::int64_t v = 0; v < p.V; ++v) {
      panels[(v / 16 * p.Kp() + d) * 16 + v % 16] = base[d * x.strides[2] + v * x.strides[3]];
    }
  }
}

/// The inverse; panels == nullptr: zero.
void state_out(const TensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, const float* panels) {
  float* base = static_cast<float*>(x.data) + n * x.strides[0] + hv * x.strides[1];
  for (std::int64_t d = 0; d < p.K; ++d) {
    for (std::int64_t v = 0; v < p.V; ++v) {
      base[d * x.strides[2] + v * x.strides[3]] =
          panels == nullptr ? 0.0f : panels[(v / 16 * p.Kp() + d) * 16 + v % 16];
    }
  }
}

/// Zeros in rows `from` .. S-1 of batch row 0 (rows past the last offset belong to no document).
void zero_tail(const TensorView& x, std::int64_t from) {
  if (!x.given) return;
  const std::int64_t size = dtype_size(x.dtype);
  const std::int64_t heads = x.shape[2], width = x.ndim > 3 ? x.shape[3] : 1;
  const std::int64_t lane = x.ndim > 3 ? x.strides[3] : 1;
  for (std::int64_t t = from; t < x.shape[1]; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t c = 0; c < width; ++c) {
        auto* at = static_cast<std::byte*>(x.data) + (t * x.strides[1] + h * x.strides[2] + c * lane) * size;
        std::memset(at, 0, static_cast<std::size_t>(size));
      }
    }
  }
}

/// What the phases of one call share.
class Runner {
 public:
  Runner(const Call& call, const Tables& tables, Arena& workspace, bool backward)
      : call_(call),
        p_(*call.problem),
        x_(call.extents),
        tables_(tables),
        kernels_(kernels(current_cpu_isa())),
        workers_(call.workers) {
    scratch_ = carve_workers(workspace, x_, workers_, backward);
    list_documents(p_, call.operands->cu_seqlens, tables.documents, tables.segments);
  }

  Head head(const Document& d, std::int64_t hv) const {
    const Operands& o = *call_.operands;
    const Settings& s = *call_.settings;
    Head h;
    h.K = static_cast<int>(p_.K);
    h.V = static_cast<int>(p_.V);
    h.Kp = static_cast<int>(p_.Kp());
    h.Vp = static_cast<int>(p_.Vp());
    h.scale = p_.scale;
    h.l2norm = s.use_qk_l2norm_in_kernel;
    if (s.use_beta_sigmoid_in_kernel) h.beta_kind = s.allow_neg_eigval ? BetaKind::kTwiceSigmoid : BetaKind::kSigmoid;
    if (s.use_gate_in_kernel) {
      h.gate_kind = s.lower_bound ? GateKind::kLowerBound : GateKind::kSoftplus;
      h.lower_bound = s.lower_bound.value_or(0.0f);
      if (o.A_log.given)
        h.gate_factor = kernels_.gate_factor(static_cast<const float*>(o.A_log.data)[hv * o.A_log.strides[0]]);
      if (o.dt_bias.given) {
        const bool flat = o.dt_bias.ndim == 1;
        h.dt_bias_stride = o.dt_bias.strides[flat ? 0 : 1];
        h.dt_bias = static_cast<const float*>(o.dt_bias.data) +
                    (flat ? hv * p_.K * h.dt_bias_stride : hv * o.dt_bias.strides[0]);
      }
    }
    const std::int64_t qk_head = hv / p_.group();
    h.q = head_rows<Rows>(o.q, d.batch, d.start, qk_head);
    h.k = head_rows<Rows>(o.k, d.batch, d.start, qk_head);
    h.v = head_rows<Rows>(o.v, d.batch, d.start, hv);
    h.g = head_rows<Rows>(o.g, d.batch, d.start, hv);
    h.beta = head_rows<Rows>(o.beta, d.batch, d.start, hv);
    return h;
  }

  /// Calls fn(document, segment j, hv, scratch) for every segment and value head.
  template <class Fn>
  void each_segment(Fn fn) {
    parallel_for(x_.totals.segments * p_.HV, workers_, [&](std::int64_t task, int worker) {
      const SegmentId id = tables_.segments[task / p_.HV];
      fn(tables_.documents[id.document], id, task % p_.HV, scratch_[worker]);
    });
  }
  /// Calls fn(document, number, hv) for every document, empty ones too, and value head.
  template <class Fn>
  void each_document(Fn fn) {
    parallel_for(p_.N * p_.HV, workers_,
                 [&](std::int64_t task, int) { fn(tables_.documents[task / p_.HV], task / p_.HV, task % p_.HV); });
  }

  SegmentRun segment_run(const Document& d, std::int64_t j, std::int64_t hv, const Head& head, Scratch& scratch,
                         float* pairs) const {
    SegmentRun run;
    run.head = &head;
    run.first = j * kSegment;
    run.rows = std::min<std::int64_t>(kSegment, d.length - run.first);
    run.scratch = &scratch;
    if (pairs != nullptr) {
      run.pair_memory = pairs + d.first_pair * p_.HV + hv * d.pair_floats + run.first / kChunk * pair_floats(kChunk);
    }
    return run;
  }

  float* border(float* base, const Document& d, std::int64_t i, std::int64_t hv) const {
    return base + ((d.first_border + i) * p_.HV + hv) * x_.state_floats();
  }
  float* transition(float* base, const Document& d, std::int64_t j, std::int64_t hv) const {
    return base + ((d.first_transition + j - 1) * p_.HV + hv) * x_.transition_floats();
  }
  void copy_state(const float* from, float* to) const {
    std::memcpy(to, from, static_cast<std::size_t>(x_.state_floats()) * sizeof(float));
  }
  std::int64_t rows_used() const {
    return p_.N == 0 ? 0 : tables_.documents[p_.N - 1].start + tables_.documents[p_.N - 1].length;
  }

  /// The forward; with results == nullptr only the saved set is made.
  void forward(const ForwardResults* results, const SavedMemory& memory, bool saving) {
    const Operands& o = *call_.operands;
    float* pairs = saving ? memory.pairs : nullptr;
    const Pairs store = saving ? Pairs::kStore : Pairs::kCompute;
    const auto out_rows = [&](const Document& d, std::int64_t hv) {
      return results == nullptr ? MutableRows{} : head_rows<MutableRows>(results->out, d.batch, d.start, hv);
    };
    const bool want_final = results != nullptr && results->final_state.given;
    each_segment([&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      if (j > 0 && j == d.segments - 1) return;
      const Head h = head(d, hv);
      SegmentRun run = segment_run(d, j, hv, h, scratch, pairs);
      run.pairs = store;
      if (j > 0) {
        run.state = border(memory.borders, d, j, hv);
        kernels_.summarise(run, transition(memory.transitions, d, j, hv));
        return;
      }
      run.state = d.segments > 1 ? border(memory.borders, d, 0, hv) : scratch.state;
      run.out = out_rows(d, hv);
      run.run_state = results != nullptr || d.segments > 1;
      run.zero_state = !o.initial_state.given;
      if (o.initial_state.given && run.run_state) state_in(o.initial_state, id.document, hv, p_, run.state);
      kernels_.forward(run);
      if (d.segments == 1 && want_final) state_out(results->final_state, id.document, hv, p_, run.state);
    });
    each_document([&](const Document& d, std::int64_t n, std::int64_t hv) {
      for (std::int64_t j = 1; j + 1 < d.segments; ++j) {
        kernels_.fold(static_cast<int>(x_.Kp), static_cast<int>(x_.Vp), transition(memory.transitions, d, j, hv),
                      border(memory.borders, d, j - 1, hv), border(memory.borders, d, j, hv), false);
      }
      if (d.segments == 0 && want_final) pass_state(o.initial_state, results->final_state, n, hv);
    });
    each_segment([&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      const bool last = j == d.segments - 1;
      if (j == 0 || (results == nullptr && !last)) return;
      const Head h = head(d, hv);
      SegmentRun run = segment_run(d, j, hv, h, scratch, pairs);
      run.pairs = saving && !last ? Pairs::kLoad : store;
      run.run_state = results != nullptr;
      run.out = out_rows(d, hv);
      run.state = scratch.state;
      copy_state(border(memory.borders, d, j - 1, hv), run.state);
      kernels_.forward(run);
      if (last && want_final) state_out(results->final_state, id.document, hv, p_, run.state);
    });
    if (results != nullptr && p_.packed) zero_tail(results->out, rows_used());
  }

  void backward(const ConstTensorView& dout, const ConstTensorView& d_final_state, const BackwardResults& r,
                const SavedMemory& saved, BackwardMemory& m, bool params) {
    each_segment([&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      const bool last = j == d.segments - 1;
      if (j == 0 && !last) return;
      const Head h = head(d, hv);
      BackwardRun run = backward_run(d, j, hv, h, scratch, dout, saved);
      if (!last) {
        run.grad_state = border(m.grad_borders, d, j - 1, hv);
        kernels_.summarise_adjoint(run);
        return;
      }
      run.grad_state = j > 0 ? border(m.grad_borders, d, j - 1, hv) : scratch.grad_state;
      run.zero_grad_state = !d_final_state.given;
      if (d_final_state.given) state_in(d_final_state, id.document, hv, p_, run.grad_state);
      run_segment(d, id, hv, run, saved, r, m, params);
    });
    each_document([&](const Document& d, std::int64_t n, std::int64_t hv) {
      for (std::int64_t j = d.segments - 2; j >= 1; --j) {
        kernels_.fold(static_cast<int>(x_.Kp), static_cast<int>(x_.Vp), transition(saved.transitions, d, j, hv),
                      border(m.grad_borders, d, j, hv), border(m.grad_borders, d, j - 1, hv), true);
      }
      if (d.segments == 0 && r.dinitial_state.given) pass_state(d_final_state, r.dinitial_state, n, hv);
    });
    each_segment([&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      if (j == d.segments - 1) return;
      const Head h = head(d, hv);
      BackwardRun run = backward_run(d, j, hv, h, scratch, dout, saved);
      run.grad_state = scratch.grad_state;
      copy_state(border(m.grad_borders, d, j, hv), run.grad_state);
      run_segment(d, id, hv, run, saved, r, m, params);
    });
    if (m.partial_q != nullptr) finish_groups(r, m);
    if (params) finish_params(r, m);
    if (p_.packed) {
      for (const TensorView* x : {&r.dq, &r.dk, &r.dv, &r.dg, &r.dbeta}) zero_tail(*x, rows_used());
    }
  }

 private:
  /// State n of `from` (zero if not given) to `to`.
  void pass_state(const ConstTensorView& from, const TensorView& to, std::int64_t n, std::int64_t hv) const {
    for (std::int64_t d = 0; d < p_.K; ++d) {
      for (std::int64_t v = 0; v < p_.V; ++v) {
        const auto at = [&](const auto& x) {
          return n * x.strides[0] + hv * x.strides[1] + d * x.strides[2] + v * x.strides[3];
        };
        static_cast<float*>(to.data)[at(to)] = from.given ? static_cast<const float*>(from.data)[at(from)] : 0.0f;
      }
    }
  }

  BackwardRun backward_run(const Document& d, std::int64_t j, std::int64_t hv, const Head& h, Scratch& scratch,
                           const ConstTensorView& dout, const SavedMemory& saved) const {
    BackwardRun run;
    run.run = segment_run(d, j, hv, h, scratch, saved.pairs);
    run.run.pairs = Pairs::kLoad;
    run.dout = head_rows<Rows>(dout, d.batch, d.start, hv);
    return run;
  }

  /// The full backward of one segment from run.grad_state on.
  void run_segment(const Document& d, SegmentId id, std::int64_t hv, BackwardRun& run, const SavedMemory& saved,
                   const BackwardResults& r, BackwardMemory& m, bool params) {
    const std::int64_t j = id.segment;
    const ConstTensorView& initial = call_.operands->initial_state;
    if (j > 0) {
      run.run.state = border(saved.borders, d, j - 1, hv);
    } else {
      run.run.state = run.run.scratch->state;
      run.run.zero_state = !initial.given;
      if (initial.given) state_in(initial, id.document, hv, p_, run.run.state);
    }
    GradientRows& g = run.gradients;
    const std::int64_t qk_head = hv / p_.group();
    if (m.partial_q != nullptr) {
      const std::int64_t at = ((d.batch * p_.S + d.start) * p_.HV + hv) * x_.Kp;
      g.partial_q = m.partial_q + at;
      g.partial_k = m.partial_k + at;
      g.partial_stride = p_.HV * x_.Kp;
    } else {
      g.dq = head_rows<MutableRows>(r.dq, d.batch, d.start, qk_head);
      g.dk = head_rows<MutableRows>(r.dk, d.batch, d.start, qk_head);
    }
    g.dv = head_rows<MutableRows>(r.dv, d.batch, d.start, hv);
    g.dg = head_rows<MutableRows>(r.dg, d.batch, d.start, hv);
    g.dbeta = head_rows<MutableRows>(r.dbeta, d.batch, d.start, hv);
    const std::int64_t segment = d.first_segment + j;
    if (params) g.params = m.order.slot(segment, hv);
    kernels_.backward(run);
    if (params) m.order.arrived(kernels_, segment, hv);
    if (j == 0 && r.dinitial_state.given) state_out(r.dinitial_state, id.document, hv, p_, run.grad_state);
  }

  void finish_groups(const BackwardResults& r, const BackwardMemory& m) {
    const std::int64_t group = p_.group();
    parallel_for(x_.totals.segments * p_.H, workers_, [&](std::int64_t task, int worker) {
      const SegmentId id = tables_.segments[task / p_.H];
      const Document& d = tables_.documents[id.document];
      const std::int64_t qk_head = task % p_.H, first = id.segment * kSegment;
      Document part = d;
      part.start += first;
      const Head h = head(part, qk_head * group);
      GroupedRows g;
      g.head = &h;
      g.rows = std::min<std::int64_t>(kSegment, d.length - first);
      g.group = static_cast<int>(group);
      const std::int64_t at = ((d.batch * p_.S + part.start) * p_.HV + qk_head * group) * x_.Kp;
      g.partial_q = m.partial_q + at;
      g.partial_k = m.partial_k + at;
      g.row_stride = p_.HV * x_.Kp;
      g.head_stride = x_.Kp;
      g.dq = head_rows<MutableRows>(r.dq, part.batch, part.start, qk_head);
      g.dk = head_rows<MutableRows>(r.dk, part.batch, part.start, qk_head);
      kernels_.finish_grouped(g, &scratch_[worker]);
    });
  }

  void finish_params(const BackwardResults& r, BackwardMemory& m) {
    parallel_for(p_.HV, workers_, [&](std::int64_t hv, int) {
      float* sums = m.sums + hv * 2 * x_.Kp;
      m.order.total(kernels_, hv, sums);
      if (r.ddt_bias.given) {
        const bool flat = r.ddt_bias.ndim == 1;
        auto* y = static_cast<float*>(r.ddt_bias.data);
        for (std::int64_t d = 0; d < p_.K; ++d) {
          y[flat ? (hv * p_.K + d) * r.ddt_bias.strides[0] : hv * r.ddt_bias.strides[0] + d * r.ddt_bias.strides[1]] =
              sums[d];
        }
      }
      if (r.dA_log.given) {
        static_cast<float*>(r.dA_log.data)[hv * r.dA_log.strides[0]] = kernels_.tree_sum(sums + x_.Kp, x_.Kp);
      }
    });
  }

  const Call& call_;
  const Problem& p_;
  const Extents& x_;
  const Tables& tables_;
  const Kernels& kernels_;
  int workers_;
  Scratch* scratch_;
};

}  // namespace

ForwardMemory carve_forward(Arena& arena, const Extents& x, bool saving) {
  ForwardMemory m;
  m.tables = carve_tables(arena, x);
  if (!saving) {
    m.borders = arena.take<float>(x.totals.borders * x.HV * x.state_floats());
    m.transitions = arena.take<float>(x.totals.transitions * x.HV * x.transition_floats());
  }
  return m;
}

void BackwardMemory::take(Arena& arena, const Extents& x, bool recompute, bool params) {
  tables = carve_tables(arena, x);
  if (recompute) saved = carve_saved(arena, x);
  grad_borders = arena.take<float>(x.totals.borders * x.HV * x.state_floats());
  if (x.HV != x.H) {
    partial_q = arena.take<float>(x.B * x.S * x.HV * x.Kp);
    partial_k = arena.take<float>(x.B * x.S * x.HV * x.Kp);
  }
  if (params) {
    sums = arena.take<float>(x.HV * 2 * x.Kp);
    order.take(arena, x.totals.segments, x.HV, 2 * x.Kp);
  }
}

void forward_cpu(const Call& call, const ForwardResults& results, Arena& workspace, const SavedMemory* saved) {
  const ForwardMemory m = carve_forward(workspace, call.extents, saved != nullptr);
  Runner runner(call, m.tables, workspace, false);
  runner.forward(&results, saved != nullptr ? *saved : SavedMemory{nullptr, m.borders, m.transitions},
                 saved != nullptr);
}

void backward_cpu(const Call& call, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                  const BackwardResults& results, bool params, Arena& workspace, const SavedMemory* saved) {
  BackwardMemory m;
  m.take(workspace, call.extents, saved == nullptr, params);
  Runner runner(call, m.tables, workspace, true);
  if (saved == nullptr) runner.forward(nullptr, m.saved, true);
  runner.backward(dout, d_final_state, results, saved != nullptr ? *saved : m.saved, m, params);
}

}  // namespace cake::kda
