// One chunk of up to 64 rows: operands into panels, decays as running products, and the products of q, k and decays.
//
// With a_i = exp(g_i) row by row, e = product from the block's first row (inclusive), d = product of the rows after i
// in its block, every decay exp(G_i - G_j) is a product of numbers <= 1: nothing overflows for any gate, and no
// cumulative sum loses digits. Rows past the chunk's end are zero (beta too) with decay 1, so they change nothing.
//   P_ij  = sum_d k_id k_jd exp(G_id - G_jd), i > j      Aqk_ij = sum_d scale q_id k_jd exp(G_id - G_jd), i >= j
// Fixed order: sums over d ascend in one accumulator per element. Tests: tests/kda; benchmark: cake bench.
#pragma once

#include "core/simd/convert.h"
#include "core/simd/math.h"
#include "core/simd/panel_gemm.h"
#include "ops/kda/cpu/kernels.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

using cake::kda::BetaKind;
using cake::kda::GateKind;
using cake::kda::Head;
using cake::kda::kPanel;
using cake::kda::kPanel2;
using cake::kda::MutableRows;
using cake::kda::Pairs;
using cake::kda::Rows;
using cake::kda::Scratch;
using cake::kda::SegmentRun;

constexpr int kRows = 64;   // rows of a chunk
constexpr int kBlock = 16;  // rows of a sub-chunk
constexpr float kL2Eps = 1e-6f;

/// What the functions of a chunk share.
struct Chunk {
  const Head* head;
  Scratch* s;
  std::int64_t first;  ///< row of the document
  int rows;            ///< valid rows
  int blocks;          ///< 16-row blocks that hold them
  int kpanels, vpanels;
  int rows16() const { return blocks * kBlock; }
};

/// The chunk at row `at` of a run.
CAKE_INLINE Chunk make_chunk(const SegmentRun& run, std::int64_t at) {
  const Head& h = *run.head;
  const int n = static_cast<int>(run.rows - at < kRows ? run.rows - at : kRows);
  return {&h, run.scratch, run.first + at, n, (n + kBlock - 1) / kBlock, h.Kp / kLanes, h.Vp / kLanes};
}

/// Asks for one row of an operand. Rows of one head lie far apart in memory, which no hardware prefetcher follows; a
/// request a few rows ahead is early enough and not yet evicted.
CAKE_INLINE void prefetch_row(const Rows& x, std::int64_t row, int width) {
  constexpr int kLine = 64;
  const std::int64_t size = x.dtype == DType::kFloat32 ? 4 : 2;
  if (x.lane_stride != 1) return;
  const char* p = static_cast<const char*>(x.data) + row * x.row_stride * size;
  for (std::int64_t b = 0; b < width * size; b += kLine) __builtin_prefetch(p + b, 0, 3);
}
constexpr int kPrefetchRows = 8;

/// Sixteen lanes of an operand row from column c on; lanes past `width` are zero.
CAKE_INLINE F load_operand(const Rows& x, std::int64_t row, int c, int width) {
  const std::int64_t at = row * x.row_stride + c * x.lane_stride;
  if (x.lane_stride == 1 && c + kLanes <= width) {
    if (x.dtype == DType::kFloat32) return load(static_cast<const float*>(x.data) + at);
    const auto* p = static_cast<const std::uint16_t*>(x.data) + at;
    return x.dtype == DType::kBFloat16 ? load_bf16(p) : load_fp16(p);
  }
  float t[kLanes] = {};
  const int n = width - c < kLanes ? width - c : kLanes;
  for (int l = 0; l < n; ++l) {
    const std::int64_t e = at + l * x.lane_stride;
    if (x.dtype == DType::kFloat32) {
      t[l] = static_cast<const float*>(x.data)[e];
    } else {
      const std::uint16_t bits = static_cast<const std::uint16_t*>(x.data)[e];
      t[l] = x.dtype == DType::kBFloat16 ? bf16_to_float(bits) : fp16_to_float(bits);
    }
  }
  return load(t);
}

/// Rounds sixteen lanes to the tensor's dtype and stores those below `width`.
CAKE_INLINE void store_result(const MutableRows& y, std::int64_t row, int c, int width, F x) {
  const std::int64_t at = row * y.row_stride + c * y.lane_stride;
  if (y.lane_stride == 1 && c + kLanes <= width) {
    if (y.dtype == DType::kFloat32) {
      store(static_cast<float*>(y.data) + at, x);
    } else if (y.dtype == DType::kBFloat16) {
      store_bf16(static_cast<std::uint16_t*>(y.data) + at, x);
    } else {
      store_fp16(static_cast<std::uint16_t*>(y.data) + at, x);
    }
    return;
  }
  float t[kLanes];
  store(t, x);
  const int n = width - c < kLanes ? width - c : kLanes;
  for (int l = 0; l < n; ++l) {
    const std::int64_t e = at + l * y.lane_stride;
    if (y.dtype == DType::kFloat32) {
      static_cast<float*>(y.data)[e] = t[l];
    } else {
      static_cast<std::uint16_t*>(y.data)[e] = y.dtype == DType::kBFloat16 ? float_to_bf16(t[l]) : float_to_fp16(t[l]);
    }
  }
}

/// A row of q or k into panels; returns 1 / sqrt(sum of squares + eps), or 1 without the norm. `factor` scales q.
CAKE_INLINE float load_row(const Rows& x, std::int64_t row, int width, int panels, bool l2norm, float factor,
                           float* dst) {
  F squares = zero();
  for (int p = 0; p < panels; ++p) {
    const F y = load_operand(x, row, p * kLanes, width);
    squares = fma(y, y, squares);
    store(dst + p * kPanel, l2norm ? y : y * set1(factor));
  }
  if (!l2norm) return 1.0f;
  float out[kLanes];
  store(out, rsqrt(set1(reduce_add(squares) + kL2Eps)));
  const F scaled = set1(out[0]) * set1(factor);
  for (int p = 0; p < panels; ++p) store(dst + p * kPanel, load(dst + p * kPanel) * scaled);
  return out[0];
}

CAKE_INLINE void zero_rows(float* base, int panels, int from, int to) {
  for (int p = 0; p < panels; ++p) {
    for (int r = from; r < to; ++r) store(base + p * kPanel + r * kLanes, zero());
  }
}

CAKE_INLINE F load_bias(const Head& h, int c) {
  if (h.dt_bias == nullptr) return zero();
  return load_operand({h.dt_bias, 0, h.dt_bias_stride, DType::kFloat32}, 0, c, h.K);
}

/// Natural-log decay of sixteen channels from what g holds.
CAKE_INLINE F log_decay(const Head& h, F x) {
  if (h.gate_kind == GateKind::kLogDecay) return x;
  if (h.gate_kind == GateKind::kSoftplus) {
    // Finite, so that a saturated gate times a zero gradient is zero.
    return max(neg(set1(h.gate_factor) * softplus(x)), set1(-__FLT_MAX__));
  }
  return set1(h.lower_bound) * sigmoid(set1(h.gate_factor) * x);
}

CAKE_INLINE float beta_value(BetaKind kind, float x) {
  if (kind == BetaKind::kValue) return x;
  float y[kLanes];
  store(y, sigmoid(set1(x)));
  return kind == BetaKind::kSigmoid ? y[0] : 2.0f * y[0];
}

CAKE_INLINE float load_scalar(const Rows& x, std::int64_t row) {
  float t[kLanes];
  store(t, load_operand(x, row, 0, 1));
  return t[0];
}

/// q (scaled), k, decays and beta; v too if `with_v`.
static void load_chunk(const Chunk& c, bool with_v) {
  const Head& h = *c.head;
  Scratch& s = *c.s;
  for (int i = 0; i < c.rows; ++i) {
    const std::int64_t row = c.first + i;
    if (i + kPrefetchRows < c.rows) {
      prefetch_row(h.q, row + kPrefetchRows, h.K);
      prefetch_row(h.k, row + kPrefetchRows, h.K);
      prefetch_row(h.g, row + kPrefetchRows, h.K);
      if (with_v) prefetch_row(h.v, row + kPrefetchRows, h.V);
    }
    s.rstd[i] = load_row(h.q, row, h.K, c.kpanels, h.l2norm, h.scale, s.q + i * kLanes);
    s.rstd[kRows + i] = load_row(h.k, row, h.K, c.kpanels, h.l2norm, 1.0f, s.k + i * kLanes);
    for (int p = 0; p < c.kpanels; ++p) {
      const F x = load_operand(h.g, row, p * kLanes, h.K);
      const F g = h.gate_kind == GateKind::kLogDecay ? x : log_decay(h, x + load_bias(h, p * kLanes));
      store(s.a + p * kPanel + i * kLanes, exp(g));
    }
    s.beta[i] = beta_value(h.beta_kind, load_scalar(h.beta, row));
    if (with_v) {
      for (int p = 0; p < c.vpanels; ++p) store(s.v + p * kPanel + i * kLanes, load_operand(h.v, row, p * kLanes, h.V));
    }
  }
  for (int p = 0; p < c.kpanels; ++p) {
    for (int i = c.rows; i < c.rows16(); ++i) store(s.a + p * kPanel + i * kLanes, set1(1.0f));
  }
  for (int i = c.rows; i < c.rows16(); ++i) s.beta[i] = 0.0f;
  zero_rows(s.q, c.kpanels, c.rows, c.rows16());
  zero_rows(s.k, c.kpanels, c.rows, c.rows16());
  if (with_v) zero_rows(s.v, c.vpanels, c.rows, c.rows16());
}

/// Decayed q and k. kKeepFactors also stores the factors themselves (e, d, before, after), which the backward needs.
template <bool kKeepFactors>
static void decay_chunk(const Chunk& c) {
  Scratch& s = *c.s;
  const int rows16 = c.rows16();
  for (int p = 0; p < c.kpanels; ++p) {
    const std::int64_t at = std::int64_t{p} * kPanel, at2 = std::int64_t{p} * kPanel2;
    F before = set1(1.0f);
    for (int b = 0; b < c.blocks; ++b) {
      F e = set1(1.0f);
#pragma GCC unroll 4
      for (int i = 0; i < kBlock; ++i) {
        const int r = b * kBlock + i;
        e = e * load(s.a + at + r * kLanes);
        const F qe = load(s.q + at + r * kLanes) * e, ke = load(s.k + at + r * kLanes) * e;
        store(s.qke + at2 + (b * 2 * kBlock + i) * kLanes, qe);
        store(s.qke + at2 + (b * 2 * kBlock + kBlock + i) * kLanes, ke);
        store(s.qkg + at2 + r * kLanes, qe * before);
        store(s.qkg + at2 + (rows16 + r) * kLanes, ke * before);
        if constexpr (kKeepFactors) store(s.e + at + r * kLanes, e);
      }
      store(s.block_decay + b * c.head->Kp + p * kLanes, e);
      if constexpr (kKeepFactors) store(s.before + b * c.head->Kp + p * kLanes, before);
      before = before * e;
    }
    store(s.chunk_decay + p * kLanes, before);
    F after = set1(1.0f);
    for (int b = c.blocks - 1; b >= 0; --b) {
      F d = set1(1.0f);
#pragma GCC unroll 4
      for (int i = kBlock - 1; i >= 0; --i) {
        const int r = b * kBlock + i;
        const F kd = load(s.k + at + r * kLanes) * d;
        store(s.kd + at + r * kLanes, kd);
        store(s.kg + at + r * kLanes, kd * after);
        if constexpr (kKeepFactors) store(s.d + at + r * kLanes, d);
        d = d * load(s.a + at + r * kLanes);
      }
      if constexpr (kKeepFactors) store(s.after + b * c.head->Kp + p * kLanes, after);
      after = after * load(s.block_decay + b * c.head->Kp + p * kLanes);
    }
  }
}

#if defined(CAKE_ISA_v4)
constexpr int kDiagonalRows = 8;  // rows of a diagonal block that share one sweep over d: their accumulators fit
#else
constexpr int kDiagonalRows = 2;
#endif

/// Rows kRow .. kEnd-1 of a diagonal block at channel d: w holds k_j decayed to the row before in lane j.
template <int kRow, int kEnd, int kFirst>
CAKE_INLINE void diagonal_step(F& w, F kt, const float* a, const float* q, const float* k, F* accq, F* acck) {
  if constexpr (kRow < kEnd) {
    w = insert_lane<kRow>(w * set1(a[kRow * kLanes]), kt);
    accq[kRow - kFirst] = fma(set1(q[kRow * kLanes]), w, accq[kRow - kFirst]);
    acck[kRow - kFirst] = fma(set1(k[kRow * kLanes]), w, acck[kRow - kFirst]);
    diagonal_step<kRow + 1, kEnd, kFirst>(w, kt, a, q, k, accq, acck);
  }
}

template <int kFirst>
CAKE_INLINE void diagonal_rows(const Chunk& c, int block, float* outq, float* outk) {
  if constexpr (kFirst < kBlock) {
    const Scratch& s = *c.s;
    F accq[kDiagonalRows], acck[kDiagonalRows];
#pragma GCC unroll 16
    for (int i = 0; i < kDiagonalRows; ++i) accq[i] = acck[i] = zero();
    for (int p = 0; p < c.kpanels; ++p) {
      const std::int64_t at = std::int64_t{p} * kPanel + block * kBlock * kLanes;
      const float *a = s.a + at, *q = s.q + at, *k = s.k + at;
      const float* kt = s.kt + (std::int64_t{block} * c.head->Kp + p * kLanes) * kLanes;
      float* w = s.w + std::int64_t{p} * kLanes * kLanes;
#pragma GCC unroll 1
      for (int d = 0; d < kLanes; ++d) {
        F x = kFirst > 0 ? load(w + d * kLanes) : zero();
        diagonal_step<kFirst, kFirst + kDiagonalRows, kFirst>(x, load(kt + d * kLanes), a + d, q + d, k + d, accq,
                                                              acck);
        if constexpr (kFirst + kDiagonalRows < kBlock) store(w + d * kLanes, x);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kDiagonalRows; ++i) {
      store(outq + (kFirst + i) * kLanes, accq[i]);
      store(outk + (kFirst + i) * kLanes, acck[i]);
    }
    diagonal_rows<kFirst + kDiagonalRows>(c, block, outq, outk);
  }
}

/// Lanes at or above the row's own become zero: the strict lower triangle of a diagonal block.
CAKE_INLINE void mask_strict(float* block_rows) {
  for (int i = 0; i < kBlock; ++i) {
    for (int l = i; l < kBlock; ++l) block_rows[i * kLanes + l] = 0.0f;
  }
}
/// Lanes above the row's own become zero.
CAKE_INLINE void mask_lower(float* block_rows) {
  for (int i = 0; i < kBlock; ++i) {
    for (int l = i + 1; l < kBlock; ++l) block_rows[i * kLanes + l] = 0.0f;
  }
}

/// s.pairs from decayed q and k (load_chunk and decay_chunk before).
static void multiply_pairs(const Chunk& c) {
  Scratch& s = *c.s;
  const int Kp = c.head->Kp;
  const std::int64_t kt_panel = std::int64_t{Kp} * kLanes;
  transpose_panels(c.rows16(), c.kpanels, {s.k, kPanel}, {s.kt, kt_panel});
  transpose_panels((c.blocks - 1) * kBlock, c.kpanels, {s.kd, kPanel}, {s.kdt, kt_panel});
  for (int b = 1; b < c.blocks; ++b) {
    for (int j = 0; j < b - 1; ++j) {  // block j now also decays over block b - 1
      float* x = s.kdt + j * kt_panel;
      for (int d = 0; d < Kp; ++d) store(x + d * kLanes, load(x + d * kLanes) * set1(s.block_decay[(b - 1) * Kp + d]));
    }
    const Panels kdt{s.kdt, kt_panel};
    for (int half = 0; half < 2; ++half) {
      gemm<Op::kPlain, Init::kZero>(kBlock, b, Kp, Panels{s.qke, kPanel2}.at_row(b * 2 * kBlock + half * kBlock), kdt,
                                    Panels{s.pairs, kPanel2}.at_row(half * kRows + b * kBlock));
    }
  }
  for (int b = 0; b < c.blocks; ++b) {
    float* outq = s.pairs + b * kPanel2 + b * kBlock * kLanes;
    float* outk = outq + kRows * kLanes;
    diagonal_rows<0>(c, b, outq, outk);
    mask_strict(outk);
  }
}

/// Copies the blocks on and below the diagonal between s.pairs and packed memory.
template <bool kPack>
CAKE_INLINE void copy_pairs(const Chunk& c, float* memory) {
  for (int p = 0; p < c.blocks; ++p) {
    for (int half = 0; half < 2; ++half) {
      float* x = c.s->pairs + p * kPanel2 + (half * kRows + p * kBlock) * kLanes;
      const int n = (c.blocks - p) * kBlock;
      for (int r = 0; r < n; ++r, memory += kLanes) {
        if constexpr (kPack) {
          store(memory, load(x + r * kLanes));
        } else {
          store(x + r * kLanes, load(memory));
        }
      }
    }
  }
}

/// The products by whatever way the run asks for.
CAKE_INLINE void get_pairs(const Chunk& c, Pairs pairs, float* memory) {
  if (pairs == Pairs::kLoad) {
    copy_pairs<false>(c, memory);
  } else {
    multiply_pairs(c);
    if (pairs == Pairs::kStore) copy_pairs<true>(c, memory);
  }
}

/// neg_l = -beta_i P_ij, blocks on and below the diagonal.
CAKE_INLINE void scale_neg_l(const Chunk& c) {
  for (int i = 0; i < c.rows16(); ++i) {
    const F factor = set1(-c.s->beta[i]);
    for (int p = 0; p <= i / kBlock; ++p) {
      store(c.s->neg_l + p * kPanel + i * kLanes, load(c.s->pairs + p * kPanel2 + (kRows + i) * kLanes) * factor);
    }
  }
}

/// x_i += sum_{j < i} neg_l_ij x_j inside a 16-row block, rows ascending.
template <int kRow>
CAKE_INLINE void solve_down(F* x, const float* l) {
  if constexpr (kRow < kBlock - 1) {
#pragma GCC unroll 16
    for (int i = kRow + 1; i < kBlock; ++i) x[i] = fma(set1(l[i * kLanes + kRow]), x[kRow], x[i]);
    solve_down<kRow + 1>(x, l);
  }
}
/// x_j += sum_{i > j} neg_l_ij x_i inside a 16-row block, rows descending.
template <int kRow>
CAKE_INLINE void solve_up(F* x, const float* l) {
  if constexpr (kRow > 0) {
#pragma GCC unroll 16
    for (int j = 0; j < kRow; ++j) x[j] = fma(set1(l[kRow * kLanes + j]), x[kRow], x[j]);
    solve_up<kRow - 1>(x, l);
  }
}

template <bool kDown>
__attribute__((noinline)) static void solve_block(const float* l, float* x) {
  F v[kBlock];
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) v[i] = load(x + i * kLanes);
  if constexpr (kDown) {
    solve_down<0>(v, l);
  } else {
    solve_up<kBlock - 1>(v, l);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kBlock; ++i) store(x + i * kLanes, v[i]);
}

/// x <- (I + L)^-1 x by forward substitution, 16 rows at a time.
CAKE_INLINE void solve_lower(const Chunk& c, float* x, int panels) {
  for (int b = 0; b < c.blocks; ++b) {
    const Panels xp{x, kPanel};
    if (b > 0) {
      gemm<Op::kPlain, Init::kAdd>(kBlock, panels, b * kBlock, Panels{c.s->neg_l, kPanel}.at_row(b * kBlock), xp,
                                   xp.at_row(b * kBlock));
    }
    const float* l = c.s->neg_l + b * kPanel + b * kBlock * kLanes;
    for (int p = 0; p < panels; ++p) solve_block<true>(l, x + p * kPanel + b * kBlock * kLanes);
  }
}

/// x <- (I + L)^-T x.
CAKE_INLINE void solve_lower_transposed(const Chunk& c, float* x, int panels) {
  for (int b = c.blocks - 1; b >= 0; --b) {
    const Panels xp{x, kPanel};
    const int below = (c.blocks - 1 - b) * kBlock;
    if (below > 0) {
      gemm<Op::kTransposed, Init::kAdd>(kBlock, panels, below,
                                        Panels{c.s->neg_l, kPanel}.at_panel(b).at_row((b + 1) * kBlock),
                                        xp.at_row((b + 1) * kBlock), xp.at_row(b * kBlock));
    }
    const float* l = c.s->neg_l + b * kPanel + b * kBlock * kLanes;
    for (int p = 0; p < panels; ++p) solve_block<false>(l, x + p * kPanel + b * kBlock * kLanes);
  }
}

/// Where a chunk's start state, u and Vn lie on a tape.
struct Tape {
  float *state, *u, *vn;
};
CAKE_INLINE Tape tape_at(const Head& h, float* tape, std::int64_t chunk) {
  float* base = tape + chunk * kda::tape_floats(h.Kp, h.Vp);
  return {base, base + std::int64_t{h.Kp} * h.Vp, base + std::int64_t{h.Kp} * h.Vp + kPanel / kLanes * h.Vp};
}

CAKE_INLINE void copy_state(const Head& h, const float* from, float* to) {
  for (std::int64_t i = 0; i < std::int64_t{h.Kp} * h.Vp; i += kLanes) store(to + i, load(from + i));
}
CAKE_INLINE void clear_state(const Head& h, float* state) {
  for (std::int64_t i = 0; i < std::int64_t{h.Kp} * h.Vp; i += kLanes) store(state + i, zero());
}

}  // namespace
}  // namespace cake::CAKE_ISA_NAMESPACE
