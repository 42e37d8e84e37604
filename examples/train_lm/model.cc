#include "model.h"

#include <algorithm>
#include <string>

#include "cake/core/error.h"
#include "core/fpenv.h"

namespace cake::train_lm {
namespace {

void size_to(std::vector<float>& v, std::int64_t n) { v.resize(static_cast<std::size_t>(n)); }

}  // namespace

Model::Model(const ModelConfig& config, KdaPackage& package, std::int64_t batch_tokens, int shards, const Ranks& ranks)
    : config_(config),
      table_(config),
      reducer_(ShardPlan(batch_tokens, shards), ranks),
      batch_(reducer_.ranks(), reducer_.rank(), ranks.communicator),
      rows_(batch_.rows()) {
  // A rank without rows has room for one, because the columns of a null pointer have no address.
  const std::int64_t t = std::max<std::int64_t>(rows_, 1);
  const std::int64_t d = config.width, m = config.mlp_width(), p = config.projection_width();
  blocks_.resize(static_cast<std::size_t>(config.layers));
  for (BlockState& s : blocks_) {
    for (std::vector<float>* v : {&s.x, &s.n1, &s.o, &s.gated, &s.mid, &s.n2}) size_to(*v, t * d);
    for (std::vector<float>* v : {&s.rstd1, &s.rstd2}) size_to(*v, t);
    for (std::vector<float>* v : {&s.conv, &s.qkv}) size_to(*v, t * 3 * d);
    size_to(s.proj, t * p);
    size_to(s.rstd_o, t * config.heads);
    size_to(s.u, t * 2 * m);
    size_to(s.h, t * m);
    s.kda = package.make_op();
  }
  for (std::vector<float>* v : {&last_, &normed_, &dx_, &dn_, &d_o_, &dgated_}) size_to(*v, t * d);
  for (std::vector<float>* v : {&rstd_, &loss_}) size_to(*v, t);
  size_to(logits_, t * kVocabulary);
  size_to(dproj_, t * p);
  size_to(dqkv_, t * 3 * d);
  size_to(dh_, t * m);
}

template <class View, class Float>
KdaTensors<View> Model::kda_tensors(Float* qkv, Float* proj, Float* a_log, Float* dt_bias) const {
  const std::int64_t d = config_.width, h = config_.heads, k = config_.head_dim(), p = config_.projection_width();
  const auto heads = [&](Float* data, std::int64_t stride) {
    return View::strided(data, DType::kFloat32, {1, rows_, h, k}, {rows_ * stride, stride, k, 1});
  };
  KdaTensors<View> t;
  t.q = heads(qkv, 3 * d);
  t.k = heads(qkv + d, 3 * d);
  t.v = heads(qkv + 2 * d, 3 * d);
  t.g = heads(proj + 3 * d, p);
  t.beta = View::strided(proj + 5 * d, DType::kFloat32, {1, rows_, h}, {rows_ * p, p, 1});
  t.A_log = View::contiguous(a_log, DType::kFloat32, {h});
  t.dt_bias = View::contiguous(dt_bias, DType::kFloat32, {h, k});
  return t;
}

KdaInputs Model::kda_inputs(const BlockState& s, const BlockOffsets& at, const float* p) const {
  const std::vector<std::int32_t>& cu = batch_.cu_seqlens();
  return {kda_tensors<ConstTensorView>(s.qkv.data(), s.proj.data(), p + at.A_log, p + at.dt_bias),
          ConstTensorView::contiguous(cu.data(), DType::kInt32, {static_cast<std::int64_t>(cu.size())}),
          batch_.context()};
}

void Model::block_forward(int layer, const float* p, float* out) {
  BlockState& s = blocks_[static_cast<std::size_t>(layer)];
  const BlockOffsets& at = table_.blocks[static_cast<std::size_t>(layer)];
  const std::int64_t d = config_.width, m = config_.mlp_width(), pw = config_.projection_width();

  rmsnorm_forward(rows_, d, s.x.data(), p + at.norm1, s.n1.data(), s.rstd1.data());
  linear_forward(rows_, d, pw, {s.n1.data(), d}, p + at.in_proj, {s.proj.data(), pw});
  if (config_.ablate_kda) {
    std::fill(s.o.begin(), s.o.end(), 0.0f);
  } else {
    conv_silu_forward(3 * d, {s.proj.data(), pw}, batch_.documents(), p + at.conv, s.conv.data(), s.qkv.data(),
                      s.conv_border);
    s.kda->forward(kda_inputs(s, at, p),
                   TensorView::contiguous(s.o.data(), DType::kFloat32, {1, rows_, config_.heads, config_.head_dim()}));
  }
  gated_norm_forward(rows_, config_.heads, config_.head_dim(), s.o.data(), Rows{s.proj.data(), pw}.columns(4 * d),
                     p + at.gated_norm, s.gated.data(), s.rstd_o.data());
  std::copy(s.x.begin(), s.x.end(), s.mid.begin());
  linear_forward(rows_, d, d, {s.gated.data(), d}, p + at.out_proj, {s.mid.data(), d}, true);

  rmsnorm_forward(rows_, d, s.mid.data(), p + at.norm2, s.n2.data(), s.rstd2.data());
  linear_forward(rows_, d, 2 * m, {s.n2.data(), d}, p + at.mlp_in, {s.u.data(), 2 * m});
  swiglu_forward(rows_, m, s.u.data(), s.h.data());
  std::copy(s.mid.begin(), s.mid.end(), out);
  linear_forward(rows_, m, d, {s.h.data(), m}, p + at.mlp_out, {out, d}, true);
}

void Model::mlp_backward(BlockState& s, const BlockOffsets& at, const float* p, float* g) {
  const std::int64_t d = config_.width, m = config_.mlp_width();
  linear_weight(reducer_, m, d, {s.h.data(), m}, {dx_.data(), d}, g + at.mlp_out);
  linear_input(rows_, m, d, {dx_.data(), d}, p + at.mlp_out, {dh_.data(), m});
  swiglu_backward(rows_, m, dh_.data(), s.u.data());
  linear_weight(reducer_, d, 2 * m, {s.n2.data(), d}, {s.u.data(), 2 * m}, g + at.mlp_in);
  linear_input(rows_, d, 2 * m, {s.u.data(), 2 * m}, p + at.mlp_in, {dn_.data(), d});
  rmsnorm_backward(reducer_, d, dn_.data(), s.mid.data(), p + at.norm2, s.rstd2.data(), dx_.data(), g + at.norm2);
}

void Model::kda_backward(BlockState& s, const BlockOffsets& at, const float* p, float* g) {
  const std::int64_t d = config_.width, pw = config_.projection_width();
  const Rows proj{s.proj.data(), pw}, dproj{dproj_.data(), pw};
  linear_weight(reducer_, d, d, {s.gated.data(), d}, {dx_.data(), d}, g + at.out_proj);
  linear_input(rows_, d, d, {dx_.data(), d}, p + at.out_proj, {dgated_.data(), d});
  gated_norm_backward(reducer_, config_.heads, config_.head_dim(), dgated_.data(), s.o.data(), proj.columns(4 * d),
                      p + at.gated_norm, s.rstd_o.data(), d_o_.data(), dproj.columns(4 * d), g + at.gated_norm);
  if (config_.ablate_kda) {
    // The output is the constant zero: nothing flows into q, k, v, the gate, beta or the convolution.
    std::fill(dproj_.begin(), dproj_.end(), 0.0f);
  } else {
    s.kda->backward(kda_inputs(s, at, p),
                    TensorView::contiguous(d_o_.data(), DType::kFloat32, {1, rows_, config_.heads, config_.head_dim()}),
                    kda_tensors<TensorView>(dqkv_.data(), dproj_.data(), g + at.A_log, g + at.dt_bias));
    conv_silu_backward(reducer_, 3 * d, dqkv_.data(), proj, batch_.documents(), p + at.conv, s.conv.data(),
                       s.conv_border, dproj, g + at.conv);
  }
  linear_weight(reducer_, d, pw, {s.n1.data(), d}, dproj, g + at.in_proj);
  linear_input(rows_, d, pw, dproj, p + at.in_proj, {dn_.data(), d});
  rmsnorm_backward(reducer_, d, dn_.data(), s.x.data(), p + at.norm1, s.rstd1.data(), dx_.data(), g + at.norm1);
}

double Model::loss_and_gradient(const Batch& batch, const float* p, float* g) {
  const ScopedFpEnv env;
  const std::int64_t d = config_.width;
  const auto tokens = static_cast<std::size_t>(reducer_.plan().rows());
  if (batch.inputs.size() != tokens || batch.targets.size() != tokens) {
    throw InvalidArgument("batch: got " + std::to_string(batch.inputs.size()) + " inputs and " +
                          std::to_string(batch.targets.size()) + " targets, expected " + std::to_string(tokens));
  }
  batch_.load(batch);
  std::fill(g, g + table_.size(), 0.0f);

  embedding_forward(rows_, d, batch_.inputs().data(), p + table_.embedding, blocks_[0].x.data());
  for (int layer = 0; layer < config_.layers; ++layer) {
    const bool final_block = layer + 1 == config_.layers;
    block_forward(layer, p, final_block ? last_.data() : blocks_[static_cast<std::size_t>(layer) + 1].x.data());
  }
  rmsnorm_forward(rows_, d, last_.data(), p + table_.final_norm, normed_.data(), rstd_.data());
  linear_forward(rows_, d, kVocabulary, {normed_.data(), d}, p + table_.head, {logits_.data(), kVocabulary});
  const double loss = cross_entropy(reducer_, logits_.data(), batch_.targets().data(), loss_.data());

  linear_weight(reducer_, d, kVocabulary, {normed_.data(), d}, {logits_.data(), kVocabulary}, g + table_.head);
  linear_input(rows_, d, kVocabulary, {logits_.data(), kVocabulary}, p + table_.head, {dn_.data(), d});
  std::fill(dx_.begin(), dx_.end(), 0.0f);
  rmsnorm_backward(reducer_, d, dn_.data(), last_.data(), p + table_.final_norm, rstd_.data(), dx_.data(),
                   g + table_.final_norm);
  for (int layer = config_.layers - 1; layer >= 0; --layer) {
    BlockState& s = blocks_[static_cast<std::size_t>(layer)];
    const BlockOffsets& at = table_.blocks[static_cast<std::size_t>(layer)];
    mlp_backward(s, at, p, g);
    kda_backward(s, at, p, g);
  }
  embedding_backward(reducer_, d, batch_.inputs().data(), dx_.data(), g + table_.embedding);
  return loss;
}

}  // namespace cake::train_lm
