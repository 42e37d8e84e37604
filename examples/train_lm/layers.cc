#include "layers.h"

#include <algorithm>
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
  for_row_blocks(reducer.rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
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
  for_row_blocks(reducer.rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.gated_norm_backward(count, heads, n, dy + t * d, o + t * d, z.data + t * z.stride, z.stride, w,
                                rstd + t * heads, d_o + t * d, dz.data + t * dz.stride, dz.stride);
  });
  reducer.reduce(n, dw, [=, &kernels](std::int64_t t, std::int64_t count, float* dst) {
    kernels.gated_norm_weight(count, heads, n, dy + t * d, o + t * d, z.data + t * z.stride, z.stride, rstd + t * heads,
                              dst);
  });
}

namespace {

/// Rows at the beginning (kBefore) or the end (kAfter) of a run that are computed from BorderRows.
std::int64_t border_rows(const RowRun& run, kcp::Halo halo) {
  const bool reads = (halo == kcp::Halo::kBefore ? run.before : run.after) > 0;
  return reads ? std::min<std::int64_t>(run.rows, kConvTaps - 1) : 0;
}

/// Copies rows of n floats, one after another.
float* append(Rows from, std::int64_t row, std::int64_t rows, std::int64_t n, float* to) {
  for (std::int64_t t = row; t < row + rows; ++t, to += n) std::copy_n(from.data + t * from.stride, n, to);
  return to;
}

BorderRows fetch_border(const DocumentRows& docs, kcp::Halo halo, Rows x, std::int64_t n) {
  if (docs.context == nullptr) return {};
  const auto bytes = [](std::int64_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); };
  std::vector<float> others(static_cast<std::size_t>(docs.context->halo_rows(halo) * n));
  docs.context->exchange_halo(halo, x.data, bytes(x.stride), bytes(n), others.data());
  std::int64_t rows = docs.context->halo_rows(halo);
  for (const RowRun& run : docs.runs) rows += border_rows(run, halo);
  BorderRows border(static_cast<std::size_t>(rows * n));
  float* to = border.data();
  std::int64_t other = 0;
  for (const RowRun& run : docs.runs) {
    const std::int64_t own = border_rows(run, halo);
    if (halo == kcp::Halo::kBefore) {
      to = append({others.data(), n}, other, run.before, n, to);
      to = append(x, run.first, own, n, to);
      other += run.before;
    } else {
      to = append(x, run.first + run.rows - own, own, n, to);
      to = append({others.data(), n}, other, run.after, n, to);
      other += run.after;
    }
  }
  return border;
}

/// Weight gradient of a shard with rows [t, t + count): rows at the border of a run are read from their copy, in the
/// place that they have in the sum.
void conv_weight_of_shard(const TrainKernels& kernels, std::int64_t t, std::int64_t count, std::int64_t n,
                          const float* dc, Rows x, const DocumentRows& docs, const BorderRows& border, float* dw) {
  std::fill(dw, dw + kConvTaps * n, 0.0f);
  const std::int64_t end = t + count;
  const float* copy = border.data();
  for (const RowRun& run : docs.runs) {
    const std::int64_t own = border_rows(run, kcp::Halo::kBefore), plain = run.first + own;
    const std::int64_t stop = std::min(end, plain);
    if (t >= run.first && t < stop) {
      kernels.conv_weight(stop - t, n, dc + t * n, copy + (run.before + t - run.first) * n, n, docs.before + t, dw);
      t = stop;
    }
    if (own > 0) copy += (run.before + own) * n;
  }
  kernels.conv_weight(end - t, n, dc + t * n, x.data + t * x.stride, x.stride, docs.before + t, dw);
}

}  // namespace

void conv_silu_forward(std::int64_t n, Rows x, const DocumentRows& docs, const float* w, float* c, float* y,
                       BorderRows& border) {
  const TrainKernels& kernels = train_kernels();
  border = fetch_border(docs, kcp::Halo::kBefore, x, n);
  const float* copy = border.data();
  for (const RowRun& run : docs.runs) {
    const std::int64_t own = border_rows(run, kcp::Halo::kBefore), plain = run.first + own;
    if (own > 0) {
      kernels.conv_forward(own, n, copy + run.before * n, n, docs.before + run.first, w, c + run.first * n,
                           y + run.first * n);
      copy += (run.before + own) * n;
    }
    for_row_blocks(run.rows - own, [=, &kernels](std::int64_t block, std::int64_t count) {
      const std::int64_t t = plain + block;
      kernels.conv_forward(count, n, x.data + t * x.stride, x.stride, docs.before + t, w, c + t * n, y + t * n);
    });
  }
}

void conv_silu_backward(ShardReducer& reducer, std::int64_t n, float* dy, Rows x, const DocumentRows& docs,
                        const float* w, const float* c, const BorderRows& border, Rows dx, float* dw) {
  const TrainKernels& kernels = train_kernels();
  for_row_blocks(reducer.rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.silu_backward(count * n, c + t * n, dy + t * n);
  });
  // A second pass: a row's input gradient reads up to three later rows, which another task or rank may hold.
  const BorderRows later = fetch_border(docs, kcp::Halo::kAfter, {dy, n}, n);
  const float* copy = later.data();
  for (const RowRun& run : docs.runs) {
    const std::int64_t own = border_rows(run, kcp::Halo::kAfter), plain = run.rows - own, t0 = run.first + plain;
    for_row_blocks(plain, [=, &kernels](std::int64_t block, std::int64_t count) {
      const std::int64_t t = run.first + block;
      kernels.conv_input(count, n, dy + t * n, docs.after + t, w, dx.data + t * dx.stride, dx.stride);
    });
    if (own > 0) {
      kernels.conv_input(own, n, copy, docs.after + t0, w, dx.data + t0 * dx.stride, dx.stride);
      copy += (own + run.after) * n;
    }
  }
  reducer.reduce(kConvTaps * n, dw, [&](std::int64_t t, std::int64_t count, float* dst) {
    conv_weight_of_shard(kernels, t, count, n, dy, x, docs, border, dst);
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
  for_row_blocks(reducer.rows(), [=, &kernels](std::int64_t t, std::int64_t count) {
    kernels.cross_entropy(count, logits + t * kVocabulary, targets + t, scale, loss + t);
  });
  return reducer.sum_rows(loss) / static_cast<double>(rows);
}

}  // namespace cake::train_lm
