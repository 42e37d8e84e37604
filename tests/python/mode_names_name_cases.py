"""Self-test of the mode-name checker, rule 1: `judge_name`, `public_names` and `assert_mode_names`."""
import functools
import json
import types

from mode_names_support import VECTORS, equal, fails, load, make, passes, write

TOY = "cake_toy_det_train"
BACKEND = """
    import functools
    threshold = 3

    class Helper: pass

    def launch(x): return x

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs): return function(*args, **kwargs)
        return wrapper

    @functools.lru_cache
    def cached(x): return x
"""


def backend():
    return make("other_package.backend", BACKEND)


def case_vectors(checker, folder):
    for vector in json.loads(VECTORS.read_text(encoding="utf-8")):
        name, module = vector["name"], vector["module"]
        verdict = passes(lambda: checker.judge_name(name, module))
        if tuple(verdict) != (vector["verdict"], vector["reason"]):
            raise AssertionError(f"{name} of {module}: {verdict}, not {vector['verdict']} ({vector['reason']})")
        check = functools.partial(checker.assert_mode_names, make(module), names=[name])
        passes(check) if vector["verdict"] == "ok" else fails(check, module)


def case_mode_comes_from_the_module_name(checker, folder):
    passes(lambda: checker.assert_mode_names(make(f"package.{TOY}", "def cake_toy_det(): pass")))
    fails(lambda: checker.assert_mode_names(make("cake_toy_nondet_train", "def cake_toy_det(): pass")), "cake_toy_det ")
    fails(lambda: checker.assert_mode_names(make("facade")), "facade", "no mode is given")


def case_mode_can_be_given(checker, folder):
    vendored = make("vendored_copy")
    for good in ("cake_toy_det", "CakeToyDetFunction", "is_vendored_copy_det"):
        passes(lambda: checker.assert_mode_names(vendored, "det", names=[good]))
    for wrong in ("cake_toy_nondet", "CakeToyFunction", "cake_det_toy", "toy_det"):
        fails(lambda: checker.assert_mode_names(vendored, "det", names=[wrong]), wrong)
    fails(lambda: checker.assert_mode_names(make(TOY), "nondet"), "is named for det and given as nondet")
    fails(lambda: checker.assert_mode_names(make(TOY), "fast"), "'fast'", error=ValueError)
    fails(lambda: checker.judge_name("cake_toy_det", TOY, mode="fast"), "'fast'", error=ValueError)


def case_names_can_be_given(checker, folder):
    module = make(TOY, "def wrong(): pass")
    fails(lambda: checker.assert_mode_names(module), "wrong")
    passes(lambda: checker.assert_mode_names(module, names=["cake_toy_det"]))
    passes(lambda: checker.assert_mode_names(module, names=[]))
    fails(lambda: checker.assert_mode_names(module, names="cake_toy_det"), "lists", error=TypeError)
    fails(lambda: checker.assert_mode_names(module, stem_exceptions="wrong"), "lists", error=TypeError)


def case_without_stem_the_mode_is_still_checked(checker, folder):
    passes(lambda: checker.assert_mode_names(make(TOY), names=["packed_det_views"], stem=False))
    for wrong in ("packed_views", "packed_nondet_views", "packed_det_nondet_views"):
        fails(lambda: checker.assert_mode_names(make(TOY), names=[wrong], stem=False), wrong)


def case_stem_exceptions_skip_the_order_alone(checker, folder):
    def check(*names):
        return lambda: checker.assert_mode_names(make(TOY), names=names, stem_exceptions=[names[0]])
    passes(check("packed_det_views", "cake_toy_det"))
    fails(check("packed_det_views", "other_det_views"), "other_det_views", without=["packed"])
    fails(check("packed_views"), "packed_views", "no mode word")
    fails(check("packed_nondet_views"), "packed_nondet_views", "other mode")


def case_every_name_is_reported(checker, folder):
    fails(lambda: checker.assert_mode_names(make(TOY), names=["first", "cake_toy_det", "second"]),
          "first", "second", "2 finding(s)", without=["cake_toy_det "])


def case_all_is_the_list(checker, folder):
    module = make(TOY, "def cake_toy_det(): pass\ndef unlisted(): pass")
    for kind in (list, tuple):
        module.__all__ = kind(["later", "cake_toy_det", "_private"])
        equal(passes(lambda: checker.public_names(module)), ["later", "cake_toy_det", "_private"])
    for wrong in ("cake_toy_det", [1]):
        module.__all__ = wrong
        fails(lambda: checker.public_names(module), "__all__", error=TypeError)


def case_without_all_defined_names_count(checker, folder):
    module = make(TOY, """
        import functools
        count = 1
        def later(): pass
        def cake_toy_det(): pass
        class CakeToyDetFunction: pass
        def _private(): pass
        class Recorder:
            def run(self): pass
        recorder = Recorder()
    """)
    equal(passes(lambda: checker.public_names(module)),
          ["CakeToyDetFunction", "Recorder", "cake_toy_det", "count", "later", "recorder"])


def case_imported_objects_do_not_count(checker, folder):
    other = backend()
    source = "from __future__ import annotations\nimport json\nfrom math import sqrt\nfrom typing import List\n"
    module = make(TOY, source, launch=other.launch, Helper=other.Helper, other=other,
                  decorated=other.decorate(other.launch), cached=other.cached)
    equal(passes(lambda: checker.public_names(module)), [])


def case_local_wrappers_count(checker, folder):
    other = backend()
    module = make(TOY, """
        import functools

        @functools.wraps(launch)
        def wrapper(*args): return launch(*args)

        cached = functools.lru_cache(wrapper)

        @functools.wraps(Helper, updated=())
        class Wrapper:
            def run(self): pass

        class _Callable:
            def __call__(self): pass

        instance = functools.update_wrapper(_Callable(), launch)

        @decorate
        def decorated(): pass
    """, launch=other.launch, Helper=other.Helper, decorate=other.decorate)
    equal(module.wrapper.__module__, "other_package.backend")
    equal(module.Wrapper.__module__, "other_package.backend")
    equal(passes(lambda: checker.public_names(module)), ["Wrapper", "cached", "decorated", "instance", "wrapper"])
    fails(lambda: checker.assert_mode_names(module), "wrapper")


def case_source_tells_imported_values(checker, folder):
    write(folder, {"constants.py": "threshold = 3\n", "facade.py": """
        from typing import Callable
        try:
            from constants import threshold, threshold as limit
        except ImportError:
            threshold = limit = 3
        count = 3
        Source = Callable[..., int]

        def cake_toy_det():
            from other import count
    """})
    module = load(folder / "facade.py", TOY)
    equal(passes(lambda: checker.public_names(module)), ["Source", "cake_toy_det", "count"])


def case_public_names_resolves_nothing(checker, folder):
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            if not name.startswith("__") or name == "__all__":
                raise RuntimeError(f"{name} was resolved")
            raise AttributeError(name)
    module = Lazy(TOY)
    module._LAZY_EXPORTS = {"CakeToyDetFunction": ("package._backend", "CakeToyDetFunction")}
    equal(passes(lambda: checker.public_names(module)), [])
