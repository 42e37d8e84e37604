#include "ops/kda/kcp.h"

#include "ops/kda/kcp_impl.h"

namespace cake::kda {
namespace {

constexpr std::int64_t kSegmentChunks = kSegment / kChunk;

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

KcpKda::Impl::Impl(const kcp::Partition& partition, Communicator& communicator, const Operands& local,
                   const Settings& chosen)
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

KcpKda::KcpKda(const kcp::Partition& partition, Communicator& communicator, const Operands& operands,
               const Settings& settings)
    : impl_(new Impl(partition, communicator, operands, settings)) {}
KcpKda::~KcpKda() = default;
void KcpKda::forward(const ForwardResults& results) { impl_->forward(results); }
void KcpKda::backward(const BackwardArguments& arguments) { impl_->backward(arguments); }

}  // namespace cake::kda
