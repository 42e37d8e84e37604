// A saved set as one tensor of bytes: a header with the record that the set makes of itself, then its memory. What a
// framework keeps between forward and backward can then be copied, offloaded and freed like any tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/checks.h"
#include "ffi/ffi.h"

namespace cake::ffi {

/// Bytes before the memory of the set; a multiple of the arena's alignment.
inline constexpr std::size_t kSavedHeader = 512;

/// View of such a tensor.
class SavedImage {
 public:
  /// Throws InvalidArgument unless it is a contiguous uint8 tensor with room for the header.
  explicit SavedImage(const Tensor& memory) {
    const DLDataType type = memory.dtype();
    const bool bytes = type.code == kDLUInt && type.bits == 8 && type.lanes == 1;
    if (!bytes || memory.ndim() != 1 || (memory.size(0) > 1 && memory.stride(0) != 1)) {
      checks::fail("saved", "a tensor that is not contiguous bytes", "uint8 [n]");
    }
    if (memory.device().device_type != kDLCPU) throw NotSupported("saved: got a tensor that is not on the CPU");
    bytes_ = static_cast<std::size_t>(memory.size(0));
    if (bytes_ < kSavedHeader) checks::fail("saved", std::to_string(bytes_) + " bytes", "at least its header");
    base_ = static_cast<std::byte*>(memory.data_ptr()) + memory.byte_offset();
  }
  void* data() const { return base_ + kSavedHeader; }
  std::size_t bytes() const { return bytes_ - kSavedHeader; }
  void write(const std::string& record) const {
    Header header{};
    if (record.size() > sizeof(header.text)) throw Error(ErrorKind::kInvalidArgument, "saved: its record is too long");
    header.size = static_cast<std::uint32_t>(record.size());
    header.alignment = alignment();
    std::memcpy(header.text, record.data(), record.size());
    std::memcpy(base_, &header, sizeof(header));
  }
  std::string read() const {
    Header header;
    std::memcpy(&header, base_, sizeof(header));
    if (header.size > sizeof(header.text))
      checks::fail("saved", "memory whose record is damaged", "what a forward filled");
    if (header.alignment != alignment()) {
      checks::fail("saved", "a copy that starts " + std::to_string(alignment()) + " bytes after a multiple of 64",
                   std::to_string(header.alignment) + " as in the forward");
    }
    return {header.text, header.size};
  }

 private:
  struct Header {
    std::uint32_t size, alignment;
    char text[kSavedHeader - 8];
  };
  std::uint32_t alignment() const { return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(base_) % 64); }
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace cake::ffi
