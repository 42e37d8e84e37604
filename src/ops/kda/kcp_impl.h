// What forward and backward over ranks share (see kcp.h): chains, staging, and the relay of values along chains.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "cake/core/canonical.h"
#include "core/checks.h"
#include "ops/kda/kcp_rows.h"

namespace cake::kda {

using Floats = std::vector<float>;

inline std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// A dense staging buffer as a tensor of the kind of `like`.
template <class View>
View dense_view(const View& like, std::vector<std::byte>& memory, std::int64_t rows) {
  View x = like;
  if (!like.given) return x;
  x.data = memory.data();
  x.shape[1] = rows;
  std::int64_t stride = 1;
  for (int i = like.ndim; i-- > 0;) {
    x.strides[to_size(i)] = stride;
    stride *= x.shape[to_size(i)];
  }
  return x;
}

struct KcpKda::Impl {
  Impl(const kcp::Partition& partition, Communicator& communicator, const Operands& local, const Settings& chosen);

  std::int64_t state_floats() const { return extents.state_floats(); }
  std::int64_t HV() const { return problem.HV; }
  bool mine(const Part& part) const { return part.rank == comm.rank(); }
  bool is_last(const Chain& chain) const { return chain.segment == segments[to_size(chain.document)] - 1; }
  bool is_middle(const Chain& chain) const { return chain.segment > 0 && !is_last(chain); }
  std::size_t chain_at(std::int64_t document, std::int64_t segment) const {
    return first_chain[to_size(document)] + to_size(segment);
  }

  /// The operands of a part and the row where it starts in them.
  std::pair<const Operands*, std::int64_t> operands_of(const Part& part) const {
    if (!part.staged) return {&operands, part.local_row};
    return {&staged_operands.at(part.number), 0};
  }
  void stage_operands(const std::vector<ConstTensorView>& more = {}) {
    std::vector<ConstTensorView> tensors = {operands.q, operands.k, operands.v, operands.g, operands.beta};
    tensors.insert(tensors.end(), more.begin(), more.end());
    staged_rows = stage.collect(comm, tensors);
    for (auto& [number, buffers] : staged_rows) {
      const std::int64_t rows = stage.find(number)->rows;
      Operands x = operands;
      x.q = dense_view(operands.q, buffers[0], rows);
      x.k = dense_view(operands.k, buffers[1], rows);
      x.v = dense_view(operands.v, buffers[2], rows);
      x.g = dense_view(operands.g, buffers[3], rows);
      x.beta = dense_view(operands.beta, buffers[4], rows);
      staged_operands[number] = x;
    }
  }

  /// Hands `values[chain]` from part to part of the chains, left to right or right to left, and calls
  /// compute(chain, part, index from the start, hv, scratch) for this rank's parts, level by level.
  template <class Compute>
  void relay(const std::vector<std::size_t>& list, bool reverse, std::map<std::size_t, Floats>& values,
             std::int64_t floats_per_head, bool backward, Compute compute) {
    std::size_t levels = 0;
    for (const std::size_t c : list) levels = std::max(levels, chains[c].parts.size());
    for (std::size_t level = 0; level < levels; ++level) {
      std::vector<Send> sends;
      std::vector<Receive> receives;
      std::vector<std::size_t> here;
      for (const std::size_t c : list) {
        const std::vector<Part>& row = chains[c].parts;
        if (level >= row.size()) continue;
        const auto at = [&](std::size_t i) -> const Part& { return row[reverse ? row.size() - 1 - i : i]; };
        const std::size_t bytes = to_size(floats_per_head * HV()) * sizeof(float);
        if (level > 0 && at(level - 1).rank != at(level).rank) {
          if (mine(at(level - 1))) sends.push_back({at(level).rank, values.at(c).data(), bytes});
          if (mine(at(level))) {
            Floats& value = values[c];
            value.resize(to_size(floats_per_head * HV()));
            receives.push_back({at(level - 1).rank, value.data(), bytes});
          }
        }
        if (mine(at(level))) {
          values[c].resize(to_size(floats_per_head * HV()));
          here.push_back(c);
        }
      }
      comm.exchange(sends, receives);
      run_level(here, level, reverse, backward, compute);
    }
  }

  /// Scratch of `workers` workers, valid until the next call.
  Scratch* scratch_for(int workers, bool backward) {
    Arena count;
    carve_workers(count, extents, {}, workers, backward);
    scratch_memory.resize(std::max(scratch_memory.size(), count.bytes_needed()));
    Arena arena(scratch_memory.data(), scratch_memory.size(), "scratch");
    return carve_workers(arena, extents, {}, workers, backward);
  }

  template <class Compute>
  void run_level(const std::vector<std::size_t>& here, std::size_t level, bool reverse, bool backward,
                 Compute& compute) {
    if (here.empty()) return;
    const int workers = num_threads();
    Scratch* scratch = scratch_for(workers, backward);
    parallel_for(static_cast<std::int64_t>(here.size()) * HV(), workers, [&](std::int64_t task, int worker) {
      const std::size_t c = here[to_size(task / HV())];
      const std::vector<Part>& row = chains[c].parts;
      compute(c, row[reverse ? row.size() - 1 - level : level], level, task % HV(), scratch[worker]);
    });
  }

  /// One message level: what each entry moves from a rank to another, in the same order everywhere.
  struct Move {
    int from, to;
    float* data;  ///< of this rank, when it takes part
    std::int64_t floats;
  };
  void move(const std::vector<Move>& moves) {
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (const Move& m : moves) {
      if (m.from == m.to) continue;
      const std::size_t bytes = to_size(m.floats) * sizeof(float);
      if (m.from == comm.rank()) sends.push_back({m.to, m.data, bytes});
      if (m.to == comm.rank()) receives.push_back({m.from, m.data, bytes});
    }
    comm.exchange(sends, receives);
  }

  SegmentRun part_run(const Part& part, const Head& head, Scratch& scratch, std::int64_t hv) {
    SegmentRun run;
    run.head = &head;
    run.rows = part.rows;
    run.scratch = &scratch;
    Floats& memory = pairs[to_size(part.number)];
    run.pair_memory = memory.data() + static_cast<std::int64_t>(memory.size()) / HV() * hv;
    return run;
  }
  Head part_head(const Part& part, std::int64_t hv) const {
    const auto [x, row] = operands_of(part);
    return make_head(table, problem, *x, settings, 0, row, hv);
  }
  static std::int64_t pair_floats_of(std::int64_t rows) {
    return rows / kChunk * pair_floats(kChunk) + pair_floats(rows % kChunk);
  }

  void forward(const ForwardResults& results);
  void run_part_forward(const Part& part, std::int64_t hv, Scratch& scratch, float* state, Pairs how,
                        const TensorView& out, std::int64_t out_row);
  void backward(const BackwardArguments& a);
  void run_part_backward(const Chain& chain, const Part& part, std::int64_t hv, Scratch& scratch, float* grad,
                         bool zero_grad, const BackwardArguments& a);
  void finish_groups(const BackwardArguments& a);
  void reduce_params(const BackwardArguments& a);
  TensorView part_rows(const Part& part, std::size_t which, const TensorView& whole, std::int64_t& row);

  Communicator& comm;
  kcp::RowPlan plan;
  std::vector<Chain> chains;
  Stage stage;
  Operands operands;
  Settings settings;
  const Kernels& table;
  Problem problem;
  Extents extents;
  std::vector<std::int64_t> segments;
  std::vector<std::size_t> first_chain;
  std::int64_t parts = 0;
  std::vector<std::byte> scratch_memory;
  Stage::Buffers staged_rows, staged_results;
  std::map<std::int64_t, Operands> staged_operands;
  // What the forward keeps.
  std::vector<Floats> states, pairs;  // by part: start state [HV][Kp Vp], chunk products
  std::vector<Floats> transitions;    // by chain: M of middle segments, on their last rank
  // The backward's.
  std::vector<Floats> chunk_params, partial_q, partial_k;  // by part
};

}  // namespace cake::kda
