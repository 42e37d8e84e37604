// KDA token by token as plain loops, the way the recurrence reads; the compiler vectorises what it can. One head a
// call.
//   forward, per token:  S = diag(a) S;  w = v - S^T k;  S += k (beta w)^T;  o = scale S^T q
//   backward, last token first, with D the gradient of the state after the token and r = beta w:
//     D += scale q dout^T;  dq = scale S dout;  dr = D^T k;  dk = D r;  dbeta = dr.w;  dv = beta dr
//     with P = a (.) S_before:  D -= k dv^T;  dk -= P dv;  dg = rowsum(P (.) D);  D = diag(a) D
// States are kept every 64 tokens and rebuilt in between. Compiled once per instruction-set level.
#include <math.h>

#include "benchmarks/token_kda.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {

using benchmarks::kCheckpointTokens;
using benchmarks::TokenHeadMemory;
using benchmarks::TokenProblem;
using benchmarks::TokenResults;

namespace {

constexpr int kMaxColumns = 256;

void forward(const TokenProblem& p, std::int64_t head, bool keep, const TokenHeadMemory& m, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  float* S = m.states;
  for (std::int64_t i = 0; i < K * V; ++i) S[i] = 0.0f;
  for (std::int64_t t = 0; t < p.T; ++t) {
    const std::int64_t n = t * p.H + head;
    const float *q = p.q + n * K, *k = p.k + n * K, *v = p.v + n * V, *g = p.g + n * K;
    float *a = m.decay + t * K, *w = m.residual + t * V, *o = out.out + n * V;
    float r[kMaxColumns];
    if (keep && t % kCheckpointTokens == 0) {
      float* kept = m.checkpoints + t / kCheckpointTokens * K * V;
      for (std::int64_t i = 0; i < K * V; ++i) kept[i] = S[i];
    }
    for (std::int64_t d = 0; d < K; ++d) a[d] = expf(g[d]);
    for (std::int64_t d = 0; d < K; ++d) {
      for (std::int64_t x = 0; x < V; ++x) S[d * V + x] *= a[d];
    }
    for (std::int64_t x = 0; x < V; ++x) w[x] = v[x];
    for (std::int64_t d = 0; d < K; ++d) {
      for (std::int64_t x = 0; x < V; ++x) w[x] -= k[d] * S[d * V + x];
    }
    for (std::int64_t x = 0; x < V; ++x) r[x] = p.beta[n] * w[x];
    for (std::int64_t d = 0; d < K; ++d) {
      for (std::int64_t x = 0; x < V; ++x) S[d * V + x] += k[d] * r[x];
    }
    for (std::int64_t x = 0; x < V; ++x) o[x] = 0.0f;
    for (std::int64_t d = 0; d < K; ++d) {
      const float scaled = p.scale * q[d];
      for (std::int64_t x = 0; x < V; ++x) o[x] += scaled * S[d * V + x];
    }
  }
  float* last = out.final_state + head * K * V;
  for (std::int64_t i = 0; i < K * V; ++i) last[i] = S[i];
}

void rebuild_states(const TokenProblem& p, std::int64_t head, std::int64_t first, std::int64_t tokens,
                    const TokenHeadMemory& m) {
  const std::int64_t K = p.K, V = p.V;
  const float* kept = m.checkpoints + first / kCheckpointTokens * K * V;
  for (std::int64_t i = 0; i < K * V; ++i) m.states[i] = kept[i];
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t n = (first + i) * p.H + head;
    const float *before = m.states + i * K * V, *a = m.decay + (first + i) * K, *w = m.residual + (first + i) * V;
    float* after = m.states + (i + 1) * K * V;
    for (std::int64_t d = 0; d < K; ++d) {
      const float kb = p.k[n * K + d] * p.beta[n];
      for (std::int64_t x = 0; x < V; ++x) after[d * V + x] = before[d * V + x] * a[d] + kb * w[x];
    }
  }
}

void backward_token(const TokenProblem& p, std::int64_t n, const float* before, const float* after, const float* a,
                    const float* w, float* D, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  const float *q = p.q + n * K, *k = p.k + n * K, *o = p.dout + n * V;
  const float beta = p.beta[n];
  float *dq = out.dq + n * K, *dk = out.dk + n * K, *dv = out.dv + n * V, *dg = out.dg + n * K;
  float r[kMaxColumns], dr[kMaxColumns];
  for (std::int64_t x = 0; x < V; ++x) r[x] = beta * w[x];
  for (std::int64_t x = 0; x < V; ++x) dr[x] = 0.0f;
  for (std::int64_t d = 0; d < K; ++d) {
    for (std::int64_t x = 0; x < V; ++x) D[d * V + x] += p.scale * q[d] * o[x];
    float sum = 0.0f;
    for (std::int64_t x = 0; x < V; ++x) sum += after[d * V + x] * o[x];
    dq[d] = p.scale * sum;
    for (std::int64_t x = 0; x < V; ++x) dr[x] += D[d * V + x] * k[d];
    sum = 0.0f;
    for (std::int64_t x = 0; x < V; ++x) sum += D[d * V + x] * r[x];
    dk[d] = sum;
  }
  float sum = 0.0f;
  for (std::int64_t x = 0; x < V; ++x) sum += dr[x] * w[x];
  out.dbeta[n] = sum;
  for (std::int64_t x = 0; x < V; ++x) dv[x] = beta * dr[x];
  for (std::int64_t d = 0; d < K; ++d) {
    for (std::int64_t x = 0; x < V; ++x) D[d * V + x] -= k[d] * dv[x];
    float keys = 0.0f, gates = 0.0f;
    for (std::int64_t x = 0; x < V; ++x) keys += before[d * V + x] * dv[x];
    for (std::int64_t x = 0; x < V; ++x) gates += before[d * V + x] * D[d * V + x];
    dk[d] -= a[d] * keys;
    dg[d] = a[d] * gates;
    for (std::int64_t x = 0; x < V; ++x) D[d * V + x] *= a[d];
  }
}

void backward(const TokenProblem& p, std::int64_t head, const TokenHeadMemory& m, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  for (std::int64_t i = 0; i < K * V; ++i) m.gradient[i] = 0.0f;
  const std::int64_t stretches = (p.T + kCheckpointTokens - 1) / kCheckpointTokens;
  for (std::int64_t c = stretches - 1; c >= 0; --c) {
    const std::int64_t first = c * kCheckpointTokens;
    const std::int64_t tokens = p.T - first < kCheckpointTokens ? p.T - first : kCheckpointTokens;
    rebuild_states(p, head, first, tokens, m);
    for (std::int64_t i = tokens - 1; i >= 0; --i) {
      backward_token(p, (first + i) * p.H + head, m.states + i * K * V, m.states + (i + 1) * K * V,
                     m.decay + (first + i) * K, m.residual + (first + i) * V, m.gradient, out);
    }
  }
}

}  // namespace

extern const benchmarks::TokenKernels kPlainTokenKernels;
const benchmarks::TokenKernels kPlainTokenKernels = {forward, backward};

}  // namespace cake::CAKE_ISA_NAMESPACE
