"""Self-test of the mode-name checker: rule 4 (`assert_old_names_fail`), all checks at once, the checker's imports."""
import ast
import os
import sys
import time
from pathlib import Path

from mode_names_support import fails, load, make, part, passes, unique, write

PACKAGE = {"package/__init__.py": "", "package/facade.py": "kept = 3\n"}
CACHE = "__pycache__/old.cpython-311.pyc"


def gone(checker, folder, modules=(), names=(), **options):
    passes(lambda: checker.assert_old_names_fail(modules, names, cwd=folder, **options))


def there(checker, folder, modules=(), names=(), *, words, without=(), **options):
    return fails(lambda: checker.assert_old_names_fail(modules, names, cwd=folder, **options), *words, without=without)


def case_absent_names_pass(checker, folder):
    write(folder, PACKAGE)
    gone(checker, folder, ["package.old", "package.old.deeper", "package_old"],
         [("package", "old"), ("package.facade", "old"), ("package.old", "name")])
    gone(checker, Path("/nonexistent"))  # nothing asked, nothing run


def case_present_names_fail(checker, folder):
    write(folder, PACKAGE)
    there(checker, folder, ["package.facade", "package.old"], [("package.facade", "kept"), ("package", "facade")],
          words=["import package.facade still works", "from package.facade import kept still works",
                 "from package import facade still works", "3 finding(s)"])
    there(checker, folder, ["package"], [("package", "facade")], words=["import package still", "2 finding(s)"])


def case_a_fresh_interpreter_is_asked(checker, folder):
    # The module is known to this process only, or only to the child.
    name = unique("package_here")
    sys.modules[name] = make(name)
    try:
        gone(checker, folder, [name])
    finally:
        del sys.modules[name]
    write(folder, {"tells.py": "import sys\nraise SystemExit(sys.executable)\n"})
    there(checker, folder, ["tells"], words=[f"SystemExit: {sys.executable}"])


def case_old_modules_must_raise_module_not_found(checker, folder):
    write(folder, PACKAGE | {"package/tombstone.py": "raise ImportError('moved')\n",
                             "package/broken.py": "import package_that_is_missing\n",
                             "package/fake.py": "raise ModuleNotFoundError('moved', name=__name__)\n",
                             "package/crash.py": "raise RuntimeError('no device')\n"})
    there(checker, folder, ["package.tombstone"], words=["ImportError: moved: the module is still there"])
    there(checker, folder, ["package.broken"], words=["package_that_is_missing", "raised inside"])
    there(checker, folder, ["package.fake"], words=["raised inside"])
    there(checker, folder, ["package.crash"], words=["RuntimeError: no device"])


def case_other_errors_are_no_absence(checker, folder):
    write(folder, PACKAGE | {"package/facade.py": """
        def __getattr__(name):
            raise {"quit": SystemExit, "stop": RuntimeError}.get(name, AttributeError)(name)
    """})
    gone(checker, folder, names=[("package.facade", "old")])
    there(checker, folder, names=[("package.facade", "quit"), ("package.facade", "stop")],
          words=["SystemExit: quit", "RuntimeError: stop"])


def case_broken_lazy_backends_are_failures(checker, folder):
    write(folder, {"package/__init__.py": "", "package/_backend.py": "import package_that_is_missing\n",
                   "package/_partial.py": "from json import never_there\n", "package/facade/__init__.py": """
        import importlib

        def __getattr__(name):
            if name == "lazy":
                return importlib.import_module("package._backend").lazy
            if name == "partial":
                return importlib.import_module("package._partial").partial
            if name == "hidden":
                try:
                    return importlib.import_module("package._backend").lazy
                except ImportError:
                    raise AttributeError(name) from None
            try:
                return importlib.import_module(f"package.facade.{name}")
            except ModuleNotFoundError:
                raise AttributeError(name)
    """})
    there(checker, folder, names=[("package.facade", "lazy")], words=["package_that_is_missing", "raised inside"])
    there(checker, folder, names=[("package.facade", "partial")], words=["never_there", "raised inside"])
    there(checker, folder, names=[("package.facade", "hidden")], words=["package_that_is_missing", "fails because of"])
    gone(checker, folder, names=[("package.facade", "old")])


def case_missing_dependencies_are_told_by_name(checker, folder):
    # An extension module that misses a dependency leaves no frame in the traceback: only the name tells.
    child = part(checker, "_old_names_child")
    for missing, inside in (("package.old", False), ("package", False), ("package.ol", True), ("other", True),
                            ("package.old.deeper", True), (None, True)):
        error = ModuleNotFoundError("No module", name=missing)
        if child.raised_inside(error, "package.old") != inside:
            raise AssertionError(f"{missing}: {not inside}")


def case_top_level_packages_must_import(checker, folder):
    write(folder, {"package/__init__.py": "raise RuntimeError('broken')\n", "cached/" + CACHE: ""})
    there(checker, folder, ["package.old"], words=["the top-level package package does not import", "broken"])
    there(checker, folder, names=[("package", "old")], words=["the top-level package package does not import"])
    there(checker, folder, ["absent.old"], words=["the top-level package absent does not import"])
    there(checker, folder, ["cached.old"], words=["the top-level package cached is a leftover directory"])
    gone(checker, folder, ["absent", "absent.old"], [("absent", "name")])


def case_leftover_caches_are_gone(checker, folder):
    write(folder, PACKAGE | {"package/old/" + CACHE: "", "package/old/deeper/" + CACHE: "", "package/empty/": "",
                             "package/old/.mypy_cache/x.json": "", "old/" + CACHE: ""})
    gone(checker, folder, ["package.old", "package.empty", "package.old.deeper", "old"], [("package", "old")])


def case_live_descendants_are_there(checker, folder):
    write(folder, PACKAGE | {"package/old/live/__init__.py": "", "package/code/deep/module.py": "",
                             "package/old/" + CACHE: "", "package/sourceless/module.pyc": ""})
    (folder / "package" / "linked").mkdir()
    os.symlink(folder / "package" / "code", folder / "package" / "linked" / "code")
    for name in ("old", "code", "sourceless", "linked"):
        there(checker, folder, [f"package.{name}"], words=[f"import package.{name} still works"])
    there(checker, folder, names=[("package", "old")], words=["from package import old still works"])


def case_a_package_with_an_init_is_there(checker, folder):
    write(folder, PACKAGE | {"package/old/__init__.py": ""})
    there(checker, folder, ["package.old"], words=["still works"])
    child = part(checker, "_old_names_child")
    zipped = make("zipped", __path__=[str(folder / "archive.zip" / "zipped")])
    if child.leftover(zipped):
        raise AssertionError("a path that is no directory cannot be known to be empty")


def case_child_that_ends_early(checker, folder):
    write(folder, PACKAGE | {"package/ends.py": """
        import os, sys
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    """, "package/quiet.py": "import os\nos._exit(0)\n"})
    there(checker, folder, ["package.facade", "package.ends", "package.quiet"],
          words=["import package.facade still works", "exited 7 without a result at `import package.ends`",
                 "last words", "2 finding(s)"])
    there(checker, folder, ["package.quiet"], words=["exited 0 without a result"])


def case_child_that_fails_after_its_result(checker, folder):
    write(folder, PACKAGE | {"package/__init__.py": """
        import atexit, os, sys
        atexit.register(lambda: (print("last words", file=sys.stderr, flush=True), os._exit(3)))
    """})
    there(checker, folder, ["package.old"], words=["exited 3 after its last probe", "last words"],
          without=["without a result"])
    there(checker, folder, ["package.facade"], words=["exited 3", "still works", "2 finding(s)"])


def case_child_that_takes_too_long(checker, folder):
    write(folder, PACKAGE | {"package/sleeps.py": """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print("asleep", file=sys.stderr, flush=True)
        time.sleep(60)
    """})
    start = time.monotonic()
    there(checker, folder, ["package.facade", "package.sleeps"], timeout=1,
          words=["import package.facade still works", "did not end within 1 s at `import package.sleeps`", "asleep",
                 "2 finding(s)"])
    if time.monotonic() - start > 30:
        raise AssertionError("the time limit was not kept")


def case_noise_is_no_result(checker, folder):
    noise = "import sys\nprint('{\"failure\": \"noise\"}')\nassert len(sys.argv) == 1, sys.argv\n"
    write(folder, PACKAGE | {"package/__init__.py": noise})
    settings = {name: os.environ.pop(name) for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
                if name in os.environ}
    try:
        gone(checker, folder, ["package.old"])
    finally:
        os.environ.update(settings)
    if list(folder.rglob("__pycache__")):
        raise AssertionError("the check left caches behind")


def case_wrong_arguments(checker, folder):
    def check(*arguments, error=ValueError):
        fails(lambda: checker.assert_old_names_fail(*arguments), "old_", error=error)
    check("package.old", error=TypeError)
    check((), "ab", error=TypeError)
    for modules in ([3], ["package; import os"], [""], ["package."], ["1"]):
        check(modules)
    for pair in ("ab", ("a",), ("a", 3), ("a", "*"), ("a b", "c"), ("a", "b c")):
        check((), [pair])


def case_everything_at_once(checker, folder):
    write(folder, {"kept.py": ""})
    module = make("cake_toy_det_train", """
        def wrong(): pass
        def cake_toy_det(x, deterministic=False): pass
        def cake_toy_det_views(): pass
        alias = cake_toy_det
        __all__ = ["wrong", "cake_toy_det", "cake_toy_det_views", "CakeToyDetMissing"]
    """)
    top = make("package", toy=module)
    behind = make("package._backend", "def cake_toy_det(**kwargs): pass\nlaunch = cake_toy_det")

    def check(**options):
        checker.assert_cake_mode_module(module, namespaces=[top, behind], old_modules=["kept"], cwd=folder, **options)
    fails(lambda: check(forwards=iter([("cake_toy_det_views", behind.cake_toy_det)]), old_names=[("kept", "__name__")]),
          "cake_toy_det_train: wrong carries no mode word", "cake_toy_det has a parameter named deterministic",
          "binds cake_toy_det as alias", "package binds cake_toy_det_train as toy", "import kept still works",
          "from kept import __name__ still works", "CakeToyDetMissing cannot be resolved",
          "package._backend binds cake_toy_det_views as launch", "cake_toy_det_views accepts the keyword deterministic")


def case_everything_passes_arguments_on(checker, folder):
    write(folder, PACKAGE | {"package/sleeps.py": "import time\ntime.sleep(60)\n"})
    good = make("cake_toy_det_train", "def views_det(): pass\ndef cake_toy_det(): pass")
    passes(lambda: checker.assert_cake_mode_module(good, stem=False))
    passes(lambda: checker.assert_cake_mode_module(good, "det", stem_exceptions=["views_det"], cwd=folder,
                                                   old_modules=["package.old"], old_names=[("package", "old")]))
    fails(lambda: checker.assert_cake_mode_module(good), "views_det")
    fails(lambda: checker.assert_cake_mode_module(good, "nondet", stem=False), "named for det")
    fails(lambda: checker.assert_cake_mode_module(good, stem=False, old_modules=["package.sleeps"], cwd=folder,
                                                  timeout=1), "did not end within 1 s")
    broken = make("cake_toy_det_train", __all__=["CakeToyDetFunction"])
    vars(broken)["__getattr__"] = lambda name: __import__("package_that_is_missing")
    fails(lambda: checker.assert_cake_mode_module(broken), "CakeToyDetFunction cannot be resolved: ModuleNotFoundError",
          "1 finding(s)")


def case_standard_library_only(checker, folder):
    for path in Path(checker.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            foreign = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
            if foreign:
                raise AssertionError(f"{path.name} imports {foreign}")
    passes(lambda: load(Path(checker.__file__).with_name("__init__.py"), unique("testing")))
