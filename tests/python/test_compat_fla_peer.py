"""`cake_train.compat` against flash-linear-attention itself, on a machine that has a GPU and that project: its results
on the GPU, ours on the device of this version, both judged against the float64 recurrence, and against each other
within the sum of both limits. Skipped elsewhere, with the reason."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from compat_fla_cases import BF16, FP16, LIMITS, Case, compat_options, errors, make_problem, results

try:
    from fla.ops.kda import chunk_kda as peer_chunk_kda

    MISSING = "" if torch.cuda.is_available() else "no GPU"
except ImportError as error:
    MISSING = f"flash-linear-attention is not importable: {error}"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

CASES = [
    Case(2, 500, 3, 3, 64, FP16, 1.0, safe_gate=True, keep=True),
    Case(2, 256, 4, 4, 128, BF16, 0.1, l2norm=True, gate=True, safe_gate=True),
    Case(2, 256, 2, 4, 128, BF16, 0.1, l2norm=True, gate=True),
    Case(1, 1000, 4, 4, 64, BF16, offsets=(0, 256, 500, 1000), gate=True, safe_gate=True, uniform=False),
    Case(1, 300, 2, 2, 128, BF16, beta="doubled"),
]


def _on_gpu(**arguments: Any) -> Any:
    """The peer's function with its operands moved to the GPU."""
    moved = {name: x.cuda() if isinstance(x, torch.Tensor) and name != "cu_seqlens_cpu" else x
             for name, x in arguments.items()}
    if moved.get("lower_bound") is None:
        moved.pop("lower_bound", None)
    out, state = peer_chunk_kda(**moved)
    return out.cpu(), state.cpu()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_both_are_right_and_close(case: Case, record_property: Any) -> None:
    """Per document and head; the worst of each result is recorded."""
    options = compat_options(case)
    options.pop("chunk_size")
    peer_options = {name: x for name, x in options.items() if name != "cu_seqlens_cpu"}
    ours = results(importlib.import_module("cake_train.compat.fla_det").chunk_kda, make_problem(case), **options)
    peers = results(_on_gpu, make_problem(case), **peer_options)
    our_errors, peer_errors = errors(case, ours), errors(case, peers)
    record_property("errors", {name: (our_errors[name], peer_errors[name]) for name in our_errors})
    print(case, {name: f"{our_errors[name]:.1e} / {peer_errors[name]:.1e}" for name in our_errors})
    for name, limit in LIMITS.items():
        if name in ours:
            assert our_errors[name] <= limit, name
            distance = (ours[name].double() - peers[name].double()).norm() / ours[name].double().norm()
            assert distance <= 2 * max(limit, peer_errors[name]), name
