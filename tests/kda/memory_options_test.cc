// Options that change memory and nothing else: save mode, lean, tail passes, batches of documents, plans. Every one
// gives the bits of the plain call, in both modes (parameter gradients of the nondet package within rounding), and the
// smaller arenas are smaller.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cake/core/parallel.h"
#include "tests/kda/cases.h"
#include "tests/support/kda_packages.h"

namespace cake::test {
namespace {

using kda_det_train::Options;
using kda_det_train::SaveMode;

/// Documents of several segments beside short, empty and single ones.
KdaProblem problem_with(std::int64_t group, bool raw_gate, DType dtype = DType::kFloat32) {
  KdaSpec spec;
  spec.lengths = {3, 0, 2 * kSegment + 70, 129, 1, 0, 3 * kSegment + 1, 64};
  spec.rows_past_end = 5;
  spec.H = 2;
  spec.HV = 2 * group;
  spec.K = kShortSegments ? 20 : 7;
  spec.V = kShortSegments ? 33 : 5;
  spec.dtype = spec.raw_gate_dtype = dtype;
  spec.initial_state = true;
  spec.beta_max = kShortSegments ? 1.0 : 0.01;
  spec.gate = kFaintGate;
  if (raw_gate) {
    use_every_activation(spec);
    spec.options.lower_bound = kFaintBound;
  }
  spec.seed = 21;
  return make_problem(spec);
}

/// Every way to keep less, or more.
std::vector<KdaRun> ways() {
  std::vector<KdaRun> list;
  const auto add = [&](auto change) {
    KdaRun how;
    how.memory = Memory::kCaller;
    change(how);
    list.push_back(how);
  };
  add([](KdaRun& how) { how.tape = true; });
  add([](KdaRun& how) { how.recompute = true; });
  add([](KdaRun& how) { how.lean = true; });
  add([](KdaRun& how) { how.lean = how.tape = true; });
  for (const std::int64_t passes : {2, 3, 7, 1000}) add([=](KdaRun& how) { how.tail_passes = passes; });
  add([](KdaRun& how) { how.tail_passes = 2, how.recompute = true; });
  add([](KdaRun& how) { how.tail_passes = 3, how.tape = true; });
  for (const std::int64_t tokens : {1, 70, 2 * static_cast<int>(kSegment) + 200, 1 << 20}) {
    add([=](KdaRun& how) { how.batch_tokens = tokens; });
    add([=](KdaRun& how) { how.batch_tokens = tokens, how.recompute = true; });
  }
  for (const std::int64_t documents : {1, 3, 100}) add([=](KdaRun& how) { how.max_docs_per_batch = documents; });
  add([](KdaRun& how) { how.max_docs_per_batch = 2, how.batch_tokens = 150, how.tape = true, how.threads = 3; });
  add([](KdaRun& how) { how.max_docs_per_batch = 3, how.tail_passes = 4, how.recompute = true, how.shuffle = 5; });
  add([](KdaRun& how) { how.plan = true; });
  add([](KdaRun& how) { how.plan = how.tape = true, how.tail_passes = 2, how.max_docs_per_batch = 2; });
  return list;
}

std::string text(const KdaRun& how) {
  std::string words = how.nondet ? "nondet" : "det";
  if (how.tape) words += ", tape";
  if (how.recompute) words += ", recompute";
  if (how.lean) words += ", lean";
  if (how.plan) words += ", plan";
  words += ", tail_passes " + std::to_string(how.tail_passes);
  if (how.batch_tokens) words += ", batch_tokens " + std::to_string(*how.batch_tokens);
  if (how.max_docs_per_batch) words += ", max_docs_per_batch " + std::to_string(*how.max_docs_per_batch);
  return words;
}

/// Per-document tensors bit by bit; parameter gradients too, or within rounding for the nondet package.
void expect_equal(const KdaResults& got, const KdaResults& expected, const KdaRun& how) {
  ASSERT_EQ(got.size(), expected.size()) << text(how);
  for (const auto& [name, tensor] : expected) {
    if (how.nondet && is_parameter_gradient(name)) {
      EXPECT_LT(relative_l2(got.at(name).doubles(), tensor.doubles()), 1e-5) << text(how) << ", " << name;
    } else {
      EXPECT_TRUE(same_bits(got.at(name), tensor, name)) << text(how);
    }
  }
}

TEST(KdaMemoryOptions, EveryOneGivesTheBitsOfThePlainCall) {
  for (const std::int64_t group : {1, 2}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const KdaProblem problem = problem_with(group, dtype == DType::kFloat32, dtype);
      const KdaResults expected = run(problem);
      for (KdaRun how : ways()) {
        expect_equal(run(problem, how), expected, how);
        if (group == 2 && dtype == DType::kBFloat16) continue;  // once with grouped heads is enough
        how.nondet = true;
        expect_equal(run(problem, how), expected, how);
      }
    }
  }
}

TEST(KdaMemoryOptions, BatchesOfDocumentsThatAreRowsOfABatch) {
  KdaSpec spec;
  spec.lengths = {kSegment + 5, kSegment + 5, kSegment + 5};
  spec.packed = false;
  spec.H = 1;
  spec.HV = 2;
  spec.K = 8;
  spec.V = 8;
  spec.initial_state = true;
  use_every_activation(spec);
  const KdaProblem problem = make_problem(spec);
  const KdaResults expected = run(problem);
  for (const bool recompute : {false, true}) {
    KdaRun how;
    how.memory = Memory::kCaller;
    how.max_docs_per_batch = 2;
    how.recompute = recompute;
    expect_equal(run(problem, how), expected, how);
  }
}

TEST(KdaMemoryOptions, ASavedSetServesABackwardOfOtherBatches) {
  const KdaProblem p = problem_with(1, false);
  const KdaResults expected = run(p);
  Options forward_options = p.spec.options, backward_options = p.spec.options;
  forward_options.batch_tokens = 100;
  backward_options.max_docs_per_batch = 3;
  backward_options.tail_passes = 2;
  kda_det_train::Saved saved;
  LaidOutTensor out(p.v.dtype, p.v.shape), dk(p.k.dtype, p.k.shape);
  kda_det_train::Gradients gradients;
  gradients.dk = dk.view();
  forward(p.inputs(), {out.view(), {}}, forward_options, nullptr, &saved);
  backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, backward_options, nullptr, &saved);
  EXPECT_TRUE(same_bits(dk.gather(), expected.at("dk")));
}

TEST(KdaMemoryOptions, SmallerArenasAreSmaller) {
  const KdaProblem p = problem_with(2, true);
  const auto shape = p.shape();
  const auto with = [](auto change) {
    Options options;
    change(options);
    return options;
  };
  const Options plain, tape = with([](Options&o) { o.save_mode = SaveMode::kTape; });
  const Options passes = with([](Options&o) { o.tail_passes = 4; }), lean = with([](Options&o) { o.lean = true; });
  const Options documents = with([](Options& o) { o.max_docs_per_batch = 1; });
  const Options tokens = with([](Options& o) { o.batch_tokens = 3 * kSegment + 1; });
  EXPECT_GT(saved_bytes(shape, tape), saved_bytes(shape, plain));
  EXPECT_EQ(saved_bytes(shape, documents), saved_bytes(shape, plain));
  for (const bool recompute : {false, true}) {
    const std::size_t most = backward_workspace_bytes(shape, recompute, plain);
    EXPECT_LT(backward_workspace_bytes(shape, recompute, passes), most);
    EXPECT_LT(backward_workspace_bytes(shape, recompute, documents), most);
    EXPECT_LT(backward_workspace_bytes(shape, recompute, tokens), most);
  }
  EXPECT_LT(backward_workspace_bytes(shape, false, tape), backward_workspace_bytes(shape, false, plain));
  EXPECT_LT(workspace_bytes(shape, lean), workspace_bytes(shape, plain));
  EXPECT_LT(forward_workspace_bytes(shape, documents), forward_workspace_bytes(shape, plain));
  EXPECT_LT(forward_workspace_bytes(shape, plain, true), forward_workspace_bytes(shape, plain, false));
}

TEST(KdaMemoryOptions, LeanRefusesABackwardWithoutASavedSet) {
  const KdaProblem p = problem_with(1, false);
  Options options = p.spec.options;
  options.lean = true;
  LaidOutTensor dk(p.k.dtype, p.k.shape);
  dk.fill(3.0);
  kda_det_train::Gradients gradients;
  gradients.dk = dk.view();
  try {
    backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, options);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("saved"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("lean"), std::string::npos) << error.what();
  }
  for (const double x : dk.gather().doubles()) ASSERT_EQ(x, 3.0);
}

TEST(KdaMemoryOptions, ASavedSetRemembersItsSaveMode) {
  const KdaProblem p = problem_with(1, false);
  for (const bool tape : {false, true}) {
    Options options = p.spec.options, other = p.spec.options;
    (tape ? options : other).save_mode = SaveMode::kTape;
    kda_det_train::Saved saved;
    LaidOutTensor out(p.v.dtype, p.v.shape);
    forward(p.inputs(), {out.view(), {}}, options, nullptr, &saved);
    EXPECT_EQ(saved.nbytes(), saved_bytes(p.shape(), options));
    try {
      backward(p.inputs(), p.dout.view(), {}, {}, other, nullptr, &saved);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("save_mode"), std::string::npos) << error.what();
    }
  }
}

TEST(KdaMemoryOptions, AWorkspaceOfAShapeServesItsGateAndNormModeOnly) {
  const KdaProblem p = problem_with(1, true);
  const ScopedNumThreads two(2);
  kda_det_train::Workspace workspace(p.shape(), p.spec.options);
  EXPECT_EQ(workspace.nbytes(), workspace_bytes(p.shape(), p.spec.options));
  LaidOutTensor out(p.v.dtype, p.v.shape), dk(p.k.dtype, p.k.shape);
  kda_det_train::Gradients gradients;
  gradients.dk = dk.view();
  forward(p.inputs(), {out.view(), {}}, p.spec.options, &workspace);
  backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, p.spec.options, &workspace);
  EXPECT_TRUE(same_bits(dk.gather(), run(p).at("dk")));
  EXPECT_EQ(workspace.nbytes(), workspace_bytes(p.shape(), p.spec.options));
  Options other = p.spec.options;
  other.use_qk_l2norm_in_kernel = !other.use_qk_l2norm_in_kernel;
  out.fill(3.0);
  for (const bool backward_too : {false, true}) {
    try {
      if (backward_too) {
        backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, other, &workspace);
      } else {
        forward(p.inputs(), {out.view(), {}}, other, &workspace);
      }
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("workspace"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("use_qk_l2norm_in_kernel"), std::string::npos) << error.what();
    }
  }
  for (const double x : out.gather().doubles()) ASSERT_EQ(x, 3.0);
  // A fixed workspace does not grow.
  kda_det_train::Shape small = p.shape();
  small.S = 64;
  small.cu_seqlens = {0, 64};
  small.num_docs = 1;
  kda_det_train::Workspace tiny(small, p.spec.options);
  EXPECT_THROW(backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, p.spec.options, &tiny),
               OutOfMemory);
}

}  // namespace
}  // namespace cake::test
