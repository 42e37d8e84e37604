"""KDA over ranks as torch operators with autograd. The saved set is a tensor; contexts, workspaces and recompute
handles go by number. Every operator is collective: all ranks run it in the same order."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import arrays, kcp, kda, kda_kcp, objects

_NAMESPACE = __name__.removesuffix("._backend.kda_kcp_torch").replace(".", "_")
_HEADER = 512  # bytes of a saved set's record, before its memory
_COUNT = len(kda_kcp.OPERANDS)
_OPERANDS = ", ".join(("Tensor " if n < 5 else "Tensor? ") + name for n, name in enumerate(kda_kcp.OPERANDS))
_OPTIONS = (
    "float? scale, float? lower_bound, bool use_gate_in_kernel, bool use_qk_l2norm_in_kernel, "
    "bool use_beta_sigmoid_in_kernel, bool allow_neg_eigval, str? save_mode, str? exchange, bool? save_transfer, "
    "str? checkpoint_keep, bool? checkpoint_handoff, str? saved_rows, int context, int workspace"
)
_PARAMETERS = 1 << 6 | 1 << 7  # A_log and dt_bias among the operands


class _Call(NamedTuple):
    """What an operator gets behind its operands, in the order of its schema."""

    scale: float | None
    lower_bound: float | None
    use_gate_in_kernel: bool
    use_qk_l2norm_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    save_mode: str | None
    exchange: str | None
    save_transfer: bool | None
    checkpoint_keep: str | None
    checkpoint_handoff: bool | None
    saved_rows: str | None
    context: int
    workspace: int

    def values(self) -> dict[str, Any]:
        """The options by name."""
        return dict(zip(kda.RESULT_OPTIONS + kda_kcp.MEMORY_OPTIONS, self[:-2]))

    def ctx(self) -> Any:
        """The context. Raises RuntimeError when it is gone."""
        found = objects.object_of(self.context)
        if found is None:
            raise RuntimeError("ctx: the context of this call does not exist any more; keep it until the backward ran")
        return found


_OPTION_COUNT = len(_Call._fields)


_KINDS: dict[str, tuple[type, ...]] = {"scale": (float, int), "lower_bound": (float, int)}
_KINDS |= dict.fromkeys(("save_mode", "exchange", "checkpoint_keep", "saved_rows"), (str,))


def _fault(operands: tuple[Any, ...], gate_param_grads: Any, values: dict[str, Any]) -> Exception | None:
    for n, x in enumerate(operands):
        if not isinstance(x, Tensor) and (n < 5 or x is not None):
            return TypeError(f"{kda_kcp.OPERANDS[n]}: got a {type(x).__name__}, expected a torch.Tensor")
    for name, value in values.items():
        kinds = _KINDS.get(name, (bool,))
        if name != "checkpoint_handoff" and value is not None and not isinstance(value, kinds):
            return TypeError(f"{name}: got a {type(value).__name__}, expected a {kinds[0].__name__}")
    if gate_param_grads not in ("local", "global"):
        return ValueError(f"gate_param_grads: got {gate_param_grads!r}, expected 'local' or 'global'")
    return None


class Operators:
    """The forward and backward operator of one package."""

    def __init__(self, package: kda_kcp.Package) -> None:
        self._package = package
        self._entry = entry = f"cake_kda_{package.mode}_kcp"
        self.forward = torch.library.custom_op(
            f"{_NAMESPACE}::{entry}",
            self._forward,
            mutates_args=(),
            schema=f"({_OPERANDS}, {_OPTIONS}, bool global_params, int recompute, bool save, "
            "bool output_final_state) -> (Tensor, Tensor, Tensor)",
        )
        self.backward = torch.library.custom_op(
            f"{_NAMESPACE}::{entry}_backward",
            self._backward,
            mutates_args=(),
            schema=f"(Tensor dout, Tensor? d_final_state, Tensor saved, {_OPERANDS}, {_OPTIONS}, bool global_params, "
            f"int wanted) -> ({', '.join(['Tensor'] * _COUNT)})",
        )
        self.forward.register_fake(self._forward_fake)
        self.backward.register_fake(self._backward_fake)
        self.forward.register_autograd(self._formula, setup_context=self._keep)
        self.backward.register_autograd(self._no_second_derivative)
        self.forward.register_vmap(self._no_vmap)
        self.backward.register_vmap(self._no_vmap)

    def _saved_size(self, ctx: Any, operands: tuple[Any, ...], values: dict[str, Any]) -> Any:
        q, v, g, beta, initial_state = operands[0], operands[2], operands[3], operands[4], operands[5]
        sizes = (q.shape[2], v.shape[2], q.shape[3], v.shape[3])
        if not all(isinstance(n, int) for n in sizes):
            return torch.library.get_ctx().new_dynamic_size()
        shape = kda_kcp.shape_of(*sizes, q.dtype, g.dtype, beta.dtype, False, initial_state is not None)
        options = kda_kcp.library_options(values)
        return _HEADER + self._package.call("saved_bytes", kda_kcp.context_handle(ctx), shape, options)

    def _forward(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        operands, call = arguments[:_COUNT], _Call(*arguments[_COUNT : _COUNT + _OPTION_COUNT])
        _, recompute, save, output_final_state = arguments[_COUNT + _OPTION_COUNT :]
        package, ctx, values = self._package, call.ctx(), call.values()
        recompute_handle = objects.object_of(recompute)
        if recompute and recompute_handle is None:
            raise RuntimeError("recompute_handle: it does not exist any more; keep it until the backward ran")
        saved, fault = None, None
        memory = torch.empty(0, dtype=torch.uint8)
        if save and operands[0].dim() == 4 and operands[2].dim() == 4:
            try:
                # Zeros: what a forward leaves out shall not differ between runs.
                memory = torch.zeros(self._saved_size(ctx, operands, values), dtype=torch.uint8)
                saved = objects.LibraryObject(package.call("saved_over", memory))
            except Exception as error:  # what is wrong, the forward finds too, and says it to the other ranks
                fault = error
        out, final_state = kda_kcp.forward(
            package,
            ctx,
            saved,
            operands,
            output_final_state,
            objects.object_of(call.workspace),
            recompute_handle,
            None,
            None,
            values,
        )
        if fault is not None:
            raise fault
        if saved is not None:
            package.call("saved_seal", memory, saved._handle)
        return out, torch.empty(0) if final_state is None else final_state, memory

    def _forward_fake(self, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        operands, call = arguments[:_COUNT], _Call(*arguments[_COUNT : _COUNT + _OPTION_COUNT])
        _, _, save, output_final_state = arguments[_COUNT + _OPTION_COUNT :]
        q, v, ctx = operands[0], operands[2], call.ctx()
        shape = kda_kcp.state_shape(kda_kcp.context_handle(ctx), q, v) if output_final_state else (0,)
        size = self._saved_size(ctx, operands, call.values()) if save else 0
        state, memory = q.new_empty(shape, dtype=torch.float32), q.new_empty((size,), dtype=torch.uint8)
        return q.new_empty(v.shape), state, memory

    def _backward(self, dout: Tensor, d_final_state: Tensor | None, saved: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        operands, call = rest[:_COUNT], _Call(*rest[_COUNT : _COUNT + _OPTION_COUNT])
        global_params, wanted = rest[_COUNT + _OPTION_COUNT :]
        package, ctx = self._package, call.ctx()
        results = [
            torch.empty(x.shape, dtype=x.dtype) if wanted >> n & 1 else None for n, x in enumerate(operands)
        ]
        with kcp.refusals(kda_kcp.context_handle(ctx), package.module, None):
            if saved.data_ptr() % 64:  # a copy that a hook has put anywhere; torch's own memory is aligned
                saved = saved.clone()
            opened = objects.LibraryObject(package.call("saved_open", saved))
            partials = package.call("make_partials") if wanted & _PARAMETERS else None
        kda_kcp.backward(
            package,
            self._entry,
            ctx,
            operands,
            dout,
            d_final_state,
            opened,
            objects.object_of(call.workspace),
            results[:6],
            partials,
            call.values(),
        )
        if partials is not None:
            targets = arrays.wire(results[6], "dA_log"), arrays.wire(results[7], "ddt_bias")
            if global_params:
                package.call("reduce_gate_param_grads", kda_kcp.context_handle(ctx), partials, *targets)
            else:
                package.call("local_grads", partials, *targets)
        return tuple(torch.empty(0) if x is None else x for x in results)

    def _backward_fake(
        self, dout: Tensor, d_final_state: Tensor | None, saved: Tensor, *rest: Any
    ) -> tuple[Tensor, ...]:
        return tuple(
            x.new_empty(x.shape) if rest[-1] >> n & 1 else dout.new_empty((0,), dtype=torch.float32)
            for n, x in enumerate(rest[:_COUNT])
        )

    # Autograd.

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:_COUNT], output[2])
        ctx.options = inputs[_COUNT : _COUNT + _OPTION_COUNT + 1]  # with global_params
        call = _Call(*ctx.options[:-1])
        ctx.alive = objects.object_of(call.context), objects.object_of(call.workspace)
        ctx.saves, ctx.has_final_state = inputs[-2], inputs[-1]
        ctx.inputs = len(inputs)

    def _formula(self, ctx: Any, dout: Tensor, d_final_state: Tensor, _: Any) -> tuple[Any, ...]:
        if not ctx.saves:
            raise RuntimeError(f"{self._entry}: its operator was called with save=False and has no gradients")
        *operands, saved = ctx.saved_tensors
        wanted = sum(1 << n for n in range(_COUNT) if ctx.needs_input_grad[n])
        found = self.backward(
            dout, d_final_state if ctx.has_final_state else None, saved, *operands, *ctx.options, wanted
        )
        gradients: list[Any] = [x if wanted >> n & 1 else None for n, x in enumerate(found)]
        return tuple(gradients + [None] * (ctx.inputs - _COUNT))

    def _no_second_derivative(self, ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(f"{self._entry} has no second derivative: its gradients cannot be differentiated")

    def _no_vmap(self, info: Any, in_dims: Any, *arguments: Any) -> Any:
        raise NotImplementedError(f"{self._entry} does not run under torch.vmap: give it packed documents")

    def autograd(
        self,
        ctx: Any,
        operands: tuple[Any, ...],
        workspace: Any,
        recompute_handle: Any,
        output_final_state: bool,
        gate_param_grads: str,
        values: dict[str, Any],
    ) -> Any:
        """The autograd entry: out, or (out, final_state)."""
        package = self._package
        context = kda_kcp.context_handle(ctx)
        fault = _fault(operands, gate_param_grads, values)
        numbers = [0, 0]
        if fault is None:
            try:
                numbers[0] = objects.number_of(workspace, "workspace", package.classes + "Workspace")
                numbers[1] = objects.number_of(recompute_handle, "recompute_handle", "CakeKcpRecomputeHandle")
                values = {**values, "checkpoint_handoff": kda_kcp.handoff_option(values.get("checkpoint_handoff"))}
            except (TypeError, ValueError) as error:
                fault = error
        if fault is not None:
            with kcp.refusals(context, package.module, recompute_handle):
                raise fault
        save = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
        out, final_state, _ = self.forward(
            *operands,
            *(values.get(name) for name in kda.RESULT_OPTIONS + kda_kcp.MEMORY_OPTIONS),
            objects.number_of(ctx, "ctx", "CakeKcpContext"),
            numbers[0],
            gate_param_grads == "global",
            numbers[1],
            save,
            bool(output_final_state),
        )
        return (out, final_state) if output_final_state else out
