// The sequence operator of the trainer: KDA training by the package the user names with --package, or by the package
// over ranks of the same mode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cake/core/tensor.h"
#include "cake/kcp.h"

namespace cake::train_lm {

/// Tensors of one KDA call over the T rows of a packed batch that a rank holds, or their gradients. Views are fp32 with
/// any strides; raw gate with softplus (A_log, dt_bias), L2-normalised q and k, beta given as a logit.
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
  ConstTensorView cu_seqlens;             ///< int32 [N + 1], of the whole batch
  const kcp::Context* context = nullptr;  ///< for a package over ranks
};
using KdaGradients = KdaTensors<TensorView>;

/// One layer's KDA: keeps between forward and backward what the backward reads.
class KdaOp {
 public:
  virtual ~KdaOp() = default;
  /// out [1, T, H, V].
  virtual void forward(const KdaInputs& in, const TensorView& out) = 0;
  /// All gradients into the views of `d`, after the forward of the same operands; `dout` [1, T, H, V]. Those of A_log
  /// and dt_bias are of the whole batch, with equal bits on every rank where the package is deterministic.
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

/// The end of the name of a package over ranks.
inline constexpr const char* kRanksSuffix = "_kcp";

/// True for the name of a package over ranks.
bool is_package_over_ranks(const std::string& module);
/// The package on one rank of the same family and mode: the name without _kcp.
std::string package_on_one_rank(const std::string& module);

/// The package of a module name; `over_ranks` takes the one over ranks of the same mode. One over ranks reads
/// KdaInputs::context, and all ranks make the same calls. Throws NotSupported naming the module and the ones this build
/// has.
std::unique_ptr<KdaPackage> make_kda_package(const std::string& module, bool over_ranks = false);

}  // namespace cake::train_lm
