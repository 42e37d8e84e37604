"""cake_kda_det_train_kcp over torch.distributed (gloo), one process a rank: the bits of one process. The cases are in
kda_kcp_processes.py."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("kda_kcp_processes.py")
CASES = [("bits", 1), ("bits", 2), ("bits", 4), ("subgroup", 4), ("empty", 3), ("ddp", 2), ("checkpoint", 2),
         ("errors", 2)]
LIMIT_S = 60.0  # for all ranks of a case


@pytest.mark.parametrize(("case", "ranks"), CASES)
def test_processes(case: str, ranks: int, tmp_path: Path) -> None:
    """Every rank ends in time and says so."""
    command = [sys.executable, str(PROGRAM), case, str(tmp_path / "rendezvous")]
    processes = []
    for rank in range(ranks):
        with (tmp_path / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen([*command, str(rank), str(ranks)], stdout=log, stderr=subprocess.STDOUT))
    end = time.monotonic() + LIMIT_S
    try:
        codes = [process.wait(max(end - time.monotonic(), 0.1)) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    texts = [(tmp_path / f"{rank}.log").read_text() for rank in range(ranks)]
    assert codes == [0] * ranks and all(t.strip().endswith("passed") for t in texts), "\n".join(texts)
