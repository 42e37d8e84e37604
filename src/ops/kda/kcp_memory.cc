#include "ops/kda/kcp_memory.h"

#include "ops/kda/kcp_moves.h"

namespace cake::kda {
namespace {

/// A rank that receives more than this by a gather relays instead.
constexpr std::int64_t kGatherBytes = std::int64_t{1} << 20;

std::int64_t to_int(std::size_t n) { return static_cast<std::int64_t>(n); }
std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Places contributions one after another in their ranks' blocks.
class GatherBuilder {
 public:
  explicit GatherBuilder(const kcp::FoldPlan& plan) : used_(to_size(plan.world_size), 0) {
    gather_.state_at.assign(plan.chains.size(), -1);
    gather_.transition_at.assign(plan.chains.size(), -1);
  }
  void add(std::size_t chain, int rank, bool transition, std::int64_t floats) {
    std::int64_t& used = used_[to_size(rank)];
    gather_.list.push_back({chain, rank, transition, used, floats});
    used += floats;
    gather_.longest = std::max(gather_.longest, used);
  }
  GatherPlan finish() {
    for (const Contribution& c : gather_.list) {
      (c.transition ? gather_.transition_at : gather_.state_at)[c.chain] = c.rank * gather_.longest + c.at;
    }
    return std::move(gather_);
  }

 private:
  GatherPlan gather_;
  std::vector<std::int64_t> used_;
};

/// B_1 of every document with a later segment, and (b, M) of every middle segment, from the ranks where they end.
GatherPlan forward_gather(const KcpSizes& s) {
  GatherBuilder builder(*s.plan);
  for (std::size_t c = 0; c < s.plan->chains.size(); ++c) {
    const kcp::Chain& chain = s.plan->chains[c];
    if (chain.last) continue;
    builder.add(c, chain.last_rank(), false, s.extents.state_floats());
    if (chain.middle()) builder.add(c, chain.last_rank(), true, s.extents.transition_floats());
  }
  return builder.finish();
}

/// D_{n-1} and the c of middle segments from the ranks where their backward ends; M where it is not saved.
GatherPlan backward_gather(const KcpSizes& s) {
  GatherBuilder builder(*s.plan);
  for (std::size_t c = 0; c < s.plan->chains.size(); ++c) {
    const kcp::Chain& chain = s.plan->chains[c];
    if (chain.segment == 0) continue;
    builder.add(c, chain.first_rank(), false, s.extents.state_floats());
    if (chain.middle() && !s.transfer) builder.add(c, chain.last_rank(), true, s.extents.transition_floats());
  }
  return builder.finish();
}

/// Transitions the backward of this rank folds with: relay, those of segments that end here; gather, those between this
/// rank's first segment of a document (that needs a D) and the document's end.
void number_transitions(KcpSizes& s) {
  const kcp::FoldPlan& plan = *s.plan;
  s.saved_transition.assign(plan.chains.size(), -1);
  s.saved_transitions = 0;
  if (!s.transfer) return;
  for (std::int64_t d = 0; d < plan.documents; ++d) {
    bool needed = false;
    for (std::int64_t j = 0; j + 1 < plan.segments[to_size(d)]; ++j) {
      const std::size_t c = plan.chain_at(d, j);
      const bool ends_here = plan.chains[c].ending >= 0;
      const bool folds = s.exchange == kcp::Exchange::kGather ? needed : ends_here;
      if (plan.chains[c].middle() && folds) s.saved_transition[c] = s.saved_transitions++;
      needed = needed || ends_here;
    }
  }
}

/// Tables and values of this rank's chains.
ChainMemory* carve_chains(Arena& arena, const KcpSizes& s, bool params) {
  auto* table = arena.take<ChainMemory>(to_int(s.plan->own_chains.size()));
  for (std::size_t i = 0; i < s.plan->own_chains.size(); ++i) {
    const kcp::Chain& chain = s.plan->chains[s.plan->own_chains[i]];
    ChainMemory m;
    m.state = arena.take<float>(s.state_block());
    if (chain.middle()) {
      m.summary = arena.take<float>(s.state_block());
      m.transition = arena.take<float>(s.transition_block());
    }
    if (params && chain.parts.size() > 1) m.params = arena.take<float>(s.param_block());
    if (table != nullptr) table[i] = m;
  }
  return table;
}

/// Rows of `sent` bytes go to the computing ranks, rows of `returned` bytes come back.
MessageMemory carve_messages(Arena& arena, const KcpSizes& s, std::size_t sent, std::size_t returned) {
  const auto larger = [](std::int64_t rows, std::size_t a, std::int64_t others, std::size_t b) {
    return std::max(rows * to_int(a), others * to_int(b));
  };
  MessageMemory m;
  m.out = arena.take<std::byte>(larger(s.plan->outgoing_rows, sent, s.plan->incoming_rows, returned));
  m.in = arena.take<std::byte>(larger(s.plan->incoming_rows, sent, s.plan->outgoing_rows, returned));
  return m;
}

std::byte* carve_staged(Arena& arena, const KcpSizes& s) {
  return arena.take<std::byte>(s.plan->staged_rows * to_int(s.all_row_bytes()));
}

}  // namespace

void resolve(KcpSizes& s) {
  const kcp::FoldPlan& plan = *s.plan;
  s.extents.totals.largest.longest_segment = plan.longest_part;
  for (const std::size_t c : plan.own_chains) {
    if (plan.chains[c].middle()) s.extents.totals.largest.transitions = 1;
  }
  if (s.exchange != kcp::Exchange::kRelay) {
    s.forward_gather = forward_gather(s);
    s.backward_gather = backward_gather(s);
    const std::int64_t longest = std::max(s.forward_gather.longest, s.backward_gather.longest);
    const std::int64_t received = (plan.world_size - 1) * longest * s.extents.HV * to_int(sizeof(float));
    if (s.exchange == kcp::Exchange::kAuto) {
      s.exchange = received <= kGatherBytes ? kcp::Exchange::kGather : kcp::Exchange::kRelay;
    }
  }
  number_transitions(s);
}

KcpSavedMemory carve_kcp_saved(Arena& arena, const KcpSizes& s) {
  const kcp::FoldPlan& plan = *s.plan;
  const std::int64_t HV = s.extents.HV;
  KcpSavedMemory m;
  m.states = arena.take<float>(to_int(plan.own_parts.size()) * s.state_block());
  m.pairs = arena.take<float>(plan.part_blocks * 2 * kSubChunk * kSubChunk * HV);
  m.transitions = arena.take<float>(s.saved_transitions * s.transition_block());
  m.staged = carve_staged(arena, s);
  if (s.tape) m.tape = arena.take<float>(plan.part_chunks * HV * tape_floats(s.extents.Kp, s.extents.Vp));
  return m;
}

std::size_t kcp_saved_bytes(const KcpSizes& sizes) {
  Arena count;
  carve_kcp_saved(count, sizes);
  return count.bytes_needed();
}

KcpEntryMemory carve_kcp_entry(Arena& arena, const KcpSizes& s) {
  KcpEntryMemory m;
  m.states = arena.take<float>(to_int(s.plan->own_parts.size()) * s.state_block());
  m.transitions = arena.take<float>(s.saved_transitions * s.transition_block());
  m.staged = carve_staged(arena, s);
  m.out_rows = arena.take<std::byte>(s.plan->outgoing_rows * to_int(s.out_bytes));
  return m;
}

KcpForwardMemory carve_kcp_forward(Arena& arena, const KcpSizes& s, bool saving) {
  KcpForwardMemory m;
  if (!saving) m.kept.staged = carve_staged(arena, s);
  m.chains = carve_chains(arena, s, false);
  m.staged_out = arena.take<std::byte>(s.plan->staged_rows * to_int(s.out_bytes));
  m.messages = carve_messages(arena, s, s.all_row_bytes(), s.out_bytes);
  if (s.initial_state) m.edges = arena.take<float>(s.plan->held_edges * s.state_block());
  if (s.exchange == kcp::Exchange::kGather) {
    const std::int64_t block = s.forward_gather.longest * s.extents.HV;
    m.own_block = arena.take<float>(block);
    m.all_blocks = arena.take<float>(block * s.plan->world_size);
  }
  return m;
}

KcpBackwardMemory carve_kcp_backward(Arena& arena, const KcpSizes& s, bool recompute) {
  KcpBackwardMemory m;
  if (recompute) {
    m.recomputed = carve_kcp_saved(arena, s);
    m.forward = carve_kcp_forward(arena, s, true);
  }
  m.chains = carve_chains(arena, s, s.params);
  const auto parts = to_int(s.plan->own_parts.size());
  m.part_grads = arena.take<float*>(parts);
  for (std::int64_t n = 0; n < parts; ++n) {
    const kcp::Chain& chain = s.plan->chains[s.plan->own_parts[to_size(n)].first];
    float* memory = is_last_ahead(*s.plan, chain) ? arena.take<float>(s.state_block()) : nullptr;
    if (m.part_grads != nullptr) m.part_grads[n] = memory;
  }
  if (s.params) {
    m.chunk_params = arena.take<float*>(parts);
    for (std::int64_t n = 0; n < parts; ++n) {
      const auto [c, i] = s.plan->own_parts[to_size(n)];
      float* memory = nullptr;
      if (s.plan->chains[c].parts.size() > 1) {
        const std::int64_t chunks = (s.plan->chains[c].parts[i].rows + kChunk - 1) / kChunk;
        memory = arena.take<float>(chunks * s.param_block());
      }
      if (m.chunk_params != nullptr) m.chunk_params[n] = memory;
    }
  }
  m.staged_dout = arena.take<std::byte>(s.plan->staged_rows * to_int(s.out_bytes));
  m.staged_grads = carve_staged(arena, s);
  m.messages = carve_messages(arena, s, s.out_bytes, s.all_row_bytes());
  if (s.initial_state) m.edges = arena.take<float>(s.plan->held_edges * s.state_block());
  if (s.exchange == kcp::Exchange::kGather) {
    const std::int64_t block = s.backward_gather.longest * s.extents.HV;
    m.own_block = arena.take<float>(block);
    m.all_blocks = arena.take<float>(block * s.plan->world_size);
  }
  if (s.grouped()) {
    m.partial_q = arena.take<float>(s.plan->part_rows * s.extents.HV * s.extents.Kp);
    m.partial_k = arena.take<float>(s.plan->part_rows * s.extents.HV * s.extents.Kp);
  }
  return m;
}

std::size_t kcp_forward_bytes(const KcpSizes& sizes, bool saving, int workers) {
  Arena count;
  carve_kcp_forward(count, sizes, saving);
  carve_workers(count, sizes.extents, {}, workers, false);
  return count.bytes_needed();
}

kcp::CommBytes kcp_comm_bytes(const KcpSizes& s, bool by_rank) {
  const kcp::FoldPlan& plan = *s.plan;
  const ChainLists lists(plan);
  const auto count = [&](kcp::CommPhase& phase, int from, int to, std::int64_t floats) {
    const auto bytes = static_cast<std::uint64_t>(floats) * sizeof(float);
    if (from == to) return;
    if (from == plan.rank) phase.sent += bytes;
    if (to == plan.rank) phase.received += bytes;
  };
  const auto relay = [&](kcp::CommPhase& phase, const std::vector<std::size_t>& list, bool reverse,
                         std::int64_t floats) {
    for (std::size_t level = 1; level < levels_of(plan, list); ++level) {
      each_handover(plan, list, level, reverse, [&](std::size_t, int from, int to) { count(phase, from, to, floats); });
    }
  };
  const auto gather = [&](kcp::CommPhase& phase, std::int64_t floats) {
    const auto bytes = static_cast<std::uint64_t>((plan.world_size - 1) * floats) * sizeof(float);
    phase.sent += bytes;
    phase.received += bytes;
  };
  const auto rows = [](std::int64_t n, std::size_t bytes) { return to_size(n) * bytes; };
  const std::size_t operands = s.all_row_bytes();
  const std::int64_t state = s.state_block(), transition = s.transition_block();
  kcp::CommBytes b;
  b.halo_fwd = {rows(plan.outgoing_rows, operands) + rows(plan.incoming_rows, s.out_bytes),
                rows(plan.incoming_rows, operands) + rows(plan.outgoing_rows, s.out_bytes)};
  b.halo_bwd = {rows(plan.outgoing_rows, s.out_bytes) + rows(plan.incoming_rows, operands),
                rows(plan.incoming_rows, s.out_bytes) + rows(plan.outgoing_rows, operands)};
  if (s.initial_state) {
    for (const kcp::FoldPlan::Edge& e : plan.edges) {
      count(b.halo_fwd, e.holder, e.computer, state);
      count(b.halo_bwd, e.computer, e.holder, state);
    }
  }
  relay(b.c1, lists.first_ahead, false, state);
  relay(b.c1, lists.first, false, state);
  relay(b.c1, lists.middle, false, state + transition);
  relay(b.c1, lists.later, false, state);
  relay(b.b1, lists.last_ahead, true, state);
  relay(b.b1, lists.last, true, state);
  if (!s.transfer) relay(b.b1, lists.middle, false, state + transition);
  relay(b.b1, lists.middle, true, state);
  relay(b.b1, lists.earlier, true, state);
  if (s.params) relay(b.b1, lists.several, false, s.param_block());
  if (s.exchange == kcp::Exchange::kGather) {
    gather(b.c2, s.forward_gather.longest * s.extents.HV);
    gather(b.b2, s.backward_gather.longest * s.extents.HV);
  } else {
    for (std::int64_t j = 1; j < plan.most_segments; ++j) {
      each_forward_move(plan, j, [&](std::size_t, std::size_t, int from, int to) { count(b.c2, from, to, state); });
      each_backward_move(
          plan, j - 1, [&](std::size_t, std::size_t, int from, int to) { count(b.b2, from, to, state); },
          [&](std::size_t, int from, int to) { count(b.b2, from, to, state); });
    }
  }
  if (s.params) {
    std::int64_t longest = 1;
    if (!by_rank) {
      std::vector<std::int64_t> ending(to_size(plan.world_size), 0);
      for (const kcp::Chain& chain : plan.chains) ++ending[to_size(chain.last_rank())];
      longest = *std::max_element(ending.begin(), ending.end());
    }
    gather(b.gate_params, longest * s.param_block());
  }
  return b;
}

}  // namespace cake::kda
