#include "core/checks.h"

#include <cstdint>

namespace cake::checks {

void fail(const char* name, const std::string& got, const std::string& expected) {
  throw InvalidArgument(std::string(name) + ": got " + got + ", expected " + expected);
}

void require_given(const ConstTensorView& view, const char* name) {
  if (!view.given) fail(name, "nothing", "a tensor");
  if (view.device.type != DeviceType::kCpu) fail(name, "a tensor on " + device_name(view.device), "one on cpu");
}

void require_shape(const ConstTensorView& view, const char* name, const char* meaning,
                   std::initializer_list<std::int64_t> shape) {
  bool same = static_cast<std::size_t>(view.ndim) == shape.size();
  std::size_t i = 0;
  for (const std::int64_t extent : shape) {
    if (!same) break;
    same = extent == kAny || view.shape[i] == extent;
    ++i;
  }
  if (same) return;
  std::string expected = std::string(meaning) + " = [";
  i = 0;
  for (const std::int64_t extent : shape) {
    if (i++ > 0) expected += ", ";
    expected += extent == kAny ? "any" : std::to_string(extent);
  }
  fail(name, "shape " + view.shape_string(), "shape " + expected + "]");
}

void require_dtype(const ConstTensorView& view, const char* name, std::initializer_list<DType> accepted) {
  std::string names;
  for (const DType dtype : accepted) {
    if (view.dtype == dtype) return;
    if (!names.empty()) names += " or ";
    names += dtype_name(dtype);
  }
  fail(name, std::string("dtype ") + dtype_name(view.dtype), "dtype " + names);
}

void require_data(const ConstTensorView& view, const char* name) {
  if (view.numel() == 0) return;
  if (view.data == nullptr) fail(name, "a null data pointer", "memory for " + view.shape_string());
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  if (address % static_cast<std::uintptr_t>(dtype_size(view.dtype)) != 0) {
    fail(name, "a data pointer that is not aligned to its element size", "an aligned one");
  }
}

void require_not_expanded(const ConstTensorView& view, const char* name) {
  for (int i = 0; i < view.ndim; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (view.shape[at] > 1 && view.strides[at] == 0) {
      fail(name, "stride 0 in dimension " + std::to_string(i), "an output whose elements have addresses of their own");
    }
  }
}

}  // namespace cake::checks
