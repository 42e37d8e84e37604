// What forward and backward over ranks share, and the forward. See kcp_run.h.
#include "ops/kda/kcp_run.h"

#include <cstring>

namespace cake::kda {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }
std::size_t bytes_of(std::int64_t floats) { return to_size(floats) * sizeof(float); }

/// A first segment of one part of this rank's own rows: its start state can be had again.
bool starts_again(const kcp::Chain& chain) { return chain.parts.size() == 1 && !chain.parts.front().staged; }

}  // namespace

KcpRun::KcpRun(const KcpSizes& sizes, Communicator& communicator, const Problem& problem, const Operands& operands,
               const Settings& settings, Scratch* scratch, int workers)
    : sizes_(sizes),
      comm_(communicator),
      problem_(problem),
      operands_(operands),
      settings_(settings),
      scratch_(scratch),
      workers_(workers),
      table_(kernels(current_cpu_isa())),
      lists_(*sizes.plan) {}

void KcpRun::use_staged(std::byte* staged) {
  staged_ = operands_;
  std::size_t i = 0;
  for (ConstTensorView* x : {&staged_.q, &staged_.k, &staged_.v, &staged_.g, &staged_.beta}) {
    *x = staged_view(*x, staged, plan().staged_rows);
    staged += to_size(plan().staged_rows) * sizes_.row_bytes[i++];
  }
}

Head KcpRun::part_head(const kcp::Part& part, std::int64_t hv) const {
  return make_head(table_, problem_, rows_of(part, operands_, staged_), settings_, 0, part.local_row, hv);
}

SegmentRun KcpRun::part_run(const kcp::Part& part, const Head& head, Scratch& scratch, std::int64_t hv,
                            const KcpSavedMemory& kept) const {
  constexpr std::int64_t kBlockFloats = 2 * kSubChunk * kSubChunk;
  SegmentRun run;
  run.head = &head;
  run.rows = part.rows;
  run.scratch = &scratch;
  if (kept.pairs != nullptr) {
    const std::int64_t blocks =
        part.rows / kChunk * kcp::triangle_blocks(kChunk) + kcp::triangle_blocks(part.rows % kChunk);
    run.pair_memory = kept.pairs + (part.blocks_before * HV() + hv * blocks) * kBlockFloats;
  }
  if (kept.tape != nullptr) {
    const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
    run.tape = kept.tape + (part.chunks_before * HV() + hv * chunks) * tape_floats(extents().Kp, extents().Vp);
  }
  return run;
}

std::vector<std::pair<float*, std::int64_t>> KcpRun::carried(std::size_t chain, Carry carry) const {
  const ChainMemory& m = memory_of(chain);
  switch (carry) {
    case Carry::kState: return {{m.state, sizes_.state_block()}};
    case Carry::kSummary: return {{m.summary, sizes_.state_block()}, {m.transition, sizes_.transition_block()}};
    case Carry::kAdjoint: return {{m.summary, sizes_.state_block()}};
    case Carry::kParams: return {{m.params, sizes_.param_block()}};
  }
  return {};
}

void KcpRun::post(const std::vector<Send>& sends, const std::vector<Receive>& receives) {
  if (!sends.empty() || !receives.empty()) comm_.exchange(sends, receives);
}

void KcpRun::hand_over(const List& list, std::size_t level, bool reverse, Carry carry) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  each_handover(plan(), list, level, reverse, [&](std::size_t c, int from, int to) {
    if (from != plan().rank && to != plan().rank) return;
    for (const auto& [data, floats] : carried(c, carry)) {
      if (from == plan().rank) sends.push_back({to, data, bytes_of(floats)});
      if (to == plan().rank) receives.push_back({from, data, bytes_of(floats)});
    }
  });
  post(sends, receives);
}

/// Writes all states of `to`: exact 0, and those of empty documents from `from` on rank 0. Runs overwrite theirs.
void KcpRun::write_edge_states(const ConstTensorView& from, const TensorView& to) const {
  if (!to.given) return;
  for (std::int64_t n = 0; n < problem_.N; ++n) {
    const bool here = plan().segments[to_size(n)] == 0 && plan().rank == 0;
    for (std::int64_t hv = 0; hv < HV(); ++hv) pass_state(here ? from : ConstTensorView{}, to, n, hv, problem_);
  }
}

/// Initial states of documents whose first chunk is cut, to the rank that computes it.
void KcpRun::bring_initial_states(float* edges) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const kcp::FoldPlan::Edge& e : plan().edges) {
    const std::size_t bytes = bytes_of(sizes_.state_block());
    if (e.holder == plan().rank) {
      for (std::int64_t hv = 0; hv < HV(); ++hv) {
        state_in(operands_.initial_state, e.document, hv, problem_, edges + hv * state_floats());
      }
      sends.push_back({e.computer, edges, bytes});
      edges += sizes_.state_block();
    } else if (e.computer == plan().rank) {
      receives.push_back({e.holder, memory_of(plan().chain_at(e.document, 0)).state, bytes});
    }
  }
  post(sends, receives);
}

void KcpRun::run_forward_part(const kcp::Chain& chain, const kcp::Part& part, bool last_part, std::int64_t hv,
                              Scratch& scratch, float* state, const KcpSavedMemory& kept, Pairs pairs,
                              const ForwardResults* results) {
  const Head head = part_head(part, hv);
  SegmentRun run = part_run(part, head, scratch, hv, kept);
  run.pairs = pairs;
  run.state = state;
  run.zero_state = part.first_row == 0 && !operands_.initial_state.given;
  // Without results a run is wanted for its end state only: within a chain, or of a first segment with successors.
  run.run_state = results != nullptr || !last_part || (chain.segment == 0 && !chain.last);
  if (results == nullptr) run.tape = nullptr;  // a full run follows, or nothing reads it
  if (results != nullptr) {
    run.out = head_rows<MutableRows>(rows_of(part, results->out, staged_out_), 0, part.local_row, hv);
  }
  if (run.run_state || pairs != Pairs::kLoad) table_.forward(run);
  if (results != nullptr && chain.last && last_part && results->final_state.given) {
    state_out(results->final_state, chain.document, hv, problem_, state);
  }
}

void KcpRun::run_forward_chains(const List& list, const KcpSavedMemory& kept, const ForwardResults* results) {
  relay(list, false, Carry::kState,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const kcp::Chain& chain = plan().chains[c];
          float* state = state_of(c, hv);
          if (part.first_row == 0 && operands_.initial_state.given && holds_first_row(chain.document)) {
            state_in(operands_.initial_state, chain.document, hv, problem_, state);
          }
          const bool zero = part.first_row == 0 && !operands_.initial_state.given;
          if (kept.states != nullptr && !zero) std::copy_n(state, state_floats(), kept_state(kept, part, hv));
          const Pairs pairs = chain.middle() || is_last_ahead(plan(), chain) ? Pairs::kLoad : Pairs::kStore;
          run_forward_part(chain, part, level + 1 == chain.parts.size(), hv, scratch, state, kept,
                           kept.pairs != nullptr ? pairs : Pairs::kCompute, results);
        });
}

void KcpRun::summarise(const KcpSavedMemory& kept, Pairs pairs) {
  relay(lists_.middle, false, Carry::kSummary,
        [&](std::size_t c, const kcp::Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const Head head = part_head(part, hv);
          SegmentRun run = part_run(part, head, scratch, hv, kept);
          run.pairs = pairs;
          run.tape = nullptr;  // a summary has no chunk states
          run.resume = level > 0;
          run.state = memory_of(c).summary + hv * state_floats();
          table_.summarise(run, memory_of(c).transition + hv * extents().transition_floats());
        });
}

void KcpRun::fold_forward_relay() {
  for (std::int64_t j = 1; j < plan().most_segments; ++j) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    each_forward_move(plan(), j, [&](std::size_t before, std::size_t here, int from, int to) {
      const bool first = plan().chains[before].segment == 0;
      if (from == plan().rank) {
        const float* end = first ? memory_of(before).state : memory_of(before).summary;
        if (to == from) {
          std::memcpy(memory_of(here).state, end, bytes_of(sizes_.state_block()));
        } else {
          sends.push_back({to, end, bytes_of(sizes_.state_block())});
        }
      } else if (to == plan().rank) {
        receives.push_back({from, memory_of(here).state, bytes_of(sizes_.state_block())});
      }
    });
    post(sends, receives);
    List folds;
    for (const std::size_t c : plan().ending_chains) {
      if (plan().chains[c].segment == j && plan().chains[c].middle()) folds.push_back(c);
    }
    parallel_for(static_cast<std::int64_t>(folds.size()) * HV(), workers_, [&](std::int64_t task, int) {
      const std::size_t c = folds[to_size(task / HV())];
      const std::int64_t hv = task % HV();
      const ChainMemory& m = memory_of(c);
      table_.fold(static_cast<int>(extents().Kp), static_cast<int>(extents().Vp),
                  m.transition + hv * extents().transition_floats(), state_of(c, hv), m.summary + hv * state_floats(),
                  false);
    });
  }
}

void KcpRun::gather(const GatherPlan& gather, bool backward) {
  if (gather.longest == 0) return;
  for (const Contribution& x : gather.list) {
    if (x.rank != plan().rank) continue;
    const kcp::Chain& chain = plan().chains[x.chain];
    const ChainMemory& m = memory_of(x.chain);
    const bool run_end = backward ? chain.last : chain.segment == 0;
    const float* from = x.transition ? m.transition : run_end ? m.state : m.summary;
    std::memcpy(own_block_ + x.at * HV(), from, bytes_of(x.floats * HV()));
  }
  comm_.all_gather(own_block_, bytes_of(gather.longest * HV()), all_blocks_);
}

void KcpRun::fold_forward_gather() {
  const GatherPlan& g = sizes_.forward_gather;
  gather(g, false);
  // Documents whose later segments start on this rank, with the last of those segments.
  std::vector<std::pair<std::int64_t, std::int64_t>> needed;
  for (const std::size_t c : plan().own_chains) {
    const kcp::Chain& chain = plan().chains[c];
    if (chain.segment == 0 || chain.first_rank() != plan().rank) continue;
    if (needed.empty() || needed.back().first != chain.document) needed.emplace_back(chain.document, 0);
    needed.back().second = chain.segment;
  }
  parallel_for(static_cast<std::int64_t>(needed.size()) * HV(), workers_, [&](std::int64_t task, int) {
    const auto [d, end] = needed[to_size(task / HV())];
    const std::int64_t hv = task % HV();
    const auto state_at = [&](std::size_t c) { return all_blocks_ + g.state_at[c] * HV() + hv * state_floats(); };
    const float* B = state_at(plan().chain_at(d, 0));
    for (std::int64_t j = 1; j <= end; ++j) {
      const std::size_t c = plan().chain_at(d, j);
      if (plan().chains[c].first_rank() == plan().rank) std::copy_n(B, state_floats(), state_of(c, hv));
      if (j == end) break;
      float* next = state_at(c);  // b, in place
      table_.fold(static_cast<int>(extents().Kp), static_cast<int>(extents().Vp),
                  all_blocks_ + g.transition_at[c] * HV() + hv * extents().transition_floats(), B, next, false);
      B = next;
    }
  });
}

/// Copies the transitions that the backward folds with.
void KcpRun::keep_transitions(float* transitions) const {
  for (std::size_t c = 0; c < plan().chains.size(); ++c) {
    const std::int64_t n = sizes_.saved_transition[c];
    if (n < 0) continue;
    const float* M = sizes_.exchange == kcp::Exchange::kGather
                         ? all_blocks_ + sizes_.forward_gather.transition_at[c] * HV()
                         : memory_of(c).transition;
    std::memcpy(transitions + n * sizes_.transition_block(), M, bytes_of(sizes_.transition_block()));
  }
}

void KcpRun::forward(const KcpForwardMemory& m, const KcpSavedMemory& kept, bool saving, const ForwardResults* results,
                     const KcpEntryMemory* entry) {
  chains_ = m.chains;
  own_block_ = m.own_block;
  all_blocks_ = m.all_blocks;
  collect_rows(comm_, plan(), operand_rows(sizes_, operands_), kept.staged, m.messages);
  use_staged(kept.staged);
  if (results != nullptr) {
    staged_out_ = staged_view(results->out, m.staged_out, plan().staged_rows);
    write_edge_states(operands_.initial_state, results->final_state);
  }
  // An entry keeps the start states of parts as a saved set does.
  KcpSavedMemory target = saving ? kept : KcpSavedMemory{};
  if (!saving && entry != nullptr) target.states = entry->states;
  if (operands_.initial_state.given) bring_initial_states(m.edges);
  // Ahead without outputs. The full run takes start states and products from what is kept; where nothing is, a segment
  // of one part starts again from the initial state, and one of several parts runs in full at once.
  List again, at_once;
  for (const std::size_t c : lists_.first_ahead)
    (saving || starts_again(plan().chains[c]) ? again : at_once).push_back(c);
  run_forward_chains(again, target, nullptr);
  run_forward_chains(at_once, target, results);
  run_forward_chains(lists_.first, target, results);
  summarise(target, saving ? Pairs::kStore : Pairs::kCompute);
  if (saving) make_pairs(own_parts_of(lists_.last_ahead), kept);
  if (sizes_.exchange == kcp::Exchange::kGather) {
    fold_forward_gather();
  } else {
    fold_forward_relay();
  }
  run_forward_chains(lists_.later, target, results);
  if (!saving) run_forward_chains(again, target, results);
  if (saving && results != nullptr) {
    run_forward_from_kept(own_parts_of(again), kept, kept.states, Pairs::kLoad, *results);
  }
  if (saving) keep_transitions(kept.transitions);
  std::byte* received = nullptr;
  if (entry != nullptr) {
    const auto parts = static_cast<std::int64_t>(plan().own_parts.size());
    if (saving) std::memcpy(entry->states, kept.states, bytes_of(parts * sizes_.state_block()));
    keep_transitions(entry->transitions);
    std::memcpy(entry->staged, kept.staged, to_size(plan().staged_rows) * sizes_.all_row_bytes());
    received = entry->out_rows;
  }
  if (results == nullptr) return;
  const RowTensor<TensorView> out[] = {{results->out, sizes_.out_bytes}};
  deliver_rows(comm_, plan(), out, m.staged_out, m.messages, received);
}

/// Numbers of this rank's parts of some chains.
KcpRun::List KcpRun::own_parts_of(const List& chains) const {
  List list;
  for (const std::size_t c : chains) {
    for (const kcp::Part& part : plan().chains[c].parts) {
      if (part.number >= 0) list.push_back(to_size(part.number));
    }
  }
  return list;
}

/// The products of some parts, without any state.
void KcpRun::make_pairs(const List& parts, const KcpSavedMemory& kept) {
  parallel_for(static_cast<std::int64_t>(parts.size()) * HV(), workers_, [&](std::int64_t task, int worker) {
    const kcp::Part& part = plan().own_part(static_cast<std::int64_t>(parts[to_size(task / HV())]));
    const std::int64_t hv = task % HV();
    const Head head = part_head(part, hv);
    SegmentRun run = part_run(part, head, scratch_[worker], hv, kept);
    run.tape = nullptr;
    run.pairs = Pairs::kStore;
    run.run_state = false;
    table_.forward(run);
  });
}

/// Runs parts from their start states in `states` (by part), each on its own.
void KcpRun::run_forward_from_kept(const List& list, const KcpSavedMemory& kept, const float* states, Pairs pairs,
                                   const ForwardResults& results) {
  parallel_for(static_cast<std::int64_t>(list.size()) * HV(), workers_, [&](std::int64_t task, int worker) {
    const std::size_t number = list[to_size(task / HV())];
    const auto [c, i] = plan().own_parts[number];
    const kcp::Chain& chain = plan().chains[c];
    const std::int64_t hv = task % HV();
    Scratch& scratch = scratch_[worker];
    const float* start = states + (static_cast<std::int64_t>(number) * HV() + hv) * state_floats();
    std::copy_n(start, state_floats(), scratch.state);
    run_forward_part(chain, chain.parts[i], i + 1 == chain.parts.size(), hv, scratch, scratch.state, kept, pairs,
                     &results);
  });
}

void KcpRun::replay(const KcpForwardMemory& m, const KcpSavedMemory& kept, bool saving, const ForwardResults& results,
                    const KcpEntryMemory& entry) {
  std::memcpy(kept.staged, entry.staged, to_size(plan().staged_rows) * sizes_.all_row_bytes());
  use_staged(kept.staged);
  staged_out_ = staged_view(results.out, m.staged_out, plan().staged_rows);
  write_edge_states(operands_.initial_state, results.final_state);
  if (saving) {
    const auto parts = static_cast<std::int64_t>(plan().own_parts.size());
    std::memcpy(kept.states, entry.states, bytes_of(parts * sizes_.state_block()));
    std::memcpy(kept.transitions, entry.transitions, bytes_of(sizes_.saved_transitions * sizes_.transition_block()));
  }
  List all(plan().own_parts.size());
  for (std::size_t n = 0; n < all.size(); ++n) all[n] = n;
  run_forward_from_kept(all, saving ? kept : KcpSavedMemory{}, entry.states, saving ? Pairs::kStore : Pairs::kCompute,
                        results);
  const RowTensor<TensorView> out[] = {{results.out, sizes_.out_bytes}};
  replay_rows(plan(), out, m.staged_out, entry.out_rows);
}

}  // namespace cake::kda
