// One head, one document, by hand: with beta = 1, no decay and unit keys the state simply stores v.
#include <cmath>
#include <cstdio>
#include <vector>

#include "cake/kda_det_train.h"

int main() {
  constexpr std::int64_t kTokens = 3, kKey = 2, kValue = 2;
  // Keys e0, e1, e0; each query asks for the key just written.
  std::vector<float> q = {1, 0, 0, 1, 1, 0}, k = q, v = {1, 2, 3, 4, 5, 6};
  std::vector<float> g(kTokens * kKey, 0.0f), beta(kTokens, 1.0f), out(kTokens * kValue, -1.0f);
  using cake::DType;
  using Const = cake::ConstTensorView;
  cake::kda_det_train::Inputs inputs;
  inputs.q = Const::contiguous(q.data(), DType::kFloat32, {1, kTokens, 1, kKey});
  inputs.k = Const::contiguous(k.data(), DType::kFloat32, {1, kTokens, 1, kKey});
  inputs.v = Const::contiguous(v.data(), DType::kFloat32, {1, kTokens, 1, kValue});
  inputs.g = Const::contiguous(g.data(), DType::kFloat32, {1, kTokens, 1, kKey});
  inputs.beta = Const::contiguous(beta.data(), DType::kFloat32, {1, kTokens, 1});
  cake::kda_det_train::Outputs outputs;
  outputs.out = cake::TensorView::contiguous(out.data(), DType::kFloat32, {1, kTokens, 1, kValue});
  cake::kda_det_train::Options options;
  options.scale = 1.0f;
  cake::kda_det_train::forward(inputs, outputs, options);
  std::printf("o =");
  for (const float x : out) std::printf(" %g", static_cast<double>(x));
  std::printf("\n");
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::fabs(out[i] - v[i]) > 1e-6f) return 1;
  }
  return 0;
}
