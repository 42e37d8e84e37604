// The parameters of the model as one flat fp32 array and a table of what lies where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cake::train_lm {

/// Architecture. validate() says what is accepted.
struct ModelConfig {
  int layers = 2;
  int width = 128;          ///< of the residual stream
  int heads = 2;            ///< KDA heads; K = V = width / heads
  bool ablate_kda = false;  ///< KDA's output is zero

  int head_dim() const { return width / heads; }
  /// Hidden width of the SwiGLU MLP: 8/3 of the width, rounded up to a multiple of 32.
  int mlp_width() const { return (8 * width / 3 + 31) / 32 * 32; }
  /// Columns of the fused input projection: q, k, v, raw gate, output gate, beta.
  int projection_width() const { return 5 * width + heads; }
  /// Throws InvalidArgument naming the field.
  void validate() const;
};

/// One parameter tensor.
struct Parameter {
  std::string name;                 ///< "layers.0.kda.in_proj"
  std::vector<std::int64_t> shape;  ///< row-major
  std::int64_t offset = 0;          ///< into the flat array; a multiple of 16
  std::int64_t numel = 0;
  bool decays = false;  ///< weight decay applies (matrices and convolutions; not norms, biases, A_log)
};

/// The tensors of one block, by offset.
struct BlockOffsets {
  std::int64_t norm1, in_proj, conv, A_log, dt_bias, gated_norm, out_proj, norm2, mlp_in, mlp_out;
};

/// Layout of every parameter. The flat array has gaps of zeros between tensors so that each starts at a multiple of 16.
class ParameterTable {
 public:
  explicit ParameterTable(const ModelConfig& config);

  const std::vector<Parameter>& all() const { return all_; }
  /// Floats of the flat array.
  std::int64_t size() const { return size_; }
  /// Trainable numbers, gaps not counted.
  std::int64_t count() const;

  std::int64_t embedding, final_norm, head;
  std::vector<BlockOffsets> blocks;

 private:
  std::int64_t add(std::string name, std::vector<std::int64_t> shape, bool decays);

  std::vector<Parameter> all_;
  std::int64_t size_ = 0;
};

/// Initial values: uniform with the usual variances (docs/train.md), from `seed` alone.
std::vector<float> initial_parameters(const ParameterTable& table, const ModelConfig& config, std::uint64_t seed);

}  // namespace cake::train_lm
