// The KDA packages over ranks as types, so that one test runs through either: DetKcp and NondetKcp have the same names
// inside. Functions of a package are found through its types.
#pragma once

#include "cake/kda_det_train_kcp.h"
#include "cake/kda_nondet_train_kcp.h"
#include "tests/support/kda_packages.h"

namespace cake::test {

/// cake_kda_det_train_kcp.
struct DetKcp {
  static constexpr const char* kModule = "cake_kda_det_train_kcp";
  static constexpr bool kNondet = false;
  using Inputs = kda_det_train_kcp::Inputs;
  using Outputs = kda_det_train_kcp::Outputs;
  using Gradients = kda_det_train_kcp::Gradients;
  using GateParamPartials = kda_det_train_kcp::GateParamPartials;
  using Options = kda_det_train_kcp::Options;
  using SaveMode = kda_det_train_kcp::SaveMode;
  using Shape = kda_det_train_kcp::Shape;
  using Saved = kda_det_train_kcp::Saved;
  using Workspace = kda_det_train_kcp::Workspace;
};

/// cake_kda_nondet_train_kcp.
struct NondetKcp {
  static constexpr const char* kModule = "cake_kda_nondet_train_kcp";
  static constexpr bool kNondet = true;
  using Inputs = kda_nondet_train_kcp::Inputs;
  using Outputs = kda_nondet_train_kcp::Outputs;
  using Gradients = kda_nondet_train_kcp::Gradients;
  using GateParamPartials = kda_nondet_train_kcp::GateParamPartials;
  using Options = kda_nondet_train_kcp::Options;
  using SaveMode = kda_nondet_train_kcp::SaveMode;
  using Shape = kda_nondet_train_kcp::Shape;
  using Saved = kda_nondet_train_kcp::Saved;
  using Workspace = kda_nondet_train_kcp::Workspace;
};

}  // namespace cake::test
