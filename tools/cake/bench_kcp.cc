#include "bench_kcp.h"

#include <cmath>
#include <memory>
#include <string>

#include "bench_kcp_data.h"
#include "bench_kda_data.h"
#include "cake/core/canonical.h"
#include "cake/core/parallel.h"
#include "machine.h"

namespace cake::tool {
namespace {

using bench_kda_parts::backward_flops;
using bench_kda_parts::Data;
using bench_kda_parts::forward_flops;
using bench_kda_parts::RanksData;
using bench_kda_parts::relative_error;

constexpr float kOrdinaryGate = -0.75f;

/// Largest distance of the ranks' results from those of one rank. A det package has the same bits: the limit is 0.
template <class OneRank>
BenchCheck check_ranks(const Data<OneRank>& ranks, const Data<OneRank>& one, DType dtype) {
  const double rounding = dtype == DType::kFloat32 ? 5e-5 : 1e-2;
  BenchCheck check{std::string(OneRank::kName) + " on one rank", 0, OneRank::kDeterministic ? 0.0 : rounding};
  const auto see = [&](const std::vector<std::byte>& x, const std::vector<std::byte>& ref, bool fp32) {
    check.error = std::max(check.error, relative_error(ranks.floats(x, fp32), one.floats(ref, fp32)));
  };
  see(ranks.out, one.out, false);
  see(ranks.final_state, one.final_state, true);
  see(ranks.dq, one.dq, false);
  see(ranks.dk, one.dk, false);
  see(ranks.dv, one.dv, false);
  see(ranks.dg, one.dg, true);
  see(ranks.dbeta, one.dbeta, false);
  return check;
}

void add_kcp_ratios(BenchReport& report) {
  const int ranks = report.options.ranks;
  for (const auto& [name, label] : {std::pair{"forward", "forward"}, {"forward_backward", "forward + backward"}}) {
    const double speedup =
        paired_time_ratio(*report.find(std::string("one_rank_") + name), *report.find(std::string("ranks_") + name));
    add_ratio(report, std::string("speedup_") + name, std::string("1 rank / all ranks, ") + label, speedup, true, {});
    add_ratio(report, std::string("efficiency_") + name, std::string("  the same over the number of ranks, ") + label,
              speedup / ranks, true, {});
  }
  if (ranks * report.options.threads > usable_cores()) {
    report.notes.push_back(std::to_string(ranks) + " ranks of " + std::to_string(report.options.threads) +
                           " thread(s) share " + std::to_string(usable_cores()) +
                           " core(s): the efficiency is not that of ranks with cores of their own");
  }
  report.notes.push_back("saved and workspace of all ranks: sums");
}

}  // namespace

template <class Package>
BenchReport bench_kcp(const BenchOptions& options) {
  using OneRank = typename Package::OneRank;
  BenchReport report;
  report.options = options;
  const ScopedNumThreads threads(options.threads);
  const auto ranks = std::make_shared<RanksData<Package>>(options, kOrdinaryGate);
  const auto one = std::make_shared<Data<OneRank>>(options, options.dtype, kOrdinaryGate);
  report.cut_points = ranks->cuts();
  one->forward_backward();
  report.rank_bytes = ranks->counted_forward_backward();
  report.checks.push_back(check_ranks(ranks->data, *one, options.dtype));
  if (!report.agrees()) return report;

  const double fwd = forward_flops(options), both = fwd + backward_flops(options);
  const std::string all = std::to_string(options.ranks) + " rank(s): ";
  const auto add = [&](std::string name, std::string label, double flops, BenchMemory memory) -> BenchCase& {
    report.cases.push_back({std::move(name), std::move(label), flops, 0, 1, {}, {}, memory});
    return report.cases.back();
  };
  add("one_rank_forward", "1 rank: forward", fwd, one->forward_memory(options.threads)).run = [one] { one->forward(); };
  add("ranks_forward", all + "forward", fwd, ranks->forward_memory()).timed_run = [ranks] { return ranks->forward(); };
  add("one_rank_forward_backward", "1 rank: forward + backward", both, one->forward_backward_memory(options.threads))
      .run = [one] { one->forward_backward(); };
  add("ranks_forward_backward", all + "forward + backward", both, ranks->forward_backward_memory()).timed_run =
      [ranks] { return ranks->forward_backward(); };
  measure(report.cases, options.repeats);
  add_kcp_ratios(report);
  return report;
}

namespace {

std::int64_t segments_of(std::span<const std::int32_t> offsets) {
  std::int64_t segments = 0;
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    segments += (offsets[d + 1] - offsets[d] + kSegment - 1) / kSegment;
  }
  return segments;
}

kcp::CommBytes& operator+=(kcp::CommBytes& sum, const kcp::CommBytes& x) {
  for (const auto phase :
       {&kcp::CommBytes::halo_fwd, &kcp::CommBytes::c1, &kcp::CommBytes::c2, &kcp::CommBytes::halo_bwd,
        &kcp::CommBytes::b1, &kcp::CommBytes::b2, &kcp::CommBytes::gate_params}) {
    sum.*phase += x.*phase;
  }
  return sum;
}

/// The rows of one problem on so many ranks, one for each exchange.
template <class Package>
void add_rows(const BenchOptions& o, std::span<const std::int32_t> offsets, int ranks, BenchCut cut,
              std::vector<CommRow>& rows) {
  const auto partition = kcp::Partition::from_cut_points(offsets, bench_cut_points(offsets, ranks, cut));
  typename Package::Shape shape;
  shape.H = shape.HV = o.H;
  shape.K = o.K;
  shape.V = o.V;
  shape.dtype = shape.beta_dtype = o.dtype;
  shape.gate_param_grads = true;
  typename Package::Options options;
  options.use_gate_in_kernel = true;
  ThreadGroup group(ranks);
  std::vector<std::vector<kcp::CommBytes>> bytes(static_cast<std::size_t>(ranks));
  const kcp::Exchange exchanges[] = {kcp::Exchange::kRelay, kcp::Exchange::kGather};
  group.run([&](Communicator& communicator) {
    const kcp::Context context(partition, communicator);
    for (const kcp::Exchange exchange : exchanges) {
      auto with = options;
      with.exchange = exchange;
      bytes[static_cast<std::size_t>(communicator.rank())].push_back(comm_bytes(context, shape, with));
    }
  });
  for (std::size_t e = 0; e < std::size(exchanges); ++e) {
    CommRow row{offsets.back(), partition.documents(), segments_of(offsets), ranks, exchanges[e], {}};
    for (const auto& of_rank : bytes) row.bytes += of_rank[e];
    rows.push_back(row);
  }
}

}  // namespace

template <class Package>
CommReport comm_kcp(const BenchOptions& options) {
  CommReport report;
  report.options = options;
  for (const int ranks : {2, 4}) {
    for (std::int64_t T = 8192; T <= kCommTokens; T *= 2) {
      // With fewer segments than ranks there are not enough borders of segments.
      if (T < ranks * kSegment) continue;
      add_rows<Package>(options, shifted_documents(T, 1), ranks, BenchCut::kSegment, report.by_length);
    }
    for (std::int64_t documents = 1; documents <= kCommDocuments; documents *= 10) {
      add_rows<Package>(options, shifted_documents(options.T, documents), ranks, BenchCut::kEven, report.by_documents);
    }
  }
  return report;
}

template BenchReport bench_kcp<KdaDetKcp>(const BenchOptions& options);
template BenchReport bench_kcp<KdaNondetKcp>(const BenchOptions& options);
template CommReport comm_kcp<KdaDetKcp>(const BenchOptions& options);
template CommReport comm_kcp<KdaNondetKcp>(const BenchOptions& options);

}  // namespace cake::tool
