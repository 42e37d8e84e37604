#!/usr/bin/env python3
"""The cake command with packages over ranks (see cli_test.py)."""
import json
import re
import unittest

from cli_test import KCP, MODULE, NONDET, NONDET_KCP, Case, cake

RANK_COLUMNS = ["contiguous", "zigzag", "zigzag_per_document", "random cuts", "recompute", "tape", "no transitions",
                "handle"]
OTHER_COLUMNS = [
    "repeat",
    "threads",
    "task order",
    "isa v3",
    "memory",
    "address",
    "packing",
    "MXCSR",
    "process",
    "load",
]


class AuditRanks(Case):
    """cake audit over ranks (in a build with the planted fault it must fail)."""

    SMALL = ("--repeats", "2", "--threads", "1", "--isa", "v3", "--ranks", "1,3", "--cuts", "random:2")

    @classmethod
    def setUpClass(cls):
        cls.info = json.loads(cake("info", "--json").stdout)
        cls.done = cake("audit", KCP, *cls.SMALL, "--json")
        cls.report = json.loads(cls.done.stdout) if cls.done.returncode in (0, 1) else {}

    def test_verdict(self):
        faulty = self.info["build"]["planted_fault"]
        where = sorted({(d["problem"], d["tensor"], d["run"]) for d in self.report.get("differences", [])})
        self.assertEqual(self.done.returncode, 1 if faulty else 0, (self.done.stderr, where))
        self.assertEqual(self.report["module"], KCP)
        self.assertEqual(self.report["reference"], MODULE)
        self.assertEqual(self.report["passed"], not faulty)
        self.assertEqual(self.report["differences"] == [], not faulty)

    def test_every_result_is_compared_with_one_rank(self):
        tensors = set()
        for problem in self.report["problems"]:
            self.assertEqual(list(problem["perturbations"]), OTHER_COLUMNS + RANK_COLUMNS)
            runs = problem["perturbations"]
            self.assertEqual(runs["contiguous"][0], "ranks 1, contiguous, relay, saved set")
            self.assertEqual(len(runs["zigzag"]), 6, "two numbers of ranks, three exchanges")
            self.assertEqual(len(runs["random cuts"]), 2, "one rank has no cuts")
            for tensor in problem["tensors"]:
                tensors.add(tensor["name"])
                for name, outcome in tensor["checks"].items():
                    if name in RANK_COLUMNS and not self.info["build"]["planted_fault"]:
                        self.assertEqual(outcome, "ok", (problem["name"], tensor["name"], name))
        self.assertEqual(
            tensors,
            {"out", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dinitial_state", "partials",
             "ddt_bias_by_document"})

    def test_table(self):
        done = cake("audit", KCP, "--repeats", "1", "--threads", "2", "--isa", "v3", "--ranks", "2", "--cuts",
                    "random:1:9")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertIn(f"Audit of {KCP} against {MODULE} on ", done.stdout)
        self.assertRegex(done.stdout, r"\d+ digests compared, \d+ differ")
        # The digests are those of one rank, whatever the ranks.
        digests = {(m[0], m[1]) for m in re.findall(r"^  (\w+) +([0-9a-f]{12}) ", done.stdout, re.M)}
        expected = {(t["name"], t["digest"][7:19]) for p in self.report["problems"] for t in p["tensors"]}
        self.assertEqual(digests, expected)

    def test_a_package_without_a_promise_is_reported_and_passes(self):
        done = cake("audit", NONDET_KCP, *self.SMALL, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        report = json.loads(done.stdout)
        self.assertEqual(report["reference"], NONDET)
        self.assertFalse(report["promises_bits"])
        self.assertTrue(report["passed"])
        tally = {t["name"]: t for t in report["tensors"]}
        self.assertEqual(sum(t["compared"] for t in tally.values()), report["comparisons"])
        # Repeats, threads and orders are held against the package's own run: there only sums of parameters vary.
        for name, entry in tally.items():
            if name in ("dA_log", "ddt_bias"):
                # On one rank shuffled tasks finish in another order for certain.
                self.assertIn("task order", entry["perturbations"])
            else:
                self.assertLessEqual(set(entry["perturbations"]), set(RANK_COLUMNS) | {"packing"}, name)

    def test_bad_usage(self):
        for option, value in (("--ranks", "2"), ("--cuts", "random:2")):
            for module in (MODULE, NONDET):
                self.refused("audit", module, option, value, says=[option, module, "one rank", KCP, NONDET_KCP])
        for ranks in ("0", "1,x", "65", ""):
            self.refused("audit", KCP, "--ranks", ranks, says=["--ranks"])
        for cuts in ("random", "random:0", "random:x", "random:2:x", "fixed:2", "random:10001"):
            self.refused("audit", KCP, "--cuts", cuts, says=["--cuts", f'"{cuts}"', "random:SETS"])


SHAPE = ("--shape", "T=300,H=2,K=32,V=48")
PHASES = ["halo_fwd", "c1", "c2", "halo_bwd", "b1", "b2", "gate_params"]


class BenchRanks(Case):
    """cake bench over ranks, on a shape too small to say anything about speed."""

    def bench(self, module, *arguments):
        return json.loads(self.ok("bench", module, *SHAPE, "--repeats", "3", *arguments, "--json"))

    def test_json(self):
        for module, exchange, ranks in ((KCP, "relay", 2), (KCP, "gather", 3), (NONDET_KCP, "auto", 2)):
            report = self.bench(module, "--ranks", str(ranks), "--exchange", exchange, "--cut", "even")
            self.assertEqual(report["module"], module)
            self.assertEqual((report["ranks"], report["exchange"], report["cut"]), (ranks, exchange, "even"))
            self.assertEqual(report["cut_points"], [300 * r // ranks for r in range(1, ranks)])
            self.assertTrue(report["agrees"])
            self.assertEqual([c["ok"] for c in report["checks"]], [True])
            if module == KCP:
                self.assertEqual((report["checks"][0]["error"], report["checks"][0]["limit"]), (0, 0))
            cases = {c["name"]: c for c in report["cases"]}
            self.assertEqual(list(cases), ["one_rank_forward", "ranks_forward", "one_rank_forward_backward",
                                           "ranks_forward_backward"])
            for case in cases.values():
                self.assertEqual(len(case["samples_s"]), 3)
                self.assertGreater(case["min_s"], 0)
                self.assertGreater(case["workspace_bytes"], 0)
            ratios = {r["name"]: r["value"] for r in report["ratios"]}
            for name in ("forward", "forward_backward"):
                self.assertAlmostEqual(ratios[f"efficiency_{name}"], ratios[f"speedup_{name}"] / ranks, places=9)
                pairs = zip(cases[f"one_rank_{name}"]["samples_s"], cases[f"ranks_{name}"]["samples_s"])
                self.assertAlmostEqual(ratios[f"speedup_{name}"], sorted(a / b for a, b in pairs)[1], places=6)
            self.check_bytes(report, ranks)

    def check_bytes(self, report, ranks):
        """What the package says and what the communicator counted."""
        self.assertEqual([c["rank"] for c in report["comm"]], list(range(ranks)))
        for entry in report["comm"]:
            self.assertEqual(list(entry["phases"]), PHASES)
            for way in ("sent", "received"):
                phases = {name: entry["phases"][name][way] for name in PHASES}
                self.assertEqual(entry["forward"][way], phases["halo_fwd"] + phases["c1"] + phases["c2"])
                self.assertEqual(entry["backward"][way], phases["halo_bwd"] + phases["b1"] + phases["b2"])
            self.assertEqual(entry["forward"], entry["forward_counted"])
            self.assertEqual(entry["backward"], entry["backward_counted"])
            self.assertTrue(entry["ok"])
        total = {way: sum(c["forward"][way] for c in report["comm"]) for way in ("sent", "received")}
        self.assertEqual(total["sent"], total["received"])
        self.assertGreater(total["sent"], 0)

    def test_text(self):
        text = self.ok("bench", KCP, *SHAPE, "--repeats", "1", "--cut", "even", "--threads", "2", "--dtype", "bf16")
        for word in ("2 ranks as threads, exchange auto, cut even at 150", "counted", "halo_fwd", "1 rank: forward",
                     "2 rank(s): forward + backward", f"{MODULE} on one rank", "1 rank / all ranks", "2 thread(s)"):
            self.assertIn(word, text)

    def test_cuts_on_borders_of_segments(self):
        segment = json.loads(self.ok("info", "--json"))["build"]["segment"]
        shape = ("--shape", f"T={4 * segment + 10},H=1,K=16,V=16")
        report = json.loads(self.ok("bench", KCP, *shape, "--repeats", "1", "--json", "--exchange", "relay"))
        self.assertEqual((report["cut"], report["cut_points"]), ("segment", [2 * segment]))
        first, last = report["comm"]
        self.assertEqual(first["phases"]["halo_fwd"], {"sent": 0, "received": 0}, "no chunk is cut")
        self.assertEqual(first["phases"]["c1"], {"sent": 0, "received": 0}, "no segment is cut")
        self.assertEqual(first["phases"]["c2"]["sent"], 4 * 16 * 16, "one state")
        self.assertEqual(last["phases"]["b2"]["sent"], 4 * 16 * 16, "one adjoint state")
        self.refused("bench", KCP, "--shape", f"T={segment}", says=["--cut", "segment", f"T={segment}", "even"])

    def test_bytes_per_border(self):
        report = json.loads(self.ok("bench", KCP, "--comm", "--shape", "H=1,K=16,V=16", "--json"))
        self.assertEqual({r["T"] for r in report["by_length"]}, {8192 << i for i in range(5)})
        self.assertEqual({r["documents"] for r in report["by_documents"]}, {1, 10, 100, 1000})
        for ranks in (2, 4):
            rows = [r for r in report["by_length"] if r["ranks"] == ranks]
            relay = [r["forward_per_border"] for r in rows if r["exchange"] == "relay"]
            gather = [r["forward_per_border"] for r in rows if r["exchange"] == "gather"]
            self.assertEqual(set(relay), {4.0 * 16 * 16}, "one state for each border, whatever the length")
            self.assertEqual(gather, sorted(gather))
            self.assertGreater(gather[-1], 4 * gather[0])
            for row in rows:
                self.assertEqual(row["borders"], ranks - 1)
                self.assertEqual(list(row["phases"]), PHASES)
        for row in report["by_documents"]:
            self.assertGreater(row["forward_per_border"] + row["rows_per_border"], 0, "cuts lie inside documents")
        text = self.ok("bench", NONDET_KCP, "--comm", "--shape", "T=2000,H=1,K=16,V=16")
        for word in (NONDET_KCP, "One document", "Documents that share", "relay", "gather", "131072"):
            self.assertIn(word, text)

    def test_bad_usage(self):
        for option, *value in (("--ranks", "2"), ("--exchange", "relay"), ("--cut", "even"), ("--comm",)):
            self.refused("bench", MODULE, option, *value, says=[option, MODULE, "one rank", KCP, NONDET_KCP])
        self.refused("bench", KCP, "--ranks", "0", says=["--ranks"])
        self.refused("bench", KCP, "--ranks", "many", says=["--ranks"])
        self.refused("bench", KCP, "--exchange", "carrier", says=["exchange", "carrier", "relay"])
        self.refused("bench", KCP, "--cut", "odd", says=["--cut", "odd", "segment or even"])
        self.refused("bench", KCP, "--shape", "T=2,H=1", "--ranks", "3", "--cut", "even", says=["--cut", "T=2"])
        for option, value in (
            ("--ranks", "2"),
            ("--exchange", "relay"),
            ("--cut", "even"),
            ("--threads", "2"),
            ("--repeats", "2"),
            ("--isa", "v3"),
        ):
            self.refused("bench", KCP, "--comm", option, value, says=[option, "--comm"])
        self.refused("bench", KCP, "--comm", "--shape", "T=999", says=["--shape", "T=999", "1000"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
