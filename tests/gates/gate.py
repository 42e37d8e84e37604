"""What the source gates share: the tree, C++ text without comments and strings, and the report."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CODE_FOLDERS = ("include", "src", "examples", "tools", "benchmarks", "tests")
_SKIPPED = {"build", ".git", ".cache", ".venv", "runs", "__pycache__"}


def files(root, folders, endings):
    """Paths relative to root, sorted, of the files below the folders that end in one of the endings."""
    found = []
    for folder in folders:
        for at, names, leaves in os.walk(os.path.join(root, folder)):
            names[:] = [n for n in names if n not in _SKIPPED]
            found += [os.path.relpath(os.path.join(at, leaf), root) for leaf in leaves if leaf.endswith(endings)]
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


_TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, keep_strings=False):
    """C++ text with comments (and strings) replaced by spaces, so that line numbers stay."""

    def replace(match):
        token = match.group(0)
        if token[0] == '"' and keep_strings:
            return token
        if token[0] == "'" and match.start() > 0 and text[match.start() - 1].isdigit():
            return token  # a digit separator, not a character
        return re.sub(r"[^\n]", " ", token)

    return _TOKENS.sub(replace, text)


def report(name, findings):
    """Prints the findings and ends the program with 1 if there are any."""
    for finding in findings:
        print(f"{name}: {finding}")
    print(f"{name}: {len(findings)} findings")
    return 1 if findings else 0


def main(name, check, self_test):
    """Runs check(root) on the tree, or with --self-test proves on planted files that it can fail."""
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        print(f"{name}: self-test passed")
        return 0
    if sys.argv[1:]:
        print(f"usage: {sys.argv[0]} [--self-test]", file=sys.stderr)
        return 2
    return report(name, check(ROOT))


def plant(root, path, text):
    """Writes a file of a planted tree."""
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text)


def expect(check, root, count, *words):
    """Fails the self-test unless the check finds `count` things in the planted tree, naming the words."""
    findings = check(root)
    text = "\n".join(findings)
    if len(findings) != count or any(word not in text for word in words):
        raise SystemExit(f"self-test: expected {count} findings naming {words}, got:\n{text}")
