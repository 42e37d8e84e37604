// Element types and their bit-exact conversions (round to nearest even, NaN stays NaN and becomes quiet).
#pragma once

#include <cstdint>

#include "cake/core/export.h"

namespace cake {

/// Element type of a tensor.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kInt32, kInt64 };

/// Bytes of one element.
CAKE_API std::int64_t dtype_size(DType dtype);
/// Name as users write it: "fp32", "bf16", "fp16", "int32", "int64".
CAKE_API const char* dtype_name(DType dtype);
/// True for the floating-point types.
CAKE_API bool dtype_is_float(DType dtype);

/// bf16 bits to fp32, exact.
CAKE_API float bf16_to_float(std::uint16_t bits);
/// fp32 to bf16 bits, round to nearest even; NaN becomes a quiet NaN with its upper payload.
CAKE_API std::uint16_t float_to_bf16(float value);
/// fp16 (IEEE binary16) bits to fp32, exact, subnormals included; a signalling NaN becomes quiet.
CAKE_API float fp16_to_float(std::uint16_t bits);
/// fp32 to fp16 bits, round to nearest even, subnormals included, overflow to infinity.
CAKE_API std::uint16_t float_to_fp16(float value);

}  // namespace cake
