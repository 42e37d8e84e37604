// One rank of a KDA problem over ranks through either package: its share of the operands, results in guarded memory,
// and the calls.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cake/core/parallel.h"
#include "tests/kda/cases.h"
#include "tests/support/kda_kcp_packages.h"

namespace cake::test {

/// Rows of a [1, S, heads, ...] tensor, in the order given.
inline HostTensor pick_rows(const HostTensor& x, const std::vector<std::int64_t>& rows) {
  Shape shape = x.shape;
  shape[1] = static_cast<std::int64_t>(rows.size());
  HostTensor y(x.dtype, shape);
  const std::size_t width = x.shape[1] == 0 ? 0 : x.bytes.size() / static_cast<std::size_t>(x.shape[1]);
  for (std::size_t i = 0; i < rows.size() && width > 0; ++i) {
    std::memcpy(y.bytes.data() + i * width, x.bytes.data() + static_cast<std::size_t>(rows[i]) * width, width);
  }
  return y;
}

inline std::vector<std::int32_t> offsets_of(const KdaProblem& p) { return {p.offsets.begin(), p.offsets.end()}; }

/// Rank with a document's first or last row; rank 0 when it has none.
inline int rank_of_row(const kcp::Partition& partition, std::int64_t document, bool last) {
  const std::int64_t row = last ? partition.length(document) - 1 : 0;
  if (partition.length(document) == 0) return 0;
  for (int r = 0; r < partition.world_size(); ++r) {
    for (const kcp::Fragment& f : partition.fragments(r)) {
      if (f.document == document && f.offset <= row && row < f.offset + f.length) return r;
    }
  }
  return 0;
}

/// How a rank calls its package. In the det package no choice here may change a bit of the results.
struct KcpRun {
  kcp::Exchange exchange = kcp::Exchange::kAuto;
  bool tape = false;
  std::optional<bool> save_transfer{};
  std::optional<kcp::CheckpointKeep> checkpoint_keep{};
  bool recompute = false;  ///< backward without a saved set
  int threads = 1;
  std::optional<CpuIsa> isa{};
  std::optional<std::uint64_t> shuffle{};
  Memory memory = Memory::kLibrary;
  std::uint32_t fill = kNanPattern;
  std::size_t misalignment = 1;
  Layout inputs = Layout::kContiguous, outputs = Layout::kContiguous;
  double poison = __builtin_nan("");
};

/// Sums by (document, segment).
using Partials = std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>>;

/// What one rank's calls gave.
struct RankResults {
  KdaResults tensors;
  Partials partials;
};

/// One rank's calls of a package, all arguments correct until a test spoils one. The problem and the context must
/// outlive it. States that this rank must not read are NaN.
template <class P>
class RankCall {
 public:
  RankCall(const KdaProblem& problem, const kcp::Context& on, const KcpRun& run = {})
      : p(problem), context(on), how(run) {
    const std::vector<std::int64_t> rows = context.partition().global_rows(context.rank());
    const auto share = [&](const HostTensor& x) { return lay_out(pick_rows(x, rows)); };
    inputs.q = share(p.q);
    inputs.k = share(p.k);
    inputs.v = share(p.v);
    inputs.g = share(p.g);
    inputs.beta = share(p.beta);
    dout = share(p.dout);
    if (p.initial_state) inputs.initial_state = lay_out(own_states(*p.initial_state, false));
    if (p.d_final_state) d_final_state = lay_out(own_states(*p.d_final_state, true));
    if (p.A_log) inputs.A_log = lay_out(*p.A_log);
    if (p.dt_bias) inputs.dt_bias = lay_out(*p.dt_bias);
    options = options_for(p.spec.options, how);
    make_results(static_cast<std::int64_t>(rows.size()));
  }

  void forward(kcp::RecomputeHandle* handle = nullptr) {
    const Scopes scopes(how);
    cake_forward(handle);
  }
  void backward() {
    const Scopes scopes(how);
    backward_through(workspace, saved);
  }
  /// Totals of the gate parameters' gradients, where the backward was asked for them.
  void reduce() {
    if (gradients.gate_params == nullptr) return;
    const Scopes scopes(how);
    reduce_gate_param_grads(context, partials, dA_log, ddt_bias);
  }

  /// Everything so far; fails the test when a byte outside a result was written.
  RankResults results() const {
    RankResults r;
    for (const auto& [name, tensor] : made_) {
      EXPECT_TRUE(tensor->guards_intact()) << name << ": bytes outside the tensor were written";
      r.tensors.emplace(name, tensor->gather());
    }
    if (!partials.empty()) {
      const std::size_t count = static_cast<std::size_t>(2 * p.spec.HV * ((p.spec.K + 15) / 16 * 16));
      for (const auto& x : partials.partials()) {
        const bool fresh = r.partials.emplace(std::pair(x.document, x.segment), Sums(x.sums, x.sums + count)).second;
        EXPECT_TRUE(fresh) << "two partials of document " << x.document << ", segment " << x.segment;
      }
    }
    return r;
  }
  HostTensor result(const std::string& name) const { return made_.at(name)->gather(); }
  /// Sets every result to `value`, as they are before the first call.
  void fill(double value) {
    how.poison = value;
    for (const auto& [name, tensor] : made_) tensor->fill(value);
  }
  /// True while no result has been written (after fill with a number).
  bool untouched() const {
    for (const auto& [name, tensor] : made_) {
      const HostTensor now = tensor->gather();
      const double expected = HostTensor(now.dtype, {1}, {how.poison}).at(0);
      for (const double x : now.doubles()) {
        if (x != expected) return false;
      }
      if (!tensor->guards_intact()) return false;
    }
    return true;
  }
  typename P::Shape shape() const { return shape_of(p); }

  static typename P::Shape shape_of(const KdaProblem& p) {
    typename P::Shape s;
    s.H = p.spec.H;
    s.HV = p.spec.HV;
    s.K = p.spec.K;
    s.V = p.spec.V;
    s.dtype = p.q.dtype;
    s.gate_dtype = p.g.dtype;
    s.beta_dtype = p.beta.dtype;
    s.gate_param_grads = p.A_log.has_value() || p.dt_bias.has_value();
    s.initial_state = p.initial_state.has_value();
    s.initial_state = p.initial_state.has_value();
    return s;
  }
  static typename P::Options options_for(const kda_det_train::Options& from, const KcpRun& how) {
    typename P::Options o;
    o.scale = from.scale;
    o.use_gate_in_kernel = from.use_gate_in_kernel;
    o.lower_bound = from.lower_bound;
    o.use_qk_l2norm_in_kernel = from.use_qk_l2norm_in_kernel;
    o.use_beta_sigmoid_in_kernel = from.use_beta_sigmoid_in_kernel;
    o.allow_neg_eigval = from.allow_neg_eigval;
    o.save_mode = how.tape ? P::SaveMode::kTape : P::SaveMode::kLight;
    o.exchange = how.exchange;
    o.save_transfer = how.save_transfer;
    o.checkpoint_keep = how.checkpoint_keep;
    return o;
  }
  static typename P::Options options_of(const KdaProblem& p, const KcpRun& how) {
    return options_for(p.spec.options, how);
  }

  const KdaProblem& p;
  const kcp::Context& context;
  KcpRun how;
  typename P::Inputs inputs;
  typename P::Outputs outputs;
  typename P::Gradients gradients;
  typename P::Options options;
  typename P::GateParamPartials partials;
  ConstTensorView dout, d_final_state;
  TensorView dA_log, ddt_bias;
  typename P::Workspace* workspace = nullptr;
  typename P::Saved* saved = nullptr;

 private:
  using Sums = std::vector<float>;

  /// Threads, instruction set and task order of this rank.
  struct Scopes {
    explicit Scopes(const KcpRun& how) : threads(how.threads) {
      if (how.isa) isa.emplace(*how.isa);
      if (how.shuffle) shuffle.emplace(*how.shuffle);
    }
    ScopedNumThreads threads;
    std::optional<ScopedCpuIsa> isa;
    std::optional<ScopedTaskShuffle> shuffle;
  };

  void cake_forward(kcp::RecomputeHandle* handle) {
    using cake::kda_det_train_kcp::forward;
    using cake::kda_nondet_train_kcp::forward;
    forward(inputs, context, outputs, options, workspace, saved, handle);
  }
  void backward_through(typename P::Workspace* w, const typename P::Saved* s) {
    using cake::kda_det_train_kcp::backward;
    using cake::kda_nondet_train_kcp::backward;
    backward(inputs, context, dout, d_final_state, gradients, options, w, s);
  }

  ConstTensorView lay_out(const HostTensor& x) {
    held_.push_back(std::make_unique<LaidOutTensor>(x, how.inputs));
    return held_.back()->view();
  }
  /// The states this rank reads, the others NaN.
  HostTensor own_states(const HostTensor& states, bool last) const {
    HostTensor own = states;
    const std::int64_t width = p.N == 0 ? 0 : states.numel() / p.N;
    for (std::int64_t d = 0; d < p.N; ++d) {
      if (rank_of_row(context.partition(), d, last) == context.rank()) continue;
      for (std::int64_t i = 0; i < width; ++i) own.set(d * width + i, __builtin_nan(""));
    }
    return own;
  }
  TensorView make(const std::string& name, DType dtype, const Shape& shape) {
    auto tensor = std::make_unique<LaidOutTensor>(dtype, shape, how.outputs);
    tensor->fill(dtype == DType::kFloat16 && how.poison > 6e4 ? 6e4 : how.poison);
    return made_.emplace(name, std::move(tensor)).first->second->view();
  }
  void make_results(std::int64_t rows) {
    const auto& s = p.spec;
    const Shape qk = {1, rows, s.H, s.K}, v = {1, rows, s.HV, s.V}, states = {p.N, s.HV, s.K, s.V};
    outputs.out = make("out", p.v.dtype, v);
    if (s.final_state) outputs.final_state = make("final_state", DType::kFloat32, states);
    gradients.dq = make("dq", p.q.dtype, qk);
    gradients.dk = make("dk", p.k.dtype, qk);
    gradients.dv = make("dv", p.v.dtype, v);
    gradients.dg = make("dg", p.g.dtype, {1, rows, s.HV, s.K});
    gradients.dbeta = make("dbeta", p.beta.dtype, {1, rows, s.HV});
    if (p.initial_state) gradients.dinitial_state = make("dinitial_state", DType::kFloat32, states);
    if (p.A_log) dA_log = make("dA_log", DType::kFloat32, p.A_log->shape);
    if (p.dt_bias) ddt_bias = make("ddt_bias", DType::kFloat32, p.dt_bias->shape);
    if (p.A_log || p.dt_bias) gradients.gate_params = &partials;
  }

  std::vector<std::unique_ptr<LaidOutTensor>> held_;
  std::map<std::string, std::unique_ptr<LaidOutTensor>> made_;
};

/// Memory of a workspace or a saved set as KcpRun asks for it.
template <class Object>
class CallObject {
 public:
  CallObject(const KcpRun& how, std::size_t bytes, const char* what) : what_(what) {
    if (how.memory == Memory::kNone) return;
    if (how.memory == Memory::kCaller) {
      memory_.emplace(bytes, how.fill, how.misalignment);
      object_.emplace(memory_->data(), memory_->size());
    } else {
      object_.emplace();
    }
  }
  ~CallObject() {
    if (memory_) {
      EXPECT_TRUE(memory_->guards_intact()) << what_ << ": bytes outside were written";
    }
  }
  CallObject(const CallObject&) = delete;
  CallObject& operator=(const CallObject&) = delete;
  Object* get() { return object_ ? &*object_ : nullptr; }

 private:
  const char* what_;
  std::optional<GuardedMemory> memory_;
  std::optional<Object> object_;
};

/// Forward, backward and the reduction of the gate parameters' gradients on one rank.
template <class P>
RankResults run_rank(const KdaProblem& p, const kcp::Context& context, const KcpRun& how = {}) {
  RankCall<P> call(p, context, how);
  const auto shape = call.shape();
  const auto& options = call.options;
  KcpRun saved_how = how;
  if (how.memory == Memory::kNone) saved_how.memory = Memory::kLibrary;  // a saved set has to live somewhere
  CallObject<typename P::Saved> saved(saved_how, saved_bytes(context, shape, options), "saved set");
  {
    CallObject<typename P::Workspace> workspace(
        how, forward_workspace_bytes(context, shape, options, !how.recompute, how.threads), "forward workspace");
    call.workspace = workspace.get();
    call.saved = how.recompute ? nullptr : saved.get();
    call.forward();
  }
  {
    CallObject<typename P::Workspace> workspace(
        how, backward_workspace_bytes(context, shape, how.recompute, options, how.threads), "backward workspace");
    call.workspace = workspace.get();
    call.backward();
  }
  call.reduce();
  return call.results();
}

/// All ranks of a problem as threads, each with a context of its own.
template <class P>
std::vector<RankResults> run_ranks(const KdaProblem& p, const kcp::Partition& partition, const KcpRun& how = {}) {
  std::vector<RankResults> ranks(static_cast<std::size_t>(partition.world_size()));
  ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
    const kcp::Context context(partition, comm);
    ranks[static_cast<std::size_t>(comm.rank())] = run_rank<P>(p, context, how);
  });
  return ranks;
}

}  // namespace cake::test
