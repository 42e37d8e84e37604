#include "ops/kda/problem.h"

#include <cmath>
#include <string>

#include "core/checks.h"
#include "core/fpenv.h"

namespace cake::kda {
namespace {

using checks::fail;
using checks::kAny;

constexpr std::initializer_list<DType> kFloats = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

void require_operand(const ConstTensorView& view, const char* name, const char* meaning,
                     std::initializer_list<std::int64_t> shape, std::initializer_list<DType> dtypes) {
  checks::require_given(view, name);
  checks::require_shape(view, name, meaning, shape);
  checks::require_dtype(view, name, dtypes);
  checks::require_data(view, name);
}

void require_output(const TensorView& view, const char* name, const char* meaning,
                    std::initializer_list<std::int64_t> shape, DType dtype) {
  require_operand(view, name, meaning, shape, {dtype});
  checks::require_not_expanded(view, name);
}

void check_offsets(const ConstTensorView& cu_seqlens, std::int64_t B, std::int64_t S) {
  checks::require_given(cu_seqlens, "cu_seqlens");
  checks::require_shape(cu_seqlens, "cu_seqlens", "[N + 1]", {kAny});
  checks::require_dtype(cu_seqlens, "cu_seqlens", {DType::kInt32});
  checks::require_data(cu_seqlens, "cu_seqlens");
  if (B != 1) fail("cu_seqlens", "operands with B = " + std::to_string(B), "B = 1 together with cu_seqlens");
  const std::int64_t entries = cu_seqlens.shape[0];
  if (entries < 1) fail("cu_seqlens", "no entries", "N + 1 >= 1 of them");
  const auto* offsets = static_cast<const std::int32_t*>(cu_seqlens.data);
  const auto at = [&](std::int64_t i) { return std::int64_t{offsets[i * cu_seqlens.strides[0]]}; };
  if (at(0) != 0) fail("cu_seqlens", "first offset " + std::to_string(at(0)), "0");
  for (std::int64_t i = 1; i < entries; ++i) {
    if (at(i) < at(i - 1)) {
      fail("cu_seqlens",
           std::to_string(at(i)) + " after " + std::to_string(at(i - 1)) + " at entry " + std::to_string(i),
           "non-decreasing offsets");
    }
  }
  if (at(entries - 1) > S) {
    fail("cu_seqlens", "last offset " + std::to_string(at(entries - 1)), "at most S = " + std::to_string(S));
  }
}

void check_gate(const Operands& x, const Settings& settings, const Problem& p) {
  if (!settings.use_gate_in_kernel) {
    if (x.A_log.given) fail("A_log", "a tensor", "none without use_gate_in_kernel");
    if (x.dt_bias.given) fail("dt_bias", "a tensor", "none without use_gate_in_kernel");
    if (settings.lower_bound)
      fail("lower_bound", std::to_string(*settings.lower_bound), "none without use_gate_in_kernel");
    return;
  }
  if (settings.lower_bound) {
    if (!(*settings.lower_bound < 0.0f) || std::isinf(*settings.lower_bound)) {
      fail("lower_bound", std::to_string(*settings.lower_bound), "a finite number below 0");
    }
  } else if (!x.A_log.given) {
    fail("A_log", "nothing", "fp32 [HV] with use_gate_in_kernel (it is optional with lower_bound only)");
  }
  if (x.A_log.given) require_operand(x.A_log, "A_log", "[HV]", {p.HV}, {DType::kFloat32});
  if (x.dt_bias.given) {
    if (x.dt_bias.ndim == 1) {
      require_operand(x.dt_bias, "dt_bias", "[HV * K]", {p.HV * p.K}, {DType::kFloat32});
    } else {
      require_operand(x.dt_bias, "dt_bias", "[HV, K]", {p.HV, p.K}, {DType::kFloat32});
    }
  }
}

}  // namespace

Problem check_problem(const Operands& x, const Settings& settings, std::optional<std::int64_t> documents) {
  Problem p;
  require_operand(x.q, "q", "[B, S, H, K]", {kAny, kAny, kAny, kAny}, kFloats);
  p.B = x.q.shape[0];
  p.S = x.q.shape[1];
  p.H = x.q.shape[2];
  p.K = x.q.shape[3];
  const auto head_dim = [](const char* name, const char* letter, std::int64_t n) {
    if (n < 1 || n > kMaxHeadDim) fail(name, std::string(letter) + " = " + std::to_string(n), "1 to 256");
  };
  head_dim("q", "K", p.K);
  if (p.H < 1) fail("q", "H = 0", "at least one head");
  const DType dtype = x.q.dtype;
  require_operand(x.k, "k", "[B, S, H, K]", {p.B, p.S, p.H, p.K}, {dtype});
  require_operand(x.v, "v", "[B, S, HV, V]", {p.B, p.S, kAny, kAny}, {dtype});
  p.HV = x.v.shape[2];
  p.V = x.v.shape[3];
  head_dim("v", "V", p.V);
  if (p.HV < 1 || p.HV % p.H != 0) {
    fail("v", "HV = " + std::to_string(p.HV), "a positive multiple of H = " + std::to_string(p.H));
  }
  if (settings.use_gate_in_kernel) {
    require_operand(x.g, "g", "[B, S, HV, K]", {p.B, p.S, p.HV, p.K}, kFloats);
  } else {
    require_operand(x.g, "g", "[B, S, HV, K]", {p.B, p.S, p.HV, p.K}, {DType::kFloat32});
  }
  if (dtype == DType::kFloat32) {
    require_operand(x.beta, "beta", "[B, S, HV]", {p.B, p.S, p.HV}, {DType::kFloat32});
  } else {
    require_operand(x.beta, "beta", "[B, S, HV]", {p.B, p.S, p.HV}, {dtype, DType::kFloat32});
  }
  p.packed = x.cu_seqlens.given;
  if (p.packed) {
    check_offsets(x.cu_seqlens, p.B, p.S);
    p.N = x.cu_seqlens.shape[0] - 1;
  } else {
    p.N = documents.value_or(p.B);
  }
  if (x.initial_state.given) {
    require_operand(x.initial_state, "initial_state", "[N, HV, K, V]", {p.N, p.HV, p.K, p.V}, {DType::kFloat32});
  }
  check_gate(x, settings, p);
  if (settings.allow_neg_eigval && !settings.use_beta_sigmoid_in_kernel) {
    fail("allow_neg_eigval", "true", "false without use_beta_sigmoid_in_kernel (give beta up to 2 instead)");
  }
  if (settings.scale && !std::isfinite(*settings.scale)) {
    fail("scale", std::to_string(*settings.scale), "a finite number");
  }
  // K^-1/2 by correctly rounded operations only, whatever the caller's rounding mode is.
  const ScopedFpEnv env;
  p.scale = settings.scale ? *settings.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.K)));
  return p;
}

void check_forward(const Problem& p, const Operands& x, const ForwardResults& r) {
  require_output(r.out, "out", "[B, S, HV, V]", {p.B, p.S, p.HV, p.V}, x.q.dtype);
  if (r.final_state.given) {
    require_output(r.final_state, "final_state", "[N, HV, K, V]", {p.N, p.HV, p.K, p.V}, DType::kFloat32);
  }
}

void check_backward(const Problem& p, const Operands& x, const Settings& settings, const ConstTensorView& dout,
                    const ConstTensorView& d_final_state, const BackwardResults& r) {
  require_operand(dout, "dout", "[B, S, HV, V]", {p.B, p.S, p.HV, p.V}, {x.q.dtype});
  if (d_final_state.given) {
    require_operand(d_final_state, "d_final_state", "[N, HV, K, V]", {p.N, p.HV, p.K, p.V}, {DType::kFloat32});
  }
  const auto qk = {p.B, p.S, p.H, p.K};
  if (r.dq.given) require_output(r.dq, "dq", "[B, S, H, K]", qk, x.q.dtype);
  if (r.dk.given) require_output(r.dk, "dk", "[B, S, H, K]", qk, x.k.dtype);
  if (r.dv.given) require_output(r.dv, "dv", "[B, S, HV, V]", {p.B, p.S, p.HV, p.V}, x.v.dtype);
  if (r.dg.given) require_output(r.dg, "dg", "[B, S, HV, K]", {p.B, p.S, p.HV, p.K}, x.g.dtype);
  if (r.dbeta.given) require_output(r.dbeta, "dbeta", "[B, S, HV]", {p.B, p.S, p.HV}, x.beta.dtype);
  if (r.dA_log.given) {
    if (!settings.use_gate_in_kernel || !x.A_log.given) fail("dA_log", "a tensor", "none without A_log");
    require_output(r.dA_log, "dA_log", "[HV]", {p.HV}, DType::kFloat32);
  }
  if (r.ddt_bias.given) {
    if (!settings.use_gate_in_kernel || !x.dt_bias.given) fail("ddt_bias", "a tensor", "none without dt_bias");
    if (x.dt_bias.ndim == 1) {
      require_output(r.ddt_bias, "ddt_bias", "[HV * K]", {p.HV * p.K}, DType::kFloat32);
    } else {
      require_output(r.ddt_bias, "ddt_bias", "[HV, K]", {p.HV, p.K}, DType::kFloat32);
    }
  }
  if (r.dinitial_state.given) {
    if (!x.initial_state.given) fail("dinitial_state", "a tensor", "none without initial_state");
    require_output(r.dinitial_state, "dinitial_state", "[N, HV, K, V]", {p.N, p.HV, p.K, p.V}, DType::kFloat32);
  }
}

}  // namespace cake::kda
