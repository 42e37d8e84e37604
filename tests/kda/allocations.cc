// A file of its own: seen together with their callers, the compiler takes malloc and free below for a mismatch.
#include "tests/kda/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> g_allocations{0}, g_bytes{0};
}

void* operator new(std::size_t bytes) {
  ++g_allocations;
  g_bytes += static_cast<long>(bytes);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++g_allocations;
  g_bytes += static_cast<long>(bytes);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
// The library's array forms call the ones above; a sanitizer's do not.
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace cake::test {

long allocations() { return g_allocations; }
long allocated_bytes() { return g_bytes; }

}  // namespace cake::test
