// cake_kda_nondet_train: binds the KDA family to the order in which tasks finish.
#include "cake/kda_nondet_train.h"

#include "packages/kda_package.h"

namespace cake::kda_nondet_train {
namespace detail {
struct SavedState : kda::SavedSet {};
struct WorkspaceState : kda::WorkspaceMemory {};
struct PlanState : kda::PlanRecord {
  using kda::PlanRecord::PlanRecord;
};
}  // namespace detail

namespace {

using Order = kda::AnyOrder;

void run_backward(const Inputs& inputs, const kda::Settings& settings, const kda::CallOptions& options,
                  const kda::BackwardArguments& arguments, kda::WorkspaceMemory& workspace, const kda::SavedSet* saved,
                  std::optional<DeterminismPolicy> policy) {
  kda::run_backward<Order>(kda::operands_of(inputs), settings, options, arguments, workspace, saved, [&] {
    alert_not_deterministic("cake::kda_nondet_train::backward", policy.value_or(default_determinism_policy()),
                            "DeterminismPolicy::kForbid");
  });
}

}  // namespace

Saved::Saved() : state_(new detail::SavedState) {}
Saved::Saved(void* memory, std::size_t bytes) : state_(new detail::SavedState{{kda::CallerMemory(memory, bytes)}}) {}
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
Tag Saved::tag() { return {"kda", "nondet", false, "saved", 1}; }

Workspace::Workspace() : state_(new detail::WorkspaceState) {}
Workspace::Workspace(const Shape& shape, const Options& options, bool backward)
    : state_(kda::make_workspace<detail::WorkspaceState, Order>(shape, options, backward)) {}
Workspace::Workspace(void* memory, std::size_t bytes)
    : state_(new detail::WorkspaceState{{kda::CallerMemory(memory, bytes)}}) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;
std::size_t Workspace::nbytes() const { return state_->memory.size(); }
Tag Workspace::tag() { return {"kda", "nondet", false, "workspace", 1}; }

Plan::Plan(const Inputs& inputs, const Outputs& outputs, const ConstTensorView& dout,
           const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options)
    : state_(new detail::PlanState(kda::operands_of(inputs), kda::settings_of(options), kda::call_options_of(options),
                                   {outputs.out, outputs.final_state},
                                   kda::arguments_of(dout, d_final_state, gradients), kda::backward_bytes<Order>)) {}
Plan::Plan(const Inputs& inputs, const Outputs& outputs, const Options& options)
    : state_(new detail::PlanState(kda::operands_of(inputs), kda::settings_of(options), kda::call_options_of(options),
                                   {outputs.out, outputs.final_state}, std::nullopt, kda::backward_bytes<Order>)) {}
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
std::size_t Plan::nbytes() const { return state_->nbytes(); }
Tag Plan::tag() { return {"kda", "nondet", false, "plan", 1}; }

void Plan::forward(const Inputs& inputs, const Outputs& outputs) {
  const kda::Operands operands = kda::operands_of(inputs);
  const kda::ForwardResults results{outputs.out, outputs.final_state};
  state_->check(operands, results);
  kda::run_forward(operands, state_->settings(), state_->options(), results, state_->workspace(), state_->saved());
}

void Plan::backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                    const Gradients& gradients, std::optional<DeterminismPolicy> policy) {
  const kda::BackwardArguments arguments = kda::arguments_of(dout, d_final_state, gradients);
  state_->check(kda::operands_of(inputs), arguments);
  run_backward(inputs, state_->settings(), state_->options(), arguments, state_->workspace(), state_->saved(), policy);
}

bool is_supported(Device device) { return device.type == DeviceType::kCpu; }

std::vector<Implementation> implementations(Device device) { return kda::implementations(device); }

void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace, Saved* saved) {
  kda::WorkspaceMemory own;
  kda::run_forward(kda::operands_of(inputs), kda::settings_of(options), kda::call_options_of(options),
                   {outputs.out, outputs.final_state}, workspace != nullptr ? workspace->state() : own,
                   saved != nullptr ? &saved->state() : nullptr);
}

void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, const Handle& workspace,
             const Handle& saved) {
  const auto held_workspace = kda::object_of<Workspace>(workspace, "workspace");
  const auto held_saved = kda::object_of<Saved>(saved, "saved");
  forward(inputs, outputs, options, held_workspace.get(), held_saved.get());
}

void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
              const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved,
              std::optional<DeterminismPolicy> policy) {
  kda::WorkspaceMemory own;
  run_backward(inputs, kda::settings_of(options), kda::call_options_of(options),
               kda::arguments_of(dout, d_final_state, gradients), workspace != nullptr ? workspace->state() : own,
               saved != nullptr ? &saved->state() : nullptr, policy);
}

void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
              const Gradients& gradients, const Options& options, const Handle& workspace, const Handle& saved,
              std::optional<DeterminismPolicy> policy) {
  const auto held_saved = kda::object_of<Saved>(saved, "saved");
  const auto held_workspace = kda::object_of<Workspace>(workspace, "workspace");
  backward(inputs, dout, d_final_state, gradients, options, held_workspace.get(), held_saved.get(), policy);
}

Handle make_handle(std::shared_ptr<Saved> saved) { return {Saved::tag(), std::move(saved)}; }
Handle make_handle(std::shared_ptr<Workspace> workspace) { return {Workspace::tag(), std::move(workspace)}; }

std::size_t forward_workspace_bytes(const Shape& shape, const Options& options, bool saving, int threads) {
  return kda::forward_bytes_of(shape, options, saving, threads);
}

std::size_t backward_workspace_bytes(const Shape& shape, bool recompute, const Options& options, int threads) {
  return kda::backward_bytes_of<Order>(shape, recompute, options, threads);
}

std::size_t workspace_bytes(const Shape& shape, const Options& options, int threads) {
  return kda::workspace_bytes_of<Order>(shape, options, threads);
}

std::size_t saved_bytes(const Shape& shape, const Options& options) {
  return kda::saved_bytes(kda::sizes_of(shape, options).extents, options.save_mode == SaveMode::kTape);
}

}  // namespace cake::kda_nondet_train
