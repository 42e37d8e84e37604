"""The entries of the KDA packages without autograd: numpy and torch, buffers, scratch memory, plans, sizes, bits."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kda_support import (
    GATE,
    MODES,
    OPTIONS,
    ORDER,
    assert_same_bits,
    bits,
    cotangents,
    entry,
    explicit,
    facade,
    problem,
    run,
)

import cake_train

OFFSETS = [0, 70, 70, 131, 200]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def one_thread():
    """One thread: also the atomic sums of nondet then have one order, and results can be compared bit for bit."""
    torch.set_num_threads(1)
    cake_train.set_num_threads(1)
    yield
    cake_train.set_num_threads(0)


@pytest.fixture(params=MODES)
def mode(request):
    """Each of the two packages."""
    return request.param


def class_of(mode: str, name: str) -> Any:
    """CakeKDA<Mode><name>."""
    return getattr(facade(mode), f"CakeKDA{mode.capitalize()}{name}")


def to_numpy(t: Any) -> Any:
    """A tensor as an array, bf16 as ml_dtypes.bfloat16; anything else as it is."""
    if not isinstance(t, torch.Tensor):
        return t
    t = t.detach().contiguous()
    return t.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if t.dtype == BF16 else t.numpy()


def to_torch(a: np.ndarray) -> torch.Tensor:
    """The reverse."""
    return torch.from_numpy(a.view(np.uint16)).view(BF16) if a.dtype == ml_dtypes.bfloat16 else torch.from_numpy(a)


def nans_like(t: torch.Tensor) -> torch.Tensor:
    """A buffer full of NaN."""
    return torch.full(t.shape, float("nan"), dtype=t.dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("read_only", [False, True])
def test_numpy_is_torch(mode, dtype, read_only):
    x, options = problem(OFFSETS, OPTIONS["softplus"], dtype=dtype, gate_dtype=dtype, past_end=3)
    expected = explicit(mode, x, options)
    arrays = {name: to_numpy(t).copy() for name, t in x.items()}
    dout, d_state = (to_numpy(t).copy() for t in cotangents(expected["out"], expected["final_state"]))
    offsets = to_numpy(options["cu_seqlens"]).copy()
    for a in (*arrays.values(), dout, d_state, offsets):
        a.flags.writeable = not read_only
    rest = {name: value for name, value in options.items() if name != "cu_seqlens"}
    out, saved, state = entry(mode, "forward")(**arrays, cu_seqlens=offsets, **rest, output_final_state=True)
    found = entry(mode, "backward")(**arrays, cu_seqlens=offsets, **rest, dout=dout, d_final_state=d_state, saved=saved)
    names = ["d" + name for name in ORDER if name in x]
    assert all(isinstance(a, np.ndarray) for a in (out, state, *found))
    assert_same_bits({n: to_torch(a) for n, a in zip(["out", "final_state", *names], [out, state, *found])}, expected)


def test_numpy_strides_and_refusals(mode):
    x, options = problem([0, 70], grad=False)
    arrays = {name: t.numpy() for name, t in x.items()}
    offsets = options["cu_seqlens"].numpy()
    expected = entry(mode, "forward")(**arrays, cu_seqlens=offsets, save_for_backward=False)[0]
    wide = {n: np.repeat(a, 2, axis=-1)[..., ::2] if n != "g" else np.asfortranarray(a) for n, a in arrays.items()}
    assert np.array_equal(entry(mode, "forward")(**wide, cu_seqlens=offsets, save_for_backward=False)[0], expected)
    frozen = np.zeros_like(expected)
    frozen.flags.writeable = False
    for bad, error, text in (({"q": arrays["q"].astype(np.float64)}, ValueError, "q: got dtype float64"),
                             ({"v": arrays["v"].tolist()}, TypeError, "v: got a list, expected a torch tensor or"),
                             ({"k": None}, TypeError, "k: got a NoneType"),
                             ({"beta": x["beta"].numpy().astype(bool)}, ValueError, "beta: got dtype bool"),
                             ({"out": frozen}, ValueError, "out: got a read-only array")):
        with pytest.raises(error, match=text):
            entry(mode, "forward")(**(arrays | {"cu_seqlens": offsets} | bad))
    with pytest.raises(TypeError, match="q: got a ndarray, expected a torch.Tensor"):
        entry(mode)(**arrays)
    meta = {name: t.to("meta") for name, t in x.items()}
    with pytest.raises(NotImplementedError, match="q: got a tensor on meta"):
        entry(mode, "forward")(**meta)


@pytest.mark.parametrize("case", ["softplus", "tape"])
def test_callers_buffers(mode, case):
    x, options = problem(OFFSETS, OPTIONS[case], dtype=BF16, past_end=3, grad=False)
    expected = explicit(mode, x, options)
    into = {"out": nans_like(expected["out"]), "final_state": nans_like(expected["final_state"])}
    out, saved, state = entry(mode, "forward")(**x, **options, **into)
    assert out is into["out"] and state is into["final_state"]
    dout, d_state = cotangents(out, state)
    wide = torch.full((*x["q"].shape[:3], 32), float("nan"), dtype=BF16)
    buffers = {name: nans_like(t) for name, t in expected.items() if name[0] == "d"} | {"dq": wide[..., ::2]}
    found = entry(mode, "backward")(**x, **options, dout=dout, d_final_state=d_state, saved=saved, **buffers)
    assert all(a is buffers["d" + name] for a, name in zip(found, [n for n in ORDER if n in x]))
    assert_same_bits(into | buffers, expected)
    assert wide[..., 1::2].isnan().all()
    bad = nans_like(x["k"])[:, 1:]
    with pytest.raises(ValueError, match="dk"):
        entry(mode, "backward")(**x, **options, dout=dout, saved=saved, dk=bad)
    assert bad.isnan().all()


@pytest.mark.parametrize("case", OPTIONS)
def test_recomputing_backward_has_the_same_bits(mode, case):
    x, options = problem(OFFSETS, OPTIONS[case], HV=4, dtype=BF16)
    assert_same_bits(explicit(mode, x, options, keep=False), explicit(mode, x, options))


def test_lengths_are_offsets(mode):
    x, options = problem(OFFSETS, GATE, grad=False)
    expected = explicit(mode, x, options)
    lengths = [b - a for a, b in zip(OFFSETS, OFFSETS[1:])]
    assert_same_bits(explicit(mode, x, options, doc_lengths=lengths), expected)
    alone = {name: value for name, value in options.items() if name != "cu_seqlens"}
    assert_same_bits(explicit(mode, x, alone, doc_lengths=lengths), expected)
    assert torch.equal(entry(mode)(**x, **alone, doc_lengths=lengths), expected["out"])
    for bad, text in (([70, 0, 61, 68], "doc_lengths: they are not the lengths of cu_seqlens"),
                      ([70, 0, -1, 131], "doc_lengths: got .*expected lengths of 0 or more")):
        with pytest.raises(ValueError, match=text):
            entry(mode)(**x, **options, doc_lengths=bad)
    with pytest.raises(ValueError, match="cu_seqlens"):
        entry(mode)(**x, **alone, doc_lengths=[70, 400])


@pytest.mark.parametrize("case", ["softplus", "tape"])
@pytest.mark.parametrize("arena", [{}, {"lean": True}, {"tail_passes": 3}, {"batch_tokens": 64},
                                   {"max_docs_per_batch": 1}, {"tail_passes": 2, "batch_tokens": 140, "lean": True}])
def test_arena_options_change_no_bit(mode, case, arena):
    x, options = problem(OFFSETS, OPTIONS[case])
    expected = explicit(mode, x, options)
    memory = entry(mode, "arena")(**arena)
    for _ in range(2):  # grown, and used again
        assert_same_bits(explicit(mode, x, options, arena=memory), expected)
        assert_same_bits(run(lambda **a: entry(mode)(**a, arena=memory), x, options), expected)
    assert memory.nbytes() > 0
    if arena.get("lean"):
        with pytest.raises(ValueError, match="lean"):
            explicit(mode, x, options, keep=False, arena=memory)


def test_one_workspace_serves_layers_of_all_sizes(mode):
    memory = class_of(mode, "Workspace")()
    assert memory.nbytes() == 0
    for offsets, case, sizes in (([0, 70], "bound", {}), (OFFSETS, "softplus", {"HV": 4, "K": 32}),
                                 ([0, 9], "plain", {"K": 3, "V": 5}), (OFFSETS, "tape", {}), ([0, 70], "bound", {})):
        x, options = problem(offsets, OPTIONS[case], dtype=BF16, **sizes)
        expected = explicit(mode, x, options)
        assert_same_bits(explicit(mode, x, options, workspace=memory), expected)
        assert_same_bits(run(lambda **a: entry(mode)(**a, workspace=memory), x, options), expected)
    with pytest.raises(ValueError, match="arena: got one beside a workspace"):
        explicit(mode, x, options, workspace=memory, arena=entry(mode, "arena")())
    for bad in ({"tail_passes": 0}, {"batch_tokens": -1}, {"max_docs_per_batch": 0}, {"tail_passes": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            entry(mode, "arena")(**bad)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("case", ["plain", "tape", "softplus"])
def test_sized_workspace_serves_and_a_smaller_one_does_not(mode, case, backward):
    x, options = problem(OFFSETS, OPTIONS[case], HV=4, grad=False)
    shape = dict(S=200, num_docs=4, H=2, HV=4, K=16, V=20, gate_param_grads="A_log" in x,
                 save_mode=options.get("save_mode"), backward=backward)
    gates = {n: options[n] for n in ("use_gate_in_kernel", "use_qk_l2norm_in_kernel") if n in options}
    rest = {name: value for name, value in options.items() if name != "save_mode"} | {"save_mode": shape["save_mode"]}
    expected = explicit(mode, x, rest)
    for exact in ({"cu_seqlens": OFFSETS}, {}):
        memory = entry(mode, "workspace")(**shape, **exact, **gates)
        size = entry(mode, "workspace_bytes")(**shape, **exact)
        assert memory.nbytes() == size
        out = entry(mode, "forward")(**x, **rest, workspace=memory)[0]
        assert torch.equal(bits(out), bits(expected["out"]))
        if backward:
            for keep in (True, False):
                assert_same_bits(explicit(mode, x, rest, keep=keep, workspace=memory), expected)
        assert memory.nbytes() == size
    small = entry(mode, "workspace")(**(shape | {"S": 64, "num_docs": 1}), **gates)
    other = entry(mode, "workspace")(**shape, **({"use_qk_l2norm_in_kernel": True} if not gates else {}))
    for memory, error in ((small, MemoryError), (other, ValueError)):
        buffer = nans_like(x["v"])
        with pytest.raises(error, match="workspace"):
            if backward:
                entry(mode, "backward")(**x, **rest, dout=expected["out"], workspace=memory, dv=buffer)
            else:
                entry(mode, "forward")(**x, **rest, workspace=memory, out=buffer)
        assert buffer.isnan().all()
    with pytest.raises(NotImplementedError, match="device: got cuda"):
        entry(mode, "workspace_bytes")(200, 4, 2, "cuda")


@pytest.mark.parametrize("save_mode", [None, "light", "tape"])
def test_saved_bytes_bound_the_saved_set(mode, save_mode):
    x, options = problem(OFFSETS, {}, HV=4, grad=False)
    shape = dict(S=200, num_docs=4, H=2, HV=4, K=16, V=20, save_mode=save_mode)
    _, saved = entry(mode, "forward")(**x, **options, save_mode=save_mode)
    exact, bound = (entry(mode, "saved_bytes")(**shape, **c) for c in ({"cu_seqlens": OFFSETS}, {}))
    assert 0 < saved.nbytes() <= exact <= bound
    assert entry(mode, "forward")(**x, **options, save_for_backward=False)[1] is None
    assert class_of(mode, "Saved")().nbytes() == 0


@pytest.mark.parametrize("case", ["softplus", "tape"])
def test_plan(mode, case):
    x, options = problem(OFFSETS, OPTIONS[case], dtype=BF16, grad=False)
    expected = explicit(mode, x, options)
    dout, d_state = cotangents(expected["out"], expected["final_state"])
    grads = {name: nans_like(t) for name, t in expected.items() if name[0] == "d"}
    results = {"out": nans_like(expected["out"]), "final_state": nans_like(expected["final_state"])}
    plan = entry(mode, "prepare")(**x, **options, **results, dout=dout, d_final_state=d_state, **grads)
    assert all(t.isnan().all() for t in (*results.values(), *grads.values()))
    operands = x | {"cu_seqlens": options["cu_seqlens"]}
    size = plan.nbytes()
    for _ in range(2):
        plan.forward(**operands, **results)
        for _ in range(2):
            plan.backward(**operands, dout=dout, d_final_state=d_state, **grads)
            assert_same_bits(results | grads, expected)
            for t in grads.values():
                t.fill_(float("nan"))
    other, _ = problem(OFFSETS, OPTIONS[case], dtype=BF16, grad=False, seed=5)
    elsewhere = {name: nans_like(t) for name, t in results.items()}
    plan.forward(**other, cu_seqlens=options["cu_seqlens"], **elsewhere)
    assert torch.equal(bits(elsewhere["out"]), bits(explicit(mode, other, options)["out"]))
    assert plan.nbytes() == size > 0
    for bad in ({"q": x["q"].float()}, {"k": x["k"][:, 1:]}, {"cu_seqlens": torch.tensor([0, 70, 80, 131, 200])}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            plan.forward(**(operands | bad), **results)


def test_running_a_plan_allocates_no_tensor(mode):
    x, options = problem([0, 250], {}, K=32, V=32, grad=False)
    out = torch.empty_like(x["v"])
    plan = entry(mode, "prepare")(**x, **options, out=out)
    operands = x | options
    plan.forward(**operands, out=out)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        tracemalloc.start()
        plan.forward(**operands, out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert sum(max(0, event.cpu_memory_usage) for event in profile.key_averages()) == 0
    assert peak < out.nbytes


@pytest.mark.parametrize("case", ["softplus", "bound", "tape"])
def test_det_bits_over_threads_and_repeats(case):
    x, options = problem([0, 300, 300, 310], OPTIONS[case], HV=4, dtype=BF16)
    expected = run(entry("det"), x, options)
    for threads in (1, 2, 3, 2):
        cake_train.set_num_threads(threads)
        assert cake_train.get_num_threads() == threads
        assert_same_bits(run(entry("det"), x, options), expected)


@pytest.mark.parametrize("case", ["softplus", "plain"])
def test_det_bits_of_documents_do_not_depend_on_packing(case):
    x, options = problem(OFFSETS, OPTIONS[case], HV=4, dtype=BF16, past_end=6)
    packed = run(entry("det"), x, options)
    weights = cotangents(packed["out"], packed["final_state"])
    for n, (a, b) in enumerate(zip(OFFSETS, OFFSETS[1:])):
        alone = {name: (t[n:n + 1] if name == "initial_state" else t if name in ("A_log", "dt_bias") else t[:, a:b])
                 .detach().clone().requires_grad_() for name, t in x.items()}
        rest = {name: value for name, value in options.items() if name != "cu_seqlens"}
        out, state = entry("det")(**alone, **rest, output_final_state=True)
        found = torch.autograd.grad([out, state], list(alone.values()), [weights[0][:, a:b], weights[1][n:n + 1]])
        got = {"out": out, "final_state": state} | {"d" + name: t for name, t in zip(alone, found)}
        for name in ("dA_log", "ddt_bias"):  # sums over documents
            got.pop(name, None)
        assert_same_bits(got, {name: packed[name][n:n + 1] if "state" in name else packed[name][:, a:b]
                               for name in got})
    assert not packed["out"][:, 200:].any() and not packed["dq"][:, 200:].any()


@st.composite
def calls(draw):
    """A problem, its options and its scratch memory."""
    lengths = draw(st.lists(st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 90]), min_size=1, max_size=4))
    offsets = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    H = draw(st.integers(1, 2))
    options: dict[str, Any] = {}
    for name in ("use_gate_in_kernel", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel"):
        if draw(st.booleans()):
            options[name] = True
    if options.get("use_gate_in_kernel"):
        options["no_dt_bias"] = draw(st.booleans())
        if draw(st.booleans()):
            options |= {"lower_bound": -draw(st.floats(0.5, 5)), "no_A_log": draw(st.booleans())}
    if options.get("use_beta_sigmoid_in_kernel"):
        options["allow_neg_eigval"] = draw(st.booleans())
    options["scale"] = draw(st.none() | st.floats(0.1, 2))
    options["save_mode"] = draw(st.sampled_from([None, "light", "tape"]))
    x, options = problem(offsets, options, H=H, HV=H * draw(st.integers(1, 2)), K=draw(st.integers(1, 33)),
                         V=draw(st.integers(1, 33)), past_end=draw(st.sampled_from([0, 1, 20])),
                         dtype=draw(st.sampled_from([FP32, BF16, FP16])), state=draw(st.booleans()),
                         seed=draw(st.integers(0, 99)))
    arena = {"tail_passes": draw(st.integers(1, 3)), "lean": draw(st.booleans()),
             "batch_tokens": draw(st.none() | st.integers(1, 200)),
             "max_docs_per_batch": draw(st.none() | st.integers(1, 3))}
    broken = draw(st.sampled_from([None, None, None, "offsets", "shape", "dtype", "heads", "lower_bound", "state"]))
    return x, options, arena, broken


@settings(max_examples=150, deadline=None, print_blob=True, derandomize=False,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(call=calls())
def test_any_call_works_or_is_refused(mode, call):
    x, options, arena, broken = call
    if broken is None:
        expected = explicit(mode, x, options)
        assert all(bool(t.isfinite().all()) for t in expected.values())
        assert_same_bits(run(entry(mode), x, options), expected)
        assert_same_bits(explicit(mode, x, options, arena=entry(mode, "arena")(**arena)), expected)
        return
    bad, rest = {name: t.detach() for name, t in x.items()}, dict(options)
    if broken == "offsets":
        rest["cu_seqlens"] = rest["cu_seqlens"] + 1
    elif broken == "shape":
        bad["k"] = torch.cat([bad["k"]] * 2, -1)
    elif broken == "dtype":
        bad["v"] = bad["v"].double()
    elif broken == "heads":
        bad["v"] = bad["v"][:, :, :0]
    elif broken == "lower_bound":
        rest["lower_bound"] = 1.0
    else:
        bad["initial_state"] = torch.zeros(1, 1, 1)
    for call_it in (entry(mode), entry(mode, "forward")):
        with pytest.raises((ValueError, TypeError)):
            call_it(**bad, **rest)
