"""Self-test of the mode-name checker, rule 3: `assert_same_object_same_name`."""
import contextlib
import functools
import sys
import typing

from mode_names_support import fails, make, passes, unique, write

FACADE = """
    import functools

    def _wrap(inner):
        @functools.wraps(inner)
        def wrapper(*args): return inner(*args)
        return wrapper

    def cake_toy_det(x): return x

    class CakeToyDetFunction: pass

    __all__ = ["cake_toy_det", "CakeToyDetFunction"]
"""
NAME = "package.cake_toy_det_train"


def facade(**bound):
    module = make(NAME, FACADE)
    vars(module).update(bound)
    return module


def backend(source="def cake_toy_det(x): return x", name="package._backend"):
    return make(name, source)


def lazily(values, **bound):
    """A facade whose public names in `values` exist only through its `__getattr__`; an exception is raised."""
    module = facade(**bound)
    module.__all__ = [*module.__all__, *values]

    def get(name):
        if name not in values:
            raise AttributeError(name)
        if isinstance(values[name], Exception):
            raise values[name]
        return values[name]
    vars(module)["__getattr__"] = get
    return module


@contextlib.contextmanager
def loaded(module):
    """Has the module in `sys.modules`, where a look-up by path would find it."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]


def good(checker, module, *namespaces, forwards=()):
    passes(lambda: checker.assert_same_object_same_name(module, namespaces, forwards=forwards))


def bad(checker, module, *namespaces, words, forwards=(), without=()):
    fails(lambda: checker.assert_same_object_same_name(module, namespaces, forwards=forwards), *words, without=without)


def case_same_names_pass(checker, folder):
    module = facade()
    top = make("package", cake_toy_det_train=module, cake_toy_det=module.cake_toy_det, version=3)
    good(checker, module, top, module, {"CakeToyDetFunction": module.CakeToyDetFunction})


def case_aliases_in_the_facade(checker, folder):
    for alias in ("alias", "_alias"):
        module = facade()
        vars(module)[alias] = module.cake_toy_det
        bad(checker, module, words=[f"{NAME} binds cake_toy_det as {alias}"])
    module = facade()
    module.cake_toy_det_again = module.cake_toy_det
    module.__all__.append("cake_toy_det_again")
    bad(checker, module, words=["one object has the names cake_toy_det and cake_toy_det_again"])


def case_aliases_in_namespaces(checker, folder):
    module = facade()
    bad(checker, module, make("package", toy=module.cake_toy_det), words=["package binds cake_toy_det as toy"])
    bad(checker, module, make("package", Toy=module.CakeToyDetFunction), words=["binds CakeToyDetFunction as Toy"])
    bad(checker, module, make("package"), {"toy": module.cake_toy_det}, words=["type dict binds cake_toy_det as toy"])
    space = type("Space", (), {"toy": staticmethod(module.cake_toy_det)})
    bad(checker, module, space, words=["Space binds cake_toy_det as toy"])
    both = make("package", one=module.cake_toy_det, two=module.CakeToyDetFunction)
    bad(checker, module, both, words=["as one", "as two", "2 finding(s)"])


def case_the_facade_module_is_tracked(checker, folder):
    module = facade()
    bad(checker, module, make("package", toy=module), words=["package binds cake_toy_det_train as toy"])
    module.itself = module
    bad(checker, module, words=["binds cake_toy_det_train as itself"])


def case_forwards(checker, folder):
    module, behind = facade(), backend()
    forwards = [("cake_toy_det", behind.cake_toy_det)]
    good(checker, module, behind, forwards=forwards)
    behind._launch = behind.cake_toy_det
    good(checker, module, behind)
    bad(checker, module, behind, forwards=forwards, words=["package._backend binds cake_toy_det as _launch"])
    bad(checker, module, forwards=[("toy", behind.cake_toy_det)], words=["forwards names toy"])
    bad(checker, module, forwards=[("cake_toy_det", module.CakeToyDetFunction)], words=["one object has the names"])


def case_wrapper_chains(checker, folder):
    behind = backend("def launch(x): return x\ndef middle(x): return x")
    chain = functools.wraps(behind.launch)(behind.middle)
    module = facade()
    module.cake_toy_det = module._wrap(chain)
    bad(checker, module, behind, words=["binds cake_toy_det as middle", "binds cake_toy_det as launch"])
    module.cake_toy_det = functools.partial(behind.launch, 1)
    bad(checker, module, behind, words=["binds cake_toy_det as launch"])
    module.cake_toy_det = type("Holder", (), {"run": behind.launch})().run
    bad(checker, module, behind, words=["binds cake_toy_det as launch"])
    module = facade()
    bad(checker, module, behind, forwards=[("cake_toy_det", module._wrap(chain))],
        words=["binds cake_toy_det as middle", "binds cake_toy_det as launch"])
    renamed = backend("def cake_toy_det(x): return x")
    module.cake_toy_det = module._wrap(renamed.cake_toy_det)
    good(checker, module, renamed)


def case_shared_inner_functions(checker, folder):
    module, behind = facade(), backend("def launch(x): return x")
    module.cake_toy_det = module._wrap(behind.launch)
    module.CakeToyDetFunction = module._wrap(behind.launch)
    bad(checker, module, behind, words=["binds CakeToyDetFunction / cake_toy_det as launch"])
    good(checker, module, make("package._first", cake_toy_det=behind.launch))
    good(checker, module, make("package._second", CakeToyDetFunction=behind.launch))
    # A public function inside the wrapper of another one keeps its own name alone, whichever comes first.
    for names in (["cake_toy_det", "outer"], ["outer", "cake_toy_det"]):
        module = facade()
        module.outer = module._wrap(module.cake_toy_det)
        module.__all__ = names
        good(checker, module)
        bad(checker, module, {"outer": module.cake_toy_det}, words=["binds cake_toy_det as outer"])


def case_plain_values_have_no_identity(checker, folder):
    alias = typing.Callable[..., int]
    for value in (3, "text", None, True, (), alias, 1.5, frozenset()):
        good(checker, facade(CAKE_LIMIT=value, __all__=["CAKE_LIMIT"]), make("package", other=value))
    value = [3]
    bad(checker, facade(CAKE_LIST=value, __all__=["CAKE_LIST"]), {"other": value}, words=["binds CAKE_LIST as other"])


def case_lazy_names_count(checker, folder):
    hidden = backend("class CakeToyDetSaved: pass").CakeToyDetSaved
    module = lazily({"CakeToyDetSaved": hidden})
    good(checker, module, make("package", CakeToyDetSaved=hidden))
    bad(checker, module, make("package", Saved=hidden), words=["package binds CakeToyDetSaved as Saved"])
    bad(checker, lazily({"CakeToyDetSaved": hidden, "Saved": hidden}), words=["one object has the names"])
    # A row alone makes a name public, too, and a name that is not there is bound nowhere.
    module.__all__.remove("CakeToyDetSaved")
    good(checker, module, make("package", Saved=hidden))
    module._LAZY_EXPORTS = {"CakeToyDetSaved": "package._backend", "cake_toy_det_missing": "package._backend"}
    bad(checker, module, make("package", Saved=hidden), words=["package binds CakeToyDetSaved as Saved"])


def case_broken_lazy_names_fail(checker, folder):
    module = lazily({"CakeToyDetSaved": ImportError("no library"), "cake_toy_det_run": RuntimeError("no device")})
    bad(checker, module, words=["CakeToyDetSaved cannot be resolved: ImportError: no library", "no device"])


def case_rows_are_read(checker, folder):
    for row in ("package._backend", "package._backend:cake_toy_det", ("package._backend", "cake_toy_det"),
                ["package._backend"], ("package._backend", None), "._backend:cake_toy_det"):
        good(checker, facade(_LAZY_EXPORTS={"cake_toy_det": row}))
    for row in (3, (), ("a", "b", "c"), {"a": "b"}, (None, "b")):
        bad(checker, facade(_LAZY_EXPORTS={"cake_toy_det": row}), words=["give a module"])
    bad(checker, facade(_LAZY_EXPORTS=["cake_toy_det"]), words=["not a mapping"])


def case_rows_with_two_names(checker, folder):
    for row in ("package._backend:cake_toy_det", ("package._backend", "cake_toy_det")):
        bad(checker, facade(_LAZY_EXPORTS={"toy": row}), words=["'toy'", "one object under two names"])
        bad(checker, facade(), make("package", _LAZY_EXPORTS={"toy": row}), words=["package._LAZY_EXPORTS['toy']"])
    bad(checker, facade(_LAZY_EXPORTS={"cake_toy_det": ("package._backend", "_launch")}), words=["two names"])
    bad(checker, facade(), {"_LAZY_EXPORTS": {"cake_toy_det": ("package._backend", "_launch")}}, words=["two names"])
    good(checker, facade(), make("package", _LAZY_EXPORTS={"version": ("package._version", "__version__")}))


def case_rows_that_expose_supplied_objects(checker, folder):
    # The backend's own name for the object hides it from the texts; the supplied module tells.
    behind = make("package._backend", launch=facade().cake_toy_det)
    forwards = [("cake_toy_det", behind.launch)]
    for row in (("package._backend", "launch"), "package._backend"):
        table = {"launch": row}
        bad(checker, facade(_LAZY_EXPORTS=table), behind, forwards=forwards,
            words=[f"{NAME}._LAZY_EXPORTS['launch'] -> package._backend", "would bind cake_toy_det as launch"])
        bad(checker, facade(), make("package", _LAZY_EXPORTS=table), behind, forwards=forwards, words=["would bind"])
    relative = make("package", _LAZY_EXPORTS={"launch": ("._backend", "launch")})
    bad(checker, facade(), relative, behind, forwards=forwards, words=["would bind cake_toy_det as launch"])
    good(checker, facade(_LAZY_EXPORTS={"launch": ("package._other", "launch")}), forwards=forwards)
    # The module is supplied as an object of its own.
    forwards.append(("CakeToyDetFunction", behind))
    bad(checker, facade(_LAZY_EXPORTS={"launch": ("package._backend", "launch")}), forwards=forwards,
        words=["would bind cake_toy_det as launch"])
    good(checker, facade(_LAZY_EXPORTS={"launch": ("package._other", "launch")}), forwards=forwards)


def case_rows_that_name_a_forwarded_object(checker, folder):
    # The backend module is not supplied, but the object says where it lives.
    launch = backend("def launch(x): return x").launch
    table = {"launch": ("package._backend", "launch")}
    bad(checker, facade(_LAZY_EXPORTS=table), forwards=[("cake_toy_det", launch)],
        words=["would bind cake_toy_det as launch"])
    good(checker, facade(_LAZY_EXPORTS={"other": ("package._backend", "other")}), forwards=[("cake_toy_det", launch)])


def case_rows_that_name_the_facade(checker, folder):
    for row in (NAME, ("package", "cake_toy_det_train"), "package:cake_toy_det_train"):
        bad(checker, facade(), make("package", _LAZY_EXPORTS={"toy": row}), words=["cake_toy_det_train as toy"])
        good(checker, facade(), make("package", _LAZY_EXPORTS={"cake_toy_det_train": row}))
    good(checker, facade(), make("package", _LAZY_EXPORTS={"cake_toy_det": NAME}))
    good(checker, lazily({"CakeToyDetSaved": object()}), make("package", _LAZY_EXPORTS={"CakeToyDetSaved": NAME}))
    behind = backend()
    bad(checker, facade(_LAZY_EXPORTS={"launchers": "package._backend"}), forwards=[("cake_toy_det", behind)],
        words=["would bind cake_toy_det as launchers"])


def case_rows_come_before_resolution(checker, folder):
    behind = backend("def launch(x): return x")
    launch = behind.launch

    def get(name):
        del behind.launch  # what the first access to a lazy name may do to the module it comes from
        raise AttributeError(name)
    module = facade(_LAZY_EXPORTS={"launch": ("package._behind", "launch")}, __getattr__=get)
    behind.__name__ = "package._behind"
    bad(checker, module, behind, forwards=[("cake_toy_det", launch)], words=["would bind cake_toy_det as launch"])


def case_backends_are_not_looked_up(checker, folder):
    name = unique("package_on_disk")
    write(folder, {f"{name}/__init__.py": "", f"{name}/_backend.py": "def cake_toy_det(x): return x\n"})
    sys.path.insert(0, str(folder))
    try:
        good(checker, facade(), make("package", _LAZY_EXPORTS={"launch": (f"{name}._backend", "launch")}))
    finally:
        sys.path.remove(str(folder))
        imported = [each for each in sys.modules if each.partition(".")[0] == name]
        for each in imported:
            del sys.modules[each]
    if imported:
        raise AssertionError(f"imported {imported}")
    module = facade()
    with loaded(make(f"{name}._loaded", launch=module.cake_toy_det)):
        good(checker, module, make("package", _LAZY_EXPORTS={"launch": (f"{name}._loaded", "launch")}))
