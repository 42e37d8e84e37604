#!/usr/bin/env python3
"""Links in the Markdown files resolve, scripts and `cake` commands that they show exist, and options shown are real.
With a path to the built cake program (docs_check.py CAKE) its subcommands and options are asked for."""
import os
import re
import subprocess
import sys
import tempfile

import gate

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
_PATH = re.compile(r"`((?:include|src|docs|scripts|tests|tools|examples|benchmarks|cmake)/[\w./-]*\w/?)`")


def anchors(text):
    """GitHub's anchors of the headings."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", _FENCE.sub("", text), re.M):
        plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(plain.replace(" ", "-"))
    return found


def link_findings(root, path, text):
    findings = []
    body = _FENCE.sub("", text)
    for match in _LINK.finditer(body):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(root, os.path.dirname(path), file)) if file else os.path.join(root, path)
        if not os.path.exists(full):
            findings.append(f"{path}: link to {target}: no such file")
        elif anchor and full.endswith(".md") and anchor not in anchors(open(full, encoding="utf-8").read()):
            findings.append(f"{path}: link to {target}: no such heading")
    for match in _PATH.finditer(body):
        if not os.path.exists(os.path.join(root, match.group(1))):
            findings.append(f"{path}: `{match.group(1)}` does not exist")
    return findings


def shell_lines(text):
    for language, body in _FENCE.findall(text):
        if language in ("sh", "bash", "shell", "console"):
            for line in body.replace("\\\n", " ").split("\n"):
                line = re.sub(r"\s#.*$", "", line).strip()
                if line and not line.startswith("#"):
                    yield line


def command_findings(root, path, text, help_of):
    findings = []
    for line in shell_lines(text):
        words = line.split()
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if not words:
            continue
        name = words[0]
        if name.startswith(("scripts/", "./scripts/")) and not os.access(os.path.join(root, name), os.X_OK):
            findings.append(f"{path}: `{line}`: {name} is not an executable file")
        if os.path.basename(name) == "cake" and help_of is not None:
            if len(words) < 2 or words[1].startswith("-"):
                continue
            text_of_help = help_of(words[1])
            if text_of_help is None:
                findings.append(f"{path}: `{line}`: no such command of cake")
                continue
            for word in words[2:]:
                option = word.split("=")[0]
                if option.startswith("--") and not re.search(re.escape(option) + r"(?![\w-])", text_of_help):
                    findings.append(f"{path}: `{line}`: cake {words[1]} has no option {option}")
    return findings


def cake_help(program):
    known = {}

    def help_of(command):
        if command not in known:
            done = subprocess.run([program, command, "--help"], capture_output=True, text=True, check=False)
            known[command] = done.stdout if done.returncode == 0 else None
        return known[command]

    return help_of


def check(root, help_of=None):
    findings = []
    for path in gate.files(root, (".",), (".md",)):
        text = gate.read(root, path)
        findings += link_findings(root, path, text) + command_findings(root, path, text, help_of)
    return findings


def self_test():
    with tempfile.TemporaryDirectory() as root:
        gate.plant(root, "docs/a.md", "# One thing\n[b](../README.md) [c](#one-thing) [x](https://example.org)\n")
        gate.plant(root, "README.md", "[a](docs/a.md#one-thing) `docs/a.md`\n```sh\ncake train --steps 3\n```\n")
        known = {"train": "options: --steps N"}
        gate.expect(lambda r: check(r, known.get), root, 0)
        gate.plant(root, "docs/b.md", "[gone](gone.md) [a](a.md#another) `src/none.cc`\n"
                   "```sh\nscripts/none.sh\ncake fly\ncake train --step 3\n```\n")
        gate.expect(
            lambda r: check(r, known.get),
            root,
            6,
            "gone.md",
            "#another",
            "src/none.cc",
            "scripts/none.sh",
            "cake fly",
            "--step",
        )


def main():
    if len(sys.argv) == 2 and sys.argv[1] != "--self-test":
        return gate.report("docs", check(gate.ROOT, cake_help(sys.argv[1])))
    return gate.main("docs", check, self_test)


if __name__ == "__main__":
    sys.exit(main())
