#include "ops/kda/cpu/runner.h"

#include <algorithm>
#include <cstddef>

#include "core/fpenv.h"

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

void state_in(const ConstTensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, float* panels) {
  const float* base = static_cast<const float*>(x.data) + n * x.strides[0] + hv * x.strides[1];
  std::fill(panels, panels + p.Kp() * p.Vp(), 0.0f);
  for (std::int64_t d = 0; d < p.K; ++d) {
    for (std::int64_t v = 0; v < p.V; ++v) {
      panels[(v / 16 * p.Kp() + d) * 16 + v % 16] = base[d * x.strides[2] + v * x.strides[3]];
    }
  }
}

void state_out(const TensorView& x, std::int64_t n, std::int64_t hv, const Problem& p, const float* panels) {
  float* base = static_cast<float*>(x.data) + n * x.strides[0] + hv * x.strides[1];
  for (std::int64_t d = 0; d < p.K; ++d) {
    for (std::int64_t v = 0; v < p.V; ++v) {
      base[d * x.strides[2] + v * x.strides[3]] = panels[(v / 16 * p.Kp() + d) * 16 + v % 16];
    }
  }
}

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

void pass_state(const ConstTensorView& from, const TensorView& to, std::int64_t n, std::int64_t hv, const Problem& p) {
  for (std::int64_t d = 0; d < p.K; ++d) {
    for (std::int64_t v = 0; v < p.V; ++v) {
      const auto at = [&](const auto& x) {
        return n * x.strides[0] + hv * x.strides[1] + d * x.strides[2] + v * x.strides[3];
      };
      static_cast<float*>(to.data)[at(to)] = from.given ? static_cast<const float*>(from.data)[at(from)] : 0.0f;
    }
  }
}

Head make_head(const Kernels& table, const Problem& p, const Operands& o, const Settings& s, std::int64_t batch,
               std::int64_t start, std::int64_t hv) {
  Head h;
  h.K = static_cast<int>(p.K);
  h.V = static_cast<int>(p.V);
  h.Kp = static_cast<int>(p.Kp());
  h.Vp = static_cast<int>(p.Vp());
  h.scale = p.scale;
  h.l2norm = s.use_qk_l2norm_in_kernel;
  if (s.use_beta_sigmoid_in_kernel) h.beta_kind = s.allow_neg_eigval ? BetaKind::kTwiceSigmoid : BetaKind::kSigmoid;
  if (s.use_gate_in_kernel) {
    h.gate_kind = s.lower_bound ? GateKind::kLowerBound : GateKind::kSoftplus;
    h.lower_bound = s.lower_bound.value_or(0.0f);
    if (o.A_log.given) {
      h.gate_factor = table.gate_factor(static_cast<const float*>(o.A_log.data)[hv * o.A_log.strides[0]]);
    }
    if (o.dt_bias.given) {
      const bool flat = o.dt_bias.ndim == 1;
      h.dt_bias_stride = o.dt_bias.strides[flat ? 0 : 1];
      h.dt_bias =
          static_cast<const float*>(o.dt_bias.data) + (flat ? hv * p.K * h.dt_bias_stride : hv * o.dt_bias.strides[0]);
    }
  }
  const std::int64_t qk_head = hv / p.group();
  h.q = head_rows<Rows>(o.q, batch, start, qk_head);
  h.k = head_rows<Rows>(o.k, batch, start, qk_head);
  h.v = head_rows<Rows>(o.v, batch, start, hv);
  h.g = head_rows<Rows>(o.g, batch, start, hv);
  h.beta = head_rows<Rows>(o.beta, batch, start, hv);
  return h;
}

Runner::Runner(const Call& call, const Group& group, const Tables& tables, Scratch* scratch)
    : call_(call), group_(group), tables_(tables), kernels_(kda::kernels(current_cpu_isa())), scratch_(scratch) {
  list_documents(call.lengths, group, tables.documents, tables.segments);
}

SegmentRun Runner::segment_run(const Document& d, std::int64_t j, std::int64_t hv, const Head& head, Scratch& scratch,
                               const SavedMemory& saved) const {
  const std::int64_t HV = problem().HV;
  SegmentRun run;
  run.head = &head;
  run.first = j * kSegment;
  run.rows = std::min<std::int64_t>(kSegment, d.length - run.first);
  run.scratch = &scratch;
  const std::int64_t chunk = run.first / kChunk;
  if (saved.pairs != nullptr) {
    run.pair_memory = saved.pairs + d.first_pair * HV + hv * d.pair_floats + chunk * pair_floats(kChunk);
  }
  if (saved.tape != nullptr) {
    run.tape = saved.tape + (d.first_chunk * HV + hv * d.chunks + chunk) * tape_floats(extents().Kp, extents().Vp);
  }
  return run;
}

void Runner::forward(const ForwardResults* results, const SavedMemory& memory, bool saving) const {
  const Operands& o = *call_.operands;
  const Problem& p = problem();
  const SavedMemory keep = saving ? memory : SavedMemory{};
  const Pairs store = saving ? Pairs::kStore : Pairs::kCompute;
  const auto out_rows = [&](const Document& d, std::int64_t hv) {
    return results == nullptr ? MutableRows{} : head_rows<MutableRows>(results->out, d.batch, d.start, hv);
  };
  const bool want_final = results != nullptr && results->final_state.given;
  each_segment(p.HV, [&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
    const std::int64_t j = id.segment;
    if (j > 0 && j == d.segments - 1) return;
    const Head h = head(d, hv);
    SegmentRun run = segment_run(d, j, hv, h, scratch, keep);
    run.pairs = store;
    if (j > 0) {
      run.state = border(memory.borders, d, j, hv);
      run.tape = nullptr;  // a summary has no chunk states; they come with phase 3
      kernels_.summarise(run, transition(memory.transitions, d, j, hv));
      return;
    }
    run.state = d.segments > 1 ? border(memory.borders, d, 0, hv) : scratch.state;
    run.out = out_rows(d, hv);
    run.run_state = results != nullptr || d.segments > 1;
    run.zero_state = !o.initial_state.given;
    if (o.initial_state.given && run.run_state) state_in(o.initial_state, d.number, hv, p, run.state);
    kernels_.forward(run);
    if (d.segments == 1 && want_final) state_out(results->final_state, d.number, hv, p, run.state);
  });
  each_document([&](const Document& d, std::int64_t hv) {
    for (std::int64_t j = 1; j + 1 < d.segments; ++j) {
      kernels_.fold(static_cast<int>(extents().Kp), static_cast<int>(extents().Vp),
                    transition(memory.transitions, d, j, hv), border(memory.borders, d, j - 1, hv),
                    border(memory.borders, d, j, hv), false);
    }
    if (d.segments == 0 && want_final) pass_state(o.initial_state, results->final_state, d.number, hv, p);
  });
  each_segment(p.HV, [&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
    const std::int64_t j = id.segment;
    const bool last = j == d.segments - 1;
    if (j == 0 || (results == nullptr && !last)) return;
    const Head h = head(d, hv);
    SegmentRun run = segment_run(d, j, hv, h, scratch, keep);
    run.pairs = saving && !last ? Pairs::kLoad : store;
    run.run_state = results != nullptr;
    run.out = out_rows(d, hv);
    run.state = scratch.state;
    copy_state(border(memory.borders, d, j - 1, hv), run.state);
    kernels_.forward(run);
    if (last && want_final) state_out(results->final_state, d.number, hv, p, run.state);
  });
}

void write_params(const Call& call, const BackwardResults& r, const float* sums) {
  const Problem& p = *call.problem;
  const Kernels& table = kernels(current_cpu_isa());
  const ScopedFpEnv env;
  for (std::int64_t hv = 0; hv < p.HV; ++hv, sums += 2 * call.extents.Kp) {
    if (r.ddt_bias.given) {
      const bool flat = r.ddt_bias.ndim == 1;
      const std::int64_t head = flat ? hv * p.K * r.ddt_bias.strides[0] : hv * r.ddt_bias.strides[0];
      for (std::int64_t d = 0; d < p.K; ++d) {
        static_cast<float*>(r.ddt_bias.data)[head + d * r.ddt_bias.strides[flat ? 0 : 1]] = sums[d];
      }
    }
    if (r.dA_log.given) {
      static_cast<float*>(r.dA_log.data)[hv * r.dA_log.strides[0]] =
          table.tree_sum(sums + call.extents.Kp, call.extents.Kp);
    }
  }
}

void forward_cpu(const Call& call, const ForwardResults& results, Arena& workspace, const SavedMemory* saved) {
  const ForwardMemory m = carve_forward(workspace, call.extents, saved != nullptr);
  Scratch* scratch = carve_workers(workspace, call.extents, call.memory, call.workers, false);
  each_group(call, [&](const Group& group, const Totals& before) {
    const Runner runner(call, group, m.tables, scratch);
    runner.forward(&results, saved != nullptr ? advance(*saved, call.extents, before) : m.kept, saved != nullptr);
  });
  if (call.lengths.packed()) zero_tail(results.out, call.lengths.end());
}

}  // namespace cake::kda
