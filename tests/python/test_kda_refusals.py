"""Lazy loading of the KDA packages, and what each refuses of the other: by tag, also from a copy of the package."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from types import ModuleType
from typing import Any, Callable

import pytest
import torch
from kda_support import GATE, MODES, assert_same_bits, bits, explicit, problem, run

import cake_train

PACKAGE = pathlib.Path(cake_train.__file__).parent
OTHER = {"det": "nondet", "nondet": "det"}
PREFIXES = ("cake_train", "vendored.cake_train")
# What a package may import of cake_train, and of anything else outside the standard library, while it runs on numpy.
ALLOWED = {"", "._lazy", "._backend", "._backend.alert", "._backend.arrays", "._backend.kda", "._backend.library",
           "._backend.objects", ".cake_kda_{}_train", "._backend.kda_{}_train"}
ALLOWED_WITH_TORCH = ALLOWED | {"._backend.kda_torch", "._backend.kda_{}_train_torch"}
ALLOWED_ELSEWHERE = {"numpy", "ml_dtypes", "tvm_ffi", "typing_extensions", "cython_runtime"}
LIBRARIES = {"libcake_core", "libcake_{}", "libcake_ffi_{}"}


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: also the atomic sums of nondet then have one order, and results can be compared bit for bit."""
    torch.set_num_threads(1)
    cake_train.set_num_threads(1)
    yield
    cake_train.set_num_threads(0)


# Lazy loading. The child prints what is loaded after every step.

CHILD = """
import json, sys
with_torch = sys.argv[2] == "torch"
if not with_torch:
    sys.modules["torch"] = None  # tvm-ffi imports it where it can
mode, before, states = sys.argv[1], set(sys.modules), {}
def note(step):
    maps = open("/proc/self/maps").read().split()
    libraries = {word.rsplit("/", 1)[-1].split(".")[0] for word in maps if "/libcake" in word}
    new = {name for name in set(sys.modules) - before if not name.startswith("_")}
    states[step] = {"ours": sorted(name for name in new if name.split(".")[0] == "cake_train"),
        "elsewhere": sorted({name.split(".")[0] for name in new} - {"cake_train"} - set(sys.stdlib_module_names)),
        "libraries": sorted(libraries)}
import cake_train
note("package")
facade = __import__(f"cake_train.cake_kda_{mode}_train", fromlist=["x"])
dir(facade), facade.__all__, getattr(facade, f"cake_kda_{mode}_train_forward").__doc__
note("facade")
getattr(facade, f"CakeKDA{mode.capitalize()}Saved")
note("class")
import numpy as np
ones = np.ones((1, 3, 1, 4), np.float32)
operands = (ones, ones / 2, ones, -ones, ones[..., 0])
forward, backward = (getattr(facade, f"cake_kda_{mode}_train_{name}") for name in ("forward", "backward"))
out, saved = forward(*operands)
backward(*operands, None, out, saved=saved)
class Foreign:
    _handle = getattr(facade, f"cake_kda_{mode}_train_arena")()._handle
for wrong in (object(), Foreign()):
    try:
        backward(*operands, None, out, saved=wrong)
        raise SystemExit("not refused")
    except TypeError:
        pass
note("numpy")
if with_torch:
    import torch
    operands = [torch.from_numpy(x).requires_grad_() for x in operands]
    getattr(facade, f"cake_kda_{mode}")(*operands).sum().backward()
    note("torch")
print(json.dumps(states))
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_a_fresh_interpreter_loads(mode, kind):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD, mode, kind], env=environment, capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr
    states = json.loads(done.stdout)
    ours = {step: set(state["ours"]) for step, state in states.items()}
    assert ours["package"] == {"cake_train"}
    assert ours["facade"] == {"cake_train", "cake_train._lazy", f"cake_train.cake_kda_{mode}_train"}
    for step in ("package", "facade"):
        assert not states[step]["elsewhere"], "neither numpy, nor torch, nor tvm_ffi"
        assert not states[step]["libraries"]
    assert f"cake_train._backend.kda_{mode}_train" in ours["class"]
    assert not states["class"]["libraries"], "a class loads its module; the first object loads the library"
    assert states["class"]["elsewhere"] == ["numpy"]
    assert ours["numpy"] == {"cake_train" + name.format(mode) for name in ALLOWED}
    assert set(states["numpy"]["libraries"]) == {name.format(mode) for name in LIBRARIES}
    if kind == "numpy":
        assert set(states["numpy"]["elsewhere"]) <= ALLOWED_ELSEWHERE
    else:
        assert ours["torch"] == {"cake_train" + name.format(mode) for name in ALLOWED_WITH_TORCH}
        assert set(states["torch"]["libraries"]) == {name.format(mode) for name in LIBRARIES}


@pytest.mark.parametrize("mode", MODES)
def test_missing_library_is_named(mode, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "cake_train", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    code = f"from cake_train import cake_kda_{mode}_train as p; p.cake_kda_{mode}_train_arena()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "ImportError: cake_train: the library" in done.stderr and f"libcake_ffi_{mode}.so is missing" in done.stderr


# Refusals. `vendored.cake_train` is a copy of the package, loaded beside it.


@pytest.fixture(scope="module", autouse=True)
def vendored(tmp_path_factory):
    """The copy."""
    folder = tmp_path_factory.mktemp("other_prefix")
    shutil.copytree(PACKAGE, folder / "vendored" / "cake_train", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "vendored" / "__init__.py").touch()
    sys.path.insert(0, str(folder))
    copy = importlib.import_module("vendored.cake_train")
    copy.set_num_threads(1)
    yield copy
    sys.path.remove(str(folder))


def facade(prefix: str, mode: str) -> ModuleType:
    """A package of the original or of the copy."""
    return importlib.import_module(f"{prefix}.cake_kda_{mode}_train")


def entry(prefix: str, mode: str, name: str = "") -> Callable[..., Any]:
    """Its entry."""
    return getattr(facade(prefix, mode), f"cake_kda_{mode}" + (f"_train_{name}" if name else ""))


def object_of(prefix: str, mode: str, kind: str) -> Any:
    """A saved set (filled, of `call()`), workspace or arena."""
    if kind == "saved":
        x, options, _ = call()
        return entry(prefix, mode, "forward")(**x, **options)[1]
    return getattr(facade(prefix, mode), f"CakeKDA{mode.capitalize()}{kind.capitalize()}")()


def call() -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    """Operands, options and dout."""
    x, options = problem([0, 70], GATE, K=5, V=4, grad=False)
    return x, options, torch.ones_like(x["v"])


def entries(prefix: str, mode: str, kind: str) -> dict[str, Callable[[Any], Any]]:
    """The entries that take such an object."""
    x, options, dout = call()
    found = {"backward": lambda it: entry(prefix, mode, "backward")(**x, **options, dout=dout, **{kind: it})}
    if kind != "saved":
        found["forward"] = lambda it: entry(prefix, mode, "forward")(**x, **options, **{kind: it})
        found["autograd"] = lambda it: entry(prefix, mode)(**x, **options, **{kind: it})
        leaf = x | {"q": x["q"].clone().requires_grad_()}
        found["autograd with a graph"] = lambda it: entry(prefix, mode)(**leaf, **options, **{kind: it})
    return found


def flat(results: Any) -> list[torch.Tensor]:
    """The tensors among results."""
    return [t for t in (results if isinstance(results, tuple) else (results,)) if isinstance(t, torch.Tensor)]


def swapped(text: str) -> str:
    """A message with the mode words exchanged."""
    words = {"det": "nondet", "nondet": "det", "Det": "Nondet", "Nondet": "Det"}
    return re.sub("nondet|det|Nondet|Det", lambda word: words[word[0]], text)


EXPECTED = {
    "saved": "saved: got a CakeKDA{Other}Saved, expected a CakeKDA{Mode}Saved; this saved set belongs to the backward "
             "of cake_kda_{other}_train",
    "workspace": "workspace: got a CakeKDA{Other}Workspace, expected a CakeKDA{Mode}Workspace; it is a workspace of "
                 "the {other} mode",
    "arena": "arena: got a CakeKDA{Other}Arena, expected a CakeKDA{Mode}Arena; it is an arena of the {other} mode",
}


def expected(kind: str, mode: str) -> str:
    """The message for an object of the other mode."""
    words = {"mode": mode, "Mode": mode.capitalize(), "other": OTHER[mode], "Other": OTHER[mode].capitalize()}
    return EXPECTED[kind].format(**words)


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("receiver", PREFIXES)
@pytest.mark.parametrize("maker", PREFIXES)
def test_objects_of_the_other_mode_are_refused(kind, receiver, maker):
    messages = {}
    for mode in MODES:
        for name, function in entries(receiver, mode, kind).items():
            before = flat(function(object_of(receiver, mode, kind)))
            with pytest.raises(ValueError) as error:
                function(object_of(maker, OTHER[mode], kind))
            assert str(error.value) == expected(kind, mode), name
            messages[mode] = str(error.value)
            after = flat(function(object_of(receiver, mode, kind)))
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(before, after, strict=True)), name
    assert swapped(messages["det"]) == messages["nondet"] != messages["det"]


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("mode", MODES)
def test_objects_of_a_copy_are_the_same_objects(kind, mode):
    for receiver, maker in (PREFIXES, PREFIXES[::-1]):
        for name, function in entries(receiver, mode, kind).items():
            got, own = flat(function(object_of(maker, mode, kind))), flat(function(object_of(receiver, mode, kind)))
            assert all(torch.equal(bits(a), bits(b)) for a, b in zip(got, own, strict=True)), name


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_has_operators_and_results_of_its_own(mode):
    x, options = problem([0, 70], GATE)
    assert_same_bits(run(entry(PREFIXES[1], mode), x, options), run(entry(PREFIXES[0], mode), x, options))
    assert hasattr(torch.ops.vendored_cake_train, f"cake_kda_{mode}")
    assert facade(PREFIXES[0], mode) is not facade(PREFIXES[1], mode)


class Disguised:
    """An object of another class around a handle: the tag decides, not the class."""

    def __init__(self, inner: Any, name: str) -> None:
        self._handle, self._options = inner._handle, {}
        type(self).__name__ = name


@pytest.mark.parametrize("mode", MODES)
def test_the_tag_decides_and_not_the_class(mode):
    own, other = (object_of(PREFIXES[0], m, "saved") for m in (mode, OTHER[mode]))
    function = entries(PREFIXES[0], mode, "saved")["backward"]
    assert flat(function(Disguised(own, f"CakeKDA{OTHER[mode].capitalize()}Saved")))
    with pytest.raises(ValueError, match="belongs to the backward of"):
        function(Disguised(other, f"CakeKDA{mode.capitalize()}Saved"))


@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.parametrize("mode", MODES)
def test_any_other_object_is_a_type_error(kind, mode):
    class_name = f"CakeKDA{mode.capitalize()}{kind.capitalize()}"
    wrong = [object(), 7, "text", torch.zeros(3), {"_handle": 1}, getattr(facade(PREFIXES[0], mode), class_name)]
    wrong.append(object_of(PREFIXES[0], mode, "workspace" if kind == "saved" else "saved"))
    for it in wrong:
        for name, function in entries(PREFIXES[0], mode, kind).items():
            with pytest.raises(TypeError) as error:
                function(it)
            assert str(error.value) == f"{kind} must be a {class_name}", (name, it)


@pytest.mark.parametrize("mode", MODES)
def test_the_earliest_error_wins(mode):
    x, options, dout = call()
    backward = entry(PREFIXES[0], mode, "backward")
    other, own = ({kind: object_of(PREFIXES[0], m, kind) for kind in EXPECTED} for m in (OTHER[mode], mode))
    tensor = {"q": x["q"][:, 1:], "k": None, "dout": "text"}
    wrong = {"saved": other["saved"], "workspace": other["workspace"], "lower_bound": 1.0} | tensor
    for name in ("saved", "workspace"):
        with pytest.raises(ValueError) as error:
            backward(**(x | options | {"dout": dout} | wrong))
        assert str(error.value) == expected(name, mode)
        wrong[name] = own[name]
    # Options are compared with the saved set before any tensor's shape; a tensor that is none at all comes first.
    wrong |= {"k": x["k"], "dout": dout}
    with pytest.raises(ValueError, match="lower_bound"):
        backward(**(x | options | wrong))
    wrong.pop("lower_bound")
    with pytest.raises(ValueError, match="^[kq]: got shape"):
        backward(**(x | options | wrong))
    with pytest.raises(ValueError, match="saved: got an empty saved set"):
        backward(**(x | options), dout=dout, saved=getattr(facade(PREFIXES[0], mode),
                                                           f"CakeKDA{mode.capitalize()}Saved")(), lower_bound=1.0)
    for changes, text in (({"use_qk_l2norm_in_kernel": False}, "use_qk_l2norm"), ({"scale": 0.7}, "scale"),
                          ({"save_mode": "tape"}, "save_mode")):
        with pytest.raises(ValueError, match=f"saved: got one of a forward with {text}"):
            backward(**(x | options | changes), dout=dout, saved=own["saved"])


def operator_call(mode: str, S: int = 131) -> tuple[Callable[[torch.Tensor], Any], torch.Tensor]:
    """The backward operator as a function of the saved tensor, and the saved tensor of its forward."""
    x, _ = problem([0, S], {}, grad=False)
    entry(PREFIXES[0], mode)(**x)  # makes the operators
    tensors = [x[name] for name in ("q", "k", "v", "g", "beta")] + [None, x["initial_state"]]
    arguments = [*tensors, None, None, None, None, False, False, False, False, False, 0, 0]
    forward, backward = (getattr(torch.ops.cake_train, f"cake_kda_{mode}" + end) for end in ("", "_backward"))
    out, _, saved = forward(*arguments, True, False)
    return lambda memory: backward(torch.ones_like(out), None, memory, *arguments, 0b1011111), saved


@pytest.mark.parametrize("mode", MODES)
def test_damaged_saved_tensors_are_refused(mode):
    backward, saved = operator_call(mode)
    good = backward(saved)
    text = bytes(saved[:256].tolist())
    assert f"cake/kda/{mode}/saved/v1".encode() in text
    at = text.index(b"/saved/v1") + len(b"/saved/v")

    def changed(index: int, value: int) -> torch.Tensor:
        copy = saved.clone()
        copy[index] = value
        return copy
    other = operator_call(OTHER[mode])[1]
    wrong = {"no bytes": saved[:0], "no header": saved[:300], "half": saved[:len(saved) // 2], "end": saved[:-100],
             "header": torch.cat([torch.zeros(512, dtype=torch.uint8), saved[512:]]), "noise": saved.flip(0),
             "record length": changed(1, 255), "tag": changed(text.index(b"cake"), ord("x")),
             "number": changed(at + 2, ord("z")), "strided": saved.repeat_interleave(2)[::2],
             "dtype": saved.view(torch.int8), "shape": saved[None]}
    for name, memory in wrong.items():
        with pytest.raises((ValueError, MemoryError), match="saved|tag") as error:
            backward(memory)
        assert "damaged" in str(error.value) or name not in ("record length", "number"), name
    with pytest.raises(ValueError, match="saved: .*version 2, expected version 1"):
        backward(changed(at, ord("2")))
    with pytest.raises(ValueError) as error:
        backward(other)
    assert str(error.value) == expected("saved", mode)
    with pytest.raises(ValueError, match="saved: got one of a forward with S = 70, expected 131"):
        backward(operator_call(mode, 70)[1])
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(good, backward(saved)))


@pytest.mark.parametrize("mode", MODES)
def test_objects_are_of_this_process(mode):
    import copy
    import pickle

    for kind in EXPECTED:
        it = object_of(PREFIXES[0], mode, kind)
        assert copy.copy(it) is it and copy.deepcopy(it) is it
        with pytest.raises(TypeError, match=f"{type(it).__name__} holds memory of this process"):
            pickle.dumps(it)
        assert it.tag == f"cake/kda/{mode}/{'workspace' if kind == 'arena' else kind}/v1"


@pytest.mark.parametrize("mode", MODES)
def test_after_refusals_the_next_call_is_as_if_nothing_happened(mode):
    x, options = problem([0, 70, 131], GATE)
    before = run(entry(PREFIXES[0], mode), x, options)
    memory = entry(PREFIXES[0], mode, "arena")()
    for function in entries(PREFIXES[0], mode, "workspace").values():
        with pytest.raises(ValueError):
            function(object_of(PREFIXES[0], OTHER[mode], "workspace"))
    for name in ("k", "g", "beta", "initial_state"):
        with pytest.raises(ValueError, match=name):
            entry(PREFIXES[0], mode)(**(x | {name: x[name][:, :, :1]}), **options, arena=memory)
    assert_same_bits(run(lambda **a: entry(PREFIXES[0], mode)(**a, arena=memory), x, options), before)
    assert_same_bits(explicit(mode, x, options, arena=memory), explicit(mode, x, options))
