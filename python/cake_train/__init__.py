"""Cake Train: training kernels whose package name says what their gradients promise.

Each package is a module of its own: `cake_train.cake_kda_det_train` (gradients repeat bit for bit),
`cake_train.cake_kda_nondet_train`, and the same with `_kcp` for sequences that are sharded over ranks. Importing this
package, or one of them, loads neither torch nor a shared library; the first call does.
"""

from __future__ import annotations

__all__ = ["get_num_threads", "set_num_threads"]

__version__ = "0.1.0"


def set_num_threads(threads: int) -> None:
    """Threads of the CPU kernels in this process; 0 returns to the default (CAKE_NUM_THREADS, else the cores that the
    process may use). Changes no bit of a det package. Raises ValueError for a negative number."""
    from ._backend.library import function

    function("core", "cake_core_set_num_threads")(int(threads))


def get_num_threads() -> int:
    """Threads that a call made from this thread uses."""
    from ._backend.library import function

    return function("core", "cake_core_num_threads")()
