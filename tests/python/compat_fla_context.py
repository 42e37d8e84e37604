"""Contexts with the attributes of flash-linear-attention's context parallelism, and a rank that uses them.

As a program (`python compat_fla_context.py MODE FILE RANK WORLD`, MODE det or nondet, FILE for the rendezvous of gloo)
it is one rank: it runs chunk_kda on its rows of the packs of `PACKS` and compares with the whole pack on one rank.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PACKS = [("contiguous", (0, 100, 100, 130, 300)), ("zigzag", (0, 20, 150, 300)), ("contiguous", (0, 300)),
         ("contiguous", (0, 150, 300)), ("zigzag", (0, 300)), ("contiguous", (0, 100, 100, 130, 300))]


@dataclass
class PeerContext:
    """What a rank of that project knows: its own offsets, and how its first and last documents go on elsewhere."""

    group: Any = None
    cu_seqlens: torch.Tensor | None = None
    cu_seqlens_cpu: torch.Tensor | None = None
    is_first_rank: bool | None = None
    is_last_rank: bool | None = None
    pre_num_ranks: int | None = None
    post_num_ranks: int | None = None
    conv1d_kernel_size: int | None = None
    pre_num_conv_tokens: int | None = None
    layout: str = "contiguous"
    part_len: int | None = None
    front_num_seqs: int | None = None
    is_first_by_part: tuple[bool, bool] | None = None
    is_last_by_part: tuple[bool, bool] | None = None
    pre_num_ranks_by_part: tuple[int, int] | None = None
    post_num_ranks_by_part: tuple[int, int] | None = None


def part(offsets: tuple[int, ...], size: int, i: int) -> tuple[list[int], int, int, int]:
    """Part i of equal parts: local offsets, parts back to its first document's start, parts on to its last one's end,
    rows of the first document before the part. Empty documents do not occur in it."""
    first, last = i * size, (i + 1) * size
    local = [0] + [x - first for x in sorted(set(offsets)) if first < x < last] + [size]
    start = max(x for x in offsets if x <= first)
    end = min(x for x in offsets if x >= last)
    return local, i - start // size, (end - 1) // size - i, first - start


def peer_context(offsets: tuple[int, ...], world: int, rank: int, group: Any = None,
                 layout: str = "contiguous") -> PeerContext:
    """The context of a rank for a pack of `offsets`."""
    parts = world if layout == "contiguous" else 2 * world
    size, rest = divmod(offsets[-1], parts)
    assert rest == 0
    local, back, on, before = part(offsets, size, rank)
    if layout == "contiguous":
        table = torch.tensor(local, dtype=torch.int32)
        return PeerContext(group, table, table, back == 0, on == 0, back, on, 4, before)
    local2, back2, on2, _ = part(offsets, size, parts - 1 - rank)
    table = torch.tensor(local + [size + x for x in local2[1:]], dtype=torch.int32)
    return PeerContext(group, table, table, conv1d_kernel_size=4, layout=layout, part_len=size,
                       front_num_seqs=len(local) - 1, is_first_by_part=(back == 0, back2 == 0),
                       is_last_by_part=(on == 0, on2 == 0), pre_num_ranks_by_part=(back, back2),
                       post_num_ranks_by_part=(on, on2))


def rows_of(total: int, world: int, rank: int, layout: str) -> torch.Tensor:
    """Packed rows of a rank."""
    if layout == "contiguous":
        return torch.arange(total).reshape(world, -1)[rank]
    return torch.arange(total).reshape(2 * world, -1)[[rank, 2 * world - 1 - rank]].flatten()


def run(chunk_kda: Any, pack: dict[str, torch.Tensor], dout: torch.Tensor, **options: Any) -> dict[str, torch.Tensor]:
    """out and gradients of every operand."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in pack.items()}
    out, state = chunk_kda(**leaves, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, **options)
    assert state is None
    return {"out": out.detach()} | dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout)))


def make_pack(total: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Operands of `[1, total]` rows, two value heads for each head, with a raw gate; and the incoming gradient."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"q": (1, total, 1, 16), "k": (1, total, 1, 16), "v": (1, total, 2, 16), "g": (1, total, 2, 16),
              "beta": (1, total, 2), "A_log": (2,), "dt_bias": (32,)}
    pack = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    pack["beta"] = pack["beta"].sigmoid()
    return pack, torch.randn(1, total, 2, 16, generator=random)


def main(mode: str, file: str, rank: int, world: int) -> None:
    """One rank."""
    import gc
    import importlib
    import importlib.util

    import torch.distributed as dist
    if importlib.util.find_spec("cake_train") is None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    chunk_kda = importlib.import_module(f"cake_train.compat.fla_{mode}").chunk_kda
    from cake_train.compat import _cp_context
    # Imported later, its default arguments would hold the group, whose threads destroy_process_group could not end.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
    group = dist.group.WORLD
    for seed, (layout, offsets) in enumerate(PACKS):
        pack, dout = make_pack(offsets[-1], seed)
        whole = run(chunk_kda, pack, dout, cu_seqlens=torch.tensor(offsets))
        rows = rows_of(offsets[-1], world, rank, layout)
        local = {n: x if n in ("A_log", "dt_bias") else x[:, rows] for n, x in pack.items()}
        shares = run(chunk_kda, local, dout[:, rows], cp_context=peer_context(offsets, world, rank, group, layout))
        for name, x in shares.items():
            if name in ("A_log", "dt_bias"):
                dist.all_reduce(x)
                assert (x - whole[name]).norm() <= 1e-5 * whole[name].norm(), name
            elif mode == "det":
                assert torch.equal(x, whole[name][:, rows]), (layout, offsets, name)
            else:
                assert (x - whole[name][:, rows]).norm() <= 1e-5 * whole[name].norm(), (layout, offsets, name)
    # The last pack is the first one again.
    assert len(_cp_context._kept) == len(PACKS) - 1, len(_cp_context._kept)
    refuse(chunk_kda, group, rank, world)
    del group
    gc.collect()  # the errors' tracebacks are cycles, which hold the group
    dist.destroy_process_group()
    print("passed")


def refuse(chunk_kda: Any, group: Any, rank: int, world: int) -> None:
    """Contexts that do not fit together: every rank has the same error, and none waits."""
    def fault(expected: type, text: str, **changes: Any) -> None:
        context = peer_context((0, 120), world, rank, group)
        for name, value in changes.items():
            setattr(context, name, value)
        pack, dout = make_pack(120 // world, 0)
        try:
            run(chunk_kda, pack, dout, cp_context=context)
        except expected as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{changes} was accepted")
    fault(ValueError, "otherwise", **({"is_first_rank": True} if rank == 1 else {}))
    fault(ValueError, "behind the last part", **({"is_last_rank": False} if rank == world - 1 else {}))
    fault(ValueError, "conv1d_kernel_size", **({"conv1d_kernel_size": 3} if rank == 0 else {}))
    fault(ValueError, "cu_seqlens holds", **({"cu_seqlens_cpu": torch.tensor([5, 60])} if rank == 0 else {}))
    fault(ValueError, "is None", **({"cu_seqlens": None, "cu_seqlens_cpu": None} if rank == 0 else {}))
    fault(NotImplementedError, "'ring'", **({"layout": "ring"} if rank == 0 else {}))
    fault(NotImplementedError, "pre_num_ranks_dev", **({"pre_num_ranks_dev": torch.zeros(1)} if rank == 0 else {}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
