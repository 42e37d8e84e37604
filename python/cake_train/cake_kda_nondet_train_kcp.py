"""KDA (Kimi Delta Attention) training over ranks, nondeterministic: every rank holds a part of the packed rows (context
parallel); gradients are right and may differ in their last bits from run to run and between numbers of ranks.

    S <- diag(exp g_t) S;  r = beta_t (v_t - S^T k_t);  S <- S + k_t r^T;  o_t = scale S^T q_t

Same operands, options, errors and tolerances as the deterministic package. Segments end at the borders between ranks,
so that one state crosses each border, and the sums for A_log and dt_bias are added as tasks finish.

A partition says which rank holds which rows; a context is a partition as one rank sees it. Every entry that takes a
context is collective, except the byte queries: all ranks make the same calls in the same order with the same options.
The arguments of all ranks are checked and compared before anything is written. Where one rank's are wrong, that rank
raises its error and the others RuntimeError with its number and message; where ranks disagree, all raise the same
ValueError, naming what differs. The group stays usable. A rank that does not come makes the others raise RuntimeError
within the time limit of their group.

Shapes, with S = ctx.rows rows of this rank and N documents of the whole pack: q, k `[1, S, H, K]`; v, out
`[1, S, HV, V]`, HV a multiple of H; g `[1, S, HV, K]`; beta `[1, S, HV]`; states `[N, HV, K, V]`; 1 <= K, V <= 256. q,
k, v and beta share one of float32, bfloat16, float16 (beta may be float32); g is float32, the natural logarithm of the
decay and <= 0, or with use_gate_in_kernel raw and of any of the three; states, A_log and dt_bias are float32. Any
strides. The CPU is the device of this version.

The rank with a document's first row reads its initial state and writes its gradient; the rank with its last row writes
its final state and reads its gradient; elsewhere they are exact 0, so that a sum over ranks is the whole.

CakeKcpContext, CakeKcpPartition and CakeKcpRecomputeHandle are those of cake_train.cake_kcp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from ._backend.kda_nondet_train_kcp import (
        CakeKDANondetKcpPartials,
        CakeKDANondetKcpSaved,
        CakeKDANondetKcpWorkspace,
    )

__all__ = [
    "CakeKDANondetKcpPartials",
    "CakeKDANondetKcpSaved",
    "CakeKDANondetKcpWorkspace",
    "cake_kda_nondet_kcp",
    "cake_kda_nondet_train_kcp_backward",
    "cake_kda_nondet_train_kcp_build_context",
    "cake_kda_nondet_train_kcp_comm_bytes",
    "cake_kda_nondet_train_kcp_forward",
    "cake_kda_nondet_train_kcp_handoff_bytes",
    "cake_kda_nondet_train_kcp_handoff_stats",
    "cake_kda_nondet_train_kcp_partition",
    "cake_kda_nondet_train_kcp_reduce_gate_param_grads",
    "cake_kda_nondet_train_kcp_saved_bytes",
    "cake_kda_nondet_train_kcp_workspace",
    "cake_kda_nondet_train_kcp_workspace_bytes",
    "is_cake_kda_nondet_train_kcp_supported",
]

_LAZY_EXPORTS = {
    "CakeKcpContext": ("._backend.kcp", "CakeKcpContext"),
    "CakeKcpPartition": ("._backend.kcp", "CakeKcpPartition"),
    "CakeKcpRecomputeHandle": ("._backend.kcp", "CakeKcpRecomputeHandle"),
    "CakeKDANondetKcpPartials": ("._backend.kda_nondet_train_kcp", "CakeKDANondetKcpPartials"),
    "CakeKDANondetKcpSaved": ("._backend.kda_nondet_train_kcp", "CakeKDANondetKcpSaved"),
    "CakeKDANondetKcpWorkspace": ("._backend.kda_nondet_train_kcp", "CakeKDANondetKcpWorkspace"),
}
__getattr__ = lazy_exports(__name__, _LAZY_EXPORTS)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__) | set(_LAZY_EXPORTS))


def is_cake_kda_nondet_train_kcp_supported(device: Any = None) -> bool:
    """Whether this version has an implementation for the device (None: the CPU)."""
    from ._backend import kda_nondet_train_kcp as backend

    return backend.is_cake_kda_nondet_train_kcp_supported(device)


def cake_kda_nondet_train_kcp_partition(
    cu_seqlens_global_cpu: Any, world_size: int, layout: str = "contiguous",
    fragments: Sequence[Sequence[Sequence[int]]] | None = None, *, cut_points: Sequence[int] | None = None) -> Any:
    """Which rank holds which rows of a pack: a CakeKcpPartition. Not collective.

    cu_seqlens_global_cpu: the pack's offsets `[N + 1]` (integers; a tensor, array or list on the host), first 0,
    non-decreasing. layout: "contiguous" (world_size equal parts of the packed rows), "zigzag" (2 world_size parts, rank
    r holds parts r and 2 world_size - 1 - r) or "zigzag_per_document" (the same for every document on its own); parts
    that do not divide evenly differ by one row. cut_points: world_size - 1 packed rows; rank r holds those from cut r -
    1 to cut r. fragments: by rank a list of (document, first row in it, rows), which may be empty. At most one of
    layout, cut_points and fragments.

    Raises ValueError (offsets, a layout, a row on two ranks or on none), TypeError.
    """
    from ._backend import kda_nondet_train_kcp as backend

    return backend.cake_kda_nondet_train_kcp_partition(cu_seqlens_global_cpu, world_size, layout, fragments, cut_points)


def cake_kda_nondet_train_kcp_build_context(
    partition: Any, group: Any, rank: int, device: Any = "cpu", conv_kernel_size: int = 4, *, heads: Any = None,
    stream: Any = None) -> Any:
    """A partition as this rank sees it: a CakeKcpContext, which holds no mode and serves every layer and both packages.
    Collective over the group: all ranks give the same partition and conv_kernel_size.

    group: a torch.distributed process group whose backend moves memory of the CPU (gloo), None for the default one, or
    a cake_train.comm.ThreadGroup. rank: this rank in the group. device: "cpu". conv_kernel_size: taps of a causal
    convolution whose halo exchange is planned. heads, stream: not built (NotImplementedError), accepted: None. A
    process group carries this context's messages beside the program's own: point-to-point tags from 2 ** 20 on are
    used.

    Raises ValueError (a partition for another number of ranks, a field that differs between ranks), TypeError,
    NotImplementedError (device, backend), RuntimeError (a rank that does not answer).
    """
    from ._backend import kda_nondet_train_kcp as backend

    return backend.cake_kda_nondet_train_kcp_build_context(partition, group, rank, device, conv_kernel_size, heads,
        stream)


def cake_kda_nondet_kcp(
    q: Any, k: Any, v: Any, g: Any, beta: Any, ctx: Any, *, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, workspace: CakeKDANondetKcpWorkspace | None = None, save_mode: str | None = None,
    exchange: str = "auto", save_transfer: bool | None = None, recompute_handle: Any = None,
    checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto", saved_rows: str = "auto",
    gate_param_grads: str = "local", use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> Any:
    """KDA over ranks with autograd, on torch tensors of this rank's rows: out, or (out, final_state) with
    output_final_state. Forward and backward are collective.

    ctx: a CakeKcpContext. q, k: `[1, ctx.rows, H, K]`, the rest as the module says. scale: of the output, K ** -0.5
    when None. initial_state: float32 `[N, HV, K, V]`, zero when None. use_gate_in_kernel: the decay is -exp(A_log)
    softplus(g + dt_bias), A_log `[HV]`, dt_bias `[HV, K]` or `[HV * K]` (optional); with lower_bound (< 0) it is
    lower_bound * sigmoid(exp(A_log) (g + dt_bias)). use_qk_l2norm_in_kernel: rows of q and k are divided by sqrt(sum of
    squares + 1e-6). use_beta_sigmoid_in_kernel: beta is a logit; allow_neg_eigval doubles it after the sigmoid.
    save_mode: what is kept for the backward, "light" (default) or "tape" (more memory, less work). workspace: scratch
    memory to use again.

    exchange: how states reach other ranks, "relay", "gather" or "auto" (gather while a rank receives at most 1 MiB by
    it). save_transfer: keep the transitions for the backward (default), else it makes them again. recompute_handle: a
    CakeKcpRecomputeHandle made outside of a checkpointed region: the first forward stores what it receives from other
    ranks, the recompute communicates nothing; all ranks pass one, or none. checkpoint_keep: what it keeps, "transfer"
    (default) or "states"; fixes save_transfer, and a contradiction is a ValueError. checkpoint_handoff ("auto": yes)
    and saved_rows: a forward that replays a recompute handle leaves rows in its workspace, and the backward that
    follows with the same workspace rebuilds less, with the same bits; "tape" (what "auto" means on the CPU) or "none",
    while "wy" and "intra" are a NotImplementedError there.

    gate_param_grads: "local" gives the gradients of A_log and dt_bias as this rank's share, which a framework sums over
    ranks like any other parameter's; "global" gives the total of all ranks on every rank (do not sum it again).
    Gradients have the dtype of their operand. Under torch.use_deterministic_algorithms(True) every backward of a pack
    with rows raises RuntimeError on every rank before it writes anything, with warn_only=True it warns once and runs;
    the switch is read when the backward runs. The forward never alerts. Works under torch.utils.checkpoint and autocast
    (which leaves its operands as they are); a retained graph may run its backward again; there is no second derivative
    and no vmap. The context is kept until the graph is freed.

    Raises ValueError (shape, dtype, a missing or contradicting option, one that differs between ranks, an object of the
    other mode), TypeError, NotImplementedError, MemoryError, RuntimeError (another rank's error, a rank that does not
    answer, the alert). The message names the argument.
    """
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, save_mode=save_mode, exchange=exchange, save_transfer=save_transfer,
        checkpoint_keep=checkpoint_keep, checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    return backend.cake_kda_nondet_kcp(q, k, v, g, beta, ctx, initial_state, output_final_state, workspace,
        recompute_handle, gate_param_grads, A_log, dt_bias, options)


def cake_kda_nondet_train_kcp_forward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, ctx: Any, *, scale: float | None = None, initial_state: Any = None,
    output_final_state: bool = False, save_for_backward: bool = True, save_mode: str | None = None,
    workspace: CakeKDANondetKcpWorkspace | None = None, exchange: str = "auto", save_transfer: bool | None = None,
    recompute_handle: Any = None, checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto",
    saved_rows: str = "auto", out: Any = None, final_state: Any = None, use_gate_in_kernel: bool = False,
    A_log: Any = None, dt_bias: Any = None, lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False) -> tuple[Any, ...]:
    """The forward without autograd, on torch tensors or numpy arrays of this rank's rows: (out, saved or None[,
    final_state]). Collective.

    Arguments and errors as in cake_kda_nondet_kcp. save_for_backward: also return the CakeKDANondetKcpSaved that the
    backward reads. out, final_state: caller's buffers `[1, ctx.rows, HV, V]` in the dtype of q and float32 `[N, HV, K,
    V]`; a final_state buffer implies output_final_state. Never alerts.
    """
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, save_mode=save_mode, exchange=exchange, save_transfer=save_transfer,
        checkpoint_keep=checkpoint_keep, checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    return backend.cake_kda_nondet_train_kcp_forward(q, k, v, g, beta, ctx, initial_state, output_final_state,
        save_for_backward, workspace, recompute_handle, out, final_state, A_log, dt_bias, options)


def cake_kda_nondet_train_kcp_backward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, ctx: Any, dout: Any, *, saved: CakeKDANondetKcpSaved | None = None,
    d_final_state: Any = None, scale: float | None = None, initial_state: Any = None,
    workspace: CakeKDANondetKcpWorkspace | None = None, save_mode: str | None = None, exchange: str = "auto",
    save_transfer: bool | None = None, checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto",
    saved_rows: str = "auto", dq: Any = None, dk: Any = None, dv: Any = None, dg: Any = None, dbeta: Any = None,
    dinitial_state: Any = None, use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> tuple[Any, ...]:
    """The backward without autograd: gradients of q, k, v, g, beta[, a CakeKDANondetKcpPartials][, initial_state], for
    what is given. Collective.

    dout: `[1, ctx.rows, HV, V]` in the dtype of q. d_final_state: float32 `[N, HV, K, V]`, zero when None; the rank
    with a document's last row reads it. saved: of the forward of the same operands, context and options; without it
    everything is computed again from the inputs, with the forward's communication, and the same bits. With A_log or
    dt_bias the result holds this rank's sums for their gradients as one object: its local_grads() is the rank's share,
    cake_kda_nondet_train_kcp_reduce_gate_param_grads the total. dq, dk, dv, dg, dbeta, dinitial_state: caller's
    buffers. May be called again.

    Other arguments and errors as in cake_kda_nondet_kcp; a saved set that is empty or of another problem, partition or
    options is a ValueError. It alerts as described in cake_kda_nondet_kcp, in the name of this entry.
    """
    from ._backend import kda_nondet_train_kcp as backend

    buffers = dict(dq=dq, dk=dk, dv=dv, dg=dg, dbeta=dbeta, dinitial_state=dinitial_state)
    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval, save_mode=save_mode, exchange=exchange, save_transfer=save_transfer,
        checkpoint_keep=checkpoint_keep, checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    return backend.cake_kda_nondet_train_kcp_backward(q, k, v, g, beta, ctx, dout, saved, d_final_state, initial_state,
        workspace, A_log, dt_bias, buffers, options)


def cake_kda_nondet_train_kcp_reduce_gate_param_grads(ctx: Any, gate_partials: Any) -> tuple[Any, Any]:
    """(dA_log, ddt_bias) over all ranks, equal bits on each: float32 in the shapes of A_log and dt_bias, None for one
    that the backward was not given. Collective.

    gate_partials: the CakeKDANondetKcpPartials of a backward on ctx. Raises ValueError (those of another context or
    mode, empty ones), TypeError, RuntimeError (another rank's error).
    """
    from ._backend import kda_nondet_train_kcp as backend

    return backend.cake_kda_nondet_train_kcp_reduce_gate_param_grads(ctx, gate_partials)


def cake_kda_nondet_train_kcp_workspace(
    ctx: Any, *, H: int, HV: int | None = None, K: int = 128, V: int = 128, dtype: Any = "float32",
    gate_dtype: Any = "float32", beta_dtype: Any = None, backward: bool = True, save_mode: str | None = None,
    exchange: str = "auto", save_transfer: bool | None = None, checkpoint_keep: str | None = None,
    checkpoint_handoff: bool | str = "auto", saved_rows: str = "auto", gate_param_grads: bool = False,
    initial_state: bool = False) -> CakeKDANondetKcpWorkspace:
    """A workspace that is sized now and never grows, for forwards and (unless backward is False) backwards on ctx, with
    H heads of q and k and HV of v (H when None). Not collective.

    dtype: of q, k, v, out; gate_dtype: of g; beta_dtype: of beta (dtype when None); each "float32", "bfloat16",
    "float16" or torch's own. gate_param_grads, initial_state: the backwards give gradients of A_log or dt_bias, and of
    an initial state. It has room for handed-off rows. The rest as in cake_kda_nondet_kcp. A call that needs more raises
    MemoryError before it writes anything.
    """
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(save_mode=save_mode, exchange=exchange, save_transfer=save_transfer, checkpoint_keep=checkpoint_keep,
        checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    shape = dict(H=H, HV=HV, K=K, V=V, dtype=dtype, gate_dtype=gate_dtype, beta_dtype=beta_dtype,
        gate_param_grads=gate_param_grads, initial_state=initial_state)
    return backend.cake_kda_nondet_train_kcp_workspace(ctx, shape, backward, options)


def cake_kda_nondet_train_kcp_workspace_bytes(
    ctx: Any, *, H: int, HV: int | None = None, K: int = 128, V: int = 128, dtype: Any = "float32",
    gate_dtype: Any = "float32", beta_dtype: Any = None, backward: bool = True, save_mode: str | None = None,
    exchange: str = "auto", save_transfer: bool | None = None, checkpoint_keep: str | None = None,
    checkpoint_handoff: bool | str = "auto", saved_rows: str = "auto", gate_param_grads: bool = False,
    initial_state: bool = False) -> int:
    """Bytes of a workspace of this rank for the current number of threads, without handed-off rows; arguments as in
    cake_kda_nondet_train_kcp_workspace. Not collective."""
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(save_mode=save_mode, exchange=exchange, save_transfer=save_transfer, checkpoint_keep=checkpoint_keep,
        checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    shape = dict(H=H, HV=HV, K=K, V=V, dtype=dtype, gate_dtype=gate_dtype, beta_dtype=beta_dtype,
        gate_param_grads=gate_param_grads, initial_state=initial_state)
    return backend.cake_kda_nondet_train_kcp_workspace_bytes(ctx, shape, backward, options)


def cake_kda_nondet_train_kcp_saved_bytes(
    ctx: Any, *, H: int, HV: int | None = None, K: int = 128, V: int = 128, dtype: Any = "float32",
    gate_dtype: Any = "float32", beta_dtype: Any = None, save_mode: str | None = None, exchange: str = "auto",
    save_transfer: bool | None = None, checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto",
    saved_rows: str = "auto", gate_param_grads: bool = False, initial_state: bool = False) -> int:
    """Bytes of this rank's saved set; arguments as in cake_kda_nondet_train_kcp_workspace. Not collective."""
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(save_mode=save_mode, exchange=exchange, save_transfer=save_transfer, checkpoint_keep=checkpoint_keep,
        checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    shape = dict(H=H, HV=HV, K=K, V=V, dtype=dtype, gate_dtype=gate_dtype, beta_dtype=beta_dtype,
        gate_param_grads=gate_param_grads, initial_state=initial_state)
    return backend.cake_kda_nondet_train_kcp_saved_bytes(ctx, shape, options)


def cake_kda_nondet_train_kcp_comm_bytes(
    ctx: Any, *, H: int, HV: int | None = None, K: int = 128, V: int = 128, dtype: Any = "float32",
    gate_dtype: Any = "float32", beta_dtype: Any = None, save_mode: str | None = None, exchange: str = "auto",
    save_transfer: bool | None = None, checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto",
    saved_rows: str = "auto", gate_param_grads: bool = False,
    initial_state: bool = False) -> dict[str, tuple[int, int]]:
    """Bytes that this rank (sends, receives) in a forward and its backward from a saved set, by phase: halo_fwd and
    halo_bwd (rows of cut chunks and what comes back for them), c1 and b1 (inside cut segments), c2 and b2 (between
    segments), gate_params (the reduction). Arguments as in cake_kda_nondet_train_kcp_workspace. Not collective."""
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(save_mode=save_mode, exchange=exchange, save_transfer=save_transfer, checkpoint_keep=checkpoint_keep,
        checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    shape = dict(H=H, HV=HV, K=K, V=V, dtype=dtype, gate_dtype=gate_dtype, beta_dtype=beta_dtype,
        gate_param_grads=gate_param_grads, initial_state=initial_state)
    return backend.cake_kda_nondet_train_kcp_comm_bytes(ctx, shape, options)


def cake_kda_nondet_train_kcp_handoff_bytes(
    ctx: Any, *, H: int, HV: int | None = None, K: int = 128, V: int = 128, dtype: Any = "float32",
    gate_dtype: Any = "float32", beta_dtype: Any = None, save_mode: str | None = None, exchange: str = "auto",
    save_transfer: bool | None = None, checkpoint_keep: str | None = None, checkpoint_handoff: bool | str = "auto",
    saved_rows: str = "auto", gate_param_grads: bool = False, initial_state: bool = False) -> int:
    """Bytes that handed-off rows take beside those of a workspace; 0 where the options ask for none. Arguments as in
    cake_kda_nondet_train_kcp_workspace. Not collective."""
    from ._backend import kda_nondet_train_kcp as backend

    options = dict(save_mode=save_mode, exchange=exchange, save_transfer=save_transfer, checkpoint_keep=checkpoint_keep,
        checkpoint_handoff=checkpoint_handoff, saved_rows=saved_rows)
    shape = dict(H=H, HV=HV, K=K, V=V, dtype=dtype, gate_dtype=gate_dtype, beta_dtype=beta_dtype,
        gate_param_grads=gate_param_grads, initial_state=initial_state)
    return backend.cake_kda_nondet_train_kcp_handoff_bytes(ctx, shape, options)


def cake_kda_nondet_train_kcp_handoff_stats(workspace: CakeKDANondetKcpWorkspace) -> dict[str, int]:
    """What the hand-off of a workspace has done since it was made: save (forwards that left rows), bound (backwards
    that used them), refused_memory, refused_overwritten, refused_workspace, refused_option. Raises TypeError, or
    ValueError for a workspace of the other mode."""
    from ._backend import kda_nondet_train_kcp as backend

    return backend.cake_kda_nondet_train_kcp_handoff_stats(workspace)
