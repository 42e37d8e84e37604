#!/usr/bin/env python3
"""Runs the cake command (its path in CAKE_TEST_COMMAND) the way users do and checks what it prints and returns."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

CAKE = os.environ["CAKE_TEST_COMMAND"]
MODULE = "cake_kda_det_train"
NONDET = "cake_kda_nondet_train"
KCP = "cake_kda_det_train_kcp"
NONDET_KCP = "cake_kda_nondet_train_kcp"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def cake(*arguments, **variables):
    """Runs the command with extra environment variables; returns the finished process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CAKE_")}
    environment.update(variables)
    return subprocess.run([CAKE, *arguments], env=environment, capture_output=True, text=True, timeout=580, check=False)


class Case(unittest.TestCase):
    """Checks shared by all commands."""

    def ok(self, *arguments, **variables):
        """The command must succeed; returns its output."""
        done = cake(*arguments, **variables)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr)
        return done.stdout

    def refused(self, *arguments, says, **variables):
        """The command must end with exit code 2, print nothing on stdout and every text of `says` on stderr."""
        done = cake(*arguments, **variables)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        for text in says:
            self.assertIn(text, done.stderr)


class Command(Case):
    """The command itself."""

    def test_bad_usage(self):
        self.refused(says=["subcommand"])
        self.refused("nonsense", says=["nonsense"])
        self.refused("info", "--nonsense", says=["--nonsense"])

    def test_help_lists_every_command_and_hides_the_internal_one(self):
        text = self.ok("--help")
        for name in ("info", "audit", "bench", "train"):
            self.assertRegex(text, rf"\n +{name} ")
        self.assertNotIn("audit-digests", text)


class Info(Case):
    """cake info."""

    def test_text(self):
        text = self.ok("info")
        for word in ("Cake Train", "compiler", "threads", "segment", "Devices", "in use", "cuda", MODULE, NONDET,
                     KCP, NONDET_KCP, "runs here"):
            self.assertIn(word, text)

    def test_json(self):
        info = json.loads(self.ok("info", "--json"))
        self.assertRegex(info["build"]["version"], r"^\d+\.\d+\.\d+$")
        for key in ("compiler", "build_type", "threads_backend", "cuda", "segment", "planted_fault"):
            self.assertIn(key, info["build"])
        cpu, cuda = info["devices"]
        self.assertEqual(list(cpu["levels"]), ["base", "v3", "v4"])
        self.assertEqual(cpu["levels"]["base"], "yes")
        self.assertTrue(set(cpu["levels"].values()) <= {"yes", "not on this CPU"})
        self.assertEqual(cpu["levels"][cpu["level_in_use"]], "yes")
        self.assertGreaterEqual(cpu["cores"], 1)
        self.assertTrue(cuda["reason"])
        self.assertEqual([(p["name"], p["deterministic"]) for p in info["packages"]],
                         [(MODULE, True), (NONDET, False), (KCP, True), (NONDET_KCP, False)])
        for package in info["packages"]:
            on_cpu = [i for i in package["implementations"] if i["device"] == "cpu"]
            self.assertEqual(sum(i["refused"] == "" for i in on_cpu), 1, "one runs, the others say why not")
            self.assertTrue(all(i["refused"] for i in package["implementations"] if i["device"] == "cuda"))

    def test_environment_is_in_effect(self):
        info = json.loads(self.ok("info", "--json", CAKE_CPU_ISA="base", CAKE_NUM_THREADS="3"))
        self.assertEqual(info["environment"], {"CAKE_CPU_ISA": "base", "CAKE_NUM_THREADS": "3"})
        self.assertEqual(info["devices"][0]["level_in_use"], "base")
        self.assertEqual(info["devices"][0]["threads"], 3)
        info = json.loads(self.ok("info", "--json"))
        self.assertEqual(info["environment"], {"CAKE_CPU_ISA": None, "CAKE_NUM_THREADS": None})

    def test_bad_environment_is_an_error(self):
        self.refused("info", says=["CAKE_CPU_ISA", "v9", "base, v3 or v4"], CAKE_CPU_ISA="v9")
        self.refused("info", says=["CAKE_NUM_THREADS", "many"], CAKE_NUM_THREADS="many")


class Audit(Case):
    """cake audit, at its smallest settings (in a build with the planted fault it must fail)."""

    SMALL = ("audit", MODULE, "--repeats", "1", "--threads", "1,2", "--isa", "v3,v4")
    COLUMNS = ["repeat", "threads", "task order", "isa v3", "isa v4", "memory", "address", "recompute", "tape",
               "tail passes", "batching", "packing", "MXCSR", "process", "load"]

    @classmethod
    def setUpClass(cls):
        cls.info = json.loads(cake("info", "--json").stdout)
        cls.done = cake(*cls.SMALL, "--json")
        cls.report = json.loads(cls.done.stdout) if cls.done.returncode in (0, 1) else {}

    def test_verdict(self):
        faulty = self.info["build"]["planted_fault"]
        where = sorted({(d["problem"], d["run"]) for d in self.report.get("differences", [])})
        self.assertEqual(self.done.returncode, 1 if faulty else 0, (self.done.stderr, where))
        self.assertEqual(self.report["passed"], not faulty)
        self.assertEqual(self.report["differences"] == [], not faulty)

    def test_every_result_is_compared_under_every_perturbation(self):
        self.assertGreater(self.report["comparisons"], 500)
        levels = self.info["devices"][0]["levels"]
        tensors = set()
        for problem in self.report["problems"]:
            self.assertEqual(list(problem["perturbations"]), self.COLUMNS)
            for tensor in problem["tensors"]:
                tensors.add(tensor["name"])
                self.assertRegex(tensor["digest"], r"^sha256:[0-9a-f]{64}$")
                for name, outcome in tensor["checks"].items():
                    level = name.removeprefix("isa ")
                    if levels.get(level) == "not on this CPU":
                        self.assertEqual(outcome, "not on this CPU")
                    elif name == "packing" and tensor["name"] in ("dA_log", "ddt_bias"):
                        self.assertIn(outcome, ("ok", "-"))  # their fold follows the pack
                    elif not self.info["build"]["planted_fault"]:
                        self.assertEqual(outcome, "ok", (problem["name"], tensor["name"], name))
        self.assertEqual(
            tensors,
            {"out", "final_state", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dinitial_state"})

    def test_table(self):
        done = cake("audit", MODULE, "--repeats", "1", "--threads", "2", "--isa", "v4", CAKE_NUM_THREADS="2")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertRegex(done.stdout, r"\d+ digests compared, \d+ differ")
        if self.info["devices"][0]["levels"]["v4"] != "yes":
            self.assertIn("isa v4: not on this CPU", done.stdout)
        # Another process, other threads: the digests that the table shows are those of the JSON report.
        digests = {(m[0], m[1]) for m in re.findall(r"^  (\w+) +([0-9a-f]{12}) ", done.stdout, re.M)}
        expected = {(t["name"], t["digest"][7:19]) for p in self.report["problems"] for t in p["tensors"]}
        self.assertEqual(digests, expected)

    def test_a_package_without_a_promise_is_reported_and_passes(self):
        small = ("audit", NONDET, "--repeats", "4", "--threads", "1,3", "--isa", "v3,v4")
        done = cake(*small, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "", "no alert")
        report = json.loads(done.stdout)
        self.assertTrue(self.report["promises_bits"])
        self.assertFalse(report["promises_bits"])
        self.assertTrue(report["passed"])
        self.assertEqual(list(report["problems"][0]["perturbations"]), self.COLUMNS)
        self.assertIn("repeat 4, threads 3", report["problems"][0]["perturbations"]["repeat"])
        tally = {t["name"]: t for t in report["tensors"]}
        self.assertEqual(sum(t["compared"] for t in tally.values()), report["comparisons"])
        self.assertEqual(sum(t["differ"] for t in tally.values()), len(report["differences"]))
        # Shuffled on one thread the tasks finish in another order for certain.
        self.assertIn("task order", tally["ddt_bias"]["perturbations"])
        self.assertEqual({n for n, t in tally.items() if t["differ"] > 0} - {"dA_log", "ddt_bias"}, set())
        for problem in report["problems"]:
            for tensor in problem["tensors"]:
                self.assertLessEqual(set(tensor["checks"].values()), {"same", "differs", "-", "not on this CPU"})

    def test_table_of_a_package_without_a_promise(self):
        done = cake("audit", NONDET, "--repeats", "1", "--threads", "1,2", "--isa", "v4")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\n\d+ digests compared, \d+ differ \(nondeterministic package: no promise\)\n")
        self.assertRegex(done.stdout, r"\n  out +\d+ +0  no difference\n")
        self.assertRegex(done.stdout, r"\n  ddt_bias +\d+ +\d+  .*task order")
        self.assertNotIn("NOT DETERMINISTIC", done.stdout)

    def test_bad_usage(self):
        self.refused("audit", says=["MODULE"])
        self.refused(
            "audit", "cake_nothing_det_train", says=["cake_nothing_det_train", MODULE, NONDET, KCP, NONDET_KCP]
        )
        self.refused("audit", MODULE, "--isa", "v3,v9", says=["v9", "base, v3 or v4"])
        self.refused("audit", MODULE, "--threads", "1,0", says=["--threads"])
        self.refused("audit", MODULE, "--threads", "two", says=["--threads"])
        self.refused("audit", MODULE, "--repeats", "0", says=["--repeats"])


SHAPE = ("--shape", "T=130,H=2,K=32,V=48")


class Bench(Case):
    """cake bench, on a shape too small to say anything about speed."""

    def test_json(self):
        report = json.loads(self.ok("bench", MODULE, *SHAPE, "--repeats", "2", "--json"))
        self.assertEqual(report["module"], MODULE)
        self.assertEqual(report["shape"], {"T": 130, "H": 2, "K": 32, "V": 48})
        self.assertTrue(report["agrees"])
        self.assertEqual([c["ok"] for c in report["checks"]], [True] * 4)
        self.assertTrue(all(0 < c["error"] < 1e-5 for c in report["checks"]))
        cases = {c["name"]: c for c in report["cases"]}
        for name in ("fma_peak", "gemm_64x128x128", "memory_copy", "forward", "forward_backward",
                     "forward_backward_tape", "backward_recompute", "nondet_forward_backward", "weak_gates",
                     "strong_gates", "fp32", "bf16", "token_forward", "token_forward_backward", "plain_forward",
                     "plain_forward_backward"):
            case = cases[name]
            self.assertEqual(len(case["samples_s"]), 2, name)
            self.assertLessEqual(case["min_s"], case["median_s"])
            self.assertLessEqual(case["median_s"], case["max_s"])
            self.assertGreater(case["min_s"], 0)
        flops = 130 * 2 * (64 * (4 * 32 + 4 * 48) + 6 * 32 * 48)
        self.assertEqual(cases["forward"]["flops"], flops)
        self.assertAlmostEqual(cases["forward"]["gflops"], flops / cases["forward"]["median_s"] * 1e-9, places=6)
        self.check_memory(cases, "nondet_forward_backward")
        names = {r["name"] for r in report["ratios"]}
        self.assertLessEqual({"forward_of_gemm", "forward_backward_of_gemm", "over_token", "over_plain",
                              "strong_over_weak", "bf16_over_fp32", "tape_over_light", "nondet_over_det"}, names)
        for ratio in report["ratios"]:
            self.assertGreater(ratio["value"], 0)
            self.assertNotIn(ratio["verdict"], ("met", "missed"), "targets belong to the stated shape")

    def check_memory(self, cases, other):
        """Bytes of the saved set and the workspace where a case of a package has them."""
        light, tape, recompute = (cases[n] for n in ("forward_backward", "forward_backward_tape", "backward_recompute"))
        self.assertGreater(tape["saved_bytes"], light["saved_bytes"])
        self.assertGreater(light["saved_bytes"], 0)
        self.assertLess(tape["workspace_bytes"], light["workspace_bytes"])
        self.assertIsNone(recompute["saved_bytes"])
        self.assertGreater(recompute["workspace_bytes"], light["workspace_bytes"])
        self.assertEqual(cases[other]["saved_bytes"], light["saved_bytes"])
        self.assertIsNone(cases["forward"]["saved_bytes"])
        self.assertGreater(cases["forward"]["workspace_bytes"], 0)
        self.assertIsNone(cases["fma_peak"]["workspace_bytes"])

    def test_package_without_a_promise(self):
        report = json.loads(self.ok("bench", NONDET, *SHAPE, "--repeats", "2", "--json"))
        self.assertEqual(report["module"], NONDET)
        self.assertEqual([c["ok"] for c in report["checks"]], [True] * 4)
        cases = {c["name"]: c for c in report["cases"]}
        self.check_memory(cases, "det_forward_backward")
        ratio = {r["name"]: r for r in report["ratios"]}["nondet_over_det"]
        self.assertIsNone(ratio["target"])
        nondet, det = (cases[n]["samples_s"] for n in ("forward_backward", "det_forward_backward"))
        self.assertAlmostEqual(ratio["value"], sum(a / b for a, b in zip(nondet, det)) / 2, places=6)

    def test_formula_at_the_stated_width(self):
        report = json.loads(self.ok("bench", MODULE, "--shape", "T=1,H=1", "--repeats", "1", "--json"))
        cases = {c["name"]: c for c in report["cases"]}
        self.assertEqual(cases["forward"]["flops"], 163840)
        self.assertEqual(cases["backward_recompute"]["flops"], 376832)
        self.assertEqual(cases["forward_backward"]["flops"], 163840 + 376832)

    def test_text(self):
        text = self.ok("bench", MODULE, *SHAPE, "--repeats", "1", "--dtype", "bf16", "--threads", "2")
        for word in ("T=130,H=2,K=32,V=48, bf16", "2 thread(s)", "FMA peak", "GFLOP/s", "plain loops", "verdict",
                     "(saved, tape)", "saved MiB", "workspace MiB", "time of nondet / det, forward + backward"):
            self.assertIn(word, text)

    def test_levels(self):
        report = json.loads(self.ok("bench", MODULE, "--shape", "T=5,H=1,K=16,V=16", "--repeats", "1", "--isa", "base",
                                    "--dtype", "fp16", "--json"))
        self.assertEqual((report["level"], report["dtype"]), ("base", "fp16"))
        if json.loads(self.ok("info", "--json"))["devices"][0]["levels"]["v4"] != "yes":
            self.refused("bench", MODULE, "--isa", "v4", says=["v4", "not on this CPU"])

    def test_bad_usage(self):
        self.refused("bench", says=["MODULE"])
        self.refused(
            "bench", "cake_nothing_det_train", says=["cake_nothing_det_train", MODULE, NONDET, KCP, NONDET_KCP]
        )
        for shape in ("T=0", "T=-5", "T=4x", "T=", "T", "X=3", "T=4,T=5", "T=4,", "H=0", "K=20", "K=272", "V=8", ",",
                      "T=99999999999999999999"):
            self.refused("bench", MODULE, "--shape", shape, says=["--shape", "expected"])
        self.refused("bench", MODULE, "--dtype", "fp64", says=["fp64", "fp32, bf16 or fp16"])
        self.refused("bench", MODULE, "--isa", "v9", says=["v9", "base, v3 or v4"])
        self.refused("bench", MODULE, "--threads", "0", says=["--threads"])
        self.refused("bench", MODULE, "--repeats", "none", says=["--repeats"])


class Plot(Case):
    """scripts/plot_bench.py."""

    SCRIPT = ROOT / "scripts" / "plot_bench.py"

    def plot(self, *arguments):
        return subprocess.run([sys.executable, self.SCRIPT, *arguments], capture_output=True, text=True, check=False)

    def test_draws_a_report(self):
        report = self.ok("bench", MODULE, *SHAPE, "--repeats", "2", "--json")
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "b.json"), pathlib.Path(folder, "b.svg")
            source.write_text(report, encoding="utf-8")
            done = self.plot(source, target)
            self.assertEqual(done.returncode, 0, done.stderr)
            root = xml.etree.ElementTree.parse(target).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        texts = "".join(root.itertext())
        cases = [c for c in json.loads(report)["cases"] if c["flops"] > 0]
        for case in cases:
            self.assertIn(case["label"], texts)
        bars = [e for e in root.iter() if e.get("class") == "bar"]
        self.assertEqual(len(bars), len(cases))
        rates = [c["gflops"] for c in cases]
        widest = max(range(len(bars)), key=lambda i: float(bars[i].get("width")))
        self.assertEqual(widest, rates.index(max(rates)))

    def test_refuses_what_is_no_report(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = pathlib.Path(folder, "b.json"), pathlib.Path(folder, "b.svg")
            for text in ("{", "{}", '{"cases": []}'):
                source.write_text(text, encoding="utf-8")
                done = self.plot(source, target)
                self.assertEqual(done.returncode, 2, text)
                self.assertIn("b.json", done.stderr)
                self.assertFalse(target.exists())
            self.assertEqual(self.plot(pathlib.Path(folder, "missing.json"), target).returncode, 2)


class Train(Case):
    """cake train with each package (what else it does: tests/train/command_test.cc)."""

    SMALL = ("--batch-tokens", "256", "--layers", "1", "--width", "64", "--heads", "1", "--threads", "2", "--json")

    def test_both_packages(self):
        self.assertRegex(" ".join(self.ok("train", "--help").split()), rf"{MODULE}, or {NONDET}")
        with tempfile.TemporaryDirectory() as folder:
            text, checkpoint = pathlib.Path(folder, "text.txt"), pathlib.Path(folder, "c")
            text.write_text("Training kernels whose name says what they promise. " * 200, encoding="utf-8")
            run = ("train", "--text", str(text), *self.SMALL)
            det = json.loads(self.ok(*run, "--steps", "2"))
            done = cake(*run, "--steps", "2", "--schedule-steps", "3", "--package", NONDET,
                        "--checkpoint", str(checkpoint))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("nondeterministic", done.stderr)
            nondet = json.loads(done.stdout)
            self.assertEqual(nondet["steps"], 2)
            self.assertRegex(nondet["digest"], r"^sha256:[0-9a-f]{64}$")  # equal to the other or not: no promise
            self.assertAlmostEqual(nondet["loss_first"], det["loss_first"], places=5)
            self.assertAlmostEqual(nondet["loss_last"], det["loss_last"], places=3)
            # The checkpoint knows its package.
            self.refused(*run, "--resume", str(checkpoint), "--package", MODULE, says=["package", NONDET])
            self.assertEqual(json.loads(self.ok(*run, "--resume", str(checkpoint)))["steps"], 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
