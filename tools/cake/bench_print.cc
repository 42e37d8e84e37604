// How the figures of `cake bench` are printed.
#include <fmt/format.h>

#include "bench.h"
#include "bench_print_ranks.h"
#include "cake/core/dtype.h"
#include "machine.h"
#include "table.h"

namespace cake::tool {
namespace {

std::string shape_text(const BenchOptions& o) { return fmt::format("T={},H={},K={},V={}", o.T, o.H, o.K, o.V); }

std::string milliseconds(double seconds) { return fmt::format("{:.2f}", seconds * 1e3); }

/// Bytes in MiB, or nothing where they are not counted.
std::string mebibytes(const std::optional<std::size_t>& bytes) {
  return bytes ? fmt::format("{:.1f}", static_cast<double>(*bytes) / (1 << 20)) : "";
}

Json json_of(const std::optional<std::size_t>& bytes) { return bytes ? Json(*bytes) : Json(); }

/// Percent of a ceiling's rate, or nothing where the case counts no operations.
std::string percent(const BenchCase& c, const BenchCase* ceiling) {
  if (ceiling == nullptr || c.flops == 0) return "";
  return fmt::format("{:.1f}", 100 * paired_rate_ratio(c, *ceiling));
}

std::string target_text(const BenchRatio& r) {
  return r.target ? fmt::format("{} {:.2f}", r.at_least ? ">=" : "<=", *r.target) : "-";
}

void print_checks(const BenchReport& report) {
  Table table({"same results", ">relative error", ">limit", ""});
  for (const BenchCheck& check : report.checks) {
    table.add({check.label, fmt::format("{:.1e}", check.error), fmt::format("{:.0e}", check.limit),
               check.ok() ? "ok" : "DISAGREES"});
  }
  fmt::print("{}", table.text());
}

Json json_of(const BenchCase& c, const BenchReport& report) {
  const std::vector<double> samples = c.sorted();
  Json out;
  out["name"] = c.name;
  out["label"] = c.label;
  out["median_s"] = c.median();
  out["min_s"] = samples.front();
  out["max_s"] = samples.back();
  out["samples_s"] = Json::array();
  for (const auto& sample : c.seconds) {
    if (sample) out["samples_s"].push_back(*sample);
  }
  out["flops"] = c.flops;
  out["bytes"] = c.bytes;
  out["saved_bytes"] = json_of(c.memory.saved);
  out["workspace_bytes"] = json_of(c.memory.workspace);
  if (c.flops > 0) out["gflops"] = c.gflops();
  if (c.flops > 0 && report.find("fma_peak") != nullptr) {
    out["of_fma_peak"] = paired_rate_ratio(c, *report.find("fma_peak"));
    out["of_gemm_rate"] = paired_rate_ratio(c, *report.find("gemm_64x128x128"));
  }
  if (c.bytes > 0) out["gbytes_per_s"] = c.bytes / c.median() * 1e-9;
  return out;
}

}  // namespace

void print_bench(const BenchReport& report) {
  const BenchOptions& o = report.options;
  fmt::print("{}: {}, {}, level {}, {} thread(s), {} rounds\n{}, {} cores\n\n", report.module, shape_text(o),
             dtype_name(o.dtype), cpu_isa_name(o.isa), o.threads, o.repeats, cpu_model(), usable_cores());
  print_checks(report);
  if (!report.rank_bytes.empty()) print_rank_bytes(report);
  if (!report.agrees()) {
    fmt::print("\nWhat must be equal is not: no speed is reported.\n");
    return;
  }
  Table table({"case", ">median ms", ">min", ">max", ">GFLOP/s", ">% peak", ">% GEMM", ">GB/s", ">saved MiB",
               ">workspace MiB"});
  for (const BenchCase& c : report.cases) {
    const std::vector<double> samples = c.sorted();
    table.add({c.label, milliseconds(c.median()), milliseconds(samples.front()), milliseconds(samples.back()),
               c.flops > 0 ? fmt::format("{:.1f}", c.gflops()) : "", percent(c, report.find("fma_peak")),
               percent(c, report.find("gemm_64x128x128")),
               c.bytes > 0 ? fmt::format("{:.1f}", c.bytes / c.median() * 1e-9) : "", mebibytes(c.memory.saved),
               mebibytes(c.memory.workspace)});
  }
  fmt::print("\n{}", table.text());
  Table ratios({"ratio", ">measured", ">target", "verdict"});
  for (const BenchRatio& r : report.ratios) {
    ratios.add({r.label, fmt::format("{:.2f}", r.value), target_text(r), r.verdict});
  }
  fmt::print("\n{}", ratios.text());
  for (const std::string& note : report.notes) fmt::print("{}\n", note);
}

void print_bench_json(const BenchReport& report) {
  const BenchOptions& o = report.options;
  Json out;
  out["module"] = report.module;
  out["shape"] = {{"T", o.T}, {"H", o.H}, {"K", o.K}, {"V", o.V}};
  out["dtype"] = dtype_name(o.dtype);
  out["level"] = cpu_isa_name(o.isa);
  out["threads"] = o.threads;
  out["rounds"] = o.repeats;
  out["build"] = build_json();
  out["machine"] = cpu_json();
  if (!report.rank_bytes.empty()) add_ranks_json(report, out);
  out["agrees"] = report.agrees();
  out["checks"] = Json::array();
  for (const BenchCheck& check : report.checks) {
    out["checks"].push_back(
        {{"label", check.label}, {"error", check.error}, {"limit", check.limit}, {"ok", check.ok()}});
  }
  out["cases"] = Json::array();
  for (const BenchCase& c : report.cases) out["cases"].push_back(json_of(c, report));
  out["ratios"] = Json::array();
  for (const BenchRatio& r : report.ratios) {
    Json ratio = {{"name", r.name}, {"label", r.label}, {"value", r.value}};
    ratio["target"] = r.target ? Json(*r.target) : Json();
    ratio["at_least"] = r.at_least;
    ratio["verdict"] = r.verdict;
    out["ratios"].push_back(ratio);
  }
  out["notes"] = report.notes;
  fmt::print("{}\n", out.dump(2));
}

}  // namespace cake::tool
