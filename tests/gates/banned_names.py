#!/usr/bin/env python3
"""Names that may not appear where bits matter: libm, unordered reductions, BLAS, floating-point atomics, flags that let
the compiler reorder. A line that only shows a number to a person may say so: `// not on the det path: <why>`."""
import re
import sys
import tempfile

import gate

LIBM = (
    "exp exp2 expm1 exp10 log log2 log10 log1p logb pow sin cos tan sincos asin acos atan atan2 sinh cosh tanh asinh "
    "acosh atanh erf erfc tgamma lgamma cbrt hypot fma ldexp scalbn frexp remainder fmod"
).split()
_FUNCTION = "(?:" + "|".join(LIBM) + ")"
RULES = [
    (re.compile(r"\bstd\s*::\s*" + _FUNCTION + r"[fl]?\b"), "libm"),
    (re.compile(r"(?<![\w:.>])::\s*" + _FUNCTION + r"[fl]?\s*\("), "libm"),
    (re.compile(r"\b(?:__builtin_)" + _FUNCTION + r"[fl]?\b"), "libm"),
    (re.compile(r"\b" + _FUNCTION + r"[fl]\s*\("), "libm"),
    (re.compile(r"\bstd\s*::\s*(?:reduce|transform_reduce|inclusive_scan|exclusive_scan|transform_inclusive_scan|"
                r"transform_exclusive_scan)\b"), "a reduction without a fixed order"),
    (re.compile(r"\bstd\s*::\s*execution\b"), "a parallel algorithm"),
    (re.compile(r"\bparallel_(?:deterministic_)?(?:reduce|scan)\b"), "a reduction without a fixed order"),
    (re.compile(r"\b(?:cblas_\w+|[sd]gemm_?)\s*\("), "BLAS"),
    (re.compile(r"#\s*pragma\s+omp\b|\bomp_\w+\s*\("), "OpenMP"),
    (re.compile(r"\batomic(?:_ref)?\s*<\s*(?:float|double)\b"), "a floating-point atomic"),
    (re.compile(r"\bvalarray\b"), "a type whose sums have no stated order"),
]
# Headers that the library has no use for: math.h would let a bare exp() mean libm.
HEADERS = re.compile(r'#\s*include\s*<(math\.h|complex|valarray|execution|omp\.h|experimental/simd)>')
FLAGS = re.compile(r"-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math|-freciprocal-math|"
                   r"-ffp-contract=(?!off)|-fopenmp")
EXEMPT = re.compile(r"// not on the det path: \S")


def on_det_path(path):
    if re.match(r"src/ops/\w+/reference\.(h|cc)$", path):
        return False  # float64 specification in code: an oracle of the tests, no package links it
    return path.startswith(("src/", "examples/train_lm/"))


def check(root):
    findings = []
    for path in gate.files(root, ("src", "examples"), (".h", ".cc", ".cu", ".cuh")):
        if not on_det_path(path):
            continue
        raw = gate.read(root, path).split("\n")
        code = gate.blank("\n".join(raw)).split("\n")
        for number, line in enumerate(code, 1):
            if EXEMPT.search(raw[number - 1]):
                continue
            for rule, what in RULES:
                match = rule.search(line)
                if match:
                    findings.append(f"{path}:{number}: {match.group(0).strip()} ({what}) may not decide bits")
            if path.startswith("src/") and HEADERS.search(raw[number - 1]):
                findings.append(f"{path}:{number}: {raw[number - 1].strip()} has no place in the library")
    for path in gate.files(root, (".",), ("CMakeLists.txt", ".cmake", "CMakePresets.json")):
        for number, line in enumerate(gate.read(root, path).split("\n"), 1):
            match = FLAGS.search(line)
            if match and not line.lstrip().startswith("#"):
                findings.append(f"{path}:{number}: {match.group(0)} lets the compiler change bits")
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        gate.plant(root, "src/ops/kda/reference.cc", "#include <cmath>\ndouble f(double x) { return std::exp(x); }\n")
        gate.plant(root, "src/ops/kda/cpu/kernels.cc",
                   "// std::exp would be wrong here\nF g(F x) { return exp(x) * log(x); }\nauto s = \"std::pow\";\n"
                   "int n = std::max(1, 2); F h = fma(a, b, c);\n")
        gate.plant(root, "examples/train_lm/report.cc",
                   "#include <cmath>\ndouble p = std::exp(loss);  // not on the det path: printed perplexity\n")
        gate.plant(root, "tools/cake/bench.cc", "double x = std::log(2.0);\n")
        gate.plant(root, "CMakeLists.txt", "add_compile_options(-ffp-contract=off)\n")
        gate.expect(check, root, 0)
        bad = ["std::exp(x)", "expf(x)", "__builtin_fmaf(a, b, c)", "std::reduce(a, b)", "tbb::parallel_reduce(r, b)",
               "cblas_sgemm(1)", "std::atomic<float> total", "::pow(x, y)", "std::fma(a, b, c)", "std::tanh(x)",
               "std::transform_reduce(a, b)", "std::sort(std::execution::par, a, b)"]
        gate.plant(root, "src/ops/kda/cpu/bad.cc", "".join(f"auto x{i} = {b};\n" for i, b in enumerate(bad)))
        gate.expect(check, root, len(bad), *(f"bad.cc:{i + 1}:" for i in range(len(bad))))
        gate.plant(root, "src/ops/kda/cpu/bad.cc", "#pragma omp parallel for\n#include <math.h>\n")
        gate.expect(check, root, 2, "OpenMP", "<math.h>")
        gate.plant(root, "examples/train_lm/bad.cc", "float y = std::log1p(x);\n")
        gate.expect(check, root, 3, "examples/train_lm/bad.cc:1")
        gate.plant(root, "src/CMakeLists.txt", "target_compile_options(x PRIVATE -ffast-math)\n")
        gate.expect(check, root, 4, "src/CMakeLists.txt:1")


if __name__ == "__main__":
    sys.exit(gate.main("banned names", check, self_test))
