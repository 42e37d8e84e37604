// A KDA problem, neutral of mode: operands, options, their checks, and the resolved sizes. The packages translate their
// public structs into these.
#pragma once

#include <cstdint>
#include <optional>

#include "cake/core/tensor.h"

namespace cake::kda {

/// Largest head dimension.
inline constexpr std::int64_t kMaxHeadDim = 256;

/// Operands, as the public Inputs.
struct Operands {
  ConstTensorView q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias;
};

/// Options, as the public Options, less those that are refused before.
struct Settings {
  std::optional<float> scale;
  bool use_gate_in_kernel = false;
  std::optional<float> lower_bound;
  bool use_qk_l2norm_in_kernel = false;
  bool use_beta_sigmoid_in_kernel = false;
  bool allow_neg_eigval = false;
};

/// Results of the forward.
struct ForwardResults {
  TensorView out, final_state;
};

/// Results of the backward.
struct BackwardResults {
  TensorView dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state;
};

/// Sizes of a checked problem.
struct Problem {
  std::int64_t B = 0, S = 0, H = 0, HV = 0, K = 0, V = 0, N = 0;
  bool packed = false;  ///< documents come from cu_seqlens
  float scale = 1.0f;

  std::int64_t group() const { return H == 0 ? 1 : HV / H; }
  std::int64_t Kp() const { return (K + 15) / 16 * 16; }
  std::int64_t Vp() const { return (V + 15) / 16 * 16; }
};

/// Checks operands and settings (shapes, dtypes, pointers, cu_seqlens content, contradicting options) and resolves the
/// sizes. `documents`: how many the states are for, where that does not follow from the operands (over ranks: B is 1).
/// Throws InvalidArgument naming the argument.
Problem check_problem(const Operands& operands, const Settings& settings, std::optional<std::int64_t> documents = {});
/// Checks the forward's outputs.
void check_forward(const Problem& problem, const Operands& operands, const ForwardResults& results);
/// Checks the backward's gradients and incoming gradients.
void check_backward(const Problem& problem, const Operands& operands, const Settings& settings,
                    const ConstTensorView& dout, const ConstTensorView& d_final_state, const BackwardResults& results);

}  // namespace cake::kda
