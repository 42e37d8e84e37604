"""One rank of test_kda_kcp_distributed: python kda_kcp_processes.py <case> <rendezvous file> <rank> <ranks>."""

from __future__ import annotations

import datetime
import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("cake_train") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import kda_support as one
import torch
import torch.distributed as dist
from kda_kcp_support import entry, local_explicit, local_run, shard, whole_cotangents
from kda_support import GATE, OPTIONS, assert_same_bits, problem
from torch.utils.checkpoint import checkpoint

import cake_train

OFFSETS = [0, 250, 250, 420]


def mine(whole: dict[str, torch.Tensor], ctx: Any) -> dict[str, torch.Tensor]:
    """What a rank has of one rank's results; states are compared after a sum over ranks, see `summed`."""
    rows = torch.from_numpy(ctx.partition.global_rows(ctx.rank))
    keep = ("final_state", "dinitial_state", "dA_log", "ddt_bias")
    return {name: x if name in keep else x[:, rows] for name, x in whole.items()}


def summed(local: dict[str, torch.Tensor], group: Any) -> dict[str, torch.Tensor]:
    """The results of a rank, states summed over ranks: others hold exact zeros."""
    for name in ("final_state", "dinitial_state"):
        if name in local:
            dist.all_reduce(local[name], group=group)
    return local


def bits(group: Any) -> None:
    """Layouts, exchange forms, autograd and explicit calls have the bits of one rank."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    for layout, exchange, name in (("contiguous", "auto", "softplus"), ("zigzag", "relay", "bound"),
                                   ("zigzag_per_document", "gather", "tape")):
        x, options = problem(OFFSETS, OPTIONS[name])
        expected = one.run(one.entry("det"), x, options)
        partition = entry("det", "partition")(options.pop("cu_seqlens"), world, layout)
        ctx = entry("det", "build_context")(partition, group, rank)
        assert (ctx.rank, ctx.world_size) == (rank, world)
        cotangents = whole_cotangents(x, OFFSETS)
        got = local_run(entry("det"), shard(x, partition, rank), ctx, *cotangents,
                        options | {"gate_param_grads": "global", "exchange": exchange})
        assert_same_bits(summed(got, group), mine(expected, ctx))
        got = local_explicit("det", shard(x, partition, rank), ctx, *cotangents, options | {"exchange": exchange}, True)
        assert_same_bits(summed(got, group), mine(expected, ctx))
        rows = torch.from_numpy(partition.global_rows(rank))[:, None]
        halo = ctx.exchange_halo(rows)
        assert len(halo) == sum(ctx.halo_rows())


def case_bits() -> None:
    """The default group, given as None and as an object."""
    bits(None)
    bits(dist.group.WORLD)


def case_subgroup() -> None:
    """Ranks 1 to 3 of four, in another order of their own; the first one stands by."""
    group = dist.new_group([1, 2, 3])
    if dist.get_rank() > 0:
        bits(group)
    dist.barrier()


def case_empty() -> None:
    """Ranks without rows take part."""
    x, options = problem([0, 3], GATE)
    expected = one.run(one.entry("det"), x, options)
    world, rank = dist.get_world_size(), dist.get_rank()
    partition = entry("det", "partition")([0, 3], world, cut_points=[3] * (world - 1))
    ctx = entry("det", "build_context")(partition, None, rank)
    del options["cu_seqlens"]
    got = local_run(entry("det"), shard(x, partition, rank), ctx, *whole_cotangents(x, [0, 3]),
                    options | {"gate_param_grads": "global"})
    assert_same_bits(summed(got, None), mine(expected, ctx))


class Layer(torch.nn.Module):
    """Projections around KDA, on one rank or over ranks."""

    H, K = 2, 16

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.into = torch.nn.Linear(8, self.H * (4 * self.K + 1))
        self.out = torch.nn.Linear(self.H * self.K, 8)
        self.A_log = torch.nn.Parameter(torch.randn(self.H))
        self.dt_bias = torch.nn.Parameter(torch.randn(self.H * self.K))

    def forward(self, x: torch.Tensor, where: Any, handle: Any = None) -> torch.Tensor:
        """x `[1, S, 8]`; where: offsets, or a context."""
        q, k, v, g, beta = self.into(x).split([self.H * self.K] * 4 + [self.H], -1)
        q, k, v, g = (t.unflatten(-1, (self.H, self.K)) for t in (q, k, v, g))
        options = GATE | {"A_log": self.A_log, "dt_bias": self.dt_bias}
        if isinstance(where, torch.Tensor):
            y = one.entry("det")(q, k, v, g, beta, where, **options)
        else:
            y = entry("det")(q, k, v, g, beta, where, recompute_handle=handle, **options)
        return self.out(y.flatten(-2))


def case_ddp() -> None:
    """A module under DistributedDataParallel, and one in a checkpoint whose gradients are summed by hand: they are
    those of one process up to the order of sums, equal on all ranks, and the recompute communicates nothing."""
    from cake_train.cake_kcp import CakeKcpRecomputeHandle

    world, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(1, OFFSETS[-1], 8, generator=torch.Generator().manual_seed(3))
    offsets = torch.tensor(OFFSETS, dtype=torch.int32)
    whole = Layer()
    (whole(x, offsets).square().sum() / OFFSETS[-1]).backward()
    partition = entry("det", "partition")(offsets, world, "zigzag")
    ctx = entry("det", "build_context")(partition, dist.group.WORLD, rank)
    rows = torch.from_numpy(partition.global_rows(rank))
    results = []
    for handle in (None, CakeKcpRecomputeHandle()):
        layer = Layer()
        local = x[:, rows].requires_grad_()
        counted = []

        def region(t: torch.Tensor) -> torch.Tensor:
            before = ctx.counters()
            y = layer(t, ctx, handle)
            counted.append(ctx.counters() == before)
            return y
        if handle is None:
            model = torch.nn.parallel.DistributedDataParallel(layer)  # kept until the backward
            y = model(local, ctx)
        else:
            y = checkpoint(region, local, use_reentrant=False)
        # DDP averages over ranks: each rank's loss is `world` times its part of the whole.
        (y.square().sum() * world / OFFSETS[-1]).backward()
        if handle is not None:
            assert counted[0] is False or world == 1
            assert counted[1:] in ([], [True])  # an early stop may leave the region before its end
            for p in layer.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        results.append({n: p.grad for n, p in layer.named_parameters()} | {"x": local.grad})
    for got in results:
        for name, p in whole.named_parameters():
            assert torch.allclose(got[name], p.grad, rtol=1e-4, atol=1e-6), name
            everywhere = [torch.empty_like(got[name]) for _ in range(world)]
            dist.all_gather(everywhere, got[name].contiguous())
            assert all(torch.equal(everywhere[0], t) for t in everywhere), name
    assert_same_bits({"x": results[1]["x"]}, {"x": results[0]["x"]})


def case_checkpoint() -> None:
    """Both settings of checkpoint have the bits of one rank; the backward moves as many bytes as without it."""
    from cake_train.cake_kcp import CakeKcpRecomputeHandle

    world, rank = dist.get_world_size(), dist.get_rank()
    x, options = problem(OFFSETS, GATE, state=False)
    expected = one.run(one.entry("det"), x, options)
    partition = entry("det", "partition")(options.pop("cu_seqlens"), world)
    ctx = entry("det", "build_context")(partition, None, rank)
    dout, d_state = whole_cotangents(x, OFFSETS)
    moved = []
    for reentrant in (None, False, True):
        handle = CakeKcpRecomputeHandle()

        def call(*tensors: torch.Tensor) -> Any:
            return entry("det")(**dict(zip(x, tensors)), ctx=ctx, gate_param_grads="global", output_final_state=True,
                                recompute_handle=handle, **options)
        local = shard(x, partition, rank)
        tensors = list(local.values())
        out, state = call(*tensors) if reentrant is None else checkpoint(call, *tensors, use_reentrant=reentrant)
        before = ctx.counters()
        torch.autograd.backward([out, state], [dout[:, torch.from_numpy(partition.global_rows(rank))], d_state])
        after = ctx.counters()
        moved.append({n: after[n] - before[n] for n in before})
        got = {"out": out.detach(), "final_state": state.detach()} | {"d" + n: t.grad for n, t in local.items()}
        assert_same_bits(summed(got, None), mine(expected, ctx))
    assert moved[0] == moved[1] == moved[2] and (world == 1 or moved[0]["bytes_sent"] > 0)


def case_errors() -> None:
    """What is wrong on one rank fails on all; an error of the transport reaches the caller with its text."""
    import pytest

    from cake_train._backend import torch_comm

    world, rank = dist.get_world_size(), dist.get_rank()
    x, options = problem(OFFSETS, {}, grad=False, state=False)
    partition = entry("det", "partition")(options.pop("cu_seqlens"), world)
    with pytest.raises(ValueError, match=f"rank: got {rank + 1}, expected {rank}"):
        entry("det", "build_context")(partition, None, rank + 1)
    ctx = entry("det", "build_context")(partition, None, rank)
    local = shard(x, partition, rank)
    wrong = {"workspace": 3} if rank == world - 1 else {}
    with pytest.raises(TypeError if wrong else RuntimeError, match="workspace must be a CakeKDADetKcpWorkspace"):
        entry("det")(**local, ctx=ctx, **wrong)
    with pytest.raises(ValueError, match="for 9 ranks"):
        entry("det", "build_context")(entry("det", "partition")(OFFSETS, 9), None, rank)
    original = torch_comm.dist.all_gather
    for error in (OSError("the wire is cut"), KeyboardInterrupt()):
        def cut(*arguments: Any, **named: Any) -> None:
            raise error
        torch_comm.dist.all_gather = cut
        with pytest.raises(RuntimeError, match="all_gather.*(the wire is cut|KeyboardInterrupt)"):
            entry("det")(**local, ctx=ctx)
    torch_comm.dist.all_gather = original
    out = entry("det")(**local, ctx=ctx)
    assert torch.isfinite(out).all()


def main(case: str, rendezvous: str, rank: int, ranks: int) -> None:
    """Runs a case as one rank."""
    torch.set_num_threads(1)
    cake_train.set_num_threads(1)
    # Imported later, its default arguments would hold the group, whose threads destroy_process_group could not end.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("gloo", f"file://{rendezvous}", datetime.timedelta(seconds=30), ranks, rank)
    globals()[f"case_{case}"]()
    gc.collect()  # a planted error, its traceback and its closure are a cycle, which holds the group
    ctx = entry("det", "build_context")(entry("det", "partition")([0, 8], ranks), None, rank)
    dist.barrier()
    dist.destroy_process_group()
    if case == "errors":  # which leaves nobody else with the group
        try:
            ctx.exchange_halo(torch.zeros(ctx.rows, 1))
        except RuntimeError as error:
            assert "was destroyed" in str(error), error
        else:
            raise AssertionError("a context outlives its group")
    print("passed")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
