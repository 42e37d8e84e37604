#include "kda_case.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "digest.h"

namespace cake::tool {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void put(KdaArray& a, std::int64_t i, float value) {
  std::byte* at = a.bytes.data() + i * dtype_size(a.dtype);
  if (a.dtype == DType::kFloat32) {
    std::memcpy(at, &value, sizeof value);
  } else {
    const std::uint16_t bits = a.dtype == DType::kBFloat16 ? float_to_bf16(value) : float_to_fp16(value);
    std::memcpy(at, &bits, sizeof bits);
  }
}

std::int64_t extent(const KdaCase& c, KdaAxis axis) {
  if (axis == KdaAxis::kNone) return 1;
  if (axis == KdaAxis::kDocument) return static_cast<std::int64_t>(c.lengths.size());
  return std::accumulate(c.lengths.begin(), c.lengths.end(), c.padding);
}

KdaArray make(const KdaCase& c, KdaAxis axis, DType dtype, std::vector<std::int64_t> tail) {
  KdaArray a{axis, dtype, std::move(tail), {}};
  a.bytes.resize(static_cast<std::size_t>(extent(c, axis)) * a.stride());
  return a;
}

/// Fills an array from `draw`; rows past the last document become NaN.
template <class Draw>
KdaArray drawn(const KdaCase& c, KdaAxis axis, DType dtype, std::vector<std::int64_t> tail, Draw draw) {
  KdaArray a = make(c, axis, dtype, std::move(tail));
  const std::int64_t rows = extent(c, axis) - (axis == KdaAxis::kToken ? c.padding : 0);
  const std::int64_t used = rows * a.width(), all = extent(c, axis) * a.width();
  for (std::int64_t i = 0; i < all; ++i) put(a, i, i < used ? draw() : kNaN);
  return a;
}

float draw_gate(const KdaCase& c, Random& random) {
  const float x = random.bell();
  if (c.gate != KdaGate::kPlain) return c.long_memory ? 2.0f * x - 10.0f : 2.0f * x;
  const float u = random.uniform();
  return u < 0.02f ? -1000.0f : u < 0.04f ? 0.0f : -0.5f * x * x;
}

}  // namespace

std::int64_t KdaArray::width() const {
  return std::accumulate(tail.begin(), tail.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t KdaArray::stride() const { return static_cast<std::size_t>(width() * dtype_size(dtype)); }

KdaArrays draw_kda_operands(const KdaCase& c) {
  Random random(c.seed);
  const auto bell = [&](float factor) { return [&random, factor] { return factor * random.bell(); }; };
  // Without the norm inside, rows of about unit length come from outside.
  const float row = c.l2norm ? 1.0f : 0.0625f;
  KdaArrays x;
  x["q"] = drawn(c, KdaAxis::kToken, c.dtype, {c.H, c.K}, bell(row));
  x["k"] = drawn(c, KdaAxis::kToken, c.dtype, {c.H, c.K}, bell(row));
  x["v"] = drawn(c, KdaAxis::kToken, c.dtype, {c.HV, c.V}, bell(1.0f));
  x["dout"] = drawn(c, KdaAxis::kToken, c.dtype, {c.HV, c.V}, bell(1.0f));
  const DType gate_dtype = c.gate == KdaGate::kPlain ? DType::kFloat32 : c.dtype;
  x["g"] = drawn(c, KdaAxis::kToken, gate_dtype, {c.HV, c.K}, [&] { return draw_gate(c, random); });
  const auto draw_beta = [&] {
    return !c.beta_sigmoid ? random.uniform() : c.long_memory ? random.bell() - 8.0f : random.bell();
  };
  x["beta"] = drawn(c, KdaAxis::kToken, c.dtype, {c.HV}, draw_beta);
  if (c.gate != KdaGate::kPlain) {
    x["A_log"] = drawn(c, KdaAxis::kNone, DType::kFloat32, {c.HV}, bell(0.5f));
    x["dt_bias"] = drawn(c, KdaAxis::kNone, DType::kFloat32, {c.HV, c.K}, bell(1.0f));
  }
  if (c.states) {
    x["initial_state"] = drawn(c, KdaAxis::kDocument, DType::kFloat32, {c.HV, c.K, c.V}, bell(0.25f));
    x["d_final_state"] = drawn(c, KdaAxis::kDocument, DType::kFloat32, {c.HV, c.K, c.V}, bell(0.25f));
  }
  return x;
}

KdaArrays empty_kda_results(const KdaCase& c) {
  KdaArrays y;
  const DType gate_dtype = c.gate == KdaGate::kPlain ? DType::kFloat32 : c.dtype;
  y["out"] = make(c, KdaAxis::kToken, c.dtype, {c.HV, c.V});
  y["final_state"] = make(c, KdaAxis::kDocument, DType::kFloat32, {c.HV, c.K, c.V});
  y["dq"] = make(c, KdaAxis::kToken, c.dtype, {c.H, c.K});
  y["dk"] = make(c, KdaAxis::kToken, c.dtype, {c.H, c.K});
  y["dv"] = make(c, KdaAxis::kToken, c.dtype, {c.HV, c.V});
  y["dg"] = make(c, KdaAxis::kToken, gate_dtype, {c.HV, c.K});
  y["dbeta"] = make(c, KdaAxis::kToken, c.dtype, {c.HV});
  if (c.gate != KdaGate::kPlain) {
    y["dA_log"] = make(c, KdaAxis::kNone, DType::kFloat32, {c.HV});
    y["ddt_bias"] = make(c, KdaAxis::kNone, DType::kFloat32, {c.HV, c.K});
  }
  if (c.states) y["dinitial_state"] = make(c, KdaAxis::kDocument, DType::kFloat32, {c.HV, c.K, c.V});
  return y;
}

}  // namespace cake::tool
