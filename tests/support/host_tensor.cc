#include "tests/support/host_tensor.h"

#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

namespace cake::test {
namespace {

constexpr std::size_t kGuard = 256;
constexpr std::byte kGuardByte{0xa5};

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

Shape row_major(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d > 1; --d)
    strides[d - 2] = strides[d - 1] * std::max<std::int64_t>(shape[d - 1], 1);
  return strides;
}

template <class View, class Pointer>
View make_view(Pointer data, DType dtype, const Shape& shape, const Shape& strides) {
  View view;
  view.data = data;
  view.dtype = dtype;
  view.ndim = static_cast<int>(shape.size());
  view.given = true;
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

}  // namespace

std::int64_t volume(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

void store(DType dtype, double value, void* to) {
  switch (dtype) {
    case DType::kFloat32: {
      const auto x = static_cast<float>(value);
      std::memcpy(to, &x, sizeof x);
      return;
    }
    case DType::kBFloat16:
    case DType::kFloat16: {
      const auto x = static_cast<float>(value);
      const std::uint16_t bits = dtype == DType::kBFloat16 ? float_to_bf16(x) : float_to_fp16(x);
      std::memcpy(to, &bits, sizeof bits);
      return;
    }
    case DType::kInt32: {
      const auto x = static_cast<std::int32_t>(value);
      std::memcpy(to, &x, sizeof x);
      return;
    }
    case DType::kInt64: {
      const auto x = static_cast<std::int64_t>(value);
      std::memcpy(to, &x, sizeof x);
      return;
    }
  }
}

double load(DType dtype, const void* from) {
  std::uint16_t bits = 0;
  switch (dtype) {
    case DType::kFloat32: {
      float x = 0;
      std::memcpy(&x, from, sizeof x);
      return static_cast<double>(x);
    }
    case DType::kBFloat16: std::memcpy(&bits, from, sizeof bits); return static_cast<double>(bf16_to_float(bits));
    case DType::kFloat16: std::memcpy(&bits, from, sizeof bits); return static_cast<double>(fp16_to_float(bits));
    case DType::kInt32: {
      std::int32_t x = 0;
      std::memcpy(&x, from, sizeof x);
      return x;
    }
    case DType::kInt64: {
      std::int64_t x = 0;
      std::memcpy(&x, from, sizeof x);
      return static_cast<double>(x);
    }
  }
  return 0.0;
}

HostTensor::HostTensor(DType type, Shape extents) : dtype(type), shape(std::move(extents)) {
  bytes.resize(to_size(numel() * dtype_size(dtype)));
}

HostTensor::HostTensor(DType type, Shape extents, const std::vector<double>& values)
    : HostTensor(type, std::move(extents)) {
  for (std::int64_t i = 0; i < numel(); ++i) set(i, values.at(to_size(i)));
}

double HostTensor::at(std::int64_t i) const { return load(dtype, &bytes.at(to_size(i * dtype_size(dtype)))); }

void HostTensor::set(std::int64_t i, double value) { store(dtype, value, &bytes.at(to_size(i * dtype_size(dtype)))); }

std::vector<double> HostTensor::doubles() const {
  std::vector<double> values(to_size(numel()));
  for (std::int64_t i = 0; i < numel(); ++i) values[to_size(i)] = at(i);
  return values;
}

HostTensor HostTensor::rows(std::int64_t first, std::int64_t count) const {
  Shape part = shape;
  part.at(0) = count;
  HostTensor result(dtype, part);
  const std::int64_t row = shape[0] == 0 ? 0 : static_cast<std::int64_t>(bytes.size()) / shape[0];
  std::copy_n(bytes.begin() + first * row, count * row, result.bytes.begin());
  return result;
}

HostTensor HostTensor::reshaped(Shape extents) const {
  HostTensor result = *this;
  result.shape = std::move(extents);
  if (result.numel() != numel()) std::abort();
  return result;
}

TensorView HostTensor::view() { return make_view<TensorView>(bytes.data(), dtype, shape, row_major(shape)); }
ConstTensorView HostTensor::view() const {
  return make_view<ConstTensorView>(bytes.data(), dtype, shape, row_major(shape));
}

const std::vector<Layout>& all_layouts() {
  static const std::vector<Layout> layouts = {Layout::kContiguous, Layout::kHeadsFirst, Layout::kOffsetOne,
                                              Layout::kLastStride2, Layout::kWideRows};
  return layouts;
}

std::string layout_name(Layout layout) {
  constexpr std::array<const char*, 5> kNames = {"contiguous", "heads_first", "offset_one", "last_stride_2",
                                                 "wide_rows"};
  return kNames.at(static_cast<std::size_t>(layout));
}

LaidOutTensor::LaidOutTensor(DType dtype, Shape shape, Layout layout) : dtype_(dtype), shape_(std::move(shape)) {
  strides_ = row_major(shape_);
  if (layout == Layout::kHeadsFirst && shape_.size() >= 3) {
    Shape swapped = shape_;
    std::swap(swapped[1], swapped[2]);
    strides_ = row_major(swapped);
    std::swap(strides_[1], strides_[2]);
  } else if (layout == Layout::kOffsetOne) {
    first_ = 1;
  } else if (layout == Layout::kLastStride2) {
    for (std::int64_t& stride : strides_) stride *= 2;
  } else if (layout == Layout::kWideRows) {
    for (std::size_t d = 0; d < std::min<std::size_t>(2, shape_.size()); ++d) strides_[d] *= 3;
  }
  std::int64_t extent = first_ + 1;
  for (std::size_t d = 0; d < shape_.size(); ++d) extent += (std::max<std::int64_t>(shape_[d], 1) - 1) * strides_[d];
  memory_.assign(2 * kGuard + to_size(extent * dtype_size(dtype_)), kGuardByte);
  owned_.assign(memory_.size(), false);
  for (std::int64_t i = 0; i < volume(shape_); ++i) {
    std::fill_n(owned_.begin() + static_cast<std::ptrdiff_t>(offset_of(i)), dtype_size(dtype_), true);
  }
  fill(dtype_is_float(dtype_) ? std::numeric_limits<double>::quiet_NaN() : -1.0);
}

LaidOutTensor::LaidOutTensor(const HostTensor& values, Layout layout)
    : LaidOutTensor(values.dtype, values.shape, layout) {
  const std::size_t size = to_size(dtype_size(dtype_));
  for (std::int64_t i = 0; i < volume(shape_); ++i) {
    std::memcpy(&memory_[offset_of(i)], &values.bytes[to_size(i) * size], size);
  }
}

std::size_t LaidOutTensor::offset_of(std::int64_t element) const {
  std::int64_t at = first_;
  for (std::size_t d = shape_.size(); d > 0; --d) {
    at += element % shape_[d - 1] * strides_[d - 1];
    element /= shape_[d - 1];
  }
  return kGuard + to_size(at * dtype_size(dtype_));
}

void LaidOutTensor::fill(double value) {
  for (std::int64_t i = 0; i < volume(shape_); ++i) store(dtype_, value, &memory_[offset_of(i)]);
}

TensorView LaidOutTensor::view() {
  std::byte* data = memory_.data() + kGuard + to_size(first_ * dtype_size(dtype_));
  return make_view<TensorView>(data, dtype_, shape_, strides_);
}

HostTensor LaidOutTensor::gather() const {
  HostTensor result(dtype_, shape_);
  const std::size_t size = to_size(dtype_size(dtype_));
  for (std::int64_t i = 0; i < volume(shape_); ++i) {
    std::memcpy(&result.bytes[to_size(i) * size], &memory_[offset_of(i)], size);
  }
  return result;
}

bool LaidOutTensor::guards_intact() const {
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    if (!owned_[i] && memory_[i] != kGuardByte) return false;
  }
  return true;
}

GuardedMemory::GuardedMemory(std::size_t bytes, std::uint32_t fill, std::size_t misalignment)
    : bytes_(bytes), memory_(bytes + misalignment + 64 + 2 * kGuard, kGuardByte) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
  start_ = kGuard + (64 - (address + kGuard) % 64) % 64 + misalignment;
  for (std::size_t i = 0; i < bytes; ++i) {
    memory_[start_ + i] = static_cast<std::byte>(fill >> (8 * (i % 4)) & 0xffu);
  }
}

bool GuardedMemory::guards_intact() const {
  const auto intact = [](std::byte b) { return b == kGuardByte; };
  const auto first = memory_.begin() + static_cast<std::ptrdiff_t>(start_);
  return std::all_of(memory_.begin(), first, intact) &&
         std::all_of(first + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), intact);
}

void poison_heap(std::uint32_t pattern) {
  // Large blocks normally come fresh (and zeroed) from the kernel; keep them in the heap so that the poison is found.
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  std::vector<void*> blocks;
  for (std::size_t bytes = 64; bytes <= (std::size_t{8} << 20); bytes *= 2) {
    for (int copies = 0; copies < (bytes > (1u << 20) ? 2 : 8); ++copies) {
      void* block = std::malloc(bytes);
      if (block == nullptr) continue;
      // Volatile: stores to memory that is freed next are otherwise left out.
      auto* words = static_cast<volatile std::uint32_t*>(block);
      for (std::size_t i = 0; i < bytes / sizeof pattern; ++i) words[i] = pattern;
      blocks.push_back(block);
    }
  }
  for (void* block : blocks) std::free(block);
}

std::string digest(const HostTensor& tensor) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::byte b : tensor.bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3ull;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return text.data();
}

}  // namespace cake::test
