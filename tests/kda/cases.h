// Cases that several KDA tests share. Lengths follow kSegment, so that builds with short segments cross their borders
// with larger heads and normal builds cross them with small ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cake/core/canonical.h"
#include "tests/support/kda_compare.h"

namespace cake::test {

inline constexpr bool kShortSegments = kSegment <= 256;

/// Document lengths around the borders of chunks and segments, an empty document among them.
inline std::vector<std::int64_t> border_lengths() {
  return {0, 1, 63, 64, 65, kSegment - 1, kSegment, 2 * kSegment + 1, 3 * kSegment + 1};
}

/// A lower bound of raw gates under which a state outlives a segment.
inline constexpr float kFaintBound = kShortSegments ? -0.02f : -2e-4f;

/// Head sizes for documents of several segments (the reference must stay affordable), and writes so weak that what a
/// segment hands on matters to the next: with ordinary ones the transition over thousands of tokens is 0.
inline void set_long_document_heads(KdaSpec& spec) {
  spec.K = kShortSegments ? 64 : 16;
  spec.V = kShortSegments ? 100 : 7;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
}

/// Decays under which a state outlives a segment.
inline constexpr GateRegime kFaintGate = kShortSegments ? GateRegime::kWeak : GateRegime::kFaint;

inline const std::vector<DType>& float_dtypes() {
  static const std::vector<DType> dtypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  return dtypes;
}

/// All document numbers of a problem.
inline std::vector<std::int64_t> all_documents(const KdaProblem& problem) {
  std::vector<std::int64_t> documents(static_cast<std::size_t>(problem.N));
  std::iota(documents.begin(), documents.end(), std::int64_t{0});
  return documents;
}

/// Turns every activation of the operands on: raw gate with A_log and dt_bias, l2norm, doubled sigmoid of beta.
inline void use_every_activation(KdaSpec& spec) {
  spec.options.use_gate_in_kernel = true;
  spec.options.use_qk_l2norm_in_kernel = true;
  spec.options.use_beta_sigmoid_in_kernel = true;
  spec.options.allow_neg_eigval = true;
}

/// Runs the problem and compares everything with the reference.
inline testing::AssertionResult accurate(const KdaSpec& spec, const KdaRun& how = {}) {
  const KdaProblem problem = make_problem(spec);
  return matches_reference(problem, run(problem, how), run_reference(problem));
}

}  // namespace cake::test
