#!/usr/bin/env python3
"""Includes only point upward in the layers of docs/architecture.md; public headers need nothing but the standard
library; third-party headers appear only where docs/decisions.md allows them; package files stay thin."""
import re
import sys
import tempfile

import gate

# Folder -> prefixes that a quoted include may start with. The longest matching folder counts.
ALLOWED = {
    "include/cake/core": ("cake/core/",),
    "include/cake": ("cake/",),
    "src/core": ("cake/core/", "core/"),
    "src/comm": ("cake/core/", "cake/comm.h", "cake/kcp.h", "cake/mpi.h", "core/", "comm/"),
    "src/packages": ("cake/", "core/", "ops/", "packages/"),
    "src/ffi": ("cake/", "core/", "ffi/"),
    "examples": ("cake/", "core/", "ops/", "examples/"),
    "benchmarks": ("cake/", "core/", "ops/", "benchmarks/"),
    "tools": ("cake/", "core/", "ops/", "packages/", "examples/", "benchmarks/", "tools/"),
}
# Third-party header -> folders or files that may use it. Everything else in <> of a public header must be the standard
# library, of the library's sources that or POSIX.
THIRD_PARTY = {
    "tbb/": ("src/core/parallel.cc",),
    "mpi.h": ("src/comm/mpi.cc",),
    "tvm/ffi/": ("src/ffi/",),
    "immintrin.h": ("src/core/", "src/ops/", "benchmarks/", "tools/", "tests/"),
    "nlohmann/": ("tools/", "examples/", "tests/"),
    "CLI/": ("tools/", "examples/", "tests/"),
    "fmt/": ("tools/", "examples/", "benchmarks/", "tests/"),
    "openssl/": ("tools/", "examples/", "tests/"),
    "benchmark/": ("benchmarks/",),
    "gtest/": ("tests/",),
    "gmock/": ("tests/",),
    "cblas.h": ("tests/",),
}
POSIX = ("sched.h", "unistd.h", "fcntl.h", "dlfcn.h", "pthread.h", "signal.h", "termios.h", "sys/")
PACKAGE_LINES = 300
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.M)


def allowed_prefixes(path):
    if path.startswith("src/ops/"):
        family = path.split("/")[2]
        return ("cake/", "core/", "comm/", f"ops/{family}/")
    best = ""
    for folder in ALLOWED:
        if path.startswith(folder + "/") and len(folder) > len(best):
            best = folder
    return ALLOWED.get(best)


def third_party_use(header):
    for prefix in THIRD_PARTY:
        if header.startswith(prefix):
            return prefix
    return None


def check(root):
    findings = []
    for path in gate.files(root, gate.CODE_FOLDERS, (".h", ".cc", ".cu", ".cuh")):
        if path.startswith("tests/packaging/"):
            continue  # consumer projects: they see the library as a user does
        text = gate.read(root, path)
        prefixes = allowed_prefixes(path)
        for match in _INCLUDE.finditer(gate.blank(text, keep_strings=True)):
            kind, header = match.groups()
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            if kind == '"':
                # "name.h" without a folder is a neighbour of the including file.
                if prefixes is None or ("/" not in header and not path.startswith("include/")):
                    continue
                if not header.startswith(prefixes):
                    findings.append(f'{where}: may not include "{header}" (allowed: {", ".join(prefixes)})')
                continue
            used = third_party_use(header)
            if used is not None:
                if not path.startswith(THIRD_PARTY[used]):
                    findings.append(f"{where}: may not include <{header}> (allowed in {', '.join(THIRD_PARTY[used])})")
            elif "." in header and path.startswith(("include/", "src/")) and not (
                    path.startswith("src/") and header.startswith(POSIX)):
                findings.append(f"{where}: <{header}> is neither standard nor a known dependency")
        if path.startswith("src/packages/") and text.count("\n") > PACKAGE_LINES:
            findings.append(
                f"{path}: {text.count(chr(10))} lines; a package file binds names and stays below {PACKAGE_LINES}"
            )
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        gate.plant(root, "include/cake/kda_det_train.h", '#include <vector>\n#include "cake/core/tensor.h"\n')
        gate.plant(root, "src/core/parallel.cc", "#include <tbb/task_arena.h>\n#include <sched.h>\n")
        gate.plant(
            root,
            "src/ops/kda/cpu/driver.cc",
            '#include "ops/kda/problem.h"\n#include "core/gemm.h"\n#include "near.h"\n',
        )
        gate.plant(root, "src/packages/kda.cc", '#include "ops/kda/problem.h"\n// #include "tools/x.h"\n')
        gate.expect(check, root, 0)
        gate.plant(root, "src/core/bad.cc", '#include "ops/kda/problem.h"\n')
        gate.expect(check, root, 1, "src/core/bad.cc:1", "ops/kda/problem.h")
        gate.plant(
            root,
            "include/cake/core/bad.h",
            '#include <tbb/task.h>\n#include "cake/kda_det_train.h"\n#include <immintrin.h>\n',
        )
        gate.expect(
            check, root, 4, "include/cake/core/bad.h:1", "include/cake/core/bad.h:2", "include/cake/core/bad.h:3"
        )
        gate.plant(
            root,
            "src/ops/gdn/problem.cc",
            '#include "ops/kda/problem.h"\n#include "packages/x.h"\n#include <fmt/core.h>\n',
        )
        gate.expect(check, root, 7, "src/ops/gdn/problem.cc:1", "src/ops/gdn/problem.cc:2", "fmt/core.h")
        gate.plant(root, "include/cake/core/loose.h", '#include "tensor.h"\n')
        gate.expect(check, root, 8, "loose.h:1")
        gate.plant(root, "src/packages/kda.cc", "int x;\n" * (PACKAGE_LINES + 1))
        gate.expect(check, root, 9, "src/packages/kda.cc")


if __name__ == "__main__":
    sys.exit(gate.main("layering", check, self_test))
