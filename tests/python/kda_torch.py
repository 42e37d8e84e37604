"""KDA references of the Python tests: a token-by-token recurrence in float64, and the chunked one of the benchmarks.

`recurrent_kda` is the specification in code and shares nothing with the package or with `chunked_kda`. Autograd
differentiates it; states between blocks of tokens are the only ones it keeps.
"""
from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "python"))

from chunked_kda import chunked_kda

__all__ = ["chunked_kda", "document_parts", "recurrent_kda", "relative_rms"]

_BLOCK = 32


def recurrent_kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
                  cu_seqlens: torch.Tensor | None = None, *, scale: float | None = None,
                  initial_state: torch.Tensor | None = None, output_final_state: bool = False,
                  use_gate_in_kernel: bool = False, A_log: torch.Tensor | None = None,
                  dt_bias: torch.Tensor | None = None, lower_bound: float | None = None,
                  use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
                  allow_neg_eigval: bool = False, dtype: torch.dtype = torch.float64,
                  ) -> tuple[torch.Tensor, torch.Tensor | None]:
    """KDA token by token: per value head `S <- diag(exp g) S; S <- S + beta k (v - S^T k)^T; o = scale S^T q`.

    Arguments and shapes as `chunked_kda.chunked_kda`; operands of any float dtype. out and the states have `dtype`,
    gradients the dtype of their operand. Rows past the last offset give 0 and get gradients of 0, also when they hold
    NaN.
    """
    if cu_seqlens is None:
        B, T = q.shape[:2]
        offsets = [T * n for n in range(B + 1)]
    else:
        assert q.shape[0] == 1, f"B is {q.shape[0]} with cu_seqlens; expected 1"
        offsets = [int(x) for x in cu_seqlens]
    total = q.shape[0] * q.shape[1]
    q, k, v, g, beta = (x.reshape(total, *x.shape[2:])[:offsets[-1]].to(dtype) for x in (q, k, v, g, beta))
    K, HV, V = q.shape[-1], v.shape[-2], v.shape[-1]
    if use_gate_in_kernel:
        x = g if dt_bias is None else g + dt_bias.to(dtype).reshape(HV, K)
        rate = 1.0 if A_log is None else torch.exp(A_log.to(dtype)).reshape(HV, 1)
        if lower_bound is None:
            g = -rate * torch.logaddexp(x, torch.zeros_like(x))
        else:
            g = lower_bound / (1 + torch.exp(-rate * x))
    if use_qk_l2norm_in_kernel:
        q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6)
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    if use_beta_sigmoid_in_kernel:
        beta = 1 / (1 + torch.exp(-beta)) * (2 if allow_neg_eigval else 1)
    N = len(offsets) - 1
    length = max([b - a for a, b in zip(offsets, offsets[1:])], default=0)
    head = torch.arange(HV) // (HV // q.shape[-2])
    rows = [_rectangle(x, offsets, length) for x in (q[:, head], k[:, head], v, g, beta)]
    state = torch.zeros(N, HV, K, V, dtype=dtype) if initial_state is None else initial_state.to(dtype)
    outs = [torch.zeros(N, 0, HV, V, dtype=dtype)]
    for first in range(0, length, _BLOCK):
        block = [x[:, first:first + _BLOCK] for x in rows]
        out, state = checkpoint(_tokens, state, *block, use_reentrant=False)
        outs.append(out)
    out = torch.cat(outs, 1) * (K ** -0.5 if scale is None else scale)
    flat = torch.cat([v.new_zeros(0, HV, V)] + [out[n, :b - a] for n, (a, b) in enumerate(zip(offsets, offsets[1:]))])
    flat = torch.cat([flat, v.new_zeros(total - offsets[-1], HV, V)])
    flat = flat.reshape(*((1, total) if cu_seqlens is not None else (B, T)), HV, V)
    return flat, state if output_final_state else None


def _tokens(state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
            beta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `[N, L, HV, ...]` of N documents side by side."""
    outs = []
    for q_t, k_t, v_t, g_t, beta_t in zip(*(x.unbind(1) for x in (q, k, v, g, beta))):
        state = torch.exp(g_t).unsqueeze(-1) * state
        r = beta_t.unsqueeze(-1) * (v_t - (k_t.unsqueeze(-2) @ state).squeeze(-2))
        state = state + k_t.unsqueeze(-1) * r.unsqueeze(-2)
        outs.append((q_t.unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outs, 1), state


def _rectangle(x: torch.Tensor, offsets: list[int], length: int) -> torch.Tensor:
    """Documents `[N, length, ...]`, shorter ones with rows of 0 behind: k, g and beta of 0 leave a state alone."""
    rows = [torch.cat([x[a:b], x.new_zeros(length - (b - a), *x.shape[1:])]) for a, b in zip(offsets, offsets[1:])]
    return torch.stack(rows) if rows else x.new_zeros(0, length, *x.shape[1:])


def relative_rms(got: torch.Tensor, expected: torch.Tensor) -> float:
    """`||got - expected|| / ||expected||` in float64; 0 when both are 0, infinity when only `expected` is.

    NaN or infinite results give NaN or infinity, which no limit admits.
    """
    difference = (got.double() - expected.double()).norm().item()
    size = expected.double().norm().item()
    if size == 0.0:
        return 0.0 if difference == 0.0 else float("inf")
    return difference / size


def document_parts(x: torch.Tensor, offsets: list[int]) -> list[torch.Tensor]:
    """The documents of a packed `[1, T, ...]` that have rows, and what lies past the last offset, if anything."""
    parts = [x[:, a:b] for a, b in zip(offsets, offsets[1:]) if b > a]
    return parts + ([x[:, offsets[-1]:]] if x.shape[1] > offsets[-1] else [])
