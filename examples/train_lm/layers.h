// Forward and backward of the trainer's layers over the T rows of a batch that a rank holds (all of them, with one
// rank), fp32. Row-local work runs in blocks of 64 rows, products of matrices through the fixed-order GEMM, and
// gradients of weights by logical shards (shards.h). Only the convolution looks at other rows: a few cross the borders
// between ranks. Equations: docs/train.md. Tests: tests/train/layers_test.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cake/kcp.h"
#include "kernels.h"
#include "shards.h"

namespace cake::train_lm {

/// A matrix of rows whose columns are adjacent.
struct Rows {
  float* data;
  std::int64_t stride;  ///< floats between rows
  Rows columns(std::int64_t first) const { return {data + first, stride}; }
};

/// y[T, n] (= or, with accumulate, +=) x[T, k] w[k, n].
void linear_forward(std::int64_t rows, std::int64_t k, std::int64_t n, Rows x, const float* w, Rows y,
                    bool accumulate = false);
/// dx[T, k] = dy[T, n] w^T.
void linear_input(std::int64_t rows, std::int64_t k, std::int64_t n, Rows dy, const float* w, Rows dx);
/// dw[k, n] = x^T dy.
void linear_weight(ShardReducer& reducer, std::int64_t k, std::int64_t n, Rows x, Rows dy, float* dw);

/// y = RMSNorm(x) w; contiguous [T, n], rstd [T].
void rmsnorm_forward(std::int64_t rows, std::int64_t n, const float* x, const float* w, float* y, float* rstd);
/// dx += input gradient, dw = weight gradient.
void rmsnorm_backward(ShardReducer& reducer, std::int64_t n, const float* dy, const float* x, const float* w,
                      const float* rstd, float* dx, float* dw);

/// y = RMSNorm(o) w SiLU(z) per head; o, y [T, heads * n] contiguous, rstd [T, heads].
void gated_norm_forward(std::int64_t rows, std::int64_t heads, std::int64_t n, const float* o, Rows z, const float* w,
                        float* y, float* rstd);
/// d_o, dz and dw = gradients.
void gated_norm_backward(ShardReducer& reducer, std::int64_t heads, std::int64_t n, const float* dy, const float* o,
                         Rows z, const float* w, const float* rstd, float* d_o, Rows dz, float* dw);

/// Rows of a rank that are adjacent in the batch.
struct RowRun {
  std::int64_t first, rows;
  std::int64_t before, after;  ///< rows on other ranks that a convolution reads before the first and after the last row
};

/// Where each row of a rank stands in its document, capped at the reach of the convolution.
struct DocumentRows {
  const std::int32_t* before;    ///< earlier rows, at most 3
  const std::int32_t* after;     ///< later rows, at most 3
  std::span<const RowRun> runs;  ///< all rows of the rank
  const kcp::Context* context;   ///< brings rows of other ranks; null: there are none
};

/// Rows at the borders of runs together with the rows of other ranks that they read: per run that has such rows, those
/// and its first three (forward), or its last three and those (backward); [rows][n].
using BorderRows = std::vector<float>;

/// y = SiLU(c), c = causal depthwise convolution of x (4 taps, inside documents); c, y [T, n] contiguous, w [4, n].
/// `border` is kept for the backward. Collective with a context.
void conv_silu_forward(std::int64_t n, Rows x, const DocumentRows& docs, const float* w, float* c, float* y,
                       BorderRows& border);
/// dy becomes the gradient of c; dx and dw = gradients.
void conv_silu_backward(ShardReducer& reducer, std::int64_t n, float* dy, Rows x, const DocumentRows& docs,
                        const float* w, const float* c, const BorderRows& border, Rows dx, float* dw);

/// h = SiLU(a) b of u = [a | b].
void swiglu_forward(std::int64_t rows, std::int64_t n, const float* u, float* h);
/// u becomes its gradient.
void swiglu_backward(std::int64_t rows, std::int64_t n, const float* dh, float* u);

/// x[t] = table[byte[t]]; table [256, n].
void embedding_forward(std::int64_t rows, std::int64_t n, const std::uint8_t* bytes, const float* table, float* x);
/// dtable = sum of dx per byte.
void embedding_backward(ShardReducer& reducer, std::int64_t n, const std::uint8_t* bytes, const float* dx,
                        float* dtable);

/// Mean cross-entropy of the batch in nats; logits [T, 256] of this rank's rows become its gradient. `loss` holds T
/// floats.
double cross_entropy(const ShardReducer& reducer, float* logits, const std::uint8_t* targets, float* loss);

}  // namespace cake::train_lm
