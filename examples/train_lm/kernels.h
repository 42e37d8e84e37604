// The trainer's own SIMD kernels, one table per instruction-set level (equal bits on all of them).
//
// Row counts are any number; every row length here is a multiple of 16 floats (model.h checks the configuration).
// Nothing here adds over rows of two logical shards: sums over rows are made per shard and folded by shards.h.
#pragma once

#include <cstdint>

namespace cake::train_lm {

/// Taps of the causal depthwise convolution.
inline constexpr int kConvTaps = 4;
/// Byte values: the vocabulary.
inline constexpr int kVocabulary = 256;
/// Added to the mean square inside every RMSNorm.
inline constexpr float kNormEpsilon = 1e-6f;

/// What one AdamW update needs beside the arrays.
struct AdamWStep {
  float learning_rate;
  float beta1, beta2;
  float inv_correction1, inv_correction2;  ///< 1 / (1 - beta^t)
  float epsilon;
  float weight_decay;
  float gradient_scale;  ///< from clipping
};

struct TrainKernels {
  /// y = x * rstd * w with rstd = 1 / sqrt(mean(x^2) + eps). x, y [rows, n], w [n], rstd [rows].
  void (*rmsnorm_forward)(std::int64_t rows, std::int64_t n, const float* x, const float* w, float* y, float* rstd);
  /// dx += the norm's input gradient.
  void (*rmsnorm_backward)(std::int64_t rows, std::int64_t n, const float* dy, const float* x, const float* w,
                           const float* rstd, float* dx);
  /// dw = sum over rows, ascending, of dy * x * rstd.
  void (*rmsnorm_weight)(std::int64_t rows, std::int64_t n, const float* dy, const float* x, const float* rstd,
                         float* dw);

  /// Per head: y = o * rstd * w * SiLU(z). o, y [rows, heads * n], z [rows, ...] with row stride, w [n],
  /// rstd [rows, heads].
  void (*gated_norm_forward)(std::int64_t rows, std::int64_t heads, std::int64_t n, const float* o, const float* z,
                             std::int64_t z_stride, const float* w, float* y, float* rstd);
  /// Writes d_o [rows, heads * n] and dz (row stride dz_stride).
  void (*gated_norm_backward)(std::int64_t rows, std::int64_t heads, std::int64_t n, const float* dy, const float* o,
                              const float* z, std::int64_t z_stride, const float* w, const float* rstd, float* d_o,
                              float* dz, std::int64_t dz_stride);
  /// dw [n] = sum over rows and heads, ascending, of dy * o * rstd * SiLU(z).
  void (*gated_norm_weight)(std::int64_t rows, std::int64_t heads, std::int64_t n, const float* dy, const float* o,
                            const float* z, std::int64_t z_stride, const float* rstd, float* dw);

  /// c[t] = sum over j of w[j] x[t - 3 + j] inside the document, y = SiLU(c). x has a row stride; c, y [rows, n];
  /// w [4, n]; before[t] = earlier rows of the same document, at most 3. Reads x up to before[0] rows back.
  void (*conv_forward)(std::int64_t rows, std::int64_t n, const float* x, std::int64_t x_stride,
                       const std::int32_t* before, const float* w, float* c, float* y);
  /// dc = dy * SiLU'(c), in place over dy; [rows, n].
  void (*silu_backward)(std::int64_t count, const float* c, float* dy);
  /// dx[t] = sum over j of w[3 - j] dc[t + j] inside the document; after[t] = later rows of the document, at most 3.
  void (*conv_input)(std::int64_t rows, std::int64_t n, const float* dc, const std::int32_t* after, const float* w,
                     float* dx, std::int64_t dx_stride);
  /// dw [4, n] += dc[t] x[t - 3 + j], row after row: a sum may go on with rows that lie elsewhere.
  void (*conv_weight)(std::int64_t rows, std::int64_t n, const float* dc, const float* x, std::int64_t x_stride,
                      const std::int32_t* before, float* dw);

  /// h = SiLU(a) * b of u = [a | b]; u [rows, 2 n], h [rows, n].
  void (*swiglu_forward)(std::int64_t rows, std::int64_t n, const float* u, float* h);
  /// Overwrites u with its gradient.
  void (*swiglu_backward)(std::int64_t rows, std::int64_t n, const float* dh, float* u);

  /// Cross-entropy over 256 classes. logits [rows, 256] become scale * (softmax - one hot); loss [rows] in nats.
  void (*cross_entropy)(std::int64_t rows, float* logits, const std::uint8_t* targets, float scale, float* loss);

  /// dtable [256, n] = sum of dx rows, ascending, per byte.
  void (*embedding_weight)(std::int64_t rows, std::int64_t n, const std::uint8_t* bytes, const float* dx,
                           float* dtable);

  /// out[i] = partials[0][i] + partials[1][i] + ..., left to right.
  void (*fold)(std::int64_t parts, std::int64_t stride, const float* partials, std::int64_t n, float* out);
  /// One AdamW update of n parameters (decoupled weight decay).
  void (*adamw)(std::int64_t n, const AdamWStep& step, const float* gradient, float* p, float* m, float* v);
};

/// The table of current_cpu_isa().
const TrainKernels& train_kernels();

}  // namespace cake::train_lm
