// The operands, results and memory of one problem of `cake bench` for a KDA package.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "bench.h"
#include "benchmarks/token_kda.h"
#include "cake/core/tensor.h"
#include "digest.h"

namespace cake::tool::bench_kda_parts {

/// Floating-point operations of the chunk form per token and head (chunk 64), the count every rate is quoted with:
/// 163840 and 376832 at K = V = 128. What a backward adds to rebuild chunk states is not counted.
inline double forward_flops(const BenchOptions& o) {
  const double K = static_cast<double>(o.K), V = static_cast<double>(o.V);
  return static_cast<double>(o.T * o.H) * (64 * (4 * K + 4 * V) + 6 * K * V);
}
/// The backward's.
inline double backward_flops(const BenchOptions& o) {
  const double K = static_cast<double>(o.K), V = static_cast<double>(o.V);
  return static_cast<double>(o.T * o.H) * (64 * (8 * K + 10 * V) + 14 * K * V);
}

/// Distance of a result from another in units of the other's norm.
inline double relative_error(const std::vector<float>& x, const std::vector<float>& ref) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < ref.size(); ++i) {
    const double d = static_cast<double>(x[i]) - ref[i];
    error += d * d;
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  // A NaN on either side must fail the check.
  return norm == 0 ? (error == 0 ? 0.0 : 1.0) : error >= 0 ? std::sqrt(error / norm) : 1.0;
}

/// One problem's operands in a dtype, the same values as fp32, and room for a package's results.
template <class Package>
class Data {
 public:
  /// `gate` is the mean log decay. The values are rounded to `dtype` once, for every version of the computation.
  Data(const BenchOptions& o, DType dtype, float gate) : o_(o), dtype_(dtype) {
    Random random(2026);
    const std::int64_t rows = o.T * o.H;
    const float row = 1.0f / std::sqrt(static_cast<float>(o.K));  // rows of about unit length
    const auto bell = [&](float factor) { return [&random, factor] { return factor * random.bell(); }; };
    fill(q_, rows * o.K, bell(row));
    fill(k_, rows * o.K, bell(row));
    fill(v_, rows * o.V, bell(1.0f));
    fill(dout_, rows * o.V, bell(1.0f));
    fill(beta_, rows, [&] { return random.uniform(); });
    g_.values.resize(static_cast<std::size_t>(rows * o.K));
    for (float& g : g_.values) g = 2.0f * gate * random.uniform();
    const auto element = static_cast<std::size_t>(dtype_size(dtype));
    for (auto* bytes : {&out, &dv}) bytes->resize(static_cast<std::size_t>(rows * o.V) * element);
    for (auto* bytes : {&dq, &dk}) bytes->resize(static_cast<std::size_t>(rows * o.K) * element);
    dbeta.resize(static_cast<std::size_t>(rows) * element);
    dg.resize(static_cast<std::size_t>(rows * o.K) * sizeof(float));
    final_state.resize(static_cast<std::size_t>(o.H * o.K * o.V) * sizeof(float));
    saved_memory_.resize(saved_bytes(shape()));
    saved_ = Saved(saved_memory_.data(), saved_memory_.size());
  }

  void forward() { Package::forward(inputs(), outputs(), {}, &workspace_, nullptr); }
  void forward_backward() {
    Package::forward(inputs(), outputs(), {}, &workspace_, &saved_);
    Package::backward(inputs(), dout(), {}, gradients(), {}, &workspace_, &saved_);
  }
  void backward_recompute() { Package::backward(inputs(), dout(), {}, gradients(), {}, &workspace_, nullptr); }
  /// The tape, several times larger than the light saved set, is allocated by the first call.
  void forward_backward_tape() {
    const Options options = tape();
    if (tape_memory_.empty()) {
      tape_memory_.resize(saved_bytes(shape(), options));
      tape_ = Saved(tape_memory_.data(), tape_memory_.size());
    }
    Package::forward(inputs(), outputs(), options, &workspace_, &tape_);
    Package::backward(inputs(), dout(), {}, gradients(), options, &workspace_, &tape_);
  }

  /// What each of these takes on `threads` threads.
  BenchMemory forward_memory(int threads) const {
    return {std::nullopt, forward_workspace_bytes(shape(), Options(), false, threads)};
  }
  BenchMemory forward_backward_memory(int threads) const { return memory(Options(), threads); }
  BenchMemory backward_recompute_memory(int threads) const {
    return {std::nullopt, backward_workspace_bytes(shape(), true, Options(), threads)};
  }
  BenchMemory forward_backward_tape_memory(int threads) const { return memory(tape(), threads); }

  /// The same problem for the token-by-token versions.
  benchmarks::TokenProblem token_problem() const {
    const float scale = 1.0f / std::sqrt(static_cast<float>(o_.K));
    return {o_.T,
            o_.H,
            o_.K,
            o_.V,
            scale,
            q_.values.data(),
            k_.values.data(),
            v_.values.data(),
            g_.values.data(),
            beta_.values.data(),
            dout_.values.data()};
  }

  /// A result of this data's dtype (dg, final_state: fp32) as fp32.
  std::vector<float> floats(const std::vector<std::byte>& bytes, bool always_fp32 = false) const {
    const bool wide = always_fp32 || dtype_ == DType::kFloat32;
    std::vector<float> values(bytes.size() / (wide ? 4 : 2));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (wide) {
        std::memcpy(&values[i], bytes.data() + 4 * i, 4);
      } else {
        std::uint16_t half = 0;
        std::memcpy(&half, bytes.data() + 2 * i, 2);
        values[i] = dtype_ == DType::kBFloat16 ? bf16_to_float(half) : fp16_to_float(half);
      }
    }
    return values;
  }

  std::vector<std::byte> out, final_state, dq, dk, dv, dg, dbeta;

  using Inputs = typename Package::Inputs;
  using Outputs = typename Package::Outputs;
  using Gradients = typename Package::Gradients;

  /// The views that the calls get.
  Inputs inputs() const {
    Inputs in;
    in.q = ConstTensorView::contiguous(q_.data(), dtype_, {1, o_.T, o_.H, o_.K});
    in.k = ConstTensorView::contiguous(k_.data(), dtype_, {1, o_.T, o_.H, o_.K});
    in.v = ConstTensorView::contiguous(v_.data(), dtype_, {1, o_.T, o_.H, o_.V});
    in.g = ConstTensorView::contiguous(g_.data(), DType::kFloat32, {1, o_.T, o_.H, o_.K});
    in.beta = ConstTensorView::contiguous(beta_.data(), dtype_, {1, o_.T, o_.H});
    return in;
  }
  ConstTensorView dout() const { return ConstTensorView::contiguous(dout_.data(), dtype_, {1, o_.T, o_.H, o_.V}); }
  Outputs outputs() {
    return {TensorView::contiguous(out.data(), dtype_, {1, o_.T, o_.H, o_.V}),
            TensorView::contiguous(final_state.data(), DType::kFloat32, {1, o_.H, o_.K, o_.V})};
  }
  Gradients gradients() {
    Gradients g;
    g.dq = TensorView::contiguous(dq.data(), dtype_, {1, o_.T, o_.H, o_.K});
    g.dk = TensorView::contiguous(dk.data(), dtype_, {1, o_.T, o_.H, o_.K});
    g.dv = TensorView::contiguous(dv.data(), dtype_, {1, o_.T, o_.H, o_.V});
    g.dg = TensorView::contiguous(dg.data(), DType::kFloat32, {1, o_.T, o_.H, o_.K});
    g.dbeta = TensorView::contiguous(dbeta.data(), dtype_, {1, o_.T, o_.H});
    return g;
  }

 private:
  using Options = typename Package::Options;
  using Saved = typename Package::Saved;
  using Shape = typename Package::Shape;
  using Workspace = typename Package::Workspace;

  struct Operand {
    std::vector<float> values;
    std::vector<std::uint16_t> halves;  // empty for fp32
    const void* data() const { return halves.empty() ? static_cast<const void*>(values.data()) : halves.data(); }
  };

  template <class Draw>
  void fill(Operand& operand, std::int64_t count, Draw draw) {
    operand.values.resize(static_cast<std::size_t>(count));
    for (float& x : operand.values) {
      x = draw();
      if (dtype_ == DType::kFloat32) continue;
      const std::uint16_t half = dtype_ == DType::kBFloat16 ? float_to_bf16(x) : float_to_fp16(x);
      operand.halves.push_back(half);
      x = dtype_ == DType::kBFloat16 ? bf16_to_float(half) : fp16_to_float(half);
    }
  }

  static Options tape() {
    Options options;
    options.save_mode = Package::SaveMode::kTape;
    return options;
  }
  Shape shape() const {
    Shape shape;
    shape.S = o_.T;
    shape.H = shape.HV = o_.H;
    shape.K = o_.K;
    shape.V = o_.V;
    return shape;
  }
  BenchMemory memory(const Options& options, int threads) const {
    return {saved_bytes(shape(), options), std::max(forward_workspace_bytes(shape(), options, true, threads),
                                                    backward_workspace_bytes(shape(), false, options, threads))};
  }

  BenchOptions o_;
  DType dtype_;
  Operand q_, k_, v_, g_, beta_, dout_;
  std::vector<std::byte> saved_memory_, tape_memory_;
  Saved saved_, tape_;
  Workspace workspace_;
};

}  // namespace cake::tool::bench_kda_parts
