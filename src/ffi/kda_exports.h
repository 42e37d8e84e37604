// The ffi functions of a KDA package, for a package given as a type: its structs, classes and functions.
#pragma once

#include <memory>

#include "cake/core/determinism.h"
#include "cake/core/info.h"
#include "ffi/ffi.h"
#include "ffi/saved_image.h"

namespace cake::ffi {

template <class P>
class KdaExports {
 public:
  using Inputs = typename P::Inputs;
  using Options = typename P::Options;

  static HandleRef make_saved() {
    return translated([] { return HandleRef(make_handle(std::make_shared<typename P::Saved>())); });
  }
  /// A saved set in a tensor of at least kSavedHeader + saved_bytes bytes: a forward fills it, then saved_seal.
  static HandleRef saved_over(Tensor memory) {
    return translated([&] {
      const SavedImage image(memory);
      return HandleRef(make_handle(std::make_shared<typename P::Saved>(image.data(), image.bytes())));
    });
  }
  static void saved_seal(Tensor memory, HandleRef saved) {
    translated([&] {
      const auto set = saved->handle.template get<typename P::Saved>(P::Saved::tag(), "saved");
      SavedImage(memory).write(set->record());
    });
  }
  /// The saved set in a tensor that was sealed, or in a copy of it.
  static HandleRef saved_open(Tensor memory) {
    return translated([&] {
      const SavedImage image(memory);
      return HandleRef(make_handle(
          std::make_shared<typename P::Saved>(P::Saved::from_record(image.data(), image.bytes(), image.read()))));
    });
  }
  static int64_t saved_nbytes(HandleRef saved) {
    return translated([&] {
      return static_cast<int64_t>(saved->handle.template get<typename P::Saved>(P::Saved::tag(), "saved")->nbytes());
    });
  }
  static HandleRef make_workspace() {
    return translated([] { return HandleRef(make_handle(std::make_shared<typename P::Workspace>())); });
  }
  static HandleRef workspace_for(OptionMap shape, OptionMap options, bool backward) {
    return translated([&] {
      return HandleRef(
          make_handle(std::make_shared<typename P::Workspace>(shape_of(shape), options_of(options), backward)));
    });
  }
  static int64_t workspace_nbytes(HandleRef workspace) {
    return translated([&] {
      return static_cast<int64_t>(
          workspace->handle.template get<typename P::Workspace>(P::Workspace::tag(), "workspace")->nbytes());
    });
  }
  /// The first checks of a backward: objects of other packages are refused before anything else is looked at.
  static void check_objects(tvm::ffi::Optional<HandleRef> saved, tvm::ffi::Optional<HandleRef> workspace) {
    translated([&] {
      if (const Handle handle = handle_of(saved); !handle.empty()) handle.check(P::Saved::tag(), "saved");
      if (const Handle handle = handle_of(workspace); !handle.empty()) handle.check(P::Workspace::tag(), "workspace");
    });
  }

  static void forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                      MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor out,
                      MaybeTensor final_state, OptionMap options, tvm::ffi::Optional<HandleRef> workspace,
                      tvm::ffi::Optional<HandleRef> saved) {
    translated([&] {
      typename P::Outputs outputs;
      outputs.out = view(out, "out");
      outputs.final_state = view(final_state, "final_state");
      P::forward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias), outputs, options_of(options),
                 handle_of(workspace), handle_of(saved));
    });
  }

  static void backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                       MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor dout,
                       MaybeTensor d_final_state, MaybeTensor dq, MaybeTensor dk, MaybeTensor dv, MaybeTensor dg,
                       MaybeTensor dbeta, MaybeTensor dA_log, MaybeTensor ddt_bias, MaybeTensor dinitial_state,
                       OptionMap options, tvm::ffi::Optional<HandleRef> workspace,
                       tvm::ffi::Optional<HandleRef> saved) {
    translated([&] {
      P::backward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias), const_view(dout, "dout"),
                  const_view(d_final_state, "d_final_state"),
                  gradients(dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state), options_of(options),
                  handle_of(workspace), handle_of(saved));
    });
  }
  /// The same for a nondet package: what its alert does, and in which words.
  static void backward_alerting(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                                MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor dout,
                                MaybeTensor d_final_state, MaybeTensor dq, MaybeTensor dk, MaybeTensor dv,
                                MaybeTensor dg, MaybeTensor dbeta, MaybeTensor dA_log, MaybeTensor ddt_bias,
                                MaybeTensor dinitial_state, OptionMap options, tvm::ffi::Optional<HandleRef> workspace,
                                tvm::ffi::Optional<HandleRef> saved, int64_t policy, tvm::ffi::String entry,
                                tvm::ffi::String setting, tvm::ffi::String advice,
                                tvm::ffi::Optional<tvm::ffi::Function> warn) {
    translated([&] {
      const AlertWords words = alert_words(entry, setting, advice, warn);
      const ScopedAlertWords scope(words);
      P::backward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias), const_view(dout, "dout"),
                  const_view(d_final_state, "d_final_state"),
                  gradients(dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state), options_of(options),
                  handle_of(workspace), handle_of(saved), static_cast<DeterminismPolicy>(policy));
    });
  }

  static HandleRef prepare(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                           MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor out,
                           MaybeTensor final_state, MaybeTensor dout, MaybeTensor d_final_state, MaybeTensor dq,
                           MaybeTensor dk, MaybeTensor dv, MaybeTensor dg, MaybeTensor dbeta, MaybeTensor dA_log,
                           MaybeTensor ddt_bias, MaybeTensor dinitial_state, OptionMap options) {
    return translated([&] {
      const Inputs in = inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias);
      const Options o = options_of(options);
      const typename P::Outputs results{view(out, "out"), view(final_state, "final_state")};
      using Plan = typename P::Plan;
      auto plan = dout.has_value()
                      ? std::make_shared<Plan>(in, results, const_view(dout, "dout"),
                                               const_view(d_final_state, "d_final_state"),
                                               gradients(dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state), o)
                      : std::make_shared<Plan>(in, results, o);
      return HandleRef(Handle(Plan::tag(), std::move(plan)));
    });
  }
  static void plan_forward(HandleRef plan, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                           MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor out,
                           MaybeTensor final_state) {
    translated([&] {
      plan_of(plan)->forward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
                             {view(out, "out"), view(final_state, "final_state")});
    });
  }
  static void plan_backward(HandleRef plan, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, MaybeTensor cu_seqlens,
                            MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor dout,
                            MaybeTensor d_final_state, MaybeTensor dq, MaybeTensor dk, MaybeTensor dv, MaybeTensor dg,
                            MaybeTensor dbeta, MaybeTensor dA_log, MaybeTensor ddt_bias, MaybeTensor dinitial_state) {
    translated([&] {
      plan_of(plan)->backward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
                              const_view(dout, "dout"), const_view(d_final_state, "d_final_state"),
                              gradients(dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state));
    });
  }
  /// The same for a nondet package.
  static void plan_backward_alerting(HandleRef plan, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
                                     MaybeTensor cu_seqlens, MaybeTensor initial_state, MaybeTensor A_log,
                                     MaybeTensor dt_bias, Tensor dout, MaybeTensor d_final_state, MaybeTensor dq,
                                     MaybeTensor dk, MaybeTensor dv, MaybeTensor dg, MaybeTensor dbeta,
                                     MaybeTensor dA_log, MaybeTensor ddt_bias, MaybeTensor dinitial_state,
                                     int64_t policy, tvm::ffi::String entry, tvm::ffi::String setting,
                                     tvm::ffi::String advice, tvm::ffi::Optional<tvm::ffi::Function> warn) {
    translated([&] {
      const AlertWords words = alert_words(entry, setting, advice, warn);
      const ScopedAlertWords scope(words);
      plan_of(plan)->backward(inputs(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
                              const_view(dout, "dout"), const_view(d_final_state, "d_final_state"),
                              gradients(dq, dk, dv, dg, dbeta, dA_log, ddt_bias, dinitial_state),
                              static_cast<DeterminismPolicy>(policy));
    });
  }
  static int64_t plan_nbytes(HandleRef plan) {
    return translated([&] { return static_cast<int64_t>(plan_of(plan)->nbytes()); });
  }
  static tvm::ffi::Array<tvm::ffi::String> implementations() {
    return translated([] { return implementation_lines(P::implementations()); });
  }

  static int64_t saved_bytes(OptionMap shape, OptionMap options) {
    return translated([&] { return static_cast<int64_t>(P::saved_bytes(shape_of(shape), options_of(options))); });
  }
  static int64_t workspace_bytes(OptionMap shape, OptionMap options, bool backward) {
    return translated([&] {
      const auto s = shape_of(shape);
      const Options o = options_of(options);
      return static_cast<int64_t>(backward ? P::workspace_bytes(s, o) : P::forward_workspace_bytes(s, o));
    });
  }

 private:
  static Inputs inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const MaybeTensor& cu_seqlens, const MaybeTensor& initial_state, const MaybeTensor& A_log,
                       const MaybeTensor& dt_bias) {
    Inputs x;
    x.q = const_view(q, "q");
    x.k = const_view(k, "k");
    x.v = const_view(v, "v");
    x.g = const_view(g, "g");
    x.beta = const_view(beta, "beta");
    x.cu_seqlens = const_view(cu_seqlens, "cu_seqlens");
    x.initial_state = const_view(initial_state, "initial_state");
    x.A_log = const_view(A_log, "A_log");
    x.dt_bias = const_view(dt_bias, "dt_bias");
    return x;
  }

  static typename P::Gradients gradients(const MaybeTensor& dq, const MaybeTensor& dk, const MaybeTensor& dv,
                                         const MaybeTensor& dg, const MaybeTensor& dbeta, const MaybeTensor& dA_log,
                                         const MaybeTensor& ddt_bias, const MaybeTensor& dinitial_state) {
    typename P::Gradients d;
    d.dq = view(dq, "dq");
    d.dk = view(dk, "dk");
    d.dv = view(dv, "dv");
    d.dg = view(dg, "dg");
    d.dbeta = view(dbeta, "dbeta");
    d.dA_log = view(dA_log, "dA_log");
    d.ddt_bias = view(ddt_bias, "ddt_bias");
    d.dinitial_state = view(dinitial_state, "dinitial_state");
    return d;
  }

  static std::shared_ptr<typename P::Plan> plan_of(const HandleRef& plan) {
    return plan->handle.template get<typename P::Plan>(P::Plan::tag(), "plan");
  }

  static Options options_of(const OptionMap& map) {
    Options o;
    OptionReader reader(map);
    std::optional<double> scale, lower_bound;
    std::string save_mode = "light";
    reader.take("scale", scale);
    reader.take("lower_bound", lower_bound);
    reader.take("use_gate_in_kernel", o.use_gate_in_kernel);
    reader.take("use_qk_l2norm_in_kernel", o.use_qk_l2norm_in_kernel);
    reader.take("use_beta_sigmoid_in_kernel", o.use_beta_sigmoid_in_kernel);
    reader.take("allow_neg_eigval", o.allow_neg_eigval);
    reader.take("save_mode", save_mode);
    reader.take("lean", o.lean);
    reader.take("tail_passes", o.tail_passes);
    reader.take("batch_tokens", o.batch_tokens);
    reader.take("max_docs_per_batch", o.max_docs_per_batch);
    reader.finish();
    if (scale) o.scale = static_cast<float>(*scale);
    if (lower_bound) o.lower_bound = static_cast<float>(*lower_bound);
    if (save_mode == "tape") {
      o.save_mode = P::SaveMode::kTape;
    } else if (save_mode != "light") {
      throw InvalidArgument("save_mode: got \"" + save_mode + "\", expected light or tape");
    }
    return o;
  }

  static typename P::Shape shape_of(const OptionMap& map) {
    typename P::Shape s;
    OptionReader reader(map);
    reader.take("B", s.B);
    reader.take("S", s.S);
    reader.take("num_docs", s.num_docs);
    reader.take("H", s.H);
    reader.take("HV", s.HV);
    reader.take("K", s.K);
    reader.take("V", s.V);
    reader.take("gate_param_grads", s.gate_param_grads);
    reader.take("cu_seqlens", s.cu_seqlens);
    reader.finish();
    return s;
  }
};

}  // namespace cake::ffi
