"""Python objects around the library's, and numbers for them: a torch operator takes tensors and numbers only, so what
is neither is passed by number. The table holds objects weakly; numbers are never used twice."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

_numbers = itertools.count(1)
_table: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_adopted: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class LibraryObject:
    """A library object behind a handle that carries a tag, by which the library itself recognises it. What is copied is
    the reference: copies share the object."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._number = next(_numbers)
        _table[self._number] = self

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} holds memory of this process and cannot be pickled")

    def __copy__(self) -> "LibraryObject":
        return self

    def __deepcopy__(self, memo: Any) -> "LibraryObject":
        return self


def handle_of(x: Any, name: str, class_name: str) -> Any:
    """The handle of an object of any package, also of another copy of this one: the library reads its tag and refuses a
    foreign one. Raises TypeError for something that has none."""
    if x is None:
        return None
    handle = getattr(x, "_handle", None)
    if handle is None:
        raise TypeError(f"{name} must be a {class_name}")
    return handle


def number_of(x: Any, name: str, class_name: str) -> int:
    """The number of an object, 0 for None. Raises as handle_of."""
    if x is None:
        return 0
    handle_of(x, name, class_name)
    if isinstance(x, LibraryObject):  # nothing is looked up here: torch.compile follows this
        return x._number
    if x not in _adopted:  # an object of another copy of this package
        number = next(_numbers)
        _table[number] = x
        _adopted[x] = number
    return _adopted[x]


def object_of(number: int) -> Any:
    """The object, or None when it is gone."""
    return _table.get(number) if number else None
