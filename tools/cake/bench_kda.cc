#include "bench_kda.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "benchmarks/token_kda.h"
#include "cake/core/parallel.h"
#include "cake/kda_det_train.h"
#include "core/simd/simd_kernels.h"
#include "digest.h"
#include "machine.h"

namespace cake::tool {
namespace {

namespace kda = kda_det_train;
using benchmarks::TokenProblem;
using benchmarks::TokenResults;
using benchmarks::TokenRun;

/// Floating-point operations of the chunk form per token and head (chunk 64), the count every rate is quoted with:
/// 163840 and 376832 at K = V = 128. What a backward adds to rebuild chunk states is not counted.
double forward_flops(const BenchOptions& o) {
  const double K = static_cast<double>(o.K), V = static_cast<double>(o.V);
  return static_cast<double>(o.T * o.H) * (64 * (4 * K + 4 * V) + 6 * K * V);
}
double backward_flops(const BenchOptions& o) {
  const double K = static_cast<double>(o.K), V = static_cast<double>(o.V);
  return static_cast<double>(o.T * o.H) * (64 * (8 * K + 10 * V) + 14 * K * V);
}

/// One problem's operands in a dtype, the same values as fp32, and room for results.
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
    kda::Shape shape;
    shape.S = o.T;
    shape.H = shape.HV = o.H;
    shape.K = o.K;
    shape.V = o.V;
    saved_memory_.resize(kda::saved_bytes(shape));
    saved_ = kda::Saved(saved_memory_.data(), saved_memory_.size());
  }

  void forward() { kda::forward(inputs(), outputs(), {}, &workspace_); }
  void forward_for_backward() { kda::forward(inputs(), outputs(), {}, &workspace_, &saved_); }
  void backward() { kda::backward(inputs(), dout(), {}, gradients(), {}, &workspace_, &saved_); }
  void backward_recompute() { kda::backward(inputs(), dout(), {}, gradients(), {}, &workspace_); }
  void forward_backward() {
    forward_for_backward();
    backward();
  }

  /// The same problem for the token-by-token versions.
  TokenProblem token_problem() const {
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

 private:
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

  kda::Inputs inputs() const {
    kda::Inputs in;
    in.q = ConstTensorView::contiguous(q_.data(), dtype_, {1, o_.T, o_.H, o_.K});
    in.k = ConstTensorView::contiguous(k_.data(), dtype_, {1, o_.T, o_.H, o_.K});
    in.v = ConstTensorView::contiguous(v_.data(), dtype_, {1, o_.T, o_.H, o_.V});
    in.g = ConstTensorView::contiguous(g_.data(), DType::kFloat32, {1, o_.T, o_.H, o_.K});
    in.beta = ConstTensorView::contiguous(beta_.data(), dtype_, {1, o_.T, o_.H});
    return in;
  }
  ConstTensorView dout() const { return ConstTensorView::contiguous(dout_.data(), dtype_, {1, o_.T, o_.H, o_.V}); }
  kda::Outputs outputs() {
    return {TensorView::contiguous(out.data(), dtype_, {1, o_.T, o_.H, o_.V}),
            TensorView::contiguous(final_state.data(), DType::kFloat32, {1, o_.H, o_.K, o_.V})};
  }
  kda::Gradients gradients() {
    kda::Gradients g;
    g.dq = TensorView::contiguous(dq.data(), dtype_, {1, o_.T, o_.H, o_.K});
    g.dk = TensorView::contiguous(dk.data(), dtype_, {1, o_.T, o_.H, o_.K});
    g.dv = TensorView::contiguous(dv.data(), dtype_, {1, o_.T, o_.H, o_.V});
    g.dg = TensorView::contiguous(dg.data(), DType::kFloat32, {1, o_.T, o_.H, o_.K});
    g.dbeta = TensorView::contiguous(dbeta.data(), dtype_, {1, o_.T, o_.H});
    return g;
  }

  BenchOptions o_;
  DType dtype_;
  Operand q_, k_, v_, g_, beta_, dout_;
  std::vector<std::byte> saved_memory_;
  kda::Saved saved_;
  kda::Workspace workspace_;
};

/// Room for a token-by-token version's results.
struct TokenMemory {
  explicit TokenMemory(const BenchOptions& o) {
    const auto rows = static_cast<std::size_t>(o.T * o.H), K = static_cast<std::size_t>(o.K);
    const auto V = static_cast<std::size_t>(o.V), H = static_cast<std::size_t>(o.H);
    for (auto* values : {&out, &dv}) values->resize(rows * V);
    for (auto* values : {&dq, &dk, &dg}) values->resize(rows * K);
    dbeta.resize(rows);
    final_state.resize(H * K * V);
  }
  TokenResults results() {
    return {out.data(), final_state.data(), dq.data(), dk.data(), dv.data(), dg.data(), dbeta.data()};
  }
  std::vector<float> out, final_state, dq, dk, dv, dg, dbeta;
};

double relative_error(const std::vector<float>& x, const std::vector<float>& ref) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < ref.size(); ++i) {
    const double d = static_cast<double>(x[i]) - ref[i];
    error += d * d;
    norm += static_cast<double>(ref[i]) * ref[i];
  }
  // A NaN on either side must fail the check.
  return norm == 0 ? (error == 0 ? 0.0 : 1.0) : error >= 0 ? std::sqrt(error / norm) : 1.0;
}

/// Distance of every result of the package from a token-by-token version; one line with the largest.
BenchCheck check_against(const std::string& label, const Data& data, const TokenMemory& token, double limit) {
  BenchCheck check{label, 0, limit};
  const auto see = [&](const std::vector<float>& x, const std::vector<float>& ref) {
    check.error = std::max(check.error, relative_error(x, ref));
  };
  see(data.floats(data.out), token.out);
  see(data.floats(data.final_state, true), token.final_state);
  see(data.floats(data.dq), token.dq);
  see(data.floats(data.dk), token.dk);
  see(data.floats(data.dv), token.dv);
  see(data.floats(data.dg, true), token.dg);
  see(data.floats(data.dbeta), token.dbeta);
  return check;
}

/// Bytes a forward must read and write, operands and results once.
double forward_bytes(const BenchOptions& o, DType dtype) {
  const auto element = static_cast<double>(dtype_size(dtype));
  return static_cast<double>(o.T * o.H) *
         (static_cast<double>(2 * o.K + 2 * o.V + 1) * element + 4.0 * static_cast<double>(o.K));
}
/// The backward's: operands and dout again, and every gradient.
double backward_bytes(const BenchOptions& o, DType dtype) {
  const auto element = static_cast<double>(dtype_size(dtype));
  return static_cast<double>(o.T * o.H) *
         (static_cast<double>(4 * o.K + 3 * o.V + 2) * element + 8.0 * static_cast<double>(o.K));
}

constexpr float kOrdinaryGate = -0.75f, kStrongGate = -4.0f, kWeakGate = -0.05f;

/// Everything that must outlive the cases.
struct Bench {
  explicit Bench(const BenchOptions& o)
      : main(o, o.dtype, kOrdinaryGate),
        strong(o, o.dtype, kStrongGate),
        weak(o, o.dtype, kWeakGate),
        fp32(o, DType::kFloat32, kOrdinaryGate),
        bf16(o, DType::kBFloat16, kOrdinaryGate),
        simd_memory(o),
        plain_memory(o),
        simd(benchmarks::simd_token_kernels(o.isa), main.token_problem()),
        plain(benchmarks::plain_token_kernels(o.isa), main.token_problem()) {}
  Data main, strong, weak, fp32, bf16;
  TokenMemory simd_memory, plain_memory;
  TokenRun simd, plain;
};

std::vector<BenchCase> kda_cases(const BenchOptions& o, const std::shared_ptr<Bench>& b) {
  const double fwd = forward_flops(o), bwd = backward_flops(o), both = fwd + bwd;
  const double fwd_bytes = forward_bytes(o, o.dtype), both_bytes = fwd_bytes + backward_bytes(o, o.dtype);
  std::vector<BenchCase> cases;
  const auto add = [&](const char* name, const char* label, double flops, double bytes, std::function<void()> run,
                       int every = 1) {
    cases.push_back({name, label, flops, bytes, every, std::move(run), {}});
  };
  const auto on_threads = [](int threads, auto run) {
    return [threads, run] {
      const ScopedNumThreads scope(threads);
      run();
    };
  };
  add("forward", "forward", fwd, fwd_bytes, [b] { b->main.forward(); });
  add("forward_backward", "forward + backward (saved, light)", both, both_bytes, [b] { b->main.forward_backward(); });
  add("backward_recompute", "backward from the inputs", bwd, backward_bytes(o, o.dtype),
      [b] { b->main.backward_recompute(); });
  add("weak_gates", "forward + backward, weak gates (-0.05)", both, both_bytes, [b] { b->weak.forward_backward(); });
  add("strong_gates", "forward + backward, strong gates (-4)", both, both_bytes, [b] { b->strong.forward_backward(); });
  add("fp32", "forward + backward, fp32", both, forward_bytes(o, DType::kFloat32) + backward_bytes(o, DType::kFloat32),
      [b] { b->fp32.forward_backward(); });
  add("bf16", "forward + backward, bf16", both,
      forward_bytes(o, DType::kBFloat16) + backward_bytes(o, DType::kBFloat16), [b] { b->bf16.forward_backward(); });
  if (usable_cores() >= 2) {
    add("threads_1", "forward + backward, 1 thread", both, both_bytes,
        on_threads(1, [b] { b->main.forward_backward(); }));
    add("threads_2", "forward + backward, 2 threads", both, both_bytes,
        on_threads(2, [b] { b->main.forward_backward(); }));
  }
  const int seldom = std::max(1, o.repeats / 3);
  add("token_forward", "token by token, SIMD: forward", fwd, 0, [b] { b->simd.forward(b->simd_memory.results()); });
  add("token_forward_backward", "token by token, SIMD: forward + backward", both, 0,
      [b] { b->simd.forward_backward(b->simd_memory.results()); });
  add(
      "plain_forward", "token by token, plain loops: forward", fwd, 0,
      [b] { b->plain.forward(b->plain_memory.results()); }, seldom);
  add(
      "plain_forward_backward", "token by token, plain loops: forward + backward", both, 0,
      [b] { b->plain.forward_backward(b->plain_memory.results()); }, seldom);
  return cases;
}

void add_ratios(BenchReport& report) {
  const auto at = [&](const char* name) -> const BenchCase& { return *report.find(name); };
  const bool wide = report.options.isa == CpuIsa::kV4;
  const BenchCase &gemm = at("gemm_64x128x128"), &both = at("forward_backward");
  add_ratio(report, "forward_of_gemm", "forward / GEMM rate", paired_rate_ratio(at("forward"), gemm), true,
            wide ? 0.55 : 0.65);
  add_ratio(report, "forward_backward_of_gemm", "forward + backward / GEMM rate", paired_rate_ratio(both, gemm), true,
            wide ? 0.45 : 0.55);
  add_ratio(report, "over_token", "token by token, SIMD / chunk form, forward + backward",
            paired_time_ratio(at("token_forward_backward"), both), true, 2.5);
  add_ratio(report, "over_plain", "token by token, plain loops / chunk form, forward + backward",
            paired_time_ratio(at("plain_forward_backward"), both), true, 10.0);
  add_ratio(report, "strong_over_weak", "strong gates / weak gates",
            paired_time_ratio(at("strong_gates"), at("weak_gates")), false, 1.2);
  if (report.find("threads_2") != nullptr) {
    add_ratio(report, "two_threads", "1 thread / 2 threads", paired_time_ratio(at("threads_1"), at("threads_2")), true,
              1.7);
    if (const BenchCase* two = report.find("fma_peak_threads_2")) {
      add_ratio(report, "two_threads_fma", "  the same for the FMA loop: what the machine gives now",
                paired_rate_ratio(*two, at("fma_peak")), true, {});
    }
  } else {
    report.notes.push_back("1 thread / 2 threads: this process has one core");
  }
  add_ratio(report, "bf16_over_fp32", "bf16 / fp32", paired_time_ratio(at("bf16"), at("fp32")), false, 1.15);
  add_ratio(report, "token_forward_over", "token by token, SIMD / chunk form, forward",
            paired_time_ratio(at("token_forward"), at("forward")), true, {});
  add_ratio(report, "recompute", "backward from the inputs / (forward + backward)",
            paired_time_ratio(at("backward_recompute"), both), false, {});
}

}  // namespace

BenchReport bench_kda(const BenchOptions& options) {
  BenchReport report;
  report.options = options;
  const ScopedNumThreads threads(options.threads);
  const auto bench = std::make_shared<Bench>(options);
  bench->main.forward_backward();
  bench->simd.forward_backward(bench->simd_memory.results());
  bench->plain.forward_backward(bench->plain_memory.results());
  // Two fp32 results may each be 2e-5 from the truth; 16-bit operands round their results once.
  const double limit = options.dtype == DType::kFloat32 ? 5e-5 : 1e-2;
  report.checks.push_back(check_against("token by token, SIMD", bench->main, bench->simd_memory, limit));
  report.checks.push_back(check_against("token by token, plain loops", bench->main, bench->plain_memory, limit));
  if (!report.agrees()) return report;
  report.cases = yardsticks(options);
  for (BenchCase& c : kda_cases(options, bench)) report.cases.push_back(std::move(c));
  measure(report.cases, options.repeats);
  add_ratios(report);
  return report;
}

}  // namespace cake::tool
