// Bad arguments over ranks: refused on every rank with the argument's name before anything is written, whoever made the
// mistake, and the group goes on.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/kda/kcp_refused.h"

namespace cake::test {
namespace {

using kcp::CheckpointKeep;
using kcp::Context;
using kcp::Exchange;
using kcp::Partition;

template <class P>
class KdaKcpRefusals : public testing::Test {};
using Packages = testing::Types<DetKcp, NondetKcp>;
TYPED_TEST_SUITE(KdaKcpRefusals, Packages);

TYPED_TEST(KdaKcpRefusals, OptionsThatDifferBetweenRanks) {
  using Call = RankCall<TypeParam>;
  using Options = typename TypeParam::Options;
  using SaveMode = typename TypeParam::SaveMode;
  const Refusals<TypeParam> rig;
  const auto option = [&](const std::string& field, const std::function<void(Options&)>& change,
                          bool forward_only = false) {
    for (const bool backward : {false, true}) {
      if (backward && forward_only) continue;
      rig.expect_mismatch(field, backward, [&](int rank, Call& call) {
        // Without a saved set, whose own checks come first and name the saved set instead.
        if (backward) call.saved = nullptr;
        if (rank == 1) change(call.options);
      });
    }
  };
  option("scale", [](Options& o) { o.scale = 2.0f; });
  option("lower_bound", [](Options& o) { o.lower_bound = -5.0f; });
  option("use_qk_l2norm_in_kernel", [](Options& o) { o.use_qk_l2norm_in_kernel = true; });
  option("use_beta_sigmoid_in_kernel", [](Options& o) { o.use_beta_sigmoid_in_kernel = true; });
  option("exchange", [](Options& o) { o.exchange = Exchange::kRelay; });
  option("save_mode", [](Options& o) { o.save_mode = SaveMode::kTape; });
  // A backward without a saved set makes its transitions whatever these say.
  option(
      "save_transfer", [](Options& o) { o.save_transfer = false; }, true);
  option(
      "save_transfer", [](Options& o) { o.checkpoint_keep = CheckpointKeep::kStates; }, true);
}

TYPED_TEST(KdaKcpRefusals, AGateThatDiffersBetweenRanks) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig(false);
  rig.expect_mismatch("use_gate_in_kernel", false, [&](int rank, Call& call) {
    if (rank != 2) return;
    call.options.use_gate_in_kernel = true;
    call.options.lower_bound = -5.0f;  // so that A_log is optional
  });
}

TYPED_TEST(KdaKcpRefusals, SizesAndTypesThatDifferBetweenRanks) {
  using Call = RankCall<TypeParam>;
  const auto size = [&](const std::string& field, const std::function<void(KdaSpec&)>& change) {
    const Refusals<TypeParam> rig;
    KdaSpec spec = Refusals<TypeParam>::spec(true);
    change(spec);
    const KdaProblem other = make_problem(spec);
    std::vector<std::unique_ptr<Call>> alive(kRefusalRanks);
    for (const bool backward : {false, true}) {
      rig.expect_mismatch(field, backward, [&](int rank, Call& call) {
        if (backward) call.saved = nullptr;
        if (rank != 0) return;
        alive[0] = std::make_unique<Call>(other, call.context);
        alive[0]->fill(kUnwritten);
        call.inputs = alive[0]->inputs;
        call.outputs = alive[0]->outputs;
        call.gradients = alive[0]->gradients;
        call.dout = alive[0]->dout;
        call.d_final_state = alive[0]->d_final_state;
      });
      EXPECT_TRUE(alive[0]->untouched());
    }
  };
  size("H", [](KdaSpec& s) { s.H = 4; });
  size("HV", [](KdaSpec& s) { s.HV = 2; });
  size("K", [](KdaSpec& s) { s.K = 7; });
  size("V", [](KdaSpec& s) { s.V = 4; });
  size("dtype", [](KdaSpec& s) { s.dtype = DType::kFloat16; });
  size("dtype of g", [](KdaSpec& s) { s.raw_gate_dtype = DType::kBFloat16; });
  size("dtype of beta", [](KdaSpec& s) { s.beta_fp32 = true; });
}

TYPED_TEST(KdaKcpRefusals, GradientsThatOneRankLeavesOut) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  const auto without = [&](const std::string& field, const std::function<void(Call&)>& change) {
    rig.expect_mismatch(field, true, [&](int rank, Call& call) {
      if (rank == 1) change(call);
    });
  };
  without("dq given", [](Call& c) { c.gradients.dq = {}; });
  without("dk given", [](Call& c) { c.gradients.dk = {}; });
  without("dv given", [](Call& c) { c.gradients.dv = {}; });
  without("dg given", [](Call& c) { c.gradients.dg = {}; });
  without("dbeta given", [](Call& c) { c.gradients.dbeta = {}; });
  without("gate_params given", [](Call& c) { c.gradients.gate_params = nullptr; });
}

TYPED_TEST(KdaKcpRefusals, TensorsThatOneRankLeavesOut) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  const auto without = [&](const std::string& field, bool backward, const std::function<void(Call&)>& change) {
    rig.expect_mismatch(field, backward, [&](int rank, Call& call) {
      if (rank == 1) change(call);
    });
  };
  without("initial_state given", false, [](Call& c) { c.inputs.initial_state = {}; });
  without("initial_state given", true, [](Call& c) {
    c.inputs.initial_state = {};
    c.gradients.dinitial_state = {};
  });
  without("dt_bias given", false, [](Call& c) { c.inputs.dt_bias = {}; });
  without("final_state given", false, [](Call& c) { c.outputs.final_state = {}; });
  without("d_final_state given", true, [](Call& c) { c.d_final_state = {}; });
  without("dinitial_state given", true, [](Call& c) { c.gradients.dinitial_state = {}; });
}

TYPED_TEST(KdaKcpRefusals, ASavedSetOrHandleOnOneRankOnly) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  rig.expect_mismatch("saved given", true, [](int rank, Call& call) {
    if (rank == 1) call.saved = nullptr;
  });
  ThreadGroup(kRefusalRanks, kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(rig.partition, comm);
    Call call(rig.p, context);
    call.fill(kUnwritten);
    kcp::RecomputeHandle handle;
    const std::string error = error_of([&] { call.forward(comm.rank() == 1 ? &handle : nullptr); });
    EXPECT_EQ(error.find("InvalidArgument | "), 0u) << error;
    EXPECT_NE(error.find(": recompute differs between ranks: rank 0 "), std::string::npos) << error;
    EXPECT_TRUE(call.untouched());
    EXPECT_TRUE(handle.entries().empty());
    call.forward(&handle);
    const auto& expected = rig.expected[static_cast<std::size_t>(comm.rank())].tensors.at("out");
    EXPECT_TRUE(same_bits(call.result("out"), expected));
  });
}

TYPED_TEST(KdaKcpRefusals, ContextsOfDifferentPartitions) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  const Partition moved = Partition::from_cut_points(rig.partition.cu_seqlens(), std::vector<std::int64_t>{30, 73});
  ThreadGroup(kRefusalRanks, kRefusalTimeout).run([&](Communicator& comm) {
    const Context one(rig.partition, comm), two(moved, comm);
    Call first(rig.p, one), second(rig.p, two);
    Call& call = comm.rank() == 0 ? second : first;
    for (const bool backward : {false, true}) {
      call.fill(kUnwritten);
      const std::string error = error_of([&] { backward ? call.backward() : call.forward(); });
      EXPECT_EQ(error.find("InvalidArgument | "), 0u) << error;
      EXPECT_NE(error.find(": partition differs between ranks: rank 0 "), std::string::npos) << error;
      EXPECT_TRUE(call.untouched());
    }
    first.forward();
    const auto& expected = rig.expected[static_cast<std::size_t>(comm.rank())].tensors.at("out");
    EXPECT_TRUE(same_bits(first.result("out"), expected));
  });
}

TYPED_TEST(KdaKcpRefusals, ABadTensorOnOneRank) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  std::vector<std::unique_ptr<HostTensor>> spare;
  const auto other = [&](DType dtype, const Shape& shape) {
    spare.push_back(std::make_unique<HostTensor>(dtype, shape));
    return spare.back()->view();
  };
  const auto both = [&](const std::string& word, const std::function<void(Call&)>& spoil) {
    for (const bool backward : {false, true}) {
      rig.expect_own_error("InvalidArgument", word, backward, [&](Call& call) {
        if (backward) call.saved = nullptr;
        spoil(call);
      });
    }
  };
  for (auto member : {&TypeParam::Inputs::q, &TypeParam::Inputs::k, &TypeParam::Inputs::v, &TypeParam::Inputs::g,
                      &TypeParam::Inputs::beta}) {
    const std::string name = member == &TypeParam::Inputs::q   ? "q"
                             : member == &TypeParam::Inputs::k ? "k"
                             : member == &TypeParam::Inputs::v ? "v"
                             : member == &TypeParam::Inputs::g ? "g"
                                                               : "beta";
    both(name + ": got", [&](Call& c) { c.inputs.*member = {}; });
    both(name + ": got", [&](Call& c) { (c.inputs.*member).data = nullptr; });
    both(name + ": got", [&](Call& c) { (c.inputs.*member).device = {DeviceType::kCuda, 0}; });
    both(name + ": got", [&](Call& c) { (c.inputs.*member).dtype = DType::kInt32; });
    both(name + ": got", [&](Call& c) { (c.inputs.*member).ndim -= 1; });
    if (name == "q") continue;  // its shape is what the others are compared with
    both(name + ": got", [&](Call& c) { (c.inputs.*member).shape[0] = 2; });
    both(name + ": got", [&](Call& c) { (c.inputs.*member).shape[1] -= 1; });
  }
  // A batch, and other rows than the context's, agreed by all operands.
  const auto all = [](Call& c, int dimension, std::int64_t extent) {
    for (ConstTensorView* x : {&c.inputs.q, &c.inputs.k, &c.inputs.v, &c.inputs.g, &c.inputs.beta}) {
      x->shape[static_cast<std::size_t>(dimension)] = extent;
    }
  };
  both("q: got", [&](Call& c) { all(c, 0, 2); });
  both("q: got 41 rows, expected 42", [&](Call& c) { all(c, 1, c.context.rows() - 1); });
  both("HV = 5", [&](Call& c) { c.inputs.v = other(DType::kBFloat16, {1, c.context.rows(), 5, 5}); });
  both("K = 257", [&](Call& c) { c.inputs.q = other(DType::kBFloat16, {1, c.context.rows(), 2, 257}); });
  both("k: got", [&](Call& c) { c.inputs.k.dtype = DType::kFloat16; });
  both("initial_state: got", [&](Call& c) { c.inputs.initial_state.shape[0] = 2; });
  both("A_log: got", [&](Call& c) { c.inputs.A_log = {}; });
  both("dt_bias: got", [&](Call& c) { c.inputs.dt_bias = other(DType::kFloat32, {6, 4}); });
  both("scale: got", [&](Call& c) { c.options.scale = std::numeric_limits<float>::infinity(); });
  both("lower_bound: got", [&](Call& c) { c.options.lower_bound = 1.0f; });
  both("allow_neg_eigval: got", [&](Call& c) { c.options.allow_neg_eigval = true; });
}

TYPED_TEST(KdaKcpRefusals, ABadResultOrIncomingGradientOnOneRank) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig;
  const auto bad = [&](const std::string& word, bool backward, const std::function<void(Call&)>& spoil) {
    rig.expect_own_error("InvalidArgument", word, backward, spoil);
  };
  bad("out: got", false, [](Call& c) { c.outputs.out = {}; });
  bad("out: got", false, [](Call& c) { c.outputs.out.shape[1] -= 1; });
  bad("out: got", false, [](Call& c) { c.outputs.out.dtype = DType::kFloat16; });
  bad("final_state: got", false, [](Call& c) { c.outputs.final_state.shape[0] -= 1; });
  bad("final_state: got", false, [](Call& c) { c.outputs.final_state.strides[1] = 0; });
  bad("dout: got", true, [](Call& c) { c.dout = {}; });
  bad("dout: got", true, [](Call& c) { c.dout.shape[1] -= 1; });
  bad("dout: got", true, [](Call& c) { c.dout.dtype = DType::kFloat16; });
  bad("d_final_state: got", true, [](Call& c) { c.d_final_state.shape[0] = 2; });
  bad("dq: got", true, [](Call& c) { c.gradients.dq.shape[3] -= 1; });
  bad("dk: got", true, [](Call& c) { c.gradients.dk.dtype = DType::kFloat32; });
  bad("dv: got", true, [](Call& c) { c.gradients.dv.strides[1] = 0; });
  bad("dg: got", true, [](Call& c) { c.gradients.dg.data = nullptr; });
  bad("dbeta: got", true, [](Call& c) { c.gradients.dbeta.shape[2] -= 1; });
  bad("dinitial_state: got", true, [](Call& c) { c.gradients.dinitial_state.dtype = DType::kBFloat16; });
  bad("dinitial_state: got", true, [](Call& c) { c.inputs.initial_state = {}, c.saved = nullptr; });
}

TYPED_TEST(KdaKcpRefusals, GateParametersOfAPlainGate) {
  using Call = RankCall<TypeParam>;
  const Refusals<TypeParam> rig(false);
  typename TypeParam::GateParamPartials partials;
  rig.expect_own_error("InvalidArgument", "gate_params: got", true,
                       [&](Call& call) { call.gradients.gate_params = &partials; });
  EXPECT_TRUE(partials.empty());
}

TYPED_TEST(KdaKcpRefusals, SavedSetsOfOtherForwards) {
  using P = TypeParam;
  using Call = RankCall<P>;
  const Refusals<P> rig;
  using Options = typename P::Options;
  const auto refused = [&](const std::string& field, const std::function<void(Options&)>& change) {
    // All ranks make the same mistake: options of the backward that are not those of the forward.
    SCOPED_TRACE(field);
    for (const std::string& error : rig.errors(true, [&](int, Call& call) { change(call.options); })) {
      EXPECT_EQ(error.find("InvalidArgument | saved: got"), 0u) << error;
      EXPECT_NE(error.find(field), std::string::npos) << error;
    }
  };
  refused("scale", [](Options& o) { o.scale = 2.0f; });
  refused("lower_bound", [](Options& o) { o.lower_bound = -5.0f; });
  refused("use_qk_l2norm_in_kernel", [](Options& o) { o.use_qk_l2norm_in_kernel = true; });
  refused("use_beta_sigmoid_in_kernel", [](Options& o) { o.use_beta_sigmoid_in_kernel = true; });
  refused("save_mode", [](Options& o) { o.save_mode = P::SaveMode::kTape; });
  refused("exchange", [](Options& o) { o.exchange = Exchange::kRelay; });
  refused("save_transfer", [](Options& o) { o.save_transfer = false; });

  typename P::Saved hollow;
  rig.expect_own_error("InvalidArgument", "saved: got an empty saved set", true,
                       [&](Call& call) { call.saved = &hollow; });
}

TYPED_TEST(KdaKcpRefusals, ASavedSetOfAnotherContextOrProblem) {
  using P = TypeParam;
  using Call = RankCall<P>;
  const Refusals<P> rig;
  const Partition moved = Partition::from_cut_points(rig.partition.cu_seqlens(), std::vector<std::int64_t>{30, 73});
  KdaSpec narrow = Refusals<P>::spec(true);
  narrow.V = 4;
  const KdaProblem other = make_problem(narrow);
  ThreadGroup(kRefusalRanks, kRefusalTimeout).run([&](Communicator& comm) {
    const Context one(rig.partition, comm), two(moved, comm);
    typename P::Saved of_two, of_other;
    Call on_two(rig.p, two), smaller(other, one), call(rig.p, one);
    on_two.saved = &of_two;
    on_two.forward();
    smaller.saved = &of_other;
    smaller.forward();
    for (auto* saved : {&of_two, &of_other}) {
      call.saved = saved;
      call.fill(kUnwritten);
      const std::string error = error_of([&] { call.backward(); });
      EXPECT_EQ(error.find("InvalidArgument | saved: got"), 0u) << error;
      EXPECT_NE(error.find(saved == &of_two ? "partition" : "V"), std::string::npos) << error;
      EXPECT_TRUE(call.untouched());
    }
    typename P::Saved right;
    call.saved = &right;
    call.forward();
    call.backward();
    const auto& expected = rig.expected[static_cast<std::size_t>(comm.rank())].tensors;
    for (auto* name : {"out", "dq", "dk", "dv", "dg"}) EXPECT_TRUE(same_bits(call.result(name), expected.at(name)));
  });
}

TYPED_TEST(KdaKcpRefusals, PartialSumsOfAnotherContextAndBadTotals) {
  using P = TypeParam;
  const Refusals<P> rig;
  const Partition moved = Partition::from_cut_points(rig.partition.cu_seqlens(), std::vector<std::int64_t>{30, 73});
  ThreadGroup(kRefusalRanks, kRefusalTimeout).run([&](Communicator& comm) {
    const Context one(rig.partition, comm), two(moved, comm);
    RankCall<P> call(rig.p, one);
    call.fill(kUnwritten);
    const std::string empty = error_of([&] { call.reduce(); });
    EXPECT_EQ(empty.find("InvalidArgument | "), 0u) << empty;
    EXPECT_NE(empty.find("partials"), std::string::npos) << empty;
    EXPECT_TRUE(call.untouched());
    call.forward();
    call.backward();
    call.fill(kUnwritten);
    const std::string foreign =
        error_of([&] { reduce_gate_param_grads(two, call.partials, call.dA_log, call.ddt_bias); });
    EXPECT_EQ(foreign.find("InvalidArgument | "), 0u) << foreign;
    EXPECT_NE(foreign.find("partials"), std::string::npos) << foreign;
    TensorView shorter = call.dA_log;
    if (comm.rank() == 1) shorter.shape[0] -= 1;
    const std::string bad = error_of([&] { reduce_gate_param_grads(one, call.partials, shorter, call.ddt_bias); });
    EXPECT_EQ(bad.find(comm.rank() == 1 ? "InvalidArgument | dA_log: got" : "CommError | rank 1: "), 0u) << bad;
    EXPECT_TRUE(call.untouched());
    call.reduce();
    const auto& expected = rig.expected[static_cast<std::size_t>(comm.rank())].tensors.at("ddt_bias");
    if (!P::kNondet) {
      EXPECT_TRUE(same_bits(call.result("ddt_bias"), expected));
    }
  });
}

}  // namespace
}  // namespace cake::test
