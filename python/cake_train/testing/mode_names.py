"""Checks that a package obeys the naming rules; for any package that follows them, not only for this one.

1. Modules are `cake_<op>_<det|nondet>_train[_kcp]`; public names start `cake_<op>_<mode>`, `Cake<Op><Mode>` or, for a
   support query, `is_<module>`, and none carries the other mode's word.
2. The package's name alone chooses the mode: nothing accepts `deterministic`.
3. One object, one name.
4. A removed name is gone.

Every `assert_*` function raises one AssertionError with a line for each finding. Nothing here imports torch or the
package under test: the caller does, and hands over modules and objects. (Old names are tried in a child process.)

    import cake_train
    from cake_train import cake_kda_det_train
    from cake_train.testing import mode_names

    mode_names.assert_cake_mode_module(cake_kda_det_train, namespaces=[cake_train])
"""
from __future__ import annotations

import os
from collections.abc import Iterable
from types import ModuleType

from ._keyword import WORD, keyword_failures
from ._name_rules import MODES, REASONS, judge_name, read_module_name
from ._old_names import old_name_failures
from ._public_names import public_names
from ._same_object import Namespace, same_object_failures

__all__ = ["assert_cake_mode_module", "assert_mode_names", "assert_no_deterministic_keyword", "assert_old_names_fail",
           "assert_same_object_same_name", "judge_name", "public_names"]


def assert_mode_names(module: ModuleType, mode: str | None = None, *, names: Iterable[str] | None = None,
                      stem: bool = True, stem_exceptions: Iterable[str] = ()) -> None:
    """Every name carries the module's mode directly after the module's op, and never the other mode's word.

    `mode`, "det" or "nondet", is read from the module's name when not given; `names` are `public_names(module)` when
    not given. `stem=False` drops the check of the order for all names, `stem_exceptions` for those listed; both must
    still carry the mode word and no other. ALL_CAPS constants and the neutral module `cake_kcp` are exempt.

    Raises AssertionError for a name that breaks the rule, and for a module whose name tells no mode or another one;
    ValueError for any other `mode`; TypeError where one text is given for a list of names.
    """
    _report(f"the names of {module.__name__}", _name_failures(module, mode, names, stem, stem_exceptions))


def assert_no_deterministic_keyword(objs: Iterable[object]) -> None:
    """None of the objects accepts `deterministic`, because the package's name alone chooses the mode.

    Functions, class constructors and the `forward` and `backward` of autograd Functions accept neither the keyword nor
    `**kwargs` that take it in, no layer of a `functools.wraps` chain has a parameter of that name, and no public method
    (inherited, or a factory) or field of a class is called so; methods may take `**kwargs`. Type aliases are skipped,
    and so is a callable whose signature cannot be inspected; a `__signature__` is believed.

    Raises AssertionError.
    """
    labelled = ((getattr(obj, "__qualname__", None) or repr(obj), obj) for obj in objs)
    _report(f"no public object accepts `{WORD}`", keyword_failures(labelled))


def assert_same_object_same_name(module: ModuleType, namespaces: Iterable[Namespace] = (), *,
                                 forwards: Iterable[tuple[str, object]] = ()) -> None:
    """The facade `module` and its public objects are bound nowhere under another name.

    Looked through are `module` and `namespaces` (the top-level package, the backends: modules, classes or mappings).
    `forwards` lists (public name, object) for backend objects that stand behind a public name. What their wrapper
    chains reach may only have the public name, too. Rows of a `_LAZY_EXPORTS` table (name -> "module",
    "module:attribute" or (module, attribute)) are checked as text and against the namespaces given, then the facade's
    lazy names are resolved through the facade; no module is looked up by its path.

    Raises AssertionError.
    """
    _report(f"one object, one name in {module.__name__}", same_object_failures(module, namespaces, forwards))


def assert_old_names_fail(old_modules: Iterable[str] = (), old_names: Iterable[tuple[str, str]] = (), *,
                          cwd: str | os.PathLike | None = None, timeout: float = 600) -> None:
    """Removed modules and names are gone, for a fresh interpreter that starts in `cwd`.

    Importing an old module must raise ModuleNotFoundError, `from module import name` of an old pair ImportError, and
    the top-level packages must still import (unless they are old modules themselves). An error that a package's own
    code raises is no absence. A directory that holds caches alone counts as gone.

    Raises AssertionError, also when the child does not end within `timeout` seconds, exits non-zero or ends without a
    result; ValueError and TypeError for arguments that are no lists of names.
    """
    _report("old names are gone", old_name_failures(old_modules, old_names, cwd=cwd, timeout=timeout))


def assert_cake_mode_module(module: ModuleType, mode: str | None = None, *, namespaces: Iterable[Namespace] = (),
                            forwards: Iterable[tuple[str, object]] = (), old_modules: Iterable[str] = (),
                            old_names: Iterable[tuple[str, str]] = (), stem: bool = True,
                            stem_exceptions: Iterable[str] = (), cwd: str | os.PathLike | None = None,
                            timeout: float = 600) -> None:
    """All the checks of this file on one facade module, its public objects and the objects of `forwards`.

    The arguments are those of the single checks. Raises one AssertionError with every finding of every check.
    """
    forwards = list(forwards)
    failures = _name_failures(module, mode, None, stem, stem_exceptions)
    # Before the keyword check: that one resolves lazy names, and this one says what they expose while they are text.
    failures += same_object_failures(module, namespaces, forwards)
    objects, missing = _public_objects(module)
    failures += missing + keyword_failures(objects + forwards)
    failures += old_name_failures(old_modules, old_names, cwd=cwd, timeout=timeout)
    _report(module.__name__, list(dict.fromkeys(failures)))


def _name_failures(module: ModuleType, mode: str | None, names: Iterable[str] | None, stem: bool,
                   stem_exceptions: Iterable[str]) -> list[str]:
    if mode not in (None, *MODES):
        raise ValueError(f"mode must be 'det', 'nondet' or None, not {mode!r}")
    if isinstance(names, str) or isinstance(stem_exceptions, str):
        raise TypeError("names and stem_exceptions must be lists of names, not one text")
    place, exceptions = read_module_name(module.__name__), set(stem_exceptions)
    if not place.neutral and (mode or place.mode) is None:
        return [f"{module.__name__} is not named cake_<op>_<det|nondet>_train[_kcp], and no mode is given"]
    if mode and place.mode and mode != place.mode:
        return [f"{module.__name__} is named for {place.mode} and given as {mode}"]
    failures = []
    for name in public_names(module) if names is None else names:
        verdict = judge_name(name, module.__name__, mode=mode, stem=stem and name not in exceptions)
        if verdict.verdict != "ok":
            failures.append(f"{module.__name__}: {name} {REASONS[verdict.reason]}")
    return failures


def _public_objects(module: ModuleType) -> tuple[list[tuple[str, object]], list[str]]:
    """The public objects, lazy ones resolved by the module itself, and the failures of those that there are not."""
    objects, failures = [], []
    for name in public_names(module):
        try:
            objects.append((name, getattr(module, name)))
        except Exception as error:
            failures.append(f"{module.__name__}.{name} cannot be resolved: {type(error).__name__}: {error}")
    return objects, failures


def _report(what: str, failures: list[str]) -> None:
    if failures:
        lines = [f"{what}: {len(failures)} finding(s)", *(f"- {failure}" for failure in failures)]
        raise AssertionError("\n".join(lines))
