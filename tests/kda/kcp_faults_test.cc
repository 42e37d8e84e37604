// A transport that fails under the packages: at every operation, on every rank, loudly and silently. Every rank gets an
// error within the time limit, nothing hangs or crashes, and afterwards everything works.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/kda/kcp_cases.h"

namespace cake::test {
namespace {

using namespace std::chrono_literals;
using kcp::Context;
using kcp::Exchange;
using kcp::Partition;

/// A rank of a ThreadGroup behind callbacks, whose n-th operation from now on fails.
class Faulty {
 public:
  explicit Faulty(Communicator& inner) {
    CommCallbacks calls;
    calls.rank = inner.rank();
    calls.size = inner.size();
    calls.all_gather = [this, &inner](const void* data, std::size_t bytes, void* all) {
      step();
      inner.all_gather(data, bytes, all);
    };
    calls.exchange = [this, &inner](std::span<const Send> sends, std::span<const Receive> receives) {
      step();
      inner.exchange(sends, receives);
    };
    outer_ = make_callback_communicator(calls);
  }
  Communicator& communicator() { return *outer_; }
  void fail_at(int n) { left_ = n; }
  int operations() const { return operations_; }

 private:
  void step() {
    ++operations_;
    if (left_ >= 0 && left_-- == 0) throw std::runtime_error("the cable is out");
  }
  std::unique_ptr<Communicator> outer_;
  int operations_ = 0, left_ = -1;
};

/// What survives a failed call: a workspace, a saved set and partial sums, used again afterwards.
template <class P>
struct Objects {
  typename P::Workspace workspace;
  typename P::Saved saved;
};

struct Fault {
  int victim = 0, operation = 0;
  bool silent = false;  ///< the victim leaves without a word: the others wait until their time is up
  std::chrono::milliseconds timeout = 30s;
};

constexpr int kRanks = 3;

struct Rig {
  explicit Rig(Exchange exchange) {
    how.exchange = exchange;
    p = make_problem(kcp_spec({kShortSegments ? 3 * kSegment + 10 : 200, 70}, true));
    partition = std::make_unique<Partition>(
        Partition::from_cut_points(offsets_of(p), std::vector<std::int64_t>{p.offsets[1] / 3, p.offsets[1] - 40}));
    one = one_rank(p);
  }

  /// Forward, backward and reduction on one rank, through the objects given.
  template <class P>
  RankResults calls(const Context& context, Objects<P>& objects) const {
    RankCall<P> call(p, context, how);
    call.workspace = &objects.workspace;
    call.saved = &objects.saved;
    call.forward();
    call.backward();
    call.reduce();
    return call.results();
  }

  /// Operations of each rank's calls after the context has been made.
  template <class P>
  std::vector<int> operations() const {
    std::vector<int> counts(kRanks);
    ThreadGroup(kRanks).run([&](Communicator& inner) {
      Faulty faulty(inner);
      const Context context(*partition, faulty.communicator());
      const int before = faulty.operations();
      Objects<P> objects;
      calls<P>(context, objects);
      counts[static_cast<std::size_t>(inner.rank())] = faulty.operations() - before;
    });
    return counts;
  }

  /// One fault; then the same objects on a group that works.
  template <class P>
  void check(const Fault& fault) const {
    SCOPED_TRACE(std::string(P::kModule) + ", " + kcp::exchange_name(how.exchange) + ": operation " +
                 std::to_string(fault.operation) + " of rank " + std::to_string(fault.victim) +
                 (fault.silent ? ", silent" : ""));
    std::vector<Objects<P>> objects(kRanks);
    std::vector<std::string> errors(kRanks, "none");
    const auto start = std::chrono::steady_clock::now();
    try {
      ThreadGroup(kRanks, fault.timeout).run([&](Communicator& inner) {
        const auto r = static_cast<std::size_t>(inner.rank());
        Faulty faulty(inner);
        errors[r] = error_of([&] {
          const Context context(*partition, faulty.communicator());
          if (inner.rank() == fault.victim) faulty.fail_at(fault.operation);
          calls<P>(context, objects[r]);
        });
        if (!fault.silent) throw CommError(errors[r]);  // ends the group for the others
      });
    } catch (const CommError&) {
    }
    const auto took = std::chrono::steady_clock::now() - start;
    for (const std::string& error : errors) EXPECT_EQ(error.find("CommError | "), 0u) << error;
    if (!fault.silent) {  // else, on a busy machine, the victim's own time may be up first
      EXPECT_NE(errors[static_cast<std::size_t>(fault.victim)].find("the cable is out"), std::string::npos);
    }
    EXPECT_LT(took, fault.silent ? fault.timeout + 20s : 20s);

    std::vector<RankResults> ranks(kRanks);
    ThreadGroup(kRanks).run([&](Communicator& comm) {
      const Context context(*partition, comm);
      const auto r = static_cast<std::size_t>(comm.rank());
      ranks[r] = calls<P>(context, objects[r]);
    });
    if (!P::kNondet) expect_bits(p, one, *partition, ranks);
  }

  KcpRun how;
  KdaProblem p;
  std::unique_ptr<Partition> partition;
  OneRank one;
};

template <class P>
class KdaKcpFaults : public testing::Test {};
using Packages = testing::Types<DetKcp, NondetKcp>;
TYPED_TEST_SUITE(KdaKcpFaults, Packages);

TYPED_TEST(KdaKcpFaults, EveryOperationOfEveryRank) {
  for (const Exchange exchange : {Exchange::kRelay, Exchange::kGather}) {
    const Rig rig(exchange);
    const std::vector<int> operations = rig.operations<TypeParam>();
    for (int victim = 0; victim < kRanks; ++victim) {
      const int count = operations[static_cast<std::size_t>(victim)];
      EXPECT_GT(count, 3) << "agreements, forward, backward and reduction";
      for (int n = 0; n < count; n += kSanitized ? 3 : 1) {
        rig.check<TypeParam>({victim, n});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TYPED_TEST(KdaKcpFaults, ARankThatFallsSilent) {
  // The last operation is the reduction's, in which all take part: whoever is missing, everybody notices.
  const Rig rig(Exchange::kRelay);
  const int count = rig.operations<TypeParam>()[1];
  for (int n = 0; n < count; n += kSanitized ? 5 : 2) {
    rig.check<TypeParam>({1, n, true, 300ms});
    if (testing::Test::HasFailure()) return;
  }
}

TYPED_TEST(KdaKcpFaults, AContextWhoseAgreementFails) {
  const Rig rig(Exchange::kRelay);
  std::vector<std::string> errors(kRanks);
  try {
    ThreadGroup(kRanks).run([&](Communicator& inner) {
      Faulty faulty(inner);
      if (inner.rank() == 2) faulty.fail_at(0);
      auto& error = errors[static_cast<std::size_t>(inner.rank())];
      error = error_of([&] { const Context context(*rig.partition, faulty.communicator()); });
      throw CommError(error);
    });
  } catch (const CommError&) {
  }
  for (const std::string& error : errors) EXPECT_EQ(error.find("CommError | "), 0u) << error;
}

}  // namespace
}  // namespace cake::test
