"""`cake_train.compat`: chunk_kda on flash-linear-attention's own cases, its options, and its errors.

Tables: the other project's cases with its data and options, against the recurrence in float64 and within this
project's limits. Where its sizes would take the recurrence over 3 s on one core, or the operator gigabytes, they are
smaller here and `peer` holds the others.
"""
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compat_fla_cases import BF16, FP16, FP32, LIMITS, Case, compat_options, judge, make_problem, results
from kda_torch import relative_rms

import cake_train
from cake_train.testing import mode_names

MODES = ("det", "nondet")


def compat(mode):
    """The function of a mode."""
    return importlib.import_module(f"cake_train.compat.fla_{mode}").chunk_kda


@pytest.fixture(params=MODES)
def chunk_kda(request):
    """The function of each mode."""
    return compat(request.param)


NAIVE_CHUNK = [
    Case(1, 64, 1, 1, 64, FP32, 1.0),
    Case(2, 512, 3, 3, 60, FP32, 1.0),
    Case(2, 256, 4, 4, 128, FP32, 0.1, peer="B4 T1024"),
    Case(2, 256, 4, 4, 128, FP32, 1.0, 10.0, peer="B4 T1024"),
    Case(1, 64, 1, 2, 64, FP32, 1.0),
    Case(2, 512, 2, 4, 60, FP32, 1.0),
]
CHUNK = [
    Case(1, 63, 1, 1, 64, FP16, 1.0, safe_gate=True),
    Case(2, 500, 3, 3, 60, FP16, 1.0, safe_gate=True, keep=True),
    Case(2, 1000, 3, 3, 64, FP16, 0.1, mask_p=0.5, keep=True),
    Case(3, 320, 4, 4, 100, FP16, 1.0, 0.1, peer="T1024"),
    Case(2, 256, 4, 4, 128, FP16, 0.1, safe_gate=True, keep=True, peer="B4 T1024"),
    Case(2, 256, 4, 4, 128, FP16, 0.1, l2norm=True, safe_gate=True, peer="B4 T1024"),
    Case(2, 300, 4, 4, 128, FP16, 0.1, 10.0, gate=True, keep=True, peer="T1500"),
    Case(2, 512, 4, 4, 64, FP16, 0.1, gate=True, safe_gate=True, keep=True, peer="B4 T2048 H8 HV8"),
    Case(2, 1024, 2, 4, 64, FP16, 0.1),
    Case(2, 1024, 2, 8, 64, FP16, 0.1, gate=True),
    Case(2, 256, 2, 4, 128, FP16, 0.1, l2norm=True, gate=True, peer="T1024 H4 HV8"),
    Case(2, 160, 2, 4, 64, FP16, 0.1, gate=True, safe_gate=True, keep=True, chunk_size=32),
    Case(2, 1024, 2, 4, 64, BF16, 0.1, l2norm=True, gate=True, safe_gate=True),
    Case(2, 1024, 2, 4, 64, BF16, 0.1, gate=True),
    Case(2, 160, 2, 4, 64, BF16, 0.1, gate=True, safe_gate=True, keep=True, chunk_size=32),
    Case(2, 256, 2, 8, 128, BF16, 0.1, l2norm=True, gate=True, peer="T1024"),
]
VARLEN = [
    Case(1, 15, 4, 4, 60, FP16, offsets=(0, 15), holes_p=0.1, gate=True, uniform=False),
    Case(1, 1000, 4, 4, 64, FP16, offsets=(0, 256, 500, 1000), holes_p=0.9, gate=True, uniform=False),
    Case(1, 1000, 4, 4, 128, FP16, offsets=(0, 256, 500, 1000), mask_p=0.5, holes_p=0.5, uniform=False),
    Case(1, 2000, 2, 2, 100, FP16, offsets=(0, 15, 100, 300, 1200, 2000), gate=True, uniform=False, peer="H4"),
    Case(1, 1000, 1, 1, 256, FP16, offsets=(0, 100, 300, 500, 820, 1000), safe_gate=True, keep=True, uniform=False,
         peer="H4 [0, 100, 300, 1200, 3000, 4096]"),
    Case(1, 160, 4, 4, 60, FP16, offsets=(0, 31, 96, 160), holes_p=0.1, gate=True, keep=True, chunk_size=32,
         uniform=False),
]
STATE_V_FIRST = [
    Case(1, 63, 1, 1, 64, FP16, 1.0),
    Case(2, 500, 3, 3, 60, FP16, 1.0),
    Case(3, 320, 4, 4, 128, FP16, 0.1, peer="T1024"),
    Case(2, 512, 8, 8, 64, FP16, 0.1, peer="B4 T2048"),
]
BETA = [
    Case(1, 300, 2, 2, 128, BF16, beta="logit", peer="T8192 H96"),
    Case(1, 300, 2, 2, 128, BF16, beta="doubled", peer="T8192 H96"),
    Case(2, 96, 2, 2, 64, FP16, beta="doubled"),
]
SMALL = Case(1, 80, 1, 2, 16, FP32, offsets=(0, 30, 80), uniform=False)


# The mode varies fastest: both modes meet one run of the recurrence.
@pytest.mark.parametrize("case", NAIVE_CHUNK + CHUNK + VARLEN + BETA, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_case(case, mode):
    judge(case, results(compat(mode), make_problem(case), **compat_options(case)))


@pytest.mark.parametrize("case", STATE_V_FIRST, ids=str)
def test_state_v_first(case, chunk_kda):
    problem = make_problem(case)
    k_first = results(chunk_kda, problem)
    problem.operands["initial_state"] = problem.operands["initial_state"].detach().mT.contiguous()
    problem.d_final_state = problem.d_final_state.mT.contiguous()
    v_first = results(chunk_kda, problem, state_v_first=True)
    assert v_first["final_state"].is_contiguous()
    for name in ("final_state", "dinitial_state"):
        v_first[name] = v_first[name].mT
    for name, x in k_first.items():
        # Storage only: the arithmetic, and so the bits, are the same.
        assert torch.equal(x, v_first[name]), name


@pytest.mark.parametrize("case", BETA, ids=str)
def test_beta_activated_before_the_call(case, chunk_kda):
    problem = make_problem(case)
    inside = results(chunk_kda, problem)
    factor = 2.0 if case.beta == "doubled" else 1.0
    y = torch.sigmoid(problem.operands["beta"].detach().float())
    problem.operands["beta"] = factor * y
    del problem.options["use_beta_sigmoid_in_kernel"], problem.options["allow_neg_eigval"]
    outside = results(chunk_kda, problem)
    outside["dbeta"] = (outside["dbeta"] * factor * y * (1 - y)).to(case.dtype)
    for name, x in inside.items():
        assert relative_rms(x, outside[name]) <= 1e-4, name


def test_options_that_tune_change_no_bit(chunk_kda):
    problem = make_problem(SMALL)
    plain = results(chunk_kda, problem)
    table = problem.options["cu_seqlens"]
    for options in ({"disable_recompute": True}, {"chunk_size": 32}, {"safe_gate": True},
                    {"lower_bound": -900.0, "safe_gate": True},
                    {"chunk_indices": torch.zeros(2, 2, dtype=torch.int64)},
                    {"cu_seqlens": table.int()}, {"cu_seqlens_cpu": table.int()},
                    {"max_num_seqs": None, "use_graph": False}):
        other = results(chunk_kda, problem, **options)
        for name, x in plain.items():
            assert torch.equal(x, other[name]), (options, name)


def test_old_name_of_state_v_first(chunk_kda):
    problem = make_problem(SMALL)
    problem.operands["initial_state"] = problem.operands["initial_state"].detach().mT.contiguous()
    problem.d_final_state = problem.d_final_state.mT.contiguous()
    new = results(chunk_kda, problem, state_v_first=True)
    with pytest.warns(DeprecationWarning, match="state_v_first") as record:
        old = results(chunk_kda, problem, transpose_state_layout=True)
    assert record[0].filename.endswith("compat_fla_cases.py")
    assert all(torch.equal(x, old[name]) for name, x in new.items())


def test_results_without_final_state(chunk_kda):
    problem = make_problem(SMALL)
    result = chunk_kda(**problem.operands, **problem.options)
    assert isinstance(result, tuple) and len(result) == 2 and result[1] is None
    both = chunk_kda(**problem.operands, **problem.options, output_final_state=True)
    assert torch.equal(result[0], both[0])
    assert both[1].dtype == torch.float32 and both[1].shape == problem.operands["initial_state"].shape


def test_positional_arguments(chunk_kda):
    problem = make_problem(SMALL)
    x = problem.operands
    positional = chunk_kda(x["q"], x["k"], x["v"], x["g"], x["beta"], 0.5, x["initial_state"], True, True, False, False,
                           False, False, None, False, False, False, problem.options["cu_seqlens"])
    named = chunk_kda(**x, **(problem.options | {"scale": 0.5, "use_qk_l2norm_in_kernel": True}),
                      output_final_state=True)
    assert all(torch.equal(a, b) for a, b in zip(positional, named))


def test_empty_documents_and_rows_past_the_last_offset(chunk_kda):
    case = Case(1, 90, 1, 2, 16, FP32, offsets=(0, 0, 30, 30, 80), uniform=False)
    problem = make_problem(case)
    with torch.no_grad():
        for name in ("q", "k", "v", "g", "beta"):
            problem.operands[name][:, 80:] = float("nan")
    got = results(chunk_kda, problem)
    for name, x in got.items():
        if name in ("out", "dq", "dk", "dv", "dg", "dbeta"):
            assert torch.count_nonzero(x[:, 80:]) == 0, name
            got[name] = x[:, :80]
    for n in (0, 2):
        assert torch.equal(got["final_state"][n], problem.operands["initial_state"][n])
        assert torch.equal(got["dinitial_state"][n], problem.d_final_state[n])
    alone = make_problem(case)
    for name in ("q", "k", "v", "g", "beta"):
        alone.operands[name] = alone.operands[name].detach()[:, :80]
    alone.dout = alone.dout[:, :80]
    for name, x in results(chunk_kda, alone).items():
        assert torch.equal(got[name], x), name


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_half_decays_and_a_beta_of_another_dtype(chunk_kda, dtype):
    other = FP16 if dtype == BF16 else BF16
    problem = make_problem(Case(2, 70, 1, 2, 16, dtype, uniform=False))
    x = problem.operands
    x["g"], x["beta"] = x["g"].detach().to(dtype), x["beta"].detach().to(other)
    half = results(chunk_kda, problem)
    assert half["dg"].dtype == dtype and half["dbeta"].dtype == other
    x["g"], x["beta"] = x["g"].float(), x["beta"].float()
    full = results(chunk_kda, problem)
    for name, value in half.items():
        assert torch.equal(value, full[name].to(value.dtype)), name


def test_parameters_in_other_shapes_and_dtypes(chunk_kda):
    problem = make_problem(Case(2, 70, 2, 4, 16, BF16, gate=True, l2norm=True))
    x = problem.operands
    x["A_log"], x["dt_bias"] = x["A_log"].detach().bfloat16(), x["dt_bias"].detach().bfloat16()
    flat = results(chunk_kda, problem)
    assert flat["dA_log"].dtype == BF16
    x["A_log"], x["dt_bias"] = x["A_log"].reshape(1, 1, 4, 1), x["dt_bias"].reshape(4, 16)
    shaped = results(chunk_kda, problem)
    assert shaped["dA_log"].shape == (1, 1, 4, 1) and shaped["ddt_bias"].shape == (4, 16)
    for name, value in flat.items():
        if name not in ("dA_log", "ddt_bias"):
            assert torch.equal(value, shaped[name]), name
        assert relative_rms(value.flatten(), shaped[name].flatten()) < 8e-3, name


def test_gate_without_A_log(chunk_kda):
    problem = make_problem(Case(2, 70, 1, 2, 16, FP32, gate=True, safe_gate=True))
    problem.operands["A_log"] = torch.zeros(2)
    zero = results(chunk_kda, problem, safe_gate=True)
    del problem.operands["A_log"]
    none = results(chunk_kda, problem, safe_gate=True)
    assert all(relative_rms(x, zero[name]) < 1e-6 for name, x in none.items())


HUGE = torch.tensor([0, 3_000_000_000])
REFUSALS = {
    "int64 offsets beyond int32": ({"cu_seqlens": HUGE}, ValueError, "3000000000.*int32"),
    "the CPU copy beyond int32": ({"cu_seqlens_cpu": HUGE}, ValueError, "cu_seqlens"),
    "float offsets": ({"cu_seqlens": torch.zeros(3)}, TypeError, "cu_seqlens is torch.float32"),
    "a matrix of offsets": ({"cu_seqlens": torch.zeros(3, 1, dtype=torch.int32)}, TypeError, "cu_seqlens"),
    "a list of offsets": ({"cu_seqlens": [0, 30, 80]}, TypeError, "cu_seqlens is list"),
    "copies that differ": ({"cu_seqlens_cpu": torch.tensor([0, 31, 80])}, ValueError, "different offsets"),
    "a copy of nothing": ({"cu_seqlens": None, "cu_seqlens_cpu": torch.tensor([0, 80])}, ValueError, "cu_seqlens_cpu"),
    "offsets that decrease": ({"cu_seqlens": torch.tensor([0, 40, 30])}, ValueError, "cu_seqlens"),
    "offsets beyond the rows": ({"cu_seqlens": torch.tensor([0, 30, 81])}, ValueError, "cu_seqlens"),
    "a keyword of nobody": ({"head_first": True}, TypeError, "head_first"),
    "the keyword of a mode": ({"deterministic": True}, TypeError, "deterministic"),
    "intermediate states": ({"return_intermediate_states": True}, NotImplementedError, "return_intermediate_states"),
    "graphs": ({"use_graph": True}, NotImplementedError, "use_graph"),
    "a size of graphs": ({"max_num_seqs": 4}, NotImplementedError, "max_num_seqs"),
    "chunks of 48": ({"chunk_size": 48}, ValueError, "chunk_size is 48"),
    "a safe gate without bound": ({"use_gate_in_kernel": True, "A_log": torch.zeros(2), "safe_gate": True}, ValueError,
                                  "lower_bound is None"),
    "a safe gate below -5": ({"use_gate_in_kernel": True, "A_log": torch.zeros(2), "safe_gate": True,
                              "lower_bound": -6.0}, ValueError, "lower_bound is -6.0"),
    "a bound of nothing": ({"lower_bound": -5.0}, ValueError, "lower_bound"),
    "a gate without A_log": ({"use_gate_in_kernel": True}, ValueError, "A_log"),
    "A_log without a gate": ({"A_log": torch.zeros(2)}, ValueError, "A_log"),
    "a doubled value": ({"allow_neg_eigval": True}, ValueError, "allow_neg_eigval"),
    "both layouts of states": ({"state_v_first": True, "transpose_state_layout": True}, ValueError,
                               "transpose_state_layout"),
    "a context of nobody": ({"cp_context": object()}, TypeError, "cp_context is a object"),
    "half a state": ({"initial_state": torch.zeros(2, 2, 16, 16, dtype=FP16)}, (TypeError, ValueError),
                     "initial_state"),
    "too few states": ({"initial_state": torch.zeros(1, 2, 16, 16)}, ValueError, "initial_state"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name, chunk_kda):
    options, error, message = REFUSALS[name]
    problem = make_problem(SMALL)
    with pytest.raises(error, match=message):
        chunk_kda(**(problem.operands | problem.options | options))


def test_a_batch_with_offsets_is_refused(chunk_kda):
    problem = make_problem(Case(2, 80, 1, 2, 16, FP32))
    with pytest.raises(ValueError, match="batch size 2 with cu_seqlens"):
        chunk_kda(**problem.operands, cu_seqlens=torch.tensor([0, 80]))


def test_limits_are_those_of_the_design_and_can_be_exceeded():
    assert LIMITS["out"] == 5e-3 and LIMITS["dg"] == 1e-2
    problem = make_problem(SMALL)
    from kda_torch import recurrent_kda

    exact = results(recurrent_kda, problem)
    judge(SMALL, exact)
    for name in exact:
        wrong = dict(exact)
        wrong[name] = exact[name].clone()
        # One element of one document.
        wrong[name].view(-1)[-1] += 1e-3 * exact[name].norm()
        with pytest.raises(AssertionError, match=name):
            judge(SMALL, wrong)


def test_signature():
    """Names, order and defaults of the other project; what it takes as `**kwargs` is keyword-only here."""
    wanted = ("q k v g beta scale=None initial_state=None output_final_state=False use_qk_l2norm_in_kernel=False "
              "use_gate_in_kernel=False use_beta_sigmoid_in_kernel=False allow_neg_eigval=False safe_gate=False "
              "lower_bound=None disable_recompute=False return_intermediate_states=False state_v_first=False "
              "cu_seqlens=None cu_seqlens_cpu=None cp_context=None use_graph=False max_num_seqs=None *A_log=None "
              "*dt_bias=None *chunk_size=64 *chunk_indices=None *transpose_state_layout=None")
    for mode in MODES:
        module = importlib.import_module(f"cake_train.compat.fla_{mode}")
        text = [("*" if p.kind is p.KEYWORD_ONLY else "") + str(p.replace(annotation=p.empty))
                for p in inspect.signature(module.chunk_kda).parameters.values()]
        assert " ".join(text) == wanted
        assert mode_names.public_names(module) == ["chunk_kda"]
        mode_names.assert_no_deterministic_keyword([module.chunk_kda])


LOADED = """
import sys
sys.path.insert(0, {python!r})
from cake_train.compat.fla_{mode} import chunk_kda
early = [m for m in sys.modules if m.split(".")[0] in ("torch", "numpy", "tvm_ffi")
         or m.startswith(("cake_train._backend", "cake_train.cake_"))]
assert not early, early
import torch
x = torch.ones(1, 3, 1, 4)
chunk_kda(x, x, x, -x, x[..., 0])
words = [w for m in sys.modules if m.startswith("cake_train") for w in m.replace(".", "_").split("_")]
assert {mode!r} in words and {other!r} not in words, sorted(m for m in sys.modules if m.startswith("cake_train"))
"""


@pytest.mark.parametrize("mode", MODES)
def test_imports_wait_and_the_other_mode_stays_away(mode):
    other = MODES[1 - MODES.index(mode)]
    code = LOADED.format(python=str(Path(cake_train.__file__).parents[1]), mode=mode, other=other)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
