// Plans: resolved once, run many times without allocating, and only for what was planned.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cake/core/parallel.h"
#include "tests/kda/allocations.h"
#include "tests/kda/cases.h"
#include "tests/support/kda_packages.h"

namespace cake::test {
namespace {

KdaProblem problem() {
  KdaSpec spec;
  spec.lengths = {kShortSegments ? 3 * kSegment + 1 : 200, 0, 70};
  spec.rows_past_end = 3;
  spec.HV = 2;
  spec.K = 16;
  spec.V = 16;
  spec.initial_state = true;
  use_every_activation(spec);
  spec.seed = 5;
  return make_problem(spec);
}

template <class P>
class KdaPlan : public testing::Test {
 protected:
  KdaPlan() {
    gradients.dk = dk.view();
    gradients.dA_log = dA_log.view();
  }
  typename P::Plan plan() { return {inputs(), outputs(), p.dout.view(), p.d_final_state->view(), gradients, options}; }
  typename P::Inputs inputs() const { return inputs_as<P>(p.inputs()); }
  typename P::Outputs outputs() const { return {out.view(), {}}; }
  void backward(typename P::Plan& plan) { plan.backward(inputs(), p.dout.view(), p.d_final_state->view(), gradients); }
  template <class Call>
  std::string refusal(Call call) {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }

  KdaProblem p = problem();
  typename P::Options options = options_as<P>(p.spec.options);
  mutable LaidOutTensor out{p.v.dtype, p.v.shape};
  LaidOutTensor dk{p.k.dtype, p.k.shape}, dA_log{DType::kFloat32, {p.spec.HV}};
  typename P::Gradients gradients;
};
using Packages = testing::Types<Det, Nondet>;
TYPED_TEST_SUITE(KdaPlan, Packages);

TYPED_TEST(KdaPlan, RunsWithoutAllocating) {
  for (const int threads : {1, 3}) {
    const ScopedNumThreads scope(threads);
    const KdaResults expected = run(this->p);
    auto plan = this->plan();
    plan.forward(this->inputs(), this->outputs());
    this->backward(plan);
    const auto inputs = this->inputs();
    const auto outputs = this->outputs();
    const auto dout = this->p.dout.view(), d_final_state = this->p.d_final_state->view();
    const long before = allocations();
    for (int i = 0; i < 3; ++i) {
      plan.forward(inputs, outputs);
      plan.backward(inputs, dout, d_final_state, this->gradients);
      plan.backward(inputs, dout, d_final_state, this->gradients);
    }
    EXPECT_EQ(allocations() - before, 0) << threads << " threads";
    EXPECT_TRUE(same_bits(this->out.gather(), expected.at("out")));
    EXPECT_TRUE(same_bits(this->dk.gather(), expected.at("dk")));
  }
}

TYPED_TEST(KdaPlan, ServesFewerAndMoreThreads) {
  const KdaResults expected = run(this->p);
  const ScopedNumThreads two(2);
  auto plan = this->plan();
  const std::size_t bytes = plan.nbytes();
  for (const int threads : {1, 5}) {
    const ScopedNumThreads scope(threads);
    plan.forward(this->inputs(), this->outputs());
    this->backward(plan);
    EXPECT_TRUE(same_bits(this->dk.gather(), expected.at("dk"))) << threads;
    EXPECT_EQ(plan.nbytes(), bytes);
  }
}

TYPED_TEST(KdaPlan, OtherNumbersAtOtherAddresses) {
  auto plan = this->plan();
  KdaSpec spec = this->p.spec;
  spec.seed = 6;
  const KdaProblem other = make_problem(spec);
  LaidOutTensor other_dk(other.k.dtype, other.k.shape);
  auto wanted = this->gradients;
  wanted.dk = other_dk.view();
  plan.forward(inputs_as<TypeParam>(other.inputs()), this->outputs());
  plan.backward(inputs_as<TypeParam>(other.inputs()), other.dout.view(), other.d_final_state->view(), wanted);
  EXPECT_TRUE(same_bits(other_dk.gather(), run(other).at("dk")));
}

TYPED_TEST(KdaPlan, RefusesWhatWasNotPlanned) {
  auto plan = this->plan();
  EXPECT_NE(this->refusal([&] { this->backward(plan); }).find("plan"), std::string::npos) << "before the forward";
  plan.forward(this->inputs(), this->outputs());
  this->out.fill(3.0);
  this->dk.fill(3.0);
  auto inputs = this->inputs();
  inputs.k.strides[1] += 1;
  EXPECT_EQ(this->refusal([&] { plan.forward(inputs, this->outputs()); }).find("k: "), 0u);
  inputs = this->inputs();
  inputs.A_log = {};
  EXPECT_EQ(this->refusal([&] { plan.forward(inputs, this->outputs()); }).find("A_log: "), 0u);
  HostTensor offsets = *this->p.cu_seqlens;
  offsets.set(1, offsets.at(1) - 1);
  inputs = this->inputs();
  inputs.cu_seqlens = offsets.view();
  EXPECT_EQ(this->refusal([&] { plan.forward(inputs, this->outputs()); }).find("cu_seqlens: "), 0u);
  LaidOutTensor state(DType::kFloat32, this->p.initial_state->shape);
  EXPECT_EQ(this->refusal([&] {
                  plan.forward(this->inputs(), {this->out.view(), state.view()});
                })
                .find("final_state"),
            0u);
  auto fewer = this->gradients;
  fewer.dk = {};
  EXPECT_EQ(
      this->refusal([&] { plan.backward(this->inputs(), this->p.dout.view(), this->p.d_final_state->view(), fewer); })
          .find("dk: "),
      0u);
  EXPECT_EQ(
      this->refusal([&] { plan.backward(this->inputs(), this->p.dout.view(), {}, this->gradients); }).find("d_final"),
      0u);
  for (const double x : this->out.gather().doubles()) ASSERT_EQ(x, 3.0);
  for (const double x : this->dk.gather().doubles()) ASSERT_EQ(x, 3.0);
  this->backward(plan);
  EXPECT_TRUE(same_bits(this->dk.gather(), run(this->p).at("dk"))) << "after the refusals";
}

TYPED_TEST(KdaPlan, AForwardAlone) {
  typename TypeParam::Plan plan(this->inputs(), this->outputs(), this->options);
  EXPECT_LT(plan.nbytes(), this->plan().nbytes());
  plan.forward(this->inputs(), this->outputs());
  EXPECT_TRUE(same_bits(this->out.gather(), run(this->p).at("out")));
  EXPECT_NE(this->refusal([&] { this->backward(plan); }).find("plan"), std::string::npos);
}

TYPED_TEST(KdaPlan, ChecksItsArgumentsAsTheCallsDo) {
  auto inputs = this->inputs();
  inputs.k.shape[3] -= 1;
  EXPECT_EQ(this->refusal([&] { typename TypeParam::Plan(inputs, this->outputs(), this->options); }).find("k: "), 0u);
  auto bad = this->options;
  bad.tail_passes = 0;
  EXPECT_EQ(this->refusal([&] { typename TypeParam::Plan(this->inputs(), this->outputs(), bad); }).find("tail_passes"),
            0u);
}

TYPED_TEST(KdaPlan, CanBeMoved) {
  auto plan = this->plan();
  auto moved = std::move(plan);
  moved.forward(this->inputs(), this->outputs());
  this->backward(moved);
  EXPECT_TRUE(same_bits(this->dk.gather(), run(this->p).at("dk")));
}

}  // namespace
}  // namespace cake::test
