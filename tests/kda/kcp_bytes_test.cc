// Byte queries over ranks: a caller's memory of exactly the promised size is enough and less is refused before anything
// is written; what a rank sends and receives is what comm_bytes says, phase by phase.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "tests/kda/kcp_refused.h"

namespace cake::test {
namespace {

using kcp::CommBytes;
using kcp::CommPhase;
using kcp::Context;
using kcp::Exchange;
using kcp::Partition;
using Cuts = std::vector<std::int64_t>;

template <class P>
class KdaKcpBytes : public testing::Test {};
using Packages = testing::Types<DetKcp, NondetKcp>;
TYPED_TEST_SUITE(KdaKcpBytes, Packages);

KdaProblem pack(bool raw_gate = true) { return make_problem(kcp_spec({2 * kSegment + 70, 0, 65, 1}, raw_gate)); }
Partition cut(const KdaProblem& p) {
  return Partition::from_cut_points(offsets_of(p), Cuts{37, kSegment + 70, p.offsets.at(1) + 10});
}

TYPED_TEST(KdaKcpBytes, ExactSizesAreEnoughAndOneByteLessIsRefused) {
  using P = TypeParam;
  for (const bool raw_gate : {false, true}) {
    const KdaProblem p = pack(raw_gate);
    const Partition partition = cut(p);
    const auto expected = run_ranks<P>(p, partition);
    for (const bool tape : {false, true}) {
      for (const bool recompute : {false, true}) {
        ThreadGroup(partition.world_size(), kRefusalTimeout).run([&](Communicator& comm) {
          const ScopedNumThreads one(1);
          const Context context(partition, comm);
          const auto& tensors = expected[static_cast<std::size_t>(comm.rank())].tensors;
          KcpRun how;
          how.tape = tape;
          RankCall<P> call(p, context, how);
          const auto shape = call.shape();
          const std::size_t set_size = saved_bytes(context, shape, call.options);
          const std::size_t forward_size = forward_workspace_bytes(context, shape, call.options, !recompute);
          const std::size_t backward_size = backward_workspace_bytes(context, shape, recompute, call.options);
          // An address 1 past a multiple of 64 needs all of the room that alignment may cost.
          GuardedMemory set(set_size, kNanPattern, 1), first(forward_size, kNanPattern, 1),
              second(backward_size, kNanPattern, 1);
          typename P::Saved saved(set.data(), set.size());
          typename P::Workspace workspace(first.data(), first.size()), back(second.data(), second.size());
          call.saved = recompute ? nullptr : &saved;
          // A rank that computes no chunk may need nothing: then the others' refusal reaches it.
          const auto refused = [&](const std::string& name, bool backward, std::size_t size) {
            call.fill(kUnwritten);
            const std::string error = error_of([&] { backward ? call.backward() : call.forward(); });
            EXPECT_EQ(error.find(size > 0 ? "OutOfMemory | " + name : "CommError | rank "), 0u) << error;
            EXPECT_TRUE(call.untouched()) << error;
          };
          const auto less_than = [](std::size_t size) { return size > 0 ? size - 1 : 0; };
          if (!recompute) {
            GuardedMemory small_set(less_than(set_size), kNanPattern, 1);
            typename P::Saved small(small_set.data(), small_set.size());
            call.saved = &small;
            call.workspace = &workspace;
            refused("saved", false, set_size);
            EXPECT_TRUE(small.empty());
            EXPECT_TRUE(small_set.guards_intact());
            call.saved = &saved;
          }
          GuardedMemory less(less_than(forward_size), kNanPattern, 1),
              back_less(less_than(backward_size), kNanPattern, 1);
          typename P::Workspace small(less.data(), less.size()), small_back(back_less.data(), back_less.size());
          call.workspace = &small;
          refused("workspace", false, forward_size);
          call.workspace = &workspace;
          call.forward();
          EXPECT_TRUE(same_bits(call.result("out"), tensors.at("out")));
          if (!recompute) {
            EXPECT_EQ(saved.nbytes(), set_size);
          }
          call.workspace = &small_back;
          refused("workspace", true, backward_size);
          call.workspace = &back;
          call.backward();
          for (auto* name : {"dq", "dk", "dv", "dg", "dbeta"}) {
            EXPECT_TRUE(same_bits(call.result(name), tensors.at(name), name));
          }
          EXPECT_EQ(workspace.nbytes(), forward_size) << "the caller's memory is all there is";
          EXPECT_EQ(back.nbytes(), backward_size);
          EXPECT_TRUE(set.guards_intact() && first.guards_intact() && second.guards_intact());
          EXPECT_TRUE(less.guards_intact() && back_less.guards_intact());
        });
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(KdaKcpBytes, TooLittleMemoryOnOneRankIsToldToTheOthers) {
  using P = TypeParam;
  const Refusals<P> rig;
  typename P::Workspace none(nullptr, 0);
  typename P::Saved nothing(nullptr, 0);
  for (const bool backward : {false, true}) {
    rig.expect_own_error("OutOfMemory", "workspace", backward, [&](auto& call) { call.workspace = &none; });
  }
  rig.expect_own_error("OutOfMemory", "saved", false, [&](auto& call) { call.saved = &nothing; });
}

TYPED_TEST(KdaKcpBytes, MemoryForSomeThreadsServesFewerAndMore) {
  using P = TypeParam;
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  const auto expected = run_ranks<P>(p, partition);
  ThreadGroup(partition.world_size(), kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    const auto& tensors = expected[static_cast<std::size_t>(comm.rank())].tensors;
    for (const int sized_for : {1, 2, 5}) {
      for (const int threads : {1, 2, 7}) {
        KcpRun how;
        how.threads = threads;
        RankCall<P> call(p, context, how);
        const auto shape = call.shape();
        GuardedMemory memory(workspace_bytes(context, shape, call.options, sized_for), kHugePattern, 1);
        typename P::Workspace workspace(memory.data(), memory.size());
        call.workspace = &workspace;
        call.forward();
        call.backward();
        for (auto* name : {"out", "dq", "dg"}) EXPECT_TRUE(same_bits(call.result(name), tensors.at(name), name));
        EXPECT_TRUE(memory.guards_intact());
      }
    }
    const auto shape = RankCall<P>::shape_of(p);
    EXPECT_LE(forward_workspace_bytes(context, shape, {}, false, 1),
              forward_workspace_bytes(context, shape, {}, false, 2));
    const ScopedNumThreads three(3);
    EXPECT_EQ(forward_workspace_bytes(context, shape), forward_workspace_bytes(context, shape, {}, false, 3));
    EXPECT_GE(workspace_bytes(context, shape), backward_workspace_bytes(context, shape, true));
  });
}

TYPED_TEST(KdaKcpBytes, AGrowingWorkspaceAsksForTheSameBytes) {
  using P = TypeParam;
  const KdaProblem p = pack();
  const Partition partition = cut(p);
  ThreadGroup(partition.world_size(), kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    RankCall<P> call(p, context);
    typename P::Workspace workspace;
    typename P::Saved saved;
    EXPECT_EQ(workspace.nbytes(), 0u);
    EXPECT_EQ(saved.nbytes(), 0u);
    EXPECT_TRUE(saved.empty());
    call.workspace = &workspace;
    call.saved = &saved;
    call.forward();
    const auto shape = call.shape();
    const std::size_t first = forward_workspace_bytes(context, shape, call.options, true, 1);
    const std::size_t second = backward_workspace_bytes(context, shape, false, call.options, 1);
    EXPECT_EQ(workspace.nbytes(), first);
    EXPECT_EQ(saved.nbytes(), saved_bytes(context, shape, call.options));
    call.backward();
    EXPECT_EQ(workspace.nbytes(), std::max(first, second));
    call.forward();
    EXPECT_EQ(workspace.nbytes(), std::max(first, second)) << "it keeps its size";
  });
}

TYPED_TEST(KdaKcpBytes, QueriesRefuseImpossibleShapes) {
  using P = TypeParam;
  ThreadGroup group(1);
  const Context context(Partition::make(std::vector<std::int32_t>{0, 10}, 1), group.communicator(0));
  const auto refused = [&](const std::string& name, const std::function<void(typename P::Shape&)>& change) {
    typename P::Shape shape;
    shape.K = shape.V = 4;
    change(shape);
    for (const int query : {0, 1, 2, 3, 4}) {
      const std::string error = error_of([&] {
        query == 0   ? saved_bytes(context, shape)
        : query == 1 ? forward_workspace_bytes(context, shape)
        : query == 2 ? backward_workspace_bytes(context, shape, true)
        : query == 3 ? workspace_bytes(context, shape)
                     : comm_bytes(context, shape).c1.sent;
      });
      EXPECT_EQ(error.find("InvalidArgument | " + name), 0u) << "query " << query << ": " << error;
    }
  };
  refused("K", [](auto& s) { s.K = 0; });
  refused("K", [](auto& s) { s.K = 257; });
  refused("V", [](auto& s) { s.V = 300; });
  refused("HV", [](auto& s) { s.H = 2, s.HV = 3; });
  refused("H", [](auto& s) { s.H = 0; });
}

CommPhase moved(const CommCounters& from, const CommCounters& to) {
  return {to.bytes_sent - from.bytes_sent, to.bytes_received - from.bytes_received};
}

std::string text_of(const CommPhase& x) {
  return std::to_string(x.sent) + " sent, " + std::to_string(x.received) + " received";
}

/// comm_bytes against the counters around every call, on every rank.
template <class P>
void check_comm_bytes(const KdaProblem& p, const Partition& partition, const KcpRun& how) {
  std::vector<CommBytes> bytes(static_cast<std::size_t>(partition.world_size()));
  ThreadGroup(partition.world_size(), kRefusalTimeout).run([&](Communicator& comm) {
    const Context context(partition, comm);
    RankCall<P> call(p, context, how);
    const CommBytes said = comm_bytes(context, call.shape(), call.options);
    bytes[static_cast<std::size_t>(comm.rank())] = said;
    typename P::Saved saved;
    call.saved = how.recompute ? nullptr : &saved;
    const auto check = [&](const char* phase, const CommPhase& expected, const std::function<void()>& fn) {
      const CommCounters before = comm.counters();
      fn();
      const CommPhase real = moved(before, comm.counters());
      EXPECT_TRUE(real == expected) << P::kModule << ", " << phase << " on rank " << comm.rank() << ": said "
                                    << text_of(expected) << ", was " << text_of(real);
    };
    check("forward", said.forward(), [&] { call.forward(); });
    if (!how.recompute) {
      check("backward", said.backward(), [&] { call.backward(); });
    } else {
      // What the forward received again, but no outputs of cut chunks.
      const auto outputs = static_cast<std::uint64_t>(p.spec.HV * p.spec.V * dtype_size(p.v.dtype));
      const kcp::RowPlan plan(partition);
      CommPhase expected = said.backward();
      expected += said.c1;
      expected += said.c2;
      expected += said.halo_fwd;
      expected.sent -= static_cast<std::uint64_t>(plan.rows_received(comm.rank())) * outputs;
      expected.received -= static_cast<std::uint64_t>(plan.rows_sent(comm.rank())) * outputs;
      check("backward from the inputs", expected, [&] { call.backward(); });
    }
    if (call.gradients.gate_params != nullptr) check("gate_params", said.gate_params, [&] { call.reduce(); });
  });
  // What all send is what all receive, phase by phase.
  for (CommPhase CommBytes::*phase : {&CommBytes::halo_fwd, &CommBytes::c1, &CommBytes::c2, &CommBytes::halo_bwd,
                                      &CommBytes::b1, &CommBytes::b2, &CommBytes::gate_params}) {
    CommPhase sum;
    for (const CommBytes& x : bytes) sum += x.*phase;
    EXPECT_EQ(sum.sent, sum.received);
  }
}

TYPED_TEST(KdaKcpBytes, CommBytesAreTheCounters) {
  for (const bool raw_gate : {false, true}) {
    KdaSpec spec = kcp_spec({2 * kSegment + 70, 0, 65, 1}, raw_gate);
    spec.dtype = raw_gate ? DType::kBFloat16 : DType::kFloat32;
    spec.raw_gate_dtype = DType::kBFloat16;
    spec.beta_fp32 = raw_gate;
    const KdaProblem p = make_problem(spec);
    Random random(5);
    for (const Exchange exchange : all_exchanges()) {
      KcpRun how;
      how.exchange = exchange;
      for (const bool recompute : {false, true}) {
        how.recompute = recompute;
        if (kSlow && recompute == raw_gate) continue;  // slow: a half of the cases
        for (const int W : {1, 2, 4}) {
          for (const kcp::Layout layout : all_kcp_layouts()) {
            if (kSlow && W < 4 && layout != kcp::Layout::kContiguous) continue;
            check_comm_bytes<TypeParam>(p, Partition::make(offsets_of(p), W, layout), how);
          }
        }
        for (int repeat = 0; repeat < 3; ++repeat) {
          if (kSlow && repeat == 1) continue;
          how.tape = repeat == 1;
          if (repeat == 2 && !recompute) how.save_transfer = false;
          check_comm_bytes<TypeParam>(p, random_cuts(random, offsets_of(p), 5), how);
          check_comm_bytes<TypeParam>(p, random_fragments(random, offsets_of(p), 3), how);
          how.save_transfer.reset();
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(KdaKcpBytes, RelayBytesPerBorderDoNotGrow) {
  // A border at the same place of a chunk and of a segment: longer documents and more of them change nothing.
  using P = TypeParam;
  const auto bytes_at = [](const std::vector<std::int64_t>& lengths, std::int64_t border) {
    KdaSpec spec = kcp_spec(lengths);
    CommPhase sum[2];
    std::vector<std::int32_t> offsets = {0};
    for (const std::int64_t n : lengths) offsets.push_back(offsets.back() + static_cast<std::int32_t>(n));
    const Partition partition = Partition::from_cut_points(offsets, Cuts{border});
    ThreadGroup(2).run([&](Communicator& comm) {
      const Context context(partition, comm);
      typename P::Shape shape;
      shape.H = spec.H;
      shape.HV = spec.HV;
      shape.K = spec.K;
      shape.V = spec.V;
      typename P::Options options;
      options.exchange = Exchange::kRelay;
      const CommBytes said = comm_bytes(context, shape, options);
      CommPhase& mine = sum[comm.rank()];
      mine = said.forward();
      mine += said.backward();
    });
    return std::vector<CommPhase>{sum[0], sum[1]};
  };
  const std::int64_t inside = kSegment + 70, border = 2 * kSegment;
  for (const std::int64_t cut_at : {inside, border}) {
    const auto small = bytes_at({3 * kSegment}, cut_at);
    EXPECT_GT(small[0].sent, 0u);
    EXPECT_EQ(small, bytes_at({60 * kSegment}, cut_at)) << "a longer document";
    EXPECT_EQ(small, bytes_at({20 * kSegment}, 9 * kSegment + cut_at)) << "more segments before the border";
    std::vector<std::int64_t> many(50, 30);
    many.insert(many.begin(), 3 * kSegment);
    EXPECT_EQ(small, bytes_at(many, cut_at)) << "more documents behind it";
    std::vector<std::int64_t> before(50, 64);
    before.push_back(3 * kSegment);
    EXPECT_EQ(small, bytes_at(before, 50 * 64 + cut_at)) << "more documents before it";
  }
  const auto none = bytes_at({100, 200}, 100);
  EXPECT_EQ(none[0], CommPhase{}) << "a border between documents carries nothing";
  EXPECT_EQ(none[1], CommPhase{});
}

}  // namespace
}  // namespace cake::test
