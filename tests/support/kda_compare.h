// Comparisons of KDA results: with the float64 reference per document and head, and with other results bit by bit. A
// program that links them prints the worst error of each tensor against its limit when its tests are done.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/kda_problem.h"

namespace cake::test {

/// Limit of the relative L2 error of a tensor held in `held` for operands of `dtype`: fp32 2e-5, fp32 results of bf16
/// and fp16 operands 1e-4, fp16 1e-3, bf16 out 5e-3, dq, dk, dv 8e-3, dg and dbeta 1e-2.
double kda_limit(const std::string& tensor, DType held, DType dtype);

/// How matches_reference judges.
struct Judgement {
  double factor = 1.0;              ///< of every limit
  std::vector<std::string> only{};  ///< tensors to judge; empty: all
};

/// Every document and head of every tensor lies within its limit; a block whose reference is exactly 0 is exactly 0;
/// nothing is NaN or infinite; rows past the last offset are exactly 0; without an initial state dg of the first row of
/// every document is exactly 0. A block beyond its limit is still right when it is ill-conditioned: when its error is
/// at most 64 times what relative changes of 2^-24 of the operands and decays, or of the two terms of a gradient
/// through the l2 norm, do to the reference. (A gradient of a short document may be a sum of few terms that cancel.)
testing::AssertionResult matches_reference(const KdaProblem& problem, const KdaResults& results,
                                           const ReferenceResults& reference, const Judgement& judgement = {});
/// The same against a reference that this call runs.
testing::AssertionResult matches_reference(const KdaProblem& problem, const KdaResults& results);

/// Equal dtype, shape and bytes; says where the first difference lies.
testing::AssertionResult same_bits(const HostTensor& a, const HostTensor& b, const std::string& name = "tensor");
/// Equal bits of every tensor of both (or of those in `only`).
testing::AssertionResult same_bits(const KdaResults& a, const KdaResults& b, const std::vector<std::string>& only = {});

/// ||a - b|| / ||b|| in float64; 0 when both are 0, infinity when only b is.
double relative_l2(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace cake::test
