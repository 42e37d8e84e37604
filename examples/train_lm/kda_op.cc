#include "kda_op.h"

#include "cake/core/error.h"
#include "cake/kda_det_train.h"

namespace cake::train_lm {
namespace {

namespace kda = kda_det_train;

kda::Options options() {
  kda::Options o;
  o.use_gate_in_kernel = true;
  o.use_qk_l2norm_in_kernel = true;
  o.use_beta_sigmoid_in_kernel = true;
  return o;
}

kda::Inputs inputs(const KdaInputs& in) {
  kda::Inputs i;
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

class DetOp final : public KdaOp {
 public:
  explicit DetOp(std::shared_ptr<kda::Workspace> workspace) : workspace_(std::move(workspace)) {}

  void forward(const KdaInputs& in, const TensorView& out) override {
    kda::Outputs outputs;
    outputs.out = out;
    kda::forward(inputs(in), outputs, options(), workspace_.get(), &saved_);
  }

  void backward(const KdaInputs& in, const ConstTensorView& dout, const KdaGradients& d) override {
    kda::Gradients gradients;
    gradients.dq = d.q;
    gradients.dk = d.k;
    gradients.dv = d.v;
    gradients.dg = d.g;
    gradients.dbeta = d.beta;
    gradients.dA_log = d.A_log;
    gradients.ddt_bias = d.dt_bias;
    kda::backward(inputs(in), dout, {}, gradients, options(), workspace_.get(), &saved_);
  }

 private:
  std::shared_ptr<kda::Workspace> workspace_;
  kda::Saved saved_;
};

class DetPackage final : public KdaPackage {
 public:
  std::unique_ptr<KdaOp> make_op() override { return std::make_unique<DetOp>(workspace_); }

 private:
  std::shared_ptr<kda::Workspace> workspace_ = std::make_shared<kda::Workspace>();
};

}  // namespace

std::unique_ptr<KdaPackage> make_kda_package(const std::string& module) {
  if (module == kDefaultPackage) return std::make_unique<DetPackage>();
  throw NotSupported("package: got \"" + module + "\", which this build does not have; expected " + kDefaultPackage);
}

}  // namespace cake::train_lm
