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

/// Documents of one call, as indices into the case.
struct Pack {
  std::vector<std::size_t> documents;
  std::int64_t padding = 0;
};

/// A problem of the audit with its data.
struct Problem {
  AuditProblem text;
  KdaCase kda;
  KdaArrays operands;
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
      : problem_(problem), pack_(pack), variation_(variation), options_(kda_options<Package>(problem.kda)) {
    if (variation.tape) options_.save_mode = Package::SaveMode::kTape;
    options_.tail_passes = variation.tail_passes;
    options_.batch_tokens = variation.batch_tokens;
    options_.max_docs_per_batch = variation.max_docs_per_batch;
    starts_.push_back(0);
    for (const std::int64_t length : problem.kda.lengths) starts_.push_back(starts_.back() + length);
    offsets_.push_back(0);
    for (const std::size_t d : pack.documents) {
      offsets_.push_back(offsets_.back() + static_cast<std::int32_t>(problem.kda.lengths[d]));
    }
    for (const auto& [name, array] : problem.operands) gather(name, array);
    for (const auto& [name, array] : empty_kda_results(problem.kda)) {
      memory_.emplace(name,
                      Memory(static_cast<std::size_t>(extent(array.axis)) * array.stride(), array.dtype, variation));
    }
  }

  /// Forward and backward; false when the caller's MXCSR did not come back.
  bool run() {
    const ScopedNumThreads threads(variation_.threads);
    std::optional<ScopedCpuIsa> isa;
    if (variation_.isa) isa.emplace(*variation_.isa);
    std::optional<ScopedTaskShuffle> shuffle;
    if (variation_.shuffle) shuffle.emplace(*variation_.shuffle);
    Shape shape;
    shape.B = problem_.kda.batch ? documents() : 1;
    shape.S = rows() / shape.B;
    shape.num_docs = documents();
    shape.H = problem_.kda.H;
    shape.HV = problem_.kda.HV;
    shape.K = problem_.kda.K;
    shape.V = problem_.kda.V;
    if (!problem_.kda.batch) shape.cu_seqlens = offsets_;
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
    for (auto& [name, array] : results) {
      const std::byte* from = memory_.at(name).data();
      if (array.axis == KdaAxis::kNone) {
        std::memcpy(array.bytes.data(), from, array.bytes.size());
        continue;
      }
      for (std::size_t i = 0; i < pack_.documents.size(); ++i) {
        const auto [at, count] = place(array.axis, i);
        std::memcpy(array.bytes.data() + static_cast<std::size_t>(at.own) * array.stride(),
                    from + static_cast<std::size_t>(at.packed) * array.stride(),
                    static_cast<std::size_t>(count) * array.stride());
      }
      if (array.axis == KdaAxis::kToken) {
        std::memcpy(array.bytes.data() + static_cast<std::size_t>(starts_.back()) * array.stride(),
                    from + static_cast<std::size_t>(offsets_.back()) * array.stride(),
                    static_cast<std::size_t>(pack_.padding) * array.stride());
      }
    }
  }

 private:
  struct Place {
    std::int64_t own, packed;
  };
  std::int64_t documents() const { return static_cast<std::int64_t>(pack_.documents.size()); }
  std::int64_t rows() const { return offsets_.back() + pack_.padding; }
  std::int64_t extent(KdaAxis axis) const {
    return axis == KdaAxis::kToken ? rows() : axis == KdaAxis::kDocument ? documents() : 1;
  }
  /// Where document i of the pack lies in both orders, and how many indices it has.
  std::pair<Place, std::int64_t> place(KdaAxis axis, std::size_t i) const {
    const std::size_t d = pack_.documents[i];
    if (axis == KdaAxis::kDocument) return {{static_cast<std::int64_t>(d), static_cast<std::int64_t>(i)}, 1};
    return {{starts_[d], offsets_[i]}, problem_.kda.lengths[d]};
  }

  void gather(const std::string& name, const KdaArray& array) {
    Memory memory(static_cast<std::size_t>(extent(array.axis)) * array.stride(), array.dtype, variation_);
    if (array.axis == KdaAxis::kNone) {
      std::memcpy(memory.data(), array.bytes.data(), array.bytes.size());
    } else {
      for (std::size_t i = 0; i < pack_.documents.size(); ++i) {
        const auto [at, count] = place(array.axis, i);
        std::memcpy(memory.data() + static_cast<std::size_t>(at.packed) * array.stride(),
                    array.bytes.data() + static_cast<std::size_t>(at.own) * array.stride(),
                    static_cast<std::size_t>(count) * array.stride());
      }
      if (array.axis == KdaAxis::kToken) {
        std::memcpy(memory.data() + static_cast<std::size_t>(offsets_.back()) * array.stride(),
                    array.bytes.data() + static_cast<std::size_t>(starts_.back()) * array.stride(),
                    static_cast<std::size_t>(pack_.padding) * array.stride());
      }
    }
    memory_.emplace(name, std::move(memory));
  }

  TensorView view(const std::string& name, const KdaArray& array) const {
    TensorView v;
    v.data = memory_.at(name).data();
    v.dtype = array.dtype;
    v.given = true;
    std::vector<std::int64_t> shape = array.tail;
    if (array.axis == KdaAxis::kDocument) shape.insert(shape.begin(), documents());
    if (array.axis == KdaAxis::kToken) {
      const std::int64_t batch = problem_.kda.batch ? documents() : 1;
      shape.insert(shape.begin(), {batch, rows() / batch});
    }
    v.ndim = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      v.shape[i] = shape[i];
      v.strides[i] = stride;
      stride *= shape[i];
    }
    return v;
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
      in.cu_seqlens = ConstTensorView::contiguous(offsets_.data(), DType::kInt32, {documents() + 1});
    }
    return in;
  }

  const Problem& problem_;
  const Pack& pack_;
  const Variation& variation_;
  typename Package::Options options_;
  std::vector<std::int64_t> starts_;   // first row of each document, in the problem's order
  std::vector<std::int32_t> offsets_;  // the same in this call's order
  std::map<std::string, Memory> memory_;
};

}  // namespace cake::tool::audit_kda
