"""Operands and judgement of the tests of `cake_train.compat`: flash-linear-attention's cases against the recurrence.

Data are drawn as that project's tests draw them: q, k, v uniform or normal, k a unit vector, g the logarithm of a
sigmoid, states and incoming gradients normal. Both sides get the same rounded numbers.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from kda_torch import recurrent_kda

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Relative RMS error of 16-bit operands, per document and head (design: tests, tolerances); fp32 operands 2e-5.
LIMITS = {"out": 5e-3, "final_state": 5e-3, "dq": 8e-3, "dk": 8e-3, "dv": 8e-3, "dinitial_state": 8e-3, "dg": 1e-2,
          "dbeta": 1e-2, "dA_log": 3e-3, "ddt_bias": 3e-3}
FP32_LIMIT = 2e-5


@dataclass(frozen=True)
class Case:
    """A problem in words. Sizes are those that run; `peer` says which ones the other project uses where they differ."""

    B: int
    T: int
    H: int
    HV: int
    D: int
    dtype: torch.dtype
    scale: float | None = None
    normalizer: float = 1.0  # of the log sigmoid
    mask_p: float = 0.0  # part of the decays that is 0
    holes_p: float = 0.0  # part of the decays, or raw gates, that is -1000
    l2norm: bool = False
    gate: bool = False
    safe_gate: bool = False
    keep: bool = False  # disable_recompute
    chunk_size: int = 64
    offsets: tuple[int, ...] | None = None
    beta: str = "value"  # "logit": a sigmoid in the kernel; "doubled": allow_neg_eigval too
    uniform: bool = True
    peer: str = ""

    def __str__(self) -> str:
        parts = [f"B{self.B}T{self.T}H{self.H}HV{self.HV}D{self.D}", str(self.dtype).removeprefix("torch.")]
        parts += [f"{len(self.offsets) - 1}docs"] if self.offsets else []
        parts += [name for name in ("l2norm", "gate", "safe_gate", "keep") if getattr(self, name)]
        parts += [f"C{self.chunk_size}"] if self.chunk_size != 64 else []
        parts += [f"{name}{getattr(self, name)}" for name in ("mask_p", "holes_p") if getattr(self, name)]
        return "-".join(parts + [f"beta_{self.beta}"] * (self.beta != "value"))


@dataclass
class Problem:
    """Operands by name (leaves of autograd where they have a gradient), incoming gradients, and the options."""

    operands: dict[str, torch.Tensor]
    options: dict[str, Any]
    dout: torch.Tensor
    d_final_state: torch.Tensor


def make_problem(case: Case, seed: int = 42) -> Problem:
    """Draws the operands of a case."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=random)
    B, T, H, HV, D = case.B, case.T, case.H, case.HV, case.D
    draw = uniform if case.uniform else normal
    q, k, v = draw(B, T, H, D), draw(B, T, H, D), draw(B, T, HV, D)
    if not case.l2norm:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    options: dict[str, Any] = {"scale": case.scale, "use_qk_l2norm_in_kernel": case.l2norm}
    g = normal(B, T, HV, D)
    extra = {}
    if case.gate:
        options["use_gate_in_kernel"] = True
        options["lower_bound"] = -5.0 if case.safe_gate else None
        extra = {"A_log": normal(HV), "dt_bias": normal(HV * D)}
    else:
        g = F.logsigmoid(g) / case.normalizer
        g = g * (uniform(*g.shape) > case.mask_p)
    g = torch.where(uniform(*g.shape) < case.holes_p, -1000.0, g)
    if case.safe_gate and not case.gate:
        g = g.clamp(min=-5.0)
    beta = normal(B, T, HV)
    if case.beta == "value":
        beta = beta.sigmoid()
    else:
        options |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": case.beta == "doubled"}
    N = B if case.offsets is None else len(case.offsets) - 1
    operands = {"q": q.to(case.dtype), "k": k.to(case.dtype), "v": v.to(case.dtype),
                "g": g.to(case.dtype) if case.gate else g, "beta": beta.to(case.dtype),
                "initial_state": normal(N, HV, D, D), **extra}
    operands = {name: x.requires_grad_() for name, x in operands.items()}
    if case.offsets is not None:
        options["cu_seqlens"] = torch.tensor(case.offsets)
    return Problem(operands, options, normal(B, T, HV, D).to(case.dtype), normal(N, HV, D, D))


def compat_options(case: Case) -> dict[str, Any]:
    """The options that the recurrence does not have: they tune, or promise something of the operands."""
    options: dict[str, Any] = {"disable_recompute": case.keep, "chunk_size": case.chunk_size}
    options["safe_gate"] = case.safe_gate
    if case.offsets is not None:
        options["cu_seqlens_cpu"] = torch.tensor(case.offsets)
    return options


def results(function: Any, problem: Problem, **options: Any) -> dict[str, torch.Tensor]:
    """out, final_state and the gradient of every operand."""
    leaves = {name: x.detach().requires_grad_() for name, x in problem.operands.items()}
    out, state = function(**leaves, **(problem.options | options), output_final_state=True)
    assert isinstance(out, torch.Tensor) and isinstance(state, torch.Tensor)
    grads = torch.autograd.grad([out, state], list(leaves.values()),
                                [problem.dout.to(out.dtype), problem.d_final_state.to(state.dtype)])
    return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(leaves, grads)}


@functools.lru_cache(maxsize=4)
def expected(case: Case) -> dict[str, torch.Tensor]:
    """Results of the recurrence on the numbers that the operands hold, all in float64."""
    problem = make_problem(case)
    problem.operands = {name: x.double() for name, x in problem.operands.items()}
    threads = torch.get_num_threads()
    # Its operators are small: on a busy machine a second thread is mostly waited for.
    torch.set_num_threads(1)
    try:
        return results(recurrent_kda, problem)
    finally:
        torch.set_num_threads(threads)


def _blocks(case: Case, name: str, x: torch.Tensor) -> list[torch.Tensor]:
    """`x` as matrices with a row per document and head, or per head: errors are judged for each row."""
    x = x.detach().double()
    if name in ("dA_log", "ddt_bias"):
        return [x.reshape(case.HV, -1)]
    if name in ("final_state", "dinitial_state"):
        return [x.flatten(0, 1).flatten(1)]
    if case.offsets is None:
        return [x.transpose(1, 2).flatten(0, 1).flatten(1)]
    return [x[0, a:b].transpose(0, 1).flatten(1) for a, b in zip(case.offsets, case.offsets[1:]) if b > a]


def _parameter_terms(case: Case, want: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Norms by head of the terms of the sums dA_log and ddt_bias: what the bound of a cancelling sum is relative to."""
    operands = {n: x.detach().double() for n, x in make_problem(case).operands.items()}
    dx = want["dg"]
    x = operands["g"] + operands["dt_bias"].reshape(case.HV, case.D)
    factor = x if case.safe_gate else F.softplus(x) * (1 + torch.exp(-x))
    # A raw gate of -1000 has no part in either sum.
    terms = {"dA_log": torch.where(dx == 0, 0.0, dx * factor), "ddt_bias": dx}
    return {name: t.transpose(0, 2).flatten(1).norm(dim=1) for name, t in terms.items()}


def errors(case: Case, got: dict[str, torch.Tensor]) -> dict[str, float]:
    """The worst relative RMS error of each result over documents and heads; infinity where a zero is not exact."""
    want = expected(case)
    assert set(got) == set(want)
    worst = {}
    for name, x in got.items():
        difference, size = [], []
        for a, b in zip(_blocks(case, name, x), _blocks(case, name, want[name])):
            difference.append((a - b).norm(dim=1))
            size.append(b.norm(dim=1))
        d, s = torch.cat(difference), torch.cat(size)
        if name in ("dA_log", "ddt_bias"):
            s = _parameter_terms(case, want)[name]
        ratio = torch.where((d == 0) & (s == 0), 0.0, d / s)
        worst[name] = float("inf") if ratio.isnan().any() else ratio.max().item()
    return worst


def judge(case: Case, got: dict[str, torch.Tensor], limits: dict[str, float] = LIMITS) -> None:
    """Raises AssertionError with every result beyond its limit."""
    worst = errors(case, got)
    limit = {name: FP32_LIMIT if case.dtype == FP32 else limits[name] for name in worst}
    bad = [f"{name} {worst[name]:.2e} > {limit[name]:.0e}" for name in worst if not worst[name] <= limit[name]]
    assert not bad, f"{case}: " + ", ".join(bad)
