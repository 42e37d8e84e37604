#include "cake/core/tensor.h"

#include "cake/core/error.h"

namespace cake {
namespace {

template <class View, class Pointer>
View make_view(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape,
               const std::initializer_list<std::int64_t>* strides) {
  if (shape.size() > static_cast<std::size_t>(kMaxDims)) {
    throw InvalidArgument("shape: at most 8 dimensions, got " + std::to_string(shape.size()));
  }
  if (strides != nullptr && strides->size() != shape.size()) {
    throw InvalidArgument("strides: one per dimension expected, got " + std::to_string(strides->size()) + " for " +
                          std::to_string(shape.size()) + " dimensions");
  }
  View view;
  view.data = data;
  view.dtype = dtype;
  view.ndim = static_cast<int>(shape.size());
  view.given = true;
  std::size_t i = 0;
  for (const std::int64_t extent : shape) {
    if (extent < 0) throw InvalidArgument("shape: negative extent " + std::to_string(extent));
    view.shape[i++] = extent;
  }
  if (strides != nullptr) {
    i = 0;
    for (const std::int64_t stride : *strides) view.strides[i++] = stride;
  } else {
    std::int64_t stride = 1;
    for (i = shape.size(); i-- > 0;) {
      view.strides[i] = stride;
      stride *= view.shape[i];
    }
  }
  return view;
}

}  // namespace

std::string device_name(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

ConstTensorView ConstTensorView::contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return make_view<ConstTensorView>(data, dtype, shape, nullptr);
}

ConstTensorView ConstTensorView::strided(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                                         std::initializer_list<std::int64_t> strides) {
  return make_view<ConstTensorView>(data, dtype, shape, &strides);
}

std::int64_t ConstTensorView::numel() const {
  if (!given) return 0;
  std::int64_t n = 1;
  for (int i = 0; i < ndim; ++i) n *= shape[static_cast<std::size_t>(i)];
  return n;
}

bool ConstTensorView::is_contiguous() const {
  std::int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (shape[at] == 0) return true;
    if (shape[at] != 1 && strides[at] != stride) return false;
    stride *= shape[at];
  }
  return true;
}

std::string ConstTensorView::shape_string() const {
  if (!given) return "(not given)";
  std::string text = "[";
  for (int i = 0; i < ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[static_cast<std::size_t>(i)]);
  }
  return text + "]";
}

TensorView TensorView::contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return make_view<TensorView>(data, dtype, shape, nullptr);
}

TensorView TensorView::strided(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                               std::initializer_list<std::int64_t> strides) {
  return make_view<TensorView>(data, dtype, shape, &strides);
}

TensorView::operator ConstTensorView() const {
  ConstTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.ndim = ndim;
  view.given = given;
  view.shape = shape;
  view.strides = strides;
  return view;
}

}  // namespace cake
