"""A torch.distributed process group as a communicator of the library: messages are the library's memory itself, seen
as uint8 tensors."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from .comm import call

_FIRST_TAG = 1 << 20  # apart from the small tags that programs use for messages of their own


def _bytes_at(address: int, size: int) -> torch.Tensor:
    """The memory itself; it must outlive the tensor."""
    return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=torch.uint8)


def _triples(flat: Sequence[int]) -> list[tuple[int, int, int]]:
    numbers = [int(n) for n in flat]
    return list(zip(numbers[0::3], numbers[1::3], numbers[2::3]))


def _guarded(fn: Callable[..., None]) -> Callable[..., bool]:
    """Says true at the end; whatever is raised on the way, an interrupt too, must end the library's call."""

    def run(*arguments: Any) -> bool:
        try:
            with torch.no_grad():
                fn(*arguments)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__} {error}") from error
        return True

    return run


class _Transport:
    """The callbacks of one rank of a group. They do not keep it alive: torch.distributed.destroy_process_group must end
    its threads, which else may want the interpreter while it ends."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._reference, self._rank, self._size = weakref.ref(group), rank, size

    @property
    def _group(self) -> Any:
        group = self._reference()
        if group is None:
            raise RuntimeError("the process group of this context was destroyed")
        return group

    def all_gather(self, data: int, size: int, everything: int) -> None:
        """Every rank's `size` bytes, in rank order."""
        if size == 0:
            return
        own = _bytes_at(data, size)
        results = _bytes_at(everything, size * self._size)
        if self._size == 1:
            results.copy_(own)
            return
        dist.all_gather(list(results.split(size)), own, group=self._group)

    def exchange(self, sends: Sequence[int], receives: Sequence[int]) -> None:
        """All messages at once; returns when all are done. Both sides know the sizes: empty messages do not travel."""
        outgoing = [m for m in _triples(sends) if m[2] > 0]
        incoming = [m for m in _triples(receives) if m[2] > 0]
        own = [m for m in outgoing if m[0] == self._rank], [m for m in incoming if m[0] == self._rank]
        if [m[2] for m in own[0]] != [m[2] for m in own[1]]:
            raise RuntimeError(f"rank {self._rank} expects other messages from itself than it sends")
        for (_, source, size), (_, target, _) in zip(*own):
            ctypes.memmove(target, source, size)
        works: list[Any] = []
        for start, messages in ((dist.irecv, incoming), (dist.isend, outgoing)):
            numbers: dict[int, int] = {}
            for peer, address, size in messages:
                if peer == self._rank:
                    continue
                number = numbers[peer] = numbers.get(peer, -1) + 1
                side = {"group_src" if start is dist.irecv else "group_dst": peer}
                named: dict[str, Any] = {"group": self._group, "tag": _FIRST_TAG + number, **side}
                works.append(start(_bytes_at(address, size), **named))
        for work in works:
            work.wait()

    def barrier(self) -> None:
        """Returns when every rank has come."""
        if self._size > 1:
            dist.barrier(group=self._group)


def communicator(group: Any, rank: int) -> Any:
    """The handle of a communicator over a process group (None: the default one), whose rank this process must be."""
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("group: got None, and torch.distributed has no default group (init_process_group)")
    group = dist.group.WORLD if group is None else group
    own = dist.get_rank(group)
    if own < 0:
        raise ValueError("group: got a process group that this process does not belong to")
    if rank != own:
        raise ValueError(f"rank: got {rank}, expected {own}, this process's rank in the group")
    if "cpu" not in {device.type for device in group._device_types}:
        raise NotImplementedError(
            f"group: got a process group of backend {dist.get_backend(group)}, which moves no memory of the CPU; "
            "accepted: one with gloo"
        )
    size = dist.get_world_size(group)
    transport = _Transport(group, own, size)
    return call(
        "make_callbacks",
        own,
        size,
        _guarded(transport.all_gather),
        _guarded(transport.exchange),
        _guarded(transport.barrier),
        None,
    )
