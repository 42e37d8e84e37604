"""Contexts of flash-linear-attention's context parallelism as contexts of the packages over ranks.

Such a context is local: a rank's offsets, with borders at its first and last row, and whether its first document began
on an earlier rank and its last one goes on. The ranks exchange these tables (a few bytes, one all_gather per call: a
rank cannot tell from its own table whether another's has changed), join them to the offsets of the pack, and build a
context from those once. What is built is kept by content, and used again only when every rank of the group still has
it.
"""
from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from ._chunk_kda import KcpEntries

_DEFAULT_CONV_KERNEL = 4
_KEPT = 8

_lock = threading.Lock()
_kept: list[tuple[Any, type, str, Any]] = []
"""(group, context class, digest of the content, context), the last used one last."""


class _Part(NamedTuple):
    """Consecutive packed rows on one rank: offsets from its first row, and whether documents cross its borders."""

    offsets: tuple[int, ...]
    from_before: bool
    goes_on: bool


class _Local(NamedTuple):
    """What a rank tells the others: one part, or with the zigzag layout two; or why it cannot."""

    layout: str = "contiguous"
    conv_kernel: int = 0
    parts: tuple[_Part, ...] = ()
    fault: str | None = None
    kept: tuple[str, ...] = ()


def is_cp_context(x: object) -> bool:
    """Whether an object has the attributes of flash-linear-attention's context."""
    return hasattr(x, "group") and hasattr(x, "cu_seqlens") and any(
        hasattr(x, name) for name in ("is_first_rank", "pre_num_ranks"))


def kcp_context(kcp: KcpEntries, context: Any, device: torch.device) -> Any:
    """The context of the package over ranks for a pack sharded as `context` says. Collective over its group.

    Raises:
        NotImplementedError: a layout, or graph replay, that is not built.
        TypeError: the group is no torch.distributed process group.
        ValueError: the tables of the ranks do not fit together; the same on every rank.
    """
    import torch.distributed as dist

    group = context.group
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"cp_context.group is a {type(group).__name__}; expected a torch.distributed.ProcessGroup")
    ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ranks, _local(kcp, context, group), group=group)
    layout, conv_kernel, parts = _agreed(ranks)
    offsets, rows = _joined(parts)
    digest = hashlib.sha256(repr((layout, conv_kernel, offsets, rows, device.type)).encode()).hexdigest()
    if all(digest in rank.kept for rank in ranks):
        return _find(kcp, group, digest)
    partition = kcp.partition(_tensor(offsets), len(ranks), **_cuts(layout, rows))
    built = kcp.build_context(partition, group, dist.get_rank(group), device.type, conv_kernel)
    with _lock:
        _kept[:] = [e for e in _kept if not _is(e, kcp, group, digest)][1 - _KEPT:]
        _kept.append((group, kcp.context_type, digest, built))
    return built


def _is(entry: tuple[Any, type, str, Any], kcp: KcpEntries, group: Any, digest: str | None) -> bool:
    return entry[0] is group and entry[1] is kcp.context_type and digest in (None, entry[2])


def _find(kcp: KcpEntries, group: Any, digest: str) -> Any:
    with _lock:
        entry = next(e for e in _kept if _is(e, kcp, group, digest))
        _kept.remove(entry)
        _kept.append(entry)
    return entry[3]


def _tensor(offsets: list[int]) -> torch.Tensor:
    import torch

    if offsets[-1] > 2**31 - 1:
        raise ValueError(f"the ranks of cp_context hold {offsets[-1]} rows; expected at most {2**31 - 1}")
    return torch.tensor(offsets, dtype=torch.int32)


def _cuts(layout: str, rows: list[int]) -> dict[str, Any]:
    """How the partition cuts the pack. Equal parts are its own rule, others are given to it."""
    if layout == "zigzag":
        if len(set(rows)) > 1:
            raise ValueError(f"the parts of cp_context have {rows} rows; expected equal parts with layout 'zigzag'")
        return {"layout": "zigzag"}
    if len(set(rows)) == 1:
        return {"layout": "contiguous"}
    cuts = [sum(rows[:r]) for r in range(1, len(rows))]
    return {"cut_points": cuts}


def _local(kcp: KcpEntries, context: Any, group: Any) -> _Local:
    """This rank's table. A fault is told, not raised: the other ranks wait in the all_gather."""
    with _lock:
        kept = tuple(e[2] for e in _kept if _is(e, kcp, group, None))
    layout = getattr(context, "layout", "contiguous")
    conv_kernel = getattr(context, "conv1d_kernel_size", None) or getattr(context, "kernel_size", None)
    try:
        return _Local(layout, conv_kernel or _DEFAULT_CONV_KERNEL, _parts(context, layout), None, kept)
    except (AttributeError, TypeError, ValueError) as error:
        return _Local(fault=str(error))
    except NotImplementedError as error:
        return _Local(layout="not built", fault=str(error))


def _parts(context: Any, layout: str) -> tuple[_Part, ...]:
    for name in ("pre_num_ranks_dev", "post_num_ranks_dev"):
        if getattr(context, name, None) is not None:
            raise NotImplementedError(f"cp_context.{name}: replay of captured graphs is not built; expected None")
    table = getattr(context, "cu_seqlens_cpu", None)
    table = context.cu_seqlens if table is None else table
    if table is None:
        raise ValueError("cp_context.cu_seqlens is None; expected the rank's offsets")
    offsets = tuple(int(x) for x in table.tolist())
    if layout == "contiguous":
        return (_part(offsets, _flag(context, "is_first_rank", "pre_num_ranks"),
                      _flag(context, "is_last_rank", "post_num_ranks")),)
    if layout == "zigzag":
        n = context.front_num_seqs
        back = tuple(x - context.part_len for x in offsets[n:])
        before = _flags(context, "is_first_by_part", "pre_num_ranks_by_part")
        after = _flags(context, "is_last_by_part", "post_num_ranks_by_part")
        return _part(offsets[:n + 1], before[0], after[0]), _part(back, before[1], after[1])
    raise NotImplementedError(f"cp_context.layout is {layout!r}; accepted: 'contiguous' or 'zigzag'")


def _part(offsets: tuple[int, ...], from_before: bool, goes_on: bool) -> _Part:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] == 0 or any(a > b for a, b in zip(offsets, offsets[1:])):
        raise ValueError(f"cp_context.cu_seqlens holds {list(offsets)} for a part; expected 0, non-decreasing offsets, "
                         "and at least one row")
    return _Part(offsets, from_before, goes_on)


def _flag(context: Any, is_end: str, ranks: str) -> bool:
    """Whether a document crosses a border of the rank."""
    end, number = getattr(context, is_end, None), getattr(context, ranks, None)
    if end is None and number is None:
        raise ValueError(f"cp_context has neither {is_end} nor {ranks}")
    return not end if end is not None else number > 0


def _flags(context: Any, is_end: str, ranks: str) -> tuple[bool, bool]:
    end, number = getattr(context, is_end, None), getattr(context, ranks, None)
    if end is None and number is None:
        raise ValueError(f"cp_context has neither {is_end} nor {ranks}")
    return (not end[0], not end[1]) if end is not None else (number[0] > 0, number[1] > 0)


def _agreed(ranks: list[_Local]) -> tuple[str, int, list[_Part]]:
    """Layout, taps of the convolution, and the parts in the order of their rows."""
    for r, rank in enumerate(ranks):
        if rank.fault is not None:
            kind = NotImplementedError if rank.layout == "not built" else ValueError
            raise kind(f"{rank.fault} (rank {r})")
    for name, values in (("layout", [x.layout for x in ranks]), ("conv1d_kernel_size", [x.conv_kernel for x in ranks])):
        if len(set(values)) > 1:
            raise ValueError(f"cp_context.{name} is {values} on the ranks; expected one value")
    parts = [rank.parts[0] for rank in ranks]
    if ranks[0].layout == "zigzag":
        parts += [rank.parts[1] for rank in reversed(ranks)]
    return ranks[0].layout, ranks[0].conv_kernel, parts


def _joined(parts: list[_Part]) -> tuple[list[int], list[int]]:
    """Offsets of the pack, and the rows of each part."""
    offsets, first = [0], 0
    for i, part in enumerate(parts):
        before = i > 0 and parts[i - 1].goes_on
        if part.from_before != before:
            said = "goes on" if before else "ends"
            raise ValueError(f"cp_context: the last document before part {i} {said} there, its first document says "
                             "otherwise; expected contexts of one pack")
        if part.from_before:
            offsets.pop()
        offsets += [first + x for x in part.offsets[1:]]
        first += part.offsets[-1]
    if parts[-1].goes_on:
        raise ValueError("cp_context: the last document goes on behind the last part; expected contexts of one pack")
    return offsets, [part.offsets[-1] for part in parts]
