"""The determinism alert as a user of the KDA packages meets it: torch's switch, errors, warnings, buffers."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import Any, Iterator

import pytest
import torch
from kda_support import GATE, MODES, ORDER, assert_same_bits, bits, cotangents, entry, explicit, problem, run
from torch.utils.checkpoint import checkpoint

import cake_train

SETTING = "torch.use_deterministic_algorithms(True)"
WARN_SETTING = "torch.use_deterministic_algorithms(True, warn_only=True)"
ADVICE = (" You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if "
          "that's acceptable for your application.")
FORBIDDEN = "{} does not have a deterministic implementation, but you set '" + SETTING + "'." + ADVICE
WARNED = "{} does not have a deterministic implementation, but you set '" + WARN_SETTING + "'."
PLAN = "CakeKDANondetPlan.backward"


@contextmanager
def switch(on: bool = True, warn_only: bool = False) -> Iterator[None]:
    """torch's deterministic mode, and back to what it was."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.fixture(autouse=True)
def one_thread():
    """One thread, so that nondet's sums can be compared bit for bit, and torch's switch off."""
    torch.set_num_threads(1)
    cake_train.set_num_threads(1)
    assert not torch.are_deterministic_algorithms_enabled()
    yield
    assert not torch.are_deterministic_algorithms_enabled()
    cake_train.set_num_threads(0)


class Explicit:
    """An explicit backward whose buffers hold a sentinel."""

    name = "cake_kda_nondet_train_backward"

    def __init__(self, mode: str = "nondet", offsets: tuple[int, ...] = (0, 70, 70, 131)) -> None:
        self.mode = mode
        self.x, self.options = problem(list(offsets), GATE, grad=False)
        self.out, self.saved, state = entry(mode, "forward")(**self.x, **self.options, output_final_state=True)
        dout, d_state = cotangents(self.out, state)
        self.results = {"dout": dout, "d_final_state": d_state}
        self.buffers = {"d" + name: torch.full_like(self.x[name], 7.0) for name in ORDER}

    def run(self, **changes: Any) -> None:
        """The backward."""
        entry(self.mode, "backward")(**(self.x | self.options | self.results | self.buffers | {"saved": self.saved} |
                                        changes))

    def assert_untouched(self) -> None:
        """Nothing was written."""
        assert all(bool((t == 7.0).all()) for t in self.buffers.values())

    def assert_written(self) -> None:
        """The gradients are there."""
        expected = explicit(self.mode, self.x, self.options)
        assert_same_bits(self.buffers, {name: expected[name] for name in self.buffers})


class Planned(Explicit):
    """The backward of a plan."""

    name = PLAN

    def __init__(self, mode: str = "nondet", offsets: tuple[int, ...] = (0, 70, 70, 131)) -> None:
        super().__init__(mode, offsets)
        out, state = torch.empty_like(self.out), torch.empty_like(self.x["initial_state"])
        self.plan = entry(mode, "prepare")(**self.x, **self.options, **self.results, **self.buffers, out=out,
                                           final_state=state)
        self.operands = self.x | {"cu_seqlens": self.options["cu_seqlens"]}
        self.plan.forward(**self.operands, out=out, final_state=state)

    def run(self, **changes: Any) -> None:
        self.plan.backward(**(self.operands | self.results | self.buffers | changes))


@contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Every warning that is issued."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def leaves(mode: str = "nondet", offsets: tuple[int, ...] = (0, 70, 131)) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """Operands, out and final state with a graph."""
    x, options = problem(list(offsets), GATE)
    return x, *entry(mode)(**x, **options, output_final_state=True)


def test_switch_is_read_when_the_backward_runs():
    x, out, _ = leaves()
    with switch(), pytest.raises(RuntimeError) as error:
        out.sum().backward(retain_graph=True)
    assert str(error.value) == FORBIDDEN.format("cake_kda_nondet")
    assert all(t.grad is None for t in x.values()), "no gradient reaches any leaf"
    with recorded() as found:  # switched off again: the same graph runs, silently
        out.sum().backward()
    assert not found and all(t.grad is not None for t in x.values())
    with switch():  # on in the forward alone
        x, out, _ = leaves()
    out.sum().backward()
    assert all(t.grad is not None for t in x.values())


def test_no_gradient_reaches_a_leaf_behind_other_layers():
    x, options = problem([0, 70], GATE)
    weight = torch.full((20,), 2.0, requires_grad=True)
    before = torch.full((16,), 2.0, requires_grad=True)
    out = entry("nondet")(**(x | {"q": x["q"] * before}), **options)
    with switch(), pytest.raises(RuntimeError, match="cake_kda_nondet does not have a deterministic"):
        (out * weight).sum().backward(inputs=[before, *x.values()])
    assert before.grad is None and all(t.grad is None for t in x.values())


@pytest.mark.parametrize("warn_only", [False, True])
def test_backward_from_another_thread(warn_only):
    x, out, _ = leaves()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            out.sum().backward()
        except RuntimeError as error:
            caught.append(error)
    with switch(warn_only=warn_only), recorded() as found:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    if warn_only:
        assert not caught and [str(w.message) for w in found] == [WARNED.format("cake_kda_nondet")]
        assert all(t.grad is not None for t in x.values())
    else:
        assert [str(error) for error in caught] == [FORBIDDEN.format("cake_kda_nondet")] and not found
        assert all(t.grad is None for t in x.values())


@pytest.mark.parametrize("call", [Explicit, Planned])
def test_explicit_calls_write_nothing(call):
    case = call()
    with switch():
        for _ in range(2):
            with pytest.raises(RuntimeError) as error:
                case.run()
            assert type(error.value) is RuntimeError and str(error.value) == FORBIDDEN.format(call.name)
        case.assert_untouched()
    case.run()
    case.assert_written()


def test_a_backward_that_recomputes_alerts_too():
    case = Explicit()
    with switch(), pytest.raises(RuntimeError, match=Explicit.name):
        case.run(saved=None)
    case.assert_untouched()


@pytest.mark.parametrize("call", [Explicit, Planned])
def test_one_warning_per_call(call):
    case = call()
    with switch(warn_only=True), recorded() as found:
        for n in (1, 2, 3):
            case.run()
            assert len(found) == n
    assert {(w.category, str(w.message)) for w in found} == {(UserWarning, WARNED.format(call.name))}
    case.assert_written()


def test_one_warning_per_autograd_backward():
    x, options = problem([0, 70, 131], GATE)
    expected = run(entry("nondet"), x, options)
    with switch(warn_only=True), recorded() as found:
        out, state = entry("nondet")(**x, **options, output_final_state=True)
        assert not found, "the forward does not alert"
        for n in (1, 2):
            grads = torch.autograd.grad([out, state], list(x.values()), cotangents(out, state), retain_graph=True)
            assert [str(w.message) for w in found] == [WARNED.format("cake_kda_nondet")] * n
        assert_same_bits({"d" + name: d for name, d in zip(x, grads)}, {"d" + name: expected["d" + name] for name in x})
        entry("nondet")(**x, **options).sum().backward()
        assert {w.category for w in found} == {UserWarning} and len(found) == 3
        (entry("nondet")(**x, **options) + entry("nondet")(**x, **options)).sum().backward()
        assert len(found) == 5, "one for each of two layers"


@pytest.mark.parametrize("call", [Explicit, Planned])
def test_warnings_turned_into_errors_leave_buffers_untouched(call):
    case = call()
    with switch(warn_only=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning) as error:
            case.run()
    assert str(error.value) == WARNED.format(call.name)
    case.assert_untouched()
    case.run()
    case.assert_written()


def test_warnings_turned_into_errors_reach_no_leaf():
    x, out, _ = leaves()
    with switch(warn_only=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="cake_kda_nondet does not have a deterministic implementation"):
            out.sum().backward()
    assert all(t.grad is None for t in x.values())


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("offsets", [(0, 0), (0, 0, 0), (0,)])
def test_problems_without_rows_are_silent(warn_only, offsets):
    with switch(warn_only=warn_only), recorded() as found:
        x, out, state = leaves("nondet", offsets)
        torch.autograd.backward([out, state], cotangents(out, state))
        for call in (Explicit, Planned):
            case = call("nondet", offsets)
            case.run()
            assert not case.buffers["dA_log"].any()
    assert not found and all(t.grad is not None for t in x.values())


def test_rows_that_belong_to_no_document_alert():
    x, options = problem([0, 0], GATE, past_end=5)
    out = entry("nondet")(**x, **options)
    with switch(), pytest.raises(RuntimeError, match="cake_kda_nondet"):
        out.sum().backward()


@pytest.mark.parametrize("warn_only", [False, True])
def test_det_is_silent(warn_only):
    x, options = problem([0, 70, 131], GATE)
    expected = run(entry("det"), x, options)
    with switch(warn_only=warn_only), recorded() as found:
        assert_same_bits(run(entry("det"), x, options), expected)
        for call in (Explicit, Planned):
            case = call("det")
            case.run()
    assert not found
    case.assert_written()


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_forward_is_silent_and_has_the_same_bits(mode, warn_only):
    x, options = problem([0, 70, 131], GATE, dtype=torch.bfloat16)
    expected = entry(mode)(**x, **options, output_final_state=True)
    with switch(warn_only=warn_only), recorded() as found:
        got = entry(mode)(**x, **options, output_final_state=True)
        out, _, state = entry(mode, "forward")(**x, **options, output_final_state=True)
        case = Planned(mode)
    assert not found and case.plan.nbytes() > 0
    for a, b, c in zip(expected, got, (out, state)):
        assert torch.equal(bits(a), bits(b)) and torch.equal(bits(a), bits(c))


@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("call", [Explicit, Planned])
def test_argument_errors_come_first(call, warn_only):
    case = call()
    wrong = [({"dout": case.out.double()}, ValueError, "dout"), ({"dout": None}, TypeError, "dout"),
             ({"q": case.x["q"][:, 1:]}, ValueError, "^[qk]: got"), ({"dk": torch.zeros(3)}, ValueError, "dk"),
             ({"cu_seqlens": torch.tensor([0, 70, 9, 131], dtype=torch.int32)}, ValueError, "cu_seqlens")]
    if call is Explicit:
        wrong += [({"saved": object()}, TypeError, "saved"), ({"workspace": case.saved}, TypeError, "workspace"),
                  ({"lower_bound": 1.0}, ValueError, "lower_bound")]
    with switch(warn_only=warn_only), recorded() as found:
        for changes, error, text in wrong:
            with pytest.raises(error, match=text) as caught:
                case.run(**changes)
            assert "deterministic" not in str(caught.value)
    assert not found
    case.assert_untouched()


def test_argument_errors_come_first_in_the_operator():
    x, options = problem([0, 70])
    arguments = [x["q"], x["k"], x["v"], x["g"], x["beta"], options["cu_seqlens"], x["initial_state"], None, None, None,
                 None, False, False, False, False, False, 0, 0]
    arguments = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    entry("nondet")(**{name: t.detach() for name, t in x.items()})  # the first call makes the operators
    out, state, saved = torch.ops.cake_train.cake_kda_nondet(*arguments, True, True)
    backward = torch.ops.cake_train.cake_kda_nondet_backward
    with switch():
        with pytest.raises(ValueError, match="dout"):
            backward(out[:, 1:], state, saved, *arguments, 31)
        with pytest.raises(RuntimeError, match="cake_kda_nondet does not have"):
            backward(out, state, saved, *arguments, 31)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_backward_alerts(use_reentrant):
    x, options = problem([0, 70], GATE)
    arguments = x | options
    out = checkpoint(lambda *a: entry("nondet")(**dict(zip(arguments, a))), *arguments.values(),
                     use_reentrant=use_reentrant)
    with switch(), pytest.raises(RuntimeError) as error:
        out.sum().backward()
    assert str(error.value) == FORBIDDEN.format("cake_kda_nondet")


def test_compiled_backward_alerts():
    x, options = problem([0, 70], GATE)
    function = entry("nondet")
    for on in (True, False):
        torch._dynamo.reset()
        compiled = torch.compile(lambda **a: function(**a), fullgraph=True, backend="aot_eager")
        with switch(on):
            out = compiled(**x, **options)
        with switch(), pytest.raises(RuntimeError) as error:
            out.sum().backward()
        assert all(t.grad is None for t in x.values())
        # Switched on in between, torch refuses to run any compiled backward, before it comes to this one.
        assert str(error.value) == FORBIDDEN.format("cake_kda_nondet") or not on
    with switch(warn_only=True):
        out = compiled(**x, **options)
        with recorded() as found:
            out.sum().backward()
    assert [str(w.message) for w in found if "cake" in str(w.message)] == [WARNED.format("cake_kda_nondet")]


def test_alert_names_no_other_package():
    case = Explicit()
    with switch(), pytest.raises(RuntimeError) as error:
        case.run()
    assert re.findall(r"cake_\w+", str(error.value)) == [Explicit.name]


# tvm-ffi imports torch where it can: here it cannot.
NUMPY_ONLY = """
import sys
sys.modules["torch"] = None
import numpy as np
from cake_train import cake_kda_nondet_train as package

shape = (1, 70, 2, 16)
random = np.random.default_rng(0)
q, k, v = (random.standard_normal(shape, dtype=np.float32) for _ in range(3))
k /= np.linalg.norm(k, axis=-1, keepdims=True)
g, beta = np.full(shape, -0.1, np.float32), np.full(shape[:3], 0.5, np.float32)
out, saved = package.cake_kda_nondet_train_forward(q, k, v, g, beta)
grads = package.cake_kda_nondet_train_backward(q, k, v, g, beta, None, np.ones_like(out), saved=saved)
assert len(grads) == 5 and all(np.isfinite(d).all() and d.any() for d in grads)
assert sys.modules["torch"] is None
"""


def test_numpy_without_torch_is_silent(subprocess_env):
    done = subprocess.run([sys.executable, "-W", "error", "-c", NUMPY_ONLY], env=subprocess_env, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_numpy_with_torch_alerts():
    case = Explicit()
    numpy = {name: t.numpy() for name, t in (case.x | case.results | case.buffers).items()}
    with switch(), pytest.raises(RuntimeError) as error:
        case.run(**numpy, cu_seqlens=case.options["cu_seqlens"].numpy())
    assert str(error.value) == FORBIDDEN.format(Explicit.name)
    case.assert_untouched()


@pytest.fixture
def subprocess_env() -> dict[str, str]:
    """The environment of a fresh interpreter that finds the package under test."""
    root = str(pathlib.Path(cake_train.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"}
