// KDA in float64, token by token, straight from the recurrence: the specification in code. Slow on purpose.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cake::kda {

/// A problem in float64, contiguous, one head layout: the operands as spec/kda section 1 names them.
struct ReferenceInputs {
  std::int64_t S = 0, H = 1, HV = 1, K = 1, V = 1;
  std::vector<std::int64_t> offsets;  ///< N + 1 row offsets; documents outside them do not exist
  std::vector<double> q, k;           ///< [S, H, K]
  std::vector<double> v;              ///< [S, HV, V]
  std::vector<double> g;              ///< [S, HV, K]
  std::vector<double> beta;           ///< [S, HV]
  std::vector<double> initial_state;  ///< [N, HV, K, V] or empty
  std::vector<double> A_log;          ///< [HV] or empty
  std::vector<double> dt_bias;        ///< [HV, K] or empty
  std::vector<double> decay_error;    ///< [S, HV, K] relative changes of the decays exp(g) (conditioning), or empty
  double scale = 1.0;
  bool use_gate_in_kernel = false;
  std::optional<double> lower_bound;
  bool use_qk_l2norm_in_kernel = false;
  bool use_beta_sigmoid_in_kernel = false;
  bool allow_neg_eigval = false;
};

/// Results of the forward.
struct ReferenceOutputs {
  std::vector<double> out;          ///< [S, HV, V]
  std::vector<double> final_state;  ///< [N, HV, K, V]
};

/// Gradients; for sums that cancel, `*_squares` holds the sum of squared terms: of dA_log and ddt_bias over tokens (and
/// channels), of dq and dk over the two terms of each value head's gradient through the l2 norm (empty without it).
struct ReferenceGradients {
  std::vector<double> dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state;
  std::vector<double> dA_log_squares, ddt_bias_squares, dq_squares, dk_squares;
};

/// Runs the recurrence.
ReferenceOutputs reference_forward(const ReferenceInputs& inputs);
/// Runs its adjoint, token by token; dout [S, HV, V], d_final_state [N, HV, K, V] or empty.
ReferenceGradients reference_backward(const ReferenceInputs& inputs, const std::vector<double>& dout,
                                      const std::vector<double>& d_final_state);

}  // namespace cake::kda
