// KDA over ranks: from a caller's arguments to the run (kcp_run.h). Neutral of mode: a package names its plan of
// segments (comm/fold_plan.h) and its order of addition, and only that order instantiates the backward.
//
// Every entry is collective. All checks of all ranks come first, inside one agreement: a rank with an error throws it,
// the others throw CommError, and nothing has been written anywhere.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cake/kcp.h"
#include "ops/kda/call.h"
#include "ops/kda/kcp_handoff.h"
#include "ops/kda/kcp_run.h"

namespace cake::kda {

/// Options of a call over ranks that change no bit of the results.
struct KcpOptions {
  bool tape = false;
  kcp::Exchange exchange = kcp::Exchange::kAuto;
  std::optional<bool> save_transfer{};
  std::optional<kcp::CheckpointKeep> checkpoint_keep{};
  bool handoff = false;                ///< a replayed forward leaves its chunk states in the workspace (kcp_handoff.h)
  const char* missing_rows = nullptr;  ///< asked for instead of chunk states, and not built

  /// Whether transitions are kept.
  bool transfer() const {
    return checkpoint_keep ? *checkpoint_keep == kcp::CheckpointKeep::kTransfer : save_transfer.value_or(true);
  }
};

/// Options of a backward without a saved set: nothing holds the chunk states, and transitions stay where they were
/// made.
inline KcpOptions recompute_options(KcpOptions options) {
  options.tape = false;
  options.checkpoint_keep.reset();
  options.save_transfer = true;
  return options;
}

/// What a forward over ranks kept, with a record of what it was made from.
struct KcpSavedSet : SavedSet {
  std::string partition{};  ///< digest
  kcp::Exchange exchange = kcp::Exchange::kRelay;
  bool transfer = true;
  std::uint64_t handoff = 0;  ///< token of the rows left in a workspace; 0: none
};

/// Partial sums of the gate parameters' gradients on one rank: `count` blocks of [HV][2][Kp].
struct KcpPartials {
  CallerMemory memory{};
  bool filled = false, by_rank = false;  ///< by_rank: one block for all segments of this rank
  Problem problem{};
  std::string partition{};
  std::int64_t count = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> segments{};  ///< document, segment of each block; empty by_rank

  std::int64_t block_floats() const { return problem.HV * 2 * problem.Kp(); }
  float* block(std::int64_t n) const {
    Arena arena(memory.data(), memory.size(), "gate_params");
    return arena.take<float>(count * block_floats()) + n * block_floats();
  }
};

/// A package's names and its rule of segments.
struct KcpPackage {
  const char* module;
  const kcp::FoldPlan& (*plan)(const kcp::Context& context);
};
/// Segments of the canonical order.
const kcp::FoldPlan& canonical_plan(const kcp::Context& context);
/// Segments that end at borders between ranks.
const kcp::FoldPlan& rank_plan(const kcp::Context& context);

/// Objects of a call, resolved inside the agreement so that a refused one is every rank's error.
struct KcpObjects {
  WorkspaceMemory* workspace = nullptr;
  KcpSavedSet* saved = nullptr;
  kcp::RecomputeHandle* recompute = nullptr;
  KcpHandoff* handoff = nullptr;  ///< of the workspace
  std::shared_ptr<void> keep_alive[3]{};
};
using ResolveObjects = std::function<KcpObjects()>;

/// Sizes of a byte query, checked. Throws InvalidArgument naming the field.
struct KcpShape {
  std::int64_t H, HV, K, V;
  DType dtype, gate_dtype, beta_dtype;
  bool gate_param_grads, initial_state;
};
KcpSizes kcp_sizes(const kcp::FoldPlan& plan, const KcpShape& shape, const KcpOptions& options);
/// Bytes that a replayed forward leaves in a workspace.
std::size_t kcp_handoff_bytes(const KcpSizes& sizes);

/// Checks everything on every rank, then runs the forward.
void run_kcp_forward(const KcpPackage& package, const Operands& operands, const Settings& settings,
                     const kcp::Context& context, const KcpOptions& options, const ForwardResults& results,
                     const ResolveObjects& objects);

/// A backward whose arguments are checked on every rank.
struct CheckedKcpBackward {
  Problem problem{};
  std::optional<KcpSizes> sizes{};
  KcpObjects objects{};
  WorkspaceMemory own_workspace{};
  KcpSavedMemory kept{};
  int workers = 1;
  bool scratch_tape = true;  ///< workers rebuild chunk states: nothing holds them
};
/// Bytes a backward needs for `workers` workers.
using KcpBackwardBytes = std::size_t (*)(const KcpSizes& sizes, bool recompute, bool scratch_tape, int workers);
/// The collective part before anything is written: checks in the order saved set, workspace, options, tensors, then
/// `alert`; reserves memory, that of `partials` too (`blocks`: how many, by the order of the mode).
void check_kcp_backward(const KcpPackage& package, const Operands& operands, const Settings& settings,
                        const kcp::Context& context, const KcpOptions& options, const BackwardArguments& arguments,
                        KcpPartials* partials, bool by_rank, const ResolveObjects& objects, KcpBackwardBytes bytes_for,
                        const std::function<void()>& alert, CheckedKcpBackward& checked);

/// Bytes of a backward's workspace. With AnyOrder the segments' slots lie in it, with FixedOrder in the partials.
template <class Order>
std::size_t kcp_backward_bytes(const KcpSizes& sizes, bool recompute, bool scratch_tape, int workers) {
  Arena count;
  carve_kcp_backward(count, sizes, recompute);
  Order order;
  if (sizes.params && !kKeepsPartials<Order>) {
    order.take(count, static_cast<std::int64_t>(sizes.plan->ending_chains.size()), sizes.extents.HV,
               2 * sizes.extents.Kp);
  }
  carve_workers(count, sizes.extents, {!scratch_tape, 1}, workers, true);
  return count.bytes_needed();
}

/// Checks everything on every rank, calls `alert` there, then runs the backward.
template <class Order, class Alert>
void run_kcp_backward(const KcpPackage& package, const Operands& operands, const Settings& settings,
                      const kcp::Context& context, const KcpOptions& options, const BackwardArguments& arguments,
                      KcpPartials* partials, const ResolveObjects& objects, Alert alert) {
  constexpr bool kByRank = !kKeepsPartials<Order>;
  CheckedKcpBackward checked;
  check_kcp_backward(package, operands, settings, context, options, arguments, partials, kByRank, objects,
                     kcp_backward_bytes<Order>, alert, checked);
  const KcpSizes& sizes = *checked.sizes;
  const bool recompute = checked.objects.saved == nullptr;
  const WorkspaceMemory& workspace =
      checked.objects.workspace != nullptr ? *checked.objects.workspace : checked.own_workspace;
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  const KcpBackwardMemory memory = carve_kcp_backward(arena, sizes, recompute);
  const std::int64_t width = 2 * sizes.extents.Kp;
  Order order;
  GateSums sums;
  const Kernels& table = kernels(current_cpu_isa());
  if (partials != nullptr) {
    const auto slots = static_cast<std::int64_t>(sizes.plan->ending_chains.size());
    float* const totals = partials->block(0);
    if constexpr (kByRank) {
      order.take(arena, slots, sizes.extents.HV, width);
      std::fill(totals, totals + sizes.param_block(), 0.0f);
      sums.arrived = [&, totals](std::int64_t n, std::int64_t hv) { order.arrived(table, n, hv, totals + hv * width); };
    } else {
      Arena own(partials->memory.data(), partials->memory.size(), "gate_params");
      order.take(own, slots, sizes.extents.HV, width);
    }
    sums.slot = [&](std::int64_t n, std::int64_t hv) { return order.slot(n, hv); };
  }
  KcpRun run(sizes, context.communicator(), checked.problem, operands, settings,
             carve_workers(arena, sizes.extents, {!checked.scratch_tape, 1}, checked.workers, true), checked.workers);
  if (recompute) run.forward(memory.forward, memory.recomputed, true, nullptr, nullptr);
  run.backward(memory, recompute ? memory.recomputed : checked.kept, arguments, sums);
  if (partials != nullptr) partials->filled = true;
}

/// Throws for options that contradict each other or are not built.
void check_kcp_options(const KcpOptions& options);

/// Collective: see the packages' reduce_gate_param_grads.
void reduce_kcp_partials(const KcpPackage& package, const kcp::Context& context, const KcpPartials& partials,
                         const TensorView& dA_log, const TensorView& ddt_bias);
/// This rank's share.
void local_kcp_grads(const KcpPartials& partials, const TensorView& dA_log, const TensorView& ddt_bias);

}  // namespace cake::kda
