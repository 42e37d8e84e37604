"""One rank's part of a problem over ranks, and the whole put together again, for the tests of the KDA packages over
ranks. Problems come from kda_support."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from kda_support import ORDER, cotangents

ROWS = ("q", "k", "v", "g", "beta")


def package(mode: str) -> Any:
    """The package over ranks of a mode."""
    return importlib.import_module(f"cake_train.cake_kda_{mode}_train_kcp")


def entry(mode: str, name: str = "") -> Any:
    """cake_kda_<mode>_kcp, or cake_kda_<mode>_train_kcp_<name>."""
    return getattr(package(mode), f"cake_kda_{mode}_train_kcp_{name}" if name else f"cake_kda_{mode}_kcp")


def local(x: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The operands of a rank that holds these packed rows, as leaves."""
    return {name: (t.detach()[:, rows] if name in ROWS else t.detach().clone()).requires_grad_(t.requires_grad)
            for name, t in x.items()}


def dout_of(x: dict[str, torch.Tensor], rows: torch.Tensor, documents: int) -> list[torch.Tensor]:
    """The incoming gradients of kda_support.run, this rank's rows of dout."""
    HV, V = x["v"].shape[2:]
    whole = x["v"].new_empty(1, x["q"].shape[1], HV, V).to(x["q"].dtype)
    dout, d_state = cotangents(whole, torch.empty(documents, HV, x["q"].shape[3], V))
    return [dout[:, rows], d_state]


def run_autograd(mode: str, x: dict[str, torch.Tensor], options: dict[str, Any], ctx: Any,
                 **more: Any) -> dict[str, torch.Tensor]:
    """A rank's out, final_state and gradients; those of gate parameters are the totals."""
    rows = torch.as_tensor(ctx.partition.global_rows(ctx.rank))
    own = local(x, rows)
    out, state = entry(mode)(**own, ctx=ctx, **options, output_final_state=True, gate_param_grads="global", **more)
    leaves = {name: t for name, t in own.items() if t.requires_grad}
    found = torch.autograd.grad([out, state], list(leaves.values()), dout_of(x, rows, ctx.documents))
    return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(leaves, found)}


def run_explicit(mode: str, x: dict[str, torch.Tensor], options: dict[str, Any], ctx: Any, *, keep: bool = True,
                 **more: Any) -> dict[str, torch.Tensor]:
    """The same through the entries without autograd; without `keep` the backward recomputes."""
    rows = torch.as_tensor(ctx.partition.global_rows(ctx.rank))
    own = {name: t.detach() for name, t in local(x, rows).items()}
    out, saved, state = entry(mode, "forward")(**own, ctx=ctx, **options, output_final_state=True,
                                               save_for_backward=keep, **more)
    dout, d_state = dout_of(x, rows, ctx.documents)
    found = list(entry(mode, "backward")(**own, ctx=ctx, dout=dout, d_final_state=d_state, saved=saved, **options, **more))
    results = {"out": out, "final_state": state} | {"d" + name: found.pop(0) for name in ROWS}
    if "A_log" in x or "dt_bias" in x:
        totals = entry(mode, "reduce_gate_param_grads")(ctx, found.pop(0))
        results |= {"d" + n: t for n, t in zip(("A_log", "dt_bias"), totals) if n in x}
    if "initial_state" in x:
        results["dinitial_state"] = found.pop(0)
    assert not found
    return results


def whole(parts: list[dict[str, torch.Tensor]], all_rows: list[torch.Tensor], tokens: int) -> dict[str, torch.Tensor]:
    """Every rank's results as those of one rank. Checks that gate parameters' totals are equal everywhere, and that
    states are exact 0 on all ranks but one."""
    result = {}
    for name in parts[0]:
        tensors = [part[name].contiguous() for part in parts]
        if name in ("dA_log", "ddt_bias"):
            assert all(torch.equal(t.view(torch.uint8), tensors[0].view(torch.uint8)) for t in tensors), name
            result[name] = tensors[0]
        elif name in ("final_state", "dinitial_state"):
            assert all(int((torch.stack([t[n].abs().sum() for t in tensors]) > 0).sum()) <= 1
                       for n in range(tensors[0].shape[0])), name
            result[name] = torch.stack([t.view(torch.int32) for t in tensors]).sum(0, dtype=torch.int32).view(torch.float32)
        else:
            t = torch.zeros(1, tokens, *tensors[0].shape[2:], dtype=tensors[0].dtype)
            for rows, part in zip(all_rows, tensors):
                t[:, rows] = part
            result[name] = t
    return {name: result[name] for name in ("out", "final_state", *("d" + n for n in ORDER)) if name in result}
