// KDA token by token: the peers that `cake bench` times the packages against. Two versions of one recurrence, straight
// from the definition in cake/kda_det_train.h: one with the 16-lane SIMD type, one of plain loops.
// tests/tools/token_kda_test.cc checks both against the float64 reference; `cake bench` checks them against the
// package.
#pragma once

#include <cstdint>
#include <vector>

#include "cake/core/cpu_isa.h"

namespace cake::benchmarks {

/// Tokens between the states that the forward keeps for the backward.
inline constexpr std::int64_t kCheckpointTokens = 64;

/// One document without initial state, fp32, contiguous, natural-log gate, one value head per q/k head.
struct TokenProblem {
  std::int64_t T = 0, H = 1;
  std::int64_t K = 0, V = 0;  ///< multiples of 16, at most 256
  float scale = 1.0f;
  const float* q = nullptr;     ///< [T, H, K]
  const float* k = nullptr;     ///< [T, H, K]
  const float* v = nullptr;     ///< [T, H, V]
  const float* g = nullptr;     ///< [T, H, K]
  const float* beta = nullptr;  ///< [T, H]
  const float* dout = nullptr;  ///< [T, H, V]; read by the backward only
};

/// What the two passes write; the gradients may be null for a forward.
struct TokenResults {
  float* out = nullptr;                                                                ///< [T, H, V]
  float* final_state = nullptr;                                                        ///< [H, K, V]
  float *dq = nullptr, *dk = nullptr, *dv = nullptr, *dg = nullptr, *dbeta = nullptr;  ///< shapes of the operands
};

/// Memory of one head: what the forward keeps for the backward, and scratch.
struct TokenHeadMemory {
  float* decay;        ///< [T, K] exp(g)
  float* residual;     ///< [T, V] v - S^T k, S decayed
  float* checkpoints;  ///< [ceil(T / 64), K, V] states before tokens 0, 64, ...
  float* states;       ///< [65, K, V] the states of one stretch of 64 tokens
  float* gradient;     ///< [K, V] gradient of the state
};

/// One version at one instruction-set level; each function does one head.
struct TokenKernels {
  /// With `keep` it also fills what the backward reads.
  void (*forward)(const TokenProblem& problem, std::int64_t head, bool keep, const TokenHeadMemory& memory,
                  const TokenResults& results);
  void (*backward)(const TokenProblem& problem, std::int64_t head, const TokenHeadMemory& memory,
                   const TokenResults& results);
};

/// The version with the 16-lane type. Throws NotSupported if this machine lacks the level.
const TokenKernels& simd_token_kernels(CpuIsa isa);
/// The plain loops, compiled for the level. Throws NotSupported if this machine lacks it.
const TokenKernels& plain_token_kernels(CpuIsa isa);

/// Runs a version over the heads of one problem, in memory it owns: each thread takes whole heads. It uses as many
/// threads as num_threads() was when it was made.
class TokenRun {
 public:
  /// Throws InvalidArgument for extents TokenProblem does not accept.
  TokenRun(const TokenKernels& kernels, const TokenProblem& problem);
  /// Writes out and final_state.
  void forward(const TokenResults& results);
  /// Writes everything.
  void forward_backward(const TokenResults& results);

 private:
  TokenHeadMemory memory_of(int worker);

  const TokenKernels& kernels_;
  TokenProblem problem_;
  std::int64_t worker_floats_ = 0;
  int workers_ = 1;
  std::vector<float> memory_;
};

}  // namespace cake::benchmarks
