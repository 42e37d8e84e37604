#!/usr/bin/env python3
"""The table of environment variables in CONTRIBUTING.md names exactly the variables the code reads."""
import re
import sys
import tempfile

import gate

_GETENV = re.compile(r"\b(?:secure_)?getenv\s*\(\s*([^)]*)\)")
_PYTHON = re.compile(r"os\.(?:environ(?:\.get)?\s*[\[(]|getenv\()\s*[\"'](\w+)[\"']")
_ROW = re.compile(r"^\|\s*`(\w+)`\s*\|", re.M)


def check(root):
    findings, used, shown = [], {}, {}
    for path in gate.files(root, gate.CODE_FOLDERS, (".h", ".cc", ".cu", ".cuh")):
        text = gate.read(root, path)
        for match in _GETENV.finditer(gate.blank(text, keep_strings=True)):
            argument = match.group(1).strip()
            where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            if re.fullmatch(r'"\w+"', argument):
                used.setdefault(argument.strip('"'), where)
                continue
            # A loop over names (a report of the settings) must have them in the same file.
            names = re.findall(r'"(CAKE_[A-Z_]+)"', text)
            shown.update({name: where for name in names})
            if not names:
                findings.append(f"{where}: getenv({argument}): write the name out, so that the table can be checked")
    for path in gate.files(root, ("src", "tools", "python"), (".py",)):
        for match in _PYTHON.finditer(gate.read(root, path)):
            used.setdefault(match.group(1), path)
    section = gate.read(root, "CONTRIBUTING.md").partition("## Environment variables")[2].partition("\n## ")[0]
    listed = set(_ROW.findall(section))
    findings += [f"CONTRIBUTING.md: {name} (read at {where}) is not in the table"
                 for name, where in sorted({**shown, **used}.items()) if name not in listed]
    findings += [
        f"CONTRIBUTING.md: {name} is in the table, but no code reads it"
        for name in sorted(listed - set(used) - set(shown))
    ]
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        table = (
            "# C\n## Environment variables\n| variable | meaning |\n| --- | --- |\n"
            "| `CAKE_A` | a |\n{}\n## Next\n| `CAKE_Z` | |\n"
        )
        gate.plant(root, "CONTRIBUTING.md", table.format("| `CAKE_B` | b |"))
        gate.plant(root, "src/core/x.cc", 'const char* a = std::getenv("CAKE_A");\n// getenv("CAKE_OLD")\n')
        gate.plant(root, "tools/cake/y.cc", 'auto b = getenv( "CAKE_B" );\n')
        gate.expect(check, root, 0)
        gate.plant(root, "CONTRIBUTING.md", table.format("| `CAKE_C` | c |"))
        gate.expect(check, root, 2, "CAKE_B", "CAKE_C")
        gate.plant(root, "src/core/z.cc", "auto c = getenv(name);\n")
        gate.expect(check, root, 3, "src/core/z.cc:1")
        gate.plant(root, "src/core/z.cc", 'for (auto name : {"CAKE_A", "CAKE_D"}) getenv(name);\n')
        gate.expect(check, root, 3, "CAKE_D")


if __name__ == "__main__":
    sys.exit(gate.main("environment variables", check, self_test))
