#include "kda_op.h"

#include "cake/core/error.h"
#include "cake/kda_det_train.h"
#include "cake/kda_nondet_train.h"

namespace cake::train_lm {
namespace {

/// The packages as types for one template. The user named the package, so the nondet alert follows the thread's
/// default.
struct Det {
  static constexpr const char* kName = kDefaultPackage;
  using Inputs = kda_det_train::Inputs;
  using Outputs = kda_det_train::Outputs;
  using Gradients = kda_det_train::Gradients;
  using Options = kda_det_train::Options;
  using Saved = kda_det_train::Saved;
  using Workspace = kda_det_train::Workspace;

  static void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace,
                      Saved* saved) {
    kda_det_train::forward(inputs, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const ConstTensorView& dout, const Gradients& gradients,
                       const Options& options, Workspace* workspace, const Saved* saved) {
    kda_det_train::backward(inputs, dout, {}, gradients, options, workspace, saved);
  }
};

struct Nondet {
  static constexpr const char* kName = kNondetPackage;
  using Inputs = kda_nondet_train::Inputs;
  using Outputs = kda_nondet_train::Outputs;
  using Gradients = kda_nondet_train::Gradients;
  using Options = kda_nondet_train::Options;
  using Saved = kda_nondet_train::Saved;
  using Workspace = kda_nondet_train::Workspace;

  static void forward(const Inputs& inputs, const Outputs& outputs, const Options& options, Workspace* workspace,
                      Saved* saved) {
    kda_nondet_train::forward(inputs, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const ConstTensorView& dout, const Gradients& gradients,
                       const Options& options, Workspace* workspace, const Saved* saved) {
    kda_nondet_train::backward(inputs, dout, {}, gradients, options, workspace, saved);
  }
};

template <class Calls>
class Op final : public KdaOp {
 public:
  explicit Op(std::shared_ptr<typename Calls::Workspace> workspace) : workspace_(std::move(workspace)) {}

  void forward(const KdaInputs& in, const TensorView& out) override {
    typename Calls::Outputs outputs;
    outputs.out = out;
    Calls::forward(inputs(in), outputs, options(), workspace_.get(), &saved_);
  }

  void backward(const KdaInputs& in, const ConstTensorView& dout, const KdaGradients& d) override {
    typename Calls::Gradients gradients;
    gradients.dq = d.q;
    gradients.dk = d.k;
    gradients.dv = d.v;
    gradients.dg = d.g;
    gradients.dbeta = d.beta;
    gradients.dA_log = d.A_log;
    gradients.ddt_bias = d.dt_bias;
    Calls::backward(inputs(in), dout, gradients, options(), workspace_.get(), &saved_);
  }

 private:
  static typename Calls::Options options() {
    typename Calls::Options o;
    o.use_gate_in_kernel = true;
    o.use_qk_l2norm_in_kernel = true;
    o.use_beta_sigmoid_in_kernel = true;
    return o;
  }

  static typename Calls::Inputs inputs(const KdaInputs& in) {
    typename Calls::Inputs i;
    i.q = in.q;
    i.k = in.k;
    i.v = in.v;
    i.g = in.g;
    i.beta = in.beta;
    i.cu_seqlens = in.cu_seqlens;
    i.A_log = in.A_log;
    i.dt_bias = in.dt_bias;
    return i;
  }

  std::shared_ptr<typename Calls::Workspace> workspace_;
  typename Calls::Saved saved_;
};

template <class Calls>
class Package final : public KdaPackage {
 public:
  std::unique_ptr<KdaOp> make_op() override { return std::make_unique<Op<Calls>>(workspace_); }

 private:
  std::shared_ptr<typename Calls::Workspace> workspace_ = std::make_shared<typename Calls::Workspace>();
};

}  // namespace

std::unique_ptr<KdaPackage> make_kda_package(const std::string& module) {
  if (module == Det::kName) return std::make_unique<Package<Det>>();
  if (module == Nondet::kName) return std::make_unique<Package<Nondet>>();
  throw NotSupported("package: got \"" + module + "\", which this build does not have; expected " + Det::kName +
                     " or " + Nondet::kName);
}

}  // namespace cake::train_lm
