// One problem of `cake bench` over ranks: ranks as threads, each with its rows of whole tensors.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench.h"
#include "bench_kda_data.h"
#include "cake/comm.h"
#include "cake/core/parallel.h"
#include "cake/kcp.h"

namespace cake::tool::bench_kda_parts {

/// Rows [first, first + count) of a contiguous [1, rows, ...] view.
template <class View>
View rows_of(View view, std::int64_t first, std::int64_t count) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const std::byte, std::byte>;
  view.data = static_cast<Byte*>(view.data) + first * view.strides[1] * dtype_size(view.dtype);
  view.shape[1] = count;
  return view;
}

/// A package over ranks on the problem of Data: the same values, results in tensors of the same form.
template <class Package>
class RanksData {
 public:
  RanksData(const BenchOptions& o, float gate)
      : data(o, o.dtype, gate),
        o_(o),
        offsets_({0, static_cast<std::int32_t>(o.T)}),
        cuts_(bench_cut_points(offsets_, o.ranks, o.cut)),
        partition_(kcp::Partition::from_cut_points(offsets_, cuts_)),
        group_(o.ranks, std::chrono::minutes(10)),
        ranks_(static_cast<std::size_t>(o.ranks)) {
    options_.exchange = o.exchange;
    group_.run([this](Communicator& communicator) {
      Rank& rank = at(communicator);
      rank.context.emplace(partition_, communicator);
      const auto r = static_cast<std::size_t>(communicator.rank());
      const std::int64_t first = r == 0 ? 0 : cuts_[r - 1], count = partition_.rows(communicator.rank());
      slice(rank, first, count, first + count == o_.T);
    });
  }

  const std::vector<std::int64_t>& cuts() const { return cuts_; }

  /// Seconds from a barrier of all ranks to the next.
  double forward() {
    return timed([this](Rank& rank) { rank.forward(options_, nullptr); });
  }
  double forward_backward() {
    return timed([this](Rank& rank) {
      rank.forward(options_, &rank.saved);
      rank.backward(options_);
    });
  }

  /// What a forward and backward move.
  std::vector<BenchRankBytes> counted_forward_backward() {
    std::vector<BenchRankBytes> all(ranks_.size());
    group_.run([&](Communicator& communicator) {
      const Conditions conditions(o_);
      Rank& rank = at(communicator);
      BenchRankBytes& bytes = all[static_cast<std::size_t>(communicator.rank())];
      bytes.said = comm_bytes(*rank.context, shape(), options_);
      const CommCounters start = communicator.counters();
      rank.forward(options_, &rank.saved);
      const CommCounters middle = communicator.counters();
      rank.backward(options_);
      bytes.forward_counted = between(start, middle);
      bytes.backward_counted = between(middle, communicator.counters());
    });
    return all;
  }

  /// What these take, summed over ranks.
  BenchMemory forward_memory() const {
    return {std::nullopt, sum([this](const Rank& rank) {
              return forward_workspace_bytes(*rank.context, shape(), options_, false, o_.threads);
            })};
  }
  BenchMemory forward_backward_memory() const {
    return {sum([this](const Rank& rank) { return saved_bytes(*rank.context, shape(), options_); }),
            sum([this](const Rank& rank) {
              return std::max(forward_workspace_bytes(*rank.context, shape(), options_, true, o_.threads),
                              backward_workspace_bytes(*rank.context, shape(), false, options_, o_.threads));
            })};
  }

  Data<typename Package::OneRank> data;  ///< operands, and the results of all ranks

 private:
  using Options = typename Package::Options;
  using Shape = typename Package::Shape;

  /// One rank's views and memory. The context is made on the rank's thread.
  struct Rank {
    void forward(const Options& options, typename Package::Saved* keep) {
      Package::forward(inputs, *context, outputs, options, &workspace, keep, nullptr);
    }
    void backward(const Options& options) {
      Package::backward(inputs, *context, dout, {}, gradients, options, &workspace, &saved);
    }
    std::optional<kcp::Context> context{};
    typename Package::Inputs inputs{};
    typename Package::Outputs outputs{};
    typename Package::Gradients gradients{};
    ConstTensorView dout{};
    std::vector<std::byte> zero_state{};  ///< final_state of a rank without the document's last row
    typename Package::Saved saved{};
    typename Package::Workspace workspace{};
  };

  /// Threads and level count for the thread that sets them.
  struct Conditions {
    explicit Conditions(const BenchOptions& o) : threads(o.threads), isa(o.isa) {}
    ScopedNumThreads threads;
    ScopedCpuIsa isa;
  };

  Rank& at(const Communicator& communicator) { return ranks_[static_cast<std::size_t>(communicator.rank())]; }

  void slice(Rank& rank, std::int64_t first, std::int64_t count, bool has_last_row) {
    const auto in = data.inputs();
    rank.inputs.q = rows_of(in.q, first, count);
    rank.inputs.k = rows_of(in.k, first, count);
    rank.inputs.v = rows_of(in.v, first, count);
    rank.inputs.g = rows_of(in.g, first, count);
    rank.inputs.beta = rows_of(in.beta, first, count);
    rank.dout = rows_of(data.dout(), first, count);
    const auto out = data.outputs();
    rank.outputs.out = rows_of(out.out, first, count);
    rank.outputs.final_state = out.final_state;
    if (!has_last_row) {
      rank.zero_state.resize(data.final_state.size());
      rank.outputs.final_state.data = rank.zero_state.data();
    }
    const auto gradients = data.gradients();
    rank.gradients.dq = rows_of(gradients.dq, first, count);
    rank.gradients.dk = rows_of(gradients.dk, first, count);
    rank.gradients.dv = rows_of(gradients.dv, first, count);
    rank.gradients.dg = rows_of(gradients.dg, first, count);
    rank.gradients.dbeta = rows_of(gradients.dbeta, first, count);
  }

  template <class Work>
  double timed(Work work) {
    double seconds = 0;
    group_.run([&](Communicator& communicator) {
      const Conditions conditions(o_);
      Rank& rank = at(communicator);
      communicator.barrier();
      const auto start = std::chrono::steady_clock::now();
      work(rank);
      communicator.barrier();
      if (communicator.rank() == 0) {
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
    });
    return seconds;
  }

  static kcp::CommPhase between(const CommCounters& before, const CommCounters& after) {
    return {after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received};
  }

  template <class Bytes>
  std::size_t sum(Bytes bytes) const {
    std::size_t total = 0;
    for (const Rank& rank : ranks_) total += bytes(rank);
    return total;
  }

  Shape shape() const {
    Shape shape;
    shape.H = shape.HV = o_.H;
    shape.K = o_.K;
    shape.V = o_.V;
    shape.dtype = shape.beta_dtype = o_.dtype;
    return shape;
  }

  BenchOptions o_;
  Options options_;
  std::vector<std::int32_t> offsets_;
  std::vector<std::int64_t> cuts_;
  kcp::Partition partition_;
  ThreadGroup group_;
  std::vector<Rank> ranks_;
};

}  // namespace cake::tool::bench_kda_parts
