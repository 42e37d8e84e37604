// What the driver calls: one table of functions per instruction-set level, over one segment of one document and head.
//
// Inside, matrices lie in 16-column panels (core/simd/panel_gemm.h); K and V are padded to multiples of 16 (Kp, Vp)
// with zeros. A state is [Vp / 16][Kp][16], a transition M is [Kp / 16][Kp][16].
#pragma once

#include <cstdint>

#include "cake/core/canonical.h"
#include "cake/core/cpu_isa.h"
#include "cake/core/dtype.h"

namespace cake::kda {

/// How g is read.
enum class GateKind { kLogDecay, kSoftplus, kLowerBound };
/// How beta is read.
enum class BetaKind { kValue, kSigmoid, kTwiceSigmoid };

/// Rows of one head of an operand: element (t, c) at data + (t * row_stride + c * lane_stride) elements.
struct Rows {
  const void* data = nullptr;
  std::int64_t row_stride = 0, lane_stride = 0;
  DType dtype = DType::kFloat32;
};
/// The same, writable; data == nullptr: not wanted.
struct MutableRows {
  void* data = nullptr;
  std::int64_t row_stride = 0, lane_stride = 0;
  DType dtype = DType::kFloat32;
};

/// One document and value head.
struct Head {
  int K = 0, V = 0, Kp = 0, Vp = 0;
  float scale = 1.0f;
  bool l2norm = false;
  BetaKind beta_kind = BetaKind::kValue;
  GateKind gate_kind = GateKind::kLogDecay;
  float gate_factor = 1.0f;  ///< exp(A_log), finite
  float lower_bound = 0.0f;
  const float* dt_bias = nullptr;  ///< K numbers, or nullptr
  std::int64_t dt_bias_stride = 1;
  Rows q, k, v, g, beta;  ///< from the document's first row; beta has one lane
};

/// Where the 64 x 64 products of a chunk (scaled q k^T and k k^T with decays) come from or go to.
enum class Pairs { kCompute, kStore, kLoad };

/// Floats of the stored products of a chunk of `rows` rows: the lower triangle of 16 x 16 blocks, twice.
constexpr std::int64_t pair_floats(std::int64_t rows) {
  const std::int64_t blocks = (rows + kSubChunk - 1) / kSubChunk;
  return kSubChunk * kSubChunk * blocks * (blocks + 1);
}

/// Floats from one 16-column panel of a chunk's matrix to the next: 64 (or 128) rows and one more, because panels a
/// multiple of 4096 bytes apart would all fall into the same sets of the first-level cache.
inline constexpr std::int64_t kPanel = (kChunk + 1) * 16;
inline constexpr std::int64_t kPanel2 = (2 * kChunk + 1) * 16;

/// Floats a chunk has on a tape: its start state, u and Vn.
constexpr std::int64_t tape_floats(std::int64_t Kp, std::int64_t Vp) { return Kp * Vp + 2 * Vp * (kPanel / 16); }

/// Memory of one worker: blocks of floats, each aligned to 64 bytes (sizes: memory.cc). In the comments [64] stands for
/// kPanel / 16 rows, [128] for kPanel2 / 16.
struct Scratch {
  // A chunk: operands, decays, products.
  float *q, *k, *v, *a, *beta;          // [Kp/16][64][16] (v: Vp); beta [64]
  float *e, *d;                         // decays from the block start, to the block end [Kp/16][64][16] (backward)
  float* qke;                           // per block 16 rows of q e, 16 of k e  [Kp/16][128][16]
  float* qkg;                           // q gam, k gam  [Kp/16][128][16]
  float *kd, *kg;                       // k to the block end, k to the chunk end  [Kp/16][64][16]
  float *block_decay, *before, *after;  // [4][Kp]: a block's decay, the product before it, the product after it
  float* chunk_decay;                   // [Kp]
  float *kt, *kdt;                      // k^T, kd^T  [4][Kp][16]
  float* w;                             // [Kp][16]
  float* pairs;                         // [4][128][16]: rows 0-63 q k^T (scaled), rows 64-127 k k^T
  float* neg_l;                         // -beta k k^T  [4][64][16]
  float* oq;                            // [np/16][128][16], np = Vp (+ Kp for a summary)
  float *u, *vn;                        // [np/16][64][16]
  float* state;                         // [np/16][Kp][16]
  // Backward.
  float* tape;                    // per chunk of a range of the segment: state, u, vn; none with a saved tape
  std::int64_t tape_chunks;       // chunks of a range
  float* range_states;            // with several ranges: the state at the start of each
  float* grad_state;              // dS  [Vp/16][Kp][16]
  float *state_t, *grad_state_t;  // [Kp/16][Vp][16]
  float* vn_t;                    // [4][Vp][16]
  float* ddo;                     // dO, then -dR, then -beta dR  [Vp/16][128][16]
  float* dr;                      // [Vp/16][64][16]
  float* dpl;                     // per block 16 rows of dP, 16 of beta dL  [4][128][16]
  float* inter;                   // dQ gam part, dKgam  [Kp/16][128][16]
  float* inter_col;               // Vn dS'^T  [Kp/16][64][16]
  float *off_row, *off_col;       // [Kp/16][128][16], [Kp/16][64][16]
  float* cross;                   // [4][Kp]
  float *gq, *gk, *gg;            // gradients of scaled q, of k, of log decay  [Kp/16][64][16]
  float* rstd;                    // [128]: of q rows, of k rows
  float* chunk_params;            // per chunk: [2][Kp]
};

/// One run over a segment.
struct SegmentRun {
  const Head* head = nullptr;
  std::int64_t first = 0;  ///< first row, counted from the document's first row
  std::int64_t rows = 0;
  float* state = nullptr;   ///< state at the start; on return at the end (if run_state)
  bool zero_state = false;  ///< the start state is exactly zero and `state` need not hold it
  bool run_state = true;    ///< false: only the products are wanted
  bool resume = false;      ///< a summary goes on from `state` and the transition instead of zero and the identity
  Pairs pairs = Pairs::kCompute;
  float* pair_memory = nullptr;  ///< products of the segment's chunks, one after another
  float* tape = nullptr;  ///< of the segment's chunks: a forward fills it, a backward reads it (saved set `tape`)
  MutableRows out;        ///< from the document's first row; not wanted: null
  Scratch* scratch = nullptr;
};

/// Gradient rows, from the document's first row.
struct GradientRows {
  MutableRows dq, dk, dv, dg, dbeta;
  float *partial_q = nullptr, *partial_k = nullptr;  ///< grouped heads: fp32 rows of Kp numbers instead of dq, dk
  std::int64_t partial_stride = 0;
  float* params = nullptr;        ///< [2][Kp]: sums of dx and of the A_log terms over the segment
  float* chunk_params = nullptr;  ///< instead: those of each chunk, [chunks][2][Kp]
};

/// One backward run over a segment, from its last chunk to its first. Without run.tape the chunk states are rebuilt
/// from `run.state`, range by range of scratch->tape_chunks chunks from the last range to the first. run.pairs is
/// kCompute or kLoad.
struct BackwardRun {
  SegmentRun run;
  Rows dout;
  float* grad_state = nullptr;  ///< gradient of the end state; on return of the start state
  bool zero_grad_state = false;
  GradientRows gradients;
};

/// Rows of a grouped q/k head: adds the value heads' partial rows in ascending order, then finishes dq and dk.
struct GroupedRows {
  const Head* head = nullptr;  ///< of the group's first value head
  std::int64_t rows = 0;
  int group = 1;
  const float *partial_q = nullptr, *partial_k = nullptr;  ///< of the first value head; the next is `head_stride` on
  std::int64_t row_stride = 0, head_stride = 0;
  MutableRows dq, dk;
};

/// Functions of one instruction-set level.
struct Kernels {
  /// Outputs and end state of a segment.
  void (*forward)(const SegmentRun& run);
  /// From zero (or run.resume): b into run.state and M into `transition`.
  void (*summarise)(const SegmentRun& run, float* transition);
  /// The dS recurrence alone: c into grad_state (only operands, pairs and dout are read).
  void (*summarise_adjoint)(const BackwardRun& run);
  void (*backward)(const BackwardRun& run);
  /// next += M state (adjoint: M^T state).
  void (*fold)(int Kp, int Vp, const float* transition, const float* state, float* next, bool adjoint);
  void (*finish_grouped)(const GroupedRows& rows, Scratch* scratch);
  /// sum[i] += x[i], n a multiple of 16.
  void (*add)(float* sum, const float* x, std::int64_t n);
  /// Sum of n numbers (a multiple of 16) by the fixed tree.
  float (*tree_sum)(const float* x, std::int64_t n);
  /// exp(A_log), finite.
  float (*gate_factor)(float a_log);
};

/// The table of a level this machine runs.
const Kernels& kernels(CpuIsa isa);

}  // namespace cake::kda
