// One call of a KDA package over ranks the way the audit's variations want it. Ranks are threads; each has memory of
// its own for its rows, and states that it must not read are NaN.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "audit.h"
#include "audit_kda_call.h"
#include "audit_kda_pack.h"
#include "cake/comm.h"
#include "cake/core/parallel.h"
#include "cake/kcp.h"
#include "kcp_cuts.h"
#include "kda_case.h"

namespace cake::tool::audit_kda {

/// A sum for the gate parameters' gradients as a package over ranks keeps it.
struct Partial {
  std::int64_t document = 0, segment = 0;
  std::vector<float> sums;  ///< [HV][2][K]: of ddt_bias, and of dA_log before the sum over channels
};

/// One forward and backward over ranks of some of a problem's documents.
template <class Package>
class RanksCall {
 public:
  using Inputs = typename Package::Inputs;
  using Outputs = typename Package::Outputs;
  using Gradients = typename Package::Gradients;
  using Shape = typename Package::Shape;
  using Saved = typename Package::Saved;
  using Workspace = typename Package::Workspace;

  RanksCall(const Problem& problem, const Pack& pack, const Variation& variation)
      : problem_(problem),
        pack_(pack),
        order_(problem.kda, pack),
        variation_(variation),
        options_(kda_options<Package>(problem.kda)),
        partition_(partition()),
        shards_(static_cast<std::size_t>(variation.over.ranks)) {
    if (variation.tape) options_.save_mode = Package::SaveMode::kTape;
    options_.exchange = variation.over.exchange;
    options_.checkpoint_keep = variation.over.handle;
    // A handle says itself whether transitions are kept.
    if (!variation.over.handle) options_.save_transfer = variation.over.save_transfer;
  }

  /// Forward and backward on every rank; false when a caller's MXCSR did not come back.
  bool run() {
    // Long enough for a machine under load that emulates its arithmetic.
    ThreadGroup group(variation_.over.ranks, std::chrono::minutes(10));
    group.run([this](Communicator& communicator) { run_rank(communicator); });
    return std::all_of(shards_.begin(), shards_.end(), [](const Shard& shard) { return shard.mxcsr_kept; });
  }

  /// Brings the ranks' results together and copies them to their places in the problem's order. Of a state all ranks
  /// but one hold exact zeros; where ranks disagree on a parameter's gradient all of theirs are kept.
  void scatter(KdaArrays& results) const {
    for (auto& [name, array] : results) {
      std::vector<std::byte> packed(order_.bytes(array));
      if (array.axis == KdaAxis::kNone) {
        gather_parameter(name, packed);
        array.bytes = packed;
        continue;
      }
      for (std::size_t r = 0; r < shards_.size(); ++r) {
        const Memory& shard = shards_[r].memory.at(name);
        if (array.axis == KdaAxis::kToken) {
          const std::vector<std::int64_t> rows = partition_.global_rows(static_cast<int>(r));
          for (std::size_t i = 0; i < rows.size(); ++i) {
            std::memcpy(packed.data() + static_cast<std::size_t>(rows[i]) * array.stride(),
                        shard.data() + i * array.stride(), array.stride());
          }
        } else {
          for (std::size_t i = 0; i < packed.size(); ++i) packed[i] |= shard.data()[i];
        }
      }
      order_.scatter(packed.data(), array);
    }
  }

  /// The ranks' partial sums, documents as the problem numbers them.
  std::vector<Partial> partials() const {
    std::vector<Partial> all;
    for (const Shard& shard : shards_) all.insert(all.end(), shard.partials.begin(), shard.partials.end());
    return all;
  }

  /// Where random cuts lie; empty for a layout.
  std::string detail() const { return cuts_.empty() ? "" : "cuts at " + cut_points_text(cuts_); }

 private:
  /// What a rank has.
  struct Shard {
    std::map<std::string, Memory> memory{};
    std::vector<Partial> partials{};
    bool mxcsr_kept = false;
  };

  kcp::Partition partition() {
    const RanksVariation& over = variation_.over;
    if (!over.cuts) return kcp::Partition::make(order_.offsets(), over.ranks, over.layout);
    cuts_ = random_cut_points(order_.offsets(), over.ranks, *over.cuts);
    return kcp::Partition::from_cut_points(order_.offsets(), cuts_);
  }

  /// Rank that has a document's first or last row; rank 0 for an empty document.
  int rank_of_row(std::int64_t document, bool last) const {
    const std::int64_t row = last ? partition_.length(document) - 1 : 0;
    for (int r = 0; r < partition_.world_size(); ++r) {
      for (const kcp::Fragment& f : partition_.fragments(r)) {
        if (f.document == document && f.offset <= row && row < f.offset + f.length) return r;
      }
    }
    return 0;
  }

  Memory memory_for(const KdaArray& array, int rank) const {
    const std::int64_t extent = array.axis == KdaAxis::kToken ? partition_.rows(rank) : order_.extent(array.axis);
    Memory memory(static_cast<std::size_t>(extent) * array.stride(), array.dtype, variation_);
    return memory;
  }

  /// This rank's share of an operand.
  Memory share(const std::string& name, const KdaArray& array, int rank) const {
    Memory memory = memory_for(array, rank);
    if (array.axis != KdaAxis::kToken) order_.gather(array, memory.data());
    if (array.axis == KdaAxis::kToken) {
      std::vector<std::byte> packed(order_.bytes(array));
      order_.gather(array, packed.data());
      const std::vector<std::int64_t> rows = partition_.global_rows(rank);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(memory.data() + i * array.stride(),
                    packed.data() + static_cast<std::size_t>(rows[i]) * array.stride(), array.stride());
      }
    }
    if (array.axis == KdaAxis::kDocument) {
      for (std::int64_t d = 0; d < order_.documents(); ++d) {
        if (rank_of_row(d, name == "d_final_state") == rank) continue;
        std::byte* at = memory.data() + static_cast<std::size_t>(d) * array.stride();
        std::fill_n(at, array.stride(), std::byte{0xff});  // NaN
      }
    }
    return memory;
  }

  TensorView view(const std::string& name, const KdaArray& array, int rank) const {
    std::vector<std::int64_t> leading;
    if (array.axis == KdaAxis::kDocument) leading = {order_.documents()};
    if (array.axis == KdaAxis::kToken) leading = {1, partition_.rows(rank)};
    return view_of(shards_[static_cast<std::size_t>(rank)].memory.at(name).data(), array, leading);
  }

  Shape shape() const {
    Shape shape;
    shape.H = problem_.kda.H;
    shape.HV = problem_.kda.HV;
    shape.K = problem_.kda.K;
    shape.V = problem_.kda.V;
    shape.dtype = problem_.kda.dtype;
    shape.gate_dtype = problem_.operands.at("g").dtype;
    shape.beta_dtype = problem_.operands.at("beta").dtype;
    shape.gate_param_grads = problem_.operands.count("A_log") != 0;
    shape.initial_state = problem_.kda.states;
    return shape;
  }

  void run_rank(Communicator& communicator) {
    const int rank = communicator.rank();
    Shard& shard = shards_[static_cast<std::size_t>(rank)];
    const KdaArrays shapes = empty_kda_results(problem_.kda);
    for (const auto& [name, array] : problem_.operands) shard.memory.emplace(name, share(name, array, rank));
    for (const auto& [name, array] : shapes) shard.memory.emplace(name, memory_for(array, rank));
    const auto operand = [&](const char* name) {
      const auto found = problem_.operands.find(name);
      return found == problem_.operands.end() ? ConstTensorView{} : ConstTensorView(view(name, found->second, rank));
    };
    const auto result = [&](const char* name) {
      const auto found = shapes.find(name);
      return found == shapes.end() ? TensorView{} : view(name, found->second, rank);
    };
    Inputs inputs;
    inputs.q = operand("q");
    inputs.k = operand("k");
    inputs.v = operand("v");
    inputs.g = operand("g");
    inputs.beta = operand("beta");
    inputs.initial_state = operand("initial_state");
    inputs.A_log = operand("A_log");
    inputs.dt_bias = operand("dt_bias");

    const ScopedNumThreads threads(variation_.threads);
    std::optional<ScopedCpuIsa> isa;
    if (variation_.isa) isa.emplace(*variation_.isa);
    std::optional<ScopedTaskShuffle> shuffle;
    if (variation_.shuffle) shuffle.emplace(*variation_.shuffle);
    const kcp::Context context(partition_, communicator);
    const bool saving = !variation_.recompute;
    std::optional<kcp::RecomputeHandle> handle;
    if (variation_.over.handle) handle.emplace();
    // With a handle the first forward saves nothing.
    const Memory forward_bytes =
        raw_memory(forward_workspace_bytes(context, shape(), options_, saving && !handle), variation_);
    const Memory backward_bytes =
        raw_memory(backward_workspace_bytes(context, shape(), variation_.recompute, options_), variation_);
    const Memory saved_memory = raw_memory(saved_bytes(context, shape(), options_), variation_);
    const std::size_t odd = variation_.offset % 4 != 0 ? 1 : 0;  // not even an element's alignment
    const auto workspace = [&](const Memory& m) {
      return variation_.library_memory ? Workspace() : Workspace(m.data() + odd, m.bytes() - 64);
    };
    Workspace forward_workspace = workspace(forward_bytes), backward_workspace = workspace(backward_bytes);
    Saved saved = variation_.library_memory ? Saved() : Saved(saved_memory.data() + odd, saved_memory.bytes() - 64);
    typename Package::GateParamPartials partials;
    const bool gate_params = shape().gate_param_grads;
    const Outputs outputs{result("out"), result("final_state")};
    const Gradients gradients{result("dq"),
                              result("dk"),
                              result("dv"),
                              result("dg"),
                              result("dbeta"),
                              result("dinitial_state"),
                              gate_params ? &partials : nullptr};
    const CallerMxcsr mxcsr(variation_.mxcsr);
    if (handle) {
      Package::forward(inputs, context, outputs, options_, &forward_workspace, nullptr, &*handle);
      // The second forward must write everything again.
      for (const char* name : {"out", "final_state"}) {
        const Memory& memory = shard.memory.at(name);
        std::fill_n(memory.data(), memory.bytes(), std::byte{0xff});
      }
    }
    Package::forward(inputs, context, outputs, options_, &forward_workspace, saving ? &saved : nullptr,
                     handle ? &*handle : nullptr);
    Package::backward(inputs, context, operand("dout"), operand("d_final_state"), gradients, options_,
                      &backward_workspace, saving ? &saved : nullptr);
    if (gate_params) {
      reduce_gate_param_grads(context, partials, result("dA_log"), result("ddt_bias"));
      copy_partials(partials, shard);
    }
    shard.mxcsr_kept = mxcsr.kept();
  }

  void copy_partials(const typename Package::GateParamPartials& partials, Shard& shard) const {
    const std::int64_t K = problem_.kda.K, padded = (K + 15) / 16 * 16;
    for (const auto& partial : partials.partials()) {
      Partial copy{partial.document, partial.segment, {}};
      if (copy.document >= 0) {
        copy.document = static_cast<std::int64_t>(pack_.documents.at(static_cast<std::size_t>(copy.document)));
      }
      for (std::int64_t i = 0; i < 2 * problem_.kda.HV; ++i) {
        copy.sums.insert(copy.sums.end(), partial.sums + i * padded, partial.sums + i * padded + K);
      }
      shard.partials.push_back(std::move(copy));
    }
  }

  void gather_parameter(const std::string& name, std::vector<std::byte>& bytes) const {
    const std::byte* first = shards_.front().memory.at(name).data();
    const std::size_t size = bytes.size();
    std::memcpy(bytes.data(), first, size);
    const bool agree = std::all_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
      return std::memcmp(shard.memory.at(name).data(), first, size) == 0;
    });
    for (std::size_t r = 1; r < shards_.size() && !agree; ++r) {
      const std::byte* data = shards_[r].memory.at(name).data();
      bytes.insert(bytes.end(), data, data + size);
    }
  }

  const Problem& problem_;
  const Pack& pack_;
  PackOrder order_;
  const Variation& variation_;
  typename Package::Options options_;
  std::vector<std::int64_t> cuts_;
  kcp::Partition partition_;
  std::vector<Shard> shards_;
};

}  // namespace cake::tool::audit_kda
