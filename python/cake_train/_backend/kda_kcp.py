"""KDA over ranks for any mode: from Python arguments to the library's calls. A backend module binds it to its mode."""

from __future__ import annotations

import operator
from typing import Any, Sequence

from . import alert, arrays, comm, kcp, kda, objects
from .library import function

OPERANDS = ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias")
_GRADIENTS = ("dq", "dk", "dv", "dg", "dbeta", "dinitial_state")
# Beside kda.RESULT_OPTIONS: options that change no bit of a det package. The last two are nondet's alone.
MEMORY_OPTIONS = ("save_mode", "exchange", "save_transfer", "checkpoint_keep", "checkpoint_handoff", "saved_rows")
PHASES = ("halo_fwd", "c1", "c2", "halo_bwd", "b1", "b2", "gate_params")
HANDOFF_STATS = ("save", "bound", "refused_memory", "refused_overwritten", "refused_workspace", "refused_option")


class Package:
    """One package: its mode, its entries in the library and the names of its classes."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.module = f"cake_kda_{mode}_train_kcp"
        self.classes = f"CakeKDA{mode.capitalize()}Kcp"
        self.alerts = mode == "nondet"

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls an ffi function of the package."""
        return function(self.mode, f"{self.module}_{name}")(*arguments)

    def alert(self, entry: str) -> tuple[Any, ...]:
        """What a backward's call ends with."""
        return alert.arguments(entry) if self.alerts else ()


class PartialsBase(objects.LibraryObject):
    """This rank's sums for the gradients of A_log and dt_bias."""

    _package: Package

    def __init__(self, A_log: Any, dt_bias: Any) -> None:
        super().__init__(self._package.call("make_partials"))
        self._like = A_log if A_log is not None else dt_bias
        self._shapes = tuple(None if x is None else tuple(x.shape) for x in (A_log, dt_bias))

    def nbytes(self) -> int:
        """Bytes it holds, 0 until a backward has filled it."""
        return self._package.call("partials_nbytes", self._handle)

    def local_grads(self) -> tuple[Any, Any]:
        """(dA_log, ddt_bias) of this rank, float32 in the shapes of A_log and dt_bias, None for one that was not given:
        a sum over ranks completes them. Not collective. Raises ValueError before a backward has filled it."""
        buffers = self._buffers()
        self._package.call("local_grads", self._handle, *map(arrays.wire, buffers, ("dA_log", "ddt_bias")))
        return buffers

    def _buffers(self) -> tuple[Any, Any]:
        first, second = (None if s is None else arrays.empty(self._like, s, "float32") for s in self._shapes)
        return first, second


def context_handle(ctx: Any) -> Any:
    """The handle of a context. Raises TypeError for anything else, as far as Python can see."""
    if ctx is None:
        raise TypeError("ctx must be a CakeKcpContext")
    return objects.handle_of(ctx, "ctx", "CakeKcpContext")


def documents_of(handle: Any) -> int:
    """Documents of a context's pack."""
    return int(comm.call("context_facts", handle)[3])


def handoff_option(value: Any) -> bool | None:
    """checkpoint_handoff as the library takes it."""
    if value is None or value == "auto":
        return None
    if not isinstance(value, bool):
        raise ValueError(f"checkpoint_handoff: got {value!r}, expected 'auto', True or False")
    return value


def library_options(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a call, by name, as the library takes them."""
    options = dict(kda.gate_options(values))
    for name in MEMORY_OPTIONS:
        value = values.get(name)
        if name == "checkpoint_handoff":
            value = handoff_option(value)
        if value is not None:
            options[name] = value
    return options


def operand_list(*operands: Any) -> list[Any]:
    """The operands as the library takes them; the first five must be there."""
    for x, name in zip(operands[:5], OPERANDS):
        arrays.require(x, name)
    return [arrays.wire(x, name) for x, name in zip(operands, OPERANDS)]


def forward(
    package: Package,
    ctx: Any,
    saved: Any,
    operands: Sequence[Any],
    output_final_state: bool,
    workspace: Any,
    recompute_handle: Any,
    out: Any,
    final_state: Any,
    values: dict[str, Any],
) -> tuple[Any, Any]:
    """Runs a forward; (out, final_state or None)."""
    context = context_handle(ctx)
    with kcp.refusals(context, package.module, recompute_handle):
        saved_handle = objects.handle_of(saved, "saved", package.classes + "Saved")
        workspace_handle = objects.handle_of(workspace, "workspace", package.classes + "Workspace")
        recompute = objects.handle_of(recompute_handle, "recompute_handle", "CakeKcpRecomputeHandle")
        wired = operand_list(*operands)
        options = library_options(values)
        q, v = operands[0], operands[2]
        if out is None:
            out = arrays.empty(q, v.shape, arrays.dtype_of(q))
        if final_state is None and output_final_state:
            final_state = arrays.empty(q, state_shape(context, q, v), "float32")
        results = arrays.wire(out, "out", writable=True), arrays.wire(final_state, "final_state", writable=True)
    package.call(
        "forward", *wired[:5], context, *wired[5:], *results, options, workspace_handle, saved_handle, recompute
    )
    return out, final_state


def state_shape(context: Any, q: Any, v: Any) -> tuple[int, ...]:
    """Of the final state; sizes that do not fit are left for the library to refuse."""
    if len(q.shape) != 4 or len(v.shape) != 4:
        return (0, 0, 0, 0)
    return (documents_of(context), v.shape[2], q.shape[3], v.shape[3])


def backward(
    package: Package,
    entry: str,
    ctx: Any,
    operands: Sequence[Any],
    dout: Any,
    d_final_state: Any,
    saved: Any,
    workspace: Any,
    gradients: Sequence[Any],
    partials: Any,
    values: dict[str, Any],
) -> None:
    """Runs a backward into `gradients`, six buffers or None, and `partials` or None."""
    context = context_handle(ctx)
    with kcp.refusals(context, package.module, None):
        saved_handle = objects.handle_of(saved, "saved", package.classes + "Saved")
        workspace_handle = objects.handle_of(workspace, "workspace", package.classes + "Workspace")
        wired = operand_list(*operands)
        options = library_options(values)
        arrays.require(dout, "dout")
        cotangents = arrays.wire(dout, "dout"), arrays.wire(d_final_state, "d_final_state")
        results = [arrays.wire(x, name, writable=True) for x, name in zip(gradients, _GRADIENTS)]
    package.call(
        "backward",
        *wired[:5],
        context,
        *wired[5:],
        *cotangents,
        *results,
        partials,
        options,
        workspace_handle,
        saved_handle,
        *package.alert(entry),
    )


def gradient_buffers(package: Package, ctx: Any, operands: Sequence[Any], buffers: dict[str, Any]) -> list[Any]:
    """Six buffers: those given, else new ones for the operands that are there."""
    with kcp.refusals(context_handle(ctx), package.module, None):
        operand_list(*operands)
        q = operands[0]
        return [
            buffer if buffer is not None or x is None else arrays.empty(q, x.shape, arrays.dtype_of(x))
            for x, buffer in zip(operands[:6], (buffers.get(name) for name in _GRADIENTS))
        ]


def reduce_gate_param_grads(package: Package, ctx: Any, gate_partials: Any) -> tuple[Any, Any]:
    """(dA_log, ddt_bias) over all ranks."""
    context = context_handle(ctx)
    with kcp.refusals(context, package.module, None):
        if gate_partials is None:
            raise TypeError(f"gate_partials must be a {package.classes}Partials")
        handle = objects.handle_of(gate_partials, "gate_partials", package.classes + "Partials")
        # What is no object of partials has no buffers, and the library refuses its tag.
        buffers = gate_partials._buffers() if hasattr(gate_partials, "_buffers") else (None, None)
        wired = [arrays.wire(x, name) for x, name in zip(buffers, ("dA_log", "ddt_bias"))]
    package.call("reduce_gate_param_grads", context, handle, *wired)
    return buffers


def shape_of(
    H: int,
    HV: int | None,
    K: int,
    V: int,
    dtype: Any,
    gate_dtype: Any,
    beta_dtype: Any,
    gate_param_grads: bool,
    initial_state: bool,
) -> dict[str, Any]:
    """The sizes of a byte query."""
    shape: dict[str, Any] = {
        name: operator.index(n) for name, n in (("H", H), ("HV", H if HV is None else HV), ("K", K), ("V", V))
    }
    for name, value in (("dtype", dtype), ("gate_dtype", gate_dtype), ("beta_dtype", beta_dtype)):
        shape[name] = str(dtype if value is None else value).removeprefix("torch.")
    return shape | {"gate_param_grads": bool(gate_param_grads), "initial_state": bool(initial_state)}


def byte_options(values: dict[str, Any]) -> dict[str, Any]:
    """The options of a byte query as the library takes them."""
    return library_options({**dict.fromkeys(kda.RESULT_OPTIONS), **values})


def workspace_bytes(
    package: Package, ctx: Any, shape: dict[str, Any], backward: bool, values: dict[str, Any], handoff: bool
) -> int:
    """Bytes of a workspace, with `handoff` also for the rows that a package may hand off in it."""
    context, options = context_handle(ctx), byte_options(values)
    size = package.call("workspace_bytes", context, shape, options, bool(backward))
    return size + (package.call("handoff_bytes", context, shape, options) if handoff and package.alerts else 0)


def comm_bytes(package: Package, ctx: Any, shape: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Phase -> (bytes sent, bytes received)."""
    found = package.call("comm_bytes", context_handle(ctx), shape, byte_options(values))
    return {name: (int(found[name][0]), int(found[name][1])) for name in PHASES}
