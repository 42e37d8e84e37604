"""Groups of ranks, and the library's communicators over them."""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable

from . import objects
from .library import function


def call(name: str, *arguments: Any) -> Any:
    """Calls an ffi function of the neutral objects over ranks."""
    return function("core", f"cake_kcp_{name}")(*arguments)


class ThreadGroup(objects.LibraryObject):
    """Ranks as threads of this process.

    ranks: 1 to 1024. timeout: seconds after which a rank that waits for another gives up with RuntimeError. Every
    rank's calls come from one thread at a time. Raises ValueError for a number out of range.
    """

    def __init__(self, ranks: int, timeout: float = 60.0) -> None:
        super().__init__(call("make_threads", int(ranks), float(timeout)))
        self._size = int(ranks)

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self._size

    def run(self, fn: Callable[[int], Any]) -> list[Any]:
        """Calls fn(rank) on one new thread per rank and waits for all: their results in the order of ranks.

        When a rank raises, the group is aborted, so that the others fail instead of waiting, and the error that came
        first is raised here. An aborted group cannot be used again.
        """
        results: list[Any] = [None] * self._size
        faults: list[BaseException] = []
        lock = threading.Lock()

        def main(rank: int) -> None:
            try:
                results[rank] = fn(rank)
            except BaseException as error:  # raised again below
                with lock:
                    faults.append(error)
                self.abort(rank, f"{type(error).__name__}: {error}")

        threads = [threading.Thread(target=main, args=(r,), name=f"rank {r}") for r in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        return results

    def abort(self, rank: int, reason: str) -> None:
        """Ends the group: pending and later calls of all ranks raise RuntimeError with this rank and the reason."""
        call("communicator_abort", self._communicator(rank), str(reason))

    def _communicator(self, rank: int) -> Any:
        return call("communicator_of_thread", self._handle, int(rank))


class MpiGroup:
    """Ranks of MPI. The Python package of this version is built without MPI: making one raises NotImplementedError.
    Under mpirun, torch.distributed's process groups do the same work."""

    def __init__(self) -> None:
        raise NotImplementedError(
            "MpiGroup: this build has no MPI; accepted as group: a torch.distributed process group or a ThreadGroup"
        )


def communicator(group: Any, rank: int) -> Any:
    """The handle of a new or (ThreadGroup) the rank's communicator. Raises TypeError for another kind of group,
    ValueError for a rank that is not this process's."""
    if isinstance(group, ThreadGroup):
        return group._communicator(rank)
    distributed = sys.modules.get("torch.distributed")
    if group is None or (distributed is not None and isinstance(group, distributed.ProcessGroup)):
        from . import torch_comm

        return torch_comm.communicator(group, rank)
    if getattr(group, "_handle", None) is not None and hasattr(group, "_communicator"):
        return group._communicator(rank)  # of another copy of this package
    raise TypeError(
        f"group: got a {type(group).__name__}, expected a torch.distributed.ProcessGroup, a "
        "cake_train.comm.ThreadGroup or None (the default process group)"
    )
