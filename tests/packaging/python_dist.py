#!/usr/bin/env python3
"""python_dist.py FOLDER: checks what the wheel and the sdist in FOLDER contain. First shows on altered copies that
it finds what it looks for."""

from __future__ import annotations

import io
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

LIBRARIES = {
    "libcake_core.so.0", "libcake_det.so.0", "libcake_nondet.so.0",
    "libcake_ffi_core.so", "libcake_ffi_det.so", "libcake_ffi_nondet.so",
}
MODULES = {
    "__init__.py", "py.typed", "info.py", "cake_kda_det_train.py", "cake_kda_nondet_train.py", "_backend/library.py",
    "testing/mode_names.py", "compat/fla_det.py",
}
SYSTEM = re.compile(r"(libstdc\+\+|libm|libgcc_s|libc|ld-linux-x86-64|libpthread|libdl|libtvm_ffi)\.so(\.\d+)*$")
SDIST = {"CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "src/ffi/ffi.cc", "include/cake/kda_det_train.h",
         "python/cake_train/__init__.py", "cmake/CakeOptions.cmake"}
STRAY = re.compile(r"(^|/)(\.git|\.ci|\.dev|\.venv|build|runs|__pycache__|\.pytest_cache|\.hypothesis)(/|$)|\.pyc$")


def check_library(path: pathlib.Path) -> list[str]:
    """Findings about one shared library: what it needs, where it looks for it, absolute paths in it."""
    run = subprocess.run(["readelf", "-d", path], capture_output=True, text=True)
    if run.returncode != 0:
        return [f"{path.name} is no shared library"]
    text, findings = run.stdout, []
    for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
        if not SYSTEM.match(needed) and needed not in LIBRARIES:
            findings.append(f"{path.name} needs {needed}")
    for run_path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text):
        if run_path != "$ORIGIN":
            findings.append(f"{path.name} looks for libraries in {run_path}")
    return findings


def check_wheel(path: pathlib.Path) -> list[str]:
    """Findings about a wheel."""
    findings = []
    if not re.fullmatch(r"cake_train-[0-9.]+-py3-none-(linux|manylinux\w*)_x86_64\.whl", path.name):
        findings.append(f"its name is {path.name}")
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        names = [n for n in wheel.namelist() if not n.endswith("/")]
        inside = {n.removeprefix("cake_train/") for n in names if n.startswith("cake_train/")}
        others = [n for n in names if not re.match(r"cake_train(-[0-9.]+\.dist-info)?/", n)]
        findings += [f"stray file {n}" for n in others + [n for n in names if STRAY.search(n)]]
        findings += [f"missing {n}" for n in sorted(MODULES - inside)]
        libraries = {n.removeprefix("lib/") for n in inside if n.startswith("lib/")}
        findings += [f"missing library {n}" for n in sorted(LIBRARIES - libraries)]
        findings += [f"library too many: {n}" for n in sorted(libraries - LIBRARIES)]
        findings += [f"not Python nor a library: {n}" for n in sorted(inside)
                     if not n.endswith((".py", ".pyi", "py.typed")) and not n.startswith("lib/")]
        if not any(n.endswith("LICENSE") for n in names):
            findings.append("no LICENSE")
        for name in names:
            if name.startswith("cake_train/lib/"):
                findings += check_library(pathlib.Path(wheel.extract(name, folder)))
    return findings


def check_sdist(path: pathlib.Path) -> list[str]:
    """Findings about an sdist."""
    with tarfile.open(path) as sdist:
        members = {m.name.partition("/")[2]: m for m in sdist.getmembers() if not m.isdir()}
    findings = [f"missing {n}" for n in sorted(SDIST - members.keys())]
    findings += [f"stray file {n}" for n in sorted(members) if STRAY.search(n) or n.endswith(".so")]
    findings += [f"{n} is a link" for n, m in members.items() if m.issym() or m.islnk()]
    return findings


def self_test(wheel: pathlib.Path, sdist: pathlib.Path) -> None:
    """Every altered copy must give a finding."""

    def altered_wheel(drop: str = "", add: str = "") -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / wheel.name
            with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
                for item in old.infolist():
                    if not drop or not item.filename.endswith(drop):
                        new.writestr(item, old.read(item))
                if add:
                    new.writestr(add, b"")
            return check_wheel(copy)

    def altered_sdist(add: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / sdist.name
            with tarfile.open(sdist) as old, tarfile.open(copy, "w:gz") as new:
                for member in old.getmembers():
                    new.addfile(member, old.extractfile(member) if member.isfile() else None)
                new.addfile(tarfile.TarInfo(f"cake_train-0/{add}"), io.BytesIO(b""))
            return check_sdist(copy)

    planted = [altered_wheel(drop="libcake_det.so.0"), altered_wheel(drop="LICENSE"), altered_wheel(drop="info.py"),
               altered_wheel(add="tests/x.py"), altered_wheel(add="cake_train/lib/libtbb.so"),
               altered_wheel(add="cake_train/notes.txt"), altered_sdist("build/x.o"), altered_sdist("src/a.so")]
    for number, findings in enumerate(planted):
        if not findings:
            sys.exit(f"python_dist.py: planted fault {number} was not found")


def main() -> None:
    """Prints findings; exit code 1 when there are any."""
    folder = pathlib.Path(sys.argv[1])
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1 or shutil.which("readelf") is None:
        sys.exit(f"python_dist.py: expected one wheel and one sdist in {folder}, and readelf")
    self_test(wheels[0], sdists[0])
    findings = [f"wheel: {f}" for f in check_wheel(wheels[0])] + [f"sdist: {f}" for f in check_sdist(sdists[0])]
    for finding in findings:
        print(finding)
    print(f"{wheels[0].name}, {sdists[0].name}: {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
