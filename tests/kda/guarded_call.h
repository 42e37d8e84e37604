// A call of the package whose results hold sentinels between guard bytes: what a refused call must leave alone.
#pragma once

#include <memory>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {

using namespace kda_det_train;  // NOLINT: the whole vocabulary of the package is under test

inline constexpr double kSentinel = 1234.5;

/// A correct call with sentinels in every result; a case spoils one argument.
struct Call {
  explicit Call(const KdaProblem& p) : problem(p), inputs(problem.inputs()), options(problem.spec.options) {
    dout = problem.dout.view();
    d_final_state = problem.d_final_state->view();
    outputs.out = result(problem.v.dtype, problem.v.shape);
    outputs.final_state = result(DType::kFloat32, problem.initial_state->shape);
    gradients.dq = result(problem.q.dtype, problem.q.shape);
    gradients.dk = result(problem.k.dtype, problem.k.shape);
    gradients.dv = result(problem.v.dtype, problem.v.shape);
    gradients.dg = result(problem.g.dtype, problem.g.shape);
    gradients.dbeta = result(problem.beta.dtype, problem.beta.shape);
    gradients.dinitial_state = result(DType::kFloat32, problem.initial_state->shape);
    if (problem.A_log) gradients.dA_log = result(DType::kFloat32, problem.A_log->shape);
    if (problem.dt_bias) gradients.ddt_bias = result(DType::kFloat32, problem.dt_bias->shape);
  }

  /// A tensor of another dtype or shape, alive as long as the call.
  TensorView other(DType dtype, const Shape& shape) {
    spare.push_back(std::make_unique<HostTensor>(dtype, shape));
    return spare.back()->view();
  }
  void forward() { kda_det_train::forward(inputs, outputs, options, workspace, saved); }
  void backward() { kda_det_train::backward(inputs, dout, d_final_state, gradients, options, workspace, saved); }
  bool untouched() const {
    for (const auto& tensor : results) {
      for (const double x : tensor->gather().doubles()) {
        if (x != kSentinelIn(tensor->gather().dtype)) return false;
      }
      if (!tensor->guards_intact()) return false;
    }
    return true;
  }

  KdaProblem problem;
  Inputs inputs;
  Outputs outputs;
  Gradients gradients;
  Options options;
  ConstTensorView dout, d_final_state;
  Workspace* workspace = nullptr;
  Saved* saved = nullptr;
  std::vector<std::unique_ptr<LaidOutTensor>> results;
  std::vector<std::unique_ptr<HostTensor>> spare;

 private:
  static double kSentinelIn(DType dtype) {
    HostTensor one(dtype, {1}, {kSentinel});
    return one.at(0);
  }
  TensorView result(DType dtype, const Shape& shape) {
    results.push_back(std::make_unique<LaidOutTensor>(dtype, shape));
    results.back()->fill(kSentinel);
    return results.back()->view();
  }
};

}  // namespace cake::test
