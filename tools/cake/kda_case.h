// A KDA problem with data of its own: its documents can be packed in any order, or alone, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/tensor.h"

namespace cake::tool {

/// The gate of a problem.
enum class KdaGate {
  kPlain,       ///< log decays, some of them -1000
  kSoftplus,    ///< raw, with A_log and dt_bias
  kLowerBound,  ///< raw, with lower bound, A_log and dt_bias
};

/// What a problem consists of.
struct KdaCase {
  std::vector<std::int64_t> lengths;  ///< tokens of each document
  std::int64_t padding = 0;           ///< rows past the last document; their operands are NaN
  bool batch = false;                 ///< no cu_seqlens: B documents of equal length
  std::int64_t H = 1, HV = 1, K = 16, V = 16;
  DType dtype = DType::kFloat32;  ///< of q, k, v, beta and dout
  KdaGate gate = KdaGate::kSoftplus;
  bool l2norm = true, beta_sigmoid = true, neg_eigval = false, states = true;
  std::uint64_t seed = 1;
  bool long_memory = false;  ///< raw gates and beta so weak that a state outlives a segment of thousands of tokens:
                             ///< else what an earlier segment left is zero, and no order of folds shows
};

/// What a tensor's first index counts.
enum class KdaAxis { kToken, kDocument, kNone };

/// A tensor of a problem in the problem's own order of documents.
struct KdaArray {
  KdaAxis axis = KdaAxis::kToken;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> tail;  ///< shape behind the first index
  std::vector<std::byte> bytes;

  /// Elements behind one value of the first index.
  std::int64_t width() const;
  /// Bytes behind one value of the first index.
  std::size_t stride() const;
};

/// Named tensors. Operands: q k v g beta dout [A_log dt_bias initial_state d_final_state]. Results: out final_state dq
/// dk dv dg dbeta [dA_log ddt_bias dinitial_state].
using KdaArrays = std::map<std::string, KdaArray>;

/// Operands of a case, drawn from its seed.
KdaArrays draw_kda_operands(const KdaCase& c);
/// Shapes of its results, all bytes zero.
KdaArrays empty_kda_results(const KdaCase& c);
/// Options of its calls.
template <class Package>
typename Package::Options kda_options(const KdaCase& c) {
  typename Package::Options options;
  options.use_gate_in_kernel = c.gate != KdaGate::kPlain;
  if (c.gate == KdaGate::kLowerBound) options.lower_bound = -5.0f;
  options.use_qk_l2norm_in_kernel = c.l2norm;
  options.use_beta_sigmoid_in_kernel = c.beta_sigmoid;
  options.allow_neg_eigval = c.neg_eigval;
  return options;
}

}  // namespace cake::tool
