"""One object, one name: what a facade offers is bound nowhere under another name."""
from __future__ import annotations

import functools
import importlib.util
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Optional, Union

from ._public_names import public_names

Namespace = Union[types.ModuleType, type, Mapping]
TABLE = "_LAZY_EXPORTS"
# Equal values of these types may be one object by accident (small numbers, interned strings, the empty tuple).
_SHARED = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, type(...), type(NotImplemented))


class _Row(NamedTuple):
    """A lazy export: `key` is bound to attribute `attr` of the module `target`, or to `target` itself (attr None)."""

    key: str
    target: str
    attr: Optional[str]


class _Names:
    """The objects that have a facade name, each with the names under which it may be bound."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[object, set[str], bool]] = {}

    def add(self, name: str, obj: object) -> list[str]:
        """Notes the object and its wrapper chain under a name; returns the failures if it has another one."""
        if not _has_identity(obj):
            return []
        known = self._entries.get(id(obj))
        if known and known[2] and name not in known[1]:
            return [f"one object has the names {min(known[1])} and {name}"]
        self._entries[id(obj)] = (obj, {name}, True)
        # What several wrappers share may have the name of each, but a name of its own comes first.
        for inner in _wrapped(obj):
            entry = self._entries.setdefault(id(inner), (inner, set(), False))
            if not entry[2]:
                entry[1].add(name)
        return []

    def of(self, obj: object) -> set[str]:
        """The names that an object may have; empty for an object that is not tracked."""
        entry = self._entries.get(id(obj))
        return entry[1] if entry else set()

    def __iter__(self) -> Iterator[tuple[object, set[str]]]:
        return ((obj, names) for obj, names, _ in self._entries.values())


def same_object_failures(module: types.ModuleType, namespaces: Iterable[Namespace],
                         forwards: Iterable[tuple[str, object]]) -> list[str]:
    """One line for every second name of an object of the facade."""
    spaces: list[Namespace] = [module, *(space for space in namespaces if space is not module)]
    forwards = list(forwards)
    failures: list[str] = []
    tables = {i: _rows(space, failures) for i, space in enumerate(spaces)}
    public = list(dict.fromkeys([*public_names(module), *(row.key for row in tables[0] if row.key[:1] != "_")]))

    names = _Names()
    names.add(module.__name__.rpartition(".")[2], module)
    for name in public:
        if name in vars(module):
            failures += names.add(name, vars(module)[name])
    for name, obj in forwards:
        if name not in public:
            failures.append(f"forwards names {name}, which is no public name of {module.__name__}")
        failures += names.add(name, obj)

    # The rows come before any lazy name is resolved: what they would expose is known without the backends.
    supplied = [*spaces, *(obj for _, obj in forwards if isinstance(obj, types.ModuleType))]
    for i, rows in tables.items():
        for row in rows:
            failures += _row_failures(_label(spaces[i]), row, public, supplied, names)

    for name in public:
        if name not in vars(module):
            failures += _resolve(module, name, names)
    for space in spaces:
        for name, value in list(_bindings(space)):
            allowed = names.of(value)
            if allowed and name not in allowed:
                failures.append(f"{_label(space)} binds {' / '.join(sorted(allowed))} as {name}")
    return list(dict.fromkeys(failures))


def _has_identity(obj: object) -> bool:
    # typing gives equal aliases as one cached object, whoever asks for them.
    return type(obj) not in _SHARED and typing.get_origin(obj) is None


def _wrapped(obj: object) -> Iterator[object]:
    """Every function that the object calls through wrappers, partial objects and bound methods."""
    # To ask a module for an attribute may run its `__getattr__`, and that may import a backend.
    todo, seen = [] if isinstance(obj, types.ModuleType) else [obj], {id(obj)}
    while todo:
        layer = todo.pop()
        inner = [getattr(layer, link, None) for link in ("__wrapped__", "__func__")]
        if isinstance(layer, functools.partial):
            inner.append(layer.func)
        for each in inner:
            if each is not None and id(each) not in seen:
                seen.add(id(each))
                todo.append(each)
                yield each


def _label(space: Namespace) -> str:
    return getattr(space, "__name__", None) or f"a namespace of type {type(space).__name__}"


def _bindings(space: Namespace) -> Iterator[tuple[str, object]]:
    for name, value in (space if isinstance(space, Mapping) else vars(space)).items():
        yield name, value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _resolve(module: types.ModuleType, name: str, names: _Names) -> list[str]:
    """Notes a lazy public name through the facade's own `__getattr__`."""
    try:
        value = getattr(module, name)
    except AttributeError:  # nothing is bound, so nothing can be bound twice
        return []
    except Exception as error:
        return [f"{module.__name__}.{name} cannot be resolved: {type(error).__name__}: {error}"]
    return names.add(name, value)


def _rows(space: Namespace, failures: list[str]) -> list[_Row]:
    """The rows of a namespace's table: name -> "module", "module:attribute" or (module, attribute)."""
    table = dict(_bindings(space)).get(TABLE, {})
    package = getattr(space, "__package__", None) or getattr(space, "__name__", "")
    if not isinstance(table, Mapping):
        failures.append(f"{_label(space)}.{TABLE} is a {type(table).__name__}, not a mapping")
        return []
    rows = []
    for key, value in table.items():
        parts = value.split(":") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or len(parts) not in (1, 2) or not isinstance(parts[0], str):
            failures.append(f"{_label(space)}.{TABLE}[{key!r}] is {value!r}: give a module, or a module and a name")
            continue
        target = importlib.util.resolve_name(parts[0], package) if parts[0].startswith(".") else parts[0]
        rows.append(_Row(key, target, parts[1] if len(parts) == 2 else None))
    return rows


def _row_failures(label: str, row: _Row, public: list[str], supplied: list[Namespace], names: _Names) -> list[str]:
    """What is wrong with one row, from the texts of the table and the supplied objects alone: nothing is imported."""
    where = f"{label}.{TABLE}[{row.key!r}] -> {row.target}" + (f".{row.attr}" if row.attr else "")
    failures = []
    if row.attr not in (None, row.key) and (row.key in public or row.attr in public):
        failures.append(f"{where}: one object under two names")
    attr = row.attr or row.key
    exposed = [vars(space).get(attr) for space in supplied
               if isinstance(space, types.ModuleType) and space.__name__ == row.target]
    for obj, allowed in names:
        if isinstance(obj, types.ModuleType):
            # A row without a name gives the key's attribute of the module, or the module where it has no such thing.
            offers = row.key in vars(obj) or obj is supplied[0] and row.key in public
            hit = obj.__name__ == f"{row.target}.{row.attr}" if row.attr else obj.__name__ == row.target and not offers
        else:
            hit = (getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)) == (row.target, attr)
        hit = hit or any(obj is each for each in exposed)
        if hit and row.key not in allowed:
            failures.append(f"{where}: would bind {' / '.join(sorted(allowed))} as {row.key}")
    return failures
