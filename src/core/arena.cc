#include "core/arena.h"

#include <string>

#include "cake/core/error.h"

namespace cake {

Arena::Arena(void* data, std::size_t bytes, const char* name) : name_(name) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::size_t skip = (kArenaAlignment - address % kArenaAlignment) % kArenaAlignment;
  static std::byte empty_block[1];
  data_ = data == nullptr ? empty_block : static_cast<std::byte*>(data);
  if (skip <= bytes && data != nullptr) {
    data_ += skip;
    capacity_ = bytes - skip;
  }
}

void* Arena::take_bytes(std::size_t bytes) {
  const std::size_t start = used_;
  used_ += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  if (counting()) return nullptr;
  if (used_ > capacity_) {
    throw OutOfMemory(std::string(name_) + ": got memory for " + std::to_string(capacity_) + " bytes, at least " +
                      std::to_string(used_) + " are needed; ask the byte query for the exact number");
  }
  return data_ + start;
}

}  // namespace cake
