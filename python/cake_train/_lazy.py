"""Names of a facade that resolve at their first access."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Mapping


def lazy_exports(module: str, exports: Mapping[str, tuple[str, str]]) -> Callable[[str], Any]:
    """A module's `__getattr__` over rows name -> (module, attribute)."""

    def get(name: str) -> Any:
        row = exports.get(name)
        if row is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(row[0], module.rpartition(".")[0]), row[1])
        setattr(sys.modules[module], name, value)
        return value

    return get
