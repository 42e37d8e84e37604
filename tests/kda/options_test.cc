// Options of cake_kda_det_train in every combination, and the outputs and gradients that may be left out.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

using kda_det_train::Gradients;
using kda_det_train::Outputs;

/// Small documents that cross chunks, and segments where these are short.
KdaSpec small_spec() {
  KdaSpec spec;
  spec.lengths = {70, 0, 1, kShortSegments ? 2 * kSegment + 3 : 140};
  spec.rows_past_end = 3;
  spec.H = 2;
  spec.HV = 4;
  spec.K = 20;
  spec.V = 12;
  return spec;
}

struct GateOption {
  bool raw, bound, A_log, dt_bias, flat;
};
const std::vector<GateOption>& gate_options() {
  static const std::vector<GateOption> options = {
      {false, false, false, false, false}, {true, false, true, false, false}, {true, false, true, true, false},
      {true, false, true, true, true},     {true, true, false, false, false}, {true, true, true, false, false},
      {true, true, false, true, false},    {true, true, true, true, true}};
  return options;
}

TEST(KdaOptions, EveryCombinationOfActivations) {
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const GateOption& gate : gate_options()) {
      for (const int beta : {0, 1, 2}) {
        for (const bool norm : {false, true}) {
          KdaSpec spec = small_spec();
          spec.dtype = dtype;
          spec.raw_gate_dtype = dtype;
          spec.seed = ++seed;
          spec.options.use_gate_in_kernel = gate.raw;
          if (gate.bound) spec.options.lower_bound = -2.0f;
          spec.A_log = gate.A_log;
          spec.dt_bias = gate.dt_bias;
          spec.flat_dt_bias = gate.flat;
          spec.options.use_beta_sigmoid_in_kernel = beta > 0;
          spec.options.allow_neg_eigval = beta == 2;
          spec.options.use_qk_l2norm_in_kernel = norm;
          spec.initial_state = seed % 2 == 0;
          spec.d_final_state = seed % 3 != 0;
          EXPECT_TRUE(accurate(spec));
        }
      }
    }
  }
}

TEST(KdaOptions, DtypesOfGateAndBetaAreIndependentOfTheOperands) {
  std::uint64_t seed = 50;
  for (const DType dtype : float_dtypes()) {
    for (const DType gate : float_dtypes()) {
      for (const bool beta_fp32 : {false, true}) {
        KdaSpec spec = small_spec();
        use_every_activation(spec);
        spec.dtype = dtype;
        spec.raw_gate_dtype = gate;
        spec.beta_fp32 = beta_fp32;
        spec.seed = ++seed;
        const KdaProblem problem = make_problem(spec);
        const KdaResults results = run(problem);
        EXPECT_EQ(results.at("dg").dtype, gate);
        EXPECT_EQ(results.at("dbeta").dtype, beta_fp32 ? DType::kFloat32 : dtype);
        EXPECT_TRUE(matches_reference(problem, results));
      }
    }
  }
}

TEST(KdaOptions, Scale) {
  for (const float scale : {0.37f, -2.0f, 0.0f, 100.0f}) {
    KdaSpec spec = small_spec();
    spec.options.scale = scale;
    spec.initial_state = true;
    spec.seed = 71;
    EXPECT_TRUE(accurate(spec));
  }
}

TEST(KdaOptions, TheDefaultScaleIsTheInverseRootOfK) {
  KdaSpec spec = small_spec();
  spec.K = 64;
  const KdaResults without = run(make_problem(spec));
  spec.options.scale = 0.125f;
  EXPECT_TRUE(same_bits(without, run(make_problem(spec))));
}

TEST(KdaOptions, BetaUpToTwoWithDuplicateKeys) {
  for (const DType dtype : float_dtypes()) {
    KdaSpec spec = small_spec();
    spec.dtype = dtype;
    spec.data = DataKind::kRepeated;
    spec.gate = GateRegime::kWeak;
    spec.options.use_beta_sigmoid_in_kernel = spec.options.allow_neg_eigval = true;
    spec.initial_state = true;
    spec.seed = 72;
    KdaProblem problem = make_problem(spec);
    for (std::int64_t i = 0; i < problem.offsets.back() * spec.HV; i += 3) problem.beta.set(i, 12.0);
    EXPECT_TRUE(matches_reference(problem, run(problem)));
  }
}

TEST(KdaOptions, OneChannelWithBetaAboveOne) {
  // All keys are parallel: the chunk form sums terms of both signs that a token-by-token form never makes, so a head
  // whose factors 1 - beta k^2 happen to be tiny has fewer digits than its norm promises. Judged over all heads.
  for (const bool norm : {false, true}) {
    KdaSpec spec = small_spec();
    spec.K = 1;
    spec.options.use_beta_sigmoid_in_kernel = spec.options.allow_neg_eigval = true;
    spec.options.use_qk_l2norm_in_kernel = norm;
    spec.gate = GateRegime::kWeak;
    spec.initial_state = true;
    spec.rows_past_end = 0;
    spec.seed = 78;
    const KdaProblem problem = make_problem(spec);
    const ReferenceResults reference = run_reference(problem);
    for (const auto& [name, tensor] : run(problem)) {
      EXPECT_LT(relative_l2(tensor.doubles(), reference.tensors.at(name)), 1e-4) << name;
    }
  }
}

TEST(KdaOptions, AZeroInitialStateEqualsNone) {
  KdaSpec spec = small_spec();
  spec.initial_state = true;
  spec.seed = 73;
  KdaProblem zeros = make_problem(spec);
  for (std::int64_t i = 0; i < zeros.initial_state->numel(); ++i) zeros.initial_state->set(i, 0.0);
  KdaProblem none = zeros;
  none.initial_state.reset();
  none.spec.initial_state = false;
  const KdaResults with_zeros = run(zeros), without = run(none);
  for (const auto& [name, tensor] : without) {
    EXPECT_EQ(tensor.doubles(), with_zeros.at(name).doubles()) << name;
  }
}

TEST(KdaOptions, AZeroGradientOfTheFinalStateEqualsNone) {
  KdaSpec spec = small_spec();
  spec.seed = 74;
  KdaProblem zeros = make_problem(spec);
  for (std::int64_t i = 0; i < zeros.d_final_state->numel(); ++i) zeros.d_final_state->set(i, 0.0);
  KdaProblem none = zeros;
  none.d_final_state.reset();
  none.spec.d_final_state = false;
  const KdaResults with_zeros = run(zeros), without = run(none);
  for (const auto& [name, tensor] : without) {
    EXPECT_EQ(tensor.doubles(), with_zeros.at(name).doubles()) << name;
  }
}

TEST(KdaOptions, TheFinalStateMayBeLeftOut) {
  KdaSpec spec = small_spec();
  spec.seed = 75;
  const KdaResults with = run(make_problem(spec));
  spec.final_state = false;
  const KdaResults without = run(make_problem(spec));
  EXPECT_EQ(without.count("final_state"), 0u);
  for (const auto& [name, tensor] : without) EXPECT_TRUE(same_bits(tensor, with.at(name), name));
}

TEST(KdaOptions, EachGradientAloneHasTheSameBits) {
  KdaSpec spec = small_spec();
  use_every_activation(spec);
  spec.initial_state = true;
  spec.seed = 76;
  const KdaProblem p = make_problem(spec);
  const KdaResults all = run(p);
  const std::vector<std::pair<std::string, TensorView Gradients::*>> members = {
      {"dq", &Gradients::dq},
      {"dk", &Gradients::dk},
      {"dv", &Gradients::dv},
      {"dg", &Gradients::dg},
      {"dbeta", &Gradients::dbeta},
      {"dA_log", &Gradients::dA_log},
      {"ddt_bias", &Gradients::ddt_bias},
      {"dinitial_state", &Gradients::dinitial_state}};
  for (const bool recompute : {false, true}) {
    kda_det_train::Saved saved;
    LaidOutTensor out(spec.dtype, p.v.shape);
    if (!recompute) kda_det_train::forward(p.inputs(), {out.view(), {}}, spec.options, nullptr, &saved);
    for (const auto& [name, member] : members) {
      LaidOutTensor tensor(all.at(name).dtype, all.at(name).shape);
      Gradients gradients;
      gradients.*member = tensor.view();
      kda_det_train::backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, spec.options, nullptr,
                              recompute ? nullptr : &saved);
      EXPECT_TRUE(same_bits(tensor.gather(), all.at(name), name));
      EXPECT_TRUE(tensor.guards_intact()) << name;
    }
    // Nothing asked for: allowed, and nothing happens.
    kda_det_train::backward(p.inputs(), p.dout.view(), p.d_final_state->view(), {}, spec.options, nullptr,
                            recompute ? nullptr : &saved);
  }
}

TEST(KdaOptions, TheBackwardMayRunTwiceOnOneSavedSet) {
  KdaSpec spec = small_spec();
  spec.seed = 77;
  const KdaProblem p = make_problem(spec);
  kda_det_train::Saved saved;
  EXPECT_TRUE(saved.empty());
  LaidOutTensor out(spec.dtype, p.v.shape);
  kda_det_train::forward(p.inputs(), {out.view(), {}}, spec.options, nullptr, &saved);
  EXPECT_FALSE(saved.empty());
  kda_det_train::Saved moved = std::move(saved);
  std::vector<HostTensor> dk;
  for (int repeat = 0; repeat < 2; ++repeat) {
    LaidOutTensor tensor(spec.dtype, p.k.shape);
    Gradients gradients;
    gradients.dk = tensor.view();
    kda_det_train::backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, spec.options, nullptr,
                            &moved);
    dk.push_back(tensor.gather());
  }
  EXPECT_TRUE(same_bits(dk[0], dk[1]));
  EXPECT_TRUE(same_bits(dk[0], run(p).at("dk")));
}

TEST(KdaOptions, ASavedSetAndAWorkspaceServeOtherProblemsAfterwards) {
  kda_det_train::Saved saved;
  kda_det_train::Workspace workspace;
  for (const std::int64_t T : {200, 3, 129}) {
    KdaSpec spec;
    spec.lengths = {T, 5};
    spec.K = T == 3 ? 40 : 16;
    spec.seed = static_cast<std::uint64_t>(T);
    const KdaProblem p = make_problem(spec);
    LaidOutTensor out(spec.dtype, p.v.shape), dg(DType::kFloat32, p.g.shape);
    Gradients gradients;
    gradients.dg = dg.view();
    kda_det_train::forward(p.inputs(), {out.view(), {}}, spec.options, &workspace, &saved);
    kda_det_train::backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, spec.options, &workspace,
                            &saved);
    EXPECT_TRUE(same_bits(out.gather(), run(p).at("out")));
    EXPECT_TRUE(same_bits(dg.gather(), run(p).at("dg")));
  }
}

}  // namespace
}  // namespace cake::test
