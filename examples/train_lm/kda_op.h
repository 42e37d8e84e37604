// The sequence operator of the trainer: KDA training by the package the user names with --package.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cake/core/tensor.h"

namespace cake::train_lm {

/// Tensors of one KDA call over a packed batch of T rows, or their gradients. Views are fp32 with any strides; raw gate
/// with softplus (A_log, dt_bias), L2-normalised q and k, beta given as a logit.
template <class View>
struct KdaTensors {
  View q, k;     ///< [1, T, H, K]
  View v;        ///< [1, T, H, V]
  View g;        ///< [1, T, H, K] raw gate
  View beta;     ///< [1, T, H] logit
  View A_log;    ///< [H]
  View dt_bias;  ///< [H, K]
};

/// Operands of the forward and the backward.
struct KdaInputs : KdaTensors<ConstTensorView> {
  ConstTensorView cu_seqlens;  ///< int32 [N + 1]
};
using KdaGradients = KdaTensors<TensorView>;

/// One layer's KDA: keeps between forward and backward what the backward reads.
class KdaOp {
 public:
  virtual ~KdaOp() = default;
  /// out [1, T, H, V].
  virtual void forward(const KdaInputs& in, const TensorView& out) = 0;
  /// All gradients into the views of `d`, after the forward of the same operands; `dout` [1, T, H, V].
  virtual void backward(const KdaInputs& in, const ConstTensorView& dout, const KdaGradients& d) = 0;
};

/// Makes the operators of a model's layers; they share one workspace.
class KdaPackage {
 public:
  virtual ~KdaPackage() = default;
  virtual std::unique_ptr<KdaOp> make_op() = 0;
};

/// The module used unless the user names another.
inline constexpr const char* kDefaultPackage = "cake_kda_det_train";
/// The one whose gradients may differ in their last bits from run to run.
inline constexpr const char* kNondetPackage = "cake_kda_nondet_train";

/// The package of a module name. Throws NotSupported naming the module and the ones this build has.
std::unique_ptr<KdaPackage> make_kda_package(const std::string& module);

}  // namespace cake::train_lm
