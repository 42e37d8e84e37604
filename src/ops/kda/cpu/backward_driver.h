// The backward of a call on the CPU, for an order of addition (order.h). The phases mirror the forward's (runner.h):
// (1) the last segment of every document runs from its final gradient, segments 1 .. n-2 are summarised from zero;
// (2) per document the gradients at the borders fold from the right; (3) segments 0 .. n-2 run from theirs.
// A package instantiates it for its own order, so a det library holds FixedOrder alone.
#pragma once

#include <algorithm>

#include "ops/kda/cpu/order.h"
#include "ops/kda/cpu/runner.h"

namespace cake::kda {

/// What a backward gets and gives.
struct BackwardArguments {
  ConstTensorView dout, d_final_state;
  BackwardResults results;
  bool params() const { return results.dA_log.given || results.ddt_bias.given; }
};

/// The backward of one group.
template <class Order>
class BackwardGroup {
 public:
  BackwardGroup(const Runner& runner, const BackwardArguments& arguments, const BackwardMemory& memory, Order& order)
      : run_(runner), a_(arguments), m_(memory), order_(order) {}

  /// `saved` starts at the group.
  void operator()(const SavedMemory& saved) const {
    const std::int64_t HV = run_.problem().HV;
    const int Kp = static_cast<int>(run_.extents().Kp), Vp = static_cast<int>(run_.extents().Vp);
    run_.each_segment(HV, [&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      const bool last = j == d.segments - 1;
      if (j == 0 && !last) return;
      const Head h = run_.head(d, hv);
      BackwardRun run = backward_run(d, j, hv, h, scratch, saved);
      if (!last) {
        run.zero_grad_state = true;
        run.grad_state = run_.border(m_.grad_borders, d, j - 1, hv);
        run_.kernels().summarise_adjoint(run);
        return;
      }
      run.grad_state = j > 0 ? run_.border(m_.grad_borders, d, j - 1, hv) : scratch.grad_state;
      run.zero_grad_state = !a_.d_final_state.given;
      if (a_.d_final_state.given) state_in(a_.d_final_state, d.number, hv, run_.problem(), run.grad_state);
      run_segment(d, j, hv, run, saved);
    });
    run_.each_document([&](const Document& d, std::int64_t hv) {
      for (std::int64_t j = d.segments - 2; j >= 1; --j) {
        run_.kernels().fold(Kp, Vp, run_.transition(saved.transitions, d, j, hv),
                            run_.border(m_.grad_borders, d, j, hv), run_.border(m_.grad_borders, d, j - 1, hv), true);
      }
      if (d.segments == 0 && a_.results.dinitial_state.given) {
        pass_state(a_.d_final_state, a_.results.dinitial_state, d.number, hv, run_.problem());
      }
    });
    run_.each_segment(HV, [&](const Document& d, SegmentId id, std::int64_t hv, Scratch& scratch) {
      const std::int64_t j = id.segment;
      if (j == d.segments - 1) return;
      const Head h = run_.head(d, hv);
      BackwardRun run = backward_run(d, j, hv, h, scratch, saved);
      run.grad_state = scratch.grad_state;
      run_.copy_state(run_.border(m_.grad_borders, d, j, hv), run.grad_state);
      run_segment(d, j, hv, run, saved);
    });
    if (m_.partial_q != nullptr) finish_groups();
    if (!a_.params()) return;
    parallel_for(HV, run_.call().workers, [&](std::int64_t hv, int) {
      order_.add_group(run_.kernels(), run_.group().totals.segments, hv, sum_of(hv));
    });
  }

 private:
  float* sum_of(std::int64_t hv) const { return m_.sums + hv * 2 * run_.extents().Kp; }

  BackwardRun backward_run(const Document& d, std::int64_t j, std::int64_t hv, const Head& h, Scratch& scratch,
                           const SavedMemory& saved) const {
    BackwardRun run;
    run.run = run_.segment_run(d, j, hv, h, scratch, saved);
    run.run.pairs = Pairs::kLoad;
    run.dout = head_rows<Rows>(a_.dout, d.batch, d.start, hv);
    return run;
  }

  /// Where value head hv keeps its rows of dq and dk until its group of heads is added up.
  std::int64_t partial_at(const Document& d, std::int64_t row, std::int64_t hv) const {
    return ((d.first_row + row) * run_.problem().HV + hv) * run_.extents().Kp;
  }

  /// The full backward of one segment from run.grad_state on.
  void run_segment(const Document& d, std::int64_t j, std::int64_t hv, BackwardRun& run,
                   const SavedMemory& saved) const {
    const Problem& p = run_.problem();
    const BackwardResults& r = a_.results;
    const ConstTensorView& initial = run_.call().operands->initial_state;
    if (j > 0) {
      run.run.state = run_.border(saved.borders, d, j - 1, hv);
    } else {
      run.run.state = run.run.scratch->state;
      run.run.zero_state = !initial.given;
      if (initial.given) state_in(initial, d.number, hv, p, run.run.state);
    }
    GradientRows& g = run.gradients;
    if (m_.partial_q != nullptr) {
      g.partial_q = m_.partial_q + partial_at(d, 0, hv);
      g.partial_k = m_.partial_k + partial_at(d, 0, hv);
      g.partial_stride = p.HV * run_.extents().Kp;
    } else {
      g.dq = head_rows<MutableRows>(r.dq, d.batch, d.start, hv);
      g.dk = head_rows<MutableRows>(r.dk, d.batch, d.start, hv);
    }
    g.dv = head_rows<MutableRows>(r.dv, d.batch, d.start, hv);
    g.dg = head_rows<MutableRows>(r.dg, d.batch, d.start, hv);
    g.dbeta = head_rows<MutableRows>(r.dbeta, d.batch, d.start, hv);
    const std::int64_t segment = d.first_segment + j;
    if (a_.params()) g.params = order_.slot(segment, hv);
    run_.kernels().backward(run);
    if (a_.params()) order_.arrived(run_.kernels(), segment, hv, sum_of(hv));
    if (j == 0 && r.dinitial_state.given) state_out(r.dinitial_state, d.number, hv, p, run.grad_state);
  }

  /// dq and dk of grouped heads from the partial rows.
  void finish_groups() const {
    const Problem& p = run_.problem();
    run_.each_segment(p.H, [&](const Document& d, SegmentId id, std::int64_t qk_head, Scratch& scratch) {
      const std::int64_t first = id.segment * kSegment, hv = qk_head * p.group();
      Document part = d;
      part.start += first;
      const Head h = run_.head(part, hv);
      GroupedRows g;
      g.head = &h;
      g.rows = std::min<std::int64_t>(kSegment, d.length - first);
      g.group = static_cast<int>(p.group());
      g.partial_q = m_.partial_q + partial_at(d, first, hv);
      g.partial_k = m_.partial_k + partial_at(d, first, hv);
      g.row_stride = p.HV * run_.extents().Kp;
      g.head_stride = run_.extents().Kp;
      g.dq = head_rows<MutableRows>(a_.results.dq, part.batch, part.start, qk_head);
      g.dk = head_rows<MutableRows>(a_.results.dk, part.batch, part.start, qk_head);
      run_.kernels().finish_grouped(g, &scratch);
    });
  }

  const Runner& run_;
  const BackwardArguments& a_;
  const BackwardMemory& m_;
  Order& order_;
};

/// Runs the backward. `saved`: of the forward, or nullptr to recompute it in the workspace, group by group.
template <class Order>
void backward_cpu(const Call& call, const BackwardArguments& arguments, Arena& workspace, const SavedMemory* saved) {
  const Extents& x = call.extents;
  const BackwardResults& r = arguments.results;
  const BackwardMemory m = carve_backward(workspace, x, saved == nullptr, arguments.params());
  Order order;
  if (arguments.params()) {
    order.take(workspace, x.totals.largest.segments, x.HV, 2 * x.Kp);
    std::fill(m.sums, m.sums + x.HV * 2 * x.Kp, 0.0f);
  }
  Scratch* scratch = carve_workers(workspace, x, call.memory, call.workers, true);
  each_group(call, [&](const Group& group, const Totals& before) {
    const Runner runner(call, group, m.tables, scratch);
    if (saved == nullptr) runner.forward(nullptr, m.recomputed, true);
    const BackwardGroup<Order> backward(runner, arguments, m, order);
    backward(saved != nullptr ? advance(*saved, x, before) : m.recomputed);
  });
  if (arguments.params()) write_params(call, r, m.sums);
  if (!call.lengths.packed()) return;
  for (const TensorView* rows : {&r.dq, &r.dk, &r.dv, &r.dg, &r.dbeta}) zero_tail(*rows, call.lengths.end());
}

}  // namespace cake::kda
