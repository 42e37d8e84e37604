"""examples/train_lm.py as a user runs it: on one process and under torchrun; same KDA bits, same losses to 1e-3."""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import cake_train

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_lm.py"
SMALL = ["--steps", "20", "--batch-tokens", "400", "--layers", "1", "--width", "32", "--heads", "2"]


def run(folder: Path, *arguments: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs the example outside the tree."""
    command = [sys.executable]
    if processes > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cake_train.__file__).parents[1])}
    environment.pop("RANK", None)
    return subprocess.run([*command, str(EXAMPLE), *arguments, "--out", str(folder)], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=200)


@functools.lru_cache(maxsize=None)
def result(processes: int, *more: str) -> tuple[dict[str, Any], str]:
    """loss.json of a small run, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), *SMALL, *more, processes=processes)
        assert done.returncode == 0, done.stderr[-3000:]
        assert (Path(folder) / "loss.png").read_bytes()[:4] == b"\x89PNG"
        return json.loads((Path(folder) / "loss.json").read_text()), done.stdout


def test_it_learns_and_repeats() -> None:
    """The loss falls; a second run has the same losses and KDA digest."""
    first, said = result(1)
    assert len(first["losses"]) == 20 and first["losses"][-1] < first["losses"][0] - 0.4
    assert re.search(r"over 1 ranks: the bits of one rank, sha256:[0-9a-f]{64}", said)
    with tempfile.TemporaryDirectory() as folder:
        assert run(Path(folder), *SMALL).returncode == 0
        assert json.loads((Path(folder) / "loss.json").read_text()) == first


@pytest.mark.parametrize("processes, layout", [(4, "contiguous"), (3, "zigzag")])
def test_ranks_have_the_bits_of_one(processes: int, layout: str) -> None:
    """KDA's outputs and gradients bit for bit, the loss curve to 1e-3."""
    one, _ = result(1)
    many, said = result(processes, "--layout", layout)
    assert f"over {processes} ranks: the bits of one rank, {one['kda_digest']}" in said
    assert many["kda_digest"] == one["kda_digest"] and many["ranks"] == processes
    assert max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True)) < 1e-3


def test_nondet_trains() -> None:
    """The mode is a choice of package."""
    other, _ = result(1, "--mode", "nondet")
    assert max(abs(a - b) for a, b in zip(result(1)[0]["losses"], other["losses"], strict=True)) < 1e-3


def test_wrong_arguments(tmp_path: Path) -> None:
    """Errors name the argument."""
    assert "--width" in run(tmp_path, "--width", "30", "--heads", "4").stderr
    (tmp_path / "short.txt").write_text("too short")
    assert "--text" in run(tmp_path, "--text", str(tmp_path / "short.txt")).stderr
