"""The package is typed: a type checker accepts right calls of a user and finds wrong ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cake_train

GOOD = """
from typing import Any
import cake_train
from cake_train.cake_kda_det_train import CakeKDADetWorkspace, cake_kda_det, cake_kda_det_train_workspace
from cake_train.info import info
from cake_train.testing.mode_names import assert_mode_names

def layer(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    workspace: CakeKDADetWorkspace = cake_kda_det_train_workspace(128, 1, 2)
    cake_train.set_num_threads(2)
    return cake_kda_det(q, k, v, g, beta, workspace=workspace, lower_bound=-5.0, save_mode="tape")

facts: dict[str, Any] = info()
check = assert_mode_names
"""
BAD = {
    "save_mode=3": "arg-type",
    "deterministic=True": "call-arg",
    "lower_bound='low'": "arg-type",
    "workspace=1": "arg-type",
}


def mypy(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """mypy --strict on a user's file."""
    (folder / "user.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "MYPYPATH": "", "PYTHONPATH": str(Path(cake_train.__file__).parents[1])}
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(folder / "cache"),
        "user.py",
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_right_and_wrong_calls(tmp_path: Path) -> None:
    """One run each: every wrong argument is its own finding."""
    good = mypy(GOOD, tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    lines = "\n".join(f"    cake_kda_det(q, k, v, g, beta, {argument})" for argument in BAD)
    bad = mypy("from typing import Any\nfrom cake_train.cake_kda_det_train import cake_kda_det\n"
               f"def wrong(q: Any, k: Any, v: Any, g: Any, beta: Any) -> None:\n{lines}\n", tmp_path)
    for number, code in enumerate(BAD.values()):
        assert f"user.py:{4 + number}: error" in bad.stdout and f"[{code}]" in bad.stdout, bad.stdout
