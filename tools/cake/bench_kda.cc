#include "bench_kda.h"

#include <cmath>
#include <memory>
#include <type_traits>

#include "bench_kda_data.h"
#include "benchmarks/token_kda.h"
#include "cake/core/parallel.h"
#include "machine.h"

namespace cake::tool {
namespace {

using bench_kda_parts::backward_flops;
using bench_kda_parts::Data;
using bench_kda_parts::forward_flops;
using bench_kda_parts::relative_error;
using benchmarks::TokenResults;
using benchmarks::TokenRun;

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

/// Distance of every result of the package from a token-by-token version; one line with the largest.
template <class Package>
BenchCheck check_against(const std::string& label, const Data<Package>& data, const TokenMemory& token, double limit) {
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

/// The package of the other mode, timed in the same rounds.
template <class Package>
using Other = std::conditional_t<Package::kDeterministic, KdaNondet, KdaDet>;

/// Everything that must outlive the cases.
template <class Package>
struct Bench {
  explicit Bench(const BenchOptions& o)
      : main(o, o.dtype, kOrdinaryGate),
        strong(o, o.dtype, kStrongGate),
        weak(o, o.dtype, kWeakGate),
        fp32(o, DType::kFloat32, kOrdinaryGate),
        bf16(o, DType::kBFloat16, kOrdinaryGate),
        other(o, o.dtype, kOrdinaryGate),
        simd_memory(o),
        plain_memory(o),
        simd(benchmarks::simd_token_kernels(o.isa), main.token_problem()),
        plain(benchmarks::plain_token_kernels(o.isa), main.token_problem()) {}
  Data<Package> main, strong, weak, fp32, bf16;
  Data<Other<Package>> other;
  TokenMemory simd_memory, plain_memory;
  TokenRun simd, plain;
};

template <class Package>
std::vector<BenchCase> kda_cases(const BenchOptions& o, const std::shared_ptr<Bench<Package>>& b) {
  const double fwd = forward_flops(o), bwd = backward_flops(o), both = fwd + bwd;
  const double fwd_bytes = forward_bytes(o, o.dtype), both_bytes = fwd_bytes + backward_bytes(o, o.dtype);
  std::vector<BenchCase> cases;
  const auto add = [&](std::string name, std::string label, double flops, double bytes, std::function<void()> run,
                       int every = 1) -> BenchCase& {
    cases.push_back({std::move(name), std::move(label), flops, bytes, every, std::move(run), {}, {}});
    return cases.back();
  };
  const auto on_threads = [](int threads, auto run) {
    return [threads, run] {
      const ScopedNumThreads scope(threads);
      run();
    };
  };
  add("forward", "forward", fwd, fwd_bytes, [b] { b->main.forward(); }).memory = b->main.forward_memory(o.threads);
  add("forward_backward", "forward + backward (saved, light)", both, both_bytes, [b] {
    b->main.forward_backward();
  }).memory = b->main.forward_backward_memory(o.threads);
  add("forward_backward_tape", "forward + backward (saved, tape)", both, both_bytes, [b] {
    b->main.forward_backward_tape();
  }).memory = b->main.forward_backward_tape_memory(o.threads);
  add("backward_recompute", "backward from the inputs", bwd, backward_bytes(o, o.dtype), [b] {
    b->main.backward_recompute();
  }).memory = b->main.backward_recompute_memory(o.threads);
  const std::string mode = Other<Package>::kMode;
  add(mode + "_forward_backward", "the " + mode + " package: forward + backward (saved, light)", both, both_bytes, [b] {
    b->other.forward_backward();
  }).memory = b->other.forward_backward_memory(o.threads);
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

template <class Package>
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
  add_ratio(report, "tape_over_light", "saved, tape / saved, light, forward + backward",
            paired_time_ratio(at("forward_backward_tape"), both), false, {});
  const BenchCase& other = at((std::string(Other<Package>::kMode) + "_forward_backward").c_str());
  add_ratio(report, "nondet_over_det", "time of nondet / det, forward + backward",
            Package::kDeterministic ? paired_time_ratio(other, both) : paired_time_ratio(both, other), false, {});
  report.notes.push_back(
      "nondet / det: on the CPU they differ in how dA_log and ddt_bias add up, which this problem does not have");
}

}  // namespace

template <class Package>
BenchReport bench_kda(const BenchOptions& options) {
  BenchReport report;
  report.options = options;
  const ScopedNumThreads threads(options.threads);
  const auto bench = std::make_shared<Bench<Package>>(options);
  bench->simd.forward_backward(bench->simd_memory.results());
  bench->plain.forward_backward(bench->plain_memory.results());
  // Two fp32 results may each be 2e-5 from the truth; 16-bit operands round their results once.
  const double limit = options.dtype == DType::kFloat32 ? 5e-5 : 1e-2;
  const auto check = [&](const std::string& label, const auto& data, const TokenMemory& token) {
    report.checks.push_back(check_against(label, data, token, limit));
  };
  bench->main.forward_backward_tape();
  check("token by token, SIMD (saved, tape)", bench->main, bench->simd_memory);
  bench->main.forward_backward();
  check("token by token, SIMD", bench->main, bench->simd_memory);
  check("token by token, plain loops", bench->main, bench->plain_memory);
  bench->other.forward_backward();
  check(std::string("token by token, SIMD (the ") + Other<Package>::kMode + " package)", bench->other,
        bench->simd_memory);
  if (!report.agrees()) return report;
  report.cases = yardsticks(options);
  for (BenchCase& c : kda_cases(options, bench)) report.cases.push_back(std::move(c));
  measure(report.cases, options.repeats);
  add_ratios<Package>(report);
  return report;
}

template BenchReport bench_kda<KdaDet>(const BenchOptions& options);
template BenchReport bench_kda<KdaNondet>(const BenchOptions& options);

}  // namespace cake::tool
