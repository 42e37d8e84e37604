"""KDA on one rank for any mode: from Python arguments to the library's calls. A backend module binds it to its mode."""

from __future__ import annotations

from typing import Any, Sequence

from . import alert, arrays, objects
from .library import function

_SHAPE = ("B", "S", "num_docs", "H", "HV", "K", "V")
_OPERANDS = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "A_log", "dt_bias")
_GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias", "dinitial_state")
# The options that change results, in the order of the operators.
RESULT_OPTIONS = (
    "scale",
    "lower_bound",
    "use_gate_in_kernel",
    "use_qk_l2norm_in_kernel",
    "use_beta_sigmoid_in_kernel",
    "allow_neg_eigval",
)


class Package:
    """One package: its mode, its entries in the library and the names of its classes."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.module = f"cake_kda_{mode}_train"
        self.classes = f"CakeKDA{mode.capitalize()}"
        self.alerts = mode == "nondet"

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls an ffi function of the package."""
        return function(self.mode, f"{self.module}_{name}")(*arguments)

    def handles(self, saved: Any, workspace: Any, arena: Any) -> tuple[Any, Any, dict[str, Any]]:
        """(handle of the saved set, handle of the workspace, memory options), all checked, the saved set first."""
        saved_handle = objects.handle_of(saved, "saved", self.classes + "Saved")
        if saved_handle is not None:
            self.call("check_objects", saved_handle, None)
        if workspace is not None and arena is not None:
            raise ValueError("arena: got one beside a workspace, expected one of the two")
        workspace_handle = objects.handle_of(workspace, "workspace", self.classes + "Workspace")
        options: dict[str, Any] = {}
        if arena is not None:
            workspace_handle = objects.handle_of(arena, "arena", self.classes + "Arena")
            options = getattr(arena, "_options", None)
            if options is None:
                raise TypeError(f"arena must be a {self.classes}Arena")
        if workspace_handle is not None:
            try:
                self.call("check_objects", None, workspace_handle)
            except (ValueError, TypeError) as error:
                if arena is None:
                    raise
                text = str(error).replace("a workspace", "an arena").replace("workspace", "arena")
                raise type(error)(text.replace("Workspace", "Arena")) from None
        return saved_handle, workspace_handle, dict(options)

    def alert(self, entry: str) -> tuple[Any, ...]:
        """What a backward's call ends with."""
        return alert.arguments(entry) if self.alerts else ()


def given(**options: Any) -> dict[str, Any]:
    """The options that are not at their default of None or False."""
    return {name: value for name, value in options.items() if value is not None and value is not False}


def offsets_of(cu_seqlens: Any, doc_lengths: Sequence[int] | None, like: Any) -> Any:
    """cu_seqlens, made from doc_lengths where only those are given. Raises ValueError where the two disagree."""
    if doc_lengths is None:
        return cu_seqlens
    import numpy as np

    lengths = [int(n) for n in doc_lengths]
    if any(n < 0 for n in lengths) or sum(lengths) > 2**31 - 1:
        raise ValueError(f"doc_lengths: got {lengths}, expected lengths of 0 or more whose sum is below 2^31")
    table = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int32)
    if cu_seqlens is not None:
        if [int(n) for n in cu_seqlens] != table.tolist():
            raise ValueError("doc_lengths: they are not the lengths of cu_seqlens")
        return cu_seqlens
    if arrays.is_torch(like):
        import torch

        return torch.from_numpy(table)
    return table


def operand_list(*operands: Any) -> list[Any]:
    """q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias as the library takes them; the first five must be
    there."""
    for x, name in zip(operands[:5], _OPERANDS):
        arrays.require(x, name)
    return [arrays.wire(x, name) for x, name in zip(operands, _OPERANDS)]


def state_shape(q: Any, v: Any, cu_seqlens: Any) -> tuple[int, ...]:
    """Of the final state; sizes that do not fit are left for the library to refuse."""
    if len(q.shape) != 4 or len(v.shape) != 4:
        return (0, 0, 0, 0)
    documents = q.shape[0] if cu_seqlens is None else max(cu_seqlens.shape[0] - 1, 0)
    return (documents, v.shape[2], q.shape[3], v.shape[3])


def forward(
    package: Package,
    saved: Any,
    operands: Sequence[Any],
    output_final_state: bool,
    workspace: Any,
    arena: Any,
    save_mode: str | None,
    out: Any,
    final_state: Any,
    options: dict[str, Any],
) -> tuple[Any, Any]:
    """Runs a forward; (out, final_state or None)."""
    saved_handle, workspace_handle, memory = package.handles(saved, workspace, arena)
    wired = operand_list(*operands)
    q, v, cu_seqlens = operands[0], operands[2], operands[5]
    if out is None:
        out = arrays.empty(q, v.shape, arrays.dtype_of(q))
    if final_state is None and output_final_state:
        final_state = arrays.empty(q, state_shape(q, v, cu_seqlens), "float32")
    package.call(
        "forward",
        *wired,
        arrays.wire(out, "out", writable=True),
        arrays.wire(final_state, "final_state", writable=True),
        {**options, **given(save_mode=save_mode), **memory},
        workspace_handle,
        saved_handle,
    )
    return out, final_state


def backward(
    package: Package,
    entry: str,
    operands: Sequence[Any],
    dout: Any,
    d_final_state: Any,
    saved: Any,
    workspace: Any,
    arena: Any,
    save_mode: str | None,
    gradients: Sequence[Any],
    options: dict[str, Any],
) -> None:
    """Runs a backward into `gradients`, eight buffers or None."""
    saved_handle, workspace_handle, memory = package.handles(saved, workspace, arena)
    wired = operand_list(*operands)
    arrays.require(dout, "dout")
    package.call(
        "backward",
        *wired,
        arrays.wire(dout, "dout"),
        arrays.wire(d_final_state, "d_final_state"),
        *(arrays.wire(x, name, writable=True) for x, name in zip(gradients, _GRADIENTS)),
        {**options, **given(save_mode=save_mode), **memory},
        workspace_handle,
        saved_handle,
        *package.alert(entry),
    )


def gradient_buffers(operands: Sequence[Any], buffers: dict[str, Any]) -> list[Any]:
    """Eight buffers: those given, else new ones for the operands that are there."""
    q, k, v, g, beta, _, initial_state, A_log, dt_bias = operands
    return [
        buffer if buffer is not None or x is None else arrays.empty(q, x.shape, arrays.dtype_of(x))
        for x, buffer in zip(
            (q, k, v, g, beta, A_log, dt_bias, initial_state), (buffers.get(name) for name in _GRADIENTS)
        )
    ]


def shape_of(
    S: int, num_docs: int, H: int, HV: int | None, K: int, V: int, B: int, cu_seqlens: Any, gate_param_grads: bool
) -> dict[str, Any]:
    """The sizes of a byte query."""
    shape: dict[str, Any] = dict(zip(_SHAPE, (B, S, num_docs, H, H if HV is None else HV, K, V)))
    shape["gate_param_grads"] = bool(gate_param_grads)
    if cu_seqlens is not None:
        shape["cu_seqlens"] = [int(n) for n in cu_seqlens]
    return shape


def gate_options(values: dict[str, Any]) -> dict[str, Any]:
    """The options that change results, out of a call's arguments."""
    return given(**{name: values[name] for name in RESULT_OPTIONS})
