"""KDA in plain PyTorch, chunk by chunk, differentiated by autograd: what a model runs when it has no kernel.

A document is cut into chunks of C = 64 rows. With G the running sum of the log decays g inside a chunk and S the K x V
state at its start,

    L_ij = beta_i sum_d k_id k_jd exp(G_id - G_jd)  (i > j)      P_ij = sum_d q_id k_jd exp(G_id - G_jd)  (i >= j)
    (I + L) [W | U] = diag(beta) [k exp(G) | v]                  Y = U - W S
    o = scale ((q exp(G)) S + P Y)                               S <- exp(G_end) S + (k exp(G_end - G))^T Y

Only Y and S go from chunk to chunk; everything else runs over all chunks, heads and rows of the batch at once. Every
exponent is of a sum of g over a range of rows and so at most 0: a product over rows i > j is split at a row between
them, `exp(G_i - G_n) exp(G_n - G_j)`, and the square of a chunk is put together from squares of half the size. With
`bounded_gate` the squares start at 16 rows around their middle row instead of at one row: fewer and larger products,
for log decays of at least -5.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 64
_BOUNDED_BLOCK = 16


def kda_gate(g: torch.Tensor, A_log: torch.Tensor | None, dt_bias: torch.Tensor | None,
             lower_bound: float | None = None) -> torch.Tensor:
    """Log decays of a raw gate.

    Args:
        g: raw gate `[..., HV, K]`.
        A_log: `[HV]`; None (factor 1) only with lower_bound.
        dt_bias: `[HV, K]` or `[HV * K]`; None is 0.
        lower_bound: None for `-exp(A_log) softplus(g + dt_bias)`, else `lower_bound sigmoid(exp(A_log) (g + dt_bias))`.

    Returns:
        `[..., HV, K]` in the dtype of g.

    Raises:
        ValueError: neither A_log nor lower_bound is given.
    """
    if A_log is None and lower_bound is None:
        raise ValueError("A_log is needed without lower_bound")
    x = g if dt_bias is None else g + dt_bias.to(g.dtype).reshape(g.shape[-2:])
    factor = 1.0 if A_log is None else A_log.to(g.dtype).exp().reshape(-1, 1)
    return -factor * F.softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(factor * x)


def chunked_kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
                cu_seqlens: torch.Tensor | None = None, *, scale: float | None = None,
                initial_state: torch.Tensor | None = None, output_final_state: bool = False,
                use_gate_in_kernel: bool = False, A_log: torch.Tensor | None = None,
                dt_bias: torch.Tensor | None = None, lower_bound: float | None = None,
                use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
                allow_neg_eigval: bool = False, bounded_gate: bool = False,
                ) -> tuple[torch.Tensor, torch.Tensor | None]:
    """KDA over documents, in the dtype of the operands but at least float32.

    Args:
        q, k: `[B, T, H, K]`, a float dtype.
        v: `[B, T, HV, V]`, HV a multiple of H.
        g: log decay `[B, T, HV, K]`, at most 0; a raw gate with use_gate_in_kernel.
        beta: `[B, T, HV]`; a logit with use_beta_sigmoid_in_kernel, doubled after the sigmoid with allow_neg_eigval.
        cu_seqlens: integer row offsets `[N + 1]` of N documents, then B is 1; rows past the last give 0.
        scale: of the output; K^-1/2 when None.
        initial_state: `[N, HV, K, V]` (N = B without cu_seqlens); 0 when None.
        output_final_state: whether the states after the last rows are returned.
        use_gate_in_kernel, A_log, dt_bias, lower_bound: see `kda_gate`.
        use_qk_l2norm_in_kernel: rows of q and k are divided by sqrt(sum of squares + 1e-6).
        bounded_gate: log decays are at least -5; faster.

    Returns:
        out `[B, T, HV, V]` in the dtype of q, and the final states `[N, HV, K, V]`, or None.

    Raises:
        ValueError: HV is no multiple of H, or B is not 1 with cu_seqlens.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    groups, remainder = divmod(v.shape[2], q.shape[2])
    if remainder:
        raise ValueError(f"v has {v.shape[2]} heads, which is no multiple of the {q.shape[2]} heads of q")
    out_dtype = q.dtype
    q, k, v, g, beta = (x.to(dtype) for x in (q, k, v, g, beta))
    if use_gate_in_kernel:
        g = kda_gate(g, A_log, dt_bias, lower_bound)
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    if use_beta_sigmoid_in_kernel:
        beta = torch.sigmoid(beta) * (2.0 if allow_neg_eigval else 1.0)
    if groups > 1:
        q, k = (x.repeat_interleave(groups, dim=2) for x in (q, k))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    state = None if initial_state is None else initial_state.to(dtype)
    if cu_seqlens is None:
        out, state = _documents(q, k, v, g, beta, state, bounded_gate)
    elif q.shape[0] != 1:
        raise ValueError(f"B is {q.shape[0]} with cu_seqlens; expected 1")
    else:
        out, state = _packed(q, k, v, g, beta, state, bounded_gate, [int(x) for x in cu_seqlens])
    return out.to(out_dtype), state if output_final_state else None


def _packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
            state: torch.Tensor | None, bounded: bool, offsets: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The documents of a pack one after another."""
    outs, states = [], []
    for n, (first, last) in enumerate(zip(offsets, offsets[1:])):
        rows = [x[:, first:last] for x in (q, k, v, g, beta)]
        out, final = _documents(*rows, None if state is None else state[n:n + 1], bounded)
        outs.append(out)
        states.append(final)
    outs.append(torch.zeros_like(v[:, offsets[-1]:]))
    empty = v.new_zeros(0, v.shape[2], q.shape[-1], v.shape[-1])
    return torch.cat(outs, 1), torch.cat([empty, *states])


def _documents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
               state: torch.Tensor | None, bounded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One document per row of the batch: out `[B, T, HV, V]` and final states. q is scaled already."""
    B, T, HV, K = q.shape
    if state is None:
        state = v.new_zeros(B, HV, K, v.shape[-1])
    if T == 0:
        return torch.zeros_like(v), state
    q, k, v, g, beta = (_chunks(x) for x in (q, k, v, g, beta.unsqueeze(-1)))
    G = g.cumsum(-2)
    last = G[..., -1:, :]
    P, L = _decayed_products(q, k, G, bounded)
    lower = torch.tril(beta * L, -1)
    decay = G.exp()
    right = torch.cat([k * decay, v], -1) * beta
    # Only what lies below the diagonal is read: unitriangular adds I.
    W, U = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True).split([K, v.shape[-1]], -1)
    to_end = (k * (last - G).exp()).mT
    state_decay = last.exp().mT
    states, Y = [], []
    for W_n, U_n, to_end_n, decay_n in zip(W.unbind(), U.unbind(), to_end.unbind(), state_decay.unbind()):
        states.append(state)
        Y.append(U_n - W_n @ state)
        state = decay_n * state + to_end_n @ Y[-1]
    out = (q * decay) @ torch.stack(states) + torch.tril(P) @ torch.stack(Y)
    return out.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :T], state


def _chunks(x: torch.Tensor) -> torch.Tensor:
    """`[B, T, HV, D]` as `[chunks, B, HV, CHUNK, D]`. Rows of 0 behind the last change nothing: they have g, beta 0."""
    x = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % CHUNK))
    return x.unflatten(1, (-1, CHUNK)).permute(1, 0, 3, 2, 4).contiguous()


def _decayed_products(q: torch.Tensor, k: torch.Tensor, G: torch.Tensor,
                      bounded: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """`sum_d x_id k_jd exp(G_id - G_jd)` for i >= j and x in (q, k), `[..., CHUNK, CHUNK]` each; undefined for i < j.

    Squares along the diagonal, of `size` rows, double until they cover a chunk.
    """
    rows = torch.stack([q, k])
    size = _BOUNDED_BLOCK if bounded else 1
    x, y, sums = (t.unflatten(-2, (-1, size)) for t in (rows, k, G))
    middle = sums[..., size // 2:size // 2 + 1, :]
    squares = (x * (sums - middle).exp()) @ (y * (middle - sums).exp()).mT
    while size < CHUNK:
        x, y, sums = (t.unflatten(-2, (-1, 2, size)) for t in (rows, k, G))
        border = sums[..., 1, :1, :]
        below = x[..., 1, :, :] * (sums[..., 1, :, :] - border).exp()
        corner = below @ (y[..., 0, :, :] * (border - sums[..., 0, :, :]).exp()).mT
        top, bottom = squares.unflatten(-3, (-1, 2)).unbind(-3)
        squares = torch.cat([F.pad(top, (0, size)), torch.cat([corner, bottom], -1)], -2)
        size *= 2
    both = squares.squeeze(-3)
    return both[0], both[1]
