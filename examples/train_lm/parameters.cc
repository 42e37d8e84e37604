#include "parameters.h"

#include "cake/core/error.h"
#include "core/fpenv.h"
#include "core/simd/simd_kernels.h"
#include "kernels.h"
#include "random.h"

namespace cake::train_lm {
namespace {

[[noreturn]] void refuse(const char* name, int got, const std::string& expected) {
  throw InvalidArgument(std::string(name) + ": got " + std::to_string(got) + ", expected " + expected);
}

float root(float x) {
  float r = 0.0f;
  simd_kernels().rsqrt(&x, &r, 1);
  return 1.0f / r;
}

}  // namespace

void ModelConfig::validate() const {
  if (layers < 1 || layers > 1024) refuse("layers", layers, "1 to 1024");
  if (heads < 1 || heads > 4096) refuse("heads", heads, "1 to 4096");
  if (width < 16 || width > 65536) refuse("width", width, "16 to 65536");
  if (width % heads != 0 || head_dim() % 16 != 0 || head_dim() > 256) {
    refuse("width", width,
           "heads (" + std::to_string(heads) + ") times a head dimension that is a multiple of 16, at most 256");
  }
}

std::int64_t ParameterTable::add(std::string name, std::vector<std::int64_t> shape, bool decays) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) numel *= extent;
  const std::int64_t offset = size_;
  all_.push_back({std::move(name), std::move(shape), offset, numel, decays});
  size_ += (numel + 15) / 16 * 16;
  return offset;
}

ParameterTable::ParameterTable(const ModelConfig& c) {
  c.validate();
  const std::int64_t d = c.width, h = c.heads, hd = c.head_dim(), m = c.mlp_width();
  embedding = add("embedding", {kVocabulary, d}, true);
  for (int i = 0; i < c.layers; ++i) {
    const std::string p = "layers." + std::to_string(i) + ".";
    BlockOffsets b{};
    b.norm1 = add(p + "kda.norm", {d}, false);
    b.in_proj = add(p + "kda.in_proj", {d, c.projection_width()}, true);
    b.conv = add(p + "kda.conv", {kConvTaps, 3 * d}, true);
    b.A_log = add(p + "kda.A_log", {h}, false);
    b.dt_bias = add(p + "kda.dt_bias", {h, hd}, false);
    b.gated_norm = add(p + "kda.gated_norm", {hd}, false);
    b.out_proj = add(p + "kda.out_proj", {d, d}, true);
    b.norm2 = add(p + "mlp.norm", {d}, false);
    b.mlp_in = add(p + "mlp.in_proj", {d, 2 * m}, true);
    b.mlp_out = add(p + "mlp.out_proj", {m, d}, true);
    blocks.push_back(b);
  }
  final_norm = add("final_norm", {d}, false);
  head = add("head", {d, kVocabulary}, true);
}

std::int64_t ParameterTable::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : all_) n += p.numel;
  return n;
}

std::vector<float> initial_parameters(const ParameterTable& table, const ModelConfig& config, std::uint64_t seed) {
  const ScopedFpEnv env;
  std::vector<float> values(static_cast<std::size_t>(table.size()), 0.0f);
  const auto numel_at = [&](std::int64_t offset) {
    for (const Parameter& p : table.all()) {
      if (p.offset == offset) return p.numel;
    }
    return std::int64_t{0};
  };
  std::uint32_t substream = 0;
  // Uniform on [low, high); each tensor has numbers of its own, so that none shifts another's.
  const auto uniform = [&](std::int64_t offset, float low, float high) {
    Random random(seed, RandomStream::kInit, substream++);
    const std::int64_t n = numel_at(offset);
    for (std::int64_t i = 0; i < n; ++i)
      values[static_cast<std::size_t>(offset + i)] = low + (high - low) * random.uniform();
  };
  // Uniform with the given standard deviation.
  const auto spread = [&](std::int64_t offset, float deviation) {
    const float bound = 1.7320508f * deviation;
    uniform(offset, -bound, bound);
  };
  const auto ones = [&](std::int64_t offset) {
    const std::int64_t n = numel_at(offset);
    for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(offset + i)] = 1.0f;
  };
  const float width = static_cast<float>(config.width), mlp = static_cast<float>(config.mlp_width());
  const float branch = 1.0f / root(2.0f * static_cast<float>(config.layers));  // each block adds two branches
  const SimdKernels& simd = simd_kernels();

  spread(table.embedding, 0.5f);
  for (const BlockOffsets& b : table.blocks) {
    ones(b.norm1);
    spread(b.in_proj, 1.0f / root(width));
    uniform(b.conv, -0.5f, 0.5f);
    // Decay rates: A uniform on [1, 16), step sizes dt log-uniform on [0.001, 0.1), dt_bias = softplus^-1(dt).
    uniform(b.A_log, 1.0f, 16.0f);
    float* a = values.data() + b.A_log;
    simd.log(a, a, config.heads);
    uniform(b.dt_bias, -6.9077553f, -2.3025851f);
    float* dt = values.data() + b.dt_bias;
    simd.exp(dt, dt, config.width);
    simd.exp(dt, dt, config.width);
    for (int i = 0; i < config.width; ++i) dt[i] -= 1.0f;
    simd.log(dt, dt, config.width);
    ones(b.gated_norm);
    spread(b.out_proj, branch / root(width));
    ones(b.norm2);
    spread(b.mlp_in, 1.0f / root(width));
    spread(b.mlp_out, branch / root(mlp));
  }
  ones(table.final_norm);
  spread(table.head, 0.5f / root(width));
  return values;
}

}  // namespace cake::train_lm
