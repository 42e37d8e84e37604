// cake_kda_nondet_train_kcp: binds the KDA family over ranks to segments that end at ranks and to the order in
// which tasks finish.
#include "cake/kda_nondet_train_kcp.h"

#include "cake/core/determinism.h"
#include "packages/kda_kcp_package.h"

namespace cake::kda_nondet_train_kcp {
namespace detail {
struct PartialsState : kda::KcpPartials {};
struct SavedState : kda::KcpSavedSet {};
struct WorkspaceState : kda::WorkspaceMemory, kda::KcpHandoff {};
}  // namespace detail

namespace {

using Order = kda::AnyOrder;
constexpr kda::KcpPackage kPackage{"cake_kda_nondet_train_kcp", kda::rank_plan};

void run_backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                  const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
                  const kda::ResolveObjects& objects, std::optional<DeterminismPolicy> policy) {
  kda::run_kcp_backward<Order>(
      kPackage, kda::kcp_operands_of(inputs), kda::settings_of(options), context, kda::kcp_options_of(options),
      kda::kcp_arguments_of(dout, d_final_state, gradients), kda::state_of(gradients.gate_params), objects, [&] {
        alert_not_deterministic("cake::kda_nondet_train_kcp::backward", policy.value_or(default_determinism_policy()),
                                "DeterminismPolicy::kForbid");
      });
}

}  // namespace

GateParamPartials::GateParamPartials() : state_(new detail::PartialsState) {}
GateParamPartials::~GateParamPartials() = default;
GateParamPartials::GateParamPartials(GateParamPartials&&) noexcept = default;
GateParamPartials& GateParamPartials::operator=(GateParamPartials&&) noexcept = default;
bool GateParamPartials::empty() const { return !state_->filled; }
std::size_t GateParamPartials::nbytes() const { return state_->memory.size(); }
std::vector<GateParamPartial> GateParamPartials::partials() const {
  return kda::partials_of<GateParamPartial>(*state_);
}
void GateParamPartials::local_grads(const TensorView& dA_log, const TensorView& ddt_bias) const {
  kda::local_kcp_grads(*state_, dA_log, ddt_bias);
}
Tag GateParamPartials::tag() { return {"kda", "nondet", true, "partials", 1}; }

Saved::Saved() : state_(new detail::SavedState) {}
Saved::Saved(void* memory, std::size_t bytes) : state_(new detail::SavedState{{{kda::CallerMemory(memory, bytes)}}}) {}
Saved::~Saved() = default;
Saved::Saved(Saved&&) noexcept = default;
Saved& Saved::operator=(Saved&&) noexcept = default;
bool Saved::empty() const { return !state_->filled; }
std::size_t Saved::nbytes() const { return state_->filled ? state_->bytes : 0; }
std::string Saved::record() const { return kda::saved_record(tag(), *state_); }
Saved Saved::from_record(void* memory, std::size_t bytes, const std::string& record) {
  Saved saved(memory, bytes);
  kda::restore_saved(*saved.state_, tag(), record);
  return saved;
}
Tag Saved::tag() { return {"kda", "nondet", true, "saved", 1}; }

Workspace::Workspace() : state_(new detail::WorkspaceState) {}
Workspace::Workspace(void* memory, std::size_t bytes)
    : state_(new detail::WorkspaceState{{kda::CallerMemory(memory, bytes)}, {}}) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
std::size_t Workspace::nbytes() const { return kda::workspace_bytes_held(*state_); }
HandoffStats Workspace::handoff_stats() const {
  const kda::KcpHandoff& h = *state_;
  return {h.save, h.bound, h.refused_memory, h.refused_overwritten, h.refused_workspace, h.refused_option};
}
Tag Workspace::tag() { return {"kda", "nondet", true, "workspace", 1}; }

bool is_supported(Device device) { return device.type == DeviceType::kCpu; }

std::vector<Implementation> implementations(Device device) { return kda::implementations(device); }

void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
             Workspace* workspace, Saved* saved, kcp::RecomputeHandle* recompute) {
  kda::run_kcp_forward(
      kPackage, kda::kcp_operands_of(inputs), kda::settings_of(options), context, kda::kcp_options_of(options),
      {outputs.out, outputs.final_state}, [&]() -> kda::KcpObjects {
        return {kda::state_of(workspace), kda::state_of(saved), recompute, kda::handoff_of(kda::state_of(workspace))};
      });
}

void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
             const Handle& workspace, const Handle& saved, const Handle& recompute) {
  kda::run_kcp_forward(kPackage, kda::kcp_operands_of(inputs), kda::settings_of(options), context,
                       kda::kcp_options_of(options), {outputs.out, outputs.final_state},
                       [&] { return kda::kcp_objects_of<Saved, Workspace>(workspace, saved, recompute); });
}

void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
              const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
              Workspace* workspace, const Saved* saved, std::optional<DeterminismPolicy> policy) {
  run_backward(
      inputs, context, dout, d_final_state, gradients, options,
      [&]() -> kda::KcpObjects {
        return {kda::state_of(workspace), kda::state_of(saved), nullptr, kda::handoff_of(kda::state_of(workspace))};
      },
      policy);
}

void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
              const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
              const Handle& workspace, const Handle& saved, std::optional<DeterminismPolicy> policy) {
  run_backward(
      inputs, context, dout, d_final_state, gradients, options,
      [&] { return kda::kcp_objects_of<Saved, Workspace>(workspace, saved, {}); }, policy);
}

void reduce_gate_param_grads(const kcp::Context& context, const GateParamPartials& partials, const TensorView& dA_log,
                             const TensorView& ddt_bias) {
  kda::reduce_kcp_partials(kPackage, context, partials.state(), dA_log, ddt_bias);
}

Handle make_handle(std::shared_ptr<Saved> saved) { return {Saved::tag(), std::move(saved)}; }
Handle make_handle(std::shared_ptr<Workspace> workspace) { return {Workspace::tag(), std::move(workspace)}; }

std::size_t forward_workspace_bytes(const kcp::Context& context, const Shape& shape, const Options& options,
                                    bool saving, int threads) {
  return kda::kcp_forward_bytes_of(kPackage.plan(context), shape, options, saving, threads);
}

std::size_t backward_workspace_bytes(const kcp::Context& context, const Shape& shape, bool recompute,
                                     const Options& options, int threads) {
  return kda::kcp_backward_bytes_of<Order>(kPackage.plan(context), shape, recompute, options, threads);
}

std::size_t workspace_bytes(const kcp::Context& context, const Shape& shape, const Options& options, int threads) {
  return std::max({forward_workspace_bytes(context, shape, options, false, threads),
                   backward_workspace_bytes(context, shape, false, options, threads),
                   backward_workspace_bytes(context, shape, true, options, threads)});
}

std::size_t saved_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
  return kda::kcp_saved_bytes(
      kda::kcp_sizes(kPackage.plan(context), kda::kcp_shape_of(shape), kda::kcp_options_of(options)));
}

std::size_t handoff_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
  const kda::KcpOptions chosen = kda::kcp_options_of(options);
  if (!chosen.handoff || chosen.tape) return 0;
  return kda::kcp_handoff_bytes(kda::kcp_sizes(kPackage.plan(context), kda::kcp_shape_of(shape), chosen));
}

kcp::CommBytes comm_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
  return kda::kcp_comm_bytes(
      kda::kcp_sizes(kPackage.plan(context), kda::kcp_shape_of(shape), kda::kcp_options_of(options)),
      !kda::kKeepsPartials<Order>);
}

}  // namespace cake::kda_nondet_train_kcp
