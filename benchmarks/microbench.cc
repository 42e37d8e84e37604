// Google Benchmark over the kernels of core, per instruction-set level of this machine: the elementary functions, the
// conversions, the 64x128x128 panel product and the dense GEMM. `cake bench` measures the packages.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "cake/core/cpu_isa.h"
#include "core/fpenv.h"
#include "core/gemm.h"
#include "core/simd/simd_kernels.h"

namespace {

using cake::CpuIsa;
using cake::SimdKernels;

constexpr std::int64_t kElements = 4096;

/// Numbers in (0, 1]: valid for every function.
std::vector<float> numbers(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101 + 1) / 101.0f;
  return x;
}

using Function = void (*)(const float*, float*, std::int64_t);

void run_function(benchmark::State& state, Function function) {
  const cake::ScopedFpEnv env;
  const std::vector<float> x = numbers(kElements);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    function(x.data(), y.data(), kElements);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kElements);
}

void run_to_half(benchmark::State& state, void (*convert)(const float*, std::uint16_t*, std::int64_t)) {
  const std::vector<float> x = numbers(kElements);
  std::vector<std::uint16_t> y(x.size());
  for (auto _ : state) {
    convert(x.data(), y.data(), kElements);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kElements);
}

void run_panel_gemm(benchmark::State& state, const SimdKernels* kernels) {
  const std::vector<float> a = numbers(64 * 128), b = numbers(128 * 128);
  std::vector<float> c(64 * 128);
  for (auto _ : state) {
    kernels->panel_gemm_64x128x128(a.data(), b.data(), c.data(), 1);
    benchmark::DoNotOptimize(c.data());
    benchmark::ClobberMemory();
  }
  state.counters["flops"] = benchmark::Counter(2.0 * 64 * 128 * 128, benchmark::Counter::kIsIterationInvariantRate);
}

void run_dense_gemm(benchmark::State& state, CpuIsa isa) {
  const cake::ScopedCpuIsa scope(isa);
  const std::int64_t n = state.range(0);
  const std::vector<float> a = numbers(n * n), b = numbers(n * n);
  std::vector<float> c(static_cast<std::size_t>(n * n));
  for (auto _ : state) {
    cake::dense_gemm(n, n, n, {a.data(), n, 1}, {b.data(), n, 1}, c.data(), n, false);
    benchmark::DoNotOptimize(c.data());
    benchmark::ClobberMemory();
  }
  state.counters["flops"] =
      benchmark::Counter(2.0 * static_cast<double>(n * n * n), benchmark::Counter::kIsIterationInvariantRate);
}

void register_level(CpuIsa isa) {
  const SimdKernels& k = cake::simd_kernels(isa);
  const std::string level = std::string("/") + cake::cpu_isa_name(isa);
  const std::pair<const char*, Function> functions[] = {{"exp", k.exp},           {"log", k.log},
                                                        {"log1p", k.log1p},       {"sigmoid", k.sigmoid},
                                                        {"softplus", k.softplus}, {"rsqrt", k.rsqrt}};
  for (const auto& [name, function] : functions) {
    benchmark::RegisterBenchmark((name + level).c_str(), run_function, function);
  }
  benchmark::RegisterBenchmark(("float_to_bf16" + level).c_str(), run_to_half, k.float_to_bf16);
  benchmark::RegisterBenchmark(("float_to_fp16" + level).c_str(), run_to_half, k.float_to_fp16);
  benchmark::RegisterBenchmark(("panel_gemm_64x128x128" + level).c_str(), run_panel_gemm, &k);
  benchmark::RegisterBenchmark(("dense_gemm" + level).c_str(), run_dense_gemm, isa)->Arg(128)->Arg(512);
}

}  // namespace

int main(int argc, char** argv) {
  for (const CpuIsa isa : cake::supported_cpu_isas()) register_level(isa);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
