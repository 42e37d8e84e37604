"""Self-test of the mode-name checker, rule 2: `assert_no_deterministic_keyword`."""
import dataclasses
import functools
import inspect
import types
import typing

from mode_names_support import fails, make, passes

# What torch's base looks like to a checker that knows it by module and name alone.
TORCH = """
    class _Base: pass
    class Function(_Base):
        def __init__(self, *args, **kwargs): pass
        @staticmethod
        def forward(*args, **kwargs): pass
        @staticmethod
        def backward(*args): pass
        @classmethod
        def apply(cls, *args, **kwargs): pass
"""


def objects(source, **bound):
    """The module of a source; its attributes are the objects to check."""
    return make("cake_toy_det_train", source, dataclasses=dataclasses, functools=functools, inspect=inspect,
                typing=typing, **bound)


def accepts(checker, *objs):
    """Asserts that the checker finds nothing."""
    passes(lambda: checker.assert_no_deterministic_keyword(objs))


def refuses(checker, obj, *words, **options):
    """Asserts that the checker finds the object, among others that are fine."""
    fails(lambda: checker.assert_no_deterministic_keyword([len, obj, len]), "deterministic", *words, **options)


def case_functions(checker, folder):
    module = objects("""
        def plain(x, *rest, scale=None): pass
        def keyword(x, deterministic=False): pass
        def only(x, *, deterministic): pass
        def anything(x, **kwargs): pass
        def positional(deterministic, /): pass
        class Callable:
            def __call__(self, x, **kwargs): pass
        class Quiet:
            def __call__(self, x): pass
    """)
    accepts(checker, module.plain, module.Quiet(), functools.partial(module.plain, 1), 3, "text", None)
    for wrong in (module.keyword, module.only, module.anything, module.positional):
        refuses(checker, wrong, wrong.__name__)
    refuses(checker, functools.partial(module.keyword, 1))
    refuses(checker, module.Callable())


def case_every_object_is_reported(checker, folder):
    module = objects("def first(deterministic): pass\ndef second(**kwargs): pass\ndef third(): pass")
    fails(lambda: checker.assert_no_deterministic_keyword([module.first, module.third, module.second]),
          "first", "second", "2 finding(s)", without=["third"])


def case_constructors(checker, folder):
    module = objects("""
        class Plain:
            def __init__(self, x): pass
        class Empty: pass
        class Keyword:
            def __init__(self, x, *, deterministic=False): pass
        class Anything:
            def __init__(self, **kwargs): pass
        class Inherits(Anything): pass
        class HiddenByNew:
            def __new__(cls, x): return super().__new__(cls)
            def __init__(self, x, deterministic=False): pass
        class Meta(type):
            def __call__(cls, x, deterministic=False): pass
        class FromMeta(metaclass=Meta):
            __signature__ = inspect.Signature()
    """)
    accepts(checker, module.Plain, module.Empty)
    for wrong in (module.Keyword, module.Anything, module.Inherits, module.HiddenByNew, module.FromMeta):
        refuses(checker, wrong, wrong.__name__)


def case_fields(checker, folder):
    module = objects("""
        @dataclasses.dataclass
        class Options:
            scale: float = 1.0
        @dataclasses.dataclass
        class Field:
            deterministic: bool = False
        class Annotated:
            deterministic: bool
        class Slots:
            __slots__ = ("deterministic",)
        class Inherits(Annotated): pass
        class Method:
            def deterministic(self): pass
        class Tuple(typing.NamedTuple):
            deterministic: bool
    """)
    accepts(checker, module.Options)
    for wrong in (module.Field, module.Annotated, module.Slots, module.Inherits, module.Method, module.Tuple):
        refuses(checker, wrong, wrong.__name__)


def case_autograd_functions(checker, folder):
    for name in ("torch.autograd.function", "torch.autograd"):
        base = make(name, TORCH).Function
        module = objects("""
            class Good(Function):
                @staticmethod
                def forward(ctx, x): pass
                @staticmethod
                def backward(ctx, *grads): pass
            class Bare(Function): pass
            class Forward(Function):
                @staticmethod
                def forward(ctx, x, **kwargs): pass
            class Backward(Function):
                @staticmethod
                def backward(ctx, dout, **kwargs): pass
            class Inherits(Forward): pass
            class Method(Function):
                @staticmethod
                def prepare(x, deterministic=False): pass
            class Constructed(Function):
                def __init__(self, **kwargs): pass
        """, Function=base)
        accepts(checker, module.Good, module.Bare)
        refuses(checker, module.Forward, "Forward.forward")
        refuses(checker, module.Backward, "Backward.backward")
        refuses(checker, module.Inherits, "Inherits.forward")
        refuses(checker, module.Method, "Method.prepare")
        refuses(checker, module.Constructed, "the constructor of Constructed")


def case_other_functions_are_no_autograd(checker, folder):
    for name, base in (("other.autograd.function", "Function"), ("torch.autograd.function", "Context")):
        other = make(name, TORCH.replace("class Function", f"class {base}"))
        module = objects("""
            class Own(Base):
                def forward(self, x, **kwargs): pass
        """, Base=vars(other)[base])
        refuses(checker, module.Own, "the constructor of Own", without=["forward"])


def case_methods(checker, folder):
    module = objects("""
        class Passes:
            def run(self, x, **kwargs): pass
            def _private(self, deterministic): pass
            @property
            def nbytes(self): pass
        class Base:
            def run(self, x, deterministic=False): pass
        class Inherits(Base): pass
        class Factory:
            @classmethod
            def build(cls, x, deterministic=False): pass
        class Static:
            @staticmethod
            def build(x, *, deterministic=False): pass
        class InheritsFactory(Factory): pass
        class Partial:
            def _run(self, x, deterministic): pass
            run = functools.partialmethod(_run, 1)
        class Single:
            @functools.singledispatchmethod
            def run(self, x, deterministic=False): pass
        class Called:
            def __call__(self, deterministic): pass
        class Wrapped:
            def _outer(self, x, deterministic=False): pass
            run = functools.wraps(lambda self, x: None)(_outer)
        class Nested:
            class Options:
                def __init__(self, **kwargs): pass
        class Borrowed:
            kind = Nested.Options
    """)
    accepts(checker, module.Passes, module.Passes(), module.Borrowed)
    for wrong, method in ((module.Base, "run"), (module.Inherits, "run"), (module.Factory, "build"),
                          (module.Static, "build"), (module.InheritsFactory, "build"), (module.Partial, "run"),
                          (module.Single, "run"), (module.Called, "__call__"), (module.Wrapped, "run")):
        refuses(checker, wrong, f"{wrong.__name__}.{method} has a parameter named")
    refuses(checker, module.Base(), "run")
    refuses(checker, module.Nested, "the constructor of Nested.Options")


def case_wrapper_layers(checker, folder):
    def chain(*layers):
        """The first layer around the second and so on, as functools.wraps does it."""
        inner = layers[-1]
        for layer in reversed(layers[:-1]):
            inner = functools.wraps(inner)(layer)
        return inner

    def ordinary():
        return lambda *args, **kwargs: None

    def named():
        return lambda x, deterministic=False: None
    accepts(checker, chain(ordinary(), ordinary(), lambda x: None))
    refuses(checker, chain(named(), ordinary(), lambda x: None), without=["(layer"])
    refuses(checker, chain(ordinary(), named(), ordinary(), lambda x: None), "(layer 1 ")
    refuses(checker, chain(ordinary(), ordinary(), named()), "(layer 2 ")
    refuses(checker, chain(ordinary(), lambda x, **kwargs: None))

    class Outer:
        def __call__(self, *args, **kwargs): pass
    refuses(checker, functools.update_wrapper(Outer(), chain(named(), lambda x: None)), "(layer")
    refuses(checker, functools.lru_cache(chain(named(), lambda x: None)), "(layer")
    looped = ordinary()
    looped.__wrapped__ = looped
    accepts(checker, looped)


def case_signature_is_honoured(checker, folder):
    def signature(*names):
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])

    def hides(*args, **kwargs): pass
    hides.__signature__ = signature("x")
    accepts(checker, hides)

    def tells(*args): pass
    tells.__signature__ = signature("x", "deterministic")
    refuses(checker, tells)
    module = objects("""
        class Believed:
            __signature__ = signature("x")
            def __init__(self, **kwargs): pass
    """, signature=signature)
    accepts(checker, module.Believed)

    # functools.wraps copies `__signature__` to the layer outside, which may accept more than it says.
    @functools.wraps(hides)
    def outside(x, deterministic=False): pass

    @functools.wraps(hides)
    def only(x, *, deterministic): pass

    class Outside:
        def __call__(self, x, deterministic=False): pass
    instance = functools.update_wrapper(Outside(), hides)
    for wrong in (outside, only, instance, functools.wraps(instance)(lambda *args, **kwargs: None)):
        refuses(checker, wrong)

    @functools.wraps(hides)
    def local(x):
        deterministic = x
        return deterministic
    accepts(checker, local)


def case_no_signature_is_skipped(checker, folder):
    class Says:
        def __init__(self, error): self.error = error
        def __call__(self, **kwargs): pass
        @property
        def __signature__(self): raise self.error
    for error in (TypeError, ValueError):
        accepts(checker, Says(error("none")))
    accepts(checker, dict, type("Own", (dict,), {}), type("Error", (ValueError,), {}))
    fails(lambda: checker.assert_no_deterministic_keyword([Says(RuntimeError("broken"))]), "broken", error=RuntimeError)


def case_aliases(checker, folder):
    module = objects("""
        Item = typing.TypeVar("Item")
        class Accepts(typing.Generic[Item]):
            def __init__(self, x, deterministic=False): pass
        class Described:
            __signature__ = signature
        class Holder:
            Alias = Accepts[int]
            Generic = types.GenericAlias(Described, (int,))  # has every attribute of its class
            Source = typing.Callable[..., int]
        class Borrower:
            kind = Accepts
    """, types=types, signature=inspect.signature(lambda deterministic: None))
    alias = module.Accepts[int]
    accepts(checker, alias, typing.Callable[..., int], typing.Optional[int], list[int], module.Holder, types)
    refuses(checker, module.Accepts, "Accepts")
    fails(lambda: checker.assert_no_deterministic_keyword([alias, module.Accepts]), "Accepts")
    refuses(checker, module.Borrower, "Borrower.kind")
