"""Problems, option sets and bit comparisons that the tests of the KDA packages share."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Callable

import torch

MODES = ("det", "nondet")
GATE = {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
# The options of a call by a name; "no_..." leaves an optional operand out, see `problem`.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softplus": GATE | {"allow_neg_eigval": True},
    "bound": GATE | {"lower_bound": -5.0},
    "no_bias": {"use_gate_in_kernel": True, "no_dt_bias": True},
    "bound_alone": {"use_gate_in_kernel": True, "lower_bound": -3.0, "no_dt_bias": True, "no_A_log": True},
    "norm": {"use_qk_l2norm_in_kernel": True},
    "tape": {"save_mode": "tape"},
}
ORDER = ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state")  # of a backward's gradients


def facade(mode: str) -> ModuleType:
    """The package of a mode."""
    return importlib.import_module(f"cake_train.cake_kda_{mode}_train")


def entry(mode: str, name: str = "") -> Callable[..., Any]:
    """cake_kda_<mode>, or cake_kda_<mode>_train_<name>."""
    return getattr(facade(mode), f"cake_kda_{mode}" + (f"_train_{name}" if name else ""))


def problem(offsets: list[int], options: dict[str, Any] | None = None, *, B: int = 1, H: int = 2, HV: int = 2,
            K: int = 16, V: int = 20, past_end: int = 0, dtype: torch.dtype = torch.float32,
            gate_dtype: torch.dtype = torch.float32, state: bool = True, seed: int = 0,
            grad: bool = True) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(operands by name, keyword arguments that go with them). Rows past the last offset hold NaN."""
    options = dict(options or {})
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)
    S, N = offsets[-1] + past_end, B if B > 1 else len(offsets) - 1
    x = {"q": normal(B, S, H, K), "k": normal(B, S, H, K), "v": normal(B, S, HV, V), "g": normal(B, S, HV, K),
         "beta": normal(B, S, HV)}
    if not options.get("use_gate_in_kernel"):
        x["g"] = -0.3 * x["g"].abs()
    if not options.get("use_qk_l2norm_in_kernel"):
        x["k"] = torch.nn.functional.normalize(x["k"], dim=-1)
    if not options.get("use_beta_sigmoid_in_kernel"):
        x["beta"] = x["beta"].sigmoid()
    for name, t in x.items():
        t[:, offsets[-1]:] = float("nan")
        x[name] = t.to(gate_dtype if name == "g" else dtype)
    if options.get("use_gate_in_kernel"):
        if not options.pop("no_A_log", False):
            x["A_log"] = 0.5 * normal(HV)
        if not options.pop("no_dt_bias", False):
            x["dt_bias"] = normal(HV * K)
    if state:
        x["initial_state"] = 0.5 * normal(N, HV, K, V)
    if B == 1:
        options["cu_seqlens"] = torch.tensor(offsets, dtype=torch.int32)
    return {name: t.requires_grad_(grad) for name, t in x.items()}, options


def cotangents(out: torch.Tensor, final_state: torch.Tensor) -> list[torch.Tensor]:
    """Random dout and d_final_state; the same ones for the same shapes and dtype."""
    random = torch.Generator().manual_seed(7)
    return [torch.randn(t.shape, generator=random).to(t.dtype) for t in (out, final_state)]


def run(function: Callable[..., Any], x: dict[str, torch.Tensor], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """out, final_state and the gradients ("dq", ...) of those operands that require one."""
    out, state = function(**x, **options, output_final_state=True)
    leaves = {name: t for name, t in x.items() if t.requires_grad}
    found = torch.autograd.grad([out, state], list(leaves.values()), cotangents(out, state))
    return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(leaves, found)}


def explicit(mode: str, x: dict[str, torch.Tensor], options: dict[str, Any], *, keep: bool = True,
             **memory: Any) -> dict[str, torch.Tensor]:
    """The same through the entries without autograd; without `keep` the backward recomputes."""
    x = {name: t.detach() for name, t in x.items()}
    offsets = {"cu_seqlens": options.get("cu_seqlens")}
    rest = {name: value for name, value in options.items() if name != "cu_seqlens"} | memory
    out, saved, state = entry(mode, "forward")(**x, **offsets, **rest, output_final_state=True, save_for_backward=keep)
    dout, d_state = cotangents(out, state)
    found = entry(mode, "backward")(**x, **offsets, **rest, dout=dout, d_final_state=d_state, saved=saved)
    names = ["d" + name for name in ORDER if name in x]
    assert len(names) == len(found)
    return {"out": out, "final_state": state} | dict(zip(names, found))


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit patterns of a tensor."""
    return x.detach().contiguous().view(torch.uint8)


def assert_same_bits(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Every tensor has the dtype, shape and bits of the expected one."""
    assert got.keys() == expected.keys()
    for name, x in got.items():
        y = expected[name]
        assert (x.dtype, x.shape) == (y.dtype, y.shape), name
        assert torch.equal(bits(x), bits(y)), f"{name} differs by {(x.double() - y.double()).abs().max().item()}"
