"""One of torchrun's processes in test_kda_kcp_distributed: KDA over a gloo group, subgroups, DDP, FSDP2 and checkpoints. Every
assertion compares with one rank in this process. Prints "rank N: ok" at the end."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from cake_train.cake_kcp import CakeKcpRecomputeHandle
from cake_train.cake_kda_det_train import cake_kda_det
from kcp_support import entry, local, run_autograd, run_explicit, whole
from kda_support import GATE, assert_same_bits, problem
from kda_support import run as run_alone
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

OFFSETS = [0, 130, 130, 131, 330]


def gathered(value: Any, group: Any = None) -> list[Any]:
    """Every rank's value."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def check_bits(ranks: int, group: Any = None, rank: int | None = None) -> None:
    """Outputs and all gradients over the group, autograd and explicit, both layouts, against one rank."""
    x, options = problem(OFFSETS, GATE | {"lower_bound": -5.0}, H=1, HV=2)
    offsets = options.pop("cu_seqlens")
    one = run_alone(cake_kda_det, x, options | {"cu_seqlens": offsets})
    for layout in ("contiguous", "zigzag"):
        made = entry("det", "partition")(OFFSETS, ranks, layout)
        ctx = entry("det", "build_context")(made, group, dist.get_rank() if rank is None else rank)
        rows = [torch.as_tensor(made.global_rows(r)) for r in range(ranks)]
        for work in (run_autograd, run_explicit):
            for exchange in ("relay", "gather"):
                parts = gathered(work("det", x, options, ctx, exchange=exchange), group)
                assert_same_bits(whole(parts, rows, OFFSETS[-1]), one)
        nondet = whole(gathered(run_autograd("nondet", x, options, ctx), group), rows, OFFSETS[-1])
        for name, t in nondet.items():
            torch.testing.assert_close(t, one[name], rtol=2e-4, atol=2e-4)


class Layer(nn.Module):
    """A linear layer and KDA over ranks behind it."""

    def __init__(self, ctx: Any, handle: Any = None) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 2 * 16 * 4 + 2, bias=False)
        self.A_log = nn.Parameter(torch.zeros(2))
        self.ctx, self.handle = ctx, handle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(x)
        q, k, v, g = (t.reshape(1, -1, 2, 16) for t in y[:, :128].chunk(4, dim=-1))
        return entry("det")(q, k, v, g, y[None, :, 128:], self.ctx, A_log=self.A_log, recompute_handle=self.handle, **GATE)


def check_frameworks() -> None:
    """Gradients of parameters under DDP and FSDP2, and with a checkpoint under DDP, against a plain sum over ranks."""
    world, rank = dist.get_world_size(), dist.get_rank()
    made = entry("det", "partition")(OFFSETS, world)
    ctx = entry("det", "build_context")(made, None, rank)
    torch.manual_seed(0)
    whole_x = torch.randn(OFFSETS[-1], 16)
    x = whole_x[torch.as_tensor(made.global_rows(rank))]
    torch.manual_seed(1)
    plain = Layer(ctx)
    plain(x).square().sum().backward()
    want = [p.grad.clone() for p in plain.parameters()]
    for g in want:
        dist.all_reduce(g)

    def compare(found: list[torch.Tensor]) -> None:
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(a * world, b, rtol=1e-5, atol=1e-5)  # these frameworks average

    model = DistributedDataParallel(Layer(ctx))
    model.module.load_state_dict(plain.state_dict())
    model(x).square().sum().backward()
    compare([p.grad for p in model.parameters()])

    handle = CakeKcpRecomputeHandle()
    model = DistributedDataParallel(Layer(ctx, handle))
    model.module.load_state_dict(plain.state_dict())
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    compare([p.grad for p in model.parameters()])
    assert handle.entries == ["kda"]

    from torch.distributed.fsdp import fully_shard

    sharded = Layer(ctx)
    sharded.load_state_dict(plain.state_dict())
    fully_shard(sharded)
    for _ in range(2):
        sharded.zero_grad()
        sharded(x).square().sum().backward()
    compare([p.grad.full_tensor() for p in sharded.parameters()])


def check_failures() -> None:
    """A rank's bad tensor is an error on every rank, and the group goes on."""
    x, options = problem(OFFSETS, {})
    options.pop("cu_seqlens")
    made = entry("det", "partition")(OFFSETS, dist.get_world_size())
    ctx = entry("det", "build_context")(made, dist.group.WORLD, dist.get_rank())
    own = {n: t.detach() for n, t in local(x, torch.as_tensor(made.global_rows(ctx.rank))).items()}
    if ctx.rank == 1:
        own["beta"] = own["beta"][:, :-1]
    try:
        entry("det", "forward")(**own, ctx=ctx)
    except (ValueError if ctx.rank == 1 else RuntimeError) as error:
        assert "beta" in str(error)
    else:
        raise AssertionError("no error")
    run_autograd("det", x, options, ctx)


def main() -> None:
    """All checks for the world's size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    check_bits(world)
    if world > 1:
        check_failures()
        check_frameworks()
    if world == 4:  # two subgroups, whose ranks are not those of the world
        groups = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        group = groups[rank % 2]
        check_bits(2, group, dist.get_group_rank(group, rank))
    dist.barrier()
    print(f"rank {rank}: ok", flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
