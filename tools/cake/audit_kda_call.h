// One call of a KDA package the way the audit's variations want it: at chosen addresses, in memory full of a chosen
// number, over documents in a chosen order.
#pragma once

#include <immintrin.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "audit.h"
#include "audit_kda_pack.h"
#include "cake/core/parallel.h"
#include "kda_case.h"

namespace cake::tool::audit_kda {

/// Memory at a chosen distance from a 64-byte border, full of one number.
class Memory {
 public:
  Memory(std::size_t bytes, DType dtype, const Variation& variation) : bytes_(bytes), block_(bytes + 128) {
    const auto element = static_cast<std::size_t>(dtype_size(dtype));
    const auto address = reinterpret_cast<std::uintptr_t>(block_.data());
    const std::size_t shift = static_cast<std::size_t>(variation.offset) / element * element;
    data_ = block_.data() + (64 - address % 64) % 64 + shift;
    std::uint32_t pattern = 0;
    std::memcpy(&pattern, &variation.fill, sizeof pattern);
    if (dtype == DType::kBFloat16) pattern = float_to_bf16(variation.fill) * 0x10001u;
    if (dtype == DType::kFloat16) pattern = float_to_fp16(variation.fill) * 0x10001u;
    for (std::size_t i = 0; i < bytes; ++i) data_[i] = static_cast<std::byte>(pattern >> (i % 4 * 8));
  }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<std::byte> block_;
  std::byte* data_;
};

/// Workspace and saved sets may lie at any address.
inline Memory raw_memory(std::size_t bytes, const Variation& variation) {
  Memory memory(bytes + 64, DType::kFloat32, variation);
  return memory;
}

/// A caller's floating-point environment for a scope.
class CallerMxcsr {
 public:
  explicit CallerMxcsr(const std::optional<unsigned>& bits) : before_(_mm_getcsr()) {
    if (bits) _mm_setcsr(*bits);
    set_ = control();
  }
  ~CallerMxcsr() { _mm_setcsr(before_); }
  CallerMxcsr(const CallerMxcsr&) = delete;
  CallerMxcsr& operator=(const CallerMxcsr&) = delete;
  bool kept() const { return control() == set_; }

 private:
  static unsigned control() { return _mm_getcsr() & ~0x3fu; }  // without the sticky exception flags
  unsigned before_, set_;
};

/// One forward and backward of a package over some of a problem's documents.
template <class Package>
class Call {
 public:
  using Inputs = typename Package::Inputs;
  using Outputs = typename Package::Outputs;
  using Gradients = typename Package::Gradients;
  using Shape = typename Package::Shape;
  using Saved = typename Package::Saved;
  using Workspace = typename Package::Workspace;

  Call(const Problem& problem, const Pack& pack, const Variation& variation)
      : problem_(problem),
        order_(problem.kda, pack),
        variation_(variation),
        options_(kda_options<Package>(problem.kda)) {
    if (variation.tape) options_.save_mode = Package::SaveMode::kTape;
    options_.tail_passes = variation.tail_passes;
    options_.batch_tokens = variation.batch_tokens;
    options_.max_docs_per_batch = variation.max_docs_per_batch;
    for (const auto& [name, array] : problem.operands) {
      order_.gather(array, memory_.emplace(name, memory_for(array)).first->second.data());
    }
    for (const auto& [name, array] : empty_kda_results(problem.kda)) memory_.emplace(name, memory_for(array));
  }

  /// Forward and backward; false when the caller's MXCSR did not come back.
  bool run() {
    const ScopedNumThreads threads(variation_.threads);
    std::optional<ScopedCpuIsa> isa;
    if (variation_.isa) isa.emplace(*variation_.isa);
    std::optional<ScopedTaskShuffle> shuffle;
    if (variation_.shuffle) shuffle.emplace(*variation_.shuffle);
    Shape shape;
    shape.B = problem_.kda.batch ? order_.documents() : 1;
    shape.S = order_.rows() / shape.B;
    shape.num_docs = order_.documents();
    shape.H = problem_.kda.H;
    shape.HV = problem_.kda.HV;
    shape.K = problem_.kda.K;
    shape.V = problem_.kda.V;
    if (!problem_.kda.batch) shape.cu_seqlens = order_.offsets();
    shape.gate_param_grads = problem_.operands.count("A_log") != 0;
    const Memory forward_bytes =
        raw_memory(forward_workspace_bytes(shape, options_, !variation_.recompute), variation_);
    const Memory backward_bytes =
        raw_memory(backward_workspace_bytes(shape, variation_.recompute, options_), variation_);
    const Memory saved_memory = raw_memory(saved_bytes(shape, options_), variation_);
    const std::size_t odd = variation_.offset % 4 != 0 ? 1 : 0;  // not even an element's alignment
    const auto workspace = [&](const Memory& m) {
      return variation_.library_memory ? Workspace() : Workspace(m.data() + odd, m.bytes() - 64);
    };
    Workspace forward_workspace = workspace(forward_bytes), backward_workspace = workspace(backward_bytes);
    Saved saved = variation_.library_memory ? Saved() : Saved(saved_memory.data() + odd, saved_memory.bytes() - 64);
    const Inputs inputs = views_of_inputs();
    const Outputs outputs{result("out"), result("final_state")};
    const Gradients gradients{result("dq"),    result("dk"),     result("dv"),       result("dg"),
                              result("dbeta"), result("dA_log"), result("ddt_bias"), result("dinitial_state")};
    const CallerMxcsr mxcsr(variation_.mxcsr);
    Package::forward(inputs, outputs, options_, &forward_workspace, variation_.recompute ? nullptr : &saved);
    Package::backward(inputs, operand("dout"), operand("d_final_state"), gradients, options_, &backward_workspace,
                      variation_.recompute ? nullptr : &saved);
    return mxcsr.kept();
  }

  /// Copies this call's part of the results to their places in the problem's order.
  void scatter(KdaArrays& results) const {
    for (auto& [name, array] : results) order_.scatter(memory_.at(name).data(), array);
  }

 private:
  Memory memory_for(const KdaArray& array) const {
    Memory memory(order_.bytes(array), array.dtype, variation_);
    return memory;
  }

  TensorView view(const std::string& name, const KdaArray& array) const {
    std::vector<std::int64_t> leading;
    if (array.axis == KdaAxis::kDocument) leading = {order_.documents()};
    if (array.axis == KdaAxis::kToken) {
      const std::int64_t batch = problem_.kda.batch ? order_.documents() : 1;
      leading = {batch, order_.rows() / batch};
    }
    return view_of(memory_.at(name).data(), array, leading);
  }
  ConstTensorView operand(const std::string& name) const {
    const auto found = problem_.operands.find(name);
    return found == problem_.operands.end() ? ConstTensorView{} : ConstTensorView(view(name, found->second));
  }
  TensorView result(const std::string& name) const {
    const KdaArrays shapes = empty_kda_results(problem_.kda);
    const auto found = shapes.find(name);
    return found == shapes.end() ? TensorView{} : view(name, found->second);
  }
  Inputs views_of_inputs() const {
    Inputs in;
    in.q = operand("q");
    in.k = operand("k");
    in.v = operand("v");
    in.g = operand("g");
    in.beta = operand("beta");
    in.A_log = operand("A_log");
    in.dt_bias = operand("dt_bias");
    in.initial_state = operand("initial_state");
    if (!problem_.kda.batch) {
      in.cu_seqlens = ConstTensorView::contiguous(order_.offsets().data(), DType::kInt32, {order_.documents() + 1});
    }
    return in;
  }

  const Problem& problem_;
  PackOrder order_;
  const Variation& variation_;
  typename Package::Options options_;
  std::map<std::string, Memory> memory_;
};

}  // namespace cake::tool::audit_kda
