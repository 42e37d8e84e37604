#include "ops/kda/call.h"

#include <new>
#include <string>
#include <type_traits>

#include "core/checks.h"

namespace cake::kda {
namespace {

/// FNV-1a over the offsets: part of a saved set's record.
std::uint64_t digest_offsets(const Problem& p, const ConstTensorView& cu_seqlens) {
  std::uint64_t h = 1469598103934665603ull;
  if (!p.packed) return h;
  const auto* offsets = static_cast<const std::int32_t*>(cu_seqlens.data);
  for (std::int64_t i = 0; i <= p.N; ++i) {
    h = (h ^ static_cast<std::uint32_t>(offsets[i * cu_seqlens.strides[0]])) * 1099511628211ull;
  }
  return h;
}

template <class T>
std::string text_of(const T& value) {
  if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? text_of(*value) : std::string("none");
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else {
    return std::to_string(value);
  }
}

/// A workspace made for a shape is refused by the other gate or norm modes.
void check_workspace(const WorkspaceMemory& workspace, const Settings& s) {
  if (!workspace.made_for) return;
  const Settings& made = *workspace.made_for;
  const auto same = [](const char* option, bool then, bool now) {
    if (then == now) return;
    checks::fail("workspace", std::string("one made for ") + option + " = " + text_of(then), text_of(now));
  };
  same("use_gate_in_kernel", made.use_gate_in_kernel, s.use_gate_in_kernel);
  same("lower_bound given", made.lower_bound.has_value(), s.lower_bound.has_value());
  same("use_qk_l2norm_in_kernel", made.use_qk_l2norm_in_kernel, s.use_qk_l2norm_in_kernel);
}

Call make_call(const Problem& problem, const Operands& operands, const Settings& settings, const CallOptions& options) {
  const Lengths lengths = Lengths::of(problem, operands.cu_seqlens);
  const Extents extents{problem.H, problem.HV, problem.Kp(), problem.Vp(),
                        count_documents(lengths, options.grouping())};
  return {&problem, &operands, &settings, lengths, options.grouping(), extents, options.memory()};
}

}  // namespace

void check_saved_options(const SavedSet& saved, const Settings& s, const CallOptions& options) {
  const auto same = [](const char* field, const auto& then, const auto& now) {
    if (then != now)
      checks::fail("saved", std::string("one of a forward with ") + field + " = " + text_of(then), text_of(now));
  };
  if (!saved.filled) checks::fail("saved", "an empty saved set", "one filled by a forward");
  if (saved.tape != options.tape) {
    checks::fail("saved", std::string("one of a forward with save_mode ") + (saved.tape ? "tape" : "light"),
                 options.tape ? "tape" : "light");
  }
  same("use_gate_in_kernel", saved.settings.use_gate_in_kernel, s.use_gate_in_kernel);
  same("lower_bound", saved.settings.lower_bound, s.lower_bound);
  same("use_qk_l2norm_in_kernel", saved.settings.use_qk_l2norm_in_kernel, s.use_qk_l2norm_in_kernel);
  same("use_beta_sigmoid_in_kernel", saved.settings.use_beta_sigmoid_in_kernel, s.use_beta_sigmoid_in_kernel);
  same("allow_neg_eigval", saved.settings.allow_neg_eigval, s.allow_neg_eigval);
}

void check_saved_problem(const SavedSet& saved, const Problem& p, const Operands& x) {
  const auto same = [](const char* field, const auto& then, const auto& now) {
    if (then != now)
      checks::fail("saved", std::string("one of a forward with ") + field + " = " + text_of(then), text_of(now));
  };
  same("B", saved.problem.B, p.B);
  same("S", saved.problem.S, p.S);
  same("H", saved.problem.H, p.H);
  same("HV", saved.problem.HV, p.HV);
  same("K", saved.problem.K, p.K);
  same("V", saved.problem.V, p.V);
  same("documents", saved.problem.N, p.N);
  same("scale", saved.problem.scale, p.scale);
  if (saved.dtype != x.q.dtype) {
    checks::fail("saved", std::string("one of a forward with dtype ") + dtype_name(saved.dtype), dtype_name(x.q.dtype));
  }
  if (saved.offsets_digest != digest_offsets(p, x.cu_seqlens)) {
    checks::fail("saved", "one of a forward with other cu_seqlens", "the same offsets");
  }
}

void record_saved(SavedSet& saved, const Problem& problem, const Operands& operands, const Settings& settings,
                  bool tape) {
  saved.tape = tape;
  saved.problem = problem;
  saved.settings = settings;
  saved.dtype = operands.q.dtype;
  saved.offsets_digest = digest_offsets(problem, operands.cu_seqlens);
  saved.filled = true;
}

void check_options(const CallOptions& options) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) checks::fail(name, std::to_string(value), "1 or more");
  };
  positive("tail_passes", options.tail_passes);
  if (options.batch_tokens) positive("batch_tokens", *options.batch_tokens);
  if (options.max_docs_per_batch) positive("max_docs_per_batch", *options.max_docs_per_batch);
}

std::unique_ptr<std::byte[]> CallerMemory::prepare(std::size_t bytes, const char* name) const {
  if (bytes <= bytes_) return nullptr;
  const std::string needed = std::to_string(bytes) + " bytes";
  if (fixed()) {
    throw OutOfMemory(std::string(name) + ": got memory of " + std::to_string(bytes_) + " bytes, expected at least " +
                      needed);
  }
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (memory == nullptr) throw OutOfMemory(std::string(name) + ": could not allocate " + needed);
  return memory;
}

void CallerMemory::adopt(std::unique_ptr<std::byte[]> memory, std::size_t bytes) {
  if (memory == nullptr) return;
  owned_ = std::move(memory);
  data_ = owned_.get();
  bytes_ = bytes;
}

void* CallerMemory::ensure(std::size_t bytes, const char* name) {
  if (bytes > bytes_ && !fixed()) {  // before it allocates: both need not fit at once
    owned_.reset();
    data_ = nullptr;
    bytes_ = 0;
  }
  adopt(prepare(bytes, name), bytes);
  return data_;
}

Sizes check_sizes(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::int64_t H, std::int64_t HV,
                  std::int64_t K, std::int64_t V, std::span<const std::int32_t> offsets, bool gate_param_grads,
                  const CallOptions& options) {
  check_options(options);
  const auto at_least = [](const char* name, std::int64_t value, std::int64_t least) {
    if (value < least) checks::fail(name, std::to_string(value), std::to_string(least) + " or more");
  };
  at_least("B", B, 0);
  at_least("S", S, 0);
  at_least("num_docs", num_docs, 0);
  at_least("H", H, 1);
  at_least("HV", HV, 1);
  at_least("K", K, 1);
  at_least("V", V, 1);
  if (HV % H != 0) checks::fail("HV", std::to_string(HV), "a multiple of H = " + std::to_string(H));
  if (K > kMaxHeadDim) checks::fail("K", std::to_string(K), "1 to 256");
  if (V > kMaxHeadDim) checks::fail("V", std::to_string(V), "1 to 256");
  if ((!offsets.empty() || num_docs != B) && B != 1) {
    checks::fail("B", std::to_string(B), "1 for packed documents");
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : offsets[i - 1], most = i == 0 ? 0 : S;
    if (offsets[i] < least || offsets[i] > most) {
      checks::fail("cu_seqlens", std::to_string(offsets[i]) + " at entry " + std::to_string(i),
                   "offsets from 0 to S that do not decrease");
    }
  }
  Problem p;
  p.K = K;
  p.V = V;
  const Grouping grouping = options.grouping();
  const auto totals = [&] {
    if (!offsets.empty()) {
      return count_documents({offsets.data(), 1, static_cast<std::int64_t>(offsets.size()) - 1}, grouping);
    }
    return num_docs == B ? count_documents({B, S}, grouping) : bound_documents(S, num_docs, grouping);
  };
  return {{H, HV, p.Kp(), p.Vp(), totals()}, gate_param_grads};
}

std::vector<Implementation> implementations(Device device) {
  std::vector<Implementation> list;
  const bool cpu = device.type == DeviceType::kCpu;
  for (const CpuIsa isa : {CpuIsa::kV4, CpuIsa::kV3, CpuIsa::kBase}) {
    std::string refused;
    if (!cpu) {
      refused = "the tensors are on " + device_name(device);
    } else if (!cpu_isa_supported(isa)) {
      refused = "not on this CPU";
    } else if (isa != current_cpu_isa()) {
      refused = std::string("CAKE_CPU_ISA or a better level: ") + cpu_isa_name(current_cpu_isa()) + " is in use";
    }
    list.push_back(
        {std::string("cpu/x86-64") + (isa == CpuIsa::kBase ? "" : std::string("-") + cpu_isa_name(isa)), refused});
  }
  return list;
}

void run_forward(const Operands& operands, const Settings& settings, const CallOptions& options,
                 const ForwardResults& results, WorkspaceMemory& workspace, SavedSet* saved) {
  check_workspace(workspace, settings);
  check_options(options);
  const Problem problem = check_problem(operands, settings);
  check_forward(problem, operands, results);
  Call call = make_call(problem, operands, settings, options);
  call.workers =
      reserve(workspace, [&](int workers) { return forward_bytes(call.extents, saved != nullptr, workers); });
  SavedMemory kept;
  if (saved != nullptr) {
    const std::size_t bytes = saved_bytes(call.extents, options.tape);
    if (saved->memory.fixed()) saved->memory.ensure(bytes, "saved");  // may refuse: then the set stays what it was
    saved->filled = false;
    saved->memory.ensure(bytes, "saved");
    Arena arena(saved->memory.data(), saved->memory.size(), "saved");
    kept = carve_saved(arena, call.extents, call.extents.totals.sum, options.tape);
    saved->bytes = bytes;
  }
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  forward_cpu(call, results, arena, saved != nullptr ? &kept : nullptr);
  if (saved == nullptr) return;
  record_saved(*saved, problem, operands, settings, options.tape);
}

void check_backward_call(const Operands& operands, const Settings& settings, const CallOptions& options,
                         const BackwardArguments& arguments, const WorkspaceMemory& workspace, const SavedSet* saved,
                         CheckedBackward& checked) {
  if (saved != nullptr) check_saved_options(*saved, settings, options);
  check_workspace(workspace, settings);
  check_options(options);
  if (options.lean && saved == nullptr) {
    checks::fail("saved", "none, with lean", "a saved set: a lean workspace has no room to recompute one");
  }
  checked.problem = check_problem(operands, settings);
  if (saved != nullptr) check_saved_problem(*saved, checked.problem, operands);
  check_backward(checked.problem, operands, settings, arguments.dout, arguments.d_final_state, arguments.results);
  checked.call = make_call(checked.problem, operands, settings, options);
  if (saved == nullptr) {
    checked.call.memory.tape = false;  // nothing holds the chunk states: they are rebuilt in the workspace
    return;
  }
  Arena arena(saved->memory.data(), saved->memory.size(), "saved");
  checked.kept = carve_saved(arena, checked.call.extents, checked.call.extents.totals.sum, saved->tape);
}

}  // namespace cake::kda
