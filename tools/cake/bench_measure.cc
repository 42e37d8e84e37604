// Timing and statistics of `cake bench`, and the ceilings of the machine.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "bench.h"
#include "cake/core/parallel.h"
#include "core/parallel.h"
#include "core/simd/simd_kernels.h"
#include "digest.h"
#include "machine.h"

namespace cake::tool {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median_of(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double timed(const BenchCase& c) {
  if (c.timed_run) return c.timed_run();
  const double start = now();
  c.run();
  return now() - start;
}

double timed(const std::function<void()>& run) {
  const double start = now();
  run();
  return now() - start;
}

/// Ceilings are timed in pieces of about this length.
constexpr double kPieceSeconds = 0.03;

/// Repetitions of `run(n)` that take about one piece.
template <class Run>
std::int64_t repetitions(Run run) {
  std::int64_t n = 1;
  for (;;) {
    const double seconds = timed([&] { run(n); });
    if (seconds > kPieceSeconds / 2) return std::max<std::int64_t>(1, std::llround(n * kPieceSeconds / seconds));
    n *= 2;
  }
}

/// Aligned floats, one block per thread.
class Blocks {
 public:
  Blocks(int threads, std::int64_t floats) : floats_(floats), memory_(static_cast<std::size_t>(threads * floats + 16)) {
    Random random(7);
    for (float& x : memory_) x = random.uniform() - 0.5f;
  }
  float* at(std::int64_t thread) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 / sizeof(float) + thread * floats_;
  }

 private:
  std::int64_t floats_;
  std::vector<float> memory_;
};

constexpr std::int64_t kGemmA = 64 * 128, kGemmB = 128 * 128, kGemmC = 64 * 128;
constexpr double kGemmFlops = 2.0 * 64 * 128 * 128;
constexpr std::int64_t kCopyFloats = 8 << 20;  // 32 MiB each way: beyond the caches of most machines

}  // namespace

bool BenchOptions::is_stated_problem() const {
  return T == 4096 && H == 4 && K == 128 && V == 128 && dtype == DType::kFloat32 && threads == 1 &&
         isa != CpuIsa::kBase;
}

std::vector<double> BenchCase::sorted() const {
  std::vector<double> values;
  for (const auto& sample : seconds) {
    if (sample) values.push_back(*sample);
  }
  std::sort(values.begin(), values.end());
  return values;
}

double BenchCase::median() const { return median_of(sorted()); }

const BenchCase* BenchReport::find(const std::string& name) const {
  const auto found = std::find_if(cases.begin(), cases.end(), [&](const BenchCase& c) { return c.name == name; });
  return found == cases.end() ? nullptr : &*found;
}

bool BenchReport::agrees() const {
  const auto ok = [](const auto& x) { return x.ok(); };
  return std::all_of(checks.begin(), checks.end(), ok) && std::all_of(rank_bytes.begin(), rank_bytes.end(), ok);
}

void measure(std::vector<BenchCase>& cases, int rounds) {
  const bool progress = isatty(STDERR_FILENO) == 1;
  for (BenchCase& c : cases) {
    if (progress) std::fprintf(stderr, "\r\033[Kwarm-up: %s", c.label.c_str());
    timed(c);
    c.seconds.assign(static_cast<std::size_t>(rounds), std::nullopt);
  }
  for (int round = 0; round < rounds; ++round) {
    if (progress) std::fprintf(stderr, "\r\033[Kround %d of %d", round + 1, rounds);
    for (BenchCase& c : cases) {
      if (round % c.every == 0) c.seconds[static_cast<std::size_t>(round)] = timed(c);
    }
  }
  if (progress) std::fprintf(stderr, "\r\033[K");
}

double paired_time_ratio(const BenchCase& a, const BenchCase& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) {
    if (a.seconds[i] && b.seconds[i]) ratios.push_back(*a.seconds[i] / *b.seconds[i]);
  }
  return median_of(std::move(ratios));
}

double paired_rate_ratio(const BenchCase& a, const BenchCase& b) { return a.flops / b.flops * paired_time_ratio(b, a); }

void add_ratio(BenchReport& report, std::string name, std::string label, double value, bool at_least,
               std::optional<double> target) {
  BenchRatio ratio{std::move(name), std::move(label), value, at_least, target, "no target"};
  if (target && !report.options.is_stated_problem()) {
    ratio.verdict = "stated for T=4096,H=4,K=128,V=128, fp32, v3 or v4";
  } else if (target) {
    ratio.verdict = (at_least ? value >= *target : value <= *target) ? "met" : "missed";
  }
  report.ratios.push_back(std::move(ratio));
}

std::vector<BenchCase> yardsticks(const BenchOptions& options) {
  const SimdKernels& kernels = simd_kernels(options.isa);
  const int threads = options.threads;
  std::vector<BenchCase> cases;

  const std::int64_t fma_rounds = repetitions([&](std::int64_t n) { kernels.fma_loop(n); });
  const auto add_fma = [&](const char* name, const char* label, int on) {
    BenchCase fma{name, label, 0, 0, 1, {}, {}, {}};
    fma.flops = kernels.fma_loop(1) * static_cast<double>(fma_rounds) * on;
    fma.run = [&kernels, fma_rounds, on] {
      parallel_for(on, on, [&](std::int64_t, int) { kernels.fma_loop(fma_rounds); });
    };
    cases.push_back(fma);
  };
  add_fma("fma_peak", "FMA peak (registers)", threads);
  if (threads == 1 && usable_cores() >= 2) add_fma("fma_peak_threads_2", "FMA peak, 2 threads", 2);

  const auto blocks = std::make_shared<Blocks>(threads, kGemmA + kGemmB + kGemmC);
  const auto product = [&kernels, blocks](std::int64_t thread, std::int64_t n) {
    float* a = blocks->at(thread);
    kernels.panel_gemm_64x128x128(a, a + kGemmA, a + kGemmA + kGemmB, static_cast<int>(n));
  };
  const std::int64_t gemm_rounds = repetitions([&](std::int64_t n) { product(0, n); });
  BenchCase gemm{"gemm_64x128x128", "fixed-order GEMM 64x128x128", 0, 0, 1, {}, {}, {}};
  gemm.flops = kGemmFlops * static_cast<double>(gemm_rounds) * threads;
  gemm.run = [product, gemm_rounds, threads] {
    parallel_for(threads, threads, [&](std::int64_t task, int) { product(task, gemm_rounds); });
  };
  cases.push_back(gemm);

  const auto memory = std::make_shared<Blocks>(2, kCopyFloats);
  BenchCase copy{"memory_copy", "memory copy", 0, 2.0 * kCopyFloats * sizeof(float), 1, {}, {}, {}};
  copy.run = [memory, threads] {
    const std::int64_t part = kCopyFloats / threads;
    parallel_for(threads, threads, [&](std::int64_t task, int) {
      std::memcpy(memory->at(1) + task * part, memory->at(0) + task * part, static_cast<std::size_t>(part) * 4);
    });
  };
  cases.push_back(copy);
  return cases;
}

}  // namespace cake::tool
