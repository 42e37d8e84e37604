// What the KDA packages over ranks share: from a package's public structs to the family's own.
#pragma once

#include "cake/core/handle.h"
#include "ops/kda/kcp.h"
#include "packages/kda_package.h"

namespace cake::kda {

template <class Inputs>
Operands kcp_operands_of(const Inputs& x) {
  return {x.q, x.k, x.v, x.g, x.beta, {}, x.initial_state, x.A_log, x.dt_bias};
}

template <class Options>
KcpOptions kcp_options_of(const Options& o) {
  using Mode = decltype(o.save_mode);
  KcpOptions options{o.save_mode == Mode::kTape, o.exchange, o.save_transfer, o.checkpoint_keep};
  if constexpr (requires { o.checkpoint_handoff; }) {
    using SavedRows = decltype(o.saved_rows);
    options.handoff = o.checkpoint_handoff.value_or(true) && o.saved_rows != SavedRows::kNone;
    if (o.saved_rows == SavedRows::kWy) options.missing_rows = "wy";
    if (o.saved_rows == SavedRows::kIntra) options.missing_rows = "intra";
  }
  return options;
}

template <class Gradients>
BackwardArguments kcp_arguments_of(const ConstTensorView& dout, const ConstTensorView& d_final_state,
                                   const Gradients& g) {
  return {dout, d_final_state, {g.dq, g.dk, g.dv, g.dg, g.dbeta, {}, {}, g.dinitial_state}};
}

template <class Shape>
KcpShape kcp_shape_of(const Shape& s) {
  return {s.H, s.HV, s.K, s.V, s.dtype, s.gate_dtype, s.beta_dtype, s.gate_param_grads, s.initial_state};
}

/// The state behind an object of a package, or nullptr.
template <class T>
auto state_of(const T* object) {
  return object != nullptr ? &object->state() : nullptr;
}

inline std::size_t workspace_bytes_held(const WorkspaceMemory& workspace) { return workspace.memory.size(); }

/// The hand-off part of a workspace, where a package's has one.
template <class State>
KcpHandoff* handoff_of(State* workspace) {
  if constexpr (std::is_base_of_v<KcpHandoff, State>) {
    return workspace;
  } else {
    return nullptr;
  }
}

/// Objects given as handles, checked in the order of a backward: saved set, workspace, recompute handle.
template <class Saved, class Workspace>
KcpObjects kcp_objects_of(const Handle& workspace, const Handle& saved, const Handle& recompute) {
  const auto held_saved = object_of<Saved>(saved, "saved");
  const auto held_workspace = object_of<Workspace>(workspace, "workspace");
  const auto held_recompute = object_of<kcp::RecomputeHandle>(recompute, "recompute");
  return {state_of(held_workspace.get()),
          state_of(held_saved.get()),
          held_recompute.get(),
          handoff_of(state_of(held_workspace.get())),
          {held_saved, held_workspace, held_recompute}};
}

template <class Shape, class Options>
std::size_t kcp_forward_bytes_of(const kcp::FoldPlan& plan, const Shape& shape, const Options& options, bool saving,
                                 int threads) {
  return kcp_forward_bytes(kcp_sizes(plan, kcp_shape_of(shape), kcp_options_of(options)), saving,
                           threads > 0 ? threads : num_threads());
}

template <class Order, class Shape, class Options>
std::size_t kcp_backward_bytes_of(const kcp::FoldPlan& plan, const Shape& shape, bool recompute, const Options& options,
                                  int threads) {
  const KcpOptions chosen = recompute ? recompute_options(kcp_options_of(options)) : kcp_options_of(options);
  return kcp_backward_bytes<Order>(kcp_sizes(plan, kcp_shape_of(shape), chosen), recompute, !chosen.tape,
                                   threads > 0 ? threads : num_threads());
}

/// The partials as a package shows them.
template <class Partial>
std::vector<Partial> partials_of(const KcpPartials& partials) {
  std::vector<Partial> list;
  if (!partials.filled) return list;
  list.reserve(static_cast<std::size_t>(partials.count));
  for (std::int64_t n = 0; n < partials.count; ++n) {
    const auto id = partials.by_rank ? std::pair<std::int64_t, std::int64_t>{-1, -1}
                                     : partials.segments[static_cast<std::size_t>(n)];
    list.push_back({id.first, id.second, partials.block(n)});
  }
  return list;
}

}  // namespace cake::kda
