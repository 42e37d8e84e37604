// The KDA packages as types, so that one test runs through either: Det and Nondet have the same names inside.
#pragma once

#include "cake/kda_det_train.h"
#include "cake/kda_nondet_train.h"

namespace cake::test {

/// cake_kda_det_train.
struct Det {
  static constexpr const char* kModule = "cake_kda_det_train";
  using Inputs = kda_det_train::Inputs;
  using Outputs = kda_det_train::Outputs;
  using Gradients = kda_det_train::Gradients;
  using Options = kda_det_train::Options;
  using SaveMode = kda_det_train::SaveMode;
  using Shape = kda_det_train::Shape;
  using Saved = kda_det_train::Saved;
  using Workspace = kda_det_train::Workspace;
  using Plan = kda_det_train::Plan;
};

/// cake_kda_nondet_train.
struct Nondet {
  static constexpr const char* kModule = "cake_kda_nondet_train";
  using Inputs = kda_nondet_train::Inputs;
  using Outputs = kda_nondet_train::Outputs;
  using Gradients = kda_nondet_train::Gradients;
  using Options = kda_nondet_train::Options;
  using SaveMode = kda_nondet_train::SaveMode;
  using Shape = kda_nondet_train::Shape;
  using Saved = kda_nondet_train::Saved;
  using Workspace = kda_nondet_train::Workspace;
  using Plan = kda_nondet_train::Plan;
};

/// Structs of one package as those of another, field by field.
template <class P>
typename P::Inputs inputs_as(const Det::Inputs& x) {
  return {x.q, x.k, x.v, x.g, x.beta, x.cu_seqlens, x.initial_state, x.A_log, x.dt_bias};
}
template <class P>
typename P::Options options_as(const Det::Options& o) {
  return {o.scale,
          o.use_gate_in_kernel,
          o.lower_bound,
          o.use_qk_l2norm_in_kernel,
          o.use_beta_sigmoid_in_kernel,
          o.allow_neg_eigval,
          o.save_mode == Det::SaveMode::kTape ? P::SaveMode::kTape : P::SaveMode::kLight,
          o.lean,
          o.tail_passes,
          o.batch_tokens,
          o.max_docs_per_batch};
}
template <class P>
typename P::Outputs outputs_as(const Det::Outputs& x) {
  return {x.out, x.final_state};
}
template <class P>
typename P::Gradients gradients_as(const Det::Gradients& x) {
  return {x.dq, x.dk, x.dv, x.dg, x.dbeta, x.dA_log, x.ddt_bias, x.dinitial_state};
}
template <class P>
typename P::Shape shape_as(const Det::Shape& s) {
  return {s.B, s.S, s.num_docs, s.H, s.HV, s.K, s.V, s.cu_seqlens, s.gate_param_grads};
}

}  // namespace cake::test
