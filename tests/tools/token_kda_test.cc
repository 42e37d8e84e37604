// The token-by-token peers of `cake bench` against the float64 reference, at every level of this machine.
#include "benchmarks/token_kda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>

#include "cake/core/error.h"
#include "cake/core/parallel.h"
#include "ops/kda/reference.h"

namespace {

using cake::CpuIsa;
using cake::benchmarks::TokenKernels;
using cake::benchmarks::TokenProblem;
using cake::benchmarks::TokenResults;
using cake::benchmarks::TokenRun;

constexpr std::int64_t kHeads = 2;

std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A problem with its numbers in both precisions.
struct Case {
  std::int64_t T, K, V;
  std::vector<float> q, k, v, g, beta, dout;

  Case(std::int64_t tokens, std::int64_t keys, std::int64_t values) : T(tokens), K(keys), V(values) {
    std::mt19937 random(static_cast<unsigned>(tokens * 1000 + keys + values));
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    const auto fill = [&](std::vector<float>& x, std::int64_t n, float factor) {
      x.resize(count(n));
      for (float& value : x) value = factor * normal(random);
    };
    const float row = 1.0f / std::sqrt(static_cast<float>(K));
    fill(q, T * kHeads * K, row);
    fill(k, T * kHeads * K, row);
    fill(v, T * kHeads * V, 1.0f);
    fill(dout, T * kHeads * V, 1.0f);
    g.resize(count(T * kHeads * K));
    for (float& value : g) value = uniform(random) < 0.02f ? -1000.0f : -uniform(random);
    beta.resize(count(T * kHeads));
    for (float& value : beta) value = uniform(random);
  }

  TokenProblem token_problem() const {
    return {T, kHeads, K, V, 0.25f, q.data(), k.data(), v.data(), g.data(), beta.data(), dout.data()};
  }
  cake::kda::ReferenceInputs reference_inputs() const {
    cake::kda::ReferenceInputs in;
    in.S = T;
    in.H = in.HV = kHeads;
    in.K = K;
    in.V = V;
    in.offsets = {0, T};
    in.q.assign(q.begin(), q.end());
    in.k.assign(k.begin(), k.end());
    in.v.assign(v.begin(), v.end());
    in.g.assign(g.begin(), g.end());
    in.beta.assign(beta.begin(), beta.end());
    in.scale = 0.25;
    return in;
  }
};

/// Results, full of NaN before the call.
struct Results {
  std::vector<float> out, final_state, dq, dk, dv, dg, dbeta;
  explicit Results(const Case& c)
      : out(c.v.size(), NAN),
        final_state(count(kHeads * c.K * c.V), NAN),
        dq(c.q.size(), NAN),
        dk(c.k.size(), NAN),
        dv(c.v.size(), NAN),
        dg(c.g.size(), NAN),
        dbeta(c.beta.size(), NAN) {}
  TokenResults views() {
    return {out.data(), final_state.data(), dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data()};
  }
};

void expect_near(const std::vector<float>& x, const std::vector<double>& ref, const char* name) {
  ASSERT_EQ(x.size(), ref.size()) << name;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < ref.size(); ++i) {
    error += (x[i] - ref[i]) * (x[i] - ref[i]);
    norm += ref[i] * ref[i];
  }
  EXPECT_LE(std::sqrt(error), 2e-6 * std::sqrt(norm)) << name;  // a NaN fails too
}

class TokenKda : public testing::TestWithParam<std::tuple<std::int64_t, std::int64_t, std::int64_t>> {};

TEST_P(TokenKda, AgreesWithTheReferenceOnEveryLevel) {
  const auto [T, K, V] = GetParam();
  const Case c(T, K, V);
  const auto inputs = c.reference_inputs();
  const auto outputs = cake::kda::reference_forward(inputs);
  const auto gradients = cake::kda::reference_backward(inputs, std::vector<double>(c.dout.begin(), c.dout.end()), {});
  for (const CpuIsa isa : cake::supported_cpu_isas()) {
    for (const bool plain : {false, true}) {
      SCOPED_TRACE(std::string(cake::cpu_isa_name(isa)) + (plain ? ", plain loops" : ", SIMD"));
      const TokenKernels& kernels =
          plain ? cake::benchmarks::plain_token_kernels(isa) : cake::benchmarks::simd_token_kernels(isa);
      TokenRun run(kernels, c.token_problem());
      Results forward_only(c), r(c);
      run.forward(forward_only.views());
      run.forward_backward(r.views());
      EXPECT_EQ(forward_only.out, r.out);
      EXPECT_EQ(forward_only.final_state, r.final_state);
      expect_near(r.out, outputs.out, "out");
      expect_near(r.final_state, outputs.final_state, "final_state");
      expect_near(r.dq, gradients.dq, "dq");
      expect_near(r.dk, gradients.dk, "dk");
      expect_near(r.dv, gradients.dv, "dv");
      expect_near(r.dg, gradients.dg, "dg");
      expect_near(r.dbeta, gradients.dbeta, "dbeta");
    }
  }
}

// Lengths around the stretch of 64 tokens; widths with one panel, with a pair and a single one, and the largest.
INSTANTIATE_TEST_SUITE_P(Shapes, TokenKda,
                         testing::Values(std::tuple{1, 32, 32}, std::tuple{63, 16, 48}, std::tuple{64, 48, 16},
                                         std::tuple{65, 32, 48}, std::tuple{130, 64, 32}, std::tuple{66, 256, 256}));

TEST(TokenKdaRun, GivesEqualBitsOnMoreThreads) {
  const Case c(70, 32, 32);
  const TokenKernels& kernels = cake::benchmarks::simd_token_kernels(cake::current_cpu_isa());
  Results one(c), two(c);
  {
    const cake::ScopedNumThreads threads(1);
    TokenRun(kernels, c.token_problem()).forward_backward(one.views());
  }
  {
    const cake::ScopedNumThreads threads(2);
    TokenRun(kernels, c.token_problem()).forward_backward(two.views());
  }
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(one.dg, two.dg);
  EXPECT_EQ(one.dk, two.dk);
}

TEST(TokenKdaRun, RefusesWhatItDoesNotCompute) {
  const Case c(4, 32, 32);
  const TokenKernels& kernels = cake::benchmarks::plain_token_kernels(CpuIsa::kBase);
  TokenProblem problem = c.token_problem();
  problem.K = 20;
  EXPECT_THROW(TokenRun(kernels, problem), cake::InvalidArgument);
  problem = c.token_problem();
  problem.V = 272;
  EXPECT_THROW(TokenRun(kernels, problem), cake::InvalidArgument);
  problem = c.token_problem();
  problem.H = 0;
  EXPECT_THROW(TokenRun(kernels, problem), cake::InvalidArgument);
}

}  // namespace
