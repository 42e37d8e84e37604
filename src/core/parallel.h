// parallel_for: which thread runs a task is free, what a task computes is not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "cake/core/parallel.h"

namespace cake {

/// A non-owning reference to a callable void(std::int64_t task, int worker).
class TaskRef {
 public:
  template <class Fn, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<Fn>, TaskRef>>>
  TaskRef(Fn&& fn)  // NOLINT(google-explicit-constructor): callers pass a lambda
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(fn)))),
        call_([](void* object, std::int64_t task, int worker) {
          (*static_cast<std::remove_reference_t<Fn>*>(object))(task, worker);
        }) {}
  void operator()(std::int64_t task, int worker) const { call_(object_, task, worker); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, int);
};

/// Calls fn(task, worker) once for each task in [0, tasks), from at most `workers` threads (0: num_threads()), and
/// returns when all are done. `worker` is below the number of workers and names scratch memory that no other running
/// task uses; a task's result must depend on its number alone. Tasks run in ScopedFpEnv, start in ascending order, or
/// in a shuffled order inside ScopedTaskShuffle. The first exception stops further tasks and is rethrown. A nested call
/// runs on its caller's thread.
CAKE_API void parallel_for(std::int64_t tasks, int workers, TaskRef fn);

/// "oneTBB 2021.8" or "plain thread pool".
CAKE_API std::string thread_backend_name();

}  // namespace cake
