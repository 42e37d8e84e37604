#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "cake/core/parallel.h"
#include "tests/support/kda_packages.h"
#include "tests/support/kda_problem.h"

namespace cake::test {
namespace {

using kda_det_train::Gradients;
using kda_det_train::Inputs;

/// Outputs in poisoned, guarded memory.
class Results {
 public:
  Results(const KdaRun& how) : how_(how) {}

  TensorView add(const std::string& name, DType dtype, const Shape& shape) {
    auto tensor = std::make_unique<LaidOutTensor>(dtype, shape, how_.outputs);
    tensor->fill(dtype == DType::kFloat16 && how_.poison > 6e4 ? 6e4 : how_.poison);
    TensorView view = tensor->view();
    tensors_.emplace_back(name, std::move(tensor));
    return view;
  }

  KdaResults gather() const {
    KdaResults results;
    for (const auto& [name, tensor] : tensors_) {
      EXPECT_TRUE(tensor->guards_intact()) << name << ": bytes outside the tensor were written";
      results.emplace(name, tensor->gather());
    }
    return results;
  }

 private:
  const KdaRun& how_;
  std::vector<std::pair<std::string, std::unique_ptr<LaidOutTensor>>> tensors_;
};

/// Workspace of a call as KdaRun asks for it.
template <class Workspace>
class CallWorkspace {
 public:
  CallWorkspace(const KdaRun& how, std::size_t bytes, const char* what) : what_(what) {
    if (how.memory == Memory::kNone) return;
    if (how.memory == Memory::kCaller) {
      memory_.emplace(bytes, how.fill, how.misalignment);
      workspace_.emplace(memory_->data(), memory_->size());
    } else {
      workspace_.emplace();
    }
  }
  ~CallWorkspace() {
    if (memory_) {
      EXPECT_TRUE(memory_->guards_intact()) << what_ << " workspace: bytes outside were written";
    }
  }
  CallWorkspace(const CallWorkspace&) = delete;
  CallWorkspace& operator=(const CallWorkspace&) = delete;
  Workspace* get() { return workspace_ ? &*workspace_ : nullptr; }

 private:
  const char* what_;
  std::optional<GuardedMemory> memory_;
  std::optional<Workspace> workspace_;
};

Gradients all_gradients(const KdaProblem& p, Results& results) {
  Gradients grads;
  grads.dq = results.add("dq", p.q.dtype, p.q.shape);
  grads.dk = results.add("dk", p.k.dtype, p.k.shape);
  grads.dv = results.add("dv", p.v.dtype, p.v.shape);
  grads.dg = results.add("dg", p.g.dtype, p.g.shape);
  grads.dbeta = results.add("dbeta", p.beta.dtype, p.beta.shape);
  if (p.A_log) grads.dA_log = results.add("dA_log", DType::kFloat32, p.A_log->shape);
  if (p.dt_bias) grads.ddt_bias = results.add("ddt_bias", DType::kFloat32, p.dt_bias->shape);
  if (p.initial_state) {
    grads.dinitial_state = results.add("dinitial_state", DType::kFloat32, p.initial_state->shape);
  }
  return grads;
}

}  // namespace

Inputs KdaProblem::inputs() const {
  Inputs in;
  in.q = q.view();
  in.k = k.view();
  in.v = v.view();
  in.g = g.view();
  in.beta = beta.view();
  if (cu_seqlens) in.cu_seqlens = cu_seqlens->view();
  if (initial_state) in.initial_state = initial_state->view();
  if (A_log) in.A_log = A_log->view();
  if (dt_bias) in.dt_bias = dt_bias->view();
  return in;
}

kda_det_train::Shape KdaProblem::shape(bool with_offsets) const {
  kda_det_train::Shape shape;
  shape.B = B;
  shape.S = S;
  shape.num_docs = N;
  shape.H = spec.H;
  shape.HV = spec.HV;
  shape.K = spec.K;
  shape.V = spec.V;
  if (with_offsets && cu_seqlens) {
    for (const std::int64_t offset : offsets) shape.cu_seqlens.push_back(static_cast<std::int32_t>(offset));
  }
  shape.gate_param_grads = A_log.has_value() || dt_bias.has_value();
  return shape;
}

namespace {

Det::Options options_of(const KdaProblem& p, const KdaRun& how) {
  Det::Options options = p.spec.options;
  if (how.tape) options.save_mode = Det::SaveMode::kTape;
  options.lean = how.lean;
  options.tail_passes = how.tail_passes;
  options.batch_tokens = how.batch_tokens;
  options.max_docs_per_batch = how.max_docs_per_batch;
  return options;
}

/// The results of a call, made once for both of its halves.
struct Tensors {
  Tensors(const KdaProblem& p, const KdaRun& how) : results(how) {
    outputs.out = results.add("out", p.v.dtype, p.v.shape);
    if (p.spec.final_state) {
      outputs.final_state = results.add("final_state", DType::kFloat32, {p.N, p.spec.HV, p.spec.K, p.spec.V});
    }
    if (!how.forward_only) gradients = all_gradients(p, results);
  }
  Results results;
  Det::Outputs outputs;
  Gradients gradients;
};

template <class P>
void run_plan(const Inputs& in, const ConstTensorView& dout, const ConstTensorView& d_final_state,
              const typename P::Options& options, const KdaRun& how, const Tensors& tensors) {
  const auto inputs = inputs_as<P>(in);
  const auto outputs = outputs_as<P>(tensors.outputs);
  if (how.forward_only) {
    typename P::Plan(inputs, outputs, options).forward(inputs, outputs);
    return;
  }
  const auto gradients = gradients_as<P>(tensors.gradients);
  typename P::Plan plan(inputs, outputs, dout, d_final_state, gradients, options);
  plan.forward(inputs, outputs);
  plan.backward(inputs, dout, d_final_state, gradients);
}

template <class P>
void run_calls(const KdaProblem& p, const Inputs& in, const ConstTensorView& dout, const ConstTensorView& d_final_state,
               const typename P::Options& options, const KdaRun& how, const Tensors& tensors) {
  const auto shape = shape_as<P>(p.shape());
  const auto inputs = inputs_as<P>(in);
  std::optional<GuardedMemory> saved_memory;
  std::optional<typename P::Saved> saved;
  if (!how.recompute && !how.forward_only) {
    if (how.memory == Memory::kCaller) {
      saved_memory.emplace(saved_bytes(shape, options), how.fill, how.misalignment);
      saved.emplace(saved_memory->data(), saved_memory->size());
    } else {
      saved.emplace();
    }
  }
  {
    CallWorkspace<typename P::Workspace> workspace(how, forward_workspace_bytes(shape, options, saved.has_value()),
                                                   "forward");
    forward(inputs, outputs_as<P>(tensors.outputs), options, workspace.get(), saved ? &*saved : nullptr);
  }
  if (!how.forward_only) {
    CallWorkspace<typename P::Workspace> workspace(how, backward_workspace_bytes(shape, how.recompute, options),
                                                   "backward");
    backward(inputs, dout, d_final_state, gradients_as<P>(tensors.gradients), options, workspace.get(),
             saved ? &*saved : nullptr);
  }
  if (saved_memory) {
    EXPECT_TRUE(saved_memory->guards_intact()) << "saved set: bytes outside were written";
  }
}

}  // namespace

KdaResults run_views(const KdaProblem& p, const Inputs& inputs, const ConstTensorView& dout,
                     const ConstTensorView& d_final_state, const KdaRun& how) {
  const ScopedNumThreads threads(how.threads > 0 ? how.threads : num_threads());
  std::optional<ScopedCpuIsa> isa;
  if (how.isa) isa.emplace(*how.isa);
  std::optional<ScopedTaskShuffle> shuffle;
  if (how.shuffle) shuffle.emplace(*how.shuffle);
  const Tensors tensors(p, how);
  const auto through = [&]<class P>(P) {
    const auto options = options_as<P>(options_of(p, how));
    if (how.plan) {
      run_plan<P>(inputs, dout, d_final_state, options, how, tensors);
    } else {
      run_calls<P>(p, inputs, dout, d_final_state, options, how, tensors);
    }
  };
  if (how.nondet) {
    through(Nondet{});
  } else {
    through(Det{});
  }
  return tensors.results.gather();
}

KdaResults run(const KdaProblem& p, const KdaRun& how) {
  if (how.inputs == Layout::kContiguous) {
    return run_views(p, p.inputs(), p.dout.view(), p.d_final_state ? p.d_final_state->view() : ConstTensorView{}, how);
  }
  std::vector<std::unique_ptr<LaidOutTensor>> held;
  const auto lay_out = [&](const HostTensor& tensor) -> ConstTensorView {
    held.push_back(std::make_unique<LaidOutTensor>(tensor, how.inputs));
    return held.back()->view();
  };
  Inputs in;
  in.q = lay_out(p.q);
  in.k = lay_out(p.k);
  in.v = lay_out(p.v);
  in.g = lay_out(p.g);
  in.beta = lay_out(p.beta);
  if (p.cu_seqlens) in.cu_seqlens = lay_out(*p.cu_seqlens);
  if (p.initial_state) in.initial_state = lay_out(*p.initial_state);
  if (p.A_log) in.A_log = lay_out(*p.A_log);
  if (p.dt_bias) in.dt_bias = lay_out(*p.dt_bias);
  const ConstTensorView dout = lay_out(p.dout);
  const ConstTensorView d_final_state = p.d_final_state ? lay_out(*p.d_final_state) : ConstTensorView{};
  return run_views(p, in, dout, d_final_state, how);
}

kda::ReferenceInputs KdaProblem::reference_inputs() const {
  kda::ReferenceInputs in;
  in.S = B * S;
  in.H = spec.H;
  in.HV = spec.HV;
  in.K = spec.K;
  in.V = spec.V;
  in.offsets = offsets;
  in.q = q.doubles();
  in.k = k.doubles();
  in.v = v.doubles();
  in.g = g.doubles();
  in.beta = beta.doubles();
  if (initial_state) in.initial_state = initial_state->doubles();
  if (A_log) in.A_log = A_log->doubles();
  if (dt_bias) in.dt_bias = dt_bias->doubles();
  const auto& options = spec.options;
  in.scale = options.scale ? static_cast<double>(*options.scale) : 1.0 / __builtin_sqrt(static_cast<double>(spec.K));
  in.use_gate_in_kernel = options.use_gate_in_kernel;
  if (options.lower_bound) in.lower_bound = static_cast<double>(*options.lower_bound);
  in.use_qk_l2norm_in_kernel = options.use_qk_l2norm_in_kernel;
  in.use_beta_sigmoid_in_kernel = options.use_beta_sigmoid_in_kernel;
  in.allow_neg_eigval = options.allow_neg_eigval;
  return in;
}

ReferenceResults run_reference(const kda::ReferenceInputs& in, const std::vector<double>& dout,
                               const std::vector<double>& d_final_state) {
  kda::ReferenceOutputs outputs = kda::reference_forward(in);
  kda::ReferenceGradients grads = kda::reference_backward(in, dout, d_final_state);
  ReferenceResults results;
  results.tensors = {{"out", std::move(outputs.out)},
                     {"final_state", std::move(outputs.final_state)},
                     {"dq", std::move(grads.dq)},
                     {"dk", std::move(grads.dk)},
                     {"dv", std::move(grads.dv)},
                     {"dg", std::move(grads.dg)},
                     {"dbeta", std::move(grads.dbeta)},
                     {"dA_log", std::move(grads.dA_log)},
                     {"ddt_bias", std::move(grads.ddt_bias)},
                     {"dinitial_state", std::move(grads.dinitial_state)}};
  results.squares = {{"dA_log", std::move(grads.dA_log_squares)}, {"ddt_bias", std::move(grads.ddt_bias_squares)}};
  if (in.use_qk_l2norm_in_kernel) {
    results.norm_squares = {{"dq", std::move(grads.dq_squares)}, {"dk", std::move(grads.dk_squares)}};
  }
  return results;
}

ReferenceResults run_reference(const KdaProblem& p) {
  return run_reference(p.reference_inputs(), p.dout.doubles(),
                       p.d_final_state ? p.d_final_state->doubles() : std::vector<double>{});
}

}  // namespace cake::test
