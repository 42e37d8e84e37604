// What `cake bench` measures and how its figures are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/cpu_isa.h"
#include "cake/core/dtype.h"

namespace cake::tool {

/// The problem and the conditions the user asked for.
struct BenchOptions {
  std::int64_t T = 4096, H = 4, K = 128, V = 128;
  DType dtype = DType::kFloat32;
  int threads = 1;
  CpuIsa isa = CpuIsa::kBase;
  int repeats = 9;

  /// The problem the stated targets belong to.
  bool is_stated_problem() const;
};

/// Reads "T=4096,H=4,K=128,V=128" (any subset, any order) into options. Throws InvalidArgument naming the bad part.
void parse_shape(const std::string& text, BenchOptions& options);

/// What a case of a package takes besides operands and results; none where it is not counted.
struct BenchMemory {
  std::optional<std::size_t> saved, workspace;
};

/// One thing that is timed. A round times every case once, so that a drift of the clock hits all alike.
struct BenchCase {
  std::string name;   ///< for programs: "forward"
  std::string label;  ///< for people
  double flops = 0;   ///< floating-point operations of the formula; 0: none are counted
  double bytes = 0;   ///< bytes that must move at least; 0: not counted
  int every = 1;      ///< slow cases run in every n-th round only
  std::function<void()> run;
  std::vector<std::optional<double>> seconds;  ///< one per round
  BenchMemory memory;

  /// The samples taken, ascending.
  std::vector<double> sorted() const;
  double median() const;
  double gflops() const { return flops / median() * 1e-9; }
};

/// A ratio of two cases and what it is held against.
struct BenchRatio {
  std::string name, label;
  double value = 0;
  bool at_least = true;          ///< the target is a lower bound
  std::optional<double> target;  ///< none: information only
  std::string verdict;           ///< "met", "missed", or why there is none
};

/// Two results that must agree.
struct BenchCheck {
  std::string label;
  double error = 0, limit = 0;  ///< relative L2 distance
  bool ok() const { return error <= limit; }
};

/// Everything one `cake bench` found. With a failed check there are no cases.
struct BenchReport {
  std::string module;
  BenchOptions options;
  std::vector<BenchCheck> checks;
  std::vector<BenchCase> cases;
  std::vector<BenchRatio> ratios;
  std::vector<std::string> notes;  ///< what could not be measured here, what a figure leaves out

  const BenchCase* find(const std::string& name) const;
  bool agrees() const;
};

/// Runs all cases once to warm up, then `rounds` times in turn.
void measure(std::vector<BenchCase>& cases, int rounds);
/// Median over the rounds in which both were timed of seconds(a) / seconds(b).
double paired_time_ratio(const BenchCase& a, const BenchCase& b);
/// Median over such rounds of rate(a) / rate(b), rates by flops.
double paired_rate_ratio(const BenchCase& a, const BenchCase& b);
/// Adds a ratio with its verdict; a target is judged only where it was stated.
void add_ratio(BenchReport& report, std::string name, std::string label, double value, bool at_least,
               std::optional<double> target);

/// The machine's ceilings on options.threads threads: FMA peak, fixed-order GEMM at 64x128x128, memory copy. With one
/// thread also the FMA peak of two: what a second thread can give on this machine at this time.
std::vector<BenchCase> yardsticks(const BenchOptions& options);

/// Tables for people, JSON for programs.
void print_bench(const BenchReport& report);
void print_bench_json(const BenchReport& report);

}  // namespace cake::tool
