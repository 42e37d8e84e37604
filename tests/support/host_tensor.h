// Tensors in host memory: values of one dtype in row-major order, and the same values laid out with other strides
// inside guarded, poisoned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cake/core/tensor.h"

namespace cake::test {

using Shape = std::vector<std::int64_t>;

/// Product of the extents.
std::int64_t volume(const Shape& shape);

/// Bits of `value` in a floating-point dtype, or of an integer in an integer dtype, at `to`.
void store(DType dtype, double value, void* to);
/// The number at `from`.
double load(DType dtype, const void* from);

/// A row-major tensor that owns its bytes.
struct HostTensor {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<std::byte> bytes;

  HostTensor() = default;
  /// All elements 0.
  HostTensor(DType type, Shape extents);
  /// Elements rounded to the dtype.
  HostTensor(DType type, Shape extents, const std::vector<double>& values);

  std::int64_t numel() const { return volume(shape); }
  double at(std::int64_t i) const;
  void set(std::int64_t i, double value);
  /// All elements, as the dtype holds them.
  std::vector<double> doubles() const;
  /// Rows [first, first + count) of the first dimension.
  HostTensor rows(std::int64_t first, std::int64_t count) const;
  /// The same elements under another shape of equal volume.
  HostTensor reshaped(Shape extents) const;
  TensorView view();
  ConstTensorView view() const;
};

/// How a tensor lies in memory.
enum class Layout {
  kContiguous,
  kHeadsFirst,   ///< dimensions 1 and 2 swapped in memory, as after a transpose(1, 2)
  kOffsetOne,    ///< row-major, starting one element after an aligned address
  kLastStride2,  ///< every second element of a buffer
  kWideRows,     ///< rows of dimension 1 three times as far apart as needed
};

/// All layouts, for loops over them.
const std::vector<Layout>& all_layouts();
std::string layout_name(Layout layout);

/// A tensor with strides inside memory whose other bytes are guards.
class LaidOutTensor {
 public:
  /// Every element a quiet NaN (integers: -1).
  LaidOutTensor(DType dtype, Shape shape, Layout layout = Layout::kContiguous);
  /// The elements of `values`.
  explicit LaidOutTensor(const HostTensor& values, Layout layout = Layout::kContiguous);

  /// Sets every element.
  void fill(double value);
  TensorView view();
  /// The elements in row-major order.
  HostTensor gather() const;
  /// True while all bytes that belong to no element are as they were made.
  bool guards_intact() const;

 private:
  std::size_t offset_of(std::int64_t element) const;

  DType dtype_;
  Shape shape_, strides_;
  std::int64_t first_ = 0;  // elements before the tensor's first one, after the guard
  std::vector<std::byte> memory_;
  std::vector<bool> owned_;  // bytes that belong to an element
};

/// Memory of a given size and alignment offset between guard bytes, for a caller's workspace or saved set.
class GuardedMemory {
 public:
  /// `fill` is a 32-bit pattern repeated over the memory; the address is `misalignment` past a multiple of 64.
  GuardedMemory(std::size_t bytes, std::uint32_t fill, std::size_t misalignment = 0);
  void* data() { return memory_.data() + start_; }
  std::size_t size() const { return bytes_; }
  bool guards_intact() const;

 private:
  std::size_t bytes_, start_ = 0;
  std::vector<std::byte> memory_;
};

inline constexpr std::uint32_t kNanPattern = 0x7fc07fc0u;   ///< NaN in fp32, twice NaN in bf16
inline constexpr std::uint32_t kHugePattern = 0x7149f2cau;  ///< 1e30 in fp32

/// Allocates, fills and frees blocks of many sizes, so that the next allocations find the pattern.
void poison_heap(std::uint32_t pattern);

/// 64-bit FNV-1a of the bytes, as 16 hexadecimal digits.
std::string digest(const HostTensor& tensor);

}  // namespace cake::test
