// Which boundary values move between which ranks, as functions of the plan alone: the run sends what these list, the
// byte query counts it.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/fold_plan.h"

namespace cake::kda {

/// Chains that advance together. Where a document lies on several ranks, others wait for what leaves its first segment
/// (forward) and its last one (backward): those run ahead with the bare recurrence, and in full when nobody waits.
struct ChainLists {
  explicit ChainLists(const kcp::FoldPlan& plan) {
    for (std::size_t c = 0; c < plan.chains.size(); ++c) {
      const kcp::Chain& chain = plan.chains[c];
      const bool spanning = plan.spanning[static_cast<std::size_t>(chain.document)];
      const bool alone = chain.segment == 0 && chain.last;
      (chain.segment > 0 || alone ? later : spanning ? first_ahead : first).push_back(c);
      (!chain.last || alone ? earlier : spanning ? last_ahead : last).push_back(c);
      if (chain.middle()) middle.push_back(c);
      if (chain.parts.size() > 1) several.push_back(c);
    }
  }
  std::vector<std::size_t> first_ahead, first;  ///< segment 0 with a successor
  std::vector<std::size_t> later;               ///< the others
  std::vector<std::size_t> last_ahead, last;    ///< the last segment, with a predecessor
  std::vector<std::size_t> earlier;             ///< the others
  std::vector<std::size_t> middle;              ///< with a transition
  std::vector<std::size_t> several;             ///< of several parts
};

/// A chain of ChainLists::last_ahead.
inline bool is_last_ahead(const kcp::FoldPlan& plan, const kcp::Chain& chain) {
  return chain.last && chain.segment > 0 && plan.spanning[static_cast<std::size_t>(chain.document)];
}

inline std::size_t levels_of(const kcp::FoldPlan& plan, const std::vector<std::size_t>& list) {
  std::size_t levels = 0;
  for (const std::size_t c : list) levels = std::max(levels, plan.chains[c].parts.size());
  return levels;
}

/// Part number `level` of a chain, from the left or (reverse) from the right.
inline const kcp::Part& part_at(const kcp::Chain& chain, std::size_t level, bool reverse) {
  return chain.parts[reverse ? chain.parts.size() - 1 - level : level];
}

/// Calls fn(chain, from, to) for every chain whose running values go to another rank before `level`.
template <class Fn>
void each_handover(const kcp::FoldPlan& plan, const std::vector<std::size_t>& list, std::size_t level, bool reverse,
                   Fn fn) {
  if (level == 0) return;
  for (const std::size_t c : list) {
    if (level >= plan.chains[c].parts.size()) continue;
    const int from = part_at(plan.chains[c], level - 1, reverse).rank,
              to = part_at(plan.chains[c], level, reverse).rank;
    if (from != to) fn(c, from, to);
  }
}

/// Relay, forward, step j: calls fn(chain j - 1, chain j, from, to) for the ranks that B_j reaches: the one that starts
/// segment j, and the one that folds it. from == to where it is there already.
template <class Fn>
void each_forward_move(const kcp::FoldPlan& plan, std::int64_t j, Fn fn) {
  for (std::int64_t d = 0; d < plan.documents; ++d) {
    if (j >= plan.segments[static_cast<std::size_t>(d)]) continue;
    const std::size_t before = plan.chain_at(d, j - 1), here = plan.chain_at(d, j);
    const kcp::Chain& chain = plan.chains[here];
    const int holder = plan.chains[before].last_rank();
    fn(before, here, holder, chain.first_rank());
    if (chain.middle() && chain.last_rank() != chain.first_rank()) fn(before, here, holder, chain.last_rank());
  }
}

/// Relay, backward, step s (segment j = n - 2 - s of every document): calls adjoint(chain j + 1, chain j, from, to) for
/// D_{j+1}, which goes to the rank where segment j ends, and summary(chain j, from, to) for c_j, which goes there to be
/// folded.
template <class Adjoint, class Summary>
void each_backward_move(const kcp::FoldPlan& plan, std::int64_t step, Adjoint adjoint, Summary summary) {
  for (std::int64_t d = 0; d < plan.documents; ++d) {
    const std::int64_t j = plan.segments[static_cast<std::size_t>(d)] - 2 - step;
    if (j < 0) continue;
    const std::size_t here = plan.chain_at(d, j), after = plan.chain_at(d, j + 1);
    const kcp::Chain &chain = plan.chains[here], &next = plan.chains[after];
    adjoint(after, here, next.last ? next.first_rank() : next.last_rank(), chain.last_rank());
    if (j > 0) summary(here, chain.first_rank(), chain.last_rank());
  }
}

}  // namespace cake::kda
