// A bump allocator over caller-owned memory. The same carving code, run without memory, answers the byte query, so a
// size that was promised is the size that is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cake/core/export.h"

namespace cake {

/// Every block starts at a multiple of this.
inline constexpr std::size_t kArenaAlignment = 64;

/// Carves blocks out of [data, data + bytes). With data == nullptr it only counts.
class CAKE_API Arena {
 public:
  /// Counts only.
  Arena() = default;
  /// `name` appears in the error when the memory is too small. `data` may have any alignment: bytes up to the next
  /// multiple of 64 are skipped, which is why byte queries add 63.
  Arena(void* data, std::size_t bytes, const char* name);

  /// Room for `count` objects, or nullptr while counting. Throws OutOfMemory naming the bytes needed at least.
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  /// Bytes a caller must provide for everything taken so far.
  std::size_t bytes_needed() const { return used_ == 0 ? 0 : used_ + kArenaAlignment - 1; }
  /// True while counting.
  bool counting() const { return data_ == nullptr; }

 private:
  void* take_bytes(std::size_t bytes);

  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  const char* name_ = "";
};

}  // namespace cake
