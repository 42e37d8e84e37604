#!/usr/bin/env python3
"""The per-level objects share no symbol that the linker could merge: every weak or unique symbol lives in the level's
own namespace cake::isa_<level>. usage: isa_symbols.py OBJECT... | isa_symbols.py --self-test CXX"""
import os
import re
import subprocess
import sys
import tempfile

import gate

LEVELS = ("base", "v3", "v4")


def level_of(path):
    match = re.search(r"_isa_(base|v3|v4)\.dir/", path)
    return match.group(1) if match else None


def object_findings(path, level):
    out = subprocess.run(
        ["nm", "--defined-only", "--format=posix", path], capture_output=True, text=True, check=True
    ).stdout
    findings = []
    for line in out.splitlines():
        name, kind = line.split()[:2]
        # _ZN4cake6isa_v3...: nested names of cake::isa_v3 (with qualifiers for const members and special objects).
        mine = re.match(r"_Z(?:T[VTIS])?N(?:K)?4cake\d+isa_" + level + r"[A-Z0-9]", name) is not None
        if kind in "WVuwv" and not mine:
            findings.append(f"{os.path.basename(path)} ({level}): weak or unique symbol {name}")
        elif kind in "TDBR" and not mine:
            findings.append(f"{os.path.basename(path)} ({level}): global symbol {name} outside cake::isa_{level}")
    return findings


def check(paths):
    findings, seen = [], set()
    for path in paths:
        level = level_of(path)
        if level is None:
            findings.append(f"{path}: not in a folder named <target>_isa_<level>.dir")
            continue
        seen.add(level)
        findings += object_findings(path, level)
    findings += [f"no object of level {level} was given" for level in LEVELS if level not in seen]
    return findings


def self_test(compiler):
    good = ("namespace cake::isa_{0} {{ struct T {{ int x; }}; extern const T kTable; const T kTable = {{1}};\n"
            "template <int N> int f() {{ return N; }} int g() {{ return f<3>(); }} }}\n")
    bad = ("template <class T> struct Shared {{ static T add(T a, T b) {{ return a + b; }} }};\n"
           "namespace cake::isa_{0} {{ float g(float x) {{ return Shared<float>::add(x, x); }} }}\n")
    with tempfile.TemporaryDirectory() as root:
        paths = {}
        for name, text in (("good", good), ("bad", bad)):
            for level in LEVELS:
                gate.plant(root, f"k_isa_{level}.dir/{name}.cc", text.format(level))
                paths[name, level] = os.path.join(root, f"k_isa_{level}.dir/{name}.o")
                subprocess.run(
                    [compiler, "-std=c++20", "-O0", "-c", paths[name, level][:-1] + "cc", "-o", paths[name, level]],
                    check=True,
                )
        fine = [paths["good", level] for level in LEVELS]
        if check(fine):
            raise SystemExit(f"self-test: clean objects were refused: {check(fine)}")
        found = check(fine + [paths["bad", "v3"]])
        if len(found) != 1 or "Shared" not in found[0]:
            raise SystemExit(f"self-test: the shared weak symbol was not found: {found}")
        if len(check(fine[:2])) != 1:
            raise SystemExit("self-test: a missing level was not noticed")
    print("isa symbols: self-test passed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--self-test"] and len(sys.argv) == 3:
        self_test(sys.argv[2])
    elif len(sys.argv) > 1:
        sys.exit(gate.report("isa symbols", check(sys.argv[1:])))
    else:
        sys.exit(__doc__)
