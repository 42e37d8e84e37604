// One context for several layers, sizes and both packages in turn: nothing that a call leaves behind reaches the next.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::Context;
using kcp::Partition;
using Cuts = std::vector<std::int64_t>;

/// Three layers over one pack: other sizes, options and dtypes.
std::vector<KdaProblem> layers() {
  std::vector<KdaSpec> specs(3, kcp_spec({2 * kSegment + 30, 0, 65}, true));
  specs[1].options = {};
  specs[1].K += 5;
  specs[1].HV = 4;
  specs[1].H = 2;
  specs[1].seed = 7;
  specs[2].V = 3;
  specs[2].dtype = DType::kBFloat16;
  specs[2].initial_state = false;
  specs[2].seed = 8;
  return {make_problem(specs[0]), make_problem(specs[1]), make_problem(specs[2])};
}

Partition cut(const KdaProblem& p) {
  return Partition::from_cut_points(offsets_of(p), Cuts{70, kSegment + 1, p.offsets.at(1) + 3});
}

/// Row tensors of one rank, which the nondet package too gives with equal bits at an equal number of threads.
void expect_rows(const RankResults& got, const RankResults& fresh, bool parameters) {
  for (const auto& [name, tensor] : fresh.tensors) {
    if (is_parameter_gradient(name) && !parameters) continue;
    EXPECT_TRUE(same_bits(got.tensors.at(name), tensor, name));
  }
}

TEST(KdaKcpContext, ServesLayersAndBothPackagesInTurn) {
  const std::vector<KdaProblem> list = layers();
  const Partition partition = cut(list[0]);
  for (const int threads : {1, 2}) {
    KcpRun how;
    how.threads = threads;
    std::vector<std::vector<RankResults>> det, nondet;
    for (const KdaProblem& p : list) {
      det.push_back(run_ranks<DetKcp>(p, partition, how));
      nondet.push_back(run_ranks<NondetKcp>(p, partition, how));
      expect_bits(p, one_rank(p), partition, det.back());
    }
    ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
      const Context context(partition, comm);
      const auto r = static_cast<std::size_t>(comm.rank());
      for (int round = 0; round < (kSlow ? 1 : 2); ++round) {
        for (std::size_t i = 0; i < list.size(); ++i) {
          expect_rows(run_rank<DetKcp>(list[i], context, how), det[i][r], true);
          expect_rows(run_rank<NondetKcp>(list[i], context, how), nondet[i][r], false);
        }
      }
      // Copies share the context.
      const Context copy = context;
      expect_rows(run_rank<DetKcp>(list[0], copy, how), det[0][r], true);
    });
  }
}

TEST(KdaKcpContext, ForwardsOfAllLayersBeforeTheirBackwards) {
  // As in a model: one workspace, a saved set and partial sums per layer, backwards in reverse, and one runs again.
  const std::vector<KdaProblem> list = layers();
  const Partition partition = cut(list[0]);
  std::vector<OneRank> one;
  for (const KdaProblem& p : list) one.push_back(one_rank(p));
  std::vector<std::vector<RankResults>> results(list.size());
  for (auto& ranks : results) ranks.resize(static_cast<std::size_t>(partition.world_size()));
  ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
    const Context context(partition, comm);
    DetKcp::Workspace workspace;
    std::vector<std::unique_ptr<RankCall<DetKcp>>> calls;
    std::vector<DetKcp::Saved> saved(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      calls.push_back(std::make_unique<RankCall<DetKcp>>(list[i], context));
      calls[i]->workspace = &workspace;
      calls[i]->saved = &saved[i];
      calls[i]->forward();
    }
    for (std::size_t i = list.size(); i-- > 0;) calls[i]->backward();
    calls[1]->backward();
    for (std::size_t i = 0; i < list.size(); ++i) {
      calls[i]->reduce();
      results[i][static_cast<std::size_t>(comm.rank())] = calls[i]->results();
    }
  });
  for (std::size_t i = 0; i < list.size(); ++i) expect_bits(list[i], one[i], partition, results[i]);
}

TEST(KdaKcpContext, TheWorkspaceServesOtherContexts) {
  const std::vector<KdaProblem> list = layers();
  const Partition first = cut(list[0]), second = Partition::make(offsets_of(list[0]), 4, kcp::Layout::kZigzag);
  std::vector<RankResults> got_first(4), got_second(4);
  ThreadGroup(4).run([&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    DetKcp::Workspace workspace;
    DetKcp::Saved saved;
    DetKcp::Workspace moved_from;
    moved_from = std::move(workspace);
    workspace = std::move(moved_from);
    for (const auto& [partition, got] : {std::pair{&first, &got_first}, {&second, &got_second}}) {
      const Context context(*partition, comm);
      RankCall<DetKcp> call(list[0], context);
      call.workspace = &workspace;
      call.saved = &saved;  // a saved set may be filled again
      call.forward();
      call.backward();
      call.reduce();
      (*got)[r] = call.results();
    }
  });
  const OneRank one = one_rank(list[0]);
  expect_bits(list[0], one, first, got_first);
  expect_bits(list[0], one, second, got_second);
}

TEST(KdaKcpContext, ABackwardRunsAgainAndASavedSetMoves) {
  const KdaProblem p = make_problem(kcp_spec({kSegment + 100}, true));
  const Partition partition = Partition::from_cut_points(offsets_of(p), Cuts{70});
  std::vector<RankResults> ranks(2);
  ThreadGroup(2).run([&](Communicator& comm) {
    const Context context(partition, comm);
    DetKcp::Saved saved, other;
    RankCall<DetKcp> call(p, context);
    call.saved = &saved;
    call.forward();
    call.forward();
    call.backward();
    other = std::move(saved);
    call.saved = &other;
    for (int repeat = 0; repeat < 2; ++repeat) {
      call.backward();
      call.reduce();
    }
    ranks[static_cast<std::size_t>(comm.rank())] = call.results();
  });
  expect_bits(p, one_rank(p), partition, ranks);
}

TEST(KdaKcpContext, OneRankOfNondetIsDetButForParameterSums) {
  // Documents of one segment on one rank: nothing but the order of parameter sums differs, and nothing else pretends
  // to.
  const KdaProblem p = make_problem(kcp_spec({100, 65, 0, 1}, true));
  const auto ranks = run_ranks<NondetKcp>(p, Partition::make(offsets_of(p), 1));
  const KdaResults expected = run(p);
  for (const auto& [name, tensor] : ranks.at(0).tensors) {
    if (is_parameter_gradient(name)) continue;
    EXPECT_TRUE(same_bits(tensor, expected.at(name), name));
  }
  EXPECT_TRUE(matches_reference(p, ranks.at(0).tensors));
}

}  // namespace
}  // namespace cake::test
