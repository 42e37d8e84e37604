"""The objects of the packages over ranks that hold no mode: one of them serves every layer, family and mode.

Made by the entries of a package, for example cake_kda_det_train_kcp_partition and cake_kda_det_train_kcp_build_context
of cake_train.cake_kda_det_train_kcp; a CakeKcpRecomputeHandle is made by its constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from ._backend.kcp import CakeKcpContext, CakeKcpPartition, CakeKcpRecomputeHandle

__all__ = ["CakeKcpContext", "CakeKcpPartition", "CakeKcpRecomputeHandle"]

_LAZY_EXPORTS = {
    "CakeKcpContext": ("._backend.kcp", "CakeKcpContext"),
    "CakeKcpPartition": ("._backend.kcp", "CakeKcpPartition"),
    "CakeKcpRecomputeHandle": ("._backend.kcp", "CakeKcpRecomputeHandle"),
}
__getattr__ = lazy_exports(__name__, _LAZY_EXPORTS)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
