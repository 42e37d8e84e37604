#include "bench_print_ranks.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "cake/core/canonical.h"
#include "cake/core/dtype.h"
#include "table.h"

namespace cake::tool {
namespace {

/// Every phase under its name.
constexpr std::pair<const char*, kcp::CommPhase kcp::CommBytes::*> kPhases[] = {
    {"halo_fwd", &kcp::CommBytes::halo_fwd},      {"c1", &kcp::CommBytes::c1}, {"c2", &kcp::CommBytes::c2},
    {"halo_bwd", &kcp::CommBytes::halo_bwd},      {"b1", &kcp::CommBytes::b1}, {"b2", &kcp::CommBytes::b2},
    {"gate_params", &kcp::CommBytes::gate_params}};

Json phase_json(const kcp::CommPhase& phase) { return {{"sent", phase.sent}, {"received", phase.received}}; }

Json bytes_json(const kcp::CommBytes& bytes) {
  Json out;
  for (const auto& [name, phase] : kPhases) out[name] = phase_json(bytes.*phase);
  return out;
}

/// Bytes over borders; a mean where borders differ.
double per_border(const CommRow& row, std::uint64_t bytes) { return static_cast<double>(bytes) / row.borders(); }

std::uint64_t states_forward(const CommRow& row) { return row.bytes.c1.sent + row.bytes.c2.sent; }
std::uint64_t states_backward(const CommRow& row) { return row.bytes.b1.sent + row.bytes.b2.sent; }
std::uint64_t rows_moved(const CommRow& row) { return row.bytes.halo_fwd.sent + row.bytes.halo_bwd.sent; }

void print_rows(const char* title, const std::vector<CommRow>& rows) {
  Table table({">T", ">documents", ">segments", ">ranks", "exchange", ">forward states", ">backward states",
               ">rows of cut chunks", ">gate parameters, all ranks"});
  const auto count = [](const CommRow& row, std::uint64_t bytes) {
    return fmt::format("{:.0f}", per_border(row, bytes));
  };
  for (const CommRow& row : rows) {
    table.add({std::to_string(row.T), std::to_string(row.documents), std::to_string(row.segments),
               std::to_string(row.ranks), kcp::exchange_name(row.exchange), count(row, states_forward(row)),
               count(row, states_backward(row)), count(row, rows_moved(row)),
               std::to_string(row.bytes.gate_params.sent)});
  }
  fmt::print("\n{}\n{}", title, table.text(2));
}

Json rows_json(const std::vector<CommRow>& rows) {
  Json out = Json::array();
  for (const CommRow& row : rows) {
    Json one;
    one["T"] = row.T;
    one["documents"] = row.documents;
    one["segments"] = row.segments;
    one["ranks"] = row.ranks;
    one["exchange"] = kcp::exchange_name(row.exchange);
    one["borders"] = row.borders();
    one["forward_per_border"] = per_border(row, states_forward(row));
    one["backward_per_border"] = per_border(row, states_backward(row));
    one["rows_per_border"] = per_border(row, rows_moved(row));
    one["phases"] = bytes_json(row.bytes);
    out.push_back(one);
  }
  return out;
}

}  // namespace

void print_rank_bytes(const BenchReport& report) {
  const BenchOptions& o = report.options;
  fmt::print("\n{} ranks as threads, exchange {}, cut {} at {}\n", o.ranks, kcp::exchange_name(o.exchange),
             bench_cut_name(o.cut), report.cut_points.empty() ? "no row" : cut_points_text(report.cut_points));
  std::vector<std::string> headings = {">rank", "bytes"};
  for (const auto& [name, phase] : kPhases) {
    if (phase != &kcp::CommBytes::gate_params) headings.push_back(std::string(">") + name);
  }
  for (const char* name : {">forward", ">counted", ">backward", ">counted", ""}) headings.push_back(name);
  Table table(headings);
  for (std::size_t r = 0; r < report.rank_bytes.size(); ++r) {
    const BenchRankBytes& bytes = report.rank_bytes[r];
    for (const auto& [word, way] :
         {std::pair{"sent", &kcp::CommPhase::sent}, {"received", &kcp::CommPhase::received}}) {
      std::vector<std::string> row = {std::to_string(r), word};
      for (const auto& [name, phase] : kPhases) {
        if (phase != &kcp::CommBytes::gate_params) row.push_back(std::to_string(bytes.said.*phase.*way));
      }
      const auto forward = bytes.said.forward(), backward = bytes.said.backward();
      row.push_back(std::to_string(forward.*way));
      row.push_back(std::to_string(bytes.forward_counted.*way));
      row.push_back(std::to_string(backward.*way));
      row.push_back(std::to_string(bytes.backward_counted.*way));
      row.push_back(bytes.ok() ? "ok" : "DIFFERS");
      table.add(row);
    }
  }
  fmt::print("{}", table.text());
}

void add_ranks_json(const BenchReport& report, Json& out) {
  out["ranks"] = report.options.ranks;
  out["exchange"] = kcp::exchange_name(report.options.exchange);
  out["cut"] = bench_cut_name(report.options.cut);
  out["cut_points"] = report.cut_points;
  out["comm"] = Json::array();
  for (std::size_t r = 0; r < report.rank_bytes.size(); ++r) {
    const BenchRankBytes& bytes = report.rank_bytes[r];
    Json one;
    one["rank"] = r;
    one["phases"] = bytes_json(bytes.said);
    one["forward"] = phase_json(bytes.said.forward());
    one["forward_counted"] = phase_json(bytes.forward_counted);
    one["backward"] = phase_json(bytes.said.backward());
    one["backward_counted"] = phase_json(bytes.backward_counted);
    one["ok"] = bytes.ok();
    out["comm"].push_back(one);
  }
}

void print_comm(const CommReport& report) {
  const BenchOptions& o = report.options;
  fmt::print("{}: H={},K={},V={}, {}, segments of {} tokens\n", report.module, o.H, o.K, o.V, dtype_name(o.dtype),
             kSegment);
  fmt::print("Bytes sent by all ranks in a forward and backward with a saved set, over the number of borders\n");
  print_rows("One document, cut on borders of segments", report.by_length);
  print_rows("Documents that share T tokens, cut into even shares, which end inside documents", report.by_documents);
}

void print_comm_json(const CommReport& report) {
  const BenchOptions& o = report.options;
  Json out;
  out["module"] = report.module;
  out["shape"] = {{"T", o.T}, {"H", o.H}, {"K", o.K}, {"V", o.V}};
  out["dtype"] = dtype_name(o.dtype);
  out["build"] = build_json();
  out["by_length"] = rows_json(report.by_length);
  out["by_documents"] = rows_json(report.by_documents);
  fmt::print("{}\n", out.dump(2));
}

}  // namespace cake::tool
