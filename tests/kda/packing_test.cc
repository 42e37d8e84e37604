// Packing changes no bit of a document: alone or packed, next to empty documents, before rows that belong to nobody,
// with poisoned memory everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/kda/cases.h"

namespace cake::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Every per-document tensor of `packed`, cut down to `documents`, has the bits of `alone`.
void expect_same_documents(const KdaProblem& problem, const KdaResults& packed, const KdaResults& alone,
                           const std::vector<std::int64_t>& documents) {
  for (const auto& [name, tensor] : packed) {
    if (is_parameter_gradient(name)) continue;
    EXPECT_TRUE(same_bits(document_part(problem, name, tensor, documents), alone.at(name), name))
        << "first document " << documents.at(0) << "; " << problem.spec.text();
  }
}

TEST(KdaPacking, EveryDocumentAloneHasTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool activations : {false, true}) {
      KdaSpec spec;
      spec.lengths = border_lengths();
      spec.rows_past_end = 7;
      spec.dtype = dtype;
      set_long_document_heads(spec);
      spec.initial_state = true;
      spec.gate = kFaintGate;
      if (activations) use_every_activation(spec);
      spec.seed = 1;
      const KdaProblem problem = make_problem(spec);
      const KdaResults packed = run(problem);
      for (std::int64_t n = 0; n < problem.N; ++n) {
        expect_same_documents(problem, packed, run(select_documents(problem, {n})), {n});
      }
    }
  }
}

TEST(KdaPacking, ABatchHasTheBitsOfAPack) {
  KdaSpec spec;
  spec.lengths = {100, 100, 100};
  spec.packed = false;
  spec.H = 2;
  spec.HV = 6;
  spec.initial_state = true;
  spec.seed = 2;
  use_every_activation(spec);
  const KdaProblem batch = make_problem(spec);
  const KdaResults results = run(batch);
  expect_same_documents(batch, results, run(select_documents(batch, {0, 1, 2})), {0, 1, 2});
  const KdaResults packed = run(select_documents(batch, {0, 1, 2}));
  for (const char* name : {"dA_log", "ddt_bias"}) EXPECT_TRUE(same_bits(results.at(name), packed.at(name), name));
}

TEST(KdaPacking, AnotherOrderOfDocumentsMovesOnlyTheParameterFold) {
  KdaSpec spec;
  spec.lengths = {65, 0, 130, 1, kShortSegments ? 3 * kSegment + 1 : 70};
  spec.initial_state = true;
  use_every_activation(spec);
  spec.seed = 3;
  const KdaProblem problem = make_problem(spec);
  const KdaResults forwards = run(problem);
  const std::vector<std::int64_t> order = {4, 3, 1, 0, 2};
  const KdaResults other = run(select_documents(problem, order));
  expect_same_documents(problem, forwards, other, order);
  for (const char* name : {"dA_log", "ddt_bias"}) {
    EXPECT_LT(relative_l2(forwards.at(name).doubles(), other.at(name).doubles()), 1e-5) << name;
  }
}

TEST(KdaPacking, EmptyDocumentsChangeNothing) {
  for (const bool initial : {false, true}) {
    for (const bool dfinal : {false, true}) {
      KdaSpec spec;
      spec.lengths = {0, 5, 0, 64, 0, 0, kShortSegments ? kSegment + 3 : 70, 0};
      spec.initial_state = initial;
      spec.d_final_state = dfinal;
      use_every_activation(spec);
      spec.seed = 4;
      const KdaProblem problem = make_problem(spec);
      const KdaResults results = run(problem);
      const KdaResults without = run(select_documents(problem, {1, 3, 6}));
      expect_same_documents(problem, results, without, {1, 3, 6});
      for (const char* name : {"dA_log", "ddt_bias"}) EXPECT_TRUE(same_bits(results.at(name), without.at(name), name));
      const std::vector<std::int64_t> empty = {0, 2, 4, 5, 7};
      const HostTensor states = document_part(problem, "final_state", results.at("final_state"), empty);
      const HostTensor zero(DType::kFloat32, states.shape);
      EXPECT_TRUE(same_bits(states,
                            initial ? document_part(problem, "final_state", *problem.initial_state, empty) : zero,
                            "final_state"));
      if (!initial) continue;
      EXPECT_TRUE(same_bits(document_part(problem, "dinitial_state", results.at("dinitial_state"), empty),
                            dfinal ? document_part(problem, "final_state", *problem.d_final_state, empty) : zero,
                            "dinitial_state"));
    }
  }
}

TEST(KdaPacking, OnlyEmptyDocumentsOrNone) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{0, 0}, {}, {0}}) {
    for (const std::int64_t rows_past_end : {0, 10}) {
      for (const bool initial : {false, true}) {
        for (const Memory memory : {Memory::kNone, Memory::kCaller}) {
          KdaSpec spec;
          spec.lengths = lengths;
          spec.rows_past_end = rows_past_end;
          spec.initial_state = initial;
          use_every_activation(spec);
          spec.seed = 5;
          const KdaProblem problem = make_problem(spec);
          for (const bool recompute : {false, true}) {
            const KdaResults results = run(problem, {.recompute = recompute, .memory = memory});
            EXPECT_TRUE(matches_reference(problem, results));
            for (const char* name : {"dA_log", "ddt_bias"}) {
              for (const double x : results.at(name).doubles()) EXPECT_EQ(x, 0.0) << name;
            }
          }
        }
      }
    }
  }
}

TEST(KdaPacking, ABatchOfNoRowsOrNoDocuments) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{0, 0, 0}, {}}) {
    KdaSpec spec;
    spec.lengths = lengths;
    spec.packed = false;
    spec.initial_state = true;
    spec.seed = 6;
    const KdaProblem problem = make_problem(spec);
    EXPECT_TRUE(matches_reference(problem, run(problem)));
  }
}

TEST(KdaPacking, RowsPastTheLastOffsetAreZeroAndNeverRead) {
  // Inputs there are NaN; outputs, workspace, saved set and freed memory hold NaN, then 1e30.
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{70, 130}, {64, 64}, {0}, {1}}) {
    for (const DType dtype : float_dtypes()) {
      for (const auto& [poison, pattern] : {std::pair{kNan, kNanPattern}, {1e30, kHugePattern}}) {
        KdaSpec spec;
        spec.lengths = lengths;
        spec.rows_past_end = 56;
        spec.dtype = spec.raw_gate_dtype = dtype;
        spec.H = 2;
        spec.HV = 4;
        use_every_activation(spec);
        spec.seed = 7;
        const KdaProblem problem = make_problem(spec);
        for (const bool recompute : {false, true}) {
          for (const Memory memory : {Memory::kCaller, Memory::kNone}) {
            poison_heap(pattern);
            EXPECT_TRUE(matches_reference(
                problem, run(problem, {.recompute = recompute, .memory = memory, .fill = pattern, .poison = poison})));
          }
        }
      }
    }
  }
}

TEST(KdaPacking, LargeNumbersBehindAShortRowDoNotLeak) {
  // K = 60 and 100 are no multiples of a vector: what lies behind each row is 1e30, then NaN.
  for (const std::int64_t K : {std::int64_t{7}, std::int64_t{60}, std::int64_t{100}}) {
    for (const double behind : {1e30, kNan}) {
      KdaSpec spec;
      spec.lengths = {70};
      spec.K = K;
      spec.V = K + 1;
      spec.HV = 1;
      spec.seed = 8;
      const KdaProblem problem = make_problem(spec);
      std::vector<HostTensor> wide;
      const auto widen = [&](const HostTensor& tensor) {
        const std::int64_t width = tensor.shape.back(), rows = tensor.numel() / width;
        Shape shape = tensor.shape;
        shape.back() = width + 16;
        HostTensor padded(tensor.dtype, shape);
        for (std::int64_t i = 0; i < padded.numel(); ++i) padded.set(i, behind);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t d = 0; d < width; ++d) padded.set(r * (width + 16) + d, tensor.at(r * width + d));
        }
        wide.push_back(std::move(padded));
        ConstTensorView view = std::as_const(wide.back()).view();
        view.shape[static_cast<std::size_t>(view.ndim) - 1] = width;
        return view;
      };
      wide.reserve(8);
      kda_det_train::Inputs inputs = problem.inputs();
      inputs.q = widen(problem.q);
      inputs.k = widen(problem.k);
      inputs.v = widen(problem.v);
      inputs.g = widen(problem.g);
      const ConstTensorView dout = widen(problem.dout);
      EXPECT_TRUE(same_bits(run_views(problem, inputs, dout, problem.d_final_state->view()), run(problem)));
    }
  }
}

TEST(KdaPacking, EveryCallReadsItsOwnOffsets) {
  // Field faults O09: chunk tables cached by the address of cu_seqlens.
  Random random(9);
  KdaSpec spec;
  spec.K = spec.V = 5;
  spec.HV = 1;
  spec.lengths = {512};
  spec.seed = 9;
  const KdaProblem whole = make_problem(spec);
  for (int repeat = 0; repeat < 200; ++repeat) {
    KdaProblem problem = whole;
    problem.spec.lengths.clear();
    std::set<std::int64_t> cuts = {0, 512};
    while (cuts.size() < 9) cuts.insert(random.integer(1, 511));
    problem.offsets.assign(cuts.begin(), cuts.end());
    for (std::size_t n = 1; n < problem.offsets.size(); ++n) {
      problem.spec.lengths.push_back(problem.offsets[n] - problem.offsets[n - 1]);
    }
    problem.N = 8;
    problem.spec.d_final_state = false;
    problem.d_final_state.reset();
    problem.cu_seqlens = HostTensor(DType::kInt32, {9}, {problem.offsets.begin(), problem.offsets.end()});
    const KdaResults results = run(problem);
    if (repeat % 20 == 0) {
      EXPECT_TRUE(matches_reference(problem, results));
    }
    for (std::int64_t n : {0, 7}) {
      expect_same_documents(problem, results, run(select_documents(problem, {n})), {n});
    }
    if (HasFailure()) return;
  }
}

TEST(KdaPacking, OneBufferOfOffsetsWithNewContents) {
  KdaSpec spec;
  spec.lengths = {64, 64};
  spec.seed = 10;
  KdaProblem problem = make_problem(spec);
  LaidOutTensor out(spec.dtype, problem.v.shape);
  kda_det_train::Workspace workspace;
  for (const std::int64_t cut : {64, 32, 64}) {
    problem.cu_seqlens->set(1, static_cast<double>(cut));
    problem.offsets = {0, cut, 128};
    problem.spec.lengths = {cut, 128 - cut};
    kda_det_train::forward(problem.inputs(), {out.view(), {}}, spec.options, &workspace);
    KdaProblem fresh = problem;
    EXPECT_TRUE(same_bits(out.gather(), run(fresh).at("out")));
    EXPECT_TRUE(matches_reference(fresh, {{"out", out.gather()}}));
  }
}

}  // namespace
}  // namespace cake::test
