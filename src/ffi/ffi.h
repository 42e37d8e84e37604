// What every ffi export shares: tensors and options of the caller as this library's, its objects as handles, and the
// one place where exceptions of this library become those of the caller's language.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cake/core/determinism.h"
#include "cake/core/error.h"
#include "cake/core/handle.h"
#include "cake/core/info.h"
#include "cake/core/tensor.h"

namespace cake::ffi {

/// Name of the caller's exception class for an error kind.
const char* exception_name(ErrorKind kind);

/// Calls fn; what it throws reaches the caller as the class of exception_name.
template <class Fn>
decltype(auto) translated(Fn fn) {
  try {
    return fn();
  } catch (const Error& e) {
    throw tvm::ffi::Error(exception_name(e.kind()), e.what(), "");
  } catch (const std::bad_alloc&) {
    throw tvm::ffi::Error("MemoryError", "not enough memory", "");
  }
}

using Tensor = tvm::ffi::TensorView;
using MaybeTensor = tvm::ffi::Optional<tvm::ffi::TensorView>;
using OptionMap = tvm::ffi::Map<tvm::ffi::String, tvm::ffi::Any>;

/// A caller's tensor as a view. 16-bit unsigned integers stand for bf16, which DLPack producers without that type send
/// so. Throws InvalidArgument naming it for another dtype, NotSupported for another device.
ConstTensorView const_view(const MaybeTensor& tensor, const char* name);
/// The same, writable.
TensorView view(const MaybeTensor& tensor, const char* name);

/// Options by name; every one must be taken, so a misspelt one is an error.
class OptionReader {
 public:
  explicit OptionReader(const OptionMap& map) : map_(map) {}
  /// Leaves `value` as it is when the option is not given or None. Throws WrongType naming the option.
  template <class T>
  void take(const char* name, T& value) {
    const auto found = map_.find(name);
    if (found == map_.end()) return;
    ++taken_;
    const tvm::ffi::Any any = (*found).second;
    if (any == nullptr) return;
    if constexpr (std::is_same_v<T, std::vector<std::int32_t>>) {
      assign(name, any, value);
    } else if constexpr (requires { value.has_value(); }) {
      value = read<typename T::value_type>(name, any);
    } else {
      value = read<T>(name, any);
    }
  }
  /// Throws InvalidArgument naming an option that nobody took.
  void finish() const;

 private:
  static void assign(const char* name, const tvm::ffi::Any& any, std::vector<std::int32_t>& value);
  template <class T>
  static T read(const char* name, const tvm::ffi::Any& any) {
    using Wire = std::conditional_t<std::is_same_v<T, std::string>, tvm::ffi::String, T>;
    if (const auto x = any.try_cast<Wire>()) return T(*x);
    throw WrongType(std::string(name) + ": got a " + any.GetTypeKey() + ", which is not its type");
  }
  OptionMap map_;
  std::size_t taken_ = 0;
};

/// An object of this library behind a handle.
class HandleObj : public tvm::ffi::Object {
 public:
  explicit HandleObj(Handle held) : handle(std::move(held)) {}
  Handle handle;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("cake_train.Handle", HandleObj, tvm::ffi::Object);
};
class HandleRef : public tvm::ffi::ObjectRef {
 public:
  explicit HandleRef(Handle handle) : ObjectRef(tvm::ffi::make_object<HandleObj>(std::move(handle))) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(HandleRef, tvm::ffi::ObjectRef, HandleObj);
};
/// Empty for none.
inline Handle handle_of(const tvm::ffi::Optional<HandleRef>& ref) {
  return ref.has_value() && (*ref).defined() ? (*ref)->handle : Handle();
}

/// What an alert says and does. An exception of `warn` reaches the caller as it was.
AlertWords alert_words(const tvm::ffi::String& entry, const tvm::ffi::String& setting, const tvm::ffi::String& advice,
                       const tvm::ffi::Optional<tvm::ffi::Function>& warn);

/// "name" or "name: why it was refused", one line each.
tvm::ffi::Array<tvm::ffi::String> implementation_lines(const std::vector<Implementation>& list);

}  // namespace cake::ffi
