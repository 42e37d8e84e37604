// nondet's hand-off: a replayed forward leaves chunk states in its workspace and the backward that follows uses them,
// with the same bits; whatever takes their place is counted and costs time alone.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

namespace kcp_nondet = cake::kda_nondet_train_kcp;
using kcp::RecomputeHandle;

KdaProblem pack() { return make_problem(kcp_spec({kSegment + 70, 0, 90, 1})); }
kcp::Partition cut(const KdaProblem& p) {
  return kcp::Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{37, kSegment + 20});
}

/// One rank after a forward that stored and a forward that replayed into `saved`.
struct Replayed {
  Replayed(const KdaProblem& p, const kcp::Context& context, kcp_nondet::Workspace& workspace,
           const std::function<void(kcp_nondet::Options&)>& change = {})
      : call(p, context) {
    if (change) change(call.options);
    call.workspace = &workspace;
    call.forward(&handle);
    call.saved = &saved;
    call.forward(&handle);
  }
  RankCall<NondetKcp> call;
  RecomputeHandle handle;
  kcp_nondet::Saved saved;
};

/// Row gradients: what does not depend on the order in which tasks finish.
std::map<std::string, HostTensor> row_results(const RankResults& results) {
  std::map<std::string, HostTensor> rows;
  for (const auto& [name, tensor] : results.tensors) {
    if (!is_parameter_gradient(name)) rows.emplace(name, tensor);
  }
  return rows;
}

void expect_same(const RankResults& a, const RankResults& b) {
  const auto rows = row_results(b);
  for (const auto& [name, tensor] : row_results(a)) EXPECT_TRUE(same_bits(tensor, rows.at(name), name));
}

/// Runs fn(context) on every rank.
void on_ranks(const KdaProblem& p, const std::function<void(const kcp::Context&)>& fn) {
  const kcp::Partition partition = cut(p);
  ThreadGroup(partition.world_size()).run([&](Communicator& comm) { fn(kcp::Context(partition, comm)); });
}

TEST(KdaKcpHandoff, TheBackwardThatFollowsUsesTheRows) {
  const KdaProblem p = pack();
  on_ranks(p, [&](const kcp::Context& context) {
    const RankResults plain = run_rank<NondetKcp>(p, context);
    kcp_nondet::Workspace workspace;
    Replayed r(p, context, workspace);
    EXPECT_EQ(workspace.handoff_stats().save, 1u);
    for (std::uint64_t n = 1; n <= 2; ++n) {  // a retained graph runs its backward again
      r.call.backward();
      EXPECT_EQ(workspace.handoff_stats().bound, n);
    }
    r.call.reduce();
    expect_same(r.call.results(), plain);
  });
}

TEST(KdaKcpHandoff, AnotherForwardTakesThePlace) {
  const KdaProblem p = pack();
  on_ranks(p, [&](const kcp::Context& context) {
    const RankResults plain = run_rank<NondetKcp>(p, context);
    kcp_nondet::Workspace workspace;
    Replayed first(p, context, workspace), second(p, context, workspace);
    first.call.backward();
    EXPECT_EQ(workspace.handoff_stats().refused_workspace, 1u);
    EXPECT_EQ(workspace.handoff_stats().bound, 0u);
    first.call.reduce();
    expect_same(first.call.results(), plain);
    second.call.backward();
    EXPECT_EQ(workspace.handoff_stats().bound, 1u);
    second.call.reduce();
    expect_same(second.call.results(), plain);
  });
}

TEST(KdaKcpHandoff, AnotherWorkspaceRebuilds) {
  const KdaProblem p = pack();
  on_ranks(p, [&](const kcp::Context& context) {
    const RankResults plain = run_rank<NondetKcp>(p, context);
    kcp_nondet::Workspace workspace, other;
    Replayed r(p, context, workspace);
    r.call.workspace = &other;
    r.call.backward();
    EXPECT_EQ(other.handoff_stats().refused_overwritten, 1u);
    r.call.reduce();
    expect_same(r.call.results(), plain);
  });
}

TEST(KdaKcpHandoff, OptionsTurnItOff) {
  const KdaProblem p = pack();
  on_ranks(p, [&](const kcp::Context& context) {
    kcp_nondet::Workspace workspace;
    Replayed off(p, context, workspace, [](kcp_nondet::Options& o) { o.checkpoint_handoff = false; });
    Replayed none(p, context, workspace, [](kcp_nondet::Options& o) { o.saved_rows = kcp_nondet::SavedRows::kNone; });
    EXPECT_EQ(workspace.handoff_stats().save, 0u);
    const auto shape = off.call.shape();
    EXPECT_EQ(handoff_bytes(context, shape, off.call.options), 0u);
    EXPECT_EQ(handoff_bytes(context, shape, none.call.options), 0u);
    Replayed on(p, context, workspace);
    on.call.options.checkpoint_handoff = false;  // the backward does not ask for what the forward left
    on.call.backward();
    EXPECT_EQ(workspace.handoff_stats().refused_option, 1u);
  });
}

TEST(KdaKcpHandoff, RowsThatTheCpuDoesNotKeepAreRefusedByName) {
  const KdaProblem p = pack();
  for (const auto& [rows, name] :
       {std::pair{kcp_nondet::SavedRows::kWy, "wy"}, {kcp_nondet::SavedRows::kIntra, "intra"}}) {
    on_ranks(p, [&, rows = rows, name = name](const kcp::Context& context) {
      RankCall<NondetKcp> call(p, context);
      call.options.saved_rows = rows;
      try {
        call.forward();
        ADD_FAILURE() << "not refused";
      } catch (const NotSupported& e) {
        EXPECT_NE(std::string(e.what()).find(std::string("saved_rows: got ") + name), std::string::npos) << e.what();
      }
      EXPECT_THROW(handoff_bytes(context, call.shape(), call.options), NotSupported);
    });
  }
}

TEST(KdaKcpHandoff, ACallersMemoryHoldsThemWhereTheQueriesSay) {
  const KdaProblem p = pack();
  on_ranks(p, [&](const kcp::Context& context) {
    const RankResults plain = run_rank<NondetKcp>(p, context);
    const auto shape = RankCall<NondetKcp>::shape_of(p);
    const auto options = RankCall<NondetKcp>::options_of(p, {});
    const std::size_t rows = handoff_bytes(context, shape, options);
    const std::size_t bytes = workspace_bytes(context, shape, options, 1);
    for (const bool room : {true, false}) {
      GuardedMemory memory(bytes + (room ? rows : 0), kNanPattern, 1);
      kcp_nondet::Workspace workspace(memory.data(), memory.size());
      Replayed r(p, context, workspace);
      r.call.backward();
      const kcp_nondet::HandoffStats stats = workspace.handoff_stats();
      if (context.rows() > 0 && room) {
        EXPECT_EQ(stats.save, 1u);
        EXPECT_EQ(stats.bound, 1u);
      }
      if (!room && rows > bytes) {
        EXPECT_EQ(stats.refused_memory, 1u);
        EXPECT_EQ(stats.bound, 0u);
      }
      r.call.reduce();
      expect_same(r.call.results(), plain);
      EXPECT_TRUE(memory.guards_intact());
      // A larger call reaches into the rows: they are lost, not wrong.
      if (!room || stats.bound == 0) continue;
      RankCall<NondetKcp> other(p, context);
      other.workspace = &workspace;
      other.backward();  // recomputes: the largest call
      r.call.fill(__builtin_nan(""));
      r.call.forward(&r.handle);
      r.call.backward();
      r.call.reduce();
      expect_same(r.call.results(), plain);
    }
  });
}

}  // namespace
}  // namespace cake::test
