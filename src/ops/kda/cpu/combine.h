// The gradient terms inside a chunk, and the sums that give dQ, dK and the gate gradient. For row i and channel d:
//   dQ_i   = gam (dO S^T)_i + sum_{j<=i} dP_ij k_j D_ij         D_ij = exp(G_i - G_j), a product of decays <= 1
//   dK_i   = -gam ((beta dR) S^T)_i + sum_{j<i} beta_i dL_ij k_j D_ij
//            + gend_i (Vn dS'^T)_i + sum_{m>=i} (dP_mi q_m + beta_m dL_mi k_m) D_mi
//   dg_i   = sum of every term whose decay crosses step i: the state, rows m >= i with the start state, rows m < i with
//            the end state, and pairs (m, j), m >= i > j
// The gate gradient is summed over exactly those crossing terms, so each carries the factor exp(g_i): nothing cancels,
// and where the decay underflows to zero the gradient is exactly zero. The pair i = j crosses nothing and is left out.
// Blocks of 16 rows: pairs inside a block by running products, pairs of different blocks by GEMMs with the blocks'
// decays (Horner over the blocks in between).
#pragma once

#include "ops/kda/cpu/chunk.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

/// Pairs of different blocks: s.off_row (rows as in s.dpl: a block's dQ rows, then its dK rows, without e),
/// s.off_col (without d), and s.cross[b]: pairs (m, j) with m after and j before block b. Destroys s.kd.
static void gradient_off_diagonal(const Chunk& c) {
  Scratch& s = *c.s;
  const int Kp = c.head->Kp;
  for (int b = c.blocks - 1; b >= 1; --b) {
    const Panels dpl = Panels{s.dpl, kPanel2}.at_row(b * 2 * kBlock),
                 qke = Panels{s.qke, kPanel2}.at_row(b * 2 * kBlock);
    const Panels col{s.off_col, kPanel};
    const float* decay = s.block_decay + b * Kp;
    if (b == c.blocks - 1) {
      for (int i = 0; i < Kp; i += kLanes) store(s.cross + b * Kp + i, zero());
      gemm<Op::kTransposed, Init::kZero>(b * kBlock, c.kpanels, 2 * kBlock, dpl, qke, col);
      continue;
    }
    for (int p = 0; p < c.kpanels; ++p) {
      F total = zero();
      for (int j = 0; j < b; ++j) {
        total = total * load(s.block_decay + j * Kp + p * kLanes);
        for (int m = j * kBlock; m < (j + 1) * kBlock; ++m) {
          total = fma(load(s.kd + p * kPanel + m * kLanes), load(s.off_col + p * kPanel + m * kLanes), total);
        }
      }
      store(s.cross + b * Kp + p * kLanes, total * load(decay + p * kLanes));
    }
    gemm<Op::kTransposed, Init::kScaleCols>(b * kBlock, c.kpanels, 2 * kBlock, dpl, qke, col, decay);
  }
  for (int b = 1; b < c.blocks; ++b) {
    for (int p = 0; p < c.kpanels && b > 1; ++p) {
      const F decay = load(s.block_decay + (b - 1) * Kp + p * kLanes);
      float* kd = s.kd + p * kPanel;
      for (int m = 0; m < (b - 1) * kBlock; ++m) store(kd + m * kLanes, load(kd + m * kLanes) * decay);
    }
    gemm<Op::kPlain, Init::kZero>(2 * kBlock, c.kpanels, b * kBlock, Panels{s.dpl, kPanel2}.at_row(b * 2 * kBlock),
                                  {s.kd, kPanel}, Panels{s.off_row, kPanel2}.at_row(b * 2 * kBlock));
  }
}

/// Pairs inside one block, sixteen channels: dq, dk_row, dk_col without the pair i = j, and dg.
struct BlockGradients {
  F dq[kBlock], row[kBlock], col[kBlock], dg[kBlock];
};

/// a, q, k: the block's rows of one panel; dp, dl: the block's diagonal 16 x 16 products.
__attribute__((noinline)) static void combine_block(const float* a, const float* q, const float* k, const float* dp,
                                                    const float* dl, BlockGradients& out) {
  // decayed[i][j] = k_j times the decays of rows j + 1 .. i.
  F decayed[kBlock][kBlock];
  decayed[0][0] = load(k);
  out.dq[0] = out.row[0] = zero();
  for (int i = 1; i < kBlock; ++i) {
    const F ai = load(a + i * kLanes);
    F dq = zero(), row = zero();
    for (int j = 0; j < i; ++j) {
      const F x = decayed[i - 1][j] * ai;
      decayed[i][j] = x;
      dq = fma(set1(dp[i * kLanes + j]), x, dq);
      row = fma(set1(dl[i * kLanes + j]), x, row);
    }
    decayed[i][i] = load(k + i * kLanes);
    out.dq[i] = dq;
    out.row[i] = row;
  }
  // col[j]: rows m >= i, decayed to row i - 1 once row i is done.
  for (int j = 0; j < kBlock; ++j) out.col[j] = zero();
  for (int i = kBlock - 1; i >= 1; --i) {
    const F ai = load(a + i * kLanes), qi = load(q + i * kLanes), ki = load(k + i * kLanes);
    F dg = zero();
    for (int j = 0; j < i; ++j) {
      F x = fma(set1(dp[i * kLanes + j]), qi, out.col[j]);
      x = fma(set1(dl[i * kLanes + j]), ki, x) * ai;
      out.col[j] = x;
      dg = fma(x, decayed[i - 1][j], dg);
    }
    out.dg[i] = dg;
  }
  out.dg[0] = zero();
}

/// s.gq, s.gk, s.gg from everything before.
static void combine(const Chunk& c) {
  Scratch& s = *c.s;
  const int Kp = c.head->Kp;
  for (int p = 0; p < c.kpanels; ++p) {
    const std::int64_t at = std::int64_t{p} * kPanel, at2 = std::int64_t{p} * kPanel2;
    const F state_term = load(s.cross + p * kLanes);
    F before_end = zero();  // k . dK column terms of earlier rows
    for (int b = 0; b < c.blocks; ++b) {
      BlockGradients g;
      const int r0 = b * kBlock;
      const float* diagonal = s.dpl + b * kPanel2 + b * 2 * kBlock * kLanes;
      combine_block(s.a + at + r0 * kLanes, s.q + at + r0 * kLanes, s.k + at + r0 * kLanes, diagonal,
                    diagonal + kBlock * kLanes, g);
      const F before = load(s.before + b * Kp + p * kLanes), after = load(s.after + b * Kp + p * kLanes);
      const bool has_left = b > 0, has_right = b + 1 < c.blocks;
      const F crossing = has_left && has_right ? load(s.cross + b * Kp + p * kLanes) : zero();
      F left = zero();  // k . off-diagonal column terms of earlier rows of the block
      for (int i = 0; i < kBlock; ++i) {
        const int r = r0 + i;
        const F e = load(s.e + at + r * kLanes), d = load(s.d + at + r * kLanes);
        const F q = load(s.q + at + r * kLanes), k = load(s.k + at + r * kLanes);
        const F start = e * before;
        const F dq_state = load(s.inter + at2 + r * kLanes) * start;
        const F dk_state = load(s.inter + at2 + (c.rows16() + r) * kLanes) * start;
        const F dk_end = load(s.inter_col + at + r * kLanes) * (d * after);
        const F dq_left = has_left ? load(s.off_row + at2 + (b * 2 * kBlock + i) * kLanes) * e : zero();
        const F dk_left = has_left ? load(s.off_row + at2 + (b * 2 * kBlock + kBlock + i) * kLanes) * e : zero();
        const F dk_right = has_right ? load(s.off_col + at + r * kLanes) * d : zero();
        const F same = set1(diagonal[i * kLanes + i]);  // dP_ii
        store(s.gq + at + r * kLanes, fma(same, k, (dq_state + dq_left) + g.dq[i]));
        store(s.gk + at + r * kLanes,
              fma(same, q, ((dk_state + dk_left) + g.row[i]) + ((dk_end + dk_right) + g.col[i])));
        store(s.gg + at + r * kLanes, ((state_term + before_end) + (crossing + left)) + g.dg[i]);
        before_end = fma(k, dk_end, before_end);
        left = fma(k, dk_right, left);
        // For the sums from the right below: row terms of the start state, of the blocks to the left.
        store(s.inter + at2 + r * kLanes, fma(q, dq_state, k * dk_state));
        if (has_left) store(s.off_row + at2 + (b * 2 * kBlock + i) * kLanes, fma(q, dq_left, k * dk_left));
      }
    }
    F from_start = zero();
    for (int b = c.blocks - 1; b >= 0; --b) {
      F from_left = zero();
      for (int i = kBlock - 1; i >= 0; --i) {
        const int r = b * kBlock + i;
        from_start = from_start + load(s.inter + at2 + r * kLanes);
        if (b > 0) from_left = from_left + load(s.off_row + at2 + (b * 2 * kBlock + i) * kLanes);
        store(s.gg + at + r * kLanes, load(s.gg + at + r * kLanes) + (from_start + from_left));
      }
    }
  }
}

}  // namespace
}  // namespace cake::CAKE_ISA_NAMESPACE
