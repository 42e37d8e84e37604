// The addition order of a mode, as a type: how the partial sums of parameter gradients come together. It decides
// nothing else on the CPU and appears in no public header.
#pragma once

#include <cstdint>
#include <mutex>

#include "core/arena.h"
#include "ops/kda/cpu/kernels.h"

namespace cake::kda {

/// det: every (document, segment) keeps its partial; one left fold in pack order at the end.
class FixedOrder {
 public:
  /// Takes room for `segments` partials of `heads` heads, `width` floats each.
  void take(Arena& arena, std::int64_t segments, std::int64_t heads, std::int64_t width) {
    segments_ = segments;
    heads_ = heads;
    width_ = width;
    partials_ = arena.take<float>(segments * heads * width);
  }
  /// Where a task writes its partial.
  float* slot(std::int64_t segment, std::int64_t head) { return partials_ + (segment * heads_ + head) * width_; }
  /// Called when a task has written its partial.
  void arrived(const Kernels&, std::int64_t, std::int64_t) {}
  /// The sum of a head's partials into `sum`, which starts from zero.
  void total(const Kernels& kernels, std::int64_t head, float* sum) {
    for (std::int64_t i = 0; i < width_; ++i) sum[i] = 0.0f;
    for (std::int64_t n = 0; n < segments_; ++n) kernels.add(sum, slot(n, head), width_);
  }

 private:
  std::int64_t segments_ = 0, heads_ = 0, width_ = 0;
  float* partials_ = nullptr;
};

/// Partials add up as the tasks finish: no promise. The audit's planted fault uses it in place of FixedOrder.
class AnyOrder {
 public:
  void take(Arena& arena, std::int64_t segments, std::int64_t heads, std::int64_t width) {
    slots_.take(arena, segments, heads, width);
    heads_ = heads;
    width_ = width;
    sums_ = arena.take<float>(heads * width);
    started_ = false;
  }
  float* slot(std::int64_t segment, std::int64_t head) { return slots_.slot(segment, head); }
  void arrived(const Kernels& kernels, std::int64_t segment, std::int64_t head) {
    const std::lock_guard lock(mutex_);
    start();
    kernels.add(sums_ + head * width_, slots_.slot(segment, head), width_);
  }
  void total(const Kernels&, std::int64_t head, float* sum) {
    const std::lock_guard lock(mutex_);
    start();
    for (std::int64_t i = 0; i < width_; ++i) sum[i] = sums_[head * width_ + i];
  }

 private:
  void start() {
    for (std::int64_t i = 0; !started_ && i < heads_ * width_; ++i) sums_[i] = 0.0f;
    started_ = true;
  }

  FixedOrder slots_;
  std::mutex mutex_;
  std::int64_t heads_ = 0, width_ = 0;
  float* sums_ = nullptr;
  bool started_ = false;
};

}  // namespace cake::kda
