// ffi functions of cake_kda_nondet_train.
#include "cake/kda_nondet_train.h"

#include "ffi/kda_exports.h"

namespace cake::ffi {
namespace {

/// The package as a type.
struct Package {
  using Inputs = kda_nondet_train::Inputs;
  using Outputs = kda_nondet_train::Outputs;
  using Gradients = kda_nondet_train::Gradients;
  using Options = kda_nondet_train::Options;
  using SaveMode = kda_nondet_train::SaveMode;
  using Shape = kda_nondet_train::Shape;
  using Saved = kda_nondet_train::Saved;
  using Workspace = kda_nondet_train::Workspace;
  using Plan = kda_nondet_train::Plan;

  static void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, const Handle& workspace,
                      const Handle& saved) {
    kda_nondet_train::forward(inputs, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const ConstTensorView& dout, const ConstTensorView& d_final_state,
                       const Gradients& gradients, const Options& options, const Handle& workspace, const Handle& saved,
                       DeterminismPolicy policy) {
    kda_nondet_train::backward(inputs, dout, d_final_state, gradients, options, workspace, saved, policy);
  }
  static std::size_t saved_bytes(const Shape& shape, const Options& options) {
    return kda_nondet_train::saved_bytes(shape, options);
  }
  static std::size_t workspace_bytes(const Shape& shape, const Options& options) {
    return kda_nondet_train::workspace_bytes(shape, options);
  }
  static std::size_t forward_workspace_bytes(const Shape& shape, const Options& options) {
    return kda_nondet_train::forward_workspace_bytes(shape, options);
  }
  static std::vector<Implementation> implementations() { return kda_nondet_train::implementations(); }
};

using Exports = KdaExports<Package>;

}  // namespace
}  // namespace cake::ffi

TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_make_saved, cake::ffi::Exports::make_saved)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_saved_over, cake::ffi::Exports::saved_over)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_saved_seal, cake::ffi::Exports::saved_seal)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_saved_open, cake::ffi::Exports::saved_open)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_saved_nbytes, cake::ffi::Exports::saved_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_make_workspace, cake::ffi::Exports::make_workspace)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_workspace_for, cake::ffi::Exports::workspace_for)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_workspace_nbytes, cake::ffi::Exports::workspace_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_check_objects, cake::ffi::Exports::check_objects)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_forward, cake::ffi::Exports::forward)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_backward, cake::ffi::Exports::backward_alerting)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_prepare, cake::ffi::Exports::prepare)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_plan_forward, cake::ffi::Exports::plan_forward)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_plan_backward, cake::ffi::Exports::plan_backward_alerting)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_plan_nbytes, cake::ffi::Exports::plan_nbytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_saved_bytes, cake::ffi::Exports::saved_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_workspace_bytes, cake::ffi::Exports::workspace_bytes)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(cake_kda_nondet_train_implementations, cake::ffi::Exports::implementations)
