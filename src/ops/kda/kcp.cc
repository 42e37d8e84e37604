#include "ops/kda/kcp.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "cake/core/canonical.h"
#include "core/checks.h"
#include "ops/kda/kcp_rows.h"

namespace cake::kda {
namespace {

constexpr std::int64_t kSegmentChunks = kSegment / kChunk;

using Floats = std::vector<float>;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

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

}  // namespace

std::vector<Chain> make_chains(const kcp::Partition& partition, const kcp::RowPlan& plan, int rank) {
  std::vector<Chain> chains;
  std::int64_t number = 0;
  for (std::int64_t d = 0; d < partition.documents(); ++d) {
    const std::int64_t rows = partition.length(d);
    const auto add = [&](const kcp::Piece& piece, std::int64_t from_chunk, std::int64_t end_chunk, bool staged) {
      while (from_chunk < end_chunk) {
        const std::int64_t segment = from_chunk / kSegmentChunks;
        const std::int64_t stop = std::min(end_chunk, (segment + 1) * kSegmentChunks);
        if (chains.empty() || chains.back().document != d || chains.back().segment != segment) {
          chains.push_back({d, segment, {}});
        }
        Part part;
        part.rank = piece.rank;
        part.first_row = from_chunk * kChunk;
        part.rows = std::min(rows, stop * kChunk) - part.first_row;
        part.local_row = piece.local_row + part.first_row - piece.offset;
        part.staged = staged;
        if (piece.rank == rank) part.number = number++;
        chains.back().parts.push_back(part);
        from_chunk = stop;
      }
    };
    for (const kcp::Piece& piece : plan.pieces(d)) {
      if (piece.first_chunk == piece.end_chunk) continue;
      const bool cut = piece.first_chunk * kChunk < piece.offset;
      if (cut) add(piece, piece.first_chunk, piece.first_chunk + 1, true);
      add(piece, piece.first_chunk + (cut ? 1 : 0), piece.end_chunk, false);
    }
  }
  return chains;
}

struct KcpKda::Impl {
  Impl(const kcp::Partition& partition, Communicator& communicator, const Operands& local, const Settings& chosen)
      : comm(communicator),
        plan(partition),
        chains(make_chains(partition, plan, communicator.rank())),
        stage(chains, plan, communicator.rank()),
        operands(local),
        settings(chosen),
        table(kernels(current_cpu_isa())) {
    Operands rows_only = local;
    rows_only.initial_state = {};
    problem = check_problem(rows_only, settings);
    problem.N = partition.documents();
    const std::int64_t mine = partition.rows(communicator.rank());
    if (problem.B != 1 || problem.S != mine) {
      checks::fail("q", std::to_string(problem.B) + " x " + std::to_string(problem.S) + " rows",
                   "1 x " + std::to_string(mine) + ", the rows of this rank");
    }
    for (std::int64_t d = 0; d < problem.N; ++d) {
      segments.push_back((partition.length(d) + kSegment - 1) / kSegment);
      first_chain.push_back(0);
    }
    for (std::size_t c = chains.size(); c-- > 0;) {
      first_chain[to_size(chains[c].document)] = c;
      for (const Part& part : chains[c].parts) parts += part.number >= 0 ? 1 : 0;
    }
    extents = {problem.H, problem.HV, problem.Kp(), problem.Vp(), {}};
    extents.totals.largest.transitions = 1;
    for (std::int64_t d = 0; d < problem.N; ++d) {
      auto& longest = extents.totals.largest.longest_segment;
      longest = std::max(longest, std::min<std::int64_t>(kSegment, partition.length(d)));
    }
    states.resize(to_size(parts));
    pairs.resize(to_size(parts));
    transitions.resize(chains.size());
  }

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

  template <class Compute>
  void run_level(const std::vector<std::size_t>& here, std::size_t level, bool reverse, bool backward,
                 Compute& compute) {
    if (here.empty()) return;
    const int workers = num_threads();
    Arena count;
    carve_workers(count, extents, {}, workers, backward);
    scratch_memory.resize(std::max(scratch_memory.size(), count.bytes_needed()));
    Arena arena(scratch_memory.data(), scratch_memory.size(), "scratch");
    Scratch* scratch = carve_workers(arena, extents, {}, workers, backward);
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

/// Rows of a part in a result: in its staging buffer number `which`, or in the local tensor.
TensorView KcpKda::Impl::part_rows(const Part& part, std::size_t which, const TensorView& whole, std::int64_t& row) {
  row = part.staged ? 0 : part.local_row;
  if (!part.staged || !whole.given) return whole;
  return dense_view(whole, staged_results.at(part.number)[which], part.rows);
}

void KcpKda::Impl::run_part_forward(const Part& part, std::int64_t hv, Scratch& scratch, float* state, Pairs how,
                                    const TensorView& out, std::int64_t out_row) {
  const Head head = part_head(part, hv);
  SegmentRun run = part_run(part, head, scratch, hv);
  run.pairs = how;
  run.state = state;
  run.zero_state = part.first_row == 0 && !operands.initial_state.given;
  run.out = head_rows<MutableRows>(out, 0, out_row, hv);
  if (!run.zero_state) {
    std::copy_n(state, state_floats(), states[to_size(part.number)].data() + hv * state_floats());
  }
  table.forward(run);
}

void KcpKda::Impl::forward(const ForwardResults& results) {
  const std::int64_t size = state_floats(), wide = size + extents.transition_floats();
  stage_operands();
  staged_results = stage.room({results.out});
  if (results.final_state.given) {
    for (std::int64_t n = 0; n < problem.N; ++n) {
      for (std::int64_t hv = 0; hv < HV(); ++hv) {
        const bool here = segments[to_size(n)] == 0 && comm.rank() == 0;
        pass_state(here ? operands.initial_state : ConstTensorView{}, results.final_state, n, hv, problem);
      }
    }
  }
  std::vector<std::size_t> first, middle, later;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    if (chains[c].segment == 0) first.push_back(c);
    if (is_middle(chains[c])) middle.push_back(c);
    if (chains[c].segment > 0) later.push_back(c);
    for (const Part& part : chains[c].parts) {
      if (!mine(part)) continue;
      states[to_size(part.number)].assign(to_size(size * HV()), 0.0f);
      pairs[to_size(part.number)].resize(to_size(pair_floats_of(part.rows) * HV()));
    }
  }
  const auto run_chains = [&](const std::vector<std::size_t>& list, std::map<std::size_t, Floats>& values) {
    relay(list, false, values, size, false,
          [&](std::size_t c, const Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
            const Chain& chain = chains[c];
            float* state = values.at(c).data() + hv * size;
            if (chain.segment == 0 && level == 0 && operands.initial_state.given) {
              state_in(operands.initial_state, chain.document, hv, problem, state);
            }
            std::int64_t row = 0;
            const TensorView out = part_rows(part, 0, results.out, row);
            run_part_forward(part, hv, scratch, state, is_middle(chain) ? Pairs::kLoad : Pairs::kStore, out, row);
            if (is_last(chain) && level + 1 == chain.parts.size() && results.final_state.given) {
              state_out(results.final_state, chain.document, hv, problem, state);
            }
          });
  };
  // (1) Segment 0 of every document, summaries (b, M) of the middle ones.
  std::map<std::size_t, Floats> ends, summaries, starts;
  run_chains(first, ends);
  relay(middle, false, summaries, wide, false,
        [&](std::size_t c, const Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const Head head = part_head(part, hv);
          SegmentRun run = part_run(part, head, scratch, hv);
          run.pairs = Pairs::kStore;
          run.resume = level > 0;
          run.state = summaries.at(c).data() + hv * wide;
          table.summarise(run, run.state + size);
        });
  // (2) B_{j+1} = M_j B_j + b_j, on the rank where the summary of segment j ended.
  const std::int64_t most = segments.empty() ? 0 : *std::max_element(segments.begin(), segments.end());
  for (std::int64_t j = 1; j < most; ++j) {
    std::vector<Move> moves;
    for (std::int64_t d = 0; d < problem.N; ++d) {
      if (j >= segments[to_size(d)]) continue;
      const std::size_t before = chain_at(d, j - 1), here = chain_at(d, j);
      // B_j lies where segment 0 ended (j == 1), or where B_j was folded.
      const int holder = chains[before].last_rank();
      const Chain& chain = chains[here];
      // It goes to the rank that runs segment j first, and to the one that folds it.
      std::vector<int> targets = {chain.first_rank()};
      if (is_middle(chain) && chain.last_rank() != chain.first_rank()) targets.push_back(chain.last_rank());
      if (holder == comm.rank()) starts[here] = ends.at(before);
      for (const int to : targets) {
        if (to == comm.rank() && holder != to) starts[here].resize(to_size(size * HV()));
        if (holder == comm.rank() || to == comm.rank()) {
          moves.push_back({holder, to, starts.at(here).data(), size * HV()});
        }
      }
    }
    move(moves);
    for (std::int64_t d = 0; d < problem.N; ++d) {
      if (j + 1 >= segments[to_size(d)]) continue;
      const std::size_t c = chain_at(d, j);
      if (chains[c].last_rank() != comm.rank()) continue;
      Floats& next = ends[c];
      next.resize(to_size(size * HV()));
      transitions[c].resize(to_size(extents.transition_floats() * HV()));
      parallel_for(HV(), num_threads(), [&](std::int64_t hv, int) {
        const float* summary = summaries.at(c).data() + hv * wide;
        std::copy_n(summary, size, next.data() + hv * size);
        float* M = transitions[c].data() + hv * extents.transition_floats();
        std::copy_n(summary + size, extents.transition_floats(), M);
        table.fold(static_cast<int>(extents.Kp), static_cast<int>(extents.Vp), M, starts.at(c).data() + hv * size,
                   next.data() + hv * size, false);
      });
    }
  }
  // (3) Segments 1 .. n-1 from their B_j.
  run_chains(later, starts);
  stage.deliver(comm, staged_results, {results.out});
}

void KcpKda::Impl::run_part_backward(const Chain& chain, const Part& part, std::int64_t hv, Scratch& scratch,
                                     float* grad, bool zero_grad, const BackwardArguments& a) {
  const std::size_t number = to_size(part.number);
  const Head head = part_head(part, hv);
  const BackwardResults& r = a.results;
  BackwardRun run;
  run.run = part_run(part, head, scratch, hv);
  run.run.pairs = Pairs::kLoad;
  run.run.state = states[number].data() + hv * state_floats();
  run.run.zero_state = part.first_row == 0 && !operands.initial_state.given;
  ConstTensorView dout = a.dout;
  if (part.staged) dout = dense_view(a.dout, staged_rows.at(part.number)[5], part.rows);
  run.dout = head_rows<Rows>(dout, 0, part.staged ? 0 : part.local_row, hv);
  run.grad_state = grad;
  run.zero_grad_state = zero_grad;
  GradientRows& g = run.gradients;
  const auto rows_of = [&](std::size_t which, const TensorView& whole, std::int64_t h) {
    std::int64_t row = 0;
    const TensorView x = part_rows(part, which, whole, row);
    return head_rows<MutableRows>(x, 0, row, h);
  };
  if (problem.HV != problem.H) {
    g.partial_q = partial_q[number].data() + hv * extents.Kp;
    g.partial_k = partial_k[number].data() + hv * extents.Kp;
    g.partial_stride = HV() * extents.Kp;
  } else {
    g.dq = rows_of(0, r.dq, hv);
    g.dk = rows_of(1, r.dk, hv);
  }
  g.dv = rows_of(2, r.dv, hv);
  g.dg = rows_of(3, r.dg, hv);
  g.dbeta = rows_of(4, r.dbeta, hv);
  if (a.params()) {
    const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
    g.chunk_params = chunk_params[number].data() + hv * chunks * 2 * extents.Kp;
  }
  table.backward(run);
  if (part.first_row == 0 && r.dinitial_state.given) state_out(r.dinitial_state, chain.document, hv, problem, grad);
}

void KcpKda::Impl::backward(const BackwardArguments& a) {
  const std::int64_t size = state_floats();
  const BackwardResults& r = a.results;
  stage_operands({a.dout});
  const std::vector<TensorView> results = {r.dq, r.dk, r.dv, r.dg, r.dbeta};
  staged_results = stage.room(results);
  if (r.dinitial_state.given) {
    for (std::int64_t n = 0; n < problem.N; ++n) {
      for (std::int64_t hv = 0; hv < HV(); ++hv) {
        const bool here = segments[to_size(n)] == 0 && comm.rank() == 0;
        pass_state(here ? a.d_final_state : ConstTensorView{}, r.dinitial_state, n, hv, problem);
      }
    }
  }
  chunk_params.assign(to_size(parts), {});
  partial_q.assign(to_size(parts), {});
  partial_k.assign(to_size(parts), {});
  std::vector<std::size_t> last, middle, earlier;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    if (is_last(chains[c])) last.push_back(c);
    if (is_middle(chains[c])) middle.push_back(c);
    if (!is_last(chains[c])) earlier.push_back(c);
    for (const Part& part : chains[c].parts) {
      if (!mine(part)) continue;
      const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
      if (a.params()) chunk_params[to_size(part.number)].resize(to_size(HV() * chunks * 2 * extents.Kp));
      if (problem.HV == problem.H) continue;
      for (auto* list : {&partial_q, &partial_k}) {
        (*list)[to_size(part.number)].resize(to_size(part.rows * HV() * extents.Kp));
      }
    }
  }
  const auto run_chains = [&](const std::vector<std::size_t>& list, std::map<std::size_t, Floats>& values) {
    relay(list, true, values, size, true,
          [&](std::size_t c, const Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
            const Chain& chain = chains[c];
            float* grad = values.at(c).data() + hv * size;
            const bool from_end = level == 0 && is_last(chain);
            if (from_end && a.d_final_state.given) state_in(a.d_final_state, chain.document, hv, problem, grad);
            run_part_backward(chain, part, hv, scratch, grad, from_end && !a.d_final_state.given, a);
          });
  };
  // (1) The last segment of every document, adjoint summaries c of the middle ones.
  std::map<std::size_t, Floats> runs, summaries, starts;
  run_chains(last, runs);
  relay(middle, true, summaries, size, true,
        [&](std::size_t c, const Part& part, std::size_t level, std::int64_t hv, Scratch& scratch) {
          const Head head = part_head(part, hv);
          BackwardRun run;
          run.run = part_run(part, head, scratch, hv);
          run.run.pairs = Pairs::kLoad;
          ConstTensorView dout = a.dout;
          if (part.staged) dout = dense_view(a.dout, staged_rows.at(part.number)[5], part.rows);
          run.dout = head_rows<Rows>(dout, 0, part.staged ? 0 : part.local_row, hv);
          run.grad_state = summaries.at(c).data() + hv * size;
          run.zero_grad_state = level == 0;
          table.summarise_adjoint(run);
        });
  // (2) D_j = M_j^T D_{j+1} + c_j, on the rank where segment j ends: M_j lies there, and segment j runs from D_{j+1}
  // there.
  const std::int64_t most = segments.empty() ? 0 : *std::max_element(segments.begin(), segments.end());
  std::map<std::size_t, Floats> folded;  // by chain j: D_j
  for (std::int64_t step = 0; step + 1 < most; ++step) {
    std::vector<Move> moves;
    for (std::int64_t d = 0; d < problem.N; ++d) {
      const std::int64_t j = segments[to_size(d)] - 2 - step;
      if (j < 0) continue;
      const std::size_t here = chain_at(d, j), after = chain_at(d, j + 1);
      const Chain& chain = chains[here];
      const bool from_run = is_last(chains[after]);
      const int holder = from_run ? chains[after].first_rank() : chains[after].last_rank(), to = chain.last_rank();
      if (holder == comm.rank()) starts[here] = from_run ? runs.at(after) : folded.at(after);
      if (to == comm.rank() && holder != to) starts[here].resize(to_size(size * HV()));
      if (holder == comm.rank() || to == comm.rank()) {
        moves.push_back({holder, to, starts.at(here).data(), size * HV()});
      }
      if (j == 0) continue;
      const int from = chain.first_rank();
      if (to == comm.rank()) summaries[here].resize(to_size(size * HV()));
      if (from == comm.rank() || to == comm.rank()) {
        moves.push_back({from, to, summaries.at(here).data(), size * HV()});
      }
    }
    move(moves);
    for (std::int64_t d = 0; d < problem.N; ++d) {
      const std::int64_t j = segments[to_size(d)] - 2 - step;
      if (j < 1) continue;
      const std::size_t c = chain_at(d, j);
      if (chains[c].last_rank() != comm.rank()) continue;
      Floats& D = folded[c];
      D = summaries.at(c);
      parallel_for(HV(), num_threads(), [&](std::int64_t hv, int) {
        table.fold(static_cast<int>(extents.Kp), static_cast<int>(extents.Vp),
                   transitions[c].data() + hv * extents.transition_floats(), starts.at(c).data() + hv * size,
                   D.data() + hv * size, true);
      });
    }
  }
  // (3) Segments 0 .. n-2 from their D_{j+1}.
  run_chains(earlier, starts);
  if (problem.HV != problem.H) finish_groups(a);
  stage.deliver(comm, staged_results, results);
  if (a.params()) reduce_params(a);
}

void KcpKda::Impl::finish_groups(const BackwardArguments& a) {
  std::vector<const Part*> list;
  for (const Chain& chain : chains) {
    for (const Part& part : chain.parts) {
      if (mine(part)) list.push_back(&part);
    }
  }
  const int workers = num_threads();
  Arena count;
  carve_workers(count, extents, {}, workers, true);
  scratch_memory.resize(std::max(scratch_memory.size(), count.bytes_needed()));
  Arena arena(scratch_memory.data(), scratch_memory.size(), "scratch");
  Scratch* scratch = carve_workers(arena, extents, {}, workers, true);
  parallel_for(static_cast<std::int64_t>(list.size()) * problem.H, workers, [&](std::int64_t task, int worker) {
    const Part& part = *list[to_size(task / problem.H)];
    const std::int64_t qk_head = task % problem.H, hv = qk_head * problem.group();
    const Head head = part_head(part, hv);
    GroupedRows g;
    g.head = &head;
    g.rows = part.rows;
    g.group = static_cast<int>(problem.group());
    g.partial_q = partial_q[to_size(part.number)].data() + hv * extents.Kp;
    g.partial_k = partial_k[to_size(part.number)].data() + hv * extents.Kp;
    g.row_stride = HV() * extents.Kp;
    g.head_stride = extents.Kp;
    std::int64_t row = 0;
    const TensorView dq = part_rows(part, 0, a.results.dq, row), dk = part_rows(part, 1, a.results.dk, row);
    g.dq = head_rows<MutableRows>(dq, 0, row, qk_head);
    g.dk = head_rows<MutableRows>(dk, 0, row, qk_head);
    table.finish_grouped(g, &scratch[worker]);
  });
}

void KcpKda::Impl::reduce_params(const BackwardArguments& a) {
  const std::int64_t width = 2 * extents.Kp;
  std::vector<std::size_t> all(chains.size());
  for (std::size_t c = 0; c < all.size(); ++c) all[c] = c;
  // Chunks of a segment: a chain from zero, left to right, over the parts.
  std::map<std::size_t, Floats> sums;
  relay(all, false, sums, width, false,
        [&](std::size_t c, const Part& part, std::size_t level, std::int64_t hv, Scratch&) {
          float* sum = sums.at(c).data() + hv * width;
          if (level == 0) std::fill(sum, sum + width, 0.0f);
          const std::int64_t chunks = (part.rows + kChunk - 1) / kChunk;
          const float* x = chunk_params[to_size(part.number)].data() + hv * chunks * width;
          for (std::int64_t n = 0; n < chunks; ++n) table.add(sum, x + n * width, width);
        });
  // All ranks get all segments' partials: every rank's blocks in chain order, padded to the longest list.
  std::vector<std::size_t> held(to_size(comm.size()), 0);
  for (const Chain& chain : chains) ++held[to_size(chain.last_rank())];
  const std::size_t longest = *std::max_element(held.begin(), held.end()), block = to_size(width * HV());
  Floats own(longest * block), gathered(own.size() * held.size());
  std::size_t at = 0;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    if (chains[c].last_rank() == comm.rank()) std::copy_n(sums.at(c).data(), block, own.data() + block * at++);
  }
  comm.all_gather(own.data(), own.size() * sizeof(float), gathered.data());
  Floats totals(block, 0.0f);
  std::vector<std::size_t> next(held.size(), 0);
  for (const Chain& chain : chains) {  // one flat left fold in pack order
    const auto rank = to_size(chain.last_rank());
    const float* partial = gathered.data() + (rank * longest + next[rank]++) * block;
    parallel_for(HV(), 1,
                 [&](std::int64_t hv, int) { table.add(&totals[to_size(hv * width)], partial + hv * width, width); });
  }
  Call call{};
  call.problem = &problem;
  call.extents = extents;
  write_params(call, a.results, totals.data());
}

KcpKda::KcpKda(const kcp::Partition& partition, Communicator& communicator, const Operands& operands,
               const Settings& settings)
    : impl_(new Impl(partition, communicator, operands, settings)) {}
KcpKda::~KcpKda() = default;
void KcpKda::forward(const ForwardResults& results) { impl_->forward(results); }
void KcpKda::backward(const BackwardArguments& arguments) { impl_->backward(arguments); }

}  // namespace cake::kda
