// The float64 reference against central differences of its own forward, for every operand and option, and against
// values worked out by hand. Everything else in this folder relies on it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "ops/kda/reference.h"
#include "tests/support/kda_compare.h"
#include "tests/support/random.h"

namespace cake::test {
namespace {

using kda::reference_backward;
using kda::reference_forward;
using kda::ReferenceGradients;
using kda::ReferenceInputs;
using kda::ReferenceOutputs;
using Numbers = std::vector<double>;

enum class Gate { kPlain, kSoftplus, kSoftplusBias, kBound, kBoundBiasRate };
enum class Beta { kPlain, kSigmoid, kDoubled };

/// Small documents (one empty), every head with its own gate; rows past the last offset.
ReferenceInputs small_problem(Gate gate, Beta beta, bool norm, bool initial, std::int64_t group, std::uint64_t seed) {
  Random random(seed);
  ReferenceInputs in;
  in.offsets = {0, 3, 3, 4, 6};
  in.S = 7;
  in.H = group == 1 ? 2 : 1;
  in.HV = in.H * group;
  in.K = 3;
  in.V = 2;
  in.scale = 0.7;
  const auto draw = [&](std::int64_t n, double scale, double shift) {
    Numbers numbers(static_cast<std::size_t>(n));
    for (double& x : numbers) x = shift + scale * random.normal();
    return numbers;
  };
  in.q = draw(in.S * in.H * in.K, 1.0, 0.0);
  in.k = draw(in.S * in.H * in.K, 0.6, 0.0);
  in.v = draw(in.S * in.HV * in.V, 1.0, 0.0);
  in.g = draw(in.S * in.HV * in.K, 0.5, gate == Gate::kPlain ? -1.0 : 0.0);
  in.beta = draw(in.S * in.HV, 0.5, 0.4);
  if (initial) in.initial_state = draw(4 * in.HV * in.K * in.V, 1.0, 0.0);
  in.use_gate_in_kernel = gate != Gate::kPlain;
  if (gate == Gate::kBound || gate == Gate::kBoundBiasRate) in.lower_bound = -5.0;
  if (gate == Gate::kSoftplus || gate == Gate::kSoftplusBias || gate == Gate::kBoundBiasRate) {
    in.A_log = draw(in.HV, 0.5, 0.0);
  }
  if (gate == Gate::kSoftplusBias || gate == Gate::kBoundBiasRate) in.dt_bias = draw(in.HV * in.K, 0.5, 0.0);
  in.use_qk_l2norm_in_kernel = norm;
  in.use_beta_sigmoid_in_kernel = beta != Beta::kPlain;
  in.allow_neg_eigval = beta == Beta::kDoubled;
  return in;
}

double loss(const ReferenceInputs& in, const Numbers& dout, const Numbers& dfinal) {
  const ReferenceOutputs out = reference_forward(in);
  double sum = 0.0;
  for (std::size_t i = 0; i < out.out.size(); ++i) sum += out.out[i] * dout[i];
  for (std::size_t i = 0; i < dfinal.size(); ++i) sum += out.final_state[i] * dfinal[i];
  return sum;
}

/// Compares every element of one gradient with a central difference.
void expect_gradient(ReferenceInputs in, Numbers ReferenceInputs::*operand, const Numbers& gradient,
                     const Numbers& dout, const Numbers& dfinal, const std::string& name) {
  constexpr double kStep = 1e-5;
  ASSERT_EQ((in.*operand).size(), gradient.size()) << name;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double& x = (in.*operand)[i];
    const double before = x;
    x = before + kStep;
    const double above = loss(in, dout, dfinal);
    x = before - kStep;
    const double below = loss(in, dout, dfinal);
    x = before;
    ASSERT_NEAR((above - below) / (2 * kStep), gradient[i], 2e-8 * (1.0 + std::abs(gradient[i]))) << name << " " << i;
  }
}

void expect_all_gradients(const ReferenceInputs& in, const Numbers& dout, const Numbers& dfinal) {
  const ReferenceGradients grads = reference_backward(in, dout, dfinal);
  expect_gradient(in, &ReferenceInputs::q, grads.dq, dout, dfinal, "dq");
  expect_gradient(in, &ReferenceInputs::k, grads.dk, dout, dfinal, "dk");
  expect_gradient(in, &ReferenceInputs::v, grads.dv, dout, dfinal, "dv");
  expect_gradient(in, &ReferenceInputs::g, grads.dg, dout, dfinal, "dg");
  expect_gradient(in, &ReferenceInputs::beta, grads.dbeta, dout, dfinal, "dbeta");
  expect_gradient(in, &ReferenceInputs::A_log, grads.dA_log, dout, dfinal, "dA_log");
  expect_gradient(in, &ReferenceInputs::dt_bias, grads.ddt_bias, dout, dfinal, "ddt_bias");
  expect_gradient(in, &ReferenceInputs::initial_state, grads.dinitial_state, dout, dfinal, "dinitial_state");
}

Numbers random_numbers(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Numbers numbers(count);
  for (double& x : numbers) x = random.normal();
  return numbers;
}

TEST(KdaReference, EveryGradientIsTheCentralDifferenceForEveryOption) {
  std::uint64_t seed = 1;
  for (const Gate gate : {Gate::kPlain, Gate::kSoftplus, Gate::kSoftplusBias, Gate::kBound, Gate::kBoundBiasRate}) {
    for (const Beta beta : {Beta::kPlain, Beta::kSigmoid, Beta::kDoubled}) {
      for (const bool norm : {false, true}) {
        for (const bool initial : {false, true}) {
          for (const bool dfinal : {false, true}) {
            for (const std::int64_t group : {1, 3}) {
              const ReferenceInputs in = small_problem(gate, beta, norm, initial, group, ++seed);
              const std::size_t states = static_cast<std::size_t>(4 * in.HV * in.K * in.V);
              SCOPED_TRACE("seed " + std::to_string(seed));
              expect_all_gradients(in, random_numbers(in.v.size(), seed + 1000),
                                   dfinal ? random_numbers(states, seed + 2000) : Numbers{});
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(KdaReference, GradientsAcrossTheBlocksWhoseStatesAreRecomputed) {
  // The backward keeps a state every 64 tokens: directional differences over documents around that number.
  for (const std::int64_t T : {1, 63, 64, 65, 128, 150}) {
    KdaSpec spec;
    spec.lengths = {T};
    spec.K = 4;
    spec.V = 3;
    spec.initial_state = true;
    spec.gate = GateRegime::kWeak;
    spec.seed = static_cast<std::uint64_t>(T);
    const KdaProblem problem = make_problem(spec);
    const ReferenceInputs in = problem.reference_inputs();
    const Numbers dout = problem.dout.doubles(), dfinal = problem.d_final_state->doubles();
    const ReferenceGradients grads = reference_backward(in, dout, dfinal);
    const auto along = [&](Numbers ReferenceInputs::*operand, const Numbers& gradient, const char* name) {
      constexpr double kStep = 1e-5;
      const Numbers direction = random_numbers(gradient.size(), 99);
      double expected = 0.0;
      for (std::size_t i = 0; i < gradient.size(); ++i) expected += gradient[i] * direction[i];
      const auto at = [&](double step) {
        ReferenceInputs moved = in;
        for (std::size_t i = 0; i < direction.size(); ++i) (moved.*operand)[i] += step * direction[i];
        return loss(moved, dout, dfinal);
      };
      const double central = (at(kStep) - at(-kStep)) / (2 * kStep);
      EXPECT_NEAR(central, expected, 1e-6 * (1.0 + std::abs(expected))) << name << ", " << T << " tokens";
    };
    along(&ReferenceInputs::q, grads.dq, "dq");
    along(&ReferenceInputs::k, grads.dk, "dk");
    along(&ReferenceInputs::v, grads.dv, "dv");
    along(&ReferenceInputs::g, grads.dg, "dg");
    along(&ReferenceInputs::beta, grads.dbeta, "dbeta");
    along(&ReferenceInputs::initial_state, grads.dinitial_state, "dinitial_state");
  }
}

TEST(KdaReference, TwoTokensByHand) {
  // K = V = 1. Token 1: S = 2 * 1/2 (decay ln 1/2) = 1; error = 3 - 1 * 0.5 = 2.5; S = 1 + 0.5 * 0.8 * 2.5 = 2.
  // Token 2: decay 1/4: S = 0.5; error = 1 - 2 * 0.5 = 0; S = 0.5. out = scale q S.
  ReferenceInputs in;
  in.S = 2;
  in.offsets = {0, 2};
  in.q = {3.0, 5.0};
  in.k = {0.5, 2.0};
  in.v = {3.0, 1.0};
  in.g = {std::log(0.5), std::log(0.25)};
  in.beta = {0.8, 0.9};
  in.initial_state = {2.0};
  in.scale = 0.1;
  const ReferenceOutputs out = reference_forward(in);
  EXPECT_NEAR(out.out[0], 0.1 * 3.0 * 2.0, 1e-15);
  EXPECT_NEAR(out.out[1], 0.1 * 5.0 * 0.5, 1e-15);
  EXPECT_NEAR(out.final_state[0], 0.5, 1e-15);
  // Loss out[1]: dS_2 = 0.5; through the second token d error/dS = -k: dS_2(decayed) = 0.5 (1 - 0.9 * 4) = -1.3.
  const ReferenceGradients grads = reference_backward(in, {0.0, 1.0}, {});
  EXPECT_NEAR(grads.dq[1], 0.1 * 0.5, 1e-15);
  EXPECT_NEAR(grads.dv[1], 0.5 * 2.0 * 0.9, 1e-15);
  EXPECT_NEAR(grads.dbeta[1], 0.0, 1e-15);
  EXPECT_NEAR(grads.dg[1], -1.3 * 0.5, 1e-15);
  EXPECT_NEAR(grads.dinitial_state[0], -1.3 * 0.25 * (1.0 - 0.8 * 0.25) * 0.5, 1e-15);
}

TEST(KdaReference, StrongDecayHasAClosedForm) {
  KdaSpec spec;
  spec.lengths = {70};
  spec.K = spec.V = 32;
  spec.gate = GateRegime::kMinus20;
  const KdaProblem problem = make_problem(spec);
  const ReferenceInputs in = problem.reference_inputs();
  const ReferenceOutputs out = reference_forward(in);
  Numbers closed(out.out.size());
  for (std::int64_t t = 0; t < 70; ++t) {
    for (std::int64_t hv = 0; hv < 2; ++hv) {
      double qk = 0.0;
      for (std::int64_t d = 0; d < 32; ++d) {
        qk += in.q[static_cast<std::size_t>(t * 32 + d)] * in.k[static_cast<std::size_t>(t * 32 + d)];
      }
      for (std::int64_t j = 0; j < 32; ++j) {
        const auto at = static_cast<std::size_t>((t * 2 + hv) * 32 + j);
        closed[at] = in.scale * in.beta[static_cast<std::size_t>(t * 2 + hv)] * qk * in.v[at];
      }
    }
  }
  EXPECT_LT(relative_l2(out.out, closed), 1e-7);
}

TEST(KdaReference, SaturatedGatesAreFiniteAndWithoutGradient) {
  for (const bool bounded : {false, true}) {
    ReferenceInputs in =
        small_problem(bounded ? Gate::kBoundBiasRate : Gate::kSoftplusBias, Beta::kPlain, false, true, 1, 5);
    for (double& a : in.A_log) a = 100.0;
    for (std::size_t i = 0; i < in.g.size(); ++i) in.g[i] = i % 2 == 0 ? 40.0 : -40.0;
    const ReferenceGradients grads =
        reference_backward(in, random_numbers(in.v.size(), 1), random_numbers(in.initial_state.size(), 2));
    for (const Numbers* list : {&grads.dq, &grads.dk, &grads.dv, &grads.dbeta, &grads.dinitial_state}) {
      for (const double x : *list) ASSERT_TRUE(std::isfinite(x));
    }
    for (const Numbers* list : {&grads.dg, &grads.dA_log, &grads.ddt_bias}) {
      for (const double x : *list) ASSERT_EQ(x, 0.0);
    }
  }
}

TEST(KdaReference, RowsOutsideEveryDocumentDoNotExist) {
  ReferenceInputs in = small_problem(Gate::kSoftplusBias, Beta::kSigmoid, true, true, 1, 8);
  const Numbers dout = random_numbers(in.v.size(), 3);
  const ReferenceGradients before = reference_backward(in, dout, {});
  for (std::int64_t i = 6 * in.HV * in.K; i < 7 * in.HV * in.K; ++i) in.g[static_cast<std::size_t>(i)] = NAN;
  for (std::int64_t i = 6 * in.H * in.K; i < 7 * in.H * in.K; ++i) in.k[static_cast<std::size_t>(i)] = NAN;
  const ReferenceGradients after = reference_backward(in, dout, {});
  EXPECT_EQ(before.dk, after.dk);
  EXPECT_EQ(before.dg, after.dg);
  EXPECT_EQ(before.dA_log, after.dA_log);
  for (std::int64_t i = 6 * in.HV * in.V; i < 7 * in.HV * in.V; ++i) {
    EXPECT_EQ(reference_forward(in).out[static_cast<std::size_t>(i)], 0.0);
    EXPECT_EQ(after.dv[static_cast<std::size_t>(i)], 0.0);
  }
}

TEST(KdaReference, GroupedHeadsEqualRepeatedKeys) {
  const ReferenceInputs in = small_problem(Gate::kPlain, Beta::kPlain, true, true, 3, 11);
  ReferenceInputs wide = in;
  wide.H = in.HV;
  wide.q.clear();
  wide.k.clear();
  for (std::int64_t row = 0; row < in.S; ++row) {
    for (std::int64_t hv = 0; hv < in.HV; ++hv) {
      for (std::int64_t d = 0; d < in.K; ++d) {
        wide.q.push_back(in.q[static_cast<std::size_t>((row * in.H + hv / 3) * in.K + d)]);
        wide.k.push_back(in.k[static_cast<std::size_t>((row * in.H + hv / 3) * in.K + d)]);
      }
    }
  }
  EXPECT_EQ(reference_forward(in).out, reference_forward(wide).out);
}

}  // namespace
}  // namespace cake::test
