// Threads of the CPU implementation. No setting here changes the bits of a det package.
#pragma once

#include <cstdint>
#include <optional>

#include "cake/core/export.h"

namespace cake {

/// Threads a call made from this thread uses: the scope's number, else set_num_threads, else CAKE_NUM_THREADS, else
/// the number of cores this process may run on.
CAKE_API int num_threads();
/// Sets the process's number of threads; 0 returns to the default. Throws InvalidArgument for a negative number.
CAKE_API void set_num_threads(int threads);

/// Sets the number of threads for calls made from this thread, for a scope.
class CAKE_API ScopedNumThreads {
 public:
  /// Throws InvalidArgument for a number below 1.
  explicit ScopedNumThreads(int threads);
  ~ScopedNumThreads();
  ScopedNumThreads(const ScopedNumThreads&) = delete;
  ScopedNumThreads& operator=(const ScopedNumThreads&) = delete;

 private:
  int before_;
};

/// Makes calls from this thread run their tasks in a shuffled order, for a scope (audits and tests).
class CAKE_API ScopedTaskShuffle {
 public:
  /// A seed stands for one order of a given number of tasks.
  explicit ScopedTaskShuffle(std::uint64_t seed);
  ~ScopedTaskShuffle();
  ScopedTaskShuffle(const ScopedTaskShuffle&) = delete;
  ScopedTaskShuffle& operator=(const ScopedTaskShuffle&) = delete;

 private:
  std::optional<std::uint64_t> before_;
};

}  // namespace cake
