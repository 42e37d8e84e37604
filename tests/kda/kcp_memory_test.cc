// With a caller's memory a rank's calls take nothing from the heap that grows with the rows: what they do take are
// lists of messages and segments, and what the transport copies.
#include <gtest/gtest.h>

#include "tests/kda/allocations.h"
#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using kcp::Context;
using kcp::Partition;

struct Taken {
  long forward = 0, backward = 0;
};

/// Heap bytes of a forward and a backward on one rank that has all memory from its caller.
template <class P>
Taken taken(std::int64_t length, bool tape, bool recompute, bool own_workspace = false) {
  KdaSpec spec = kcp_spec({length}, true);
  spec.K = spec.V = 16;
  const KdaProblem p = make_problem(spec);
  ThreadGroup group(1);
  const Context context(Partition::make(offsets_of(p), 1), group.communicator(0));
  KcpRun how;
  how.tape = tape;
  RankCall<P> call(p, context, how);
  const auto shape = call.shape();
  GuardedMemory set(saved_bytes(context, shape, call.options), kNanPattern);
  GuardedMemory memory(workspace_bytes(context, shape, call.options, 1), kNanPattern);
  typename P::Saved saved(set.data(), set.size());
  typename P::Workspace workspace(memory.data(), memory.size());
  call.saved = recompute ? nullptr : &saved;
  call.workspace = own_workspace ? nullptr : &workspace;
  call.forward();
  call.backward();  // the partial sums and what else is made once
  Taken bytes;
  const long start = allocated_bytes();
  call.forward();
  const long middle = allocated_bytes();
  call.backward();
  bytes.forward = middle - start;
  bytes.backward = allocated_bytes() - middle;
  EXPECT_TRUE(set.guards_intact() && memory.guards_intact());
  EXPECT_GT(memory.size(), 100'000u);
  return bytes;
}

template <class P>
class KdaKcpMemory : public testing::Test {};
using Packages = testing::Types<DetKcp, NondetKcp>;
TYPED_TEST_SUITE(KdaKcpMemory, Packages);

TYPED_TEST(KdaKcpMemory, TheHeapDoesNotGrowWithTheRows) {
  for (const bool tape : {false, true}) {
    for (const bool recompute : {false, true}) {
      const Taken small = taken<TypeParam>(kSegment / 2 + 1, tape, recompute);
      const Taken large = taken<TypeParam>(kSegment, tape, recompute);
      EXPECT_EQ(large.forward, small.forward);
      EXPECT_EQ(large.backward, small.backward);
      EXPECT_LT(large.forward, 64 * 1024);
      EXPECT_LT(large.backward, 64 * 1024);
    }
  }
}

TYPED_TEST(KdaKcpMemory, TheMeterSeesWhatACallTakes) {
  const Taken small = taken<TypeParam>(kSegment / 2 + 1, false, true, true);
  const Taken large = taken<TypeParam>(kSegment, false, true, true);
  EXPECT_GT(small.forward, 64 * 1024);
  EXPECT_GT(large.backward, small.backward);
}

TYPED_TEST(KdaKcpMemory, MoreSegmentsTakeShortListsOnly) {
  const Taken one = taken<TypeParam>(kSegment, false, false);
  const Taken ten = taken<TypeParam>((kShortSegments ? 20 : 3) * kSegment, false, false);
  EXPECT_LT(ten.forward, one.forward + 20 * 1024);
  EXPECT_LT(ten.backward, one.backward + 20 * 1024);
}

}  // namespace
}  // namespace cake::test
