// Every gate regime, from no decay to states that are wiped out, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

KdaSpec gate_spec(GateRegime gate, DType dtype) {
  KdaSpec spec;
  spec.gate = gate;
  spec.dtype = dtype;
  spec.seed = 100 + static_cast<std::uint64_t>(gate);
  return spec;
}

TEST(KdaGates, EveryRegimeWithAndWithoutInitialState) {
  for (const GateRegime gate : all_gate_regimes()) {
    for (const DType dtype : float_dtypes()) {
      for (const bool initial : {false, true}) {
        KdaSpec spec = gate_spec(gate, dtype);
        spec.lengths = {192, 1, 70, kShortSegments ? 3 * kSegment + 1 : 100};
        spec.HV = 4;
        spec.H = 2;
        spec.K = 20;
        spec.V = 33;
        spec.initial_state = spec.d_final_state = initial;
        EXPECT_TRUE(accurate(spec));
      }
    }
  }
}

TEST(KdaGates, NoDecayAtFullHeadSize) {
  // Field faults O01: guards around exp treat a difference of 0 as invalid.
  for (const GateRegime gate : {GateRegime::kZero, GateRegime::kAlternating}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      KdaSpec spec = gate_spec(gate, dtype);
      spec.lengths = {130};
      spec.packed = false;
      spec.H = spec.HV = 2;
      spec.K = spec.V = 128;
      spec.initial_state = true;
      EXPECT_TRUE(accurate(spec));
    }
  }
}

TEST(KdaGates, StrongDecayAtFullHeadSize) {
  // Field faults O02: the exponential of a cumulative sum over a chunk overflows.
  for (const GateRegime gate :
       {GateRegime::kMinus5, GateRegime::kMinus20, GateRegime::kOneChannel, GateRegime::kHoles}) {
    KdaSpec spec = gate_spec(gate, DType::kFloat32);
    spec.lengths = {192};
    spec.packed = false;
    spec.K = spec.V = 128;
    EXPECT_TRUE(accurate(spec));
  }
}

/// Elements of one channel of a [1, S, HV, K] tensor, per value head.
std::vector<double> channel_of(const std::vector<double>& values, std::int64_t heads, std::int64_t K, std::int64_t head,
                               std::int64_t channel) {
  std::vector<double> result;
  for (std::size_t row = 0; row < values.size() / static_cast<std::size_t>(heads * K); ++row) {
    result.push_back(
        values[(row * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head)) * static_cast<std::size_t>(K) +
               static_cast<std::size_t>(channel)]);
  }
  return result;
}

TEST(KdaGates, TheOneStronglyDecayingChannelIsAsAccurateAsTheOthers) {
  // Its gate gradient is thousands of times smaller than its neighbours': norms over the head do not see it.
  for (const bool initial : {false, true}) {
    KdaSpec spec = gate_spec(GateRegime::kOneChannel, DType::kFloat32);
    spec.lengths = {192};
    spec.K = 32;
    spec.V = 24;
    spec.initial_state = initial;
    const KdaProblem problem = make_problem(spec);
    const KdaResults results = run(problem);
    const ReferenceResults reference = run_reference(problem);
    for (std::int64_t head = 0; head < spec.HV; ++head) {
      for (std::int64_t channel = 0; channel < spec.K; ++channel) {
        const double error = relative_l2(channel_of(results.at("dg").doubles(), spec.HV, spec.K, head, channel),
                                         channel_of(reference.tensors.at("dg"), spec.HV, spec.K, head, channel));
        EXPECT_LT(error, kda_limit("dg", DType::kFloat32, DType::kFloat32))
            << "head " << head << ", channel " << channel;
      }
    }
  }
}

TEST(KdaGates, GateGradientUnderStrongDecay) {
  // Field faults O03: two large terms that cancel are rounded separately and dg is mostly noise.
  for (const DType dtype : float_dtypes()) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      for (const std::int64_t T : {64, 130}) {
        KdaSpec spec = gate_spec(GateRegime::kMinus5, dtype);
        spec.lengths = {T};
        spec.K = spec.V = 64;
        spec.d_final_state = seed == 2;
        spec.seed = seed;
        EXPECT_TRUE(accurate(spec));
      }
    }
  }
}

TEST(KdaGates, GateGradientOfOneTokenIsZeroWithoutInitialState) {
  for (const DType dtype : float_dtypes()) {
    KdaSpec spec = gate_spec(GateRegime::kModerate, dtype);
    spec.lengths = {1, 1, 0, 1};
    const KdaProblem problem = make_problem(spec);
    const KdaResults results = run(problem);
    for (const double x : results.at("dg").doubles()) EXPECT_EQ(x, 0.0);
    EXPECT_TRUE(matches_reference(problem, results));
  }
}

void set_all(HostTensor& tensor, double even, double odd) {
  for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.set(i, i % 2 == 0 ? even : odd);
}

/// A raw-gate problem whose gates are +-`raw` and whose A_log is `A_log` in all heads.
KdaProblem saturated_problem(double raw, double A_log, bool bounded, DType dtype, bool bias = true) {
  KdaSpec spec;
  spec.lengths = {192, 33};
  spec.dt_bias = bias;
  spec.dtype = spec.raw_gate_dtype = dtype;
  spec.K = 24;
  spec.V = 16;
  spec.options.use_gate_in_kernel = true;
  if (bounded) spec.options.lower_bound = -5.0f;
  spec.initial_state = true;
  spec.seed = 5;
  KdaProblem problem = make_problem(spec);
  set_all(problem.g, raw, -raw);
  set_all(*problem.A_log, A_log, A_log);
  if (bias) set_all(*problem.dt_bias, 0.125, -0.25);
  return problem;
}

TEST(KdaGates, SaturatedGatesAreFiniteAndHaveNoGradient) {
  for (const bool bounded : {false, true}) {
    for (const DType dtype : float_dtypes()) {
      for (const double raw : {40.0, 1000.0}) {
        for (const bool bias : {false, true}) {
          const KdaProblem problem = saturated_problem(raw, 100.0, bounded, dtype, bias);
          const KdaResults results = run(problem);
          EXPECT_TRUE(matches_reference(problem, results)) << "bounded " << bounded << ", raw " << raw;
          for (const char* name : {"dg", "dA_log", "ddt_bias"}) {
            if (results.count(name) == 0) continue;
            for (const double x : results.at(name).doubles()) ASSERT_EQ(x, 0.0) << name;
          }
        }
      }
    }
  }
}

TEST(KdaGates, GatesThatSaturateOnOneSideAreFinite) {
  // The activation's slope is about exp(-40): its gradient may vanish, nothing else may change.
  for (const bool bounded : {false, true}) {
    for (const double A_log : {-100.0, -1.0, 0.0, 1.0}) {
      const KdaProblem problem = saturated_problem(40.0, A_log, bounded, DType::kFloat32);
      const KdaResults results = run(problem);
      EXPECT_TRUE(matches_reference(problem, results, run_reference(problem),
                                    {.only = {"out", "final_state", "dq", "dk", "dv", "dbeta", "dinitial_state"}}))
          << "bounded " << bounded << ", A_log " << A_log;
      for (const char* name : {"dg", "dA_log", "ddt_bias"}) {
        for (const double x : results.at(name).doubles()) ASSERT_TRUE(std::isfinite(x)) << name;
      }
    }
  }
}

TEST(KdaGates, NearlySaturatedGatesKeepTheirSmallGradients) {
  // The slope y (1 - y) of the bounded gate loses its digits when 1 - y is a difference of rounded numbers.
  for (const double raw : {6.0, 12.0, 16.0, 24.0}) {
    for (const double sign : {1.0, -1.0}) {
      for (const bool bounded : {false, true}) {
        KdaProblem problem = saturated_problem(raw, 0.0, bounded, DType::kFloat32);
        set_all(problem.g, sign * raw, sign * raw * 0.95);
        EXPECT_TRUE(matches_reference(problem, run(problem))) << "raw " << sign * raw << ", bounded " << bounded;
      }
    }
  }
}

TEST(KdaGates, SharpGatesOfOneHeadLeaveTheOthersAlone) {
  // One head's A_log is saturated: its neighbours keep their gradients.
  KdaSpec spec;
  spec.lengths = {130};
  spec.HV = 3;
  spec.options.use_gate_in_kernel = true;
  spec.seed = 6;
  KdaProblem problem = make_problem(spec);
  problem.A_log->set(1, 100.0);
  EXPECT_TRUE(matches_reference(problem, run(problem)));
}

TEST(KdaGates, TheRawSoftplusGateEqualsThePlainGateOfItsValues) {
  KdaSpec spec;
  spec.lengths = {150};
  spec.options.use_gate_in_kernel = true;
  spec.A_log = true;
  spec.dt_bias = false;
  spec.seed = 7;
  const KdaProblem raw = make_problem(spec);
  KdaProblem plain = raw;
  plain.spec.options.use_gate_in_kernel = false;
  plain.A_log.reset();
  for (std::int64_t i = 0; i < raw.g.numel(); ++i) {
    const double a = std::exp(raw.A_log->at(i / spec.K % spec.HV));
    plain.g.set(i, -a * std::log1p(std::exp(raw.g.at(i))));
  }
  const KdaResults one = run(raw), two = run(plain);
  for (const char* name : {"out", "final_state", "dq", "dk", "dv", "dbeta"}) {
    EXPECT_LT(relative_l2(one.at(name).doubles(), two.at(name).doubles()), 2e-5) << name;
  }
}

}  // namespace
}  // namespace cake::test
