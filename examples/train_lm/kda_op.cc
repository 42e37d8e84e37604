#include "kda_op.h"

#include <string_view>
#include <utility>

#include "cake/core/error.h"
#include "cake/kda_det_train.h"
#include "cake/kda_det_train_kcp.h"
#include "cake/kda_nondet_train.h"
#include "cake/kda_nondet_train_kcp.h"

namespace cake::train_lm {
namespace {

/// The packages as types for one template. The user named the package, so the nondet alert follows the thread's
/// default.
struct Det {
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

struct DetRanks {
  using Inputs = kda_det_train_kcp::Inputs;
  using Outputs = kda_det_train_kcp::Outputs;
  using Gradients = kda_det_train_kcp::Gradients;
  using GateParamPartials = kda_det_train_kcp::GateParamPartials;
  using Options = kda_det_train_kcp::Options;
  using Saved = kda_det_train_kcp::Saved;
  using Workspace = kda_det_train_kcp::Workspace;

  static void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      Workspace* workspace, Saved* saved) {
    kda_det_train_kcp::forward(inputs, context, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved) {
    kda_det_train_kcp::backward(inputs, context, dout, {}, gradients, options, workspace, saved);
  }
  static void reduce(const kcp::Context& context, const GateParamPartials& partials, const TensorView& dA_log,
                     const TensorView& ddt_bias) {
    kda_det_train_kcp::reduce_gate_param_grads(context, partials, dA_log, ddt_bias);
  }
};

struct NondetRanks {
  using Inputs = kda_nondet_train_kcp::Inputs;
  using Outputs = kda_nondet_train_kcp::Outputs;
  using Gradients = kda_nondet_train_kcp::Gradients;
  using GateParamPartials = kda_nondet_train_kcp::GateParamPartials;
  using Options = kda_nondet_train_kcp::Options;
  using Saved = kda_nondet_train_kcp::Saved;
  using Workspace = kda_nondet_train_kcp::Workspace;

  static void forward(const Inputs& inputs, const kcp::Context& context, const Outputs& outputs, const Options& options,
                      Workspace* workspace, Saved* saved) {
    kda_nondet_train_kcp::forward(inputs, context, outputs, options, workspace, saved);
  }
  static void backward(const Inputs& inputs, const kcp::Context& context, const ConstTensorView& dout,
                       const Gradients& gradients, const Options& options, Workspace* workspace, const Saved* saved) {
    kda_nondet_train_kcp::backward(inputs, context, dout, {}, gradients, options, workspace, saved);
  }
  static void reduce(const kcp::Context& context, const GateParamPartials& partials, const TensorView& dA_log,
                     const TensorView& ddt_bias) {
    kda_nondet_train_kcp::reduce_gate_param_grads(context, partials, dA_log, ddt_bias);
  }
};

/// The options and operands that the trainer gives every package.
template <class Options>
Options options_of() {
  Options o;
  o.use_gate_in_kernel = true;
  o.use_qk_l2norm_in_kernel = true;
  o.use_beta_sigmoid_in_kernel = true;
  return o;
}

template <class Inputs>
Inputs operands_of(const KdaInputs& in) {
  Inputs i;
  i.q = in.q;
  i.k = in.k;
  i.v = in.v;
  i.g = in.g;
  i.beta = in.beta;
  i.A_log = in.A_log;
  i.dt_bias = in.dt_bias;
  return i;
}

/// The gradients of rows.
template <class Gradients>
Gradients row_gradients(const KdaGradients& d) {
  Gradients gradients;
  gradients.dq = d.q;
  gradients.dk = d.k;
  gradients.dv = d.v;
  gradients.dg = d.g;
  gradients.dbeta = d.beta;
  return gradients;
}

template <class Calls>
class Op final : public KdaOp {
 public:
  explicit Op(std::shared_ptr<typename Calls::Workspace> workspace) : workspace_(std::move(workspace)) {}

  void forward(const KdaInputs& in, const TensorView& out) override {
    typename Calls::Outputs outputs;
    outputs.out = out;
    Calls::forward(inputs(in), outputs, options_of<typename Calls::Options>(), workspace_.get(), &saved_);
  }

  void backward(const KdaInputs& in, const ConstTensorView& dout, const KdaGradients& d) override {
    auto gradients = row_gradients<typename Calls::Gradients>(d);
    gradients.dA_log = d.A_log;
    gradients.ddt_bias = d.dt_bias;
    Calls::backward(inputs(in), dout, gradients, options_of<typename Calls::Options>(), workspace_.get(), &saved_);
  }

 private:
  static typename Calls::Inputs inputs(const KdaInputs& in) {
    auto i = operands_of<typename Calls::Inputs>(in);
    i.cu_seqlens = in.cu_seqlens;
    return i;
  }

  std::shared_ptr<typename Calls::Workspace> workspace_;
  typename Calls::Saved saved_;
};

/// The same over ranks: the gate parameters' gradients are brought together once per backward.
template <class Calls>
class RanksOp final : public KdaOp {
 public:
  explicit RanksOp(std::shared_ptr<typename Calls::Workspace> workspace) : workspace_(std::move(workspace)) {}

  void forward(const KdaInputs& in, const TensorView& out) override {
    typename Calls::Outputs outputs;
    outputs.out = out;
    Calls::forward(operands_of<typename Calls::Inputs>(in), context(in), outputs, options_of<typename Calls::Options>(),
                   workspace_.get(), &saved_);
  }

  void backward(const KdaInputs& in, const ConstTensorView& dout, const KdaGradients& d) override {
    auto gradients = row_gradients<typename Calls::Gradients>(d);
    gradients.gate_params = &partials_;
    Calls::backward(operands_of<typename Calls::Inputs>(in), context(in), dout, gradients,
                    options_of<typename Calls::Options>(), workspace_.get(), &saved_);
    Calls::reduce(context(in), partials_, d.A_log, d.dt_bias);
  }

 private:
  static const kcp::Context& context(const KdaInputs& in) {
    if (in.context == nullptr) throw InvalidArgument("context: got none, expected the ranks' context of this batch");
    return *in.context;
  }

  std::shared_ptr<typename Calls::Workspace> workspace_;
  typename Calls::Saved saved_;
  typename Calls::GateParamPartials partials_;
};

template <class Calls, template <class> class Operator>
class Package final : public KdaPackage {
 public:
  std::unique_ptr<KdaOp> make_op() override { return std::make_unique<Operator<Calls>>(workspace_); }

 private:
  std::shared_ptr<typename Calls::Workspace> workspace_ = std::make_shared<typename Calls::Workspace>();
};

}  // namespace

bool is_package_over_ranks(const std::string& module) { return module.ends_with(kRanksSuffix); }

std::string package_on_one_rank(const std::string& module) {
  if (!is_package_over_ranks(module)) return module;
  return module.substr(0, module.size() - std::string_view(kRanksSuffix).size());
}

std::unique_ptr<KdaPackage> make_kda_package(const std::string& module, bool over_ranks) {
  const std::string name = package_on_one_rank(module);
  over_ranks = over_ranks || is_package_over_ranks(module);
  if (name == kDefaultPackage) {
    if (over_ranks) return std::make_unique<Package<DetRanks, RanksOp>>();
    return std::make_unique<Package<Det, Op>>();
  }
  if (name == kNondetPackage) {
    if (over_ranks) return std::make_unique<Package<NondetRanks, RanksOp>>();
    return std::make_unique<Package<Nondet, Op>>();
  }
  throw NotSupported("package: got \"" + module + "\", which this build does not have; expected " + kDefaultPackage +
                     " or " + kNondetPackage + ", or one of them with " + kRanksSuffix + " at its end");
}

}  // namespace cake::train_lm
