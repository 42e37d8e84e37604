// What the KDA packages share: from a package's public structs (the same fields in every package) to the family's own.
#pragma once

#include "cake/core/handle.h"
#include "core/checks.h"
#include "ops/kda/call.h"
#include "ops/kda/plan.h"
#include "ops/kda/saved_record.h"

namespace cake::kda {

template <class Inputs>
Operands operands_of(const Inputs& x) {
  return {x.q, x.k, x.v, x.g, x.beta, x.cu_seqlens, x.initial_state, x.A_log, x.dt_bias};
}

template <class Options>
Settings settings_of(const Options& o) {
  return {
      o.scale,           o.use_gate_in_kernel, o.lower_bound, o.use_qk_l2norm_in_kernel, o.use_beta_sigmoid_in_kernel,
      o.allow_neg_eigval};
}

template <class Options>
CallOptions call_options_of(const Options& o) {
  using Mode = decltype(o.save_mode);
  return {o.save_mode == Mode::kTape, o.lean, o.tail_passes, o.batch_tokens, o.max_docs_per_batch};
}

template <class Gradients>
BackwardArguments arguments_of(const ConstTensorView& dout, const ConstTensorView& d_final_state, const Gradients& g) {
  return {dout, d_final_state, {g.dq, g.dk, g.dv, g.dg, g.dbeta, g.dA_log, g.ddt_bias, g.dinitial_state}};
}

template <class Shape, class Options>
Sizes sizes_of(const Shape& s, const Options& o) {
  return check_sizes(s.B, s.S, s.num_docs, s.H, s.HV, s.K, s.V, s.cu_seqlens, s.gate_param_grads, call_options_of(o));
}

template <class Shape, class Options>
std::size_t forward_bytes_of(const Shape& shape, const Options& options, bool saving, int threads) {
  return forward_bytes(sizes_of(shape, options).extents, saving, threads > 0 ? threads : num_threads());
}

template <class Order, class Shape, class Options>
std::size_t backward_bytes_of(const Shape& shape, bool recompute, const Options& options, int threads) {
  const Sizes sizes = sizes_of(shape, options);
  if (recompute && options.lean) checks::fail("recompute", "true, with lean", "false: lean leaves no room for it");
  MemoryOptions memory = call_options_of(options).memory();
  if (recompute) memory.tape = false;
  return backward_bytes<Order>(sizes.extents, memory, recompute, sizes.gate_param_grads,
                               threads > 0 ? threads : num_threads());
}

/// One workspace for everything that `options` allows.
template <class Order, class Shape, class Options>
std::size_t workspace_bytes_of(const Shape& shape, const Options& options, int threads) {
  const std::size_t forward = forward_bytes_of(shape, options, false, threads);
  std::size_t backward = backward_bytes_of<Order>(shape, false, options, threads);
  if (!options.lean) backward = std::max(backward, backward_bytes_of<Order>(shape, true, options, threads));
  return std::max(forward, backward);
}

/// The state behind a new Workspace of a shape.
template <class State, class Order, class Shape, class Options>
State* make_workspace(const Shape& shape, const Options& options, bool backward) {
  auto state = std::make_unique<State>();
  state->memory.ensure(
      backward ? workspace_bytes_of<Order>(shape, options, 0) : forward_bytes_of(shape, options, false, 0),
      "workspace");
  state->memory.seal();
  state->made_for = settings_of(options);
  return state.release();
}

/// The object of a handle, kept alive; nullptr for an empty handle.
template <class T>
std::shared_ptr<T> object_of(const Handle& handle, const char* argument) {
  return handle.empty() ? nullptr : handle.get<T>(T::tag(), argument);
}

}  // namespace cake::kda
