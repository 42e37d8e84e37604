// Kernels of one instruction-set level; compiled once per level (see kernels.h for shapes and order).
// Bits: lanes are columns, so a sum over rows is one ascending chain per element; a sum over a row is a chain per lane
// and then the fixed tree of reduce_add. Tests: tests/train/layers_test.cc, tests/train/determinism_test.cc.
#include "kernels.h"

#include "core/simd/math.h"
#include "core/simd/simd.h"

namespace cake::CAKE_ISA_NAMESPACE {
namespace {

using train_lm::AdamWStep;
using train_lm::kConvTaps;
using train_lm::kNormEpsilon;
using train_lm::kVocabulary;
using train_lm::TrainKernels;
using i64 = std::int64_t;

CAKE_INLINE float scalar(F x) {
  float t[kLanes];
  store(t, x);
  return t[0];
}

CAKE_INLINE float row_rstd(i64 n, const float* x) {
  F acc = zero();
  for (i64 i = 0; i < n; i += kLanes) {
    const F v = load(x + i);
    acc = fma(v, v, acc);
  }
  return scalar(rsqrt(set1(reduce_add(acc) / static_cast<float>(n) + kNormEpsilon)));
}

CAKE_INLINE void clear(float* x, i64 n) {
  for (i64 i = 0; i < n; i += kLanes) store(x + i, zero());
}

/// SiLU and, where asked, its derivative: s + c s (1 - s) with s = sigmoid(c).
CAKE_INLINE F silu(F c) { return c * sigmoid(c); }
CAKE_INLINE F silu_derivative(F c, F s) { return fma(c * s, set1(1.0f) - s, s); }

void rmsnorm_forward(i64 rows, i64 n, const float* x, const float* w, float* y, float* rstd) {
  for (i64 t = 0; t < rows; ++t, x += n, y += n) {
    rstd[t] = row_rstd(n, x);
    const F r = set1(rstd[t]);
    for (i64 i = 0; i < n; i += kLanes) store(y + i, load(x + i) * r * load(w + i));
  }
}

void rmsnorm_backward(i64 rows, i64 n, const float* dy, const float* x, const float* w, const float* rstd, float* dx) {
  for (i64 t = 0; t < rows; ++t, x += n, dy += n, dx += n) {
    F acc = zero();
    for (i64 i = 0; i < n; i += kLanes) acc = fma(load(dy + i) * load(w + i), load(x + i), acc);
    const float r = rstd[t];
    const F scale = set1(r), back = set1(-(reduce_add(acc) * r * r * r / static_cast<float>(n)));
    for (i64 i = 0; i < n; i += kLanes) {
      const F direct = fma(load(dy + i) * load(w + i), scale, load(dx + i));
      store(dx + i, fma(back, load(x + i), direct));
    }
  }
}

void rmsnorm_weight(i64 rows, i64 n, const float* dy, const float* x, const float* rstd, float* dw) {
  clear(dw, n);
  for (i64 t = 0; t < rows; ++t, x += n, dy += n) {
    const F r = set1(rstd[t]);
    for (i64 i = 0; i < n; i += kLanes) store(dw + i, fma(load(dy + i), load(x + i) * r, load(dw + i)));
  }
}

void gated_norm_forward(i64 rows, i64 heads, i64 n, const float* o, const float* z, i64 z_stride, const float* w,
                        float* y, float* rstd) {
  for (i64 t = 0; t < rows; ++t, z += z_stride) {
    for (i64 h = 0; h < heads; ++h, o += n, y += n, ++rstd) {
      *rstd = row_rstd(n, o);
      const F r = set1(*rstd);
      for (i64 i = 0; i < n; i += kLanes) {
        store(y + i, load(o + i) * r * load(w + i) * silu(load(z + h * n + i)));
      }
    }
  }
}

void gated_norm_backward(i64 rows, i64 heads, i64 n, const float* dy, const float* o, const float* z, i64 z_stride,
                         const float* w, const float* rstd, float* d_o, float* dz, i64 dz_stride) {
  for (i64 t = 0; t < rows; ++t, z += z_stride, dz += dz_stride) {
    for (i64 h = 0; h < heads; ++h, dy += n, o += n, d_o += n, ++rstd) {
      const F r = set1(*rstd);
      F acc = zero();
      for (i64 i = 0; i < n; i += kLanes) {
        const F zi = load(z + h * n + i), s = sigmoid(zi), oi = load(o + i);
        const F weighted = load(dy + i) * load(w + i);
        store(dz + h * n + i, weighted * (oi * r) * silu_derivative(zi, s));
        const F inner = weighted * (zi * s);
        store(d_o + i, inner);
        acc = fma(inner, oi, acc);
      }
      const F back = set1(-(reduce_add(acc) * *rstd * *rstd * *rstd / static_cast<float>(n)));
      for (i64 i = 0; i < n; i += kLanes) store(d_o + i, fma(back, load(o + i), load(d_o + i) * r));
    }
  }
}

void gated_norm_weight(i64 rows, i64 heads, i64 n, const float* dy, const float* o, const float* z, i64 z_stride,
                       const float* rstd, float* dw) {
  clear(dw, n);
  for (i64 t = 0; t < rows; ++t, z += z_stride) {
    for (i64 h = 0; h < heads; ++h, dy += n, o += n, ++rstd) {
      const F r = set1(*rstd);
      for (i64 i = 0; i < n; i += kLanes) {
        store(dw + i, fma(load(dy + i), load(o + i) * r * silu(load(z + h * n + i)), load(dw + i)));
      }
    }
  }
}

void conv_forward(i64 rows, i64 n, const float* x, i64 x_stride, const std::int32_t* before, const float* w, float* c,
                  float* y) {
  for (i64 t = 0; t < rows; ++t, x += x_stride, c += n, y += n) {
    const int earlier = before[t];
    for (i64 i = 0; i < n; i += kLanes) {
      F acc = load(x + i) * load(w + (kConvTaps - 1) * n + i);
      for (int j = 1; j <= earlier; ++j) {
        acc = fma(load(x - j * x_stride + i), load(w + (kConvTaps - 1 - j) * n + i), acc);
      }
      store(c + i, acc);
      store(y + i, silu(acc));
    }
  }
}

void silu_backward(i64 count, const float* c, float* dy) {
  for (i64 i = 0; i < count; i += kLanes) {
    const F ci = load(c + i);
    store(dy + i, load(dy + i) * silu_derivative(ci, sigmoid(ci)));
  }
}

void conv_input(i64 rows, i64 n, const float* dc, const std::int32_t* after, const float* w, float* dx, i64 dx_stride) {
  for (i64 t = 0; t < rows; ++t, dc += n, dx += dx_stride) {
    const int later = after[t];
    for (i64 i = 0; i < n; i += kLanes) {
      F acc = load(dc + i) * load(w + (kConvTaps - 1) * n + i);
      for (int j = 1; j <= later; ++j) acc = fma(load(dc + j * n + i), load(w + (kConvTaps - 1 - j) * n + i), acc);
      store(dx + i, acc);
    }
  }
}

void conv_weight(i64 rows, i64 n, const float* dc, const float* x, i64 x_stride, const std::int32_t* before,
                 float* dw) {
  for (i64 t = 0; t < rows; ++t, dc += n, x += x_stride) {
    for (int j = 0; j <= before[t]; ++j) {
      float* row = dw + (kConvTaps - 1 - j) * n;
      const float* xj = x - j * x_stride;
      for (i64 i = 0; i < n; i += kLanes) store(row + i, fma(load(dc + i), load(xj + i), load(row + i)));
    }
  }
}

void swiglu_forward(i64 rows, i64 n, const float* u, float* h) {
  for (i64 t = 0; t < rows; ++t, u += 2 * n, h += n) {
    for (i64 i = 0; i < n; i += kLanes) store(h + i, silu(load(u + i)) * load(u + n + i));
  }
}

void swiglu_backward(i64 rows, i64 n, const float* dh, float* u) {
  for (i64 t = 0; t < rows; ++t, dh += n, u += 2 * n) {
    for (i64 i = 0; i < n; i += kLanes) {
      const F a = load(u + i), b = load(u + n + i), d = load(dh + i), s = sigmoid(a);
      store(u + i, d * b * silu_derivative(a, s));
      store(u + n + i, d * (a * s));
    }
  }
}

void cross_entropy(i64 rows, float* logits, const std::uint8_t* targets, float scale, float* loss) {
  for (i64 t = 0; t < rows; ++t, logits += kVocabulary) {
    F top = load(logits);
    for (int i = kLanes; i < kVocabulary; i += kLanes) top = max(top, load(logits + i));
    float lanes[kLanes];
    store(lanes, top);
    float m = lanes[0];
    for (int l = 1; l < kLanes; ++l) m = lanes[l] > m ? lanes[l] : m;  // a maximum is the same in every order
    const int target = targets[t];
    const float shifted = logits[target] - m;
    F acc = zero();
    for (int i = 0; i < kVocabulary; i += kLanes) {
      const F e = exp(load(logits + i) - set1(m));
      store(logits + i, e);
      acc = acc + e;
    }
    const float sum = reduce_add(acc);
    loss[t] = scalar(log(set1(sum))) - shifted;
    const F factor = set1(scale / sum);
    for (int i = 0; i < kVocabulary; i += kLanes) store(logits + i, load(logits + i) * factor);
    logits[target] -= scale;
  }
}

void embedding_weight(i64 rows, i64 n, const std::uint8_t* bytes, const float* dx, float* dtable) {
  clear(dtable, kVocabulary * n);
  for (i64 t = 0; t < rows; ++t, dx += n) {
    float* row = dtable + bytes[t] * n;
    for (i64 i = 0; i < n; i += kLanes) store(row + i, load(row + i) + load(dx + i));
  }
}

void fold(i64 parts, i64 stride, const float* partials, i64 n, float* out) {
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F acc = load(partials + i);
    for (i64 p = 1; p < parts; ++p) acc = acc + load(partials + p * stride + i);
    store(out + i, acc);
  }
  for (; i < n; ++i) {
    float acc = partials[i];
    for (i64 p = 1; p < parts; ++p) acc += partials[p * stride + i];
    out[i] = acc;
  }
}

void adamw(i64 n, const AdamWStep& s, const float* gradient, float* p, float* m, float* v) {
  const F scale = set1(s.gradient_scale), b1 = set1(s.beta1), b2 = set1(s.beta2);
  const F rest1 = set1(1.0f - s.beta1), rest2 = set1(1.0f - s.beta2);
  const F inv1 = set1(s.inv_correction1), inv2 = set1(s.inv_correction2), eps = set1(s.epsilon);
  const F lr = set1(-s.learning_rate), keep = set1(s.weight_decay);
  for (i64 i = 0; i < n; i += kLanes) {
    const F g = load(gradient + i) * scale;
    const F mi = fma(load(m + i), b1, g * rest1);
    const F vi = fma(load(v + i), b2, g * g * rest2);
    store(m + i, mi);
    store(v + i, vi);
    const F pi = load(p + i);
    const F update = fma(keep, pi, (mi * inv1) / (sqrt(vi * inv2) + eps));
    store(p + i, fma(lr, update, pi));
  }
}

}  // namespace

extern const TrainKernels kTrainKernels;
const TrainKernels kTrainKernels = {
    rmsnorm_forward,     rmsnorm_backward,  rmsnorm_weight, gated_norm_forward,
    gated_norm_backward, gated_norm_weight, conv_forward,   silu_backward,
    conv_input,          conv_weight,       swiglu_forward, swiglu_backward,
    cross_entropy,       embedding_weight,  fold,           adamw,
};

}  // namespace cake::CAKE_ISA_NAMESPACE
