"""Nothing public accepts `deterministic`: the package's name alone chooses the mode."""
from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterable, Iterator

WORD = "deterministic"
_CONSTRUCTORS = ("__new__", "__init__")


def keyword_failures(objects: Iterable[tuple[str, object]]) -> list[str]:
    """One line for every way in which one of the labelled objects accepts `deterministic`."""
    failures: list[str] = []
    seen: set[int] = set()
    for label, obj in objects:
        # An alias has the constructor of its origin and accepts nothing by itself.
        if _is_alias(obj) or isinstance(obj, types.ModuleType):
            continue
        if inspect.isclass(obj):
            failures += _class_failures(label, obj, seen)
            continue
        if callable(obj):
            failures += _call_failures(label, obj)
        if not inspect.isroutine(obj) and type(obj).__module__ != "builtins":
            failures += _member_failures(label, type(obj), seen)
    return list(dict.fromkeys(failures))


def _is_alias(obj: object) -> bool:
    return typing.get_origin(obj) is not None


def _call_failures(label: str, obj: object) -> list[str]:
    named = _named_failures(label, obj)
    return named or ([f"{label} accepts the keyword {WORD}"] if _accepts(obj) else [])


def _accepts(obj: object) -> bool:
    """Whether the keyword can be passed, by name or through `**kwargs`; False where nothing says what can be."""
    try:
        signature = inspect.signature(obj)
    except (TypeError, ValueError):
        return False
    try:
        signature.bind_partial(**{WORD: False})
    except TypeError:
        return False
    return True


def _named_failures(label: str, obj: object) -> list[str]:
    return [f"{label} has a parameter named {WORD}" + (f" (layer {i} of its wrappers)" if i else "")
            for i, layer in enumerate(_layers(obj)) if _names_it(layer)]


def _layers(obj: object) -> Iterator[object]:
    """The object and everything that functools.wraps put it around; for a callable object also its `__call__`."""
    todo, seen = [obj], set()
    while todo:
        layer = todo.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        call = getattr(type(layer), "__call__", None)
        if not inspect.isclass(layer) and isinstance(call, types.FunctionType):
            todo.append(call)
        if getattr(layer, "__wrapped__", None) is not None:
            todo.append(layer.__wrapped__)


def _names_it(layer: object) -> bool:
    try:
        if WORD in inspect.signature(layer, follow_wrapped=False).parameters:
            return True
    except (TypeError, ValueError):
        pass
    # functools.wraps copies `__signature__` outwards, where it hides the parameters that the layer itself has.
    code = getattr(layer, "__code__", None)
    return code is not None and WORD in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]


def _class_failures(label: str, cls: type, seen: set[int]) -> list[str]:
    if id(cls) in seen:
        return []
    seen.add(id(cls))
    own = _own_bases(cls)
    autograd = len(own) < len(cls.__mro__)
    failures = []
    for part in _CONSTRUCTORS:
        if any(part in vars(base) for base in own):
            failures += _named_failures(f"{label}.{part}", getattr(cls, part))
    failures += _named_failures(f"{label}'s metaclass", getattr(type(cls), "__call__"))
    # torch's own constructor of an autograd Function takes anything and is never called.
    if not failures and (not autograd or any(part in vars(base) for part in _CONSTRUCTORS for base in own)):
        failures += _call_failures(f"the constructor of {label}", cls)
    if autograd:
        for part in ("forward", "backward"):
            if any(part in vars(base) for base in own):
                failures += _call_failures(f"{label}.{part}", getattr(cls, part))
    return failures + _member_failures(label, cls, seen)


def _own_bases(cls: type) -> list[type]:
    """The classes that an object is made of, without torch's `Function` and what comes after it.

    torch is recognised by names alone, so that the check needs no torch and imports none.
    """
    own = []
    for base in cls.__mro__:
        if base.__module__ in ("torch.autograd", "torch.autograd.function") and base.__name__ == "Function":
            break
        own.append(base)
    return own


def _annotations(cls: type) -> dict[str, object]:
    try:
        return inspect.get_annotations(cls)
    except (NameError, TypeError, ValueError):  # a forward reference that a newer Python evaluates, or no dict at all
        return {}


def _member_failures(label: str, cls: type, seen: set[int]) -> list[str]:
    """Fields called `deterministic`, and public methods (inherited ones, factories) with a parameter of that name."""
    failures = []
    if any(WORD in vars(base) or WORD in _annotations(base) for base in cls.__mro__):
        failures.append(f"{label} has a member named {WORD}")
    for name in dir(cls):
        if name == WORD or name.startswith("_") and name != "__call__":
            continue
        member = inspect.getattr_static(cls, name)
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        elif isinstance(member, (functools.partialmethod, functools.singledispatchmethod)):
            member = member.func
        if _is_alias(member) or not callable(member):
            continue
        if inspect.isclass(member) and member.__qualname__ == f"{cls.__qualname__}.{member.__name__}":
            failures += _class_failures(f"{label}.{name}", member, seen)
        else:
            # A method may pass `**kwargs` on: only the name itself is a finding.
            failures += _named_failures(f"{label}.{name}", member)
    return failures
