"""Ranks of the KDA packages over ranks in tests: shards of a problem, and what all ranks gave put together."""

from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Any, Callable

import torch
from kda_support import cotangents

from cake_train.comm import ThreadGroup

ROWS = ("q", "k", "v", "g", "beta")
STATES = ("final_state", "dinitial_state")
PARAMETERS = ("dA_log", "ddt_bias")


def facade(mode: str) -> ModuleType:
    """The package over ranks of a mode."""
    return importlib.import_module(f"cake_train.cake_kda_{mode}_train_kcp")


def entry(mode: str, name: str = "") -> Callable[..., Any]:
    """cake_kda_<mode>_kcp, or cake_kda_<mode>_train_kcp_<name>."""
    return getattr(facade(mode), f"cake_kda_{mode}" + (f"_train_kcp_{name}" if name else "_kcp"))


def shard(x: dict[str, torch.Tensor], partition: Any, rank: int) -> dict[str, torch.Tensor]:
    """A rank's operands as new leaves."""
    rows = torch.from_numpy(partition.global_rows(rank))
    local = {name: t.detach()[:, rows] if name in ROWS else t.detach().clone() for name, t in x.items()}
    return {name: t.requires_grad_(x[name].requires_grad) for name, t in local.items()}


def whole_cotangents(x: dict[str, torch.Tensor], offsets: list[int]) -> list[torch.Tensor]:
    """dout and d_final_state of the whole pack, as kda_support.cotangents makes them."""
    HV, K, V = x["v"].shape[2], x["q"].shape[3], x["v"].shape[3]
    return cotangents(torch.empty(x["v"].shape, dtype=x["q"].dtype), torch.empty(len(offsets) - 1, HV, K, V))


def local_run(function: Callable[..., Any], x: dict[str, torch.Tensor], ctx: Any, dout: torch.Tensor,
              d_state: torch.Tensor, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out, final_state and all gradients of one rank through autograd; x are the rank's operands."""
    options = {name: value for name, value in options.items() if name != "cu_seqlens"}
    out, state = function(**x, ctx=ctx, output_final_state=True, **options)
    rows = torch.from_numpy(ctx.partition.global_rows(ctx.rank))
    leaves = {name: t for name, t in x.items() if t.requires_grad}
    found = torch.autograd.grad([out, state], list(leaves.values()), [dout[:, rows], d_state])
    return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(leaves, found)}


def local_explicit(mode: str, x: dict[str, torch.Tensor], ctx: Any, dout: torch.Tensor, d_state: torch.Tensor,
                   options: dict[str, Any], keep: bool, **memory: Any) -> dict[str, torch.Tensor]:
    """The same through the entries without autograd; without `keep` the backward recomputes. Gradients of A_log and
    dt_bias are the total of all ranks."""
    x = {name: t.detach() for name, t in x.items()}
    rest = {name: value for name, value in options.items() if name != "cu_seqlens"} | memory
    rows = torch.from_numpy(ctx.partition.global_rows(ctx.rank))
    out, saved, state = entry(mode, "forward")(**x, ctx=ctx, output_final_state=True, save_for_backward=keep, **rest)
    found = list(entry(mode, "backward")(**x, ctx=ctx, dout=dout[:, rows], d_final_state=d_state, saved=saved, **rest))
    result = {"out": out, "final_state": state}
    names = ["d" + name for name in ROWS]
    result |= dict(zip(names, found))
    del found[:5]
    if "A_log" in x or "dt_bias" in x:
        totals = entry(mode, "reduce_gate_param_grads")(ctx, found.pop(0))
        result |= {name: t for name, t in zip(PARAMETERS, totals) if t is not None}
    if "initial_state" in x:
        result["dinitial_state"] = found.pop(0)
    assert not found
    return result


def together(partition: Any, ranks: list[dict[str, torch.Tensor]], total: bool) -> dict[str, torch.Tensor]:
    """The results of all ranks as one rank has them. With `total`, every rank has the parameters' whole gradients, the
    same bits; else they are shares, whose sum is taken."""
    result: dict[str, torch.Tensor] = {}
    for name, first in ranks[0].items():
        parts = [rank[name] for rank in ranks]
        if name in PARAMETERS and total:
            assert all(torch.equal(first, part) for part in parts), name
            result[name] = first
        elif name in PARAMETERS or name in STATES:
            result[name] = torch.stack(parts).sum(0)
        else:
            T = sum(part.shape[1] for part in parts)
            result[name] = first.new_empty(1, T, *first.shape[2:])
            for rank, part in enumerate(parts):
                result[name][:, torch.from_numpy(partition.global_rows(rank))] = part
    return result


def on_ranks(fn: Callable[[int], Any], group: ThreadGroup) -> list[Any]:
    """group.run with a time limit: a rank that hangs fails the test."""
    found: list[Any] = []

    def main() -> None:
        try:
            found.append(group.run(fn))
        except BaseException as error:
            found.append(error)
    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(40)
    assert found, "ranks hang"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def partition_of(mode: str, offsets: list[int], world: int, **cut: Any) -> Any:
    """A partition of a pack."""
    return entry(mode, "partition")(torch.tensor(offsets, dtype=torch.int32), world, **cut)


def with_contexts(mode: str, partition: Any, fn: Callable[[Any], Any], timeout: float = 20) -> list[Any]:
    """fn(context) on every rank."""
    group = ThreadGroup(partition.world_size, timeout)
    return on_ranks(lambda rank: fn(entry(mode, "build_context")(partition, group, rank)), group)
