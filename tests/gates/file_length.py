#!/usr/bin/env python3
"""A file is at most 400 lines, a kernel file (src/ops/<family>/cpu or cuda) at most 600."""
import re
import sys
import tempfile

import gate

LIMIT, KERNEL_LIMIT = 400, 600
_KERNEL = re.compile(r"^src/ops/\w+/(cpu|cuda)/")


def check(root):
    findings = []
    for path in gate.files(root, gate.CODE_FOLDERS + ("scripts", "cmake", "python"),
                           (".h", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", "CMakeLists.txt")):
        lines = gate.read(root, path).count("\n")
        limit = KERNEL_LIMIT if _KERNEL.match(path) else LIMIT
        if lines > limit:
            findings.append(f"{path}: {lines} lines, at most {limit}")
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        gate.plant(root, "src/core/a.cc", "\n" * LIMIT)
        gate.plant(root, "src/ops/kda/cpu/kernels.cc", "\n" * KERNEL_LIMIT)
        gate.expect(check, root, 0)
        gate.plant(root, "src/core/b.cc", "\n" * (LIMIT + 1))
        gate.plant(root, "src/ops/kda/problem.cc", "\n" * KERNEL_LIMIT)
        gate.plant(root, "src/ops/kda/cpu/long.h", "\n" * (KERNEL_LIMIT + 1))
        gate.expect(check, root, 3, "src/core/b.cc", "src/ops/kda/problem.cc", "src/ops/kda/cpu/long.h")


if __name__ == "__main__":
    sys.exit(gate.main("file length", check, self_test))
