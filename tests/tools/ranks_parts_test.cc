// Parts of the cake command that concern ranks: cuts, the audit's perturbations, and what a benchmark checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "audit.h"
#include "bench.h"
#include "cake/core/canonical.h"
#include "cake/core/error.h"
#include "kcp_cuts.h"
#include "tests/tools/faulty_subject.h"

namespace cake::tool {
namespace {

using Rows = std::vector<std::int64_t>;

TEST(RankCuts, AreReadFromTheirOption) {
  EXPECT_EQ(parse_cuts("random:7").sets, 7);
  EXPECT_EQ(parse_cuts("random:7").seed, RandomCuts().seed);
  EXPECT_EQ(parse_cuts("random:10000:18446744073709551615").seed, 18446744073709551615u);
  for (const char* bad :
       {"", "random", "random:", "random:0", "random:-1", "random:10001", "random:2x", "random:2:", "random:2:x",
        "random:2:3:4", "random: 2", "even", "Random:2", "12,200", "random:99999999999", "random:2:-1"}) {
    try {
      parse_cuts(bad);
      ADD_FAILURE() << "accepted \"" << bad << "\"";
    } catch (const InvalidArgument& e) {
      const std::string text = e.what();
      EXPECT_NE(text.find("--cuts: got \"" + std::string(bad) + "\""), std::string::npos) << text;
      EXPECT_NE(text.find("random:SETS"), std::string::npos) << text;
    }
  }
}

TEST(RankCuts, LieAnywhereAndLeaveRanksEmpty) {
  const std::vector<std::int32_t> offsets = {0, 100, 100, 350};
  std::set<Rows> seen;
  int equal = 0, inside_chunks = 0, on_borders = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Rows cuts = random_cut_points(offsets, 4, seed);
    EXPECT_EQ(cuts, random_cut_points(offsets, 4, seed));
    ASSERT_EQ(cuts.size(), 3u);
    EXPECT_TRUE(std::is_sorted(cuts.begin(), cuts.end()));
    EXPECT_GE(cuts.front(), 0);
    EXPECT_LE(cuts.back(), 350);
    equal += std::adjacent_find(cuts.begin(), cuts.end()) != cuts.end() ? 1 : 0;
    for (const std::int64_t cut : cuts) {
      on_borders += cut == 0 || cut == 100 || cut == 350 ? 1 : 0;
      inside_chunks += (cut < 100 ? cut : cut - 100) % kChunk != 0 ? 1 : 0;
    }
    seen.insert(cuts);
  }
  EXPECT_GT(seen.size(), 150u);
  EXPECT_GT(equal, 10);
  EXPECT_GT(on_borders, 20);
  EXPECT_GT(inside_chunks, 300);
  EXPECT_EQ(random_cut_points(offsets, 1, 5), Rows());
  EXPECT_EQ(random_cut_points(std::vector<std::int32_t>{0, 0}, 3, 5), Rows({0, 0}));
}

TEST(RankCuts, OfABenchmarkAreNearestToEvenShares) {
  const std::int64_t S = kSegment;
  const auto one = [](std::int64_t rows) { return shifted_documents(rows, 1); };
  EXPECT_EQ(bench_cut_points(one(8 * S), 4, BenchCut::kSegment), Rows({2 * S, 4 * S, 6 * S}));
  EXPECT_EQ(bench_cut_points(one(8 * S + 50), 2, BenchCut::kEven), Rows({4 * S + 25}));
  EXPECT_EQ(bench_cut_points(one(8 * S + 50), 2, BenchCut::kSegment), Rows({4 * S}));
  EXPECT_EQ(bench_cut_points(one(5), 1, BenchCut::kSegment), Rows());
  // A border of documents is one of segments.
  EXPECT_EQ(bench_cut_points(std::vector<std::int32_t>{0, 40, 100}, 2, BenchCut::kSegment), Rows({40}));
  for (const auto& [rows, ranks, cut] :
       {std::tuple{S, 2, BenchCut::kSegment}, {2 * S, 3, BenchCut::kSegment}, {std::int64_t{2}, 3, BenchCut::kEven}}) {
    try {
      bench_cut_points(one(rows), ranks, cut);
      ADD_FAILURE() << rows << " rows on " << ranks << " ranks, " << bench_cut_name(cut);
    } catch (const InvalidArgument& e) {
      EXPECT_NE(std::string(e.what()).find("--cut: got " + std::string(bench_cut_name(cut))), std::string::npos);
      EXPECT_NE(std::string(e.what()).find("T=" + std::to_string(rows)), std::string::npos);
    }
  }
  EXPECT_EQ(parse_bench_cut("even"), BenchCut::kEven);
  EXPECT_THROW(parse_bench_cut("odd"), InvalidArgument);
  EXPECT_EQ(shifted_documents(90, 3), (std::vector<std::int32_t>{0, 20, 50, 90}));
}

AuditReport audit(FaultySubject::Fault fault, bool promises = true, FaultySubject::Fault spills = never) {
  const FaultySubject subject(fault, spills, promises, "the package on one rank");
  return run_audit("module", subject, small_options());
}

TEST(RankAudit, HasTheColumnsOfRanksInPlaceOfThoseOfOne) {
  const AuditReport report = audit(never);
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.reference, "the package on one rank");
  std::vector<std::string> names;
  for (const Perturbation& column : report.problems.front().columns) names.push_back(column.name);
  const std::vector<std::string> expected = {"repeat",
                                             "threads",
                                             "task order",
                                             "isa base",
                                             "memory",
                                             "address",
                                             "packing",
                                             "MXCSR",
                                             "process",
                                             "load",
                                             "contiguous",
                                             "zigzag",
                                             "zigzag_per_document",
                                             "random cuts",
                                             "recompute",
                                             "tape",
                                             "no transitions",
                                             "handle"};
  EXPECT_EQ(names, expected);
  // What is not about ranks runs on the most of them, what may show on few alone on the fewest too.
  for (const Perturbation& column : report.problems.front().columns) {
    if (column.of_ranks) continue;
    std::set<int> ranks;
    for (const Variation& v : column.variations) {
      ranks.insert(v.over.ranks);
      EXPECT_NE(v.label.find("ranks " + std::to_string(v.over.ranks)), std::string::npos) << v.label;
    }
    const bool both = column.name == "repeat" || column.name == "task order";
    EXPECT_EQ(ranks, both ? std::set<int>({1, 3}) : column.not_run.empty() ? std::set<int>({3}) : std::set<int>());
  }
}

TEST(RankAudit, FindsEachKindOfFaultInItsOwnColumn) {
  const std::pair<const char*, FaultySubject::Fault> faults[] = {
      {"zigzag", [](const Variation& v) { return v.over.layout == kcp::Layout::kZigzag; }},
      {"random cuts", [](const Variation& v) { return v.over.cuts.has_value(); }},
      {"recompute", [](const Variation& v) { return v.recompute && !v.over.cuts; }},
      {"tape", [](const Variation& v) { return v.tape && !v.over.cuts; }},
      {"no transitions", [](const Variation& v) { return !v.over.save_transfer && !v.over.cuts; }},
      {"handle", [](const Variation& v) { return v.over.handle == kcp::CheckpointKeep::kTransfer && !v.over.cuts; }},
      {"handle", [](const Variation& v) { return v.over.handle == kcp::CheckpointKeep::kStates && !v.over.cuts; }},
  };
  for (const auto& [column, fault] : faults) {
    const AuditReport report = audit(fault);
    ASSERT_FALSE(report.differences.empty()) << column;
    EXPECT_FALSE(report.passed());
    bool found = false;
    for (const AuditDifference& d : report.differences) {
      EXPECT_EQ(d.tensor, "bad");
      EXPECT_NE(d.label.find("ranks "), std::string::npos) << d.label;
      // The label holds what is needed to repeat the run.
      EXPECT_EQ(d.label.find("cuts at 5") != std::string::npos, d.perturbation == "random cuts") << d.label;
      found = found || d.perturbation == column;
    }
    EXPECT_TRUE(found) << column;
  }
}

TEST(RankAudit, ComparesWithTheReferenceAndNotWithItself) {
  // The package repeats its own wrong bits everywhere.
  const auto always = [](const Variation&) { return true; };
  const AuditReport report = audit(always);
  EXPECT_FALSE(report.passed());
  const ProblemAudit& problem = report.problems.front();
  for (std::size_t c = 0; c < problem.columns.size(); ++c) {
    EXPECT_EQ(problem.cells[0][c], "ok");
    EXPECT_EQ(problem.cells[1][c], "DIFFERS") << problem.columns[c].name;
  }
}

TEST(RankAudit, WithoutAPromiseOnlyRanksAreHeldAgainstTheReference) {
  const auto always = [](const Variation&) { return true; };
  const AuditReport report = audit(always, false);
  EXPECT_TRUE(report.passed());
  const ProblemAudit& problem = report.problems.front();
  for (std::size_t c = 0; c < problem.columns.size(); ++c) {
    EXPECT_EQ(problem.cells[1][c], problem.columns[c].of_ranks ? "differs" : "same") << problem.columns[c].name;
  }
}

TEST(RankAudit, FailsAnyPackageThatLosesTheCallersMxcsr) {
  const auto spills = [](const Variation& v) { return v.over.cuts.has_value(); };
  EXPECT_FALSE(audit(never, false, spills).passed());
}

TEST(RankAudit, EveryNumberOfRanksMeetsEveryPairOfExchangeAndWhatIsKept) {
  AuditOptions options;  // what a user gets
  options.cuts.sets = 18;
  using Kept = std::tuple<bool, bool, bool, int>;
  std::map<std::pair<std::string, int>, std::set<std::pair<kcp::Exchange, Kept>>> pairs;
  for (const Perturbation& column : rank_perturbations(options)) {
    std::set<std::string> labels;
    for (const Variation& v : column.variations) {
      EXPECT_TRUE(labels.insert(v.label).second) << v.label;
      EXPECT_TRUE(column.of_ranks);
      const Kept kept{v.tape, v.recompute, v.over.save_transfer, v.over.handle ? static_cast<int>(*v.over.handle) : -1};
      pairs[{column.name, v.over.ranks}].insert({v.over.exchange, kept});
    }
  }
  for (const int ranks : options.ranks) {
    EXPECT_EQ((pairs[{"contiguous", ranks}].size()), 3u);
    EXPECT_EQ((pairs[{"zigzag", ranks}].size()), 3u);
    EXPECT_EQ((pairs[{"zigzag_per_document", ranks}].size()), 3u);
    EXPECT_EQ((pairs[{"random cuts", ranks}].size()), ranks == 1 ? 0u : 18u);
    EXPECT_EQ((pairs[{"recompute", ranks}].size()), 3u);
    EXPECT_EQ((pairs[{"handle", ranks}].size()), 3u);
  }
}

TEST(RankAudit, OneRankHasNoCuts) {
  AuditOptions options;
  options.ranks = {1};
  for (const Perturbation& column : rank_perturbations(options)) {
    EXPECT_EQ(column.not_run, column.name == "random cuts" ? "one rank has no cuts" : "") << column.name;
  }
}

TEST(RankBench, BytesThatWereNotSaidBeforehandFail) {
  BenchReport report;
  report.rank_bytes.resize(2);
  report.rank_bytes[1].said.c1 = {10, 20};
  report.rank_bytes[1].said.c2 = {1, 2};
  report.rank_bytes[1].said.b2 = {3, 4};
  report.rank_bytes[1].forward_counted = {11, 22};
  report.rank_bytes[1].backward_counted = {3, 4};
  EXPECT_TRUE(report.agrees());
  report.rank_bytes[1].backward_counted.received = 5;
  EXPECT_FALSE(report.agrees());
}

TEST(RankBench, ACaseMayTimeItself) {
  BenchCase own{"own", "", 0, 0, 1, {}, {}, {}};
  int runs = 0;
  own.timed_run = [&] { return static_cast<double>(++runs); };
  std::vector<BenchCase> cases = {own};
  measure(cases, 3);
  EXPECT_EQ(cases[0].sorted(), (std::vector<double>{2, 3, 4}));  // the first one warms up
}

}  // namespace
}  // namespace cake::tool
