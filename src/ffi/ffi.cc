#include "ffi/ffi.h"

#include <cstdint>

namespace cake::ffi {
namespace {

DType dtype_of(const DLTensor& t, const char* name) {
  if (t.dtype.lanes == 1) {
    if (t.dtype.code == kDLFloat && t.dtype.bits == 32) return DType::kFloat32;
    if (t.dtype.code == kDLFloat && t.dtype.bits == 16) return DType::kFloat16;
    if (t.dtype.code == kDLBfloat && t.dtype.bits == 16) return DType::kBFloat16;
    if (t.dtype.code == kDLUInt && t.dtype.bits == 16) return DType::kBFloat16;
    if (t.dtype.code == kDLInt && t.dtype.bits == 32) return DType::kInt32;
    if (t.dtype.code == kDLInt && t.dtype.bits == 64) return DType::kInt64;
  }
  throw InvalidArgument(std::string(name) + ": got a dtype with code " + std::to_string(t.dtype.code) + " and " +
                        std::to_string(t.dtype.bits) + " bits, expected fp32, bf16, fp16, int32 or int64");
}

template <class View>
View view_of(const MaybeTensor& tensor, const char* name) {
  View x;
  if (!tensor.has_value()) return x;
  const Tensor t = *tensor;
  if (t.device().device_type != kDLCPU) {
    throw NotSupported(std::string(name) + ": got a tensor on device type " +
                       std::to_string(static_cast<int>(t.device().device_type)) + ", expected one on the CPU");
  }
  if (t.ndim() > kMaxDims) {
    throw InvalidArgument(std::string(name) + ": got " + std::to_string(t.ndim()) + " dimensions, expected at most " +
                          std::to_string(kMaxDims));
  }
  DLTensor raw{};
  raw.dtype = t.dtype();
  x.dtype = dtype_of(raw, name);
  x.data = t.data_ptr() == nullptr ? nullptr : static_cast<std::byte*>(t.data_ptr()) + t.byte_offset();
  x.ndim = t.ndim();
  x.given = true;
  for (int i = 0; i < x.ndim; ++i) {
    x.shape[static_cast<std::size_t>(i)] = t.size(i);
    x.strides[static_cast<std::size_t>(i)] = t.stride(i);
  }
  return x;
}

}  // namespace

const char* exception_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kWrongMode: return "ValueError";
    case ErrorKind::kWrongType: return "TypeError";
    case ErrorKind::kNotSupported: return "NotImplementedError";
    case ErrorKind::kOutOfMemory: return "MemoryError";
    case ErrorKind::kNondeterminismAlert:
    case ErrorKind::kDeviceError:
    case ErrorKind::kCommError: return "RuntimeError";
  }
  return "RuntimeError";
}

ConstTensorView const_view(const MaybeTensor& tensor, const char* name) { return view_of<TensorView>(tensor, name); }
TensorView view(const MaybeTensor& tensor, const char* name) { return view_of<TensorView>(tensor, name); }

void OptionReader::assign(const char* name, const tvm::ffi::Any& any, std::vector<std::int32_t>& value) {
  const auto list = any.try_cast<tvm::ffi::Array<int64_t>>();
  if (!list) throw WrongType(std::string(name) + ": got a " + any.GetTypeKey() + ", expected a list of integers");
  value.clear();
  for (const int64_t x : *list) {
    if (x < 0 || x > INT32_MAX) {
      throw InvalidArgument(std::string(name) + ": got " + std::to_string(x) + ", expected 0 to 2^31 - 1");
    }
    value.push_back(static_cast<std::int32_t>(x));
  }
}

AlertWords alert_words(const tvm::ffi::String& entry, const tvm::ffi::String& setting, const tvm::ffi::String& advice,
                       const tvm::ffi::Optional<tvm::ffi::Function>& warn) {
  AlertWords words{entry, setting, advice};
  if (warn.has_value()) {
    words.warn = [function = *warn](const std::string& text) { function(tvm::ffi::String(text)); };
  }
  return words;
}

tvm::ffi::Array<tvm::ffi::String> implementation_lines(const std::vector<Implementation>& list) {
  tvm::ffi::Array<tvm::ffi::String> lines;
  for (const Implementation& x : list) lines.push_back(x.refused.empty() ? x.name : x.name + ": " + x.refused);
  return lines;
}

void OptionReader::finish() const {
  if (taken_ == map_.size()) return;
  std::string names;
  for (const auto& [name, value] : map_) names += (names.empty() ? "" : ", ") + std::string(name);
  throw InvalidArgument("options: got an unknown name among " + names);
}

}  // namespace cake::ffi
