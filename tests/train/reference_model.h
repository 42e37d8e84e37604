// The trainer's layers and model in float64, forward only and as plain as their equations: the oracle whose finite
// differences the hand-written backward passes must match.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/train_lm/data.h"
#include "examples/train_lm/parameters.h"

namespace cake::test::ref {

using Array = std::vector<double>;

/// x[rows, k] w[k, n].
Array linear(const Array& x, const Array& w, std::size_t k, std::size_t n);
/// x / sqrt(mean(x^2) + eps) * w over rows of w.size().
Array rmsnorm(const Array& x, const Array& w);
double silu(double x);
/// RMSNorm(o) w SiLU(z) over rows of w.size().
Array gated_norm(const Array& o, const Array& z, const Array& w);
/// SiLU of the causal depthwise convolution; x [T, n], w [4, n]; documents by cu_seqlens.
Array conv_silu(const Array& x, const Array& w, std::size_t n, const std::vector<std::int32_t>& cu_seqlens);
/// SiLU(a) b of rows u = [a | b] of 2 n.
Array swiglu(const Array& u, std::size_t n);
/// Mean cross-entropy over rows of 256 logits.
double cross_entropy(const Array& logits, const std::vector<std::uint8_t>& targets);
/// Columns [first, first + count) of rows of n.
Array columns(const Array& x, std::size_t n, std::size_t first, std::size_t count);

/// Loss of the whole model; `p` is the flat parameter array in float64.
double model_loss(const train_lm::ModelConfig& config, const train_lm::ParameterTable& table,
                  const train_lm::Batch& batch, const Array& p);

}  // namespace cake::test::ref
