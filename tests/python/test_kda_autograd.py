"""The autograd entries of the KDA packages: gradients against a float64 recurrence, and what torch does around them."""

from __future__ import annotations

import gc
import io
import shutil
from typing import Any

import pytest
import torch
from kda_support import GATE, MODES, OPTIONS, assert_same_bits, bits, cotangents, entry, explicit, facade, problem, run
from kda_torch import document_parts, recurrent_kda, relative_rms
from torch.utils.checkpoint import checkpoint

import cake_train

OFFSETS = [0, 70, 70, 131, 200]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Relative errors per document and head: the family's limits for bf16, those of its finer rounding for fp16 (3 bits
# more, of which 2 are asked for), and a tenth of the common limit for fp32.
LIMITS = {"out": 5e-3, "final_state": 5e-3, "dq": 8e-3, "dk": 8e-3, "dv": 8e-3, "dinitial_state": 8e-3, "dg": 1e-2,
          "dbeta": 1e-2, "dA_log": 3e-3, "ddt_bias": 3e-3}
OPERATORS = torch.ops.cake_train


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


def limit(name: str, dtype: torch.dtype) -> float:
    """The largest relative error that a result may have."""
    return {BF16: LIMITS[name], FP16: LIMITS[name] / 4, FP32: 2e-6}[dtype]


def without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """The options without these."""
    return {name: value for name, value in options.items() if name not in names}


def parameter_scale(name: str, x: dict[str, torch.Tensor], dg: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """sqrt of the sum of the squared terms that a parameter gradient adds up, per head.

    dg and its rounding is that of the channels of a row together, so over channels the terms are added by their sizes.
    """
    HV, K = x["g"].shape[-2:]
    raw = x["g"].double() + (x["dt_bias"].double().reshape(HV, K) if "dt_bias" in x else 0)
    dg = dg[:, :options["cu_seqlens"][-1]].double().detach()
    if name == "ddt_bias":
        return dg.square().sum((0, 1, 3)).sqrt()
    raw = raw[:, :dg.shape[1]]  # d exp(A_log) softplus(x) / dA_log over d / dx; with a bound, x itself
    terms = dg * (raw if "lower_bound" in options else torch.nn.functional.softplus(raw) / raw.sigmoid())
    return terms.abs().sum(3).square().sum((0, 1)).sqrt().detach()


def check(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], x: dict[str, torch.Tensor],
          options: dict[str, Any], dtype: torch.dtype) -> None:
    """Every result is within its limit of the reference: per document and head, parameter gradients per head."""
    assert got.keys() == expected.keys()
    offsets = options["cu_seqlens"].tolist()
    for name, result in got.items():
        reference = expected[name]
        assert result.dtype == ({"out": dtype, "final_state": FP32}.get(name) or x[name[1:]].dtype), name
        if name in ("dA_log", "ddt_bias"):
            HV = x["v"].shape[2]
            error, size = ((y.double() - z).reshape(HV, -1).norm(dim=1)
                           for y, z in ((result, reference.double()), (reference, 0.0)))
            terms = parameter_scale(name, x, expected["dg"], options)  # larger than the sum where that one cancels
            assert (error <= limit(name, dtype) * torch.maximum(size, terms)).all(), name
            continue
        rows = name not in ("final_state", "dinitial_state")
        for a, b in zip(*(document_parts(y, offsets) if rows else list(y[:, None]) for y in (result, reference))):
            for head in range(result.shape[2] if rows else result.shape[1]):
                a_head, b_head = (a[:, :, head], b[:, :, head]) if rows else (a[:, head], b[:, head])
                assert relative_rms(a_head, b_head) <= limit(name, dtype), (name, head)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("case", OPTIONS)
def test_gradients_are_those_of_the_recurrence(mode, case, dtype):
    raw = OPTIONS[case].get("use_gate_in_kernel")
    x, options = problem(OFFSETS, OPTIONS[case], HV=4, past_end=5, dtype=dtype, gate_dtype=dtype if raw else FP32)
    check(run(entry(mode), x, options), run(recurrent_kda, x, without(options, "save_mode")), x, options, dtype)


def test_unpacked_rows_and_fp32_beta(mode):
    x, options = problem([0, 90], GATE, B=2, dtype=BF16)
    x["beta"] = x["beta"].detach().float().requires_grad_()
    got, expected = run(entry(mode), x, options), run(recurrent_kda, x, options)
    for name in got:
        assert relative_rms(got[name], expected[name]) <= limit(name, BF16), name
    assert got["dbeta"].dtype == FP32


@pytest.mark.parametrize("case", ["plain", "softplus", "bound"])
def test_gradients_are_directional_finite_differences(mode, case):
    x, options = problem([0, 40, 75], OPTIONS[case])
    got = run(entry(mode), x, options)
    random = torch.Generator().manual_seed(3)
    weights = cotangents(got["out"], got["final_state"])
    for name, t in x.items():
        direction = torch.randn(t.shape, generator=random).double()

        def at(step, name=name, direction=direction):
            moved = {n: y.detach().double() for n, y in x.items()}
            moved[name] = moved[name] + step * direction
            return sum((w.double() * y).sum() for w, y in
                       zip(weights, recurrent_kda(**moved, **options, output_final_state=True))).item()
        h = 1e-4
        slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        d = got["d" + name].double()
        # Cauchy-Schwarz: what a relative error of 2e-6 of the gradient can make of it.
        assert abs(slope - (d * direction).sum().item()) <= 2e-6 * d.norm().item() * direction.norm().item(), name


def operator_arguments(x, options, *, save=True, output_final_state=True):
    """The forward operator's arguments."""
    gates = [options.get(name, False) for name in ("use_gate_in_kernel", "use_qk_l2norm_in_kernel",
                                                   "use_beta_sigmoid_in_kernel", "allow_neg_eigval")]
    tensors = [x[name] for name in ("q", "k", "v", "g", "beta")] + [options.get("cu_seqlens")]
    tensors += [x.get(name) for name in ("initial_state", "A_log", "dt_bias")]
    numbers = [options.get("scale"), options.get("lower_bound"), *gates, options.get("save_mode") == "tape", 0, 0]
    return [*tensors, *numbers], [save, output_final_state]


@pytest.mark.parametrize("case", ["plain", "softplus", "bound_alone", "tape"])
def test_opcheck(mode, case):
    x, options = problem([0, 70, 70, 101], OPTIONS[case], K=9, V=7, H=1, past_end=3, state=case != "tape")
    common, tail = operator_arguments(x, options)
    forward, backward = (getattr(OPERATORS, f"cake_kda_{mode}" + end).default for end in ("", "_backward"))
    torch.library.opcheck(forward, (*common, *tail))
    common = [t.detach() if isinstance(t, torch.Tensor) else t for t in common]
    out, state, saved = forward(*common, *tail)
    wanted = sum(1 << n for n, t in enumerate(common[:9]) if t is not None and n != 5)
    for dout, bit_set in ((torch.ones_like(out), wanted), (torch.ones(()).expand(out.shape), 0b10101)):
        torch.library.opcheck(backward, (dout, torch.ones_like(state), saved, *common, bit_set))
    torch.library.opcheck(forward, (*common, False, False))


@pytest.mark.parametrize("case", ["plain", "tape"])
def test_saved_tensor_depends_on_no_uninitialised_memory(mode, case):
    x, options = problem([0, 70, 70, 101], OPTIONS[case], past_end=3, grad=False)
    entry(mode)(**x, **options)  # makes the operators
    common, tail = operator_arguments(x, options)
    forward = getattr(OPERATORS, f"cake_kda_{mode}")
    plain = forward(*common, *tail)[2]
    torch.use_deterministic_algorithms(True)  # torch.empty then fills what it returns
    try:
        filled = forward(*common, *tail)[2]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(plain, filled)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", ["plain", "softplus"])
def test_compile(mode, case, dynamic):
    torch._dynamo.reset()
    function, traces = entry(mode), []

    def layer(q, **rest):
        out, state = function(q * 1.5, **rest)
        return out.sin(), state * 2

    def backend(graph, inputs):
        traces.append(graph)
        return aot_eager(graph, inputs)
    aot_eager = torch._dynamo.lookup_backend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    for offsets in ([0, 70, 131], [0, 20, 97]):
        x, options = problem(offsets, OPTIONS[case])
        assert_same_bits(run(compiled, x, options), run(layer, x, options))
    assert len(traces) == (1 if dynamic else 2)


def test_compile_with_scratch_memory_and_lengths(mode):
    torch._dynamo.reset()
    function = entry(mode)
    x, options = problem([0, 70, 131], GATE)
    expected = run(function, x, options)
    small = entry(mode, "workspace")(8, 1, 1, K=4, V=4, use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True)
    for extra in ({"workspace": getattr(facade(mode), f"CakeKDA{mode.capitalize()}Workspace")()},
                  {"arena": entry(mode, "arena")(tail_passes=2)}, {"doc_lengths": [70, 61]}):
        rest = without(options, "cu_seqlens") if "doc_lengths" in extra else options
        compiled = torch.compile(lambda extra=extra, **a: function(**a, **extra), fullgraph=True, backend="aot_eager")
        assert_same_bits(run(compiled, x, rest), expected)
    compiled = torch.compile(lambda **a: function(**a, workspace=small), fullgraph=True, backend="aot_eager")
    with pytest.raises(MemoryError, match="workspace"):
        run(compiled, x, options)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compile_with_inductor():
    torch._dynamo.reset()
    function = entry("det")
    x, options = problem([0, 70], GATE)
    compiled = torch.compile(lambda q, **rest: function(q * 1.5, **rest), fullgraph=True)
    assert_same_bits(run(compiled, x, options), run(lambda q, **rest: function(q * 1.5, **rest), x, options))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(mode, use_reentrant):
    x, options = problem([0, 70, 131], GATE, dtype=BF16)
    expected = run(entry(mode), x, options)
    arguments = x | options
    out, state = checkpoint(lambda *a: entry(mode)(**dict(zip(arguments, a)), output_final_state=True),
                            *arguments.values(), use_reentrant=use_reentrant)
    torch.autograd.backward([out, state], cotangents(out, state))
    assert_same_bits({"d" + name: t.grad for name, t in x.items()},
                     {name: t for name, t in expected.items() if name[1:] in x})


def test_retained_graph_runs_again_and_has_no_second_derivative(mode):
    x, options = problem([0, 70], GATE)
    out = entry(mode)(**x, **options)
    first, again, graph = (torch.autograd.grad(out.sum(), list(x.values()), retain_graph=True, create_graph=create)
                           for create in (False, False, True))
    for a, b, c in zip(first, again, graph):
        assert torch.equal(bits(a), bits(b)) and torch.equal(bits(a), bits(c))
    with pytest.raises(NotImplementedError, match=f"cake_kda_{mode} has no second derivative"):
        torch.autograd.grad(graph[0].sum(), x["q"])


def test_autocast_leaves_operands_alone(mode):
    x, options = problem([0, 70], GATE)
    expected = run(entry(mode), x, options)
    with torch.autocast("cpu", dtype=BF16):
        assert_same_bits(run(entry(mode), x, options), expected)


def test_vmap_is_refused(mode):
    x, options = problem([0, 70], grad=False)
    for grad in (False, True):
        q = x["q"].clone().requires_grad_(grad)
        with pytest.raises(NotImplementedError, match=f"cake_kda_{mode} does not run under torch.vmap: .*cu_seqlens"):
            torch.vmap(lambda q: entry(mode)(**(x | {"q": q}), **options))(q[None])


def test_expanded_and_strided_cotangents(mode):
    x, options = problem([0, 70, 131], GATE, dtype=BF16)
    out, state = entry(mode)(**x, **options, output_final_state=True)
    dout, d_state = cotangents(out, state)
    for strided in (torch.ones((), dtype=BF16).expand(out.shape), dout[:, :1].expand(out.shape),
                    dout.transpose(1, 3).contiguous().transpose(1, 3), dout.repeat(1, 1, 1, 2)[..., ::2]):
        assert not strided.is_contiguous()
        pairs = [torch.autograd.grad([out, state], list(x.values()), [t, s], retain_graph=True)
                 for t, s in ((strided, d_state.transpose(2, 3).contiguous().transpose(2, 3)),
                              (strided.contiguous(), d_state))]
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(*pairs))


def test_strided_and_expanded_operands(mode):
    x, options = problem([0, 70, 131], GATE | {"lower_bound": -5.0}, dtype=BF16, gate_dtype=BF16, grad=False)
    qkv = torch.cat([x["q"], x["k"], x["v"]], -1)
    views = dict(x, q=qkv[..., :16], k=qkv[..., 16:32], v=qkv[..., 32:], A_log=x["A_log"][:1].expand(2),
                 g=x["g"].transpose(1, 2).contiguous().transpose(1, 2), beta=x["beta"].repeat(1, 1, 2)[..., ::2],
                 initial_state=x["initial_state"].transpose(2, 3).contiguous().transpose(2, 3))
    assert not any(views[name].is_contiguous() for name in ("q", "k", "v", "g", "beta", "initial_state", "A_log"))
    got, expected = ({name: t.detach().requires_grad_() for name, t in y.items()}
                     for y in (views, {name: t.contiguous() for name, t in views.items()}))
    assert_same_bits(run(entry(mode), got, options), run(entry(mode), expected, options))


def moved(t: torch.Tensor) -> torch.Tensor:
    """A copy that starts at no multiple of 64 bytes."""
    memory = torch.empty(t.numel() * t.element_size() + 72, dtype=torch.uint8)[8:]
    copy = memory[:t.numel() * t.element_size()].view(t.dtype).reshape(t.shape)
    return copy.copy_(t)


def stored(t: torch.Tensor) -> bytes:
    """A tensor as a file."""
    file = io.BytesIO()
    torch.save(t, file)
    return file.getvalue()


@pytest.mark.parametrize("case", ["softplus", "tape"])
def test_saved_tensors_may_be_moved(mode, case):
    x, options = problem([0, 70, 131], OPTIONS[case])
    expected = run(entry(mode), x, options)
    for pack, unpack in ((torch.clone, lambda t: t), (moved, lambda t: t),
                         (stored, lambda data: torch.load(io.BytesIO(data)))):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            assert_same_bits(run(entry(mode), x, options), expected)
    with torch.autograd.graph.save_on_cpu():
        assert_same_bits(run(entry(mode), x, options), expected)


@pytest.mark.parametrize("shape", ["no_rows", "no_batch", "empty_documents", "no_documents"])
def test_empty_problems_stay_connected(mode, shape):
    offsets, B = {"empty_documents": ([0, 0, 0], 1), "no_documents": ([0], 1), "no_rows": ([0, 0], 2),
                  "no_batch": ([0, 9], 2)}[shape]
    x, options = problem(offsets, GATE, B=B)
    if shape == "no_batch":
        x = {n: t if n in ("A_log", "dt_bias") else t.detach()[:0].requires_grad_() for n, t in x.items()}
    got = run(entry(mode), x, options)
    assert all(got["d" + name].shape == t.shape for name, t in x.items())
    assert got["out"].numel() == 0 and torch.equal(got["final_state"], x["initial_state"])
    assert not got["dA_log"].any() and not got["ddt_bias"].any()
    assert torch.equal(got["dinitial_state"], cotangents(got["out"], got["final_state"])[1])


@pytest.mark.parametrize("names", [("q",), ("g",), ("dt_bias",), ("A_log",), ("initial_state",), ("k", "beta"), ("v",)])
def test_some_operands_require_gradients(mode, names):
    x, options = problem([0, 70], GATE)
    expected = run(entry(mode), x, options)
    some = {name: t.detach().requires_grad_(name in names) for name, t in x.items()}
    got = run(entry(mode), some, options)
    assert_same_bits(got, {n: t for n, t in expected.items() if n in got})
    assert set(got) == {"out", "final_state"} | {"d" + name for name in names}


def test_gradients_through_one_of_two_results(mode):
    x, options = problem([0, 70], GATE)
    out, state = entry(mode)(**x, **options, output_final_state=True)
    dout, d_state = cotangents(out, state)
    for result, weight, pair in ((out, dout, (dout, d_state * 0)), (state, d_state, (dout * 0, d_state))):
        got, expected = (torch.autograd.grad(r, list(x.values()), w, retain_graph=True)
                         for r, w in ((result, weight), ((out, state), pair)))
        assert all(torch.equal(a, b) for a, b in zip(got, expected))
    leaf = entry(mode)(**x, **options)
    assert torch.equal(bits(leaf), bits(out))


def test_out_is_for_calls_without_gradients(mode):
    x, options = problem([0, 70], GATE)
    expected = entry(mode)(**x, **options).detach()
    buffer = torch.full(expected.shape, float("nan"))
    with pytest.raises(ValueError, match="out: it cannot be given when an operand requires a gradient"):
        entry(mode)(**x, **options, out=buffer)
    assert buffer.isnan().all()
    with torch.no_grad():
        assert entry(mode)(**x, **options, out=buffer) is buffer
    assert torch.equal(buffer, expected)
    plain = {name: t.detach() for name, t in x.items()}
    wide = torch.full((*expected.shape[:3], 40), float("nan"))
    result = entry(mode)(**plain, **options, out=wide[..., ::2])
    assert torch.equal(result, expected) and wide[..., 1::2].isnan().all()
    for bad in (buffer[:, 1:], buffer.double(), buffer.bfloat16()):
        with pytest.raises(ValueError, match="out"):
            entry(mode)(**plain, **options, out=bad)
    assert not entry(mode)(**plain, **options).requires_grad


def test_workspace_may_die_before_the_backward(mode):
    x, options = problem([0, 70, 131], GATE)
    expected = run(entry(mode), x, options)
    for scratch in ({"workspace": getattr(facade(mode), f"CakeKDA{mode.capitalize()}Workspace")()},
                    {"arena": entry(mode, "arena")(lean=True, tail_passes=2, batch_tokens=64)}):
        out, state = entry(mode)(**x, **options, **scratch, output_final_state=True)
        scratch.clear()
        gc.collect()
        found = torch.autograd.grad([out, state], list(x.values()), cotangents(out, state))
        assert_same_bits({"d" + name: t for name, t in zip(x, found)}, {"d" + name: expected["d" + name] for name in x})


def test_autograd_is_the_explicit_backward(mode):
    x, options = problem(OFFSETS, OPTIONS["softplus"], dtype=BF16, past_end=4)
    expected = run(entry(mode), x, options)
    got = explicit(mode, x, options)
    assert_same_bits({name: got[name] for name in expected}, expected)
