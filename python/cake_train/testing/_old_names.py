"""A removed name is gone: old modules and old names are tried in a fresh interpreter."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_STDERR_KEPT = 4000  # characters of the end; a traceback's last lines say most
_CHILD = Path(__file__).with_name("_old_names_child.py")


def old_name_failures(old_modules: Iterable[str], old_names: Iterable[tuple[str, str]], *,
                      cwd: str | os.PathLike | None, timeout: float) -> list[str]:
    """One line for every old module or name that is not gone, and for every way in which the child itself failed."""
    modules, names = _checked_modules(old_modules), _checked_names(old_names)
    if not modules and not names:
        return []
    # Where the whole package is broken everything fails to import, which would look like success.
    tops = dict.fromkeys(module.partition(".")[0] for module in [*modules, *(module for module, _ in names)])
    request = {"top": [top for top in tops if top not in modules], "modules": modules, "names": names}
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("request", "result", "stderr")]
        Path(paths[0]).write_text(json.dumps(request), encoding="utf-8")
        status = _run(paths, cwd, timeout)
        records = _records(paths[1])
        stderr = Path(paths[2]).read_text(encoding="utf-8", errors="replace").strip()[-_STDERR_KEPT:]
    failures = [record["failure"] for record in records if "failure" in record]
    at = next((f" at `{record['at']}`" for record in reversed(records) if "at" in record), "")
    tail = f"; stderr: {stderr}" if stderr else "; nothing on stderr"
    if status is None:
        failures.append(f"the child did not end within {timeout:g} s{at}{tail}")
    elif not any("done" in record for record in records):
        failures.append(f"the child exited {status} without a result{at}{tail}")
    elif status != 0:
        failures.append(f"the child exited {status} after its last probe{tail}")
    return failures


def _run(paths: list[str], cwd: str | os.PathLike | None, timeout: float) -> int | None:
    """Runs the child and returns its status; None when it ran out of time and was killed."""
    # -B: a check that leaves caches behind would make the leftover directories it looks for. A file for stderr: a pipe
    # that a grandchild holds open would outlast the time limit.
    program = [sys.executable, "-B", "-c", _CHILD.read_text(encoding="utf-8"), *paths[:2]]
    with open(paths[2], "wb") as stderr:
        child = subprocess.Popen(program, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                                 start_new_session=True)
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                _kill(child)


def _kill(child: subprocess.Popen) -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)  # what the probed packages started goes too
    else:
        child.kill()
    child.wait()


def _records(path: str) -> list[dict]:
    """The child's complete lines; the last one may have been cut off when it ended."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def _checked_modules(old_modules: Iterable[str]) -> list[str]:
    modules = list(_listed(old_modules, "old_modules"))
    for module in modules:
        if not isinstance(module, str) or not _DOTTED.fullmatch(module):
            raise ValueError(f"old_modules must hold dotted module names, not {module!r}")
    return modules


def _checked_names(old_names: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    names = []
    for pair in _listed(old_names, "old_names"):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError(f"old_names must hold pairs (module, name), not {pair!r}")
        if not _DOTTED.fullmatch(pair[0]) or not pair[1].isidentifier():
            raise ValueError(f"old_names must hold a dotted module name and an identifier, not {pair!r}")
        names.append((pair[0], pair[1]))
    return names


def _listed(value: Iterable, what: str) -> Iterable:
    if isinstance(value, str):
        raise TypeError(f"{what} must be a list, not the text {value!r}")
    return value
