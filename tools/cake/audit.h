// What `cake audit` asks of a package: run one of its problems under one variation, and name every result's digest.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cake/core/cpu_isa.h"
#include "cake/kcp.h"
#include "kcp_cuts.h"

namespace cake::tool {

/// How the documents of a problem are presented.
enum class Packing {
  kTogether,  ///< in their own order
  kReversed,  ///< last document first
  kRotated,   ///< the first half of the documents last
  kAlone,     ///< one call per document
};

/// How a package over ranks runs a problem.
struct RanksVariation {
  int ranks = 1;
  kcp::Layout layout = kcp::Layout::kContiguous;
  std::optional<std::uint64_t> cuts;  ///< seed of random cuts, in place of the layout
  kcp::Exchange exchange = kcp::Exchange::kAuto;
  std::optional<kcp::CheckpointKeep> handle;  ///< the forward runs twice with a recompute handle that keeps this
  bool save_transfer = true;                  ///< the saved set holds transitions
};

/// One way of running a problem that must not change a bit of its results.
struct Variation {
  std::string label;  ///< "threads 3"
  int threads = 1;
  std::optional<CpuIsa> isa;             ///< not set: the level in use
  std::optional<std::uint64_t> shuffle;  ///< seed of the task order
  float fill = 0.0f;                     ///< content of workspace, saved set and outputs before the call
  int offset = 0;                        ///< bytes that memory is moved by (tensors: rounded to their element)
  bool library_memory = false;           ///< the library allocates workspace and saved set
  bool recompute = false;                ///< the backward gets no saved set
  bool tape = false;                     ///< the saved set holds every chunk's state
  std::int64_t tail_passes = 1;
  std::optional<std::int64_t> batch_tokens, max_docs_per_batch;
  Packing packing = Packing::kTogether;
  std::optional<unsigned> mxcsr;  ///< the caller's floating-point environment
  int busy_threads = 0;           ///< threads that load the machine meanwhile
  bool fresh_process = false;     ///< in a second process
  RanksVariation over;            ///< for packages over ranks
};

/// A result and its digest; none where the variation changes the result by definition (pack order: the parameter
/// gradients' fold).
struct TensorDigest {
  std::string tensor;
  std::optional<std::string> digest;
};

/// What one run gave.
struct AuditRun {
  std::vector<TensorDigest> digests;  ///< every output and gradient, in one fixed order
  bool mxcsr_kept = true;             ///< the caller's floating-point environment came back
  std::string detail{};               ///< what the label of the variation does not say: "cuts at 12, 200"
};

/// A named problem of a package.
struct AuditProblem {
  std::string name;
  std::string description;
};

/// A package under audit.
class AuditSubject {
 public:
  virtual ~AuditSubject() = default;
  /// Whether the package promises equal bits; otherwise the audit reports what differs and fails nothing for it.
  virtual bool promises_bits() const = 0;
  virtual const std::vector<AuditProblem>& problems() const = 0;
  /// Whether it runs over ranks: then Variation::over counts and the audit varies it.
  virtual bool over_ranks() const { return false; }
  /// What its results are compared with: the name of another package, or null for its own plain run.
  virtual const char* reference_package() const { return nullptr; }
  /// That package's run of a problem; with a name only.
  virtual AuditRun reference(std::size_t problem) const { return run(problem, Variation{}); }
  /// Runs problems()[problem]. fresh_process and busy_threads are the caller's business.
  virtual AuditRun run(std::size_t problem, const Variation& variation) const = 0;
};

/// A perturbation: variations that share a column of the table.
struct Perturbation {
  std::string name;
  std::vector<Variation> variations;
  std::string not_run;    ///< why it has no variation
  bool of_ranks = false;  ///< about ranks, layouts and exchanges
};

/// What the user asked for.
struct AuditOptions {
  int repeats = 3;
  std::vector<int> threads = {1, 2, 3, 7};
  std::vector<CpuIsa> levels = {CpuIsa::kBase, CpuIsa::kV3, CpuIsa::kV4};
  std::vector<int> ranks = {1, 2, 3, 4};  ///< numbers of ranks, for packages over ranks
  RandomCuts cuts;                        ///< the same

  /// What the perturbations that are not about ranks run on.
  int most_ranks() const;
};

/// The perturbations, in the order of the table. Without a promise of bits the repeats run on the most threads, where
/// they may differ at all. Over ranks all of them run on the most ranks, repeats and orders of tasks
/// also on the fewest, and those of rank_perturbations come after them.
std::vector<Perturbation> perturbations(const AuditOptions& options, bool promises_bits, bool over_ranks);
/// Those of packages over ranks: every layout, random cuts, and what a forward keeps, on every number of ranks.
std::vector<Perturbation> rank_perturbations(const AuditOptions& options);

/// A result that changed.
struct AuditDifference {
  std::string problem, tensor, perturbation, label, expected, got;
};

/// One problem's outcome.
struct ProblemAudit {
  AuditProblem problem;
  std::vector<TensorDigest> digests;  ///< of the reference package, else of the plain run
  std::vector<Perturbation> columns;
  std::vector<std::vector<std::string>> cells;  ///< [tensor][column]: "ok", "DIFFERS" (without a promise "same",
                                                ///< "differs"), "-" or why it was not run
};

/// One result over all problems.
struct TensorTally {
  std::string tensor;
  std::int64_t compared = 0, differ = 0;
  std::map<std::size_t, std::string> perturbations;  ///< those under which it differed, by column of the table
};

/// A whole audit.
struct AuditReport {
  std::string module;
  std::string reference;  ///< package it is compared with; empty: its own plain run
  bool promises_bits = true;
  std::vector<ProblemAudit> problems;
  std::vector<AuditDifference> differences;
  std::vector<TensorTally> tensors;
  std::int64_t comparisons = 0;
  std::int64_t mxcsr_changes = 0;  ///< runs that lost the caller's MXCSR, a fault of any package

  bool passed() const { return promises_bits ? differences.empty() : mxcsr_changes == 0; }
};

/// Runs every problem under every perturbation.
AuditReport run_audit(const std::string& module, const AuditSubject& subject, const AuditOptions& options);
/// The table, the differences and a summary.
void print_audit(const AuditReport& report);
/// The same for programs.
void print_audit_json(const AuditReport& report);

/// Digests of every problem's plain run, on so many ranks, from a second process of this program. Throws Error when it
/// fails.
std::vector<std::vector<TensorDigest>> digests_of_fresh_process(const std::string& module, int ranks);
/// What that second process runs: prints the digests as JSON.
void print_plain_digests(const AuditSubject& subject, int ranks);
/// A plain run under a label; packages over ranks take `ranks` of them, contiguous.
Variation plain_variation(std::string label, int ranks);

}  // namespace cake::tool
