// ffi functions of cake_kda_nondet_train_kcp.
#include "cake/kda_nondet_train_kcp.h"

#include "ffi/kda_kcp_exports.h"

namespace cake::ffi {
namespace {

/// The package as a type.
struct Package {
  static constexpr const char* kName = "cake_kda_nondet_train_kcp";
  using Inputs = kda_nondet_train_kcp::Inputs;
  using Outputs = kda_nondet_train_kcp::Outputs;
  using Gradients = kda_nondet_train_kcp::Gradients;
  using Options = kda_nondet_train_kcp::Options;
  using SaveMode = kda_nondet_train_kcp::SaveMode;
  using Shape = kda_nondet_train_kcp::Shape;
  using Saved = kda_nondet_train_kcp::Saved;
  using Workspace = kda_nondet_train_kcp::Workspace;
  using Partials = kda_nondet_train_kcp::GateParamPartials;

  static void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      const Handle& workspace, const Handle& saved, const Handle& recompute) {
    kda_nondet_train_kcp::forward(inputs, context, outputs, options, workspace, saved, recompute);
  }
  static void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const ConstTensorView& d_final_state, const Gradients& gradients, const Options& options,
                       const Handle& workspace, const Handle& saved, DeterminismPolicy policy) {
    kda_nondet_train_kcp::backward(inputs, context, dout, d_final_state, gradients, options, workspace, saved, policy);
  }
  static void reduce_gate_param_grads(const kcp::Context& context, const Partials& partials, const TensorView& dA_log,
                                      const TensorView& ddt_bias) {
    kda_nondet_train_kcp::reduce_gate_param_grads(context, partials, dA_log, ddt_bias);
  }
  static std::size_t saved_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
    return kda_nondet_train_kcp::saved_bytes(context, shape, options);
  }
  static std::size_t forward_workspace_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
    return kda_nondet_train_kcp::forward_workspace_bytes(context, shape, options);
  }
  static std::size_t workspace_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
    return kda_nondet_train_kcp::workspace_bytes(context, shape, options);
  }
  static std::size_t handoff_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
    return kda_nondet_train_kcp::handoff_bytes(context, shape, options);
  }
  static kcp::CommBytes comm_bytes(const kcp::Context& context, const Shape& shape, const Options& options) {
    return kda_nondet_train_kcp::comm_bytes(context, shape, options);
  }
  static std::vector<Implementation> implementations() { return kda_nondet_train_kcp::implementations(); }
};

using Exports = KdaKcpExports<Package>;

}  // namespace
}  // namespace cake::ffi

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_make_saved, cake::ffi::Exports::make_saved)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_saved_over, cake::ffi::Exports::saved_over)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_saved_seal, cake::ffi::Exports::saved_seal)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_saved_open, cake::ffi::Exports::saved_open)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_saved_nbytes, cake::ffi::Exports::saved_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_make_workspace, cake::ffi::Exports::make_workspace)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_workspace_of_bytes, cake::ffi::Exports::workspace_of_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_workspace_nbytes, cake::ffi::Exports::workspace_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_forward, cake::ffi::Exports::forward)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_backward, cake::ffi::Exports::backward_alerting)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_make_partials, cake::ffi::Exports::make_partials)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_partials_nbytes, cake::ffi::Exports::partials_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_local_grads, cake::ffi::Exports::local_grads)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_reduce_gate_param_grads,
                              cake::ffi::Exports::reduce_gate_param_grads)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_saved_bytes, cake::ffi::Exports::saved_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_workspace_bytes, cake::ffi::Exports::workspace_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_comm_bytes, cake::ffi::Exports::comm_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_implementations, cake::ffi::Exports::implementations)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_handoff_stats, cake::ffi::Exports::handoff_stats)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_kcp_handoff_bytes, cake::ffi::Exports::handoff_bytes)
