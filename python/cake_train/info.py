"""Facts for bug reports: `python -m cake_train.info`."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Any

from . import __version__

__all__ = ["info"]


def info() -> dict[str, Any]:
    """Version, build, threads, versions of what is used, and per package its implementations in the order in which they
    are tried, with the reason each was refused on this machine."""
    from ._backend.library import function

    versions = {}
    for name in ("apache-tvm-ffi", "numpy", "torch", "ml_dtypes"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    packages = {}
    for mode in ("det", "nondet"):
        module = f"cake_kda_{mode}_train"
        packages[module] = [str(line) for line in function(mode, f"{module}_implementations")()]
    return {
        "version": __version__,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "build": {str(k): str(v) if isinstance(v, str) else v for k, v in function("core", "cake_core_info")().items()},
        "num_threads": function("core", "cake_core_num_threads")(),
        "versions": versions,
        "packages": packages,
    }


def _main() -> None:
    facts = info()
    print(f"cake_train {facts['version']}, Python {facts['python']} on {facts['machine']}")
    print("build: " + ", ".join(f"{k} {v}" for k, v in facts["build"].items()))
    print(f"threads: {facts['num_threads']}")
    print("with: " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
    for module, lines in facts["packages"].items():
        print(module)
        for line in lines:
            print(f"  {line}")


if __name__ == "__main__":
    _main()
