// How an audit's outcome is printed.
#include <fmt/format.h>

#include <cstdio>

#include "audit.h"
#include "cake/core/info.h"
#include "machine.h"
#include "table.h"

namespace cake::tool {
namespace {

constexpr std::size_t kShortDigest = 12;

/// "sha256:..." for a digest, other values as they are.
std::string full(const std::string& value) { return value.size() == 64 ? "sha256:" + value : value; }

void print_differences(const AuditReport& report) {
  if (!report.differences.empty()) fmt::print("\nDifferences\n");
  for (const AuditDifference& d : report.differences) {
    fmt::print("  {} {}: {} instead of {} ({})\n", d.problem, d.tensor, d.got.substr(0, kShortDigest),
               d.expected.substr(0, kShortDigest), d.label);
  }
}

/// A package without a promise may differ hundreds of times: a line for each tensor says how often, and under what.
void print_tally(const AuditReport& report) {
  Table table({"tensor", ">compared", ">differ", "under"});
  for (const TensorTally& sums : report.tensors) {
    std::string under;
    for (const auto& [column, name] : sums.perturbations) under += (under.empty() ? "" : ", ") + name;
    table.add({sums.tensor, std::to_string(sums.compared), std::to_string(sums.differ),
               sums.differ == 0 ? "no difference" : under});
  }
  fmt::print("\nOver repeats and perturbations, all problems\n{}", table.text(2));
}

std::int64_t digests_that_differ(const AuditReport& report) {
  return static_cast<std::int64_t>(report.differences.size()) - report.mxcsr_changes;
}

std::string verdict(const AuditReport& report) {
  const std::string lost =
      report.mxcsr_changes == 0 ? "" : fmt::format("; {} runs changed the caller's MXCSR", report.mxcsr_changes);
  if (!report.promises_bits) return " (nondeterministic package: no promise)" + lost;
  return (report.differences.empty() ? ": the bits are the same" : ": NOT DETERMINISTIC") + lost;
}

}  // namespace

void print_audit(const AuditReport& report) {
  const std::string against = report.reference.empty() ? report.reference : " against " + report.reference;
  fmt::print("Audit of {}{} on {} (level {}, segment {})\n", report.module, against, cpu_model(),
             cpu_isa_name(current_cpu_isa()), build_info().segment);
  for (const ProblemAudit& audit : report.problems) {
    fmt::print("\n{}: {}\n", audit.problem.name, audit.problem.description);
    std::vector<std::string> headings = {"tensor", "SHA-256"};
    for (const Perturbation& column : audit.columns) headings.push_back(column.name);
    Table table(headings);
    for (std::size_t i = 0; i < audit.digests.size(); ++i) {
      std::vector<std::string> row = {audit.digests[i].tensor, audit.digests[i].digest->substr(0, kShortDigest)};
      // The table has no room for the words; the lines below it say what was not run.
      for (std::size_t c = 0; c < audit.columns.size(); ++c) {
        row.push_back(audit.columns[c].not_run.empty() ? audit.cells[i][c] : "-");
      }
      table.add(row);
    }
    fmt::print("{}", table.text(2));
    for (const Perturbation& column : audit.columns) {
      if (!column.not_run.empty()) fmt::print("  {}: {}\n", column.name, column.not_run);
    }
  }
  if (report.promises_bits) {
    print_differences(report);
  } else {
    print_tally(report);
  }
  fmt::print("\n{} digests compared, {} differ{}\n", report.comparisons, digests_that_differ(report), verdict(report));
  if (build_info().planted_fault) fmt::print("(this build has a planted order fault)\n");
}

void print_audit_json(const AuditReport& report) {
  Json out;
  out["module"] = report.module;
  out["reference"] = report.reference.empty() ? Json() : Json(report.reference);
  out["promises_bits"] = report.promises_bits;
  out["build"] = build_json();
  out["machine"] = cpu_json();
  out["problems"] = Json::array();
  for (const ProblemAudit& audit : report.problems) {
    Json problem;
    problem["name"] = audit.problem.name;
    problem["description"] = audit.problem.description;
    for (const Perturbation& column : audit.columns) {
      Json runs = Json::array();
      for (const Variation& variation : column.variations) runs.push_back(variation.label);
      problem["perturbations"][column.name] = column.not_run.empty() ? runs : Json(column.not_run);
    }
    problem["tensors"] = Json::array();
    for (std::size_t i = 0; i < audit.digests.size(); ++i) {
      Json tensor;
      tensor["name"] = audit.digests[i].tensor;
      tensor["digest"] = full(*audit.digests[i].digest);
      for (std::size_t c = 0; c < audit.columns.size(); ++c) {
        tensor["checks"][audit.columns[c].name] = audit.cells[i][c];
      }
      problem["tensors"].push_back(tensor);
    }
    out["problems"].push_back(problem);
  }
  out["differences"] = Json::array();
  for (const AuditDifference& d : report.differences) {
    out["differences"].push_back({{"problem", d.problem},
                                  {"tensor", d.tensor},
                                  {"perturbation", d.perturbation},
                                  {"run", d.label},
                                  {"expected", full(d.expected)},
                                  {"got", full(d.got)}});
  }
  out["tensors"] = Json::array();
  for (const TensorTally& sums : report.tensors) {
    Json tensor = {{"name", sums.tensor}, {"compared", sums.compared}, {"differ", sums.differ}};
    tensor["perturbations"] = Json::array();
    for (const auto& [column, name] : sums.perturbations) tensor["perturbations"].push_back(name);
    out["tensors"].push_back(tensor);
  }
  out["comparisons"] = report.comparisons;
  out["passed"] = report.passed();
  fmt::print("{}\n", out.dump(2));
}

}  // namespace cake::tool
