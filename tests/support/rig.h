// Fixtures against tests that pass by luck (the rules are numbered as in the field's fault reports we collected):
//   R1 PoisonedHeap: memory the library allocates itself holds NaN, then 1e30. (Caller memory: GuardedMemory, KdaRun.)
//   R3 matches_reference: never only NaN checks or repeats.   R4 all_gate_regimes().   R5 DataKind.
//   R6 every run of KdaProblem reads its own dout and checks that no operand changed.
//   R9 BusyMachine: other work on all cores.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace cake::test {

/// R1. Allocates blocks of the given sizes, fills them with a number and frees them, so that the next allocations of
/// these sizes start with it.
inline void poison_heap(const std::vector<std::size_t>& sizes, float value) {
  std::vector<std::unique_ptr<std::byte[]>> blocks;
  for (const std::size_t size : sizes) {
    for (int copy = 0; copy < 3; ++copy) {
      blocks.emplace_back(new std::byte[size + sizeof(float)]);
      for (std::size_t i = 0; i + sizeof value <= size; i += sizeof value) {
        std::memcpy(blocks.back().get() + i, &value, sizeof value);
      }
    }
  }
}

/// R9. Threads that compute and stream memory until the end of the scope.
class BusyMachine {
 public:
  explicit BusyMachine(int threads) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] {
        std::vector<float> memory(1 << 18, 1.0f);
        while (!stop_.load(std::memory_order_relaxed)) {
          for (float& x : memory) x = x * 1.0001f + 0.5f;
        }
      });
    }
  }
  ~BusyMachine() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  BusyMachine(const BusyMachine&) = delete;
  BusyMachine& operator=(const BusyMachine&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace cake::test
