"""What the self-test of `cake_train.testing.mode_names` is made of: synthetic modules, packages on disk, expectations.

A case is a function `case_*(checker, folder)`: it runs against the real checker or against a mutant of it, and raises
AssertionError when that checker misbehaves. Only the standard library is used.
"""
import importlib
import importlib.util
import itertools
import sys
import textwrap
import types
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "python" / "cake_train" / "testing"
VECTORS = REPOSITORY / "tests" / "data" / "mode_names.json"
# A mutant that does not even run is no mutant: these errors are passed on instead of counting as a finding.
_BROKEN = (NameError, SyntaxError)
_counter = itertools.count()


def make(name, source="", **bound):
    """A module with the given bindings, in which the source is then run; it is not put into `sys.modules`."""
    module = types.ModuleType(name)
    vars(module).update(bound)
    exec(textwrap.dedent(source), vars(module))
    return module


def write(folder, files):
    """Writes {relative path: source}; the source of a path that ends in / is ignored, and the folder is made."""
    for path, source in files.items():
        target = Path(folder, path)
        (target if path.endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            target.write_text(textwrap.dedent(source), encoding="utf-8")
    return folder


def load(path, name):
    """The module of a source file, under any name."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unique(stem):
    """A name that no other case uses."""
    return f"{stem}_{next(_counter)}"


def passes(call):
    """The result of a call that must not raise."""
    try:
        return call()
    except _BROKEN:
        raise
    except Exception as error:
        raise AssertionError(f"refused what it should accept: {type(error).__name__}: {error}") from error


def fails(call, *words, without=(), error=AssertionError):
    """The message of a call that must raise the error, with these words in its message."""
    try:
        call()
    except error as raised:
        text = str(raised)
    except _BROKEN:
        raise
    except Exception as other:
        raise AssertionError(f"{type(other).__name__} instead of {error.__name__}: {other}") from other
    else:
        raise AssertionError(f"accepted what it should refuse (expected: {words})")
    missing = [word for word in words if word not in text]
    surplus = [word for word in without if word in text]
    if missing or surplus:
        raise AssertionError(f"message lacks {missing} and should not have {surplus}: {text}")
    return text


def equal(found, expected):
    """Fails with both values when they differ."""
    if found != expected:
        raise AssertionError(f"{found!r} instead of {expected!r}")


def cases(*modules):
    """{name: function} of all cases of the modules."""
    found = {}
    for module in modules:
        found |= {name: case for name, case in vars(module).items() if name.startswith("case_")}
    return found


def checker_copy(folder, edits):
    """The checker from a copy of its package, with {file name: source} in place of some of its files."""
    package = unique("mode_names_copy")
    for path in PACKAGE.glob("*.py"):
        write(folder, {f"{package}/{path.name}": edits.get(path.name) or path.read_text(encoding="utf-8")})
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(f"{package}.mode_names")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


def part(checker, name):
    """A private module of the given checker."""
    return load(Path(checker.__file__).with_name(f"{name}.py"), unique(name))
