// One rank's share of a KDA call over ranks. Forward, as in cpu/runner.h but chain by chain (comm/fold_plan.h):
//   (1) first segments run from their initial states, middle ones are summarised from zero as (M, b);
//   (2) B_{j+1} = M_j B_j + b_j; (3) later segments run from their B_j. The backward mirrors it from the right.
// In (1) the first segment of a document on several ranks runs without outputs where a saved set keeps its products
// (and the last one's backward without gradients), because others wait for its end; the full run follows in (3). Chains
// advance level by level, all chains of a level at once, so every rank posts its messages in one order and none waits
// for a rank that waits for it. What a task computes depends on its part and value head alone; values that cross a
// border are exact fp32, so the places where ranks meet change no bit. Tests: tests/kda/kcp_*.
#pragma once

#include <functional>
#include <vector>

#include "ops/kda/cpu/backward_driver.h"
#include "ops/kda/kcp_memory.h"
#include "ops/kda/kcp_moves.h"
#include "ops/kda/kcp_rows.h"

namespace cake::kda {

/// Where the gate parameters' sums of a segment that ends on this rank go.
struct GateSums {
  std::function<float*(std::int64_t ending, std::int64_t hv)> slot;     ///< [2][Kp]
  std::function<void(std::int64_t ending, std::int64_t hv)> arrived{};  ///< the slot is written
};

class KcpRun {
 public:
  KcpRun(const KcpSizes& sizes, Communicator& communicator, const Problem& problem, const Operands& operands,
         const Settings& settings, Scratch* scratch, int workers);

  /// `results`: nullptr when only what is saved is wanted. `kept` is filled when `saving`; of another one the staged
  /// rows alone are used. `entry`: what a recompute handle is to keep, or nullptr.
  void forward(const KcpForwardMemory& memory, const KcpSavedMemory& kept, bool saving, const ForwardResults* results,
               const KcpEntryMemory* entry);
  /// The forward from an entry: no communication.
  void replay(const KcpForwardMemory& memory, const KcpSavedMemory& kept, bool saving, const ForwardResults& results,
              const KcpEntryMemory& entry);
  void backward(const KcpBackwardMemory& memory, const KcpSavedMemory& kept, const BackwardArguments& arguments,
                const GateSums& sums);

 private:
  using List = std::vector<std::size_t>;
  enum class Carry { kState, kSummary, kAdjoint, kParams };

  const kcp::FoldPlan& plan() const { return *sizes_.plan; }
  const Extents& extents() const { return sizes_.extents; }
  std::int64_t HV() const { return problem_.HV; }
  std::int64_t state_floats() const { return sizes_.extents.state_floats(); }
  ChainMemory& memory_of(std::size_t chain) const { return chains_[plan().chains[chain].own]; }
  float* state_of(std::size_t chain, std::int64_t hv) const { return memory_of(chain).state + hv * state_floats(); }
  /// Whether a document's first row lies on this rank (of one whose first chunk is computed here).
  bool holds_first_row(std::int64_t document) const {
    return std::none_of(plan().edges.begin(), plan().edges.end(),
                        [&](const kcp::FoldPlan::Edge& e) { return e.document == document; });
  }
  /// Start state of a part in what is kept.
  float* kept_state(const KcpSavedMemory& kept, const kcp::Part& part, std::int64_t hv) const {
    return kept.states + (part.number * HV() + hv) * state_floats();
  }
  /// M of a chain for the backward's folds, value head 0.
  const float* kept_transition(const KcpSavedMemory& kept, std::size_t chain) const {
    return sizes_.transfer ? kept.transitions + sizes_.saved_transition[chain] * sizes_.transition_block()
                           : (sizes_.exchange == kcp::Exchange::kGather
                                  ? all_blocks_ + sizes_.backward_gather.transition_at[chain] * HV()
                                  : memory_of(chain).transition);
  }

  void use_staged(std::byte* staged);
  Head part_head(const kcp::Part& part, std::int64_t hv) const;
  SegmentRun part_run(const kcp::Part& part, const Head& head, Scratch& scratch, std::int64_t hv,
                      const KcpSavedMemory& kept) const;
  /// Which of a tensor's two forms a part's rows lie in.
  template <class View>
  const View& rows_of(const kcp::Part& part, const View& local, const View& staged) const {
    return part.staged ? staged : local;
  }

  std::vector<std::pair<float*, std::int64_t>> carried(std::size_t chain, Carry carry) const;
  void hand_over(const List& list, std::size_t level, bool reverse, Carry carry);
  /// Calls compute(chain number, part, level, hv, scratch) for this rank's parts, level by level, after the values
  /// came.
  template <class Compute>
  void relay(const List& list, bool reverse, Carry carry, Compute compute);
  void post(const std::vector<Send>& sends, const std::vector<Receive>& receives);

  void write_edge_states(const ConstTensorView& from, const TensorView& to) const;
  void bring_initial_states(float* edges);
  void return_initial_gradients(float* edges, const TensorView& dinitial_state);
  void run_forward_chains(const List& list, const KcpSavedMemory& kept, const ForwardResults* results);
  void run_forward_part(const kcp::Chain& chain, const kcp::Part& part, bool last_part, std::int64_t hv,
                        Scratch& scratch, float* state, const KcpSavedMemory& kept, Pairs pairs,
                        const ForwardResults* results);
  void run_forward_from_kept(const List& list, const KcpSavedMemory& kept, const float* states, Pairs pairs,
                             const ForwardResults& results);
  List own_parts_of(const List& chains) const;
  void make_pairs(const List& parts, const KcpSavedMemory& kept);
  void summarise(const KcpSavedMemory& kept, Pairs pairs);
  void fold_forward_relay();
  void fold_forward_gather();
  void gather(const GatherPlan& gather, bool backward);
  void keep_transitions(float* transitions) const;

  void run_backward_chains(const List& list, const KcpSavedMemory& kept, const BackwardArguments& a,
                           const GateSums& sums);
  void run_backward_part(std::size_t chain, const kcp::Part& part, std::int64_t hv, Scratch& scratch, float* grad,
                         bool zero_grad, const KcpSavedMemory& kept, const BackwardArguments& a, const GateSums& sums);
  void run_adjoint_ahead(const KcpSavedMemory& kept, const BackwardArguments& a);
  void run_backward_from_ahead(const KcpSavedMemory& kept, const BackwardArguments& a, const GateSums& sums);
  BackwardRun adjoint_run(const kcp::Part& part, const Head& head, std::int64_t hv, Scratch& scratch,
                          const KcpSavedMemory& kept, const BackwardArguments& a) const;
  void summarise_adjoint(const KcpSavedMemory& kept, const BackwardArguments& a);
  void fold_backward_relay(const KcpSavedMemory& kept);
  void fold_backward_gather(const KcpSavedMemory& kept);
  void finish_groups(const BackwardArguments& a);
  void sum_chunk_params(const GateSums& sums);

  const KcpSizes& sizes_;
  Communicator& comm_;
  const Problem& problem_;
  const Operands& operands_;
  const Settings& settings_;
  Scratch* scratch_;
  int workers_;
  const Kernels& table_;
  ChainLists lists_;
  // Of the call under way.
  Operands staged_{};
  TensorView staged_out_{};
  ConstTensorView staged_dout_{};
  TensorView staged_grads_[kRowTensors]{};
  ChainMemory* chains_ = nullptr;
  float *own_block_ = nullptr, *all_blocks_ = nullptr;
  const KcpBackwardMemory* backward_ = nullptr;
};

template <class Compute>
void KcpRun::relay(const List& list, bool reverse, Carry carry, Compute compute) {
  const std::size_t levels = levels_of(plan(), list);
  List here;
  here.reserve(list.size());
  for (std::size_t level = 0; level < levels; ++level) {
    hand_over(list, level, reverse, carry);
    here.clear();
    for (const std::size_t c : list) {
      const kcp::Chain& chain = plan().chains[c];
      if (level < chain.parts.size() && part_at(chain, level, reverse).number >= 0) here.push_back(c);
    }
    parallel_for(static_cast<std::int64_t>(here.size()) * HV(), workers_, [&](std::int64_t task, int worker) {
      const std::size_t c = here[static_cast<std::size_t>(task / HV())];
      compute(c, part_at(plan().chains[c], level, reverse), level, task % HV(), scratch_[worker]);
    });
  }
}

/// The tensors whose rows travel.
inline std::array<RowTensor<ConstTensorView>, kRowTensors> operand_rows(const KcpSizes& s, const Operands& x) {
  return {{{x.q, s.row_bytes[0]},
           {x.k, s.row_bytes[1]},
           {x.v, s.row_bytes[2]},
           {x.g, s.row_bytes[3]},
           {x.beta, s.row_bytes[4]}}};
}

}  // namespace cake::kda
