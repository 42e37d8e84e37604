#include "core/parallel.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cake/core/error.h"
#include "core/fpenv.h"
#include "test_util.h"

namespace cake {
namespace {

using test::child_status;
using test::expect_error;
using test::run_in_child;

void pause_a_little() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

TEST(ParallelFor, EachTaskOnceForEveryThreadCount) {
  for (int threads = 1; threads <= 7; ++threads) {
    const ScopedNumThreads scope(threads);
    for (const std::int64_t tasks : {0, 1, 2, 6, 7, 8, 100, 5000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(tasks));
      parallel_for(tasks, 0, [&](std::int64_t task, int worker) {
        done[static_cast<std::size_t>(task)].fetch_add(1);
        EXPECT_TRUE(worker >= 0 && worker < threads);
      });
      for (const auto& d : done) ASSERT_EQ(d.load(), 1) << threads << " threads, " << tasks << " tasks";
    }
  }
  parallel_for(-3, 0, [](std::int64_t, int) { ADD_FAILURE() << "no task was asked for"; });
}

TEST(ParallelFor, WorkersOfRunningTasksDiffer) {
  for (const int workers : {1, 2, 3, 7}) {
    std::vector<std::atomic<int>> users(static_cast<std::size_t>(workers));
    std::atomic<int> clashes{0};
    parallel_for(200, workers, [&](std::int64_t, int worker) {
      ASSERT_LT(worker, workers);
      auto& mine = users[static_cast<std::size_t>(worker)];
      if (mine.fetch_add(1) != 0) clashes.fetch_add(1);
      pause_a_little();
      mine.fetch_sub(1);
    });
    EXPECT_EQ(clashes.load(), 0);
  }
}

TEST(ParallelFor, UsesSeveralThreads) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> arrived{0};
  // The first two tasks wait for each other (with a limit), so both can only end early if two threads run them.
  parallel_for(2, 2, [&](std::int64_t, int) {
    {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    }
    arrived.fetch_add(1);
    for (int i = 0; i < 50000 && arrived.load() < 2; ++i) pause_a_little();
  });
  EXPECT_EQ(threads.size(), 2u);
}

std::vector<std::int64_t> order_of(std::int64_t tasks, int workers) {
  std::vector<std::int64_t> order;
  std::mutex mutex;
  parallel_for(tasks, workers, [&](std::int64_t task, int) {
    const std::lock_guard lock(mutex);
    order.push_back(task);
  });
  return order;
}

TEST(ParallelFor, OneWorkerRunsInAscendingOrder) {
  std::vector<std::int64_t> ascending(500);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(order_of(500, 1), ascending);
}

TEST(ParallelFor, ShuffleChangesTheOrderAndNothingElse) {
  std::vector<std::int64_t> ascending(500);
  std::iota(ascending.begin(), ascending.end(), 0);
  std::vector<std::int64_t> first;
  {
    const ScopedTaskShuffle shuffle(1);
    first = order_of(500, 1);
    EXPECT_NE(first, ascending);
    EXPECT_EQ(order_of(500, 1), first) << "a seed stands for one order";
    {
      const ScopedTaskShuffle other(2);
      EXPECT_NE(order_of(500, 1), first);
    }
    EXPECT_EQ(order_of(500, 1), first) << "the inner scope ended";
    for (const int workers : {2, 7}) {
      auto order = order_of(500, workers);
      std::sort(order.begin(), order.end());
      EXPECT_EQ(order, ascending);
    }
    EXPECT_EQ(order_of(1, 1), std::vector<std::int64_t>{0});
  }
  EXPECT_EQ(order_of(500, 1), ascending);
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, ascending);
}

TEST(ParallelFor, FirstExceptionIsRethrownAndStopsTheRest) {
  for (const int workers : {1, 2, 7}) {
    std::atomic<int> ran{0};
    try {
      parallel_for(100000, workers, [&](std::int64_t task, int) {
        ran.fetch_add(1);
        if (task == 5) throw InvalidArgument("task five");
        pause_a_little();
      });
      ADD_FAILURE() << "nothing thrown";
    } catch (const InvalidArgument& e) {
      EXPECT_STREQ(e.what(), "task five");
    }
    EXPECT_LT(ran.load(), 1000) << workers << " workers";
    // The pool is usable afterwards, and is not inside a task any more.
    std::atomic<int> again{0};
    parallel_for(64, workers, [&](std::int64_t, int) { again.fetch_add(1); });
    EXPECT_EQ(again.load(), 64);
  }
  EXPECT_THROW(parallel_for(3, 2, [](std::int64_t, int) { throw std::logic_error("any type"); }), std::logic_error);
}

TEST(ParallelFor, NestedCallRunsOnItsCallersThread) {
  std::atomic<int> inner_runs{0};
  parallel_for(8, 3, [&](std::int64_t, int) {
    const auto caller = std::this_thread::get_id();
    std::int64_t next = 0;
    parallel_for(10, 5, [&](std::int64_t task, int worker) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(task, next++);
      inner_runs.fetch_add(1);
    });
  });
  EXPECT_EQ(inner_runs.load(), 80);
}

TEST(ParallelFor, CallersOnSeveralThreadsDoNotMix) {
  std::vector<std::thread> callers;
  std::atomic<int> total{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::atomic<int> mine{0};
        parallel_for(50, 3, [&](std::int64_t, int) { mine.fetch_add(1); });
        EXPECT_EQ(mine.load(), 50);
        total.fetch_add(mine.load());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 4 * 20 * 50);
}

constexpr unsigned kTaskMode = 0x1f80u | 0x8000u | 0x0040u;
constexpr unsigned kControlBits = 0xffc0u;  // without the sticky exception flags

TEST(ParallelFor, TasksRunInTheirOwnFloatingPointMode) {
  const unsigned before = _mm_getcsr();
  for (const unsigned callers :
       {0x1f80u, 0x1f80u | _MM_ROUND_UP, 0x1f80u | _MM_ROUND_TOWARD_ZERO | 0x8000u, kTaskMode}) {
    for (const int workers : {1, 2, 5}) {
      _mm_setcsr(callers);
      std::atomic<int> wrong{0};
      parallel_for(64, workers, [&](std::int64_t, int) {
        if ((_mm_getcsr() & kControlBits) != kTaskMode) wrong.fetch_add(1);
        // Denormals flush, whatever the caller does.
        volatile float tiny = 1e-38f;
        volatile float product = tiny * 1e-5f;
        if (product != 0.0f) wrong.fetch_add(1);
        // A nested call keeps the mode too.
        parallel_for(1, 1, [&](std::int64_t, int) {
          if ((_mm_getcsr() & kControlBits) != kTaskMode) wrong.fetch_add(1);
        });
        if ((_mm_getcsr() & kControlBits) != kTaskMode) wrong.fetch_add(1);
        pause_a_little();
      });
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      EXPECT_EQ(wrong.load(), 0);
      EXPECT_EQ(after, callers);
    }
  }
}

TEST(ParallelFor, CallersModeComesBackAfterAnException) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x1f80u | _MM_ROUND_DOWN);
  EXPECT_THROW(parallel_for(4, 2, [](std::int64_t, int) { throw std::runtime_error("x"); }), std::runtime_error);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, 0x1f80u | _MM_ROUND_DOWN);
}

TEST(NumThreads, ScopeProcessEnvironmentCores) {
  const auto count = [] { return std::to_string(num_threads()); };
  const auto cores = run_in_child("CAKE_NUM_THREADS", nullptr, count);
  EXPECT_EQ(cores.status, 0);
  EXPECT_GE(std::stoi(cores.text), 1);
  EXPECT_EQ(run_in_child("CAKE_NUM_THREADS", "", count).text, cores.text);
  for (const char* value : {"1", "5", "65536"}) EXPECT_EQ(run_in_child("CAKE_NUM_THREADS", value, count).text, value);
  // Set in the process beats the environment, a scope beats both, and 0 gives the environment back.
  const auto child = run_in_child("CAKE_NUM_THREADS", "5", [&] {
    set_num_threads(3);
    std::string seen = count();
    {
      const ScopedNumThreads scope(2);
      seen += count();
      const ScopedNumThreads inner(7);
      seen += count();
    }
    seen += count();
    set_num_threads(0);
    return seen + count();
  });
  EXPECT_EQ(child.text, "32735");
}

TEST(NumThreads, MalformedEnvironmentIsAnError) {
  for (const char* value : {"0", "-1", "two", "2x", "1.5", "65537", "99999999999999999999", "0x2", "2 ", " ", "1,2"}) {
    const auto child = run_in_child("CAKE_NUM_THREADS", value, [] { return std::to_string(num_threads()); });
    EXPECT_EQ(child.status, child_status(ErrorKind::kInvalidArgument)) << "'" << value << "' gave " << child.text;
    EXPECT_NE(child.text.find("CAKE_NUM_THREADS"), std::string::npos);
    EXPECT_NE(child.text.find(value), std::string::npos);
  }
}

TEST(NumThreads, Refusals) {
  expect_error<InvalidArgument>([] { set_num_threads(-1); }, {"threads", "-1"});
  expect_error<InvalidArgument>([] { const ScopedNumThreads scope(0); }, {"threads", "0", "1 or more"});
  expect_error<InvalidArgument>([] { const ScopedNumThreads scope(-4); }, {"-4"});
}

TEST(NumThreads, ScopeBelongsToItsThread) {
  const int outside = num_threads();
  const ScopedNumThreads scope(outside + 3);
  int other = 0;
  std::thread([&] { other = num_threads(); }).join();
  EXPECT_EQ(num_threads(), outside + 3);
  EXPECT_EQ(other, outside);
}

TEST(ThreadBackend, HasAName) {
  const std::string name = thread_backend_name();
  EXPECT_TRUE(name.rfind("oneTBB ", 0) == 0 || name == "plain thread pool") << name;
}

}  // namespace
}  // namespace cake
