"""Loads the package's shared libraries, each at its first use."""

from __future__ import annotations

import functools
import pathlib
from typing import Any, Callable

_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "lib"


@functools.lru_cache(maxsize=None)
def library(name: str) -> Any:
    """The ffi module "core", "det" or "nondet". Raises ImportError naming the file when it is not there."""
    path = _FOLDER / f"libcake_ffi_{name}.so"
    if not path.is_file():
        raise ImportError(
            f"cake_train: the library {path} is missing: install the package, or build its libraries "
            "(CONTRIBUTING.md, Python)"
        )
    from tvm_ffi import load_module
    from tvm_ffi.error import register_error

    register_error("NotImplementedError", NotImplementedError)
    register_error("UserWarning", UserWarning)  # an alert, where the caller's filters turn warnings into errors
    return load_module(str(path))


@functools.lru_cache(maxsize=None)
def function(name: str, symbol: str) -> Callable[..., Any]:
    """An ffi function of a library. The interpreter lock is free while it runs."""
    found = library(name)[symbol]
    found.release_gil = True
    return found
