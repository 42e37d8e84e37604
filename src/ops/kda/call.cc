#include "ops/kda/call.h"

#include <new>
#include <string>

#include "cake/core/parallel.h"
#include "core/checks.h"
#include "ops/kda/cpu/driver.h"

namespace cake::kda {
namespace {

Extents extents_of(const Problem& p, const ConstTensorView& cu_seqlens) {
  Extents x{p.B, p.S, p.H, p.HV, p.Kp(), p.Vp(), count_documents(p, cu_seqlens)};
  return x;
}

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

/// Throws InvalidArgument naming the first field in which the saved set's forward differed.
void check_saved(const SavedSet& saved, const Problem& p, const Settings& s, const Operands& x) {
  if (!saved.filled) checks::fail("saved", "an empty saved set", "one filled by a forward");
  const auto same = [](const char* field, const auto& then, const auto& now) {
    if (then == now) return;
    const auto text = [](const auto& value) {
      if constexpr (requires { value.has_value(); }) {
        return value.has_value() ? std::to_string(*value) : std::string("none");
      } else {
        return std::to_string(value);
      }
    };
    checks::fail("saved", std::string("one of a forward with ") + field + " = " + text(then), text(now));
  };
  same("B", saved.problem.B, p.B);
  same("S", saved.problem.S, p.S);
  same("H", saved.problem.H, p.H);
  same("HV", saved.problem.HV, p.HV);
  same("K", saved.problem.K, p.K);
  same("V", saved.problem.V, p.V);
  same("documents", saved.problem.N, p.N);
  same("scale", saved.problem.scale, p.scale);
  same("use_gate_in_kernel", saved.settings.use_gate_in_kernel, s.use_gate_in_kernel);
  same("lower_bound", saved.settings.lower_bound, s.lower_bound);
  same("use_qk_l2norm_in_kernel", saved.settings.use_qk_l2norm_in_kernel, s.use_qk_l2norm_in_kernel);
  same("use_beta_sigmoid_in_kernel", saved.settings.use_beta_sigmoid_in_kernel, s.use_beta_sigmoid_in_kernel);
  same("allow_neg_eigval", saved.settings.allow_neg_eigval, s.allow_neg_eigval);
  if (saved.dtype != x.q.dtype) {
    checks::fail("saved", std::string("one of a forward with dtype ") + dtype_name(saved.dtype), dtype_name(x.q.dtype));
  }
  if (saved.offsets_digest != digest_offsets(p, x.cu_seqlens)) {
    checks::fail("saved", "one of a forward with other cu_seqlens", "the same offsets");
  }
}

/// Reserves the workspace and says how many workers it serves: as many threads as fit, at least one.
template <class BytesFor>
int reserve(WorkspaceMemory& workspace, BytesFor bytes_for) {
  int workers = num_threads();
  if (workspace.memory.external()) workers = fitting_workers(workspace.memory.size(), workers, bytes_for);
  workspace.memory.ensure(bytes_for(workers), "workspace");
  return workers;
}

}  // namespace

void* CallerMemory::ensure(std::size_t bytes, const char* name) {
  if (bytes <= bytes_) return data_;
  const std::string needed = std::to_string(bytes) + " bytes";
  if (external_) {
    throw OutOfMemory(std::string(name) + ": got memory of " + std::to_string(bytes_) + " bytes, expected at least " +
                      needed);
  }
  owned_.reset();
  data_ = nullptr;
  bytes_ = 0;
  owned_.reset(new (std::nothrow) std::byte[bytes]);
  if (owned_ == nullptr) throw OutOfMemory(std::string(name) + ": could not allocate " + needed);
  data_ = owned_.get();
  bytes_ = bytes;
  return data_;
}

void refuse_options(const char* module, bool tape, bool lean, std::int64_t tail_passes,
                    const std::optional<std::int64_t>& batch_tokens,
                    const std::optional<std::int64_t>& max_docs_per_batch) {
  const auto refuse = [&](const char* option) {
    throw NotSupported(std::string(option) + ": not supported by this version of " + module);
  };
  if (tail_passes < 1) checks::fail("tail_passes", std::to_string(tail_passes), "1 or more");
  if (tape) refuse("save_mode tape");
  if (lean) refuse("lean");
  if (tail_passes > 1) refuse("tail_passes above 1");
  if (batch_tokens) refuse("batch_tokens");
  if (max_docs_per_batch) refuse("max_docs_per_batch");
}

Extents extents_of_shape(std::int64_t B, std::int64_t S, std::int64_t num_docs, std::int64_t H, std::int64_t HV,
                         std::int64_t K, std::int64_t V, std::span<const std::int32_t> offsets) {
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
  return {B, S, H, HV, p.Kp(), p.Vp(), count_documents(B, S, num_docs, offsets)};
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

void run_forward(const Operands& operands, const Settings& settings, const ForwardResults& results,
                 WorkspaceMemory& workspace, SavedSet* saved) {
  const Problem problem = check_problem(operands, settings);
  check_forward(problem, operands, results);
  Call call{&problem, &operands, &settings, extents_of(problem, operands.cu_seqlens)};
  call.workers =
      reserve(workspace, [&](int workers) { return forward_bytes(call.extents, saved != nullptr, workers); });
  SavedMemory kept;
  if (saved != nullptr) {
    const std::size_t bytes = saved_bytes(call.extents);
    saved->filled = false;
    saved->memory.ensure(bytes, "saved");
    Arena arena(saved->memory.data(), saved->memory.size(), "saved");
    kept = carve_saved(arena, call.extents);
    saved->bytes = bytes;
  }
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  forward_cpu(call, results, arena, saved != nullptr ? &kept : nullptr);
  if (saved == nullptr) return;
  saved->problem = problem;
  saved->settings = settings;
  saved->dtype = operands.q.dtype;
  saved->offsets_digest = digest_offsets(problem, operands.cu_seqlens);
  saved->filled = true;
}

void run_backward(const Operands& operands, const Settings& settings, const ConstTensorView& dout,
                  const ConstTensorView& d_final_state, const BackwardResults& results, WorkspaceMemory& workspace,
                  const SavedSet* saved) {
  const Problem problem = check_problem(operands, settings);
  if (saved != nullptr) check_saved(*saved, problem, settings, operands);
  check_backward(problem, operands, settings, dout, d_final_state, results);
  const bool params = results.dA_log.given || results.ddt_bias.given;
  Call call{&problem, &operands, &settings, extents_of(problem, operands.cu_seqlens)};
  call.workers =
      reserve(workspace, [&](int workers) { return backward_bytes(call.extents, saved == nullptr, params, workers); });
  Arena arena(workspace.memory.data(), workspace.memory.size(), "workspace");
  if (saved == nullptr) {
    backward_cpu(call, dout, d_final_state, results, params, arena, nullptr);
    return;
  }
  Arena kept_arena(saved->memory.data(), saved->memory.size(), "saved");
  const SavedMemory kept = carve_saved(kept_arena, call.extents);
  backward_cpu(call, dout, d_final_state, results, params, arena, &kept);
}

}  // namespace cake::kda
