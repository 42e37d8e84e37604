// The two modes side by side: the nondet package against the reference and against det, objects of one mode in the
// other, and the determinism alert.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cake/core/determinism.h"
#include "tests/kda/guarded_call.h"
#include "tests/support/kda_packages.h"
#include "tests/support/mode_words.h"

namespace cake::test {
namespace {

namespace det = kda_det_train;
namespace nondet = kda_nondet_train;

KdaSpec spec_of(bool raw_gate) {
  KdaSpec spec;
  spec.lengths = {2 * kSegment + 70, 0, 129, 1};
  spec.rows_past_end = 4;
  spec.H = 1;
  spec.HV = 2;
  spec.K = kShortSegments ? 32 : 8;
  spec.V = kShortSegments ? 20 : 6;
  spec.initial_state = true;
  if (raw_gate) use_every_activation(spec);
  spec.seed = 31;
  return spec;
}

/// The kind and text of the error of a call; "none" when it has none.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

TEST(KdaModes, NondetIsRightToo) {
  for (const bool raw_gate : {false, true}) {
    for (const DType dtype : float_dtypes()) {
      KdaSpec spec = spec_of(raw_gate);
      spec.dtype = spec.raw_gate_dtype = dtype;
      const KdaProblem problem = make_problem(spec);
      KdaRun how;
      how.nondet = true;
      how.threads = 3;
      EXPECT_TRUE(matches_reference(problem, run(problem, how)));
      how.recompute = true;
      how.memory = Memory::kCaller;
      EXPECT_TRUE(matches_reference(problem, run(problem, how)));
    }
  }
}

TEST(KdaModes, OnlyParameterGradientsMayDiffer) {
  const KdaProblem problem = make_problem(spec_of(true));
  const KdaResults expected = run(problem);
  KdaRun how;
  how.nondet = true;
  how.threads = 3;
  for (const std::uint64_t shuffle : {1, 2, 3}) {
    how.shuffle = shuffle;
    for (const auto& [name, tensor] : run(problem, how)) {
      if (is_parameter_gradient(name)) continue;
      EXPECT_TRUE(same_bits(tensor, expected.at(name), name));
    }
  }
}

TEST(KdaModes, TheArrivalOrderIsReal) {
  // With many documents and shuffled tasks the sums do differ: the nondet package is not det under another name.
  KdaSpec spec = spec_of(true);
  spec.lengths.assign(40, 30);
  const KdaProblem problem = make_problem(spec);
  KdaRun how;
  how.nondet = true;
  how.threads = 1;
  bool differed = false;
  const KdaResults first = run(problem, how);
  for (std::uint64_t shuffle = 1; shuffle <= 20 && !differed; ++shuffle) {
    how.shuffle = shuffle;
    differed = !same_bits(run(problem, how).at("ddt_bias"), first.at("ddt_bias"));
  }
  EXPECT_TRUE(differed);
}

TEST(KdaModes, TheSameErrorsForTheSameMistakes) {
  const KdaProblem p = make_problem(spec_of(true));
  const auto both = [&](const std::string& what, const std::function<void(Inputs&, Options&)>& spoil) {
    Inputs inputs = p.inputs();
    Options options = p.spec.options;
    spoil(inputs, options);
    LaidOutTensor out(p.v.dtype, p.v.shape);
    const auto other_inputs = inputs_as<Nondet>(inputs);
    const auto other_options = options_as<Nondet>(options);
    const std::string mine = error_of([&] { det::forward(inputs, {out.view(), {}}, options); });
    EXPECT_NE(mine, "none") << what;
    EXPECT_EQ(mine, error_of([&] { nondet::forward(other_inputs, {out.view(), {}}, other_options); })) << what;
    EXPECT_EQ(error_of([&] { det::backward(inputs, p.dout.view(), {}, {}, options); }),
              error_of([&] { nondet::backward(other_inputs, p.dout.view(), {}, {}, other_options); }))
        << what;
  };
  both("K", [](Inputs& x, Options&) { x.k.shape[3] -= 1; });
  both("dtype", [](Inputs& x, Options&) { x.v.dtype = DType::kFloat16; });
  both("offsets", [](Inputs& x, Options&) { x.cu_seqlens.dtype = DType::kInt64; });
  both("passes", [](Inputs&, Options& o) { o.tail_passes = -3; });
  both("lower bound", [](Inputs&, Options& o) { o.lower_bound = 1.0f; });
  both("neg eigval", [](Inputs&, Options& o) { o.use_beta_sigmoid_in_kernel = false, o.allow_neg_eigval = true; });
}

/// One package's objects and calls behind handles.
template <class P>
struct Erased {
  explicit Erased(const KdaProblem& problem) : p(problem), options(options_as<P>(problem.spec.options)) {
    out.fill(kSentinel);
    dk.fill(kSentinel);
    gradients.dk = dk.view();
    inputs = inputs_as<P>(p.inputs());
    auto saved_object = std::make_shared<typename P::Saved>();
    auto workspace_object = std::make_shared<typename P::Workspace>();
    forward(inputs, {out.view(), {}}, options, workspace_object.get(), saved_object.get());
    out.fill(kSentinel);
    saved = make_handle(saved_object);
    workspace = make_handle(workspace_object);
  }
  void run_forward(const Handle& workspace_handle, const Handle& saved_handle) {
    forward(inputs, {out.view(), {}}, options, workspace_handle, saved_handle);
  }
  void run_backward(const Handle& workspace_handle, const Handle& saved_handle) {
    backward(inputs, p.dout.view(), p.d_final_state->view(), gradients, options, workspace_handle, saved_handle);
  }
  bool untouched() const {
    for (const LaidOutTensor* tensor : {&out, &dk}) {
      for (const double x : tensor->gather().doubles()) {
        if (x != kSentinel) return false;
      }
    }
    return true;
  }

  const KdaProblem& p;
  typename P::Options options;
  typename P::Inputs inputs;
  typename P::Gradients gradients;
  LaidOutTensor out{p.v.dtype, p.v.shape}, dk{p.k.dtype, p.k.shape};
  Handle saved, workspace;
};

TEST(KdaModes, ObjectsOfTheOtherModeAreRefusedWordForWord) {
  const KdaProblem p = make_problem(spec_of(true));
  const KdaResults expected = run(p);
  Erased<Det> mine(p);
  Erased<Nondet> other(p);
  const Handle text_handle({"kda", "det", false, "partition", 1}, std::make_shared<int>(1));
  const Handle newer({"kda", "det", false, "saved", 2}, std::make_shared<int>(1));
  const Handle newer_other({"kda", "nondet", false, "saved", 2}, std::make_shared<int>(1));
  const auto both = [&](const std::string& word, const std::string& kind, const std::function<void()>& call,
                        const std::function<void()>& mirrored) {
    const std::string first = error_of(call), second = error_of(mirrored);
    EXPECT_EQ(first.find(kind), 0u) << first;
    EXPECT_NE(first.find(word), std::string::npos) << first;
    EXPECT_EQ(swapped(first), second);
    EXPECT_TRUE(mine.untouched() && other.untouched()) << first;
    // After a refusal the next correct call gives the bits it would have given.
    mine.run_backward(mine.workspace, mine.saved);
    EXPECT_TRUE(same_bits(mine.dk.gather(), expected.at("dk")));
    mine.dk.fill(kSentinel);
  };
  both(
      "cake_kda_nondet_train", "WrongMode", [&] { mine.run_backward(mine.workspace, other.saved); },
      [&] { other.run_backward(other.workspace, mine.saved); });
  both(
      "nondet mode", "WrongMode", [&] { mine.run_backward(other.workspace, mine.saved); },
      [&] { other.run_backward(mine.workspace, other.saved); });
  both(
      "nondet mode", "WrongMode", [&] { mine.run_forward(other.workspace, {}); },
      [&] { other.run_forward(mine.workspace, {}); });
  both(
      "CakeKDANondetSaved", "WrongMode", [&] { mine.run_forward({}, other.saved); },
      [&] { other.run_forward({}, mine.saved); });
  // The saved set is judged before the workspace, and both before the options.
  both(
      "saved", "WrongMode", [&] { mine.run_backward(other.workspace, other.saved); },
      [&] { other.run_backward(mine.workspace, mine.saved); });
  mine.options.tail_passes = other.options.tail_passes = 0;
  EXPECT_EQ(error_of([&] { mine.run_backward(other.workspace, mine.saved); }).find("WrongMode"), 0u);
  EXPECT_NE(error_of([&] { mine.run_backward(mine.workspace, mine.saved); }).find("tail_passes"), std::string::npos);
  mine.options.tail_passes = other.options.tail_passes = 1;
  both(
      "CakeKDADetSaved", "InvalidArgument", [&] { mine.run_backward({}, newer); },
      [&] { other.run_backward({}, newer_other); });
  both(
      "workspace must be a CakeKDADetWorkspace", "WrongType", [&] { mine.run_backward(text_handle, mine.saved); },
      [&] { other.run_backward(text_handle, other.saved); });
  both(
      "workspace must be a CakeKDADetWorkspace", "WrongType", [&] { mine.run_forward(mine.saved, {}); },
      [&] { other.run_forward(other.saved, {}); });
  both(
      "saved must be a CakeKDADetSaved", "WrongType", [&] { mine.run_backward({}, mine.workspace); },
      [&] { other.run_backward({}, other.workspace); });
}

std::vector<std::string>& warnings() {
  static std::vector<std::string> list;
  return list;
}

class KdaAlert : public testing::Test {
 protected:
  KdaAlert() {
    warnings().clear();
    before_ = set_warning_handler([](const std::string& text) { warnings().push_back(text); });
    dk.fill(kSentinel);
    gradients.dk = dk.view();
  }
  ~KdaAlert() override { set_warning_handler(before_); }
  void backward(std::optional<DeterminismPolicy> policy = {}) {
    nondet::backward(inputs, p.dout.view(), p.d_final_state->view(), gradients, options, nullptr, nullptr, policy);
  }

  KdaProblem p = make_problem(spec_of(true));
  nondet::Inputs inputs = inputs_as<Nondet>(p.inputs());
  nondet::Options options = options_as<Nondet>(p.spec.options);
  LaidOutTensor dk{p.k.dtype, p.k.shape};
  nondet::Gradients gradients;

 private:
  WarningHandler before_;
};

TEST_F(KdaAlert, ForbidsBeforeAnythingIsWritten) {
  const std::string error = error_of([&] { backward(DeterminismPolicy::kForbid); });
  EXPECT_EQ(error.find("NondeterminismAlert"), 0u) << error;
  EXPECT_NE(error.find("cake::kda_nondet_train::backward does not have a deterministic implementation"),
            std::string::npos)
      << error;
  EXPECT_EQ(error.find("cake_kda_det"), std::string::npos) << "names another package: " << error;
  for (const double x : dk.gather().doubles()) ASSERT_EQ(x, kSentinel);
  EXPECT_TRUE(warnings().empty());
}

TEST_F(KdaAlert, WarnsExactlyOncePerBackward) {
  backward(DeterminismPolicy::kWarn);
  EXPECT_EQ(warnings().size(), 1u);
  backward(DeterminismPolicy::kWarn);
  EXPECT_EQ(warnings().size(), 2u);
  EXPECT_TRUE(same_bits(dk.gather(), run(p).at("dk")));
}

TEST_F(KdaAlert, TheThreadsDefaultAndTheArgument) {
  {
    const ScopedDeterminismPolicy scope(DeterminismPolicy::kForbid);
    EXPECT_THROW(backward(), NondeterminismAlert);
    EXPECT_NO_THROW(backward(DeterminismPolicy::kAllow)) << "the argument beats the default";
  }
  EXPECT_NO_THROW(backward());
  EXPECT_TRUE(warnings().empty());
}

TEST_F(KdaAlert, ForwardsNeverAlertAndDetNeverDoes) {
  const ScopedDeterminismPolicy scope(DeterminismPolicy::kForbid);
  LaidOutTensor out(p.v.dtype, p.v.shape);
  EXPECT_NO_THROW(nondet::forward(inputs, {out.view(), {}}, options));
  EXPECT_NO_THROW(run(p));
}

TEST_F(KdaAlert, ArgumentErrorsComeFirst) {
  inputs.k.shape[3] -= 1;
  const std::string error = error_of([&] { backward(DeterminismPolicy::kForbid); });
  EXPECT_EQ(error.find("InvalidArgument"), 0u) << error;
  inputs = inputs_as<Nondet>(p.inputs());
  nondet::Workspace small(nullptr, 0);
  EXPECT_THROW(
      nondet::backward(inputs, p.dout.view(), {}, gradients, options, &small, nullptr, DeterminismPolicy::kForbid),
      OutOfMemory);
}

TEST_F(KdaAlert, PlansAlertToo) {
  LaidOutTensor out(p.v.dtype, p.v.shape);
  nondet::Plan plan(inputs, {out.view(), {}}, p.dout.view(), p.d_final_state->view(), gradients, options);
  plan.forward(inputs, {out.view(), {}});
  EXPECT_THROW(plan.backward(inputs, p.dout.view(), p.d_final_state->view(), gradients, DeterminismPolicy::kForbid),
               NondeterminismAlert);
  for (const double x : dk.gather().doubles()) ASSERT_EQ(x, kSentinel);
  plan.backward(inputs, p.dout.view(), p.d_final_state->view(), gradients, DeterminismPolicy::kWarn);
  EXPECT_EQ(warnings().size(), 1u);
}

TEST_F(KdaAlert, WithoutRowsThereIsNothingToAlertAbout) {
  KdaSpec spec;
  spec.lengths = {0, 0};
  const KdaProblem empty = make_problem(spec);
  nondet::backward(inputs_as<Nondet>(empty.inputs()), empty.dout.view(), {}, {}, {}, nullptr, nullptr,
                   DeterminismPolicy::kForbid);
  nondet::backward(inputs_as<Nondet>(empty.inputs()), empty.dout.view(), {}, {}, {}, nullptr, nullptr,
                   DeterminismPolicy::kWarn);
  EXPECT_TRUE(warnings().empty());
}

}  // namespace
}  // namespace cake::test
