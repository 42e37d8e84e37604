// The backward over ranks: see kcp_run.h and the phases of cpu/backward_driver.h.
#include <cstring>

#include "ops/kda/kcp_run.h"

namespace cake::kda {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::size_t bytes_of(std::int64_t floats) { return to_size(floats) * sizeof(float); }

std::array<TensorView, kRowTensors> row_gradients(const BackwardResults& r) {
  return {r.dq, r.dk, r.dv, r.dg, r.dbeta};
}

}  // namespace

void KcpRun::backward(const KcpBackwardMemory& m, const KcpSavedMemory& kept, const BackwardArguments& a,
                      const GateSums& sums) {
  backward_ = &m;
  chains_ = m.chains;
  own_block_ = m.own_block;
  all_blocks_ = m.all_blocks;
  const RowTensor<ConstTensorView> dout[] = {{a.dout, sizes_.out_bytes}};
  collect_rows(comm_, plan(), dout, m.staged_dout, m.messages);
  use_staged(kept.staged);
  staged_dout_ = staged_view(a.dout, m.staged_dout, plan().staged_rows);
  std::array<RowTensor<TensorView>, kRowTensors> results;
  std::byte* staged = m.staged_grads;
  for (std::size_t i = 0; i < kRowTensors; ++i) {
    results[i] = {row_gradients(a.results)[i], sizes_.row_bytes[i]};
    staged_grads_[i] = staged_view(results[i].view, staged, plan().staged_rows);
    staged += to_size(plan().staged_rows) * sizes_.row_bytes[i];
  }
  write_edge_states(a.d_final_state, a.results.dinitial_state);
  run_adjoint_ahead(kept, a);
  run_backward_chains(lists_.last, kept, a, sums);
  if (!sizes_.transfer) summarise(kept, Pairs::kLoad);
  summarise_adjoint(kept, a);
  if (sizes_.exchange == kcp::Exchange::kGather) {
    fold_backward_gather(kept);
  } else {
    fold_backward_relay(kept);
  }
  run_backward_chains(lists_.earlier, kept, a, sums);
  run_backward_from_ahead(kept, a, sums);
  if (a.results.dinitial_state.given) return_initial_gradients(m.edges, a.results.dinitial_state);
  if (sizes_.grouped()) finish_groups(a);
  if (sizes_.params) sum_chunk_params(sums);
  deliver_rows(comm_, plan(), results, m.staged_grads, m.messages, nullptr);
}

/// Gradients of the initial states that another rank brought, back to it.
void KcpRun::return_initial_gradients(float* edges, const TensorView& dinitial_state) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const std::size_t bytes = bytes_of(sizes_.state_block());
  float* next = edges;
  for (const kcp::FoldPlan::Edge& e : plan().edges) {
    if (e.computer == plan().rank) {
      sends.push_back({e.holder, memory_of(plan().chain_at(e.document, 0)).state, bytes});
    } else if (e.holder == plan().rank) {
      receives.push_back({e.computer, next, bytes});
      next += sizes_.state_block();
    }
  }
  post(sends, receives);
  for (const kcp::FoldPlan::Edge& e : plan().edges) {
    if (e.holder != plan().rank) continue;
    for (std::int64_t hv = 0; hv < HV(); ++hv, edges += state_floats()) {
      state_out(dinitial_state, e.document, hv, problem_, edges);
    }
  }
}

void KcpRun::run_backward_part(std::size_t c, const kcp::Part& part, std::int64_t hv, Scratch& scratch, float* grad,
                               bool zero_grad, const KcpSavedMemory& kept, const BackwardArguments& a,
                               const GateSums& sums) {
  const kcp::Chain& chain = plan().chains[c];
  const Head head = part_head(part, hv);
  const BackwardResults& r = a.results;
  BackwardRun run;
  run.run = part_run(part, head, scratch, hv, kept);
  run.run.pairs = Pairs::kLoad;
  run.run.state = kept_state(kept, part, hv);
  run.run.zero_state = part.first_row == 0 && !operands_.initial_state.given;
  run.dout = head_rows<Rows>(rows_of(part, a.dout, staged_dout_), 0, part.local_row, hv);
  run.grad_state = grad;
  run.zero_grad_state = zero_grad;
  GradientRows& g = run.gradients;
  const auto rows = [&](std::size_t i, const TensorView& local) {
    return head_rows<MutableRows>(rows_of(part, local, staged_grads_[i]), 0, part.local_row, hv);
  };
  if (sizes_.grouped()) {
    const std::int64_t at = (part.rows_before * HV() + hv) * extents().Kp;
    g.partial_q = backward_->partial_q + at;
    g.partial_k = backward_->partial_k + at;
    g.partial_stride = HV() * extents().Kp;
  } else {
    g.dq = rows(0, r.dq);
    g.dk = rows(1, r.dk);
  }
  g.dv = rows(2, r.dv);
  g.dg = rows(3, r.dg);
  g.dbeta = rows(4, r.dbeta);
  const bool whole_chain = chain.parts.size() == 1;
  if (sizes_.params && whole_chain) g.params = sums.slot(chain.ending, hv);
  if (sizes_.params && !whole_chain) {
    const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
    g.chunk_params = backward_->chunk_params[part.number] + hv * chunks * 2 * extents().Kp;
  }
  table_.backward(run);
  if (sizes_.params && whole_chain && sums.arrived) sums.arrived(chain.ending, hv);
  if (part.first_row == 0 && r.dinitial_state.given && holds_first_row(chain.document))
    state_out(r.dinitial_state, chain.document, hv, problem_, grad);
}

void KcpRun::run_backward_chains(const List& list, const KcpSavedMemory& kept, const BackwardArguments& a,
                                 const GateSums& sums) {
  relay(list, true, Carry::kState,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const kcp::Chain& chain = plan().chains[c];
          float* grad = state_of(c, hv);
          const bool from_end = level == 0 && chain.last;
          if (from_end && a.d_final_state.given) state_in(a.d_final_state, chain.document, hv, problem_, grad);
          run_backward_part(c, part, hv, scratch, grad, from_end && !a.d_final_state.given, kept, a, sums);
        });
}

/// The dS recurrence alone over a part.
BackwardRun KcpRun::adjoint_run(const kcp::Part& part, const Head& head, std::int64_t hv, Scratch& scratch,
                                const KcpSavedMemory& kept, const BackwardArguments& a) const {
  BackwardRun run;
  run.run = part_run(part, head, scratch, hv, kept);
  run.run.pairs = Pairs::kLoad;
  run.dout = head_rows<Rows>(rows_of(part, a.dout, staged_dout_), 0, part.local_row, hv);
  return run;
}

/// D_{n-1} of documents on several ranks; keeps dS at the end of each part for the full run.
void KcpRun::run_adjoint_ahead(const KcpSavedMemory& kept, const BackwardArguments& a) {
  relay(lists_.last_ahead, true, Carry::kState,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          float* grad = state_of(c, hv);
          const bool zero = level == 0 && !a.d_final_state.given;
          if (level == 0 && !zero) state_in(a.d_final_state, plan().chains[c].document, hv, problem_, grad);
          if (!zero) std::copy_n(grad, state_floats(), backward_->part_grads[part.number] + hv * state_floats());
          const Head head = part_head(part, hv);
          BackwardRun run = adjoint_run(part, head, hv, scratch, kept, a);
          run.grad_state = grad;
          run.zero_grad_state = zero;
          table_.summarise_adjoint(run);
        });
}

/// The full backward of what ran ahead.
void KcpRun::run_backward_from_ahead(const KcpSavedMemory& kept, const BackwardArguments& a, const GateSums& sums) {
  const List list = own_parts_of(lists_.last_ahead);
  parallel_for(static_cast<std::int64_t>(list.size()) * HV(), workers_, [&](std::int64_t task, int worker) {
    const std::size_t number = list[to_size(task / HV())];
    const auto [c, i] = plan().own_parts[number];
    const std::int64_t hv = task % HV();
    Scratch& scratch = scratch_[worker];
    const bool zero = i + 1 == plan().chains[c].parts.size() && !a.d_final_state.given;
    if (!zero) std::copy_n(backward_->part_grads[number] + hv * state_floats(), state_floats(), scratch.grad_state);
    run_backward_part(c, plan().chains[c].parts[i], hv, scratch, scratch.grad_state, zero, kept, a, sums);
  });
}

void KcpRun::summarise_adjoint(const KcpSavedMemory& kept, const BackwardArguments& a) {
  relay(lists_.middle, true, Carry::kAdjoint,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const Head head = part_head(part, hv);
          BackwardRun run = adjoint_run(part, head, hv, scratch, kept, a);
          run.grad_state = memory_of(c).summary + hv * state_floats();
          run.zero_grad_state = level == 0;
          table_.summarise_adjoint(run);
        });
}

void KcpRun::fold_backward_relay(const KcpSavedMemory& kept) {
  for (std::int64_t step = 0; step + 1 < plan().most_segments; ++step) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    List folds;
    const std::size_t bytes = bytes_of(sizes_.state_block());
    each_backward_move(
        plan(), step,
        [&](std::size_t after, std::size_t here, int from, int to) {
          if (to == plan().rank && plan().chains[here].middle()) folds.push_back(here);
          if (from == plan().rank) {
            const float* D = plan().chains[after].last ? memory_of(after).state : memory_of(after).summary;
            if (to == from) {
              std::memcpy(memory_of(here).state, D, bytes);
            } else {
              sends.push_back({to, D, bytes});
            }
          } else if (to == plan().rank) {
            receives.push_back({from, memory_of(here).state, bytes});
          }
        },
        [&](std::size_t here, int from, int to) {
          if (from == to) return;
          if (from == plan().rank) sends.push_back({to, memory_of(here).summary, bytes});
          if (to == plan().rank) receives.push_back({from, memory_of(here).summary, bytes});
        });
    post(sends, receives);
    parallel_for(static_cast<std::int64_t>(folds.size()) * HV(), workers_, [&](std::int64_t task, int) {
      const std::size_t c = folds[to_size(task / HV())];
      const std::int64_t hv = task % HV();
      table_.fold(static_cast<int>(extents().Kp), static_cast<int>(extents().Vp),
                  kept_transition(kept, c) + hv * extents().transition_floats(), state_of(c, hv),
                  memory_of(c).summary + hv * state_floats(), true);
    });
  }
}

void KcpRun::fold_backward_gather(const KcpSavedMemory& kept) {
  const GatherPlan& g = sizes_.backward_gather;
  gather(g, true);
  // Documents of which a segment with a successor ends on this rank, with the first of them.
  std::vector<std::pair<std::int64_t, std::int64_t>> needed;
  for (const std::size_t c : plan().ending_chains) {
    const kcp::Chain& chain = plan().chains[c];
    if (chain.last || (!needed.empty() && needed.back().first == chain.document)) continue;
    needed.emplace_back(chain.document, chain.segment);
  }
  parallel_for(static_cast<std::int64_t>(needed.size()) * HV(), workers_, [&](std::int64_t task, int) {
    const auto [d, first] = needed[to_size(task / HV())];
    const std::int64_t hv = task % HV();
    const auto state_at = [&](std::size_t c) { return all_blocks_ + g.state_at[c] * HV() + hv * state_floats(); };
    std::int64_t j = plan().segments[to_size(d)] - 1;
    const float* D = state_at(plan().chain_at(d, j));
    while (--j >= first) {
      const std::size_t c = plan().chain_at(d, j);
      if (plan().chains[c].ending >= 0) std::copy_n(D, state_floats(), state_of(c, hv));
      if (j == first) break;
      float* next = state_at(c);  // c of the segment, in place
      table_.fold(static_cast<int>(extents().Kp), static_cast<int>(extents().Vp),
                  kept_transition(kept, c) + hv * extents().transition_floats(), D, next, true);
      D = next;
    }
  });
}

/// dq and dk of grouped heads from the partial rows.
void KcpRun::finish_groups(const BackwardArguments& a) {
  const auto parts = static_cast<std::int64_t>(plan().own_parts.size());
  parallel_for(parts * problem_.H, workers_, [&](std::int64_t task, int worker) {
    const kcp::Part& part = plan().own_part(task / problem_.H);
    const std::int64_t qk_head = task % problem_.H, hv = qk_head * problem_.group();
    const Head head = part_head(part, hv);
    const std::int64_t at = (part.rows_before * HV() + hv) * extents().Kp;
    GroupedRows g;
    g.head = &head;
    g.rows = part.rows;
    g.group = static_cast<int>(problem_.group());
    g.partial_q = backward_->partial_q + at;
    g.partial_k = backward_->partial_k + at;
    g.row_stride = HV() * extents().Kp;
    g.head_stride = extents().Kp;
    g.dq = head_rows<MutableRows>(rows_of(part, a.results.dq, staged_grads_[0]), 0, part.local_row, qk_head);
    g.dk = head_rows<MutableRows>(rows_of(part, a.results.dk, staged_grads_[1]), 0, part.local_row, qk_head);
    table_.finish_grouped(g, &scratch_[worker]);
  });
}

/// Segments of several parts: a chain over their chunks from zero, left to right, as within one part.
void KcpRun::sum_chunk_params(const GateSums& sums) {
  const std::int64_t width = 2 * extents().Kp;
  relay(lists_.several, false, Carry::kParams,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch&) {
          const kcp::Chain& chain = plan().chains[c];
          float* sum = memory_of(c).params + hv * width;
          if (level == 0) std::fill(sum, sum + width, 0.0f);
          const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
          const float* x = backward_->chunk_params[part.number] + hv * chunks * width;
          for (std::int64_t n = 0; n < chunks; ++n) table_.add(sum, x + n * width, width);
          if (level + 1 < chain.parts.size()) return;
          std::copy_n(sum, width, sums.slot(chain.ending, hv));
          if (sums.arrived) sums.arrived(chain.ending, hv);
        });
}

}  // namespace cake::kda
