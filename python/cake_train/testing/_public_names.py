"""Which attributes of a module are its public names."""
from __future__ import annotations

import ast
import inspect
import sys
import types


def public_names(module: types.ModuleType) -> list[str]:
    """The public names of a module: `__all__` in its order, else the public attributes that the module defines, sorted.

    Without `__all__`, modules and imported objects do not count. A function counts when its code belongs to the module,
    whatever `functools.wraps` made of its `__module__`. Values that do not know where they were made (constants, type
    aliases) count unless the module's source imports them. Nothing is imported, and no lazy name is resolved.

    Raises TypeError when `__all__` is not a list or tuple of strings.
    """
    declared = vars(module).get("__all__")
    if declared is not None:
        if not isinstance(declared, (list, tuple)) or not all(isinstance(name, str) for name in declared):
            raise TypeError(f"{module.__name__}.__all__ must be a list or tuple of strings, not {declared!r}")
        return list(dict.fromkeys(declared))
    imported = _imported_names(module)
    return sorted(name for name, value in vars(module).items()
                  if not name.startswith("_") and _is_defined_in(module, name, value, imported))


def _is_defined_in(module: types.ModuleType, name: str, value: object, imported: set[str] | None) -> bool:
    if isinstance(value, types.ModuleType):
        return False
    if _is_local(module, value):
        return True
    if inspect.isroutine(value) or inspect.isclass(value):
        return False
    if imported is not None:
        return name not in imported
    # Without source only an object's home can tell; constants are shared between modules and have none.
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    return home is None or not any(bound is value for bound in vars(home).values())


def _is_local(module: types.ModuleType, value: object) -> bool:
    """Whether the value, or the local code that it is made of, says that it was made in the module."""
    if getattr(value, "__module__", None) == module.__name__ or getattr(value, "__globals__", None) is vars(module):
        return True
    members = getattr(value, "__dict__", {})
    if "__wrapped__" not in members or isinstance(value, types.FunctionType):
        return False
    # functools.wraps also renames classes and callable objects; their code still tells.
    if inspect.isclass(value):
        return any(getattr(member, "__globals__", None) is vars(module) for member in members.values())
    return _is_local(module, members["__wrapped__"])


def _imported_names(module: types.ModuleType) -> set[str] | None:
    """The names that import statements at module level bind; None where there is no source that tells."""
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return None
    names, todo = set(), list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    return None if "*" in names else names
