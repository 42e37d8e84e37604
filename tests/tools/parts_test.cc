// Parts of the cake command: tables, digests, statistics, and an audit of a subject that misbehaves on purpose.
#include <gtest/gtest.h>

#include <xmmintrin.h>

#include <algorithm>
#include <cmath>

#include "audit.h"
#include "bench.h"
#include "cake/core/parallel.h"
#include "digest.h"
#include "table.h"
#include "tests/tools/faulty_subject.h"

namespace cake::tool {

// The second process of these tests' subjects: the digests of a plain run, computed here.
const AuditSubject* g_subject = nullptr;
std::vector<std::vector<TensorDigest>> digests_of_fresh_process(const std::string&, int ranks) {
  std::vector<std::vector<TensorDigest>> problems;
  for (std::size_t p = 0; p < g_subject->problems().size(); ++p) {
    Variation variation = plain_variation("", ranks);
    variation.fresh_process = true;
    problems.push_back(g_subject->run(p, variation).digests);
  }
  return problems;
}

namespace {

TEST(Table, AlignsColumns) {
  Table table({"name", ">value"});
  table.add({"a", "1"});
  table.add({"longer", "123.5"});
  table.add({"b"});
  EXPECT_EQ(table.text(2), "  name    value\n  a           1\n  longer  123.5\n  b\n");
}

TEST(Digest, IsSha256) {
  EXPECT_EQ(sha256("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Random, RepeatsAndHasItsMoments) {
  Random a(5), b(5);
  double sum = 0, squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const float x = a.bell();
    EXPECT_EQ(x, b.bell());
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  EXPECT_NEAR(sum / 20000, 0.0, 0.03);
  EXPECT_NEAR(squares / 20000, 1.0, 0.03);
}

BenchCase timed_case(const char* name, double flops, std::vector<std::optional<double>> seconds) {
  return {name, name, flops, 0, 1, {}, std::move(seconds), {}};
}

TEST(Statistics, RatiosPairTheRounds) {
  // The clock halves in the second round; a seldom case has no sample there.
  const BenchCase a = timed_case("a", 8e9, {2.0, 4.0, 2.0});
  const BenchCase b = timed_case("b", 2e9, {1.0, 2.0, 1.0});
  const BenchCase c = timed_case("c", 0, {10.0, std::nullopt, 12.0});
  EXPECT_DOUBLE_EQ(a.median(), 2.0);
  EXPECT_DOUBLE_EQ(a.gflops(), 4.0);
  EXPECT_DOUBLE_EQ(c.median(), 11.0);
  EXPECT_EQ(c.sorted(), (std::vector<double>{10.0, 12.0}));
  EXPECT_DOUBLE_EQ(paired_time_ratio(a, b), 2.0);
  EXPECT_DOUBLE_EQ(paired_rate_ratio(a, b), 2.0);
  EXPECT_DOUBLE_EQ(paired_time_ratio(c, a), 5.5);
}

TEST(Statistics, TargetsAreJudgedWhereTheyWereStated) {
  BenchReport report;
  report.options.isa = CpuIsa::kV3;
  add_ratio(report, "high", "", 2.6, true, 2.5);
  add_ratio(report, "low", "", 2.4, true, 2.5);
  add_ratio(report, "cheap", "", 1.1, false, 1.2);
  add_ratio(report, "dear", "", 1.3, false, 1.2);
  add_ratio(report, "free", "", 1.3, false, {});
  add_ratio(report, "lost", "", std::nan(""), true, 1.0);
  report.options.T = 100;
  add_ratio(report, "elsewhere", "", 2.6, true, 2.5);
  std::vector<std::string> verdicts;
  for (const BenchRatio& r : report.ratios) verdicts.push_back(r.verdict);
  const std::vector<std::string> expected = {
      "met", "missed", "met", "missed", "no target", "missed", "stated for T=4096,H=4,K=128,V=128, fp32, v3 or v4"};
  EXPECT_EQ(verdicts, expected);
}

TEST(Measure, TimesSeldomCasesSeldom) {
  int often = 0, seldom = 0;
  std::vector<BenchCase> cases = {{"often", "", 0, 0, 1, [&] { ++often; }, {}, {}},
                                  {"seldom", "", 0, 0, 3, [&] { ++seldom; }, {}, {}}};
  measure(cases, 7);
  EXPECT_EQ(often, 8);   // one to warm up
  EXPECT_EQ(seldom, 4);  // rounds 0, 3, 6
  EXPECT_EQ(cases[0].sorted().size(), 7u);
  EXPECT_EQ(cases[1].sorted().size(), 3u);
}

AuditReport audit(FaultySubject::Fault fault, FaultySubject::Fault spills = never, bool promises = true) {
  const FaultySubject subject(fault, spills, promises);
  return run_audit("module", subject, small_options());
}

TEST(Audit, PassesASubjectThatRepeats) {
  const AuditReport report = audit(never);
  EXPECT_TRUE(report.differences.empty());
  EXPECT_TRUE(report.passed());
  ASSERT_EQ(report.problems.size(), 1u);
  const ProblemAudit& problem = report.problems.front();
  for (std::size_t c = 0; c < problem.columns.size(); ++c) {
    EXPECT_EQ(problem.cells[0][c], "ok") << problem.columns[c].name;
    // A result that packing changes by definition is compared everywhere else.
    EXPECT_EQ(problem.cells[2][c], problem.columns[c].name == "packing" ? "-" : "ok") << problem.columns[c].name;
  }
}

TEST(Audit, FindsEachKindOfFaultInItsOwnColumn) {
  const std::pair<const char*, FaultySubject::Fault> faults[] = {
      {"threads", [](const Variation& v) { return v.label == "threads 3"; }},
      {"task order", [](const Variation& v) { return v.shuffle.has_value(); }},
      {"isa base", [](const Variation& v) { return v.isa == CpuIsa::kBase; }},
      {"memory", [](const Variation& v) { return std::isnan(v.fill) && !v.tape; }},
      {"memory", [](const Variation& v) { return v.library_memory; }},
      {"address", [](const Variation& v) { return v.offset % 2 == 1; }},
      {"recompute", [](const Variation& v) { return v.recompute && v.tail_passes == 1; }},
      {"tape", [](const Variation& v) { return v.tape && !v.max_docs_per_batch; }},
      {"tail passes", [](const Variation& v) { return v.tail_passes == 3; }},
      {"batching", [](const Variation& v) { return v.batch_tokens.has_value(); }},
      {"batching", [](const Variation& v) { return v.max_docs_per_batch.has_value(); }},
      {"packing", [](const Variation& v) { return v.packing == Packing::kAlone; }},
      {"packing", [](const Variation& v) { return v.packing == Packing::kReversed; }},
      {"MXCSR", [](const Variation& v) { return v.mxcsr.has_value(); }},
      {"process", [](const Variation& v) { return v.fresh_process; }},
      {"load", [](const Variation& v) { return v.busy_threads > 0; }},
  };
  for (const auto& [column, fault] : faults) {
    const AuditReport report = audit(fault);
    ASSERT_FALSE(report.differences.empty()) << column;
    EXPECT_FALSE(report.passed());
    for (const AuditDifference& d : report.differences) {
      EXPECT_EQ(d.perturbation, column);
      EXPECT_EQ(d.tensor, "bad");
    }
    const ProblemAudit& problem = report.problems.front();
    for (std::size_t c = 0; c < problem.columns.size(); ++c) {
      EXPECT_EQ(problem.cells[0][c], "ok");
      EXPECT_EQ(problem.cells[1][c], problem.columns[c].name == column ? "DIFFERS" : "ok") << column;
    }
  }
}

TEST(Audit, FindsAChangedMxcsrOfTheCaller) {
  const AuditReport report = audit(never, [](const Variation& v) { return v.mxcsr.has_value(); });
  ASSERT_EQ(report.differences.size(), 3u);
  EXPECT_EQ(report.differences.front().tensor, "MXCSR of the caller");
}

TEST(Audit, ReportsASubjectWithoutAPromise) {
  // Only repeats on several threads differ: the plain run has one thread.
  const auto fault = [](const Variation& v) { return v.threads > 1 && v.label.rfind("repeat", 0) == 0; };
  const AuditReport report = audit(fault, never, false);
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.differences.size(), 2u);
  const ProblemAudit& problem = report.problems.front();
  for (std::size_t c = 0; c < problem.columns.size(); ++c) {
    EXPECT_EQ(problem.cells[0][c], "same");
    EXPECT_EQ(problem.cells[1][c], problem.columns[c].name == "repeat" ? "differs" : "same");
  }
  ASSERT_EQ(report.tensors.size(), 3u);
  EXPECT_EQ(report.tensors[0].differ, 0);
  EXPECT_EQ(report.tensors[1].tensor, "bad");
  EXPECT_EQ(report.tensors[1].differ, 2);
  EXPECT_EQ(report.tensors[1].perturbations, (std::map<std::size_t, std::string>{{0, "repeat"}}));
  EXPECT_EQ(report.tensors[0].compared + report.tensors[1].compared + report.tensors[2].compared, report.comparisons);
}

TEST(Audit, FailsAnyPackageThatLosesTheCallersMxcsr) {
  const auto spills = [](const Variation& v) { return v.mxcsr.has_value(); };
  EXPECT_FALSE(audit(never, spills, false).passed());
  EXPECT_EQ(audit(never, spills, false).mxcsr_changes, 3);
}

TEST(Audit, NeverPassesALevelThatTheMachineLacks) {
  if (cpu_isa_supported(CpuIsa::kV4)) GTEST_SKIP() << "this machine has every level";
  const FaultySubject subject(never, never, true);
  AuditOptions options = small_options();
  options.levels = {CpuIsa::kV4};
  const AuditReport report = run_audit("module", subject, options);
  const ProblemAudit& problem = report.problems.front();
  for (std::size_t c = 0; c < problem.columns.size(); ++c) {
    if (problem.columns[c].name == "isa v4") {
      EXPECT_EQ(problem.cells[0][c], "not on this CPU");
    }
  }
}

}  // namespace
}  // namespace cake::tool
