#include "core/parallel.h"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "cake/core/error.h"
#include "core/fpenv.h"

#ifdef CAKE_HAVE_TBB
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/version.h>
#else
#include <condition_variable>
#include <thread>
#endif

namespace cake {
namespace {

thread_local int t_threads = 0;  // the scope's number, or 0
thread_local std::optional<std::uint64_t> t_shuffle;
thread_local bool t_in_task = false;
std::atomic<int> g_threads{0};

int cores_of_this_process() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return 1;
}

// A positive number, or 0 when the variable is unset. A malformed value is an error, not a silent default.
int threads_from_environment() {
  const char* text = std::getenv("CAKE_NUM_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (errno != 0 || *end != '\0' || value < 1 || value > 65536) {
    throw InvalidArgument(std::string("CAKE_NUM_THREADS: got \"") + text + "\", expected a number from 1 to 65536");
  }
  return static_cast<int>(value);
}

std::uint64_t next_random(std::uint64_t& state) {  // splitmix64
  state += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::vector<std::int64_t> shuffled(std::int64_t tasks, std::uint64_t seed) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(tasks));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random(seed) % i]);
  return order;
}

/// One parallel_for: runners draw task numbers from a counter until none is left.
class Job {
 public:
  Job(std::int64_t tasks, TaskRef fn) : tasks_(tasks), fn_(fn) {
    if (t_shuffle) order_ = shuffled(tasks, *t_shuffle);
  }

  void run(int worker) {
    const ScopedFpEnv env;
    const bool nested = std::exchange(t_in_task, true);
    for (;;) {
      const std::int64_t at = next_.fetch_add(1, std::memory_order_relaxed);
      if (at >= tasks_) break;
      try {
        fn_(order_.empty() ? at : order_[static_cast<std::size_t>(at)], worker);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(tasks_, std::memory_order_relaxed);
      }
    }
    t_in_task = nested;
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::int64_t tasks_;
  TaskRef fn_;
  std::vector<std::int64_t> order_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

#ifdef CAKE_HAVE_TBB

/// Lets oneTBB run as many threads as a caller asked for, when that is more than the machine has cores (audits do).
void allow_threads(int threads) {
  using Control = tbb::global_control;
  static std::mutex mutex;
  static std::unique_ptr<Control> control;
  const std::lock_guard lock(mutex);
  if (Control::active_value(Control::max_allowed_parallelism) >= static_cast<std::size_t>(threads)) return;
  control.reset();  // the smallest of several controls would win
  control = std::make_unique<Control>(Control::max_allowed_parallelism, static_cast<std::size_t>(threads));
}

void run_on_threads(Job& job, int workers) {
  allow_threads(workers);
  tbb::task_arena arena(workers);
  arena.execute([&] {
    tbb::parallel_for(
        0, workers, [&](int worker) { job.run(worker); }, tbb::simple_partitioner());
  });
}

#else

/// Threads that wait for jobs. One job at a time: callers queue at the mutex.
class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(Job& job, int workers) {
    const std::lock_guard caller(callers_);
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(threads_.size()) < workers - 1) {
        const int worker = static_cast<int>(threads_.size()) + 1;
        threads_.emplace_back([this, worker, seen = generation_] { serve(worker, seen); });
      }
      job_ = &job;
      helpers_ = workers - 1;
      running_ = helpers_;
      ++generation_;
    }
    wake_.notify_all();
    job.run(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return running_ == 0; });
    job_ = nullptr;
  }

 private:
  void serve(int worker, std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (worker > helpers_) continue;
      Job* job = job_;
      lock.unlock();
      job->run(worker);
      lock.lock();
      if (--running_ == 0) done_.notify_all();
    }
  }

  std::mutex callers_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  int helpers_ = 0, running_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
};

void run_on_threads(Job& job, int workers) {
  static Pool pool;
  pool.run(job, workers);
}

#endif

}  // namespace

int num_threads() {
  if (t_threads > 0) return t_threads;
  if (const int set = g_threads.load(std::memory_order_relaxed); set > 0) return set;
  if (const int env = threads_from_environment(); env > 0) return env;
  return cores_of_this_process();
}

void set_num_threads(int threads) {
  if (threads < 0) throw InvalidArgument("threads: got " + std::to_string(threads) + ", expected 0 or more");
  g_threads.store(threads, std::memory_order_relaxed);
}

ScopedNumThreads::ScopedNumThreads(int threads) : before_(t_threads) {
  if (threads < 1) throw InvalidArgument("threads: got " + std::to_string(threads) + ", expected 1 or more");
  t_threads = threads;
}
ScopedNumThreads::~ScopedNumThreads() { t_threads = before_; }

ScopedTaskShuffle::ScopedTaskShuffle(std::uint64_t seed) : before_(t_shuffle) { t_shuffle = seed; }
ScopedTaskShuffle::~ScopedTaskShuffle() { t_shuffle = before_; }

void parallel_for(std::int64_t tasks, int workers, TaskRef fn) {
  if (tasks <= 0) return;
  if (workers <= 0) workers = num_threads();
  if (static_cast<std::int64_t>(workers) > tasks) workers = static_cast<int>(tasks);
  Job job(tasks, fn);
  if (workers == 1 || t_in_task) {
    job.run(0);
  } else {
    run_on_threads(job, workers);
  }
  job.rethrow();
}

std::string thread_backend_name() {
#ifdef CAKE_HAVE_TBB
  return "oneTBB " + std::to_string(TBB_VERSION_MAJOR) + "." + std::to_string(TBB_VERSION_MINOR);
#else
  return "plain thread pool";
#endif
}

}  // namespace cake
