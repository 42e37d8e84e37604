#include "ops/kda/plan.h"

#include <algorithm>
#include <string>

#include "core/checks.h"

namespace cake::kda {
namespace {

std::string text_of(const std::int64_t* numbers, int n) {
  std::string text = "[";
  for (int i = 0; i < n; ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

template <class View>
std::string text_of(const View& x) {
  if (!x.given) return "nothing";
  return std::string(dtype_name(x.dtype)) + " " + text_of(x.shape.data(), x.ndim) + " with strides " +
         text_of(x.strides.data(), x.ndim);
}

template <class View>
void same(const char* name, const View& x, const View& planned) {
  const bool equal = x.given == planned.given && x.dtype == planned.dtype && x.ndim == planned.ndim &&
                     std::equal(x.shape.data(), x.shape.data() + x.ndim, planned.shape.data()) &&
                     std::equal(x.strides.data(), x.strides.data() + x.ndim, planned.strides.data());
  if (!equal) checks::fail(name, text_of(x), "what was planned: " + text_of(planned));
}

}  // namespace

PlanRecord::PlanRecord(const Operands& operands, const Settings& settings, const CallOptions& options,
                       const ForwardResults& outputs, const std::optional<BackwardArguments>& backward,
                       BackwardBytes bytes)
    : operands_(operands), settings_(settings), options_(options), outputs_(outputs), backward_(backward) {
  check_options(options);
  const Problem problem = check_problem(operands, settings);
  check_forward(problem, operands, outputs);
  if (backward) {
    check_backward(problem, operands, settings, backward->dout, backward->d_final_state, backward->results);
  }
  const Lengths lengths = Lengths::of(problem, operands.cu_seqlens);
  if (problem.packed) {
    for (std::int64_t n = 0; n < problem.N; ++n) offsets_.push_back(static_cast<std::int32_t>(lengths.start(n)));
    offsets_.push_back(static_cast<std::int32_t>(lengths.end()));
  }
  const Extents extents{problem.H, problem.HV, problem.Kp(), problem.Vp(),
                        count_documents(lengths, options.grouping())};
  const int threads = num_threads();
  std::size_t needed = forward_bytes(extents, backward.has_value(), threads);
  if (backward) {
    needed = std::max(needed, bytes(extents, options.memory(), false, backward->params(), threads));
    saved_.memory.ensure(saved_bytes(extents, options.tape), "saved");
  }
  workspace_.memory.ensure(needed, "workspace");
  saved_.memory.seal();
  workspace_.memory.seal();
}

void PlanRecord::check_operands(const Operands& x) const {
  same("q", x.q, operands_.q);
  same("k", x.k, operands_.k);
  same("v", x.v, operands_.v);
  same("g", x.g, operands_.g);
  same("beta", x.beta, operands_.beta);
  same("cu_seqlens", x.cu_seqlens, operands_.cu_seqlens);
  same("initial_state", x.initial_state, operands_.initial_state);
  same("A_log", x.A_log, operands_.A_log);
  same("dt_bias", x.dt_bias, operands_.dt_bias);
  if (!x.cu_seqlens.given) return;
  const auto* offsets = static_cast<const std::int32_t*>(x.cu_seqlens.data);
  if (offsets == nullptr) checks::fail("cu_seqlens", "a null pointer", "the planned offsets");
  for (std::size_t i = 0; i < offsets_.size(); ++i) {
    const std::int32_t offset = offsets[static_cast<std::int64_t>(i) * x.cu_seqlens.strides[0]];
    if (offset != offsets_[i]) {
      checks::fail("cu_seqlens", std::to_string(offset) + " at entry " + std::to_string(i),
                   "what was planned: " + std::to_string(offsets_[i]));
    }
  }
}

void PlanRecord::check(const Operands& operands, const ForwardResults& outputs) const {
  check_operands(operands);
  same("out", outputs.out, outputs_.out);
  same("final_state", outputs.final_state, outputs_.final_state);
}

void PlanRecord::check(const Operands& operands, const BackwardArguments& backward) const {
  if (!backward_) checks::fail("plan", "one of a forward alone", "one with a backward");
  if (!saved_.filled) checks::fail("plan", "one whose forward has not run", "a forward before its backward");
  check_operands(operands);
  same("dout", backward.dout, backward_->dout);
  same("d_final_state", backward.d_final_state, backward_->d_final_state);
  const BackwardResults &r = backward.results, &planned = backward_->results;
  same("dq", r.dq, planned.dq);
  same("dk", r.dk, planned.dk);
  same("dv", r.dv, planned.dv);
  same("dg", r.dg, planned.dg);
  same("dbeta", r.dbeta, planned.dbeta);
  same("dA_log", r.dA_log, planned.dA_log);
  same("ddt_bias", r.ddt_bias, planned.ddt_bias);
  same("dinitial_state", r.dinitial_state, planned.dinitial_state);
}

}  // namespace cake::kda
