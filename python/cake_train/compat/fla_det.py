"""`chunk_kda` of flash-linear-attention on the deterministic KDA packages.

A model switches by `from cake_train.compat.fla_det import chunk_kda`. The name is the other project's: an
exemption from the rule that names start with operator and mode. The module's name carries the mode.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._chunk_kda import Entries, KcpEntries, run_chunk_kda

if TYPE_CHECKING:
    import torch

__all__ = ["chunk_kda"]


def _kda() -> Callable[..., Any]:
    from ..cake_kda_det_train import cake_kda_det

    return cake_kda_det


def _kcp() -> KcpEntries:
    from .. import cake_kda_det_train_kcp as package

    return KcpEntries(package.cake_kda_det_kcp, package.cake_kda_det_train_kcp_partition,
                      package.cake_kda_det_train_kcp_build_context, package.CakeKcpContext)


_ENTRIES = Entries(_kda, _kcp)


def chunk_kda(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    scale: float | None = None, initial_state: torch.Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False, safe_gate: bool = False, lower_bound: float | None = None,
    disable_recompute: bool = False, return_intermediate_states: bool = False, state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None, cu_seqlens_cpu: torch.Tensor | None = None, cp_context: Any = None,
    use_graph: bool = False, max_num_seqs: int | None = None, *, A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None, chunk_size: int = 64, chunk_indices: torch.Tensor | None = None,
    transpose_state_layout: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """KDA, forward and backward, with flash-linear-attention's arguments; `cake_kda_det` computes it.

    Args:
        q, k: `[B, T, H, K]`, fp32, bf16 or fp16, 1 <= K <= 256.
        v: `[B, T, HV, V]` in the dtype of q, HV a multiple of H, 1 <= V <= 256.
        g: `[B, T, HV, K]`, natural-log decay, at most 0, or with use_gate_in_kernel the raw gate; any float dtype.
        beta: `[B, T, HV]`, any float dtype; a logit with use_beta_sigmoid_in_kernel.
        scale: of the output; K^-1/2 when None.
        initial_state: fp32 `[N, HV, K, V]`, N = B or the documents of cu_seqlens (of the pack with a CakeKcpContext).
        output_final_state: whether the second result holds the final states.
        use_qk_l2norm_in_kernel: rows of q and k are divided by sqrt(sum of squares + 1e-6).
        use_gate_in_kernel: the decay is -exp(A_log) softplus(g + dt_bias); with lower_bound it is
            lower_bound sigmoid(exp(A_log) (g + dt_bias)), and A_log may be None (factor 1).
        use_beta_sigmoid_in_kernel, allow_neg_eigval: beta is sigmoid(beta), doubled with allow_neg_eigval.
        safe_gate: a promise that decays are at least -5, which picks no other path here: every decay is safe. With
            use_gate_in_kernel lower_bound in [-5, 0) is needed; without it lower_bound is part of the promise.
        lower_bound: see use_gate_in_kernel and safe_gate.
        disable_recompute: keep the states of all chunks for the backward (save mode "tape" instead of "light"):
            more memory, less work, the same bits.
        return_intermediate_states, use_graph, max_num_seqs: not built; False, False and None.
        state_v_first: states are `[N, HV, V, K]`.
        cu_seqlens: int64 or int32 row offsets `[N + 1]` on the CPU, B is 1. Rows past the last offset give 0.
        cu_seqlens_cpu: a copy of cu_seqlens, read instead of it.
        cp_context: a CakeKcpContext, or a context of flash-linear-attention (a `FLACPContext`, or an object with its
            attributes, layouts "contiguous" and "zigzag") with a torch.distributed group. The operands are then the
            rank's rows, B is 1, the offsets are the context's and cu_seqlens is not read; gradients of A_log and
            dt_bias are the rank's share. The second kind of context takes no states, and costs one small all_gather
            per call, as it holds the offsets of one rank only; its `use_tf32x3_affine_chain` picks GPU instructions.
        A_log, dt_bias: float `[HV]` and `[HV * K]` (any shape of so many elements), for use_gate_in_kernel.
        chunk_size: 32 or 64; it tunes a GPU. Chunks have 64 rows here, whatever is given.
        chunk_indices: a table made from cu_seqlens; made anew here and never read.
        transpose_state_layout: the old name of state_v_first.

    Returns:
        out `[B, T, HV, V]` in the dtype of q, and the final states (fp32, the layout of initial_state) or None.
        Gradients have the dtype of their operand.

    Raises:
        ValueError: a shape, an offset, offsets beyond int32, B > 1 with cu_seqlens, options that contradict each other.
        TypeError: a dtype or kind of object; an unknown keyword.
        NotImplementedError: an option or device that is not built, by name.
    """
    return run_chunk_kda(
        _ENTRIES, q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_gate_in_kernel=use_gate_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel, allow_neg_eigval=allow_neg_eigval, safe_gate=safe_gate,
        lower_bound=lower_bound, disable_recompute=disable_recompute,
        return_intermediate_states=return_intermediate_states, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
        cu_seqlens_cpu=cu_seqlens_cpu, cp_context=cp_context, use_graph=use_graph, max_num_seqs=max_num_seqs,
        A_log=A_log, dt_bias=dt_bias, chunk_size=chunk_size, transpose_state_layout=transpose_state_layout)
