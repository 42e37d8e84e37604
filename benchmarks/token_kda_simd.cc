// KDA token by token with the 16-lane SIMD type, lanes over V. One head a call; mathematics as in token_kda_plain.cc.
//
// Forward: panels of 32 (then 16) columns, so that a panel of the state stays in the first-level cache, and one sweep
// of the panel per token: it applies the update of the token before, answers its query, decays, and reads the key.
// Backward: states every 64 tokens, the ones between rebuilt into a buffer; two sweeps of the state gradient per token
// with kRowBlock rows at a time, so that the row vectors of the token are loaded once per block.
#include "benchmarks/token_kda.h"
#include "core/simd/math.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {

using benchmarks::kCheckpointTokens;
using benchmarks::TokenHeadMemory;
using benchmarks::TokenProblem;
using benchmarks::TokenResults;

namespace {

constexpr int kMaxExtent = 256;
#if defined(CAKE_ISA_v4)
constexpr int kRowBlock = 4;
#else
constexpr int kRowBlock = 2;
#endif

void decays(const TokenProblem& p, std::int64_t head, float* decay) {
  for (std::int64_t t = 0; t < p.T; ++t) {
    const float* g = p.g + (t * p.H + head) * p.K;
    for (std::int64_t d = 0; d < p.K; d += kLanes) store(decay + t * p.K + d, exp(load(g + d)));
  }
}

// S [K][16 kPanels] with the pending update k r^T of the token before, to rows of a [K, V] matrix.
template <int kPanels>
CAKE_INLINE void store_state(const TokenProblem& p, const float* S, const float* k, const F* r, float* state) {
  for (std::int64_t d = 0; d < p.K; ++d) {
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) {
      store(state + d * p.V + c * kLanes, fma(set1(k[d]), r[c], load(S + (d * kPanels + c) * kLanes)));
    }
  }
}

template <int kPanels>
CAKE_INLINE void forward_panel(const TokenProblem& p, std::int64_t head, std::int64_t column, bool keep,
                               const TokenHeadMemory& m, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  alignas(64) float none[kMaxExtent] = {};
  float* S = m.gradient;
  for (std::int64_t i = 0; i < K * kPanels; ++i) store(S + i * kLanes, zero());
  const float *k_before = none, *q_before = none;
  F r[kPanels];
#pragma GCC unroll 4
  for (int c = 0; c < kPanels; ++c) r[c] = zero();
  const auto write_output = [&](std::int64_t t, const F* o) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) {
      store(out.out + (t * p.H + head) * V + column + c * kLanes, o[c] * set1(p.scale));
    }
  };
  for (std::int64_t t = 0; t < p.T; ++t) {
    if (keep && t % kCheckpointTokens == 0) {
      store_state<kPanels>(p, S, k_before, r, m.checkpoints + t / kCheckpointTokens * K * V + column);
    }
    const std::int64_t n = t * p.H + head;
    const float *k = p.k + n * K, *a = m.decay + t * K;
    F read[kPanels], o[kPanels];
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) read[c] = o[c] = zero();
    for (std::int64_t d = 0; d < K; ++d) {
      const F kb = set1(k_before[d]), qb = set1(q_before[d]), ad = set1(a[d]), kd = set1(k[d]);
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) {
        F s = fma(kb, r[c], load(S + (d * kPanels + c) * kLanes));
        o[c] = fma(qb, s, o[c]);
        s = s * ad;
        store(S + (d * kPanels + c) * kLanes, s);
        read[c] = fma(kd, s, read[c]);
      }
    }
    if (t > 0) write_output(t - 1, o);
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) {
      const F w = load(p.v + n * V + column + c * kLanes) - read[c];
      if (keep) store(m.residual + t * V + column + c * kLanes, w);
      r[c] = set1(p.beta[n]) * w;
    }
    k_before = k;
    q_before = p.q + n * K;
  }
  // The last update and query have no token after them to ride on.
  store_state<kPanels>(p, S, k_before, r, out.final_state + head * K * V + column);
  if (p.T > 0) {
    F o[kPanels];
#pragma GCC unroll 4
    for (int c = 0; c < kPanels; ++c) o[c] = zero();
    for (std::int64_t d = 0; d < K; ++d) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanels; ++c) {
        o[c] = fma(set1(q_before[d]), load(out.final_state + (head * K + d) * V + column + c * kLanes), o[c]);
      }
    }
    write_output(p.T - 1, o);
  }
}

void forward(const TokenProblem& p, std::int64_t head, bool keep, const TokenHeadMemory& m, const TokenResults& out) {
  decays(p, head, m.decay);
  std::int64_t column = 0;
  for (; column + 2 * kLanes <= p.V; column += 2 * kLanes) forward_panel<2>(p, head, column, keep, m, out);
  if (column < p.V) forward_panel<1>(p, head, column, keep, m, out);
}

void rebuild_states(const TokenProblem& p, std::int64_t head, std::int64_t first, std::int64_t tokens,
                    const TokenHeadMemory& m) {
  const std::int64_t K = p.K, V = p.V;
  const float* before = m.checkpoints + first / kCheckpointTokens * K * V;
  float* kept = m.states;
  for (std::int64_t i = 0; i < K * V; i += kLanes) store(kept + i, load(before + i));
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t n = (first + i) * p.H + head;
    const float *k = p.k + n * K, *a = m.decay + (first + i) * K, *w = m.residual + (first + i) * V;
    const float* state = m.states + i * K * V;
    float* after = m.states + (i + 1) * K * V;
    for (std::int64_t d = 0; d < K; ++d) {
      const F kd = set1(k[d] * p.beta[n]), ad = set1(a[d]);
      for (std::int64_t x = 0; x < V; x += kLanes) {
        store(after + d * V + x, fma(kd, load(w + x), load(state + d * V + x) * ad));
      }
    }
  }
}

/// The vectors of V numbers that one token's sweeps share.
struct Rows {
  alignas(64) float r[kMaxExtent];      ///< beta w
  alignas(64) float dr[kMaxExtent];     ///< gradient of r
  alignas(64) float dvneg[kMaxExtent];  ///< -beta dr
};

// D += scale q dout^T; dq = scale S dout; dk = D r; dr = D^T k.
CAKE_INLINE void query_sweep(const TokenProblem& p, std::int64_t n, const float* after, float* D, Rows& rows,
                             const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  const float *q = p.q + n * K, *k = p.k + n * K, *o = p.dout + n * V;
  for (std::int64_t x = 0; x < V; x += kLanes) store(rows.dr + x, zero());
  for (std::int64_t d = 0; d < K; d += kRowBlock) {
    F qd[kRowBlock], kd[kRowBlock], queries[kRowBlock], keys[kRowBlock];
#pragma GCC unroll 4
    for (int i = 0; i < kRowBlock; ++i) {
      qd[i] = set1(q[d + i] * p.scale);
      kd[i] = set1(k[d + i]);
      queries[i] = keys[i] = zero();
    }
    for (std::int64_t x = 0; x < V; x += kLanes) {
      const F ox = load(o + x), rx = load(rows.r + x);
      F drx = load(rows.dr + x);
#pragma GCC unroll 4
      for (int i = 0; i < kRowBlock; ++i) {
        const F y = fma(qd[i], ox, load(D + (d + i) * V + x));
        store(D + (d + i) * V + x, y);
        queries[i] = fma(load(after + (d + i) * V + x), ox, queries[i]);
        keys[i] = fma(y, rx, keys[i]);
        drx = fma(kd[i], y, drx);
      }
      store(rows.dr + x, drx);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRowBlock; ++i) {
      out.dq[n * K + d + i] = p.scale * reduce_add(queries[i]);
      out.dk[n * K + d + i] = reduce_add(keys[i]);
    }
  }
}

// With P = a (.) S_before: D -= k dv^T; dk -= P dv; dg = rowsum(P (.) D); D = diag(a) D.
CAKE_INLINE void key_sweep(const TokenProblem& p, std::int64_t n, const float* before, const float* a, float* D,
                           const Rows& rows, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  const float* k = p.k + n * K;
  for (std::int64_t d = 0; d < K; d += kRowBlock) {
    F kd[kRowBlock], ad[kRowBlock], keys[kRowBlock], gates[kRowBlock];
#pragma GCC unroll 4
    for (int i = 0; i < kRowBlock; ++i) {
      kd[i] = set1(k[d + i]);
      ad[i] = set1(a[d + i]);
      keys[i] = gates[i] = zero();
    }
    for (std::int64_t x = 0; x < V; x += kLanes) {
      const F dvx = load(rows.dvneg + x);
#pragma GCC unroll 4
      for (int i = 0; i < kRowBlock; ++i) {
        const F s = load(before + (d + i) * V + x);
        const F y = fma(kd[i], dvx, load(D + (d + i) * V + x));
        keys[i] = fma(s, dvx, keys[i]);
        gates[i] = fma(s, y, gates[i]);
        store(D + (d + i) * V + x, y * ad[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kRowBlock; ++i) {
      out.dk[n * K + d + i] += a[d + i] * reduce_add(keys[i]);
      out.dg[n * K + d + i] = a[d + i] * reduce_add(gates[i]);
    }
  }
}

void backward_token(const TokenProblem& p, std::int64_t n, const float* before, const float* after, const float* a,
                    const float* w, float* D, const TokenResults& out) {
  Rows rows;
  const F beta = set1(p.beta[n]);
  for (std::int64_t x = 0; x < p.V; x += kLanes) store(rows.r + x, beta * load(w + x));
  query_sweep(p, n, after, D, rows, out);
  F dbeta = zero();
  for (std::int64_t x = 0; x < p.V; x += kLanes) {
    const F dr = load(rows.dr + x), dv = beta * dr;
    dbeta = fma(dr, load(w + x), dbeta);
    store(out.dv + n * p.V + x, dv);
    store(rows.dvneg + x, neg(dv));
  }
  out.dbeta[n] = reduce_add(dbeta);
  key_sweep(p, n, before, a, D, rows, out);
}

void backward(const TokenProblem& p, std::int64_t head, const TokenHeadMemory& m, const TokenResults& out) {
  const std::int64_t K = p.K, V = p.V;
  for (std::int64_t i = 0; i < K * V; i += kLanes) store(m.gradient + i, zero());
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

extern const benchmarks::TokenKernels kSimdTokenKernels;
const benchmarks::TokenKernels kSimdTokenKernels = {forward, backward};

}  // namespace cake::CAKE_ISA_NAMESPACE
