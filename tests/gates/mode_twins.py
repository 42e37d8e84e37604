#!/usr/bin/env python3
"""The header and the source of a family's two packages say the same thing: with the words of the modes exchanged their
code (not the comments) differs only where the nondet one takes the determinism policy."""
import os
import re
import sys
import tempfile

import gate

PAIRS = (("include/cake", ".h"), ("src/packages", ".cc"))
# What only a nondet package has, removed before the comparison. Each is a regular expression over squeezed code.
NONDET_ONLY = (
    r'#include "cake/core/determinism\.h"',
    r", ?std::optional<DeterminismPolicy> policy( = \{\})?",
    r", policy(?=\))",
    r"alert_not_deterministic\([^;]*\);",
    # The hand-off of chunk states from a recompute to its backward.
    r"enum class SavedRows \{[^}]*\};",
    r"struct HandoffStats \{[^}]*\};",
    r"std::optional<bool> checkpoint_handoff;",
    r"SavedRows saved_rows = SavedRows::kAuto;",
    r"HandoffStats handoff_stats\(\) const;",
    r"CAKE_API std::size_t handoff_bytes\([^;]*;",
    r"HandoffStats Workspace::handoff_stats\(\) const \{[^}]*\};? ?\}",
    r"std::size_t handoff_bytes\([^)]*\) \{.*?\}(?= kcp::CommBytes)",
    r", kda::KcpHandoff(?= \{\};)",
    r", \{\}(?=\}\)[ ,]*\{\}? ?Workspace::~)",
)


def squeeze(text, mode):
    text = gate.blank(text, keep_strings=True)
    text = re.sub(rf"_{mode}_train", "_MODE_train", text)
    text = re.sub(rf'"{mode}"', '"MODE"', text)
    text = re.sub(r"kda::(Det|Any)Order|\b(Fixed|Any)Order\b", "Order", text)
    text = re.sub(r"kda::(canonical|rank)_plan\b", "plan", text)
    text = re.sub(r"\s+", " ", text)
    if mode == "nondet":
        for pattern in NONDET_ONLY:
            text = re.sub(pattern, "", text)
    text = re.sub(r"\s*([{}()\[\],;:<>=&*?#])\s*", r"\1", text).strip()
    return text.replace("[&]{}", "[]{}")  # the alert of a det package is an empty lambda, that of a nondet one captures


def first_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    start = max(0, at - 30)
    return f'"...{a[start:at + 50]}" against "...{b[start:at + 50]}"'


def check(root):
    findings = []
    for folder, ending in PAIRS:
        for path in gate.files(root, (folder,), ("_train" + ending, "_train_kcp" + ending)):
            if "_nondet_train" in path:
                twin = path.replace("_nondet_train", "_det_train")
                if not os.path.exists(os.path.join(root, twin)):
                    findings.append(f"{path}: no twin {twin}")
                continue
            if "_det_train" not in path:
                continue
            twin = path.replace("_det_train", "_nondet_train")
            if not os.path.exists(os.path.join(root, twin)):
                findings.append(f"{path}: no twin {twin}")
                continue
            det, nondet = squeeze(gate.read(root, path), "det"), squeeze(gate.read(root, twin), "nondet")
            if det != nondet:
                findings.append(f"{path} and {twin} differ: {first_difference(det, nondet)}")
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        det = ('// one\nnamespace cake::kda_det_train {\nvoid backward(int x);\n'
               'Tag tag() { return {"kda", "det"}; }\n}\n')
        nondet = ('// another\n#include "cake/core/determinism.h"\nnamespace cake::kda_nondet_train {\n'
                  'void backward(int x,\n    std::optional<DeterminismPolicy> policy = {});\n'
                  'Tag tag() { return {"kda", "nondet"}; }\n}\n')
        gate.plant(root, "include/cake/kda_det_train.h", det)
        gate.plant(root, "include/cake/kda_nondet_train.h", nondet)
        gate.expect(check, root, 0)
        gate.plant(root, "include/cake/kda_nondet_train.h", nondet.replace("int x", "long x"))
        gate.expect(check, root, 1, "int x", "long x")
        gate.plant(root, "include/cake/kda_nondet_train.h", nondet.replace('"nondet"', '"det"'))
        gate.expect(check, root, 1, "differ")
        os.remove(os.path.join(root, "include/cake/kda_nondet_train.h"))
        gate.expect(check, root, 1, "no twin")


if __name__ == "__main__":
    sys.exit(gate.main("mode twins", check, self_test))
