#include "tests/train/reference_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "examples/train_lm/kernels.h"
#include "ops/kda/reference.h"

namespace cake::test::ref {

Array linear(const Array& x, const Array& w, std::size_t k, std::size_t n) {
  const std::size_t rows = x.size() / k;
  Array y(rows * n, 0.0);
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t j = 0; j < n; ++j) y[t * n + j] += x[t * k + i] * w[i * n + j];
    }
  }
  return y;
}

Array rmsnorm(const Array& x, const Array& w) {
  const std::size_t n = w.size();
  Array y(x.size());
  for (std::size_t at = 0; at < x.size(); at += n) {
    double squares = 0.0;
    for (std::size_t i = 0; i < n; ++i) squares += x[at + i] * x[at + i];
    const double root = std::sqrt(squares / static_cast<double>(n) + static_cast<double>(train_lm::kNormEpsilon));
    for (std::size_t i = 0; i < n; ++i) y[at + i] = x[at + i] / root * w[i];
  }
  return y;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

Array gated_norm(const Array& o, const Array& z, const Array& w) {
  Array y = rmsnorm(o, w);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= silu(z[i]);
  return y;
}

Array conv_silu(const Array& x, const Array& w, std::size_t n, const std::vector<std::int32_t>& cu_seqlens) {
  Array y(x.size(), 0.0);
  for (std::size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    for (std::int32_t t = cu_seqlens[d]; t < cu_seqlens[d + 1]; ++t) {
      for (std::size_t c = 0; c < n; ++c) {
        double sum = 0.0;
        for (std::int32_t j = 0; j < 4; ++j) {
          const std::int32_t from = t - 3 + j;
          if (from < cu_seqlens[d]) continue;
          sum += w[static_cast<std::size_t>(j) * n + c] * x[static_cast<std::size_t>(from) * n + c];
        }
        y[static_cast<std::size_t>(t) * n + c] = silu(sum);
      }
    }
  }
  return y;
}

Array swiglu(const Array& u, std::size_t n) {
  Array h(u.size() / 2);
  for (std::size_t t = 0; t < h.size() / n; ++t) {
    for (std::size_t i = 0; i < n; ++i) h[t * n + i] = silu(u[2 * t * n + i]) * u[(2 * t + 1) * n + i];
  }
  return h;
}

double cross_entropy(const Array& logits, const std::vector<std::uint8_t>& targets) {
  double total = 0.0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t * 256);
    const double top = *std::max_element(row, row + 256);
    double sum = 0.0;
    for (int i = 0; i < 256; ++i) sum += std::exp(row[i] - top);
    total += std::log(sum) + top - row[targets[t]];
  }
  return total / static_cast<double>(targets.size());
}

Array columns(const Array& x, std::size_t n, std::size_t first, std::size_t count) {
  Array y;
  for (std::size_t at = first; at < x.size(); at += n) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(at);
    y.insert(y.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  return y;
}

namespace {

void add_to(Array& x, const Array& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace

double model_loss(const train_lm::ModelConfig& config, const train_lm::ParameterTable& table,
                  const train_lm::Batch& batch, const Array& p) {
  const auto tensor = [&](std::int64_t offset) {
    const auto it =
        std::find_if(table.all().begin(), table.all().end(), [&](const auto& q) { return q.offset == offset; });
    const auto begin = p.begin() + offset;
    return Array(begin, begin + it->numel);
  };
  const auto d = static_cast<std::size_t>(config.width), m = static_cast<std::size_t>(config.mlp_width());
  const auto heads = static_cast<std::size_t>(config.heads), pw = 5 * d + heads, rows = batch.inputs.size();
  Array x;
  const Array embedding = tensor(table.embedding);
  for (const std::uint8_t byte : batch.inputs) {
    const auto row = embedding.begin() + static_cast<std::ptrdiff_t>(byte * d);
    x.insert(x.end(), row, row + static_cast<std::ptrdiff_t>(d));
  }
  for (const train_lm::BlockOffsets& b : table.blocks) {
    const Array proj = linear(rmsnorm(x, tensor(b.norm1)), tensor(b.in_proj), d, pw);
    Array o(rows * d, 0.0);
    if (!config.ablate_kda) {
      const Array qkv = conv_silu(columns(proj, pw, 0, 3 * d), tensor(b.conv), 3 * d, batch.cu_seqlens);
      kda::ReferenceInputs in;
      in.S = static_cast<std::int64_t>(rows);
      in.H = in.HV = config.heads;
      in.K = in.V = config.head_dim();
      in.offsets.assign(batch.cu_seqlens.begin(), batch.cu_seqlens.end());
      in.q = columns(qkv, 3 * d, 0, d);
      in.k = columns(qkv, 3 * d, d, d);
      in.v = columns(qkv, 3 * d, 2 * d, d);
      in.g = columns(proj, pw, 3 * d, d);
      in.beta = columns(proj, pw, 5 * d, heads);
      in.A_log = tensor(b.A_log);
      in.dt_bias = tensor(b.dt_bias);
      in.scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim()));
      in.use_gate_in_kernel = in.use_qk_l2norm_in_kernel = in.use_beta_sigmoid_in_kernel = true;
      o = kda::reference_forward(in).out;
    }
    const Array gated = gated_norm(o, columns(proj, pw, 4 * d, d), tensor(b.gated_norm));
    add_to(x, linear(gated, tensor(b.out_proj), d, d));
    const Array u = linear(rmsnorm(x, tensor(b.norm2)), tensor(b.mlp_in), d, 2 * m);
    add_to(x, linear(swiglu(u, m), tensor(b.mlp_out), m, d));
  }
  const Array logits = linear(rmsnorm(x, tensor(table.final_norm)), tensor(table.head), d, 256);
  return cross_entropy(logits, batch.targets);
}

}  // namespace cake::test::ref
