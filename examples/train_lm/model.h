// The byte-level language model: loss and gradients of one packed batch, on one rank or over the ranks of a group.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data.h"
#include "kda_op.h"
#include "layers.h"
#include "parameters.h"
#include "rank_batch.h"
#include "shards.h"

namespace cake::train_lm {

/// Holds the activations of this rank's rows for one batch size and one KDA operator per block; the parameters belong
/// to the caller.
class Model {
 public:
  /// Throws InvalidArgument for a configuration that is not accepted, and as RankShards. `package` makes the KDA
  /// operators: with a communicator it is one over ranks.
  Model(const ModelConfig& config, KdaPackage& package, std::int64_t batch_tokens, int shards, const Ranks& ranks = {});

  const ModelConfig& config() const { return config_; }
  const ParameterTable& table() const { return table_; }

  /// Mean cross-entropy of the batch in nats; `gradient` [table().size()] receives its gradient at `parameters`
  /// (zeros in the gaps). The batch holds exactly batch_tokens tokens. Collective: every rank gives the same batch and
  /// parameters and gets the same loss and gradient.
  double loss_and_gradient(const Batch& batch, const float* parameters, float* gradient);

 private:
  /// Activations of one block that the backward reads.
  struct BlockState {
    std::vector<float> x;          ///< input of the block [T, d]
    std::vector<float> rstd1, n1;  ///< first norm [T], [T, d]
    std::vector<float> proj;       ///< fused projection [T, 5 d + heads]
    std::vector<float> conv, qkv;  ///< convolution before and after SiLU [T, 3 d]
    BorderRows conv_border;        ///< rows that the convolution reads at the borders between ranks
    std::vector<float> o, rstd_o;  ///< output of KDA [T, d], its norm [T, heads]
    std::vector<float> gated;      ///< after the gated norm [T, d]
    std::vector<float> mid;        ///< after the first branch [T, d]
    std::vector<float> rstd2, n2;  ///< second norm
    std::vector<float> u, h;       ///< MLP [T, 2 m], [T, m]
    std::unique_ptr<KdaOp> kda;
  };

  void block_forward(int layer, const float* p, float* out);
  void mlp_backward(BlockState& s, const BlockOffsets& at, const float* p, float* g);
  void kda_backward(BlockState& s, const BlockOffsets& at, const float* p, float* g);
  KdaInputs kda_inputs(const BlockState& s, const BlockOffsets& at, const float* p) const;
  template <class View, class Float>
  KdaTensors<View> kda_tensors(Float* qkv, Float* proj, Float* a_log, Float* dt_bias) const;

  ModelConfig config_;
  ParameterTable table_;
  ShardReducer reducer_;
  RankBatch batch_;
  std::int64_t rows_;  ///< of this rank: T above
  std::vector<BlockState> blocks_;
  std::vector<float> last_, rstd_, normed_, logits_, loss_;   ///< input of the final norm and what follows it
  std::vector<float> dx_;                                     ///< gradient of the residual stream [T, d]
  std::vector<float> dn_, dproj_, dqkv_, d_o_, dgated_, dh_;  ///< shared by the blocks
};

}  // namespace cake::train_lm
