// The backward over ranks: kcp.h and the phases of backward_driver.h.
#include "ops/kda/kcp_impl.h"

namespace cake::kda {

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
  Scratch* scratch = scratch_for(workers, true);
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

}  // namespace cake::kda
