#!/usr/bin/env python3
"""Each mode's library holds its own order of addition alone, and neither library loads the other.
usage: mode_isolation.py LIBCAKE_DET LIBCAKE_NONDET | mode_isolation.py --self-test CXX"""
import os
import subprocess
import sys
import tempfile

import gate


def names(library):
    return subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout


def needed(library):
    out = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]") for line in out.splitlines() if "(NEEDED)" in line]


def check(det, nondet):
    findings = []
    if "AnyOrder" in names(det):
        findings.append("libcake_det holds code for AnyOrder")
    if "FixedOrder" not in names(det):
        findings.append("libcake_det holds no code for FixedOrder: this gate looks for the wrong name")
    if "AnyOrder" not in names(nondet):
        findings.append("libcake_nondet holds no code for AnyOrder")
    if "<cake::kda::FixedOrder" in names(nondet):
        findings.append("libcake_nondet instantiates a backward for FixedOrder")
    findings += [f"libcake_det needs {n}" for n in needed(det) if "cake_nondet" in n]
    findings += [f"libcake_nondet needs {n}" for n in needed(nondet) if "cake_det" in n]
    return findings


def self_test(compiler):
    with tempfile.TemporaryDirectory() as root:
        def build(name, order, *flags):
            gate.plant(root, name + ".cc", f"namespace cake::kda {{ struct {order} {{}};\n"
                       f"template <class T> void backward(T) {{}}\ntemplate void backward<{order}>({order}); }}\n")
            library = os.path.join(root, f"lib{name}.so")
            subprocess.run(
                [compiler, "-fPIC", "-shared", os.path.join(root, name + ".cc"), "-o", library, *flags], check=True
            )
            return library

        det, nondet = build("cake_det", "FixedOrder"), build("cake_nondet", "AnyOrder")
        if check(det, nondet):
            raise SystemExit(f"self-test: clean libraries were refused: {check(det, nondet)}")
        if len(check(nondet, det)) < 3:
            raise SystemExit(f"self-test: exchanged libraries passed: {check(nondet, det)}")
        linked = build("cake_nondet", "AnyOrder", "-Wl,--no-as-needed", det, f"-Wl,-rpath,{root}")
        if not any("needs" in finding for finding in check(det, linked)):
            raise SystemExit("self-test: a library that needs the other passed")
    print("mode isolation: self-test passed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--self-test"] and len(sys.argv) == 3:
        self_test(sys.argv[2])
    elif len(sys.argv) == 3:
        sys.exit(gate.report("mode isolation", check(sys.argv[1], sys.argv[2])))
    else:
        sys.exit(__doc__)
