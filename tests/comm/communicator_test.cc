// The contract of Communicator over threads and over callbacks: what arrives, what counts, and what a failing rank does
// to the others.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cake/comm.h"

namespace cake {
namespace {

using namespace std::chrono_literals;

/// Runs fn over threads directly, and again through callbacks that lead to the same threads.
void over_both(int ranks, const std::function<void(Communicator&)>& fn) {
  ThreadGroup(ranks).run(fn);
  ThreadGroup(ranks).run([&](Communicator& inner) {
    CommCallbacks calls;
    calls.rank = inner.rank();
    calls.size = inner.size();
    calls.all_gather = [&](const void* data, std::size_t bytes, void* all) { inner.all_gather(data, bytes, all); };
    calls.exchange = [&](std::span<const Send> sends, std::span<const Receive> receives) {
      inner.exchange(sends, receives);
    };
    const auto outer = make_callback_communicator(calls);
    fn(*outer);
  });
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + " | " + error.what();
  }
  return "none";
}

TEST(CommThreads, AllGatherInRankOrder) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    over_both(ranks, [ranks](Communicator& c) {
      const std::vector<int> mine = {c.rank(), 10 * c.rank()};
      std::vector<int> all(static_cast<std::size_t>(2 * ranks), -1);
      c.all_gather(mine.data(), 2 * sizeof(int), all.data());
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(2 * r)], r);
        EXPECT_EQ(all[static_cast<std::size_t>(2 * r + 1)], 10 * r);
      }
      EXPECT_EQ(c.counters().bytes_sent, 8u * static_cast<unsigned>(ranks - 1));
      EXPECT_EQ(c.counters().bytes_received, c.counters().bytes_sent);
    });
  }
}

TEST(CommThreads, MessagesKeepTheirOrder) {
  over_both(4, [](Communicator& c) {
    const int n = c.size(), next = (c.rank() + 1) % n, before = (c.rank() + n - 1) % n;
    const std::vector<int> out = {c.rank(), c.rank() + 100, c.rank() + 200};
    std::vector<int> in(3, -1);
    int own = -1;
    const std::vector<Send> sends = {
        {next, &out[0], 4}, {c.rank(), &out[2], 4}, {next, &out[1], 4}, {next, nullptr, 0}};
    const std::vector<Receive> receives = {
        {before, &in[0], 4}, {before, &in[1], 4}, {before, nullptr, 0}, {c.rank(), &own, 4}};
    c.exchange(sends, receives);
    EXPECT_EQ(in[0], before);
    EXPECT_EQ(in[1], before + 100);
    EXPECT_EQ(own, c.rank() + 200);
    EXPECT_EQ(c.counters().messages_sent, 4u);
    EXPECT_EQ(c.counters().bytes_sent, 12u);
  });
}

TEST(CommThreads, BarrierWaitsForAll) {
  std::atomic<int> arrived{0};
  ThreadGroup(5).run([&](Communicator& c) {
    std::this_thread::sleep_for(c.rank() * 2ms);
    ++arrived;
    c.barrier();
    EXPECT_EQ(arrived, 5);
    EXPECT_EQ(c.counters().bytes_sent, 0u) << "barriers do not count";
  });
}

TEST(CommThreads, ManyRoundsOfEverything) {
  over_both(3, [](Communicator& c) {
    for (int round = 0; round < 200; ++round) {
      const std::size_t bytes = static_cast<std::size_t>(round * 37 % 500);
      const std::vector<unsigned char> mine(bytes, static_cast<unsigned char>(c.rank() + round));
      std::vector<unsigned char> all(3 * bytes);
      c.all_gather(mine.data(), bytes, all.data());
      for (std::size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i], static_cast<unsigned char>(i / bytes + static_cast<std::size_t>(round)));
      }
      if (round % 10 == 0) c.barrier();
    }
  });
}

TEST(CommThreads, ARankThatThrowsEndsTheOthers) {
  std::atomic<int> told{0};
  const std::string error = error_of([&] {
    ThreadGroup(4, 30s).run([&](Communicator& c) {
      if (c.rank() == 2) throw NotSupported("no such thing");
      const std::string mine = error_of([&] {
        for (;;) c.barrier();
      });
      if (mine == "CommError | rank 2 failed: no such thing") ++told;
      throw CommError("a consequence");
    });
  });
  EXPECT_EQ(error, "NotSupported | no such thing") << "the first error is rethrown";
  EXPECT_EQ(told, 3);
}

TEST(CommThreads, ARankThatDoesNotAnswerIsATimeout) {
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of([] {
    ThreadGroup(2, 50ms).run([](Communicator& c) {
      if (c.rank() == 0) c.barrier();
    });
  });
  EXPECT_EQ(error, "CommError | rank 0 waited 50 ms for rank 1");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST(CommThreads, AnotherSizeThanExpected) {
  const std::string error = error_of([] {
    ThreadGroup(2).run([](Communicator& c) {
      int number = 0;
      if (c.rank() == 0) {
        c.exchange(std::vector<Send>{{1, &number, 4}}, {});
      } else {
        c.exchange({}, std::vector<Receive>{{0, &number, 2}});
      }
    });
  });
  EXPECT_EQ(error, "CommError | rank 1 expected 2 bytes from rank 0, got 4");
}

TEST(CommThreads, AbortReachesLaterCalls) {
  ThreadGroup group(2);
  group.communicator(0).abort("enough");
  EXPECT_EQ(error_of([&] { group.communicator(1).barrier(); }), "CommError | rank 0 failed: enough");
  EXPECT_EQ(error_of([&] { group.communicator(0).barrier(); }), "CommError | rank 0 failed: enough");
}

TEST(CommThreads, BadArguments) {
  EXPECT_THROW(ThreadGroup(0), InvalidArgument);
  EXPECT_THROW(ThreadGroup(1025), InvalidArgument);
  EXPECT_THROW(ThreadGroup(2, 0ms), InvalidArgument);
  ThreadGroup group(2);
  EXPECT_THROW(group.communicator(2), InvalidArgument);
  Communicator& c = group.communicator(0);
  int number = 0;
  EXPECT_THROW(c.exchange(std::vector<Send>{{2, &number, 4}}, {}), InvalidArgument);
  EXPECT_THROW(c.exchange({}, std::vector<Receive>{{-1, &number, 4}}), InvalidArgument);
  EXPECT_THROW(c.exchange(std::vector<Send>{{1, nullptr, 4}}, {}), InvalidArgument);
  EXPECT_THROW(c.all_gather(nullptr, 4, &number), InvalidArgument);
}

TEST(CommAgreement, EqualFieldsAgree) {
  over_both(3, [](Communicator& c) {
    EXPECT_NO_THROW(require_agreement(c, "partition", {{"ranks", "3"}, {"layout", "zigzag"}}));
    EXPECT_NO_THROW(require_agreement(c, "partition", AgreementFields{}));
  });
}

TEST(CommAgreement, EveryRankLearnsWhichFieldDiffers) {
  std::atomic<int> told{0};
  over_both(3, [&](Communicator& c) {
    const std::string layout = c.rank() == 1 ? "zigzag" : "contiguous";
    const std::string error = error_of([&] {
      require_agreement(c, "partition", {{"tokens", "100"}, {"layout", layout}});
    });
    EXPECT_EQ(error,
              "InvalidArgument | partition: layout differs between ranks: rank 0 contiguous, rank 1 zigzag, rank 2 "
              "contiguous");
    ++told;
    // The group goes on.
    EXPECT_NO_THROW(require_agreement(c, "partition", {{"tokens", "100"}}));
  });
  EXPECT_EQ(told, 6);
}

TEST(CommAgreement, AFieldThatOneRankLacks) {
  ThreadGroup(2).run([](Communicator& c) {
    std::vector<std::pair<std::string, std::string>> fields = {{"a", "1"}};
    if (c.rank() == 1) fields.emplace_back("b", "2");
    const std::string error = error_of([&] { require_agreement(c, "options", fields); });
    EXPECT_EQ(error, "InvalidArgument | options: b differs between ranks: rank 0 not given, rank 1 2");
  });
}

TEST(CommCallbacks, ErrorsKeepTheirKindOrBecomeCommError) {
  cake::CommCallbacks calls;
  calls.all_gather = [](const void*, std::size_t, void*) { throw std::runtime_error("broken pipe"); };
  calls.exchange = [](std::span<const Send>, std::span<const Receive>) { throw OutOfMemory("full"); };
  const auto c = make_callback_communicator(calls);
  EXPECT_EQ(error_of([&] { c->all_gather(nullptr, 0, nullptr); }),
            "CommError | all_gather of rank 0 failed: broken pipe");
  EXPECT_EQ(error_of([&] { c->exchange({}, {}); }), "OutOfMemory | full");
  EXPECT_EQ(error_of([&] { c->barrier(); }), "CommError | barrier of rank 0 failed: broken pipe");
  EXPECT_NO_THROW(c->abort("whatever"));
}

TEST(CommCallbacks, MissingOrWrongParts) {
  cake::CommCallbacks calls;
  EXPECT_EQ(error_of([&] { make_callback_communicator(calls); }).find("InvalidArgument | all_gather: "), 0u);
  calls.all_gather = [](const void*, std::size_t, void*) {};
  EXPECT_EQ(error_of([&] { make_callback_communicator(calls); }).find("InvalidArgument | exchange: "), 0u);
  calls.exchange = [](std::span<const Send>, std::span<const Receive>) {};
  calls.rank = 1;
  EXPECT_EQ(error_of([&] { make_callback_communicator(calls); }).find("InvalidArgument | rank: "), 0u);
  calls.size = 0;
  EXPECT_EQ(error_of([&] { make_callback_communicator(calls); }).find("InvalidArgument | size: "), 0u);
}

}  // namespace
}  // namespace cake
