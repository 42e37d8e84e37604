"""The references of `kda_torch`: the recurrence against finite differences, the chunked form against the recurrence."""
import pytest
import torch
from kda_torch import chunked_kda, recurrent_kda, relative_rms

F64 = torch.float64
ACTIVATED = {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True,
             "allow_neg_eigval": True}


def make(offsets, options=None, *, B=1, H=1, HV=2, K=5, V=4, rows_past_end=0, dtype=F64, gate=1.0, seed=0):
    """Operands by name, leaves of autograd, and the keyword arguments that go with them."""
    options = dict(options or {})
    random = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, dtype=F64)
    T = offsets[-1] + rows_past_end
    N = B if B > 1 else len(offsets) - 1
    x = {"q": normal(B, T, H, K), "k": normal(B, T, H, K), "v": normal(B, T, HV, V), "g": gate * normal(B, T, HV, K),
         "beta": normal(B, T, HV), "initial_state": normal(N, HV, K, V)}
    if options.get("use_gate_in_kernel"):
        x["A_log"], x["dt_bias"] = 0.5 * normal(HV), normal(HV * K)
    else:
        x["g"] = -x["g"].abs()
    if not options.get("use_qk_l2norm_in_kernel"):
        x["k"] = torch.nn.functional.normalize(x["k"], dim=-1)
    if not options.get("use_beta_sigmoid_in_kernel"):
        x["beta"] = x["beta"].sigmoid()
    x = {name: t.to(dtype).requires_grad_() for name, t in x.items()}
    if B == 1:
        options["cu_seqlens"] = torch.tensor(offsets)
    return x, options


def loss(function, x, options, weights=None):
    """A random linear functional of out and final state, and the results."""
    out, state = function(**x, **options, output_final_state=True)
    if weights is None:
        random = torch.Generator().manual_seed(7)
        weights = [torch.randn(t.shape, generator=random, dtype=F64) for t in (out, state)]
    return sum((w * t.double()).sum() for w, t in zip(weights, (out, state))), (out, state)


def results(function, x, options):
    """out, final state and all gradients by name."""
    total, (out, state) = loss(function, x, options)
    grads = torch.autograd.grad(total, list(x.values()))
    return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(x, grads)}


@pytest.mark.parametrize("options", [{}, ACTIVATED, ACTIVATED | {"lower_bound": -5.0}, {"scale": 0.3}],
                         ids=["plain", "softplus", "bound", "scale"])
def test_gradients_are_directional_finite_differences(options):
    x, options = make([0, 3, 3, 10], options, rows_past_end=2)
    total, _ = loss(recurrent_kda, x, options)
    grads = dict(zip(x, torch.autograd.grad(total, list(x.values()))))
    random = torch.Generator().manual_seed(1)
    for name, t in x.items():
        direction = torch.randn(t.shape, generator=random, dtype=F64)

        def at(step, name=name, direction=direction):
            with torch.no_grad():
                return loss(recurrent_kda, x | {name: x[name] + step * direction}, options)[0].item()
        h = 1e-4
        # Two central differences, extrapolated: the error is of fourth order in h.
        slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        expected = (grads[name] * direction).sum().item()
        assert abs(slope - expected) <= 1e-8 * max(1.0, abs(expected)), name


def test_one_token_by_hand():
    x, options = make([0, 1], {"scale": 2.0}, H=1, HV=1, K=2, V=1)
    with torch.no_grad():
        for name, value in (("q", [1.0, 2.0]), ("k", [0.6, 0.8]), ("v", [5.0]), ("g", [-1.0, -2.0]), ("beta", [0.5]),
                            ("initial_state", [3.0, 4.0])):
            x[name].copy_(torch.tensor(value, dtype=F64).reshape(x[name].shape))
    out, state = recurrent_kda(**x, **options, output_final_state=True)
    decayed = torch.tensor([3.0, 4.0], dtype=F64) * torch.exp(torch.tensor([-1.0, -2.0], dtype=F64))
    r = 0.5 * (5.0 - (0.6 * decayed[0] + 0.8 * decayed[1]))
    after = decayed + torch.tensor([0.6, 0.8], dtype=F64) * r
    assert torch.allclose(state.flatten(), after, rtol=1e-14)
    assert torch.allclose(out.flatten(), 2.0 * (after[0] + 2.0 * after[1]), rtol=1e-14)


def test_rows_past_the_last_offset_and_empty_documents():
    x, options = make([0, 0, 5, 5], rows_past_end=3)
    for name in ("q", "k", "v", "g", "beta"):
        x[name].data[:, 5:] = float("nan")
    r = results(recurrent_kda, x, options)
    assert torch.equal(r["out"][:, 5:], torch.zeros_like(r["out"][:, 5:]))
    assert torch.equal(r["final_state"][[0, 2]], x["initial_state"].detach()[[0, 2]])
    for name in ("dq", "dk", "dv", "dg", "dbeta"):
        assert torch.equal(r[name][:, 5:], torch.zeros_like(r[name][:, 5:])), name
        assert torch.isfinite(r[name]).all()


def test_a_pack_is_its_documents_and_a_batch_its_rows():
    x, options = make([0, 6, 12], ACTIVATED)
    packed = results(recurrent_kda, x, options)
    batch = {n: t.detach().reshape(2, 6, *t.shape[2:]).requires_grad_() if n in ("q", "k", "v", "g", "beta") else t
             for n, t in x.items()}
    del options["cu_seqlens"]
    for function in (recurrent_kda, chunked_kda):
        out, state = function(**batch, **options, output_final_state=True)
        assert relative_rms(out.reshape(packed["out"].shape), packed["out"]) < 1e-13
        assert relative_rms(state, packed["final_state"]) < 1e-13


CASES = {
    "plain": ([0, 100, 100, 101, 290], {}, {}),
    "activated": ([0, 64, 128, 200], ACTIVATED, {}),
    "bound": ([0, 130], ACTIVATED | {"lower_bound": -5.0}, {"H": 2, "HV": 6}),
    "batch": ([0, 150], {"scale": 1.0}, {"B": 3}),
    "strong": ([0, 200], {}, {"gate": 30.0}),
    "wide": ([0, 70], {}, {"K": 33, "V": 70}),
}


@pytest.mark.parametrize("bounded", [False, True], ids=["any", "bounded"])
@pytest.mark.parametrize("case", CASES)
def test_chunked_is_the_recurrence(case, bounded):
    offsets, options, sizes = CASES[case]
    x, options = make(offsets, options, rows_past_end=0 if "B" in sizes else 3, **sizes)
    if bounded:
        if options.get("use_gate_in_kernel") and options.get("lower_bound") is None:
            x["dt_bias"].data -= 6.0
        x["g"].data.clamp_(min=-5.0)
    expected = results(recurrent_kda, x, options)
    got = results(chunked_kda, x, options | {"bounded_gate": bounded})
    assert set(got) == set(expected)
    for name, value in got.items():
        assert relative_rms(value, expected[name]) < 1e-11, name


def test_chunked_with_holes():
    x, options = make([0, 40, 170], seed=3)
    random = torch.Generator().manual_seed(4)
    x["g"].data[torch.rand(x["g"].shape, generator=random) < 0.4] = -1000.0
    expected, got = (results(f, x, options) for f in (recurrent_kda, chunked_kda))
    for name, value in got.items():
        # dg of a hole is 0 up to what the running sums of up to 64 000 lose.
        assert relative_rms(value, expected[name]) < 1e-9, name


def test_chunked_in_float32_and_bfloat16():
    x, options = make([0, 100, 230], ACTIVATED, K=32, V=32, dtype=torch.float32)
    expected, got = (results(f, x, options) for f in (recurrent_kda, chunked_kda))
    for name, value in got.items():
        assert value.dtype == torch.float32
        assert relative_rms(value, expected[name]) < 2e-5, name
    low = {n: x[n].detach().bfloat16().requires_grad_() if n in ("q", "k", "v", "beta") else x[n] for n in x}
    expected, got = (results(f, low, options) for f in (recurrent_kda, chunked_kda))
    for name, value in got.items():
        assert relative_rms(value, expected[name]) < 5e-3, name


def test_the_recurrence_in_float32():
    x, options = make([0, 40], K=16, V=16, dtype=torch.float32)
    exact, single = (results(recurrent_kda, x, options | {"dtype": d}) for d in (F64, torch.float32))
    for name, value in single.items():
        assert relative_rms(value, exact[name]) < 1e-5, name


def test_relative_rms():
    zero, one = torch.zeros(3), torch.ones(3)
    assert relative_rms(zero, zero) == 0.0
    assert relative_rms(one, zero) == float("inf")
    assert relative_rms(zero, one) == 1.0
    assert not relative_rms(float("nan") * one, one) < 1.0
    assert not relative_rms(float("nan") * one, zero) < 1.0


def test_chunked_refuses():
    x, options = make([0, 4])
    with pytest.raises(ValueError, match="heads"):
        chunked_kda(**(x | {"v": x["v"][:, :, :1], "q": x["q"].expand(-1, -1, 2, -1)}), **options)
    with pytest.raises(ValueError, match="A_log"):
        chunked_kda(**x, **options, use_gate_in_kernel=True)
    two = {n: t.expand(2, *t.shape[1:]) for n, t in x.items()}
    with pytest.raises(ValueError, match="cu_seqlens"):
        chunked_kda(**two, **options)
