#include "layers.h"

#include <cstring>

#include "core/gemm.h"

namespace cake::train_lm {

void linear_forward(std::int64_t rows, std::int64_t k, std::int64_t n, Rows x, const float* w, Rows y,
                    bool accumulate) {
  dense_gemm(rows, n, k, {x.data, x.stride, 1}, {w, n, 1}, y.data, y.stride, accumulate);
}

void linear_input(std::int64_t rows, std::int64_t k, std::int64_t n, Rows dy, const float* w, Rows dx) {
  dense_gemm(rows, k, n, {dy.data, dy.stride, 1}, {w, 1, n}, dx.data, dx.stride, false);
}

void linear_weight(ShardReducer& reducer, std::int64_t k, std::int64_t n, Rows x, Rows dy, float* dw) {
  reducer.reduce(k * n, dw, [=](std::int64_t begin, std::int64_t rows, float* dst) {
    dense_gemm(k, n, rows, {x.data + begin * x.stride, 1, x.stride}, {dy.data + begin * dy.stride, dy.stride, 1}, dst,
               n, false);
  });
}

void rmsnorm_forward(std::int64_t rows, std::int64_t n, const float* x, const float* w, float* y, float* rstd) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.rmsnorm_forward(count, n, x + t * n, w, y + t * n, rstd + t);
  });
}

void rmsnorm_backward(ShardReducer& reducer, std::int64_t n, const float* dy, const float* x, const float* w,
                      const float* rstd, float* dx, float* dw) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(reducer.plan().rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.rmsnorm_backward(count, n, dy + t * n, x + t * n, w, rstd + t, dx + t * n);
  });
  reducer.reduce(n, dw, [=, &kernels](std::int64_t t, std::int64_t count, float* dst) {
    kernels.rmsnorm_weight(count, n, dy + t * n, x + t * n, rstd + t, dst);
  });
}

void gated_norm_forward(std::int64_t rows, std::int64_t heads, std::int64_t n, const float* o, Rows z, const float* w,
                        float* y, float* rstd) {
  const TrainKernels& kernels = train_kernels();
  const std::int64_t d = heads * n;
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.gated_norm_forward(count, heads, n, o + t * d, z.data + t * z.stride, z.stride, w, y + t * d,
                               rstd + t * heads);
  });
}

void gated_norm_backward(ShardReducer& reducer, std::int64_t heads, std::int64_t n, const float* dy, const float* o,
                         Rows z, const float* w, const float* rstd, float* d_o, Rows dz, float* dw) {
  const TrainKernels& kernels = train_kernels();
  const std::int64_t d = heads * n;
  for_row_blocks(reducer.plan().rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.gated_norm_backward(count, heads, n, dy + t * d, o + t * d, z.data + t * z.stride, z.stride, w,
                                rstd + t * heads, d_o + t * d, dz.data + t * dz.stride, dz.stride);
  });
  reducer.reduce(n, dw, [=, &kernels](std::int64_t t, std::int64_t count, float* dst) {
    kernels.gated_norm_weight(count, heads, n, dy + t * d, o + t * d, z.data + t * z.stride, z.stride, rstd + t * heads,
                              dst);
  });
}

void conv_silu_forward(std::int64_t rows, std::int64_t n, Rows x, DocumentRows docs, const float* w, float* c,
                       float* y) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.conv_forward(count, n, x.data + t * x.stride, x.stride, docs.before + t, w, c + t * n, y + t * n);
  });
}

void conv_silu_backward(ShardReducer& reducer, std::int64_t n, float* dy, Rows x, DocumentRows docs, const float* w,
                        const float* c, Rows dx, float* dw) {
  const TrainKernels& kernels = train_kernels();
  const std::int64_t rows = reducer.plan().rows();
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.silu_backward(count * n, c + t * n, dy + t * n);
  });
  // A second pass: a row's input gradient reads up to three later rows, which another task may hold.
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.conv_input(count, n, dy + t * n, docs.after + t, w, dx.data + t * dx.stride, dx.stride);
  });
  reducer.reduce(kConvTaps * n, dw, [=, &kernels](std::int64_t t, std::int64_t count, float* dst) {
    kernels.conv_weight(count, n, dy + t * n, x.data + t * x.stride, x.stride, docs.before + t, dst);
  });
}

void swiglu_forward(std::int64_t rows, std::int64_t n, const float* u, float* h) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.swiglu_forward(count, n, u + t * 2 * n, h + t * n);
  });
}

void swiglu_backward(std::int64_t rows, std::int64_t n, const float* dh, float* u) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.swiglu_backward(count, n, dh + t * n, u + t * 2 * n);
  });
}

void embedding_forward(std::int64_t rows, std::int64_t n, const std::uint8_t* bytes, const float* table, float* x) {
  for_row_blocks(rows, [=](std::int64_t t, std::int64_t count) {
    for (std::int64_t i = t; i < t + count; ++i) {
      std::memcpy(x + i * n, table + bytes[i] * n, static_cast<std::size_t>(n) * sizeof(float));
    }
  });
}

void embedding_backward(ShardReducer& reducer, std::int64_t n, const std::uint8_t* bytes, const float* dx,
                        float* dtable) {
  const TrainKernels& kernels = train_kernels();
  reducer.reduce(kVocabulary * n, dtable, [=, &kernels](std::int64_t t, std::int64_t count, float* dst) {
    kernels.embedding_weight(count, n, bytes + t, dx + t * n, dst);
  });
}

double cross_entropy(const ShardReducer& reducer, float* logits, const std::uint8_t* targets, float* loss) {
  const TrainKernels& kernels = train_kernels();
  const std::int64_t rows = reducer.plan().rows();
  const float scale = 1.0f / static_cast<float>(rows);
  for_row_blocks(rows, [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.cross_entropy(count, logits + t * kVocabulary, targets + t, scale, loss + t);
  });
  return reducer.sum_rows(loss) / static_cast<double>(rows);
}

}  // namespace cake::train_lm
