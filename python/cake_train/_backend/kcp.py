"""Partitions, contexts and recompute handles: the objects over ranks that hold no mode."""

from __future__ import annotations

import operator
from typing import Any, Sequence

from . import arrays, comm, objects
from .comm import call


class CakeKcpPartition(objects.LibraryObject):
    """Which rank holds which rows of a pack of documents: every row on exactly one rank. Made by
    cake_kda_det_train_kcp_partition and its twins; `cu_seqlens` are the pack's offsets. Ranks out of range are a
    ValueError."""

    tag = "cake/kcp/partition/v1"

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)

    @property
    def world_size(self) -> int:
        """Ranks."""
        return call("partition_world_size", self._handle)

    @property
    def documents(self) -> int:
        """Documents of the pack."""
        return call("partition_documents", self._handle)

    @property
    def cu_seqlens(self) -> list[int]:
        """The pack's offsets."""
        return [int(n) for n in call("partition_cu_seqlens", self._handle)]

    def rows(self, rank: int) -> int:
        """Rows of a rank."""
        return call("partition_rows", self._handle, operator.index(rank))

    def global_rows(self, rank: int) -> Any:
        """The packed row of every local row of a rank, a numpy int64 array `[rows(rank)]`: `x[:, global_rows(rank)]`
        is a rank's shard of a packed `[1, T, ...]`."""
        import numpy as np

        found = np.empty(self.rows(rank), np.int64)
        call("partition_global_rows", self._handle, operator.index(rank), found)
        return found

    def fragments(self, rank: int) -> list[tuple[int, int, int]]:
        """A rank's rows as (document, first row in it, rows), in the order in which they lie in its tensors."""
        flat = [int(n) for n in call("partition_fragments", self._handle, operator.index(rank))]
        return list(zip(flat[0::3], flat[1::3], flat[2::3]))


class CakeKcpContext(objects.LibraryObject):
    """A partition as one rank of a group sees it. Made by cake_kda_det_train_kcp_build_context and its twins, once per
    pack; it serves every layer, family and mode, for one call at a time. It ends with its process group."""

    tag = "cake/kcp/context/v1"

    def __init__(self, handle: Any, partition: CakeKcpPartition) -> None:
        super().__init__(handle)
        self.partition = partition
        self._facts = tuple(int(n) for n in call("context_facts", handle))

    @property
    def rank(self) -> int:
        """This rank."""
        return self._facts[0]

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self._facts[1]

    @property
    def rows(self) -> int:
        """Rows of this rank: S of its tensors."""
        return self._facts[2]

    @property
    def documents(self) -> int:
        """Documents of the whole pack: N of its states."""
        return self._facts[3]

    @property
    def conv_kernel_size(self) -> int:
        """Taps of the causal convolution whose halo is planned."""
        return self._facts[4]

    def counters(self) -> dict[str, int]:
        """What this rank's communicator has moved since it was made: messages_sent, bytes_sent, bytes_received (to and
        from other ranks), all_gathers. Agreements on arguments (a few bytes a call) do not count. The contexts of a
        rank of a ThreadGroup share one communicator; over a process group each has its own."""
        names = ("messages_sent", "bytes_sent", "bytes_received", "all_gathers")
        return dict(zip(names, (int(n) for n in call("context_counters", self._handle))))

    def halo_rows(self, halo: str = "before") -> list[int]:
        """By fragment of this rank, the rows next to it that a causal convolution of conv_kernel_size taps reads:
        "before" (its forward) or "after" (its backward). Fewer than conv_kernel_size - 1 at the border of a document, 0
        for an empty fragment."""
        return [int(n) for n in call("context_fragment_halo_rows", self._handle, str(halo))]

    def exchange_halo(self, local: Any, halo: str = "before", out: Any = None) -> Any:
        """Collective: the halo rows of all fragments `[sum(halo_rows(halo)), ...]`, fragment after fragment, out of
        this rank's rows `local` `[rows, ...]` (torch or numpy; rows may be strided, without gaps inside one). Without
        autograd. All ranks give the same halo, dtype and row shape. Raises ValueError, RuntimeError (another rank's
        error)."""
        with refusals(self._handle, "exchange_halo", None):
            wired = arrays.wire(local, "local")
            arrays.require(local, "local")
            if out is None:
                shape = (call("context_halo_rows", self._handle, str(halo)), *local.shape[1:])
                out = arrays.empty(local, shape, arrays.dtype_of(local))
            target = arrays.wire(out, "out", writable=True)
        call("context_exchange_halo", self._handle, str(halo), wired, target)
        return out

    def halo_bytes(self, halo: str, row_bytes: int) -> tuple[int, int]:
        """Bytes that exchange_halo sends and receives for rows of row_bytes bytes. Not collective."""
        sent, received = call("context_halo_bytes", self._handle, str(halo), operator.index(row_bytes))
        return int(sent), int(received)


class CakeKcpRecomputeHandle(objects.LibraryObject):
    """Lets a checkpointed region run its forward again without communication. Made outside the region and passed to
    the forwards inside: the first one stores everything it receives from other ranks, the next ones replay it. One
    handle per op call of the region. All ranks pass one, or none."""

    tag = "cake/kcp/recompute/v1"

    def __init__(self) -> None:
        super().__init__(call("recompute_make"))

    @property
    def entries(self) -> list[str]:
        """Names of what is stored, one per op: "kda"."""
        return [str(name) for name in call("recompute_entries", self._handle)]

    def clear(self) -> None:
        """Drops all entries: the next forward stores again. Needed before the forward of another step."""
        call("recompute_clear", self._handle)

    def nbytes(self) -> int:
        """Bytes that the entries hold."""
        return call("recompute_nbytes", self._handle)


class refusals:
    """Where the block raises, the other ranks, which are in the agreement that a call begins with, fail with its
    message instead of waiting. A forward that would replay has no agreement."""

    def __init__(self, context: Any, what: str, recompute_handle: Any) -> None:
        self._context, self._what, self._recompute = context, what, recompute_handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, Exception) and not _replays(self._recompute):
            call("context_refuse", self._context, self._what, str(error))


def _replays(recompute_handle: Any) -> bool:
    handle = getattr(recompute_handle, "_handle", None)
    try:
        return handle is not None and "kda" in [str(name) for name in call("recompute_entries", handle)]
    except (TypeError, ValueError):  # an object of another kind
        return False


def _integers(values: Any, name: str) -> list[int]:
    try:
        return [operator.index(n) for n in (values.tolist() if hasattr(values, "tolist") else values)]
    except TypeError:
        raise TypeError(f"{name}: got {values!r}, expected integers") from None


def partition(
    cu_seqlens_global_cpu: Any, world_size: int, layout: str, fragments: Any, cut_points: Sequence[int] | None
) -> CakeKcpPartition:
    """A partition by layout, by cut points or by fragments."""
    device = getattr(cu_seqlens_global_cpu, "device", "cpu")
    if str(device) != "cpu":
        raise ValueError(f"cu_seqlens_global_cpu: got a tensor on {device}, expected one on the CPU")
    offsets = _integers(cu_seqlens_global_cpu, "cu_seqlens_global_cpu")
    if fragments is None and cut_points is None:
        return CakeKcpPartition(call("partition_make", offsets, operator.index(world_size), str(layout)))
    if fragments is not None and cut_points is not None:
        raise ValueError("cut_points: got them beside fragments, expected one of the two")
    if layout != "contiguous":
        given = "fragments" if cut_points is None else "cut_points"
        raise ValueError(f"layout: got {layout!r} beside {given}, expected one of the two")
    ranks = len(cut_points) + 1 if cut_points is not None else len(fragments)
    if ranks != world_size:
        raise ValueError(f"world_size: got {world_size}, and the partition given is for {ranks} ranks")
    if cut_points is not None:
        cuts = _integers(cut_points, "cut_points")
        return CakeKcpPartition(call("partition_from_cut_points", offsets, cuts))
    lists = []
    for r, mine in enumerate(fragments):
        rows = [_integers(fragment, f"fragments[{r}]") for fragment in mine]
        if any(len(row) != 3 for row in rows):
            raise ValueError(f"fragments[{r}]: got {mine!r}, expected tuples (document, offset, length)")
        lists.append([n for row in rows for n in row])
    return CakeKcpPartition(call("partition_from_fragments", offsets, lists))


def build_context(
    given: Any, group: Any, rank: int, device: Any, conv_kernel_size: int, heads: Any, stream: Any
) -> CakeKcpContext:
    """A context. Collective over the group."""
    for name, value in (("heads", heads), ("stream", stream)):
        if value is not None:
            raise NotImplementedError(f"{name}: got {value!r}, which the CPU has no use for; accepted: None")
    arrays.check_device(device)
    if given is None:
        raise TypeError("partition must be a CakeKcpPartition")
    handle = objects.handle_of(given, "partition", "CakeKcpPartition")
    communicator = comm.communicator(group, operator.index(rank))
    return CakeKcpContext(call("context_make", handle, communicator, operator.index(conv_kernel_size)), given)
