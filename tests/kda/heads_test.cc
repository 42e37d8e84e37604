// Grouped value heads: several value heads read one query and key head.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

/// The problem with q and k repeated, so that every value head has its own.
KdaProblem repeated_heads(const KdaProblem& problem) {
  KdaProblem wide = problem;
  wide.spec.H = problem.spec.HV;
  const std::int64_t K = problem.spec.K, HV = problem.spec.HV, group = HV / problem.spec.H;
  for (auto [to, from] : {std::pair{&wide.q, &problem.q}, {&wide.k, &problem.k}}) {
    *to = HostTensor(from->dtype, {problem.B, problem.S, HV, K});
    for (std::int64_t i = 0; i < to->numel(); ++i) {
      const std::int64_t d = i % K, hv = i / K % HV, row = i / K / HV;
      to->set(i, from->at((row * problem.spec.H + hv / group) * K + d));
    }
  }
  return wide;
}

TEST(KdaHeads, GroupsEqualRepeatedQueriesAndKeys) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> heads = {{2, 6}, {3, 3}, {1, 8}};
  for (const auto& [H, HV] : heads) {
    for (const bool norm : {false, true}) {
      for (const std::int64_t V : {128, 48}) {
        KdaSpec spec;
        spec.lengths = {130};
        spec.H = H;
        spec.HV = HV;
        spec.K = 128;
        spec.V = V;
        spec.gate = GateRegime::kPerHead;
        spec.options.use_qk_l2norm_in_kernel = norm;
        spec.initial_state = true;
        spec.seed = static_cast<std::uint64_t>(HV);
        const KdaProblem problem = make_problem(spec);
        const KdaResults grouped = run(problem), repeated = run(repeated_heads(problem));
        EXPECT_TRUE(same_bits(grouped, repeated, {"out", "final_state", "dv", "dg", "dbeta", "dinitial_state"}));
        for (const char* name : {"dq", "dk"}) {
          // The heads of a group are added in ascending order, in fp32. With the norm the sum goes through it once.
          const HostTensor& each = repeated.at(name);
          const std::int64_t group = HV / H;
          std::vector<double> sums(static_cast<std::size_t>(grouped.at(name).numel()));
          for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
            const std::int64_t d = i % spec.K, h = i / spec.K % H, row = i / spec.K / H;
            float sum = 0.0f;
            for (std::int64_t j = 0; j < group; ++j) {
              sum += static_cast<float>(each.at((row * HV + h * group + j) * spec.K + d));
            }
            sums[static_cast<std::size_t>(i)] = static_cast<double>(sum);
          }
          if (norm) {
            EXPECT_LT(relative_l2(grouped.at(name).doubles(), sums), 2e-6) << name;
          } else {
            EXPECT_EQ(grouped.at(name).doubles(), sums) << name;
          }
        }
      }
    }
  }
}

TEST(KdaHeads, GroupsAgainstTheReference) {
  for (const DType dtype : float_dtypes()) {
    for (const auto& [H, HV] : {std::pair<std::int64_t, std::int64_t>{2, 6}, {1, 8}, {3, 3}}) {
      KdaSpec spec;
      spec.lengths = {130, 3, kShortSegments ? 2 * kSegment + 1 : 64};
      spec.H = H;
      spec.HV = HV;
      spec.K = 24;
      spec.V = 40;
      spec.dtype = spec.raw_gate_dtype = dtype;
      spec.initial_state = true;
      spec.seed = static_cast<std::uint64_t>(HV);
      EXPECT_TRUE(accurate(spec));
      use_every_activation(spec);
      EXPECT_TRUE(accurate(spec));
    }
  }
}

TEST(KdaHeads, AGateOfAnotherHeadIsNotRead) {
  // Field faults O11: gates read without the head's offset. Each head's results equal a call with that head alone.
  KdaSpec spec;
  spec.lengths = {90, kShortSegments ? 2 * kSegment + 9 : 100};
  spec.H = spec.HV = 4;
  spec.gate = GateRegime::kPerHead;
  spec.initial_state = true;
  spec.seed = 9;
  const KdaProblem problem = make_problem(spec);
  const KdaResults all = run(problem);
  for (std::int64_t head = 0; head < 4; ++head) {
    KdaProblem one = problem;
    one.spec.H = one.spec.HV = 1;
    const auto take = [head](const HostTensor& tensor, std::size_t dim) {
      Shape shape = tensor.shape;
      std::int64_t inner = 1;
      for (std::size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
      const std::int64_t heads = shape[dim], outer = tensor.numel() / inner / heads;
      shape[dim] = 1;
      HostTensor part(tensor.dtype, shape);
      for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t i = 0; i < inner; ++i) part.set(o * inner + i, tensor.at((o * heads + head) * inner + i));
      }
      return part;
    };
    for (HostTensor* tensor : {&one.q, &one.k, &one.v, &one.g, &one.beta, &one.dout}) *tensor = take(*tensor, 2);
    one.initial_state = take(*problem.initial_state, 1);
    one.d_final_state = take(*problem.d_final_state, 1);
    const KdaResults alone = run(one);
    for (const auto& [name, tensor] : all) {
      EXPECT_TRUE(same_bits(take(tensor, is_state(name) ? 1 : 2), alone.at(name), name)) << "head " << head;
    }
  }
}

}  // namespace
}  // namespace cake::test
