"""cake_kda_det_train: the package's classes, and its entries bound to the library of its mode. The facade of the
same name has the documentation of the entries."""

from __future__ import annotations

from typing import Any

from . import arrays, kda, objects

_package = kda.Package("det")


class CakeKDADetSaved(objects.LibraryObject):
    """What a forward kept for its backward: made by cake_kda_det_train_forward, read by the backward of this package
    only. `tag` says what it is."""

    tag = "cake/kda/det/saved/v1"

    def __init__(self) -> None:
        super().__init__(_package.call("make_saved"))

    def nbytes(self) -> int:
        """Bytes in use, 0 until a forward has filled it."""
        return _package.call("saved_nbytes", self._handle)


class CakeKDADetWorkspace(objects.LibraryObject):
    """Scratch memory for any number of calls of this package, one after another, of any layer. It grows when a call
    needs more, unless it was made for a shape (cake_kda_det_train_workspace)."""

    tag = "cake/kda/det/workspace/v1"

    def __init__(self) -> None:
        super().__init__(_package.call("make_workspace"))

    def nbytes(self) -> int:
        """Bytes it holds."""
        return _package.call("workspace_nbytes", self._handle)


class CakeKDADetArena(objects.LibraryObject):
    """Scratch memory together with options that make it smaller for more work; the results have the same bits.
    Made by cake_kda_det_train_arena."""

    tag = "cake/kda/det/workspace/v1"

    def __init__(
        self,
        lean: bool = False,
        tail_passes: int = 1,
        batch_tokens: int | None = None,
        max_docs_per_batch: int | None = None,
    ) -> None:
        for name, value in (
            ("tail_passes", tail_passes),
            ("batch_tokens", batch_tokens),
            ("max_docs_per_batch", max_docs_per_batch),
        ):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}: got {value!r}, expected 1 or more")
        super().__init__(_package.call("make_workspace"))
        self._options = kda.given(
            lean=bool(lean), tail_passes=tail_passes, batch_tokens=batch_tokens, max_docs_per_batch=max_docs_per_batch
        )

    def nbytes(self) -> int:
        """Bytes it holds."""
        return _package.call("workspace_nbytes", self._handle)


class CakeKDADetPlan(objects.LibraryObject):
    """A call resolved once: shapes, strides, dtypes, options and offsets are checked and all memory is reserved, so
    that running it allocates nothing. Made by cake_kda_det_train_prepare. Later operands may lie elsewhere and hold
    other numbers; everything else must be as planned (ValueError naming the operand)."""

    tag = "cake/kda/det/plan/v1"

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        cu_seqlens: Any = None,
        *,
        out: Any,
        initial_state: Any = None,
        A_log: Any = None,
        dt_bias: Any = None,
        final_state: Any = None,
    ) -> None:
        """Runs the forward into `out` and, where planned, `final_state`."""
        _package.call(
            "plan_forward",
            self._handle,
            *kda.operand_list(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
            arrays.wire(out, "out", writable=True),
            arrays.wire(final_state, "final_state", writable=True),
        )

    def backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        cu_seqlens: Any,
        dout: Any,
        *,
        dq: Any = None,
        dk: Any = None,
        dv: Any = None,
        dg: Any = None,
        dbeta: Any = None,
        dA_log: Any = None,
        ddt_bias: Any = None,
        dinitial_state: Any = None,
        d_final_state: Any = None,
        initial_state: Any = None,
        A_log: Any = None,
        dt_bias: Any = None,
    ) -> None:
        """Runs the backward of the last forward into the planned buffers; may run again."""
        arrays.require(dout, "dout")
        buffers = dict(
            dq=dq, dk=dk, dv=dv, dg=dg, dbeta=dbeta, dA_log=dA_log, ddt_bias=ddt_bias, dinitial_state=dinitial_state
        )
        _package.call(
            "plan_backward",
            self._handle,
            *kda.operand_list(q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
            arrays.wire(dout, "dout"),
            arrays.wire(d_final_state, "d_final_state"),
            *(arrays.wire(x, name, writable=True) for name, x in buffers.items()),
            *_package.alert("CakeKDADetPlan.backward"),
        )

    def nbytes(self) -> int:
        """Bytes it holds."""
        return _package.call("plan_nbytes", self._handle)


def is_cake_kda_det_train_supported(device: Any = None) -> bool:
    """See the facade."""
    return device is None or str(device).split(":")[0] == "cpu"


def cake_kda_det(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    scale: Any,
    initial_state: Any,
    output_final_state: bool,
    workspace: Any,
    save_mode: Any,
    arena: Any,
    doc_lengths: Any,
    out: Any,
    use_gate_in_kernel: bool,
    A_log: Any,
    dt_bias: Any,
    lower_bound: Any,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
) -> Any:
    """See the facade."""
    from . import kda_det_train_torch, kda_torch

    if doc_lengths is not None:
        cu_seqlens = kda.offsets_of(cu_seqlens, doc_lengths, q)
    return kda_torch.autograd(
        kda_det_train_torch.operators,
        _package,
        (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
        workspace,
        arena,
        save_mode,
        out,
        output_final_state,
        (scale, lower_bound, use_gate_in_kernel, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval),
    )


def cake_kda_det_train_forward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    initial_state: Any,
    output_final_state: bool,
    save_for_backward: bool,
    workspace: Any,
    save_mode: Any,
    arena: Any,
    doc_lengths: Any,
    out: Any,
    final_state: Any,
    A_log: Any,
    dt_bias: Any,
    options: dict[str, Any],
) -> Any:
    """See the facade."""
    cu_seqlens = kda.offsets_of(cu_seqlens, doc_lengths, q)
    saved = CakeKDADetSaved() if save_for_backward else None
    operands = (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias)
    out, final_state = kda.forward(
        _package,
        saved,
        operands,
        output_final_state,
        workspace,
        arena,
        save_mode,
        out,
        final_state,
        kda.gate_options(options),
    )
    return (out, saved, final_state) if final_state is not None else (out, saved)


def cake_kda_det_train_backward(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    dout: Any,
    saved: Any,
    d_final_state: Any,
    initial_state: Any,
    workspace: Any,
    save_mode: Any,
    arena: Any,
    doc_lengths: Any,
    A_log: Any,
    dt_bias: Any,
    buffers: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """See the facade."""
    _package.handles(saved, workspace, arena)
    for x, name in ((q, "q"), (k, "k"), (v, "v"), (g, "g"), (beta, "beta")):
        arrays.require(x, name)
    cu_seqlens = kda.offsets_of(cu_seqlens, doc_lengths, q)
    operands = (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias)
    gradients = kda.gradient_buffers(operands, buffers)
    kda.backward(
        _package,
        "cake_kda_det_train_backward",
        operands,
        dout,
        d_final_state,
        saved,
        workspace,
        arena,
        save_mode,
        gradients,
        kda.gate_options(options),
    )
    return tuple(x for x in gradients if x is not None)


def cake_kda_det_train_prepare(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    cu_seqlens: Any,
    out: Any,
    dout: Any,
    d_final_state: Any,
    initial_state: Any,
    final_state: Any,
    save_mode: Any,
    arena: Any,
    A_log: Any,
    dt_bias: Any,
    buffers: dict[str, Any],
    options: dict[str, Any],
) -> CakeKDADetPlan:
    """See the facade."""
    _, _, memory = _package.handles(None, None, arena)
    operands = (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias)
    wired = kda.operand_list(*operands)
    arrays.require(out, "out")
    return CakeKDADetPlan(
        _package.call(
            "prepare",
            *wired,
            arrays.wire(out, "out", writable=True),
            arrays.wire(final_state, "final_state", writable=True),
            arrays.wire(dout, "dout"),
            arrays.wire(d_final_state, "d_final_state"),
            *(arrays.wire(x, name, writable=True) for name, x in buffers.items()),
            {**kda.gate_options(options), **kda.given(save_mode=save_mode), **memory},
        )
    )


def cake_kda_det_train_arena(
    lean: bool, tail_passes: int, batch_tokens: int | None, max_docs_per_batch: int | None
) -> CakeKDADetArena:
    """See the facade."""
    return CakeKDADetArena(lean, tail_passes, batch_tokens, max_docs_per_batch)


def _sizes(
    S: int,
    num_docs: int,
    H: int,
    HV: Any,
    K: int,
    V: int,
    B: int,
    cu_seqlens: Any,
    gate_param_grads: bool,
    arena: Any,
    save_mode: Any,
    flags: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    _, _, memory = _package.handles(None, None, arena)
    return (
        kda.shape_of(S, num_docs, H, HV, K, V, B, cu_seqlens, gate_param_grads),
        {**kda.given(save_mode=save_mode, **flags), **memory},
    )


def cake_kda_det_train_workspace(
    S: int,
    num_docs: int,
    H: int,
    device: Any,
    backward: bool,
    save_mode: Any,
    HV: Any,
    K: int,
    V: int,
    B: int,
    cu_seqlens: Any,
    gate_param_grads: bool,
    arena: Any,
    flags: dict[str, Any],
) -> CakeKDADetWorkspace:
    """See the facade."""
    arrays.check_device(device)
    shape, options = _sizes(S, num_docs, H, HV, K, V, B, cu_seqlens, gate_param_grads, arena, save_mode, flags)
    workspace = CakeKDADetWorkspace.__new__(CakeKDADetWorkspace)
    objects.LibraryObject.__init__(workspace, _package.call("workspace_for", shape, options, bool(backward)))
    return workspace


def cake_kda_det_train_workspace_bytes(
    S: int,
    num_docs: int,
    H: int,
    device: Any,
    backward: bool,
    save_mode: Any,
    HV: Any,
    K: int,
    V: int,
    B: int,
    cu_seqlens: Any,
    gate_param_grads: bool,
    arena: Any,
) -> int:
    """See the facade."""
    arrays.check_device(device)
    shape, options = _sizes(S, num_docs, H, HV, K, V, B, cu_seqlens, gate_param_grads, arena, save_mode, {})
    return _package.call("workspace_bytes", shape, options, bool(backward))


def cake_kda_det_train_saved_bytes(
    S: int, num_docs: int, H: int, device: Any, save_mode: Any, HV: Any, K: int, V: int, B: int, cu_seqlens: Any
) -> int:
    """See the facade."""
    arrays.check_device(device)
    shape, options = _sizes(S, num_docs, H, HV, K, V, B, cu_seqlens, False, None, save_mode, {})
    return _package.call("saved_bytes", shape, options)


def _implementations() -> list[str]:
    return [str(line) for line in _package.call("implementations")]
