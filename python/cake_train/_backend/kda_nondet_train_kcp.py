"""cake_kda_nondet_train_kcp: the package's classes, and its entries bound to the library of its mode. The facade of the
same name has the documentation of the entries."""

from __future__ import annotations

from typing import Any, Sequence

from . import kcp, kda_kcp, objects

_package = kda_kcp.Package("nondet")


class CakeKDANondetKcpSaved(objects.LibraryObject):
    """What a forward kept for its backward: made by cake_kda_nondet_train_kcp_forward, read by the backward of this
    package only. `tag` says what it is."""

    tag = "cake/kda/nondet/kcp/saved/v1"

    def __init__(self) -> None:
        super().__init__(_package.call("make_saved"))

    def nbytes(self) -> int:
        """Bytes in use, 0 until a forward has filled it."""
        return _package.call("saved_nbytes", self._handle)


class CakeKDANondetKcpWorkspace(objects.LibraryObject):
    """Scratch memory for any number of calls of this package, one after another, of any layer and context. It grows
    when a call needs more, unless it was made for a shape (cake_kda_nondet_train_kcp_workspace)."""

    tag = "cake/kda/nondet/kcp/workspace/v1"

    def __init__(self) -> None:
        super().__init__(_package.call("make_workspace"))

    def nbytes(self) -> int:
        """Bytes it holds."""
        return _package.call("workspace_nbytes", self._handle)

    def handoff_stats(self) -> dict[str, int]:
        """What the hand-off of this workspace has done: save (forwards that left rows), bound (backwards that used
        them), refused_memory, refused_overwritten, refused_workspace, refused_option."""
        return dict(zip(kda_kcp.HANDOFF_STATS, (int(n) for n in _package.call("handoff_stats", self._handle))))


class CakeKDANondetKcpPartials(kda_kcp.PartialsBase):
    """This rank's sums for the gradients of A_log and dt_bias, made by cake_kda_nondet_train_kcp_backward: a rank's
    share (local_grads) until cake_kda_nondet_train_kcp_reduce_gate_param_grads brings the ranks together."""

    tag = "cake/kda/nondet/kcp/partials/v1"
    _package = _package


def is_cake_kda_nondet_train_kcp_supported(device: Any = None) -> bool:
    """See the facade."""
    return device is None or str(device).split(":")[0] == "cpu"


def cake_kda_nondet_train_kcp_partition(
    cu_seqlens_global_cpu: Any, world_size: int, layout: str, fragments: Any, cut_points: Sequence[int] | None
) -> kcp.CakeKcpPartition:
    """See the facade."""
    return kcp.partition(cu_seqlens_global_cpu, world_size, layout, fragments, cut_points)


def cake_kda_nondet_train_kcp_build_context(
    partition: Any, group: Any, rank: int, device: Any, conv_kernel_size: int, heads: Any, stream: Any
) -> kcp.CakeKcpContext:
    """See the facade."""
    return kcp.build_context(partition, group, rank, device, conv_kernel_size, heads, stream)


def cake_kda_nondet_kcp(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    ctx: Any,
    initial_state: Any,
    output_final_state: bool,
    workspace: Any,
    recompute_handle: Any,
    gate_param_grads: str,
    A_log: Any,
    dt_bias: Any,
    options: dict[str, Any],
) -> Any:
    """See the facade."""
    from .kda_nondet_train_kcp_torch import operators

    return operators.autograd(
        ctx,
        (q, k, v, g, beta, initial_state, A_log, dt_bias),
        workspace,
        recompute_handle,
        output_final_state,
        gate_param_grads,
        options,
    )


def cake_kda_nondet_train_kcp_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    ctx: Any,
    initial_state: Any,
    output_final_state: bool,
    save_for_backward: bool,
    workspace: Any,
    recompute_handle: Any,
    out: Any,
    final_state: Any,
    A_log: Any,
    dt_bias: Any,
    options: dict[str, Any],
) -> Any:
    """See the facade."""
    saved = CakeKDANondetKcpSaved() if save_for_backward else None
    operands = (q, k, v, g, beta, initial_state, A_log, dt_bias)
    out, final_state = kda_kcp.forward(
        _package,
        ctx,
        saved,
        operands,
        output_final_state,
        workspace,
        recompute_handle,
        out,
        final_state,
        options,
    )
    return (out, saved, final_state) if final_state is not None else (out, saved)


def cake_kda_nondet_train_kcp_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    ctx: Any,
    dout: Any,
    saved: Any,
    d_final_state: Any,
    initial_state: Any,
    workspace: Any,
    A_log: Any,
    dt_bias: Any,
    buffers: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """See the facade."""
    operands = (q, k, v, g, beta, initial_state, A_log, dt_bias)
    gradients = kda_kcp.gradient_buffers(_package, ctx, operands, buffers)
    partials = None if A_log is None and dt_bias is None else CakeKDANondetKcpPartials(A_log, dt_bias)
    kda_kcp.backward(
        _package,
        "cake_kda_nondet_train_kcp_backward",
        ctx,
        operands,
        dout,
        d_final_state,
        saved,
        workspace,
        gradients,
        None if partials is None else partials._handle,
        options,
    )
    found = [*gradients[:5], partials, gradients[5]]
    return tuple(x for x in found if x is not None)


def cake_kda_nondet_train_kcp_reduce_gate_param_grads(ctx: Any, gate_partials: Any) -> tuple[Any, Any]:
    """See the facade."""
    return kda_kcp.reduce_gate_param_grads(_package, ctx, gate_partials)


def cake_kda_nondet_train_kcp_workspace(
    ctx: Any, shape: dict[str, Any], backward: bool, options: dict[str, Any]
) -> CakeKDANondetKcpWorkspace:
    """See the facade."""
    size = kda_kcp.workspace_bytes(_package, ctx, kda_kcp.shape_of(**shape), backward, options, True)
    workspace = CakeKDANondetKcpWorkspace.__new__(CakeKDANondetKcpWorkspace)
    objects.LibraryObject.__init__(workspace, _package.call("workspace_of_bytes", size))
    return workspace


def cake_kda_nondet_train_kcp_workspace_bytes(
    ctx: Any, shape: dict[str, Any], backward: bool, options: dict[str, Any]
) -> int:
    """See the facade."""
    return kda_kcp.workspace_bytes(_package, ctx, kda_kcp.shape_of(**shape), backward, options, False)


def cake_kda_nondet_train_kcp_saved_bytes(ctx: Any, shape: dict[str, Any], options: dict[str, Any]) -> int:
    """See the facade."""
    sizes = kda_kcp.shape_of(**shape)
    return _package.call("saved_bytes", kda_kcp.context_handle(ctx), sizes, kda_kcp.byte_options(options))


def cake_kda_nondet_train_kcp_comm_bytes(
    ctx: Any, shape: dict[str, Any], options: dict[str, Any]
) -> dict[str, tuple[int, int]]:
    """See the facade."""
    return kda_kcp.comm_bytes(_package, ctx, kda_kcp.shape_of(**shape), options)


def cake_kda_nondet_train_kcp_handoff_bytes(ctx: Any, shape: dict[str, Any], options: dict[str, Any]) -> int:
    """See the facade."""
    sizes = kda_kcp.shape_of(**shape)
    return _package.call("handoff_bytes", kda_kcp.context_handle(ctx), sizes, kda_kcp.byte_options(options))


def cake_kda_nondet_train_kcp_handoff_stats(workspace: Any) -> dict[str, int]:
    """See the facade."""
    if workspace is None:
        raise TypeError("workspace must be a CakeKDANondetKcpWorkspace")
    handle = objects.handle_of(workspace, "workspace", "CakeKDANondetKcpWorkspace")
    return dict(zip(kda_kcp.HANDOFF_STATS, (int(n) for n in _package.call("handoff_stats", handle))))

def _implementations() -> list[str]:
    return [str(line) for line in _package.call("implementations")]
