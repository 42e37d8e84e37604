// Tensor views: a pointer, a dtype, a shape and strides in elements. They own nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "cake/core/dtype.h"
#include "cake/core/export.h"

namespace cake {

/// Where memory lives.
enum class DeviceType : std::uint8_t { kCpu, kCuda };

/// A device: its type and index.
struct Device {
  DeviceType type = DeviceType::kCpu;  ///< kind of device
  int index = 0;                       ///< which of them; 0 for the CPU
  /// Equal type and index.
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or "cuda:0".
CAKE_API std::string device_name(Device device);

/// Most dimensions a view can have.
inline constexpr int kMaxDims = 8;

/// Read-only view. A default-constructed view means "not given".
struct CAKE_API ConstTensorView {
  const void* data = nullptr;     ///< first element; may be null when there is none
  DType dtype = DType::kFloat32;  ///< type of the elements
  Device device{};                ///< where the memory lies
  int ndim = 0;                   ///< number of dimensions, at most kMaxDims
  bool given = false;             ///< set by the factories; an empty tensor may have a null pointer and is still given
  std::array<std::int64_t, kMaxDims> shape{};    ///< extents
  std::array<std::int64_t, kMaxDims> strides{};  ///< in elements

  /// Row-major view of `data` with the given shape.
  static ConstTensorView contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  /// View with explicit strides in elements (0 for an expanded dimension).
  static ConstTensorView strided(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                                 std::initializer_list<std::int64_t> strides);

  /// Number of elements.
  std::int64_t numel() const;
  /// True when rows follow each other without gaps in row-major order.
  bool is_contiguous() const;
  /// "[2, 3]".
  std::string shape_string() const;
};

/// Writable view; converts to a read-only one.
struct CAKE_API TensorView {
  void* data = nullptr;                          ///< first element; may be null when there is none
  DType dtype = DType::kFloat32;                 ///< type of the elements
  Device device{};                               ///< where the memory lies
  int ndim = 0;                                  ///< number of dimensions, at most kMaxDims
  bool given = false;                            ///< set by the factories
  std::array<std::int64_t, kMaxDims> shape{};    ///< extents
  std::array<std::int64_t, kMaxDims> strides{};  ///< in elements

  /// Row-major view of `data` with the given shape.
  static TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
  /// View with explicit strides in elements.
  static TensorView strided(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                            std::initializer_list<std::int64_t> strides);

  /// The same memory, read-only.
  operator ConstTensorView() const;  // NOLINT(google-explicit-constructor): a writable view is a read-only view
  /// Number of elements.
  std::int64_t numel() const { return ConstTensorView(*this).numel(); }
};

}  // namespace cake
