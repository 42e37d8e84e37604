// Byte queries: exact where the offsets are known, an upper bound where not; a caller's memory of exactly that size is
// enough, one byte less is refused before anything is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cake/core/parallel.h"
#include "tests/kda/cases.h"

namespace cake::test {
namespace {

using kda_det_train::backward_workspace_bytes;
using kda_det_train::forward_workspace_bytes;
using kda_det_train::Saved;
using kda_det_train::saved_bytes;
using kda_det_train::Workspace;

KdaProblem sized_problem(std::int64_t group, bool raw_gate) {
  KdaSpec spec;
  spec.lengths = {kShortSegments ? 3 * kSegment + 1 : 300, 0, 65, 1};
  spec.rows_past_end = 3;
  spec.H = 2;
  spec.HV = 2 * group;
  spec.K = 20;
  spec.V = 9;
  spec.initial_state = true;
  if (raw_gate) use_every_activation(spec);
  spec.seed = 1;
  return make_problem(spec);
}

/// Runs `call` and returns the message of the OutOfMemory it must throw.
template <class Call>
std::string out_of_memory(Call call) {
  try {
    call();
  } catch (const OutOfMemory& error) {
    return error.what();
  } catch (const Error& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

TEST(KdaBytes, ExactSizesAreEnoughAndOneByteLessIsRefused) {
  const ScopedNumThreads one(1);
  for (const std::int64_t group : {1, 2}) {
    for (const bool raw_gate : {false, true}) {
      const KdaProblem p = sized_problem(group, raw_gate);
      const auto& options = p.spec.options;
      const KdaResults expected = run(p);
      // An address 1 past a multiple of 64 needs all of the room that alignment may cost.
      const std::size_t saved_size = saved_bytes(p.shape()), forward_size = forward_workspace_bytes(p.shape());
      LaidOutTensor out(p.v.dtype, p.v.shape), dg(p.g.dtype, p.g.shape);
      out.fill(77.0);
      dg.fill(77.0);
      const auto untouched = [](const LaidOutTensor& tensor) {
        const std::vector<double> values = tensor.gather().doubles();
        return std::all_of(values.begin(), values.end(), [](double x) { return x == 77.0; }) && tensor.guards_intact();
      };
      GuardedMemory small(forward_size - 1, kNanPattern, 1);
      Workspace small_workspace(small.data(), small.size());
      EXPECT_NE(out_of_memory([&] {
                  forward(p.inputs(), {out.view(), {}}, options, &small_workspace);
                }).find("workspace"),
                std::string::npos);
      GuardedMemory small_set(saved_size - 1, kNanPattern, 1);
      Saved too_small(small_set.data(), small_set.size());
      EXPECT_NE(out_of_memory([&] {
                  forward(p.inputs(), {out.view(), {}}, options, nullptr, &too_small);
                }).find("saved"),
                std::string::npos);
      EXPECT_TRUE(too_small.empty());
      EXPECT_TRUE(untouched(out));

      GuardedMemory exact(forward_size, kNanPattern, 1), exact_set(saved_size, kNanPattern, 1);
      Workspace workspace(exact.data(), exact.size());
      forward(p.inputs(), {out.view(), {}}, options, &workspace);
      EXPECT_TRUE(same_bits(out.gather(), expected.at("out")));
      Saved saved(exact_set.data(), exact_set.size());
      forward(p.inputs(), {out.view(), {}}, options, &workspace, &saved);
      EXPECT_TRUE(same_bits(out.gather(), expected.at("out")));
      EXPECT_EQ(saved.nbytes(), saved_size);

      for (const bool recompute : {false, true}) {
        kda_det_train::Gradients gradients;
        gradients.dg = dg.view();
        LaidOutTensor dA(DType::kFloat32, {p.spec.HV});
        if (raw_gate) gradients.dA_log = dA.view();
        const std::size_t size = backward_workspace_bytes(p.shape(), recompute);
        const auto backward_with = [&](GuardedMemory& memory) {
          Workspace given(memory.data(), memory.size());
          backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, options, &given,
                   recompute ? nullptr : &saved);
        };
        dg.fill(77.0);
        GuardedMemory less(size - 1, kNanPattern, 1), enough(size, kNanPattern, 1);
        EXPECT_NE(out_of_memory([&] { backward_with(less); }).find("workspace"), std::string::npos);
        EXPECT_TRUE(untouched(dg));
        backward_with(enough);
        EXPECT_TRUE(same_bits(dg.gather(), expected.at("dg")));
        EXPECT_TRUE(enough.guards_intact());
      }
      EXPECT_TRUE(exact.guards_intact() && exact_set.guards_intact() && small.guards_intact() &&
                  small_set.guards_intact());
    }
  }
}

TEST(KdaBytes, MemoryForSomeThreadsServesFewerAndMore) {
  const KdaProblem p = sized_problem(2, true);
  const KdaResults expected = run(p);
  for (const int sized_for : {1, 2, 5}) {
    for (const int threads : {1, 2, 7}) {
      const ScopedNumThreads scope(threads);
      GuardedMemory first(forward_workspace_bytes(p.shape(), {}, false, sized_for), kNanPattern, 1);
      GuardedMemory second(backward_workspace_bytes(p.shape(), true, {}, sized_for), kNanPattern, 1);
      Workspace forward_workspace(first.data(), first.size()), backward_workspace(second.data(), second.size());
      LaidOutTensor out(p.v.dtype, p.v.shape), dbeta(p.beta.dtype, p.beta.shape);
      kda_det_train::Gradients gradients;
      gradients.dbeta = dbeta.view();
      forward(p.inputs(), {out.view(), {}}, p.spec.options, &forward_workspace);
      backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, p.spec.options, &backward_workspace);
      EXPECT_TRUE(same_bits(out.gather(), expected.at("out"))) << sized_for << ' ' << threads;
      EXPECT_TRUE(same_bits(dbeta.gather(), expected.at("dbeta"))) << sized_for << ' ' << threads;
      EXPECT_TRUE(first.guards_intact() && second.guards_intact());
    }
  }
  EXPECT_LT(forward_workspace_bytes(p.shape(), {}, false, 1), forward_workspace_bytes(p.shape(), {}, false, 2));
  EXPECT_EQ(forward_workspace_bytes(p.shape()), forward_workspace_bytes(p.shape(), {}, false, num_threads()));
}

TEST(KdaBytes, WithoutOffsetsAnUpperBoundOverEveryPacking) {
  Random random(3);
  for (int repeat = 0; repeat < 400; ++repeat) {
    kda_det_train::Shape shape;
    shape.S = random.integer(0, random.chance(0.5) ? 300 : 5 * kSegment);
    shape.num_docs = random.integer(0, 12);
    shape.HV = 2;
    shape.K = random.integer(1, 40);
    shape.V = random.integer(1, 40);
    shape.gate_param_grads = random.chance(0.5);
    kda_det_train::Options options;
    if (random.chance(0.3)) options.save_mode = kda_det_train::SaveMode::kTape;
    if (random.chance(0.3)) options.tail_passes = random.integer(1, 5);
    if (random.chance(0.3)) options.batch_tokens = random.integer(1, 2 * kSegment);
    if (random.chance(0.3)) options.max_docs_per_batch = random.integer(1, 6);
    const auto sizes = [&](const kda_det_train::Shape& x) {
      return std::vector<std::size_t>{saved_bytes(x, options),
                                      forward_workspace_bytes(x, options, false, 2),
                                      forward_workspace_bytes(x, options, true, 2),
                                      backward_workspace_bytes(x, false, options, 2),
                                      backward_workspace_bytes(x, true, options, 2),
                                      workspace_bytes(x, options, 2)};
    };
    const std::vector<std::size_t> bounds = sizes(shape);
    for (int packing = 0; packing < 10; ++packing) {
      std::vector<std::int32_t> offsets(static_cast<std::size_t>(shape.num_docs) + 1, 0);
      for (std::size_t i = 1; i < offsets.size(); ++i)
        offsets[i] = static_cast<std::int32_t>(random.integer(0, shape.S));
      if (packing % 2 == 0) offsets.back() = static_cast<std::int32_t>(shape.num_docs == 0 ? 0 : shape.S);
      std::sort(offsets.begin(), offsets.end());
      kda_det_train::Shape packed = shape;
      packed.cu_seqlens = offsets;
      const std::string text = "S " + std::to_string(shape.S) + ", documents " + std::to_string(shape.num_docs);
      const std::vector<std::size_t> exact = sizes(packed);
      for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_LE(exact[i], bounds[i]) << text << ", query " << i;
    }
  }
}

TEST(KdaBytes, TheUpperBoundServesARealCall) {
  const KdaProblem p = sized_problem(2, true);
  GuardedMemory set(saved_bytes(p.shape(false)), kHugePattern, 1);
  GuardedMemory memory(
      std::max(forward_workspace_bytes(p.shape(false)), backward_workspace_bytes(p.shape(false), false)), kHugePattern,
      1);
  Saved saved(set.data(), set.size());
  Workspace workspace(memory.data(), memory.size());
  EXPECT_EQ(workspace.nbytes(), memory.size());
  LaidOutTensor out(p.v.dtype, p.v.shape), dk(p.k.dtype, p.k.shape), dbias(DType::kFloat32, p.dt_bias->shape);
  kda_det_train::Gradients gradients;
  gradients.dk = dk.view();
  gradients.ddt_bias = dbias.view();
  forward(p.inputs(), {out.view(), {}}, p.spec.options, &workspace, &saved);
  backward(p.inputs(), p.dout.view(), p.d_final_state->view(), gradients, p.spec.options, &workspace, &saved);
  const KdaResults expected = run(p);
  EXPECT_TRUE(same_bits(dk.gather(), expected.at("dk")));
  EXPECT_TRUE(same_bits(dbias.gather(), expected.at("ddt_bias")));
  EXPECT_EQ(saved.nbytes(), saved_bytes(p.shape()));
  EXPECT_TRUE(set.guards_intact() && memory.guards_intact());
}

TEST(KdaBytes, AGrowingWorkspaceKeepsItsSize) {
  Workspace workspace;
  EXPECT_EQ(workspace.nbytes(), 0u);
  const KdaProblem p = sized_problem(1, false);
  LaidOutTensor out(p.v.dtype, p.v.shape);
  forward(p.inputs(), {out.view(), {}}, p.spec.options, &workspace);
  EXPECT_EQ(workspace.nbytes(), forward_workspace_bytes(p.shape()));
  const std::size_t before = workspace.nbytes();
  const KdaProblem small = select_documents(p, {3});
  LaidOutTensor row(small.v.dtype, small.v.shape);
  forward(small.inputs(), {row.view(), {}}, small.spec.options, &workspace);
  EXPECT_EQ(workspace.nbytes(), before);
}

TEST(KdaBytes, AProblemWithoutRowsKeepsNothing) {
  KdaSpec spec;
  spec.lengths = {0, 0};
  const KdaProblem p = make_problem(spec);
  EXPECT_EQ(saved_bytes(p.shape()), 0u);
  Saved saved(nullptr, 0);
  LaidOutTensor out(p.v.dtype, p.v.shape);
  forward(p.inputs(), {out.view(), {}}, spec.options, nullptr, &saved);
  EXPECT_FALSE(saved.empty());
  backward(p.inputs(), p.dout.view(), p.d_final_state->view(), {}, spec.options, nullptr, &saved);
}

TEST(KdaBytes, QueriesRefuseImpossibleShapes) {
  const auto refused = [](const char* name, auto change) {
    kda_det_train::Shape shape;
    shape.S = 10;
    shape.K = shape.V = 4;
    change(shape);
    for (const int query : {0, 1, 2}) {
      try {
        query == 0   ? saved_bytes(shape)
        : query == 1 ? forward_workspace_bytes(shape)
                     : backward_workspace_bytes(shape, true);
        ADD_FAILURE() << name << ": accepted by query " << query;
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
  };
  refused("K", [](auto& s) { s.K = 0; });
  refused("K", [](auto& s) { s.K = 257; });
  refused("V", [](auto& s) { s.V = 0; });
  refused("V", [](auto& s) { s.V = 300; });
  refused("HV", [](auto& s) { s.H = 2, s.HV = 3; });
  refused("H", [](auto& s) { s.H = 0; });
  refused("S", [](auto& s) { s.S = -1; });
  refused("B", [](auto& s) { s.B = -1; });
  refused("num_docs", [](auto& s) { s.num_docs = -1; });
  refused("cu_seqlens", [](auto& s) { s.cu_seqlens = {0, 11}; });
  refused("cu_seqlens", [](auto& s) { s.cu_seqlens = {1, 5}; });
  refused("cu_seqlens", [](auto& s) { s.cu_seqlens = {0, 5, 4}; });
  refused("B", [](auto& s) { s.B = 2, s.cu_seqlens = {0, 5}; });
  kda_det_train::Options lean;
  lean.lean = true;
  EXPECT_THROW(backward_workspace_bytes(sized_problem(1, false).shape(), true, lean), InvalidArgument);
}

TEST(KdaBytes, TagsAndDevices) {
  EXPECT_EQ(Saved::tag().text(), "cake/kda/det/saved/v1");
  EXPECT_EQ(Workspace::tag().text(), "cake/kda/det/workspace/v1");
  EXPECT_TRUE(kda_det_train::is_supported());
  EXPECT_FALSE(kda_det_train::is_supported({DeviceType::kCuda, 0}));
  const auto list = kda_det_train::implementations();
  EXPECT_EQ(std::count_if(list.begin(), list.end(), [](const auto& x) { return x.refused.empty(); }), 1);
  for (const auto& entry : kda_det_train::implementations({DeviceType::kCuda, 0})) EXPECT_FALSE(entry.refused.empty());
}

}  // namespace
}  // namespace cake::test
