// Which perturbations an audit makes, and how it compares their results with the plain run.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <limits>
#include <map>
#include <thread>

#include "audit.h"
#include "machine.h"

namespace cake::tool {
namespace {

Variation plain(std::string label) {
  Variation v;
  v.label = std::move(label);
  return v;
}

int most_threads(const AuditOptions& options) {
  return *std::max_element(options.threads.begin(), options.threads.end());
}

Perturbation repeat_column(const AuditOptions& options, bool promises_bits) {
  Perturbation column{"repeat", {}, ""};
  for (int i = 0; i < options.repeats; ++i) {
    Variation v = plain("repeat " + std::to_string(i + 1));
    if (!promises_bits) {
      v.threads = most_threads(options);
      v.label += ", threads " + std::to_string(v.threads);
    }
    column.variations.push_back(v);
  }
  return column;
}

Perturbation thread_column(const AuditOptions& options) {
  Perturbation column{"threads", {}, ""};
  for (const int threads : options.threads) {
    Variation v = plain("threads " + std::to_string(threads));
    v.threads = threads;
    column.variations.push_back(v);
  }
  return column;
}

// Also with one thread: there the shuffled order is the only schedule, so that an order fault shows on any machine.
Perturbation order_column(const AuditOptions& options) {
  Perturbation column{"task order", {}, ""};
  for (const int threads : options.threads) {
    for (int seed = 1; seed <= options.repeats; ++seed) {
      Variation v = plain("task order " + std::to_string(seed) + ", threads " + std::to_string(threads));
      v.threads = threads;
      v.shuffle = static_cast<std::uint64_t>(seed);
      column.variations.push_back(v);
    }
  }
  return column;
}

// The base level emulates its fused multiply-adds, tens of times slower: it gets every core.
Perturbation level_column(CpuIsa isa) {
  Perturbation column{std::string("isa ") + cpu_isa_name(isa), {}, ""};
  if (!cpu_isa_supported(isa)) {
    column.not_run = kNotOnThisCpu;
  } else {
    Variation v = plain(column.name);
    v.isa = isa;
    v.threads = isa == CpuIsa::kBase ? usable_cores() : 1;
    column.variations.push_back(v);
  }
  return column;
}

Perturbation memory_column() {
  Perturbation column{"memory", {}, ""};
  Variation v = plain("memory full of NaN");
  v.fill = std::numeric_limits<float>::quiet_NaN();
  column.variations.push_back(v);
  v = plain("memory full of 1e30");
  v.fill = 1e30f;
  column.variations.push_back(v);
  v = plain("memory of the library");
  v.library_memory = true;
  column.variations.push_back(v);
  return column;
}

Perturbation address_column() {
  Perturbation column{"address", {}, ""};
  for (const int offset : {4, 36, 61}) {
    Variation v = plain("address + " + std::to_string(offset) + " bytes");
    v.offset = offset;
    column.variations.push_back(v);
  }
  return column;
}

Perturbation recompute_column(const AuditOptions& options) {
  Perturbation column{"recompute", {}, ""};
  for (const int threads : {1, most_threads(options)}) {
    Variation v = plain("recompute, threads " + std::to_string(threads));
    v.threads = threads;
    v.recompute = true;
    column.variations.push_back(v);
  }
  return column;
}

// The first with memory full of NaN: every word of a tape that is read must have been written.
Perturbation tape_column(const AuditOptions& options) {
  Perturbation column{"tape", {}, ""};
  for (const int threads : {1, most_threads(options)}) {
    Variation v = plain("tape, threads " + std::to_string(threads));
    v.threads = threads;
    v.tape = true;
    if (threads == 1) v.fill = std::numeric_limits<float>::quiet_NaN();
    column.variations.push_back(v);
  }
  return column;
}

Perturbation tail_column() {
  Perturbation column{"tail passes", {}, ""};
  for (const auto& [recompute, label] : {std::pair{false, "tail passes 3"}, {true, "tail passes 3, recompute"}}) {
    Variation v = plain(label);
    v.tail_passes = 3;
    v.recompute = recompute;
    v.threads = 2;
    column.variations.push_back(v);
  }
  return column;
}

Perturbation batching_column() {
  Perturbation column{"batching", {}, ""};
  Variation v = plain("batches of 128 tokens");
  v.batch_tokens = 128;
  v.threads = 2;
  column.variations.push_back(v);
  v = plain("batches of 2 documents");
  v.max_docs_per_batch = 2;
  v.threads = 2;
  column.variations.push_back(v);
  v.label = "batches of 1 document, tape, tail passes 2";
  v.max_docs_per_batch = 1;
  v.tape = true;
  v.tail_passes = 2;
  column.variations.push_back(v);
  return column;
}

Perturbation packing_column() {
  Perturbation column{"packing", {}, ""};
  for (const auto& [packing, label] : {std::pair{Packing::kAlone, "documents alone"},
                                       {Packing::kReversed, "documents reversed"},
                                       {Packing::kRotated, "documents rotated"}}) {
    Variation v = plain(label);
    v.packing = packing;
    v.threads = 2;
    column.variations.push_back(v);
  }
  return column;
}

// Control bits of MXCSR: exceptions masked (0x1f80), rounding 0x2000 down, 0x4000 up, 0x6000 towards zero, 0x0040
// denormals are zero, 0x8000 flush to zero.
Perturbation mxcsr_column() {
  Perturbation column{"MXCSR", {}, ""};
  for (const auto& [bits, label] : {std::pair{0x1f80u | 0x2000u, "caller rounds down"},
                                    {0x1f80u | 0x4000u, "caller rounds up"},
                                    {0x1f80u | 0x6000u | 0x8040u, "caller truncates, flushes denormals"}}) {
    Variation v = plain(label);
    v.mxcsr = bits;
    v.threads = 2;
    column.variations.push_back(v);
  }
  return column;
}

Perturbation process_column() {
  Perturbation column{"process", {plain("a second process")}, ""};
  column.variations.front().fresh_process = true;
  return column;
}

Perturbation load_column(const AuditOptions& options) {
  Perturbation column{"load", {}, ""};
  for (int i = 1; i <= 2; ++i) {
    Variation v = plain("machine under load " + std::to_string(i));
    v.threads = most_threads(options);
    v.busy_threads = usable_cores();
    column.variations.push_back(v);
  }
  return column;
}

/// Keeps cores busy for a scope.
class BusyThreads {
 public:
  explicit BusyThreads(int count) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!stop_.load(std::memory_order_relaxed)) work_.fetch_add(1, std::memory_order_relaxed);
      });
    }
  }
  ~BusyThreads() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }
  BusyThreads(const BusyThreads&) = delete;
  BusyThreads& operator=(const BusyThreads&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> work_{0};
  std::vector<std::thread> threads_;
};

void put_on_ranks(std::vector<Variation>& variations, int ranks) {
  for (Variation& variation : variations) {
    variation.label += ", ranks " + std::to_string(ranks);
    variation.over.ranks = ranks;
  }
}

TensorTally& tally(AuditReport& report, const std::string& tensor) {
  for (TensorTally& entry : report.tensors) {
    if (entry.tensor == tensor) return entry;
  }
  report.tensors.push_back({tensor, 0, 0, {}});
  return report.tensors.back();
}

/// Compares one run with what it must equal; `cells` is the column of the table.
void compare(ProblemAudit& audit, std::size_t column, const Variation& variation, const AuditRun& run,
             const std::vector<TensorDigest>& expected, AuditReport& report) {
  const std::vector<TensorDigest>& got = run.digests;
  const std::string& name = audit.columns[column].name;
  const std::string label = run.detail.empty() ? variation.label : variation.label + ", " + run.detail;
  if (!run.mxcsr_kept) {
    ++report.mxcsr_changes;
    report.differences.push_back({audit.problem.name, "MXCSR of the caller", name, label, "kept", "changed"});
  }
  for (std::size_t i = 0; i < audit.digests.size(); ++i) {
    std::string& cell = audit.cells[i][column];
    if (!got[i].digest) continue;
    TensorTally& sums = tally(report, got[i].tensor);
    ++report.comparisons;
    ++sums.compared;
    if (cell == "-") cell = report.promises_bits ? "ok" : "same";
    if (*got[i].digest == *expected[i].digest) continue;
    cell = report.promises_bits ? "DIFFERS" : "differs";
    ++sums.differ;
    sums.perturbations.emplace(column, name);
    report.differences.push_back({audit.problem.name, got[i].tensor, name, label, *expected[i].digest, *got[i].digest});
  }
}

}  // namespace

int AuditOptions::most_ranks() const { return *std::max_element(ranks.begin(), ranks.end()); }

Variation plain_variation(std::string label, int ranks) {
  Variation v = plain(std::move(label));
  v.over.ranks = ranks;
  return v;
}

std::vector<Perturbation> perturbations(const AuditOptions& options, bool promises_bits, bool over_ranks) {
  std::vector<Perturbation> columns = {repeat_column(options, promises_bits), thread_column(options),
                                       order_column(options)};
  for (const CpuIsa isa : options.levels) columns.push_back(level_column(isa));
  columns.push_back(memory_column());
  columns.push_back(address_column());
  if (!over_ranks) {
    columns.push_back(recompute_column(options));
    columns.push_back(tape_column(options));
    columns.push_back(tail_column());
    columns.push_back(batching_column());
  }
  columns.push_back(packing_column());
  columns.push_back(mxcsr_column());
  columns.push_back(process_column());
  columns.push_back(load_column(options));
  if (!over_ranks) return columns;
  const int least = *std::min_element(options.ranks.begin(), options.ranks.end()), most = options.most_ranks();
  for (Perturbation& column : columns) {
    std::vector<Variation> on_least = column.variations;
    put_on_ranks(column.variations, most);
    // Many ranks leave each with few sums to add: an order of tasks may show on one rank alone.
    if (least == most || (column.name != "repeat" && column.name != "task order")) continue;
    put_on_ranks(on_least, least);
    column.variations.insert(column.variations.end(), on_least.begin(), on_least.end());
  }
  for (Perturbation& column : rank_perturbations(options)) columns.push_back(std::move(column));
  return columns;
}

AuditReport run_audit(const std::string& module, const AuditSubject& subject, const AuditOptions& options) {
  AuditReport report;
  report.module = module;
  report.promises_bits = subject.promises_bits();
  if (subject.reference_package() != nullptr) report.reference = subject.reference_package();
  const int ranks = subject.over_ranks() ? options.most_ranks() : 1;
  const bool progress = isatty(STDERR_FILENO) == 1;
  const auto elsewhere = digests_of_fresh_process(module, ranks);
  for (std::size_t p = 0; p < subject.problems().size(); ++p) {
    ProblemAudit audit;
    audit.problem = subject.problems()[p];
    std::map<int, std::vector<TensorDigest>> own;  // plain runs, by number of ranks
    const auto plain_run = [&](int on) -> const std::vector<TensorDigest>& {
      if (own.count(on) == 0) own[on] = subject.run(p, plain_variation("plain", on)).digests;
      return own[on];
    };
    audit.digests = report.reference.empty() ? plain_run(ranks) : subject.reference(p).digests;
    audit.columns = perturbations(options, report.promises_bits, subject.over_ranks());
    audit.cells.assign(audit.digests.size(), std::vector<std::string>(audit.columns.size(), "-"));
    for (std::size_t c = 0; c < audit.columns.size(); ++c) {
      const Perturbation& column = audit.columns[c];
      // Without a promise of its bits the reference says nothing about repeats, threads and the like.
      const bool by_reference = report.promises_bits || column.of_ranks;
      if (progress) std::fprintf(stderr, "\r\033[K%s: %s", audit.problem.name.c_str(), column.name.c_str());
      for (auto& row : audit.cells) {
        if (!column.not_run.empty()) row[c] = column.not_run;
      }
      for (const Variation& variation : column.variations) {
        const auto& expected = by_reference ? audit.digests : plain_run(variation.over.ranks);
        if (variation.fresh_process) {
          compare(audit, c, variation, AuditRun{elsewhere.at(p), true}, expected, report);
          continue;
        }
        const BusyThreads busy(variation.busy_threads);
        compare(audit, c, variation, subject.run(p, variation), expected, report);
      }
    }
    report.problems.push_back(std::move(audit));
  }
  if (progress) std::fprintf(stderr, "\r\033[K");
  return report;
}

}  // namespace cake::tool
