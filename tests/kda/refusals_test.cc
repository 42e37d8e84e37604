// Bad arguments: refused with the argument's name, what was given and what is accepted, before anything is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/kda/guarded_call.h"

namespace cake::test {
namespace {

KdaSpec base_spec(bool raw_gate) {
  KdaSpec spec;
  spec.lengths = {5, 0, 9};
  spec.rows_past_end = 2;
  spec.H = 2;
  spec.HV = 4;
  spec.K = 6;
  spec.V = 5;
  spec.dtype = DType::kBFloat16;
  spec.initial_state = true;
  spec.options.use_gate_in_kernel = raw_gate;
  return spec;
}

/// One bad argument: how to spoil the call, and the name the message must hold.
struct BadArgument {
  std::string what, name;
  std::function<void(Call&)> spoil;
  bool raw_gate = false;
  ErrorKind kind = ErrorKind::kInvalidArgument;
};

void expect_refused(const BadArgument& bad, bool backward) {
  Call call(make_problem(base_spec(bad.raw_gate)));
  bad.spoil(call);
  const std::string where = (backward ? "backward, " : "forward, ") + bad.what;
  try {
    if (backward) {
      call.backward();
    } else {
      call.forward();
    }
    ADD_FAILURE() << where << ": accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error_kind_name(error.kind()), std::string(error_kind_name(bad.kind))) << where << ": " << message;
    EXPECT_NE(message.find(bad.name), std::string::npos) << where << ": " << message;
    if (bad.kind == ErrorKind::kInvalidArgument) {
      EXPECT_NE(message.find("got"), std::string::npos) << where << ": " << message;
      EXPECT_NE(message.find("expected"), std::string::npos) << where << ": " << message;
    }
  }
  EXPECT_TRUE(call.untouched()) << where << ": a result was written";
}

void move_to_cuda(ConstTensorView& view) { view.device = {DeviceType::kCuda, 0}; }
void misalign(ConstTensorView& view) { view.data = static_cast<const std::byte*>(view.data) + 1; }

/// Spoils the shape, dtype, device and presence of one required operand.
void add_operand_cases(std::vector<BadArgument>& cases, const std::string& name, ConstTensorView Inputs::*member) {
  cases.push_back({name + " missing", name, [=](Call& c) { c.inputs.*member = {}; }});
  cases.push_back({name + " without data", name, [=](Call& c) { (c.inputs.*member).data = nullptr; }});
  cases.push_back({name + " on a GPU", name, [=](Call& c) { move_to_cuda(c.inputs.*member); }});
  cases.push_back({name + " misaligned", name, [=](Call& c) { misalign(c.inputs.*member); }});
  cases.push_back({name + " of int32", name, [=](Call& c) { (c.inputs.*member).dtype = DType::kInt32; }});
  cases.push_back({name + " with a dimension less", name, [=](Call& c) { (c.inputs.*member).ndim -= 1; }});
  if (member != &Inputs::q) {
    cases.push_back({name + " of other length", name, [=](Call& c) { (c.inputs.*member).shape[1] -= 1; }});
    cases.push_back({name + " of other batch", name, [=](Call& c) { (c.inputs.*member).shape[0] = 2; }});
  }
}

std::vector<BadArgument> bad_operands() {
  std::vector<BadArgument> cases;
  add_operand_cases(cases, "q", &Inputs::q);
  add_operand_cases(cases, "k", &Inputs::k);
  add_operand_cases(cases, "v", &Inputs::v);
  add_operand_cases(cases, "g", &Inputs::g);
  add_operand_cases(cases, "beta", &Inputs::beta);
  const auto add = [&](std::string what, std::string name, std::function<void(Call&)> spoil, bool raw = false) {
    cases.push_back({std::move(what), std::move(name), std::move(spoil), raw});
  };
  add("K of 0", "K", [](Call& c) { c.inputs.q.shape[3] = 0; });
  add("K of 257", "K", [](Call& c) { c.inputs.q = c.other(DType::kBFloat16, {1, c.problem.S, 2, 257}); });
  add("no heads", "q", [](Call& c) { c.inputs.q.shape[2] = 0; });
  add("V of 0", "V", [](Call& c) { c.inputs.v.shape[3] = 0; });
  add("V of 257", "V", [](Call& c) { c.inputs.v = c.other(DType::kBFloat16, {1, c.problem.S, 4, 257}); });
  add("HV 5 of H 2", "HV", [](Call& c) { c.inputs.v = c.other(DType::kBFloat16, {1, c.problem.S, 5, 5}); });
  add("HV 1 of H 2", "HV", [](Call& c) { c.inputs.v.shape[2] = 1; });
  add("k of fp16 with q of bf16", "k", [](Call& c) { c.inputs.k.dtype = DType::kFloat16; });
  add("v of fp16 with q of bf16", "v", [](Call& c) { c.inputs.v.dtype = DType::kFloat16; });
  add("beta of fp16 with q of bf16", "beta", [](Call& c) { c.inputs.beta.dtype = DType::kFloat16; });
  add("k of other K", "k", [](Call& c) { c.inputs.k.shape[3] = 5; });
  add("k of other H", "k", [](Call& c) { c.inputs.k.shape[2] = 1; });
  add("plain g of bf16", "g", [](Call& c) { c.inputs.g.dtype = DType::kBFloat16; });
  add("g with q's heads", "g", [](Call& c) { c.inputs.g.shape[2] = 2; });
  add("g without channels", "g", [](Call& c) { c.inputs.g.shape[3] = 1; });
  add("beta with q's heads", "beta", [](Call& c) { c.inputs.beta.shape[2] = 2; });
  add("N - 1 initial states", "initial_state", [](Call& c) { c.inputs.initial_state.shape[0] = 2; });
  add("initial_state of bf16", "initial_state", [](Call& c) { c.inputs.initial_state.dtype = DType::kBFloat16; });
  add("initial_state transposed", "initial_state",
      [](Call& c) { std::swap(c.inputs.initial_state.shape[2], c.inputs.initial_state.shape[3]); });
  add("initial_state on a GPU", "initial_state", [](Call& c) { move_to_cuda(c.inputs.initial_state); });
  return cases;
}

std::vector<BadArgument> bad_offsets() {
  std::vector<BadArgument> cases;
  const auto offsets = [&](const std::string& what, const std::vector<double>& values) {
    cases.push_back({"cu_seqlens " + what, "cu_seqlens", [values](Call& c) {
                       TensorView view = c.other(DType::kInt32, {static_cast<std::int64_t>(values.size())});
                       for (std::size_t i = 0; i < values.size(); ++i)
                         c.spare.back()->set(static_cast<std::int64_t>(i), values[i]);
                       c.inputs.cu_seqlens = view;
                     }});
  };
  offsets("not from 0", {1, 5, 5, 14});
  offsets("negative", {-1, 5, 5, 14});
  offsets("decreasing", {0, 5, 4, 14});
  offsets("beyond S", {0, 5, 5, 17});
  offsets("far beyond S", {0, 5, 5, 2147483647});
  cases.push_back({"cu_seqlens empty", "cu_seqlens", [](Call& c) { c.inputs.cu_seqlens.shape[0] = 0; }});
  cases.push_back(
      {"cu_seqlens of int64", "cu_seqlens", [](Call& c) { c.inputs.cu_seqlens = c.other(DType::kInt64, {4}); }});
  cases.push_back({"cu_seqlens of fp32", "cu_seqlens", [](Call& c) { c.inputs.cu_seqlens.dtype = DType::kFloat32; }});
  cases.push_back({"cu_seqlens with two dimensions", "cu_seqlens", [](Call& c) {
                     c.inputs.cu_seqlens = c.other(DType::kInt32, {1, 4});
                   }});
  cases.push_back({"cu_seqlens on a GPU", "cu_seqlens", [](Call& c) { move_to_cuda(c.inputs.cu_seqlens); }});
  cases.push_back({"cu_seqlens without data", "cu_seqlens", [](Call& c) { c.inputs.cu_seqlens.data = nullptr; }});
  return cases;
}

std::vector<BadArgument> bad_gates_and_options() {
  std::vector<BadArgument> cases;
  const auto add = [&](std::string what, std::string name, bool raw, std::function<void(Call&)> spoil,
                       ErrorKind kind = ErrorKind::kInvalidArgument) {
    cases.push_back({std::move(what), std::move(name), std::move(spoil), raw, kind});
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  add("softplus gate without A_log", "A_log", true, [](Call& c) { c.inputs.A_log = {}; });
  add("A_log of other length", "A_log", true, [](Call& c) { c.inputs.A_log.shape[0] = 2; });
  add("A_log of bf16", "A_log", true, [](Call& c) { c.inputs.A_log.dtype = DType::kBFloat16; });
  add("A_log without raw gate", "A_log", false, [](Call& c) { c.inputs.A_log = c.other(DType::kFloat32, {4}); });
  add("dt_bias without raw gate", "dt_bias", false, [](Call& c) {
    c.inputs.dt_bias = c.other(DType::kFloat32, {4, 6});
  });
  add("dt_bias of other shape", "dt_bias", true, [](Call& c) { c.inputs.dt_bias = c.other(DType::kFloat32, {6, 4}); });
  add("flat dt_bias of other length", "dt_bias", true,
      [](Call& c) { c.inputs.dt_bias = c.other(DType::kFloat32, {4}); });
  add("dt_bias of fp16", "dt_bias", true, [](Call& c) { c.inputs.dt_bias.dtype = DType::kFloat16; });
  add("raw gate of int32", "g", true, [](Call& c) { c.inputs.g.dtype = DType::kInt32; });
  add("lower_bound without raw gate", "lower_bound", false, [](Call& c) { c.options.lower_bound = -5.0f; });
  for (const float bound : {0.0f, 1.0f, -kInf, std::nanf("")}) {
    add("lower_bound " + std::to_string(bound), "lower_bound", true, [=](Call& c) { c.options.lower_bound = bound; });
  }
  add("allow_neg_eigval without sigmoid", "allow_neg_eigval", false,
      [](Call& c) { c.options.allow_neg_eigval = true; });
  for (const float scale : {kInf, std::nanf("")}) {
    add("scale " + std::to_string(scale), "scale", false, [=](Call& c) { c.options.scale = scale; });
  }
  add("tail_passes 0", "tail_passes", false, [](Call& c) { c.options.tail_passes = 0; });
  add("batch_tokens 0", "batch_tokens", false, [](Call& c) { c.options.batch_tokens = 0; });
  add("max_docs_per_batch -1", "max_docs_per_batch", false, [](Call& c) { c.options.max_docs_per_batch = -1; });
  return cases;
}

/// Spoils shape, dtype and strides of one result.
template <class Member>
void add_result_cases(std::vector<BadArgument>& cases, const std::string& name, Member member) {
  const auto add = [&](const std::string& what, std::function<void(TensorView&)> spoil) {
    cases.push_back({name + what, name, [=](Call& c) { spoil(member(c)); }, true});
  };
  add(" of int32", [](TensorView& v) { v.dtype = DType::kInt32; });
  add(" of fp16", [](TensorView& v) { v.dtype = DType::kFloat16; });
  add(" shorter", [](TensorView& v) { v.shape[0] -= 1; });
  add(" with a dimension more", [](TensorView& v) { v.ndim += 1; });
  add(" expanded", [](TensorView& v) { v.strides[v.ndim > 1 ? 1 : 0] = 0; });
  add(" without data", [](TensorView& v) { v.data = nullptr; });
  add(" misaligned", [](TensorView& v) { v.data = static_cast<std::byte*>(v.data) + 1; });
  add(" on a GPU", [](TensorView& v) { v.device = {DeviceType::kCuda, 0}; });
}

TEST(KdaRefusals, TheUnspoiledCallsAreAccepted) {
  for (const bool raw_gate : {false, true}) {
    Call call(make_problem(base_spec(raw_gate)));
    EXPECT_NO_THROW(call.forward());
    EXPECT_NO_THROW(call.backward());
    EXPECT_FALSE(call.untouched());
  }
}

TEST(KdaRefusals, Operands) {
  for (const BadArgument& bad : bad_operands()) {
    expect_refused(bad, false);
    expect_refused(bad, true);
  }
}

TEST(KdaRefusals, Offsets) {
  for (const BadArgument& bad : bad_offsets()) {
    expect_refused(bad, false);
    expect_refused(bad, true);
  }
}

TEST(KdaRefusals, OffsetsTogetherWithABatch) {
  KdaSpec spec = base_spec(false);
  spec.lengths = {8, 8};
  spec.rows_past_end = 0;
  spec.packed = false;
  for (const bool backward : {false, true}) {
    Call call(make_problem(spec));
    TensorView view = call.other(DType::kInt32, {3});
    call.spare.back()->set(1, 4);
    call.spare.back()->set(2, 8);
    call.inputs.cu_seqlens = view;
    try {
      backward ? call.backward() : call.forward();
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("cu_seqlens"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(call.untouched());
  }
}

TEST(KdaRefusals, GatesAndOptions) {
  for (const BadArgument& bad : bad_gates_and_options()) {
    expect_refused(bad, false);
    expect_refused(bad, true);
  }
}

TEST(KdaRefusals, Results) {
  std::vector<BadArgument> forward, backward;
  add_result_cases(forward, "out", [](Call& c) -> TensorView& { return c.outputs.out; });
  add_result_cases(forward, "final_state", [](Call& c) -> TensorView& { return c.outputs.final_state; });
  forward.push_back({"out missing", "out", [](Call& c) { c.outputs.out = {}; }});
  for (const BadArgument& bad : forward) expect_refused(bad, false);
  const std::vector<std::pair<std::string, TensorView Gradients::*>> members = {
      {"dq", &Gradients::dq},
      {"dk", &Gradients::dk},
      {"dv", &Gradients::dv},
      {"dg", &Gradients::dg},
      {"dbeta", &Gradients::dbeta},
      {"dA_log", &Gradients::dA_log},
      {"ddt_bias", &Gradients::ddt_bias},
      {"dinitial_state", &Gradients::dinitial_state}};
  for (const auto& [name, member] : members) {
    add_result_cases(backward, name, [member = member](Call& c) -> TensorView& { return c.gradients.*member; });
  }
  const auto add = [&](const char* what, const char* name, bool raw, std::function<void(Call&)> spoil) {
    backward.push_back({what, name, std::move(spoil), raw});
  };
  add("dout missing", "dout", false, [](Call& c) { c.dout = {}; });
  add("dout of fp32", "dout", false, [](Call& c) { c.dout = c.other(DType::kFloat32, c.problem.v.shape); });
  add("dout shorter", "dout", false, [](Call& c) { c.dout.shape[1] -= 1; });
  add("dout on a GPU", "dout", false, [](Call& c) { move_to_cuda(c.dout); });
  add("N - 1 gradients of states", "d_final_state", false, [](Call& c) { c.d_final_state.shape[0] = 2; });
  add("d_final_state of bf16", "d_final_state", false, [](Call& c) { c.d_final_state.dtype = DType::kBFloat16; });
  add("dA_log of a plain gate", "dA_log", false, [](Call& c) { c.gradients.dA_log = c.other(DType::kFloat32, {4}); });
  add("ddt_bias of a plain gate", "ddt_bias", false, [](Call& c) {
    c.gradients.ddt_bias = c.other(DType::kFloat32, {4, 6});
  });
  add("dA_log without A_log", "dA_log", true, [](Call& c) {
    c.inputs.A_log = {};
    c.options.lower_bound = -5.0f;
  });
  add("ddt_bias without dt_bias", "ddt_bias", true, [](Call& c) { c.inputs.dt_bias = {}; });
  add("ddt_bias flat, dt_bias not", "ddt_bias", true,
      [](Call& c) { c.gradients.ddt_bias = c.other(DType::kFloat32, {24}); });
  add("dinitial_state without initial_state", "dinitial_state", false, [](Call& c) { c.inputs.initial_state = {}; });
  for (const BadArgument& bad : backward) expect_refused(bad, true);
}

TEST(KdaRefusals, SavedSetsOfAnotherForward) {
  const KdaProblem problem = make_problem(base_spec(true));
  const auto refused = [&](const std::string& field, const std::function<void(KdaSpec&)>& change) {
    KdaSpec spec = problem.spec;
    change(spec);
    const KdaProblem other = make_problem(spec);
    Saved saved;
    LaidOutTensor out(other.v.dtype, other.v.shape);
    kda_det_train::forward(other.inputs(), {out.view(), {}}, spec.options, nullptr, &saved);
    Call call(problem);
    call.saved = &saved;
    try {
      call.backward();
      ADD_FAILURE() << "a saved set of another " << field << " was accepted";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("saved"), std::string::npos) << message;
      EXPECT_NE(message.find(field), std::string::npos) << message;
    }
    EXPECT_TRUE(call.untouched()) << field;
  };
  refused("H", [](KdaSpec& s) { s.H = 4; });
  refused("HV", [](KdaSpec& s) { s.HV = 2; });
  refused("K", [](KdaSpec& s) { s.K = 7; });
  refused("V", [](KdaSpec& s) { s.V = 6; });
  refused("S", [](KdaSpec& s) { s.rows_past_end = 3; });
  refused("cu_seqlens", [](KdaSpec& s) { s.lengths = {6, 0, 8}; });
  refused("dtype", [](KdaSpec& s) { s.dtype = DType::kFloat16; });
  refused("scale", [](KdaSpec& s) { s.options.scale = 2.0f; });
  refused("lower_bound", [](KdaSpec& s) { s.options.lower_bound = -5.0f; });
  refused("use_gate_in_kernel", [](KdaSpec& s) { s.options.use_gate_in_kernel = false; });
  refused("use_qk_l2norm_in_kernel", [](KdaSpec& s) { s.options.use_qk_l2norm_in_kernel = true; });
  refused("use_beta_sigmoid_in_kernel", [](KdaSpec& s) { s.options.use_beta_sigmoid_in_kernel = true; });
}

TEST(KdaRefusals, AnEmptySavedSet) {
  Saved saved;
  Call call(make_problem(base_spec(false)));
  call.saved = &saved;
  EXPECT_THROW(call.backward(), InvalidArgument);
  EXPECT_TRUE(call.untouched());
}

TEST(KdaRefusals, ARefusedForwardLeavesTheSavedSetUsable) {
  Saved saved;
  Call call(make_problem(base_spec(false)));
  call.saved = &saved;
  call.forward();
  Inputs good = call.inputs;
  call.inputs.k.dtype = DType::kFloat16;
  EXPECT_THROW(call.forward(), InvalidArgument);
  call.inputs = good;
  EXPECT_NO_THROW(call.backward());
  EXPECT_TRUE(same_bits(call.results.at(2)->gather(), run(call.problem).at("dq")));
}

}  // namespace
}  // namespace cake::test
