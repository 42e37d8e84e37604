"""What `chunk_kda` of `fla_det` and of `fla_nondet` share: other arguments, the same operator.

Nothing here knows a mode: the callers pass functions that load their own package at the first call.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_INT32_MAX = 2**31 - 1
_SAFE_LOWER_BOUND = -5.0


class KcpEntries(NamedTuple):
    """The functions of a package over ranks, and the class of its contexts."""

    run: Callable[..., Any]
    partition: Callable[..., Any]
    build_context: Callable[..., Any]
    context_type: type


class Entries(NamedTuple):
    """Loaders of the packages of one mode; each is called when a call needs it."""

    kda: Callable[[], Callable[..., Any]]
    kcp: Callable[[], KcpEntries]


def run_chunk_kda(
    entries: Entries, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
    scale: float | None, initial_state: torch.Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool, use_beta_sigmoid_in_kernel: bool, allow_neg_eigval: bool, safe_gate: bool,
    lower_bound: float | None, disable_recompute: bool, return_intermediate_states: bool, state_v_first: bool,
    cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None, cp_context: Any, use_graph: bool,
    max_num_seqs: int | None, A_log: torch.Tensor | None, dt_bias: torch.Tensor | None, chunk_size: int,
    transpose_state_layout: bool | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The call of the other project as a call of this one; the arguments are those of `fla_det.chunk_kda`."""
    import torch

    _refuse_unbuilt(return_intermediate_states, use_graph, max_num_seqs)
    if chunk_size not in (32, 64):
        raise ValueError(f"chunk_size is {chunk_size!r}; accepted: 32 or 64")
    state_v_first = _state_layout(state_v_first, transpose_state_layout)
    lower_bound = _gate_bound(use_gate_in_kernel, safe_gate, lower_bound)
    # A plain decay is fp32 and beta fp32 or in the dtype of q; other half types are widened, and autograd rounds their
    # gradients back.
    if not use_gate_in_kernel and g.dtype in (torch.bfloat16, torch.float16):
        g = g.float()
    if beta.dtype != q.dtype and beta.dtype in (torch.bfloat16, torch.float16):
        beta = beta.float()
    options: dict[str, Any] = {
        "scale": scale, "output_final_state": output_final_state,
        "save_mode": "tape" if disable_recompute else "light",
        "use_gate_in_kernel": use_gate_in_kernel,
        "A_log": None if A_log is None else A_log.reshape(-1).float(),
        "dt_bias": None if dt_bias is None else dt_bias.reshape(-1).float(),
        "lower_bound": lower_bound, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel,
        "use_beta_sigmoid_in_kernel": use_beta_sigmoid_in_kernel, "allow_neg_eigval": allow_neg_eigval,
    }
    state = initial_state
    if state_v_first and state is not None:
        state = _swapped(state)

    if cp_context is None:
        result = _packed(entries, q, k, v, g, beta, _offsets(cu_seqlens, cu_seqlens_cpu), state, options)
    else:
        result = _over_ranks(entries, q, k, v, g, beta, cp_context, state, options)
    if not output_final_state:
        return result, None
    out, final_state = result
    return out, _swapped(final_state) if state_v_first else final_state


def _packed(entries: Entries, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
            offsets: torch.Tensor | None, state: torch.Tensor | None, options: dict[str, Any]) -> Any:
    if offsets is not None and q.shape[0] != 1:
        raise ValueError(f"q has batch size {q.shape[0]} with cu_seqlens; expected 1: pack the documents into one row")
    return entries.kda()(q, k, v, g, beta, offsets, initial_state=state, **options)


def _over_ranks(entries: Entries, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor,
                beta: torch.Tensor, context: Any, state: torch.Tensor | None, options: dict[str, Any]) -> Any:
    from . import _cp_context

    kcp = entries.kcp()
    if not isinstance(context, kcp.context_type):
        if not _cp_context.is_cp_context(context):
            raise TypeError(f"cp_context is a {type(context).__name__}; accepted: {kcp.context_type.__name__}, or an "
                            "object with group, cu_seqlens and is_first_rank or pre_num_ranks (FLACPContext)")
        refused = {"initial_state": state is not None, "output_final_state": options["output_final_state"]}
        for name, given in refused.items():
            if given:
                raise ValueError(f"{name} was given with a {type(context).__name__}, whose ranks hold no numbers of "
                                 f"documents; accepted with a {kcp.context_type.__name__}")
        if context.group is None:
            offsets = _offsets(context.cu_seqlens, getattr(context, "cu_seqlens_cpu", None))
            return _packed(entries, q, k, v, g, beta, offsets, state, options)
        context = _cp_context.kcp_context(kcp, context, q.device)
    return kcp.run(q, k, v, g, beta, context, initial_state=state, **options)


def _refuse_unbuilt(return_intermediate_states: bool, use_graph: bool, max_num_seqs: int | None) -> None:
    if return_intermediate_states:
        raise NotImplementedError("return_intermediate_states=True: states of single chunks are for inference and not "
                                  "built; accepted: False")
    if use_graph:
        raise NotImplementedError("use_graph=True: capture with a padded number of documents is not built; accepted: "
                                  "False")
    if max_num_seqs is not None:
        raise NotImplementedError(f"max_num_seqs={max_num_seqs!r}: a part of use_graph, which is not built; accepted: "
                                  "None")


def _state_layout(state_v_first: bool, transpose_state_layout: bool | None) -> bool:
    if transpose_state_layout is None:
        return state_v_first
    if state_v_first:
        raise ValueError("transpose_state_layout and state_v_first were both given; they are old and new name of one "
                         "option")
    # The caller of chunk_kda: 1 is this function, 2 run_chunk_kda, 3 chunk_kda.
    warnings.warn("transpose_state_layout is the old name of state_v_first", DeprecationWarning, stacklevel=4)
    return transpose_state_layout


def _gate_bound(use_gate_in_kernel: bool, safe_gate: bool, lower_bound: float | None) -> float | None:
    """The lower bound that the operator gets: none with plain decays, of which it is only a promise."""
    if use_gate_in_kernel:
        if safe_gate and lower_bound is None:
            raise ValueError("lower_bound is None with safe_gate and use_gate_in_kernel; expected a number in "
                             f"[{_SAFE_LOWER_BOUND:g}, 0)")
        if safe_gate and not _SAFE_LOWER_BOUND <= lower_bound < 0:
            raise ValueError(f"lower_bound is {lower_bound!r} with safe_gate; expected a number in "
                             f"[{_SAFE_LOWER_BOUND:g}, 0)")
        return lower_bound
    if lower_bound is not None and not safe_gate:
        raise ValueError(f"lower_bound is {lower_bound!r} without use_gate_in_kernel; without it only safe_gate=True "
                         "gives lower_bound a meaning: that g is at least that")
    return None


def _swapped(state: torch.Tensor) -> torch.Tensor:
    """`[N, HV, K, V]` from `[N, HV, V, K]` or the other way round, contiguous."""
    return state.transpose(-1, -2).contiguous()


def _offsets(cu_seqlens: torch.Tensor | None, cu_seqlens_cpu: torch.Tensor | None) -> torch.Tensor | None:
    """int32 offsets on the CPU."""
    import torch

    if cu_seqlens is None:
        if cu_seqlens_cpu is not None:
            raise ValueError("cu_seqlens_cpu was given without cu_seqlens, of which it is the copy on the CPU")
        return None
    for name, table in (("cu_seqlens", cu_seqlens), ("cu_seqlens_cpu", cu_seqlens_cpu)):
        if table is None:
            continue
        if not isinstance(table, torch.Tensor) or table.dtype not in (torch.int32, torch.int64) or table.dim() != 1:
            given = f"{table.dtype} {list(table.shape)}" if isinstance(table, torch.Tensor) else type(table).__name__
            raise TypeError(f"{name} is {given}; expected an int32 or int64 tensor [N + 1]")
    table = cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu
    if table.device.type != "cpu":
        name = "cu_seqlens" if cu_seqlens_cpu is None else "cu_seqlens_cpu"
        raise NotImplementedError(f"{name} is on {table.device}; this version reads offsets on the CPU: give "
                                  "cu_seqlens_cpu")
    if table is not cu_seqlens and cu_seqlens.device.type == "cpu" and cu_seqlens.tolist() != table.tolist():
        raise ValueError("cu_seqlens and cu_seqlens_cpu hold different offsets; expected copies of each other")
    if table.dtype == torch.int64:
        for x in table.tolist():
            if not -_INT32_MAX - 1 <= x <= _INT32_MAX:
                raise ValueError(f"cu_seqlens holds {x}; expected offsets of at most {_INT32_MAX}, as they are kept in "
                                 "int32")
    return table.to(torch.int32)
