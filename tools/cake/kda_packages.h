// The KDA packages as types, so that one template serves them all.
#pragma once

#include <cstddef>

#include "cake/core/determinism.h"
#include "cake/kda_det_train.h"
#include "cake/kda_det_train_kcp.h"
#include "cake/kda_nondet_train.h"
#include "cake/kda_nondet_train_kcp.h"

namespace cake::tool {

/// cake_kda_det_train.
struct KdaDet {
  static constexpr const char* kName = "cake_kda_det_train";
  static constexpr const char* kMode = "det";
  static constexpr bool kDeterministic = true;
  using Inputs = kda_det_train::Inputs;
  using Outputs = kda_det_train::Outputs;
  using Gradients = kda_det_train::Gradients;
  using Options = kda_det_train::Options;
  using SaveMode = kda_det_train::SaveMode;
  using Shape = kda_det_train::Shape;
  using Saved = kda_det_train::Saved;
  using Workspace = kda_det_train::Workspace;

  static void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace,
                      Saved* saved) {
    kda_det_train::forward(inputs, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                       const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved) {
    kda_det_train::backward(inputs, dout, d_final_state, gradients, options, workspace, saved);
  }
};

/// cake_kda_nondet_train. The user named it, so its alert stays silent.
struct KdaNondet {
  static constexpr const char* kName = "cake_kda_nondet_train";
  static constexpr const char* kMode = "nondet";
  static constexpr bool kDeterministic = false;
  using Inputs = kda_nondet_train::Inputs;
  using Outputs = kda_nondet_train::Outputs;
  using Gradients = kda_nondet_train::Gradients;
  using Options = kda_nondet_train::Options;
  using SaveMode = kda_nondet_train::SaveMode;
  using Shape = kda_nondet_train::Shape;
  using Saved = kda_nondet_train::Saved;
  using Workspace = kda_nondet_train::Workspace;

  static void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace,
                      Saved* saved) {
    kda_nondet_train::forward(inputs, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                       const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved) {
    kda_nondet_train::backward(inputs, dout, d_final_state, gradients, options, workspace, saved,
                               DeterminismPolicy::kAllow);
  }
};

/// cake_kda_det_train_kcp.
struct KdaDetKcp {
  using OneRank = KdaDet;  ///< the package that computes the same on one rank
  static constexpr const char* kName = "cake_kda_det_train_kcp";
  static constexpr bool kDeterministic = OneRank::kDeterministic;
  using Inputs = kda_det_train_kcp::Inputs;
  using Outputs = kda_det_train_kcp::Outputs;
  using Gradients = kda_det_train_kcp::Gradients;
  using GateParamPartials = kda_det_train_kcp::GateParamPartials;
  using Options = kda_det_train_kcp::Options;
  using SaveMode = kda_det_train_kcp::SaveMode;
  using Shape = kda_det_train_kcp::Shape;
  using Saved = kda_det_train_kcp::Saved;
  using Workspace = kda_det_train_kcp::Workspace;

  static void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      Workspace* workspace, Saved* saved, kcp::RecomputeHandle* recompute) {
    kda_det_train_kcp::forward(inputs, context, outputs, options, workspace, saved, recompute);
  }
  static void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
                       Workspace* workspace, const Saved* saved) {
    kda_det_train_kcp::backward(inputs, context, dout, d_final_state, gradients, options, workspace, saved);
  }
};

/// cake_kda_nondet_train_kcp. The user named it, so its alert stays silent.
struct KdaNondetKcp {
  using OneRank = KdaNondet;  ///< the package that computes the same on one rank
  static constexpr const char* kName = "cake_kda_nondet_train_kcp";
  static constexpr bool kDeterministic = OneRank::kDeterministic;
  using Inputs = kda_nondet_train_kcp::Inputs;
  using Outputs = kda_nondet_train_kcp::Outputs;
  using Gradients = kda_nondet_train_kcp::Gradients;
  using GateParamPartials = kda_nondet_train_kcp::GateParamPartials;
  using Options = kda_nondet_train_kcp::Options;
  using SaveMode = kda_nondet_train_kcp::SaveMode;
  using Shape = kda_nondet_train_kcp::Shape;
  using Saved = kda_nondet_train_kcp::Saved;
  using Workspace = kda_nondet_train_kcp::Workspace;

  static void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      Workspace* workspace, Saved* saved, kcp::RecomputeHandle* recompute) {
    kda_nondet_train_kcp::forward(inputs, context, outputs, options, workspace, saved, recompute);
  }
  static void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
                       Workspace* workspace, const Saved* saved) {
    kda_nondet_train_kcp::backward(inputs, context, dout, d_final_state, gradients, options, workspace, saved,
                                   DeterminismPolicy::kAllow);
  }
};

}  // namespace cake::tool
