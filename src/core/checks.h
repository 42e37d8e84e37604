// Argument checks. Each throws InvalidArgument (WrongType where said) naming the argument, what was given, what is
// accepted. Callers check everything before they write anything.
#pragma once

#include <initializer_list>
#include <string>

#include "cake/core/error.h"
#include "cake/core/tensor.h"

namespace cake::checks {

/// Any extent.
inline constexpr std::int64_t kAny = -1;

/// The argument must be given and lie on the CPU.
CAKE_API void require_given(const ConstTensorView& view, const char* name);
/// Shape must equal `shape`, kAny matching every extent; `meaning` is the shape in words, "[B, S, H, K]".
CAKE_API void require_shape(const ConstTensorView& view, const char* name, const char* meaning,
                            std::initializer_list<std::int64_t> shape);
/// dtype must be one of `accepted`.
CAKE_API void require_dtype(const ConstTensorView& view, const char* name, std::initializer_list<DType> accepted);
/// A non-empty tensor must have a data pointer aligned to its element size.
CAKE_API void require_data(const ConstTensorView& view, const char* name);
/// An output must not map two elements to one address (stride 0 on an extent above 1).
CAKE_API void require_not_expanded(const ConstTensorView& view, const char* name);
/// Throws InvalidArgument("<name>: got <got>, expected <expected>").
[[noreturn]] CAKE_API void fail(const char* name, const std::string& got, const std::string& expected);

}  // namespace cake::checks
