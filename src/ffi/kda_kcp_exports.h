// The ffi functions of a KDA package over ranks, for a package given as a type: its structs, classes and functions.
#pragma once

#include <algorithm>
#include <memory>

#include "cake/core/determinism.h"
#include "cake/core/info.h"
#include "cake/kcp.h"
#include "ffi/ffi.h"
#include "ffi/saved_image.h"

namespace cake::ffi {

template <class P>
class KdaKcpExports {
 public:
  using Inputs = typename P::Inputs;
  using Options = typename P::Options;
  using Saved = typename P::Saved;
  using Workspace = typename P::Workspace;
  using Partials = typename P::Partials;
  using MaybeHandle = tvm::ffi::Optional<HandleRef>;

  static HandleRef make_saved() {
    return translated([] { return HandleRef(make_handle(std::make_shared<Saved>())); });
  }
  /// A saved set in a tensor of at least kSavedHeader + saved_bytes bytes: a forward fills it, then saved_seal.
  static HandleRef saved_over(Tensor memory) {
    return translated([&] {
      const SavedImage image(memory);
      return HandleRef(make_handle(std::make_shared<Saved>(image.data(), image.bytes())));
    });
  }
  static void saved_seal(Tensor memory, HandleRef saved) {
    translated([&] { SavedImage(memory).write(saved->handle.template get<Saved>(Saved::tag(), "saved")->record()); });
  }
  /// The saved set in a tensor that was sealed, or in a copy of it.
  static HandleRef saved_open(Tensor memory) {
    return translated([&] {
      const SavedImage image(memory);
      return HandleRef(
          make_handle(std::make_shared<Saved>(Saved::from_record(image.data(), image.bytes(), image.read()))));
    });
  }
  static int64_t saved_nbytes(HandleRef saved) {
    return translated(
        [&] { return static_cast<int64_t>(saved->handle.template get<Saved>(Saved::tag(), "saved")->nbytes()); });
  }
  static HandleRef make_workspace() {
    return translated([] { return HandleRef(make_handle(std::make_shared<Workspace>())); });
  }
  /// One that never grows.
  static HandleRef workspace_of_bytes(int64_t bytes) {
    return translated([&] {
      if (bytes < 0) throw InvalidArgument("bytes: got " + std::to_string(bytes) + ", expected 0 or more");
      return HandleRef(make_handle(SizedWorkspace::make(static_cast<std::size_t>(bytes))));
    });
  }
  static int64_t workspace_nbytes(HandleRef workspace) {
    return translated([&] { return static_cast<int64_t>(workspace_of(workspace)->nbytes()); });
  }
  /// save, bound, refused_memory, refused_overwritten, refused_workspace, refused_option.
  static tvm::ffi::Array<int64_t> handoff_stats(HandleRef workspace) {
    return translated([&] {
      const auto s = workspace_of(workspace)->handoff_stats();
      tvm::ffi::Array<int64_t> list;
      for (const std::uint64_t n :
           {s.save, s.bound, s.refused_memory, s.refused_overwritten, s.refused_workspace, s.refused_option}) {
        list.push_back(static_cast<int64_t>(n));
      }
      return list;
    });
  }

  /// Objects of other packages are refused with all ranks, inside the call's agreement.
  static void forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, HandleRef context, MaybeTensor initial_state,
                      MaybeTensor A_log, MaybeTensor dt_bias, Tensor out, MaybeTensor final_state, OptionMap options,
                      MaybeHandle workspace, MaybeHandle saved, MaybeHandle recompute) {
    translated([&] {
      const auto ctx = context_of(context);
      typename P::Outputs outputs;
      const Inputs in = agreed(*ctx, recompute, [&] {
        outputs.out = view(out, "out");
        outputs.final_state = view(final_state, "final_state");
        return inputs(q, k, v, g, beta, initial_state, A_log, dt_bias);
      });
      const Options o = agreed(*ctx, recompute, [&] { return options_of(options); });
      P::forward(in, *ctx, outputs, o, handle_of(workspace), handle_of(saved), handle_of(recompute));
    });
  }

  static void backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, HandleRef context,
                       MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor dout,
                       MaybeTensor d_final_state, MaybeTensor dq, MaybeTensor dk, MaybeTensor dv, MaybeTensor dg,
                       MaybeTensor dbeta, MaybeTensor dinitial_state, MaybeHandle partials, OptionMap options,
                       MaybeHandle workspace, MaybeHandle saved) {
    translated([&] {
      const auto ctx = context_of(context);
      Arguments x = agreed(*ctx, {}, [&] {
        return Arguments{inputs(q, k, v, g, beta, initial_state, A_log, dt_bias),
                         const_view(dout, "dout"),
                         const_view(d_final_state, "d_final_state"),
                         gradients(dq, dk, dv, dg, dbeta, dinitial_state),
                         maybe_partials(partials),
                         options_of(options)};
      });
      x.gradients.gate_params = x.partials.get();
      P::backward(x.inputs, *ctx, x.dout, x.d_final_state, x.gradients, x.options, handle_of(workspace),
                  handle_of(saved));
    });
  }
  /// The same for a nondet package: what its alert does, and in which words.
  static void backward_alerting(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, HandleRef context,
                                MaybeTensor initial_state, MaybeTensor A_log, MaybeTensor dt_bias, Tensor dout,
                                MaybeTensor d_final_state, MaybeTensor dq, MaybeTensor dk, MaybeTensor dv,
                                MaybeTensor dg, MaybeTensor dbeta, MaybeTensor dinitial_state, MaybeHandle partials,
                                OptionMap options, MaybeHandle workspace, MaybeHandle saved, int64_t policy,
                                tvm::ffi::String entry, tvm::ffi::String setting, tvm::ffi::String advice,
                                tvm::ffi::Optional<tvm::ffi::Function> warn) {
    translated([&] {
      const AlertWords words = alert_words(entry, setting, advice, warn);
      const ScopedAlertWords scope(words);
      const auto ctx = context_of(context);
      Arguments x = agreed(*ctx, {}, [&] {
        return Arguments{inputs(q, k, v, g, beta, initial_state, A_log, dt_bias),
                         const_view(dout, "dout"),
                         const_view(d_final_state, "d_final_state"),
                         gradients(dq, dk, dv, dg, dbeta, dinitial_state),
                         maybe_partials(partials),
                         options_of(options)};
      });
      x.gradients.gate_params = x.partials.get();
      P::backward(x.inputs, *ctx, x.dout, x.d_final_state, x.gradients, x.options, handle_of(workspace),
                  handle_of(saved), static_cast<DeterminismPolicy>(policy));
    });
  }

  static HandleRef make_partials() {
    return translated([] { return HandleRef(Handle(Partials::tag(), std::make_shared<Partials>())); });
  }
  static int64_t partials_nbytes(HandleRef partials) {
    return translated([&] { return static_cast<int64_t>(partials_of(partials)->nbytes()); });
  }
  static void local_grads(HandleRef partials, MaybeTensor dA_log, MaybeTensor ddt_bias) {
    translated([&] { partials_of(partials)->local_grads(view(dA_log, "dA_log"), view(ddt_bias, "ddt_bias")); });
  }
  static void reduce_gate_param_grads(HandleRef context, HandleRef partials, MaybeTensor dA_log, MaybeTensor ddt_bias) {
    translated([&] {
      const auto ctx = context_of(context);
      TensorView first, second;
      const auto held = agreed(*ctx, {}, [&] {
        first = view(dA_log, "dA_log");
        second = view(ddt_bias, "ddt_bias");
        return partials_of(partials);
      });
      P::reduce_gate_param_grads(*ctx, *held, first, second);
    });
  }

  static int64_t saved_bytes(HandleRef context, OptionMap shape, OptionMap options) {
    return translated([&] {
      return static_cast<int64_t>(P::saved_bytes(*context_of(context), shape_of(shape), options_of(options)));
    });
  }
  /// Without `backward` for forwards alone, with or without a saved set.
  static int64_t workspace_bytes(HandleRef context, OptionMap shape, OptionMap options, bool backward) {
    return translated([&] {
      const auto ctx = context_of(context);
      const auto s = shape_of(shape);
      const Options o = options_of(options);
      return static_cast<int64_t>(backward ? P::workspace_bytes(*ctx, s, o) : P::forward_workspace_bytes(*ctx, s, o));
    });
  }
  static int64_t handoff_bytes(HandleRef context, OptionMap shape, OptionMap options) {
    return translated([&] {
      return static_cast<int64_t>(P::handoff_bytes(*context_of(context), shape_of(shape), options_of(options)));
    });
  }
  /// Phase -> [sent, received].
  static tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Array<int64_t>> comm_bytes(HandleRef context, OptionMap shape,
                                                                              OptionMap options) {
    return translated([&] {
      const kcp::CommBytes b = P::comm_bytes(*context_of(context), shape_of(shape), options_of(options));
      tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Array<int64_t>> map;
      const auto add = [&](const char* name, const kcp::CommPhase& phase) {
        map.Set(name, tvm::ffi::Array<int64_t>{static_cast<int64_t>(phase.sent), static_cast<int64_t>(phase.received)});
      };
      add("halo_fwd", b.halo_fwd);
      add("c1", b.c1);
      add("c2", b.c2);
      add("halo_bwd", b.halo_bwd);
      add("b1", b.b1);
      add("b2", b.b2);
      add("gate_params", b.gate_params);
      return map;
    });
  }
  static tvm::ffi::Array<tvm::ffi::String> implementations() {
    return translated([] { return implementation_lines(P::implementations()); });
  }

 private:
  struct Arguments {
    Inputs inputs;
    ConstTensorView dout, d_final_state;
    typename P::Gradients gradients;
    std::shared_ptr<Partials> partials;
    Options options;
  };

  /// A workspace and its memory.
  struct SizedWorkspace {
    explicit SizedWorkspace(std::size_t bytes) : memory(new std::byte[bytes]), workspace(memory.get(), bytes) {}
    static std::shared_ptr<Workspace> make(std::size_t bytes) {
      const auto both = std::make_shared<SizedWorkspace>(bytes);
      return {both, &both->workspace};
    }
    std::unique_ptr<std::byte[]> memory;
    Workspace workspace;
  };

  /// What `make` returns. Where it throws, the other ranks, which are in the call's agreement or on their way to it,
  /// get the message. A replay has no agreement and no ranks that wait.
  template <class Make>
  static auto agreed(const kcp::Context& context, const MaybeHandle& recompute, Make make) {
    try {
      return make();
    } catch (const Error&) {
      const std::exception_ptr own = std::current_exception();
      if (!replays(recompute)) {
        require_agreement(context.communicator(), P::kName, [&]() -> AgreementFields { std::rethrow_exception(own); });
      }
      throw;
    }
  }
  static bool replays(const MaybeHandle& recompute) {
    const Handle handle = handle_of(recompute);
    if (handle.empty() || !(handle.tag() == kcp::RecomputeHandle::tag())) return false;
    const auto entries =
        handle.template get<kcp::RecomputeHandle>(kcp::RecomputeHandle::tag(), "recompute_handle")->entries();
    return std::find(entries.begin(), entries.end(), "kda") != entries.end();
  }

  static std::shared_ptr<kcp::Context> context_of(const HandleRef& ref) {
    return ref->handle.template get<kcp::Context>(kcp::Context::tag(), "ctx");
  }
  static std::shared_ptr<Workspace> workspace_of(const HandleRef& ref) {
    return ref->handle.template get<Workspace>(Workspace::tag(), "workspace");
  }
  static std::shared_ptr<Partials> partials_of(const HandleRef& ref) {
    return ref->handle.template get<Partials>(Partials::tag(), "gate_partials");
  }
  static std::shared_ptr<Partials> maybe_partials(const MaybeHandle& ref) {
    if (handle_of(ref).empty()) return nullptr;
    return partials_of(*ref);
  }

  static Inputs inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const MaybeTensor& initial_state, const MaybeTensor& A_log, const MaybeTensor& dt_bias) {
    Inputs x;
    x.q = const_view(q, "q");
    x.k = const_view(k, "k");
    x.v = const_view(v, "v");
    x.g = const_view(g, "g");
    x.beta = const_view(beta, "beta");
    x.initial_state = const_view(initial_state, "initial_state");
    x.A_log = const_view(A_log, "A_log");
    x.dt_bias = const_view(dt_bias, "dt_bias");
    return x;
  }
  static typename P::Gradients gradients(const MaybeTensor& dq, const MaybeTensor& dk, const MaybeTensor& dv,
                                         const MaybeTensor& dg, const MaybeTensor& dbeta,
                                         const MaybeTensor& dinitial_state) {
    typename P::Gradients d;
    d.dq = view(dq, "dq");
    d.dk = view(dk, "dk");
    d.dv = view(dv, "dv");
    d.dg = view(dg, "dg");
    d.dbeta = view(dbeta, "dbeta");
    d.dinitial_state = view(dinitial_state, "dinitial_state");
    return d;
  }

  /// The value at a text's place in `names`.
  template <class T>
  static T chosen(const char* option, const std::string& text, std::initializer_list<std::pair<const char*, T>> names) {
    std::string known;
    for (const auto& [name, value] : names) {
      if (text == name) return value;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    throw InvalidArgument(std::string(option) + ": got \"" + text + "\", expected one of " + known);
  }

  static Options options_of(const OptionMap& map) {
    Options o;
    OptionReader reader(map);
    std::optional<double> scale, lower_bound;
    std::string save_mode = "light", exchange = "auto";
    std::optional<std::string> checkpoint_keep;
    reader.take("scale", scale);
    reader.take("lower_bound", lower_bound);
    reader.take("use_gate_in_kernel", o.use_gate_in_kernel);
    reader.take("use_qk_l2norm_in_kernel", o.use_qk_l2norm_in_kernel);
    reader.take("use_beta_sigmoid_in_kernel", o.use_beta_sigmoid_in_kernel);
    reader.take("allow_neg_eigval", o.allow_neg_eigval);
    reader.take("save_mode", save_mode);
    reader.take("exchange", exchange);
    reader.take("save_transfer", o.save_transfer);
    reader.take("checkpoint_keep", checkpoint_keep);
    if (scale) o.scale = static_cast<float>(*scale);
    if (lower_bound) o.lower_bound = static_cast<float>(*lower_bound);
    using SaveMode = typename P::SaveMode;
    o.save_mode = chosen<SaveMode>("save_mode", save_mode, {{"light", SaveMode::kLight}, {"tape", SaveMode::kTape}});
    o.exchange = kcp::parse_exchange(exchange);
    using Keep = kcp::CheckpointKeep;
    if (checkpoint_keep) {
      o.checkpoint_keep =
          chosen<Keep>("checkpoint_keep", *checkpoint_keep, {{"states", Keep::kStates}, {"transfer", Keep::kTransfer}});
    }
    if constexpr (requires { o.checkpoint_handoff; }) {
      using Rows = decltype(o.saved_rows);
      std::string saved_rows = "auto";
      reader.take("checkpoint_handoff", o.checkpoint_handoff);
      reader.take("saved_rows", saved_rows);
      o.saved_rows = chosen<Rows>("saved_rows", saved_rows,
                                  {{"auto", Rows::kAuto},
                                   {"wy", Rows::kWy},
                                   {"intra", Rows::kIntra},
                                   {"tape", Rows::kTape},
                                   {"none", Rows::kNone}});
    }
    reader.finish();
    return o;
  }

  static typename P::Shape shape_of(const OptionMap& map) {
    typename P::Shape s;
    OptionReader reader(map);
    reader.take("H", s.H);
    reader.take("HV", s.HV);
    reader.take("K", s.K);
    reader.take("V", s.V);
    const auto dtype = [&](const char* name, DType& value) {
      std::string text = "float32";
      reader.take(name, text);
      value = chosen<DType>(
          name, text, {{"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}});
    };
    dtype("dtype", s.dtype);
    dtype("gate_dtype", s.gate_dtype);
    dtype("beta_dtype", s.beta_dtype);
    reader.take("gate_param_grads", s.gate_param_grads);
    reader.take("initial_state", s.initial_state);
    reader.finish();
    return s;
  }
};

}  // namespace cake::ffi
