// Recompute handles: the first forward stores what it receives, the next ones replay it without communication, and
// nothing changes a bit.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::CheckpointKeep;
using kcp::Context;
using kcp::Exchange;
using kcp::Partition;
using kcp::RecomputeHandle;
using Cuts = std::vector<std::int64_t>;

bool operator==(const CommCounters& a, const CommCounters& b) {
  return a.messages_sent == b.messages_sent && a.bytes_sent == b.bytes_sent && a.bytes_received == b.bytes_received &&
         a.all_gathers == b.all_gathers;
}

/// A communicator that counts every operation it is asked for, agreements too.
std::unique_ptr<Communicator> counting(Communicator& inner, int& operations) {
  CommCallbacks calls;
  calls.rank = inner.rank();
  calls.size = inner.size();
  calls.all_gather = [&](const void* data, std::size_t bytes, void* all) {
    ++operations;
    inner.all_gather(data, bytes, all);
  };
  calls.exchange = [&](std::span<const Send> sends, std::span<const Receive> receives) {
    ++operations;
    inner.exchange(sends, receives);
  };
  return make_callback_communicator(calls);
}

KdaProblem pack() { return make_problem(kcp_spec({2 * kSegment + 70, 0, 90, 1}, true)); }

Partition cut(const KdaProblem& p) {
  return Partition::from_cut_points(offsets_of(p), Cuts{37, kSegment + 70, 2 * kSegment + 65});
}

/// Results of one package, one call after another, without handles.
template <class P>
KdaResults plain(const KdaProblem& p, const Partition& partition, const KcpRun& how) {
  return gathered(p, partition, run_ranks<P>(p, partition, how));
}

template <class P>
std::vector<std::string> stable_tensors(const KdaResults& results) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : results) {
    if (!P::kNondet || !is_parameter_gradient(name)) names.push_back(name);
  }
  return names;
}

/// A checkpointed region: a forward that keeps nothing but the handle; later the forward again, filling a saved set,
/// and the backward.
template <class P>
void check_replay(const KdaProblem& p, const KcpRun& how) {
  const Partition partition = cut(p);
  const KdaResults expected = plain<P>(p, partition, how);
  std::vector<RankResults> ranks(static_cast<std::size_t>(partition.world_size()));
  ThreadGroup(partition.world_size()).run([&](Communicator& inner) {
    int operations = 0;
    const auto comm = counting(inner, operations);
    const Context context(partition, *comm);
    RecomputeHandle handle;
    EXPECT_TRUE(handle.entries().empty());
    EXPECT_EQ(handle.nbytes(), 0u);
    RankCall<P> call(p, context, how);
    typename P::Workspace workspace;
    call.workspace = &workspace;
    call.forward(&handle);
    EXPECT_EQ(handle.entries(), std::vector<std::string>{"kda"});
    const KdaResults first = call.results().tensors;

    call.fill(2.0);
    typename P::Saved saved;
    call.saved = &saved;
    const CommCounters before = comm->counters();
    const int operations_before = operations;
    call.forward(&handle);
    EXPECT_TRUE(before == comm->counters()) << "a replay moved bytes";
    EXPECT_EQ(operations, operations_before) << "a replay communicated";
    EXPECT_TRUE(same_bits(call.result("out"), first.at("out"), "out"));
    EXPECT_TRUE(same_bits(call.result("final_state"), first.at("final_state"), "final_state"));
    EXPECT_FALSE(saved.empty());
    call.backward();
    call.reduce();
    ranks[static_cast<std::size_t>(comm->rank())] = call.results();
    EXPECT_EQ(handle.entries(), std::vector<std::string>{"kda"}) << "an entry serves any number of forwards";
  });
  EXPECT_TRUE(same_bits(gathered(p, partition, ranks), expected, stable_tensors<P>(expected)));
}

TEST(KdaKcpRecompute, AReplayGivesTheSameBits) {
  const KdaProblem p = pack();
  for (const Exchange exchange : all_exchanges()) {
    for (const std::optional<CheckpointKeep> keep :
         {std::optional<CheckpointKeep>{}, std::optional(CheckpointKeep::kStates),
          std::optional(CheckpointKeep::kTransfer)}) {
      for (const bool tape : {false, true}) {
        if (tape && kSlow && exchange != Exchange::kRelay) continue;
        SCOPED_TRACE(std::string(kcp::exchange_name(exchange)) + (tape ? " tape" : " light") +
                     (keep ? *keep == CheckpointKeep::kStates ? " states" : " transfer" : ""));
        KcpRun how;
        how.exchange = exchange;
        how.checkpoint_keep = keep;
        how.tape = tape;
        check_replay<DetKcp>(p, how);
        check_replay<NondetKcp>(p, how);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(KdaKcpRecompute, TheDetBitsAreThoseOfOneRank) {
  const KdaProblem p = pack();
  EXPECT_TRUE(same_bits(plain<DetKcp>(p, cut(p), {}), run(p)));
}

TEST(KdaKcpRecompute, KeepingStatesAloneIsSmaller) {
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  std::vector<std::size_t> sizes[2];
  for (const int keep : {0, 1}) {
    sizes[keep].resize(static_cast<std::size_t>(partition.world_size()));
    ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
      const Context context(partition, comm);
      KcpRun how;
      how.exchange = Exchange::kGather;
      how.checkpoint_keep = keep == 0 ? CheckpointKeep::kStates : CheckpointKeep::kTransfer;
      RankCall<DetKcp> call(p, context, how);
      RecomputeHandle handle;
      call.forward(&handle);
      sizes[keep][static_cast<std::size_t>(comm.rank())] = handle.nbytes();
    });
  }
  std::size_t states = 0, transfers = 0;
  for (std::size_t r = 0; r < sizes[0].size(); ++r) {
    EXPECT_LE(sizes[0][r], sizes[1][r]) << "rank " << r;
    states += sizes[0][r];
    transfers += sizes[1][r];
  }
  EXPECT_GT(states, 0u);
  EXPECT_LT(states, transfers);
}

TEST(KdaKcpRecompute, ClearDropsTheEntriesAndCopiesShareThem) {
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  ThreadGroup(partition.world_size()).run([&](Communicator& inner) {
    int operations = 0;
    const auto comm = counting(inner, operations);
    const Context context(partition, *comm);
    RankCall<DetKcp> call(p, context);
    RecomputeHandle handle;
    RecomputeHandle copy = handle;
    call.forward(&handle);
    const HostTensor out = call.result("out");
    EXPECT_EQ(copy.entries().size(), 1u);
    EXPECT_EQ(copy.nbytes(), handle.nbytes());
    copy.clear();
    EXPECT_TRUE(handle.entries().empty());
    EXPECT_EQ(handle.nbytes(), 0u);
    const int before = operations;
    call.fill(5.0);
    call.forward(&handle);
    EXPECT_GT(operations, before) << "after clear the forward stores again";
    EXPECT_EQ(handle.entries().size(), 1u);
    EXPECT_TRUE(same_bits(call.result("out"), out));
    call.fill(6.0);
    call.forward(&copy);
    EXPECT_TRUE(same_bits(call.result("out"), out));
  });
}

/// Stores with one call, spoils the second; returns rank 0's error after checking that nothing was written and that
/// the correct call gives its bits afterwards.
template <class First, class Second>
std::string refused_replay(const KdaProblem& p, const std::function<void(RankCall<Second>&)>& spoil) {
  const Partition partition = cut(p);
  std::string error;
  ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
    const Context context(partition, comm);
    RecomputeHandle handle;
    RankCall<First> first(p, context);
    first.forward(&handle);
    RankCall<Second> second(p, context);
    second.fill(-7.0);
    spoil(second);
    const std::string mine = error_of([&] { second.forward(&handle); });
    EXPECT_TRUE(second.untouched()) << "rank " << comm.rank() << ": " << mine;
    if (comm.rank() == 0) error = mine;
    EXPECT_EQ(mine.substr(0, mine.find('|')), "InvalidArgument ") << "rank " << comm.rank() << ": " << mine;
    EXPECT_NE(mine.find("recompute"), std::string::npos) << mine;
    const HostTensor out = first.result("out");
    first.fill(-8.0);
    first.forward(&handle);
    EXPECT_TRUE(same_bits(first.result("out"), out)) << "after " << mine;
  });
  return error;
}

TEST(KdaKcpRecompute, ChangedOptionsAreRefused) {
  const KdaProblem p = pack();
  using Call = RankCall<DetKcp>;
  const auto check = [&](const std::string& field, const std::function<void(Call&)>& spoil) {
    const std::string error = refused_replay<DetKcp, DetKcp>(p, spoil);
    EXPECT_NE(error.find(field), std::string::npos) << error;
  };
  check("scale", [](Call& c) { c.options.scale = 2.0f; });
  check("lower_bound", [](Call& c) { c.options.lower_bound = -3.0f; });
  check("use_qk_l2norm_in_kernel", [](Call& c) { c.options.use_qk_l2norm_in_kernel = false; });
}

TEST(KdaKcpRecompute, ChangedInputsAreRefused) {
  // The record holds a digest of each rank's first and last rows.
  const KdaProblem p = pack();
  KdaProblem other = p;
  const auto next = [](double x) { return x * 1.5 + 0.25; };
  for (std::int64_t i = 0; i < other.k.numel(); ++i) other.k.set(i, next(other.k.at(i)));
  const Partition partition = cut(p);
  ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
    const Context context(partition, comm);
    RecomputeHandle handle;
    RankCall<DetKcp> first(p, context), second(other, context);
    first.forward(&handle);
    second.fill(-7.0);
    const std::string mine = error_of([&] { second.forward(&handle); });
    EXPECT_EQ(mine.find("InvalidArgument | "), 0u) << "rank " << comm.rank() << ": " << mine;
    EXPECT_NE(mine.find("recompute"), std::string::npos) << mine;
    EXPECT_TRUE(second.untouched());
    handle.clear();
    second.forward(&handle);
    EXPECT_TRUE(same_bits(second.result("out"), pick_rows(run(other).at("out"), partition.global_rows(comm.rank()))));
  });
}

TEST(KdaKcpRecompute, AnEntryOfTheOtherPackageIsRefused) {
  const KdaProblem p = pack();
  const auto nothing = [](auto&) {};
  const std::string mine = refused_replay<NondetKcp, DetKcp>(p, nothing);
  EXPECT_NE(mine.find(NondetKcp::kModule), std::string::npos) << mine;
  const std::string other = refused_replay<DetKcp, NondetKcp>(p, nothing);
  EXPECT_NE(other.find(DetKcp::kModule), std::string::npos) << other;
}

TEST(KdaKcpRecompute, AnEntryOfAnotherContextIsRefused) {
  const KdaProblem p = pack();
  ThreadGroup(2).run([&](Communicator& comm) {
    const Context one(Partition::from_cut_points(offsets_of(p), Cuts{70}), comm);
    const Context two(Partition::from_cut_points(offsets_of(p), Cuts{71}), comm);
    RecomputeHandle handle;
    RankCall<DetKcp> first(p, one), second(p, two);
    first.forward(&handle);
    second.fill(-7.0);
    const std::string mine = error_of([&] { second.forward(&handle); });
    EXPECT_EQ(mine.find("InvalidArgument | "), 0u) << mine;
    EXPECT_NE(mine.find("recompute"), std::string::npos) << mine;
    EXPECT_TRUE(second.untouched());
  });
}

TEST(KdaKcpRecompute, ContradictionOfKeepAndSaveTransfer) {
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  for (const bool transfer : {false, true}) {
    ThreadGroup(partition.world_size()).run([&](Communicator& comm) {
      const Context context(partition, comm);
      RankCall<DetKcp> call(p, context);
      call.options.save_transfer = transfer;
      call.options.checkpoint_keep = transfer ? CheckpointKeep::kStates : CheckpointKeep::kTransfer;
      call.fill(-7.0);
      const std::string mine = error_of([&] { call.forward(); });
      EXPECT_EQ(mine.find("InvalidArgument | "), 0u) << mine;
      EXPECT_NE(mine.find("save_transfer"), std::string::npos) << mine;
      EXPECT_NE(mine.find("checkpoint_keep"), std::string::npos) << mine;
      EXPECT_TRUE(call.untouched());
      // The two may say the same.
      call.options.checkpoint_keep = transfer ? CheckpointKeep::kTransfer : CheckpointKeep::kStates;
      call.forward();
      EXPECT_FALSE(call.untouched());
    });
  }
}

}  // namespace
}  // namespace cake::test
