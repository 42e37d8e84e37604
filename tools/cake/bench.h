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
#include "cake/kcp.h"
#include "kcp_cuts.h"

namespace cake::tool {

/// The problem and the conditions the user asked for.
struct BenchOptions {
  std::int64_t T = 4096, H = 4, K = 128, V = 128;
  DType dtype = DType::kFloat32;
  int threads = 1;
  CpuIsa isa = CpuIsa::kBase;
  int repeats = 9;
  int ranks = 2;  ///< packages over ranks: this and what follows
  kcp::Exchange exchange = kcp::Exchange::kAuto;
  BenchCut cut = BenchCut::kSegment;

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
  std::function<double()> timed_run{};  ///< in place of run: runs and says how many seconds count

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

/// What one rank moves in a forward and backward: as its package says beforehand, and as its communicator counted.
struct BenchRankBytes {
  kcp::CommBytes said;
  kcp::CommPhase forward_counted, backward_counted;
  bool ok() const { return said.forward() == forward_counted && said.backward() == backward_counted; }
};

/// Everything one `cake bench` found. With a failed check there are no cases.
struct BenchReport {
  std::string module;
  BenchOptions options;
  std::vector<BenchCheck> checks;
  std::vector<BenchCase> cases;
  std::vector<BenchRatio> ratios;
  std::vector<std::int64_t> cut_points;      ///< packages over ranks: where the rows are cut
  std::vector<BenchRankBytes> rank_bytes{};  ///< one per rank; empty for packages on one rank
  std::vector<std::string> notes;            ///< what could not be measured here, what a figure leaves out

  const BenchCase* find(const std::string& name) const;
  /// Same results, and the bytes moved are those said beforehand.
  bool agrees() const;
};

/// Bytes that a package over ranks moves for one problem, summed over ranks.
struct CommRow {
  std::int64_t T = 0, documents = 0, segments = 0;
  int ranks = 0;
  kcp::Exchange exchange = kcp::Exchange::kRelay;
  kcp::CommBytes bytes;  ///< `sent` and `received` are equal, summed

  int borders() const { return ranks - 1; }
};

/// What `cake bench --comm` shows.
struct CommReport {
  std::string module;
  BenchOptions options;  ///< T is that of the rows that vary the number of documents
  std::vector<CommRow> by_length, by_documents;
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
/// The same of `cake bench --comm`.
void print_comm(const CommReport& report);
void print_comm_json(const CommReport& report);

}  // namespace cake::tool
