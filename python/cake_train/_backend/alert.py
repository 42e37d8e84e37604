"""torch's deterministic-mode switch as the library's alert policy. Read when a backward runs, never before."""

from __future__ import annotations

import sys
import warnings
from typing import Any

_ALLOW, _WARN, _FORBID = 0, 1, 2


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=2)


def arguments(entry: str) -> tuple[Any, ...]:
    """(policy, entry, setting, advice, warn) of a nondet backward, as the switch of torch.use_deterministic_algorithms
    stands now. Without torch there is no switch, and nothing alerts."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.are_deterministic_algorithms_enabled():
        return _ALLOW, entry, "", "", None
    if torch.is_deterministic_algorithms_warn_only_enabled():
        return _WARN, entry, "torch.use_deterministic_algorithms(True, warn_only=True)", "", _warn
    return (
        _FORBID,
        entry,
        "torch.use_deterministic_algorithms(True)",
        "You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if that's "
        "acceptable for your application.",
        None,
    )
