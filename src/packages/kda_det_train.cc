// cake_kda_det_train: binds the KDA family to the fixed order.
#include "cake/kda_det_train.h"

#include <algorithm>
#include <new>

#include "cake/core/parallel.h"
#include "ops/kda/call.h"

namespace cake::kda_det_train {
namespace detail {
struct SavedState : kda::SavedSet {};
struct WorkspaceState : kda::WorkspaceMemory {};
}  // namespace detail

namespace {

kda::Operands operands_of(const Inputs& x) {
  return {x.q, x.k, x.v, x.g, x.beta, x.cu_seqlens, x.initial_state, x.A_log, x.dt_bias};
}

kda::Settings settings_of(const Options& o) {
  kda::refuse_options("cake_kda_det_train", o.save_mode != SaveMode::kLight, o.lean, o.tail_passes, o.batch_tokens,
                      o.max_docs_per_batch);
  return {
      o.scale,           o.use_gate_in_kernel, o.lower_bound, o.use_qk_l2norm_in_kernel, o.use_beta_sigmoid_in_kernel,
      o.allow_neg_eigval};
}

kda::BackwardResults results_of(const Gradients& g) {
  return {g.dq, g.dk, g.dv, g.dg, g.dbeta, g.dA_log, g.ddt_bias, g.dinitial_state};
}

kda::Extents extents_of(const Shape& s) {
  return kda::extents_of_shape(s.B, s.S, s.num_docs, s.H, s.HV, s.K, s.V, s.cu_seqlens);
}

}  // namespace

Saved::Saved() : state_(new detail::SavedState) {}
Saved::Saved(void* memory, std::size_t bytes) : state_(new detail::SavedState{{kda::CallerMemory(memory, bytes)}}) {}
Saved::~Saved() = default;
Saved::Saved(Saved&&) noexcept = default;
Saved& Saved::operator=(Saved&&) noexcept = default;
bool Saved::empty() const { return !state_->filled; }
std::size_t Saved::nbytes() const { return state_->filled ? state_->bytes : 0; }
Tag Saved::tag() { return {"kda", "det", false, "saved", 1}; }

Workspace::Workspace() : state_(new detail::WorkspaceState) {}
Workspace::Workspace(void* memory, std::size_t bytes)
    : state_(new detail::WorkspaceState{{kda::CallerMemory(memory, bytes)}}) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
std::size_t Workspace::nbytes() const { return state_->memory.size(); }
Tag Workspace::tag() { return {"kda", "det", false, "workspace", 1}; }

bool is_supported(Device device) { return device.type == DeviceType::kCpu; }

std::vector<Implementation> implementations(Device device) { return kda::implementations(device); }

void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace, Saved* saved) {
  kda::WorkspaceMemory own;
  kda::run_forward(operands_of(inputs), settings_of(options), {outputs.out, outputs.final_state},
                   workspace != nullptr ? workspace->state() : own, saved != nullptr ? &saved->state() : nullptr);
}

void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
              const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved) {
  kda::WorkspaceMemory own;
  kda::run_backward(operands_of(inputs), settings_of(options), dout, d_final_state, results_of(gradients),
                    workspace != nullptr ? workspace->state() : own, saved != nullptr ? &saved->state() : nullptr);
}

std::size_t forward_workspace_bytes(const Shape& shape, int threads) {
  return kda::forward_bytes(extents_of(shape), false, threads > 0 ? threads : num_threads());
}

std::size_t backward_workspace_bytes(const Shape& shape, bool recompute, int threads) {
  return kda::backward_bytes(extents_of(shape), recompute, shape.gate_param_grads,
                             threads > 0 ? threads : num_threads());
}

std::size_t saved_bytes(const Shape& shape, SaveMode save_mode) {
  kda::refuse_options("cake_kda_det_train", save_mode != SaveMode::kLight, false, 1, {}, {});
  return kda::saved_bytes(extents_of(shape));
}

}  // namespace cake::kda_det_train
