"""Groups of ranks for the packages over ranks (`_kcp`): what build_context takes as `group` beside a torch.distributed
process group. A group moves bytes and never adds numbers, so it cannot change a bit of a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from ._backend.comm import MpiGroup, ThreadGroup

__all__ = ["MpiGroup", "ThreadGroup"]

_LAZY_EXPORTS = {
    "MpiGroup": ("._backend.comm", "MpiGroup"),
    "ThreadGroup": ("._backend.comm", "ThreadGroup"),
}
__getattr__ = lazy_exports(__name__, _LAZY_EXPORTS)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
