"""The Python blocks of the documentation run as they stand, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cake_train

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/python.md", "docs/kcp.md", "docs/migration.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
EXAMPLES = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(_BLOCK.findall((ROOT / page).read_text(encoding="utf-8")))
]


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs code outside the tree, on the package under test."""
    path = folder / "example.py"
    path.write_text(code, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cake_train.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_every_page_of_python_has_examples() -> None:
    """A renamed page or fence would leave nothing to run."""
    assert {p.id.rpartition("-")[0] for p in EXAMPLES} >= {"README.md", "docs/python.md"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str, tmp_path: Path) -> None:
    """No error, no warning as error."""
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_broken_example_fails(tmp_path: Path) -> None:
    """The runner sees an error of an example."""
    assert run("import cake_train.no_such_module\n", tmp_path).returncode != 0
