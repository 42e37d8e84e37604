#include "ops/kda/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cake::kda {
namespace {

using Numbers = std::vector<double>;

/// Tokens between two kept states of the backward: a block's states are computed again from its first one.
constexpr std::int64_t kBlock = 64;
constexpr double kNormEpsilon = 1e-6;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

double sigmoid(double x) {
  if (x >= 0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// A product in which 0 wins over an infinite factor: a saturated activation has no gradient, however steep it is.
double times(double a, double b) { return a == 0.0 || b == 0.0 ? 0.0 : a * b; }

/// The operands of the recurrence after all activations, for the rows of one document and one value head.
struct HeadOperands {
  std::int64_t T = 0;
  Numbers q, k;            // [T, K]
  Numbers v;               // [T, V]
  Numbers g, decay;        // [T, K], decay = exp(g)
  Numbers beta;            // [T]
  Numbers q_rstd, k_rstd;  // [T], 1 without l2norm
};

/// Gradients of the same, in the same shapes.
struct HeadGradients {
  Numbers dq, dk, dv, dg, dbeta, dstate;
};

double bias_of(const ReferenceInputs& in, std::int64_t hv, std::int64_t d) {
  return in.dt_bias.empty() ? 0.0 : in.dt_bias[to_size(hv * in.K + d)];
}

double rate_of(const ReferenceInputs& in, std::int64_t hv) {
  return in.A_log.empty() ? 1.0 : std::exp(in.A_log[to_size(hv)]);
}

double gate(const ReferenceInputs& in, std::int64_t hv, std::int64_t d, double raw) {
  if (!in.use_gate_in_kernel) return raw;
  const double x = raw + bias_of(in, hv, d);
  if (in.lower_bound) return *in.lower_bound * sigmoid(times(rate_of(in, hv), x));
  return -times(rate_of(in, hv), softplus(x));
}

double write_rate(const ReferenceInputs& in, double raw) {
  if (!in.use_beta_sigmoid_in_kernel) return raw;
  return sigmoid(raw) * (in.allow_neg_eigval ? 2.0 : 1.0);
}

/// Copies a row of K numbers, divided by its norm where asked, and returns the factor.
double load_row(const double* row, std::int64_t K, bool normalise, double* out) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < K; ++d) sum += row[d] * row[d];
  const double rstd = normalise ? 1.0 / std::sqrt(sum + kNormEpsilon) : 1.0;
  for (std::int64_t d = 0; d < K; ++d) out[d] = row[d] * rstd;
  return rstd;
}

HeadOperands load_head(const ReferenceInputs& in, std::int64_t first, std::int64_t T, std::int64_t hv) {
  const std::int64_t K = in.K, V = in.V, h = hv / (in.HV / in.H);
  HeadOperands head;
  head.T = T;
  head.q.resize(to_size(T * K));
  head.k.resize(to_size(T * K));
  head.g.resize(to_size(T * K));
  head.decay.resize(to_size(T * K));
  head.v.resize(to_size(T * V));
  for (auto* list : {&head.beta, &head.q_rstd, &head.k_rstd}) list->resize(to_size(T));
  for (std::int64_t t = 0; t < T; ++t) {
    const std::int64_t row = first + t;
    const std::int64_t at = (row * in.H + h) * K;
    head.q_rstd[to_size(t)] = load_row(&in.q[to_size(at)], K, in.use_qk_l2norm_in_kernel, &head.q[to_size(t * K)]);
    head.k_rstd[to_size(t)] = load_row(&in.k[to_size(at)], K, in.use_qk_l2norm_in_kernel, &head.k[to_size(t * K)]);
    std::copy_n(&in.v[to_size((row * in.HV + hv) * V)], V, &head.v[to_size(t * V)]);
    head.beta[to_size(t)] = write_rate(in, in.beta[to_size(row * in.HV + hv)]);
    for (std::int64_t d = 0; d < K; ++d) {
      const std::size_t from = to_size((row * in.HV + hv) * K + d), to = to_size(t * K + d);
      head.g[to] = gate(in, hv, d, in.g[from]);
      head.decay[to] = std::exp(head.g[to]) * (in.decay_error.empty() ? 1.0 : 1.0 + in.decay_error[from]);
    }
  }
  return head;
}

/// One token: `state` becomes the state after it, `error` holds v - decayed^T k.
void step(const HeadOperands& head, std::int64_t t, std::int64_t K, std::int64_t V, double* state, double* error) {
  const double* k = &head.k[to_size(t * K)];
  const double* decay = &head.decay[to_size(t * K)];
  std::copy_n(&head.v[to_size(t * V)], V, error);
  for (std::int64_t d = 0; d < K; ++d) {
    double* row = state + d * V;
    for (std::int64_t j = 0; j < V; ++j) {
      row[j] *= decay[d];
      error[j] -= k[d] * row[j];
    }
  }
  const double beta = head.beta[to_size(t)];
  for (std::int64_t d = 0; d < K; ++d) {
    double* row = state + d * V;
    for (std::int64_t j = 0; j < V; ++j) row[j] += k[d] * (beta * error[j]);
  }
}

/// The adjoint of step and of the output: `dstate` comes in as the gradient of the state after token t and goes out as
/// the gradient of the state before it.
void adjoint_step(const HeadOperands& head, std::int64_t t, std::int64_t K, std::int64_t V, double scale,
                  const double* before, const double* after, const double* dout, double* dstate, Numbers& error,
                  Numbers& derror, HeadGradients& grad) {
  const double* q = &head.q[to_size(t * K)];
  const double* k = &head.k[to_size(t * K)];
  const double* decay = &head.decay[to_size(t * K)];
  const double beta = head.beta[to_size(t)];
  double* dq = &grad.dq[to_size(t * K)];
  double* dk = &grad.dk[to_size(t * K)];
  std::copy_n(&head.v[to_size(t * V)], V, error.data());
  std::fill(derror.begin(), derror.end(), 0.0);
  for (std::int64_t d = 0; d < K; ++d) {  // o = scale S^T q, then S = decayed + k (beta error)^T: gradient of error
    double sum = 0.0;
    for (std::int64_t j = 0; j < V; ++j) {
      const std::int64_t at = d * V + j;
      sum += after[at] * dout[j];
      dstate[at] += scale * q[d] * dout[j];
      error[to_size(j)] -= k[d] * (before[at] * decay[d]);
      derror[to_size(j)] += k[d] * dstate[at];
    }
    dq[d] = scale * sum;
  }
  double dbeta = 0.0;
  for (std::int64_t j = 0; j < V; ++j) {
    dbeta += derror[to_size(j)] * error[to_size(j)];
    derror[to_size(j)] *= beta;
    grad.dv[to_size(t * V + j)] = derror[to_size(j)];
  }
  grad.dbeta[to_size(t)] = dbeta;
  for (std::int64_t d = 0; d < K; ++d) {  // error = v - decayed^T k, decayed = decay * before
    double sum_k = 0.0, sum_g = 0.0;
    for (std::int64_t j = 0; j < V; ++j) {
      const std::int64_t at = d * V + j;
      const double decayed = before[at] * decay[d];
      sum_k += dstate[at] * (beta * error[to_size(j)]) - decayed * derror[to_size(j)];
      const double ddecayed = dstate[at] - k[d] * derror[to_size(j)];
      sum_g += ddecayed * decayed;
      dstate[at] = ddecayed * decay[d];
    }
    dk[d] = sum_k;
    grad.dg[to_size(t * K + d)] = sum_g;
  }
}

/// Runs the adjoint over one document and head, from its last token to its first.
HeadGradients backward_head(const HeadOperands& head, std::int64_t K, std::int64_t V, double scale,
                            const Numbers& initial, const Numbers& dout, const Numbers& dfinal) {
  const std::int64_t T = head.T, size = K * V;
  HeadGradients grad;
  grad.dq.resize(to_size(T * K));
  grad.dk.resize(to_size(T * K));
  grad.dg.resize(to_size(T * K));
  grad.dv.resize(to_size(T * V));
  grad.dbeta.resize(to_size(T));
  grad.dstate = dfinal;
  Numbers error(to_size(V)), derror(to_size(V));
  Numbers starts = initial, state = initial;
  for (std::int64_t t = 0; t < T; ++t) {
    step(head, t, K, V, state.data(), error.data());
    if ((t + 1) % kBlock == 0) starts.insert(starts.end(), state.begin(), state.end());
  }
  Numbers states(to_size((std::min(T, kBlock) + 1) * size));
  for (std::int64_t first = (T - 1) / kBlock * kBlock; T > 0 && first >= 0; first -= kBlock) {
    const std::int64_t rows = std::min(kBlock, T - first);
    std::copy_n(&starts[to_size(first / kBlock * size)], size, states.data());
    for (std::int64_t i = 0; i < rows; ++i) {
      double* next = &states[to_size((i + 1) * size)];
      std::copy_n(next - size, size, next);
      step(head, first + i, K, V, next, error.data());
    }
    for (std::int64_t i = rows - 1; i >= 0; --i) {
      const double* before = &states[to_size(i * size)];
      adjoint_step(head, first + i, K, V, scale, before, before + size, &dout[to_size((first + i) * V)],
                   grad.dstate.data(), error, derror, grad);
    }
  }
  return grad;
}

/// Adds the gradient through an optional l2 normalisation of one row to `out`, the squares of its two terms to
/// `squares`.
void add_row_gradient(const double* y, double rstd, const double* dy, std::int64_t K, bool normalised, double* out,
                      double* squares) {
  double along = 0.0;
  if (normalised) {
    for (std::int64_t d = 0; d < K; ++d) along += dy[d] * y[d];
  }
  for (std::int64_t d = 0; d < K; ++d) {
    out[d] += rstd * (dy[d] - along * y[d]);
    if (normalised) squares[d] += rstd * rstd * (dy[d] * dy[d] + along * y[d] * along * y[d]);
  }
}

/// Gradient of the raw gate; adds the terms of dA_log and ddt_bias.
double gate_gradient(const ReferenceInputs& in, std::int64_t hv, std::int64_t d, double raw, double g, double dg,
                     ReferenceGradients& grads) {
  if (!in.use_gate_in_kernel) return dg;
  const double x = raw + bias_of(in, hv, d), rate = rate_of(in, hv);
  double dx = 0.0, da = 0.0;
  if (in.lower_bound) {
    const double slope = sigmoid(times(rate, x)) * sigmoid(-times(rate, x));
    dx = times(times(times(dg, *in.lower_bound), slope), rate);
    da = times(dx, x);
  } else {
    dx = -times(times(dg, sigmoid(x)), rate);
    da = times(dg, g);
  }
  if (!in.A_log.empty()) {
    grads.dA_log[to_size(hv)] += da;
    grads.dA_log_squares[to_size(hv)] += da * da;
  }
  if (!in.dt_bias.empty()) {
    grads.ddt_bias[to_size(hv * in.K + d)] += dx;
    grads.ddt_bias_squares[to_size(hv * in.K + d)] += dx * dx;
  }
  return dx;
}

double beta_gradient(const ReferenceInputs& in, double raw, double dbeta) {
  if (!in.use_beta_sigmoid_in_kernel) return dbeta;
  return dbeta * sigmoid(raw) * sigmoid(-raw) * (in.allow_neg_eigval ? 2.0 : 1.0);
}

Numbers state_of(const Numbers& states, std::int64_t index, std::int64_t size) {
  if (states.empty()) return Numbers(to_size(size), 0.0);
  const auto first = states.begin() + index * size;
  return Numbers(first, first + size);
}

/// Rows of one head out of a [S, HV, V] tensor.
Numbers rows_of(const Numbers& tensor, std::int64_t first, std::int64_t T, std::int64_t HV, std::int64_t hv,
                std::int64_t V) {
  Numbers rows(to_size(T * V));
  for (std::int64_t t = 0; t < T; ++t) {
    std::copy_n(&tensor[to_size(((first + t) * HV + hv) * V)], V, &rows[to_size(t * V)]);
  }
  return rows;
}

/// Carries the gradients of one head to the operands as the caller gave them.
void store_head(const ReferenceInputs& in, std::int64_t first, std::int64_t hv, const HeadOperands& head,
                const HeadGradients& grad, ReferenceGradients& out) {
  const std::int64_t K = in.K, V = in.V, h = hv / (in.HV / in.H);
  for (std::int64_t t = 0; t < head.T; ++t) {
    const std::int64_t row = first + t, qk = (row * in.H + h) * K, vrow = row * in.HV + hv;
    const bool norm = in.use_qk_l2norm_in_kernel;
    add_row_gradient(&head.q[to_size(t * K)], head.q_rstd[to_size(t)], &grad.dq[to_size(t * K)], K, norm,
                     &out.dq[to_size(qk)], norm ? &out.dq_squares[to_size(qk)] : nullptr);
    add_row_gradient(&head.k[to_size(t * K)], head.k_rstd[to_size(t)], &grad.dk[to_size(t * K)], K, norm,
                     &out.dk[to_size(qk)], norm ? &out.dk_squares[to_size(qk)] : nullptr);
    std::copy_n(&grad.dv[to_size(t * V)], V, &out.dv[to_size(vrow * V)]);
    out.dbeta[to_size(vrow)] = beta_gradient(in, in.beta[to_size(vrow)], grad.dbeta[to_size(t)]);
    for (std::int64_t d = 0; d < K; ++d) {
      const std::size_t at = to_size(vrow * K + d);
      out.dg[at] = gate_gradient(in, hv, d, in.g[at], head.g[to_size(t * K + d)], grad.dg[to_size(t * K + d)], out);
    }
  }
}

}  // namespace

ReferenceOutputs reference_forward(const ReferenceInputs& in) {
  const std::int64_t N = static_cast<std::int64_t>(in.offsets.size()) - 1, K = in.K, V = in.V, size = K * V;
  ReferenceOutputs out;
  out.out.assign(to_size(in.S * in.HV * V), 0.0);
  out.final_state.assign(to_size(N * in.HV * size), 0.0);
  Numbers error(to_size(V));
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t first = in.offsets[to_size(n)], T = in.offsets[to_size(n + 1)] - first;
    for (std::int64_t hv = 0; hv < in.HV; ++hv) {
      const HeadOperands head = load_head(in, first, T, hv);
      Numbers state = state_of(in.initial_state, n * in.HV + hv, size);
      for (std::int64_t t = 0; t < T; ++t) {
        step(head, t, K, V, state.data(), error.data());
        double* row = &out.out[to_size(((first + t) * in.HV + hv) * V)];
        for (std::int64_t d = 0; d < K; ++d) {
          const double q = in.scale * head.q[to_size(t * K + d)];
          for (std::int64_t j = 0; j < V; ++j) row[j] += q * state[to_size(d * V + j)];
        }
      }
      std::copy(state.begin(), state.end(), out.final_state.begin() + (n * in.HV + hv) * size);
    }
  }
  return out;
}

ReferenceGradients reference_backward(const ReferenceInputs& in, const std::vector<double>& dout,
                                      const std::vector<double>& d_final_state) {
  const std::int64_t N = static_cast<std::int64_t>(in.offsets.size()) - 1, size = in.K * in.V;
  ReferenceGradients grads;
  grads.dq.assign(in.q.size(), 0.0);
  grads.dk.assign(in.k.size(), 0.0);
  if (in.use_qk_l2norm_in_kernel) grads.dq_squares = grads.dk_squares = grads.dk;
  grads.dv.assign(in.v.size(), 0.0);
  grads.dg.assign(in.g.size(), 0.0);
  grads.dbeta.assign(in.beta.size(), 0.0);
  grads.dA_log.assign(in.A_log.size(), 0.0);
  grads.dA_log_squares.assign(in.A_log.size(), 0.0);
  grads.ddt_bias.assign(in.dt_bias.size(), 0.0);
  grads.ddt_bias_squares.assign(in.dt_bias.size(), 0.0);
  grads.dinitial_state.assign(in.initial_state.size(), 0.0);
  for (std::int64_t n = 0; n < N; ++n) {
    const std::int64_t first = in.offsets[to_size(n)], T = in.offsets[to_size(n + 1)] - first;
    for (std::int64_t hv = 0; hv < in.HV; ++hv) {
      const HeadOperands head = load_head(in, first, T, hv);
      const HeadGradients grad =
          backward_head(head, in.K, in.V, in.scale, state_of(in.initial_state, n * in.HV + hv, size),
                        rows_of(dout, first, T, in.HV, hv, in.V), state_of(d_final_state, n * in.HV + hv, size));
      store_head(in, first, hv, head, grad, grads);
      if (!in.initial_state.empty()) {
        std::copy(grad.dstate.begin(), grad.dstate.end(), grads.dinitial_state.begin() + (n * in.HV + hv) * size);
      }
    }
  }
  return grads;
}

}  // namespace cake::kda
