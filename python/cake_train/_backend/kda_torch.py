"""KDA on one rank as torch operators with autograd. Everything between forward and backward is in tensors, the saved
set too, so that torch may keep, copy, offload and free it; workspaces and arenas are no tensors and go by number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import kda, objects
from .library import function

_NAMESPACE = __name__.removesuffix("._backend.kda_torch").replace(".", "_")
_HEADER = 512  # bytes of a saved set's record, before its memory
_OPERANDS = (
    "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? cu_seqlens, Tensor? initial_state, "
    "Tensor? A_log, Tensor? dt_bias"
)
_OPTIONS = (
    "float? scale, float? lower_bound, bool use_gate_in_kernel, bool use_qk_l2norm_in_kernel, "
    "bool use_beta_sigmoid_in_kernel, bool allow_neg_eigval, bool tape, int workspace, int arena"
)
# Gradients in the order in which a backward returns them, by the number of their operand.
_GRADIENT_OF = (0, 1, 2, 3, 4, 7, 8, 6)


def _options(
    scale: float | None, lower_bound: float | None, use_gate: bool, l2norm: bool, sigmoid: bool, neg_eigval: bool
) -> dict[str, Any]:
    return kda.given(
        scale=scale,
        lower_bound=lower_bound,
        use_gate_in_kernel=use_gate,
        use_qk_l2norm_in_kernel=l2norm,
        use_beta_sigmoid_in_kernel=sigmoid,
        allow_neg_eigval=neg_eigval,
    )


class Operators:
    """The forward and backward operator of one package."""

    def __init__(self, package: kda.Package) -> None:
        self._package = package
        entry = f"cake_kda_{package.mode}"
        self._entry = entry
        self.forward = torch.library.custom_op(
            f"{_NAMESPACE}::{entry}",
            self._forward,
            mutates_args=(),
            schema=f"({_OPERANDS}, {_OPTIONS}, bool save, bool output_final_state) -> (Tensor, Tensor, Tensor)",
        )
        self.backward = torch.library.custom_op(
            f"{_NAMESPACE}::{entry}_backward",
            self._backward,
            mutates_args=(),
            schema=f"(Tensor dout, Tensor? d_final_state, Tensor saved, {_OPERANDS}, {_OPTIONS}, int wanted) -> "
            f"({', '.join(['Tensor'] * 8)})",
        )
        self.forward.register_fake(self._forward_fake)
        self.backward.register_fake(self._backward_fake)
        self.forward.register_autograd(self._formula, setup_context=self._keep)
        self.backward.register_autograd(self._no_second_derivative)
        self.forward.register_vmap(self._no_vmap)
        self.backward.register_vmap(self._no_vmap)

    # What is kept and how large it is.

    def _saved_size(self, q: Tensor, v: Tensor, cu_seqlens: Tensor | None, tape: bool) -> Any:
        documents = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        sizes = (q.shape[0], q.shape[1], documents, q.shape[2], v.shape[2], q.shape[3], v.shape[3])
        if not all(isinstance(n, int) for n in sizes):
            return torch.library.get_ctx().new_dynamic_size()
        B, S, N, H, HV, K, V = sizes
        shape = kda.shape_of(S, N, H, HV, K, V, B, None, False)
        return _HEADER + function(self._package.mode, self._package.module + "_saved_bytes")(
            shape, kda.given(save_mode="tape" if tape else None)
        )

    def _forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        cu_seqlens: Tensor | None,
        initial_state: Tensor | None,
        A_log: Tensor | None,
        dt_bias: Tensor | None,
        scale: float | None,
        lower_bound: float | None,
        use_gate_in_kernel: bool,
        use_qk_l2norm_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool,
        allow_neg_eigval: bool,
        tape: bool,
        workspace: int,
        arena: int,
        save: bool,
        output_final_state: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        package = self._package
        saved = None
        memory = torch.empty(0, dtype=torch.uint8)
        if save and q.dim() == 4 and v.dim() == 4:
            # Zeros: what a forward leaves out (alignment, rows past a document's end) shall not differ between runs.
            memory = torch.zeros(self._saved_size(q, v, cu_seqlens, tape), dtype=torch.uint8)
            saved = objects.LibraryObject(package.call("saved_over", memory))
        out, final_state = kda.forward(
            package,
            saved,
            (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias),
            output_final_state,
            objects.object_of(workspace),
            objects.object_of(arena),
            "tape" if tape else None,
            None,
            None,
            _options(
                scale,
                lower_bound,
                use_gate_in_kernel,
                use_qk_l2norm_in_kernel,
                use_beta_sigmoid_in_kernel,
                allow_neg_eigval,
            ),
        )
        if saved is not None:
            package.call("saved_seal", memory, saved._handle)
        return out, torch.empty(0) if final_state is None else final_state, memory

    def _forward_fake(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        cu_seqlens: Tensor | None,
        initial_state: Tensor | None,
        A_log: Tensor | None,
        dt_bias: Tensor | None,
        scale: float | None,
        lower_bound: float | None,
        use_gate_in_kernel: bool,
        use_qk_l2norm_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool,
        allow_neg_eigval: bool,
        tape: bool,
        workspace: int,
        arena: int,
        save: bool,
        output_final_state: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = q.new_empty(kda.state_shape(q, v, cu_seqlens) if output_final_state else (0,), dtype=torch.float32)
        size = self._saved_size(q, v, cu_seqlens, tape) if save else 0
        return q.new_empty(v.shape), state, q.new_empty((size,), dtype=torch.uint8)

    def _backward(
        self,
        dout: Tensor,
        d_final_state: Tensor | None,
        saved: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        cu_seqlens: Tensor | None,
        initial_state: Tensor | None,
        A_log: Tensor | None,
        dt_bias: Tensor | None,
        scale: float | None,
        lower_bound: float | None,
        use_gate_in_kernel: bool,
        use_qk_l2norm_in_kernel: bool,
        use_beta_sigmoid_in_kernel: bool,
        allow_neg_eigval: bool,
        tape: bool,
        workspace: int,
        arena: int,
        wanted: int,
    ) -> tuple[Tensor, ...]:
        package = self._package
        operands = (q, k, v, g, beta, cu_seqlens, initial_state, A_log, dt_bias)
        results = [
            torch.empty(operands[n].shape, dtype=operands[n].dtype) if wanted >> n & 1 else None for n in _GRADIENT_OF
        ]
        if saved.data_ptr() % 64:  # a copy that a hook has put anywhere; torch's own memory is aligned, as it was then
            saved = saved.clone()
        opened = objects.LibraryObject(package.call("saved_open", saved))
        kda.backward(
            package,
            self._entry,
            operands,
            dout,
            d_final_state,
            opened,
            objects.object_of(workspace),
            objects.object_of(arena),
            "tape" if tape else None,
            results,
            _options(
                scale,
                lower_bound,
                use_gate_in_kernel,
                use_qk_l2norm_in_kernel,
                use_beta_sigmoid_in_kernel,
                allow_neg_eigval,
            ),
        )
        return tuple(torch.empty(0) if x is None else x for x in results)

    def _backward_fake(
        self, dout: Tensor, d_final_state: Tensor | None, saved: Tensor, *rest: Any
    ) -> tuple[Tensor, ...]:
        operands, wanted = rest[:9], rest[-1]
        return tuple(
            operands[n].new_empty(operands[n].shape) if wanted >> n & 1 else dout.new_empty((0,), dtype=torch.float32)
            for n in _GRADIENT_OF
        )

    # Autograd.

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:9], output[2])
        ctx.options = inputs[9:18]
        ctx.saves, ctx.has_final_state = inputs[18], inputs[19]

    def _formula(self, ctx: Any, dout: Tensor, d_final_state: Tensor, _: Any) -> tuple[Any, ...]:
        if not ctx.saves:
            raise RuntimeError(f"{self._entry}: its operator was called with save=False and has no gradients")
        *operands, saved = ctx.saved_tensors
        wanted = sum(1 << n for n in _GRADIENT_OF if ctx.needs_input_grad[n])
        found = self.backward(
            dout, d_final_state if ctx.has_final_state else None, saved, *operands, *ctx.options, wanted
        )
        gradients: list[Any] = [None] * 20
        for n, x in zip(_GRADIENT_OF, found):
            if wanted >> n & 1:
                gradients[n] = x
        return tuple(gradients)

    def _no_second_derivative(self, ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(f"{self._entry} has no second derivative: its gradients cannot be differentiated")

    def _no_vmap(self, info: Any, in_dims: Any, *arguments: Any) -> Any:
        raise NotImplementedError(
            f"{self._entry} does not run under torch.vmap: give it a batch of rows, or packed documents with cu_seqlens"
        )


def autograd(
    operators: Operators,
    package: kda.Package,
    operands: tuple[Any, ...],
    workspace: Any,
    arena: Any,
    save_mode: str | None,
    out: Any,
    output_final_state: bool,
    options: tuple[Any, ...],
) -> Any:
    """The autograd entry: out, or (out, final_state)."""
    names = ("q", "k", "v", "g", "beta", "cu_seqlens", "initial_state", "A_log", "dt_bias")
    for n, x in enumerate(operands):
        if not isinstance(x, Tensor) and (n < 5 or x is not None):
            raise TypeError(f"{names[n]}: got a {type(x).__name__}, expected a torch.Tensor")
    for name, value in zip(kda.RESULT_OPTIONS, options):
        kinds = (float, int) if name in ("scale", "lower_bound") else (bool,)
        if value is not None and not isinstance(value, kinds):
            raise TypeError(f"{name}: got a {type(value).__name__}, expected a {kinds[0].__name__}")
    if save_mode not in (None, "light", "tape"):
        raise ValueError(f"save_mode: got {save_mode!r}, expected 'light' or 'tape'")
    if workspace is not None and arena is not None:
        raise ValueError("arena: got one beside a workspace, expected one of the two")
    save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    if out is not None:
        if save:
            raise ValueError("out: it cannot be given when an operand requires a gradient")
        flags = dict(zip(kda.RESULT_OPTIONS, options))
        out, final_state = kda.forward(
            package, None, operands, output_final_state, workspace, arena, save_mode, out, None, kda.given(**flags)
        )
    else:
        number = objects.number_of(workspace, "workspace", package.classes + "Workspace")
        arena_number = objects.number_of(arena, "arena", package.classes + "Arena")
        out, final_state, _ = operators.forward(
            *operands, *options, save_mode == "tape", number, arena_number, save, bool(output_final_state)
        )
    return (out, final_state) if output_final_state else out
