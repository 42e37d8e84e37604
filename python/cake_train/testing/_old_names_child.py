"""The child program of `assert_old_names_fail`: probes old modules and names, and writes down what it finds.

The parent reads this file as text and runs it with `python -c`, so that the first entry of `sys.path` is the working
directory, as in a user's session. Every record is a line of its own and is flushed: a probe may end the process.
"""
import json
import os
import sys

_PROBE = "<old name>"


def probe(module, name=None):
    """What is wrong with an old module, or with an old name of a module; None if it is gone."""
    what = f"from {module} import {name}" if name else f"import {module}"
    try:
        found = _import(module, name)
    except ImportError as error:
        if not name and not isinstance(error, ModuleNotFoundError):
            return f"{what} raises {_text(error)}: the module is still there"
        if raised_inside(error, module):
            return f"{what} raises {_text(error)}: raised inside the package, which is no absence"
    except BaseException as error:
        return f"{what} raises {_text(error)}, which is no absence"
    else:
        return None if leftover(found) else f"{what} still works"
    # Outside the handler, whose error would be the context of what is raised here.
    return _hidden_failure(what, module, name) if name else None


def probe_top(module):
    """What is wrong with a top-level package that must still import; None if nothing is."""
    try:
        found = _import(module)
    except BaseException as error:
        return f"the top-level package {module} does not import: {_text(error)}"
    return f"the top-level package {module} is a leftover directory" if leftover(found) else None


def raised_inside(error, module):
    """Whether code of a package raised the error, in contrast to the import statement that looked for the module."""
    missing = getattr(error, "name", None)
    if isinstance(error, ModuleNotFoundError) and not (missing and f"{module}.".startswith(f"{missing}.")):
        return True
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        own = step.tb_frame.f_globals is globals() or code.co_filename == _PROBE
        if not own and not code.co_filename.startswith("<frozen importlib"):
            return True
        step = step.tb_next
    return False


def leftover(found):
    """Whether an imported object is a directory that holds caches at most: Python imports such a one as a namespace."""
    if not isinstance(found, type(sys)) or "__path__" not in vars(found):
        return False
    return all(_only_caches(folder) for folder in found.__path__)


def _only_caches(folder):
    if not os.path.isdir(folder):
        return False
    for root, folders, files in os.walk(folder):
        if files or any(os.path.islink(os.path.join(root, each)) for each in folders):
            return False
        folders[:] = [each for each in folders if each != "__pycache__" and not (each[0] == "." and "cache" in each)]
    return True


def _import(module, name=None):
    statement = f"from {module} import {name} as found" if name else f"import {module}"
    names = {"__name__": _PROBE}
    exec(compile(statement, _PROBE, "exec"), names)
    return names["found"] if name else sys.modules[module]


def _hidden_failure(what, module, name):
    """A lazy `__getattr__` may turn the ImportError of a broken backend into an AttributeError: that is a failure."""
    if module not in sys.modules:
        return None
    try:
        getattr(sys.modules[module], name)
    except AttributeError as error:
        cause = error.__cause__ or error.__context__
        while cause is not None:
            looked_up = isinstance(cause, ModuleNotFoundError) and cause.name == f"{module}.{name}"
            if isinstance(cause, ImportError) and not looked_up:
                return f"{what} fails because of {_text(cause)}: raised inside the package, which is no absence"
            cause = cause.__cause__ or cause.__context__
    except BaseException as error:
        return f"{what} raises {_text(error)} when asked again, which is no absence"
    return None


def _text(error):
    return f"{type(error).__name__}: {error}"


def main(request_path, result_path):
    """Reads {"top": [module], "modules": [module], "names": [[module, name]]}; writes one JSON object per line."""
    with open(request_path, encoding="utf-8") as request:
        asked = json.load(request)
    probes = [(f"import {module}", probe_top, (module,)) for module in asked["top"]]
    probes += [(f"import {module}", probe, (module,)) for module in asked["modules"]]
    probes += [(f"from {module} import {name}", probe, (module, name)) for module, name in asked["names"]]
    with open(result_path, "w", encoding="utf-8") as result:
        def tell(**record):
            result.write(json.dumps(record) + "\n")
            result.flush()

        for at, function, arguments in probes:
            tell(at=at)
            failure = function(*arguments)
            if failure:
                tell(failure=failure)
        tell(done=True)


if __name__ == "__main__":
    arguments, sys.argv[1:] = sys.argv[1:], []  # a probed package must not take them for its own
    main(*arguments)
