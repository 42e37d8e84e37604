#!/usr/bin/env python3
"""The shared libraries need no libm, BLAS or OpenMP function at run time, and export nothing but cake:: names.
usage: library_symbols.py LIBRARY... | library_symbols.py --self-test CXX"""
import os
import re
import subprocess
import sys
import tempfile

import banned_names
import gate

_BANNED = re.compile(
    r"^(?:(?:" + "|".join(banned_names.LIBM) + r")[fl]?|sincos[fl]?|cblas_\w+|[sd]gemm_|GOMP_\w+|omp_\w+|"
    r"_ZGV\w+)$"
)


def symbols(path, *options):
    out = subprocess.run(
        ["nm", "-D", "--format=posix", *options, path], capture_output=True, text=True, check=True
    ).stdout
    return [(line.split()[0].split("@")[0], line.split()[1]) for line in out.splitlines()]


def check(paths):
    findings = []
    for path in paths:
        name = os.path.basename(path)
        findings += [f"{name} needs {symbol} at run time" for symbol, _ in symbols(path, "--undefined-only")
                     if _BANNED.match(symbol)]
        # Weak names are the standard library's templates; strong ones are ours alone.
        findings += [f"{name} exports {symbol}" for symbol, kind in symbols(path, "--defined-only")
                     if kind in "TDBR" and not re.match(r"_Z(?:T[VTIS])?N?K?4cake", symbol)]
    return findings


def self_test(compiler):
    with tempfile.TemporaryDirectory() as root:
        def build(name, text):
            gate.plant(root, name + ".cc", text)
            library = os.path.join(root, name + ".so")
            subprocess.run([compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-fno-builtin",
                            os.path.join(root, name + ".cc"), "-o", library], check=True)
            return library

        fine = build("fine", "namespace cake { float twice(float x) { return x + x; } }\n")
        if check([fine]):
            raise SystemExit(f"self-test: a clean library was refused: {check([fine])}")
        bad = build(
            "bad",
            'extern "C" float expf(float);\nextern "C" void cblas_sgemm();\n'
            "namespace cake { float f(float x) { cblas_sgemm(); return expf(x); } }\nint leaked() { return 1; }\n",
        )
        found = "\n".join(check([bad]))
        for word in ("expf", "cblas_sgemm", "leaked"):
            if word not in found:
                raise SystemExit(f"self-test: {word} was not found in: {found}")
    print("library symbols: self-test passed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--self-test"] and len(sys.argv) == 3:
        self_test(sys.argv[2])
    elif len(sys.argv) > 1:
        sys.exit(gate.report("library symbols", check(sys.argv[1:])))
    else:
        sys.exit(__doc__)
