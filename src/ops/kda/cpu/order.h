// The addition order of a mode, as a type: how the partial sums of parameter gradients come together. It decides
// nothing else on the CPU and appears in no public header.
#pragma once

#include <cstdint>
#include <mutex>

#include "core/arena.h"
#include "ops/kda/cpu/kernels.h"

namespace cake::kda {

/// det: every (document, segment) keeps its partial; a left fold in pack order, group after group.
class FixedOrder {
 public:
  /// Takes room for `segments` partials (of a group) of `heads` heads, `width` floats each.
  void take(Arena& arena, std::int64_t segments, std::int64_t heads, std::int64_t width) {
    heads_ = heads;
    width_ = width;
    partials_ = arena.take<float>(segments * heads * width);
  }
  /// Where a task writes its partial.
  float* slot(std::int64_t segment, std::int64_t head) { return partials_ + (segment * heads_ + head) * width_; }
  /// Called when a task has written its partial; `sum` is its head's.
  void arrived(const Kernels&, std::int64_t, std::int64_t, float*) {}
  /// Adds the partials of a group's `segments` segments of a head to `sum`.
  void add_group(const Kernels& kernels, std::int64_t segments, std::int64_t head, float* sum) {
    for (std::int64_t n = 0; n < segments; ++n) kernels.add(sum, slot(n, head), width_);
  }

 private:
  std::int64_t heads_ = 0, width_ = 0;
  float* partials_ = nullptr;
};

/// nondet: partials add up as the tasks finish. The audit's planted fault uses it in place of FixedOrder.
class AnyOrder {
 public:
  void take(Arena& arena, std::int64_t segments, std::int64_t heads, std::int64_t width) {
    slots_.take(arena, segments, heads, width);
    width_ = width;
  }
  float* slot(std::int64_t segment, std::int64_t head) { return slots_.slot(segment, head); }
  void arrived(const Kernels& kernels, std::int64_t segment, std::int64_t head, float* sum) {
    const std::lock_guard lock(mutex_);
    kernels.add(sum, slots_.slot(segment, head), width_);
  }
  void add_group(const Kernels&, std::int64_t, std::int64_t, float*) {}

 private:
  FixedOrder slots_;
  std::mutex mutex_;
  std::int64_t width_ = 0;
};

/// Whether an order keeps the partial of every segment, so that they can be brought together over ranks.
template <class Order>
inline constexpr bool kKeepsPartials = true;
template <>
inline constexpr bool kKeepsPartials<AnyOrder> = false;

#ifdef CAKE_PLANT_ORDER_FAULT
using DetOrder = AnyOrder;  // the fault `cake audit` must find
#else
using DetOrder = FixedOrder;  // what a det package binds
#endif

}  // namespace cake::kda
