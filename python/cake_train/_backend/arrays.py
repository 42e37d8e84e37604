"""numpy arrays and torch tensors as the library takes them, and new ones of the caller's kind. torch is looked at only
where the caller has loaded it."""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

_DTYPES = ("float32", "bfloat16", "float16", "int32", "int64")


def is_torch(x: Any) -> bool:
    """Whether x is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_of(x: Any) -> str:
    """ "float32", "bfloat16", "float16", "int32", ..."""
    return str(x.dtype).removeprefix("torch.")


def wire(x: Any, name: str, *, writable: bool = False) -> Any:
    """What the library takes for x: None, a detached torch tensor or a numpy array. numpy has no bf16 of its own: one
    of ml_dtypes travels as its 16-bit patterns. A read-only array that is only read travels as a copy, because DLPack
    carries none. Raises TypeError, ValueError (dtype; a read-only result) or NotImplementedError (device) naming it."""
    if x is None:
        return None
    if is_torch(x):
        if x.device.type != "cpu":
            raise NotImplementedError(f"{name}: got a tensor on {x.device}, and this version runs on the CPU")
        if dtype_of(x) not in _DTYPES:
            raise ValueError(f"{name}: got dtype {dtype_of(x)}, expected one of {', '.join(_DTYPES)}")
        return x.detach()
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name}: got a {type(x).__name__}, expected a torch tensor or a numpy array")
    if dtype_of(x) not in _DTYPES:
        raise ValueError(f"{name}: got dtype {dtype_of(x)}, expected one of {', '.join(_DTYPES)}")
    array = x.view(np.uint16) if dtype_of(x) == "bfloat16" else x
    if not array.flags.writeable:
        if writable:
            raise ValueError(f"{name}: got a read-only array, expected one that can be written")
        array = array.copy()
    return array


def require(x: Any, name: str) -> None:
    """Raises the TypeError of wire for an operand that is not there."""
    if not is_torch(x) and not isinstance(x, np.ndarray):
        raise TypeError(f"{name}: got a {type(x).__name__}, expected a torch tensor or a numpy array")


def empty(like: Any, shape: Sequence[int], dtype: str) -> Any:
    """An uninitialised array of the kind (numpy or torch) of `like`, row-major."""
    if is_torch(like):
        import torch

        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=like.device)
    if dtype == "bfloat16":
        import ml_dtypes

        return np.empty(tuple(shape), ml_dtypes.bfloat16)
    return np.empty(tuple(shape), dtype)


def check_device(device: Any) -> None:
    """Raises NotImplementedError for a device that this version lacks; None and "cpu" pass."""
    if device is not None and str(device).split(":")[0] != "cpu":
        raise NotImplementedError(f"device: got {device}, and this version runs on the CPU")
