"""KDA (Kimi Delta Attention) training, nondeterministic: gradients may differ in their last bits from run to run.

Per value head, with a state S of K x V numbers (Kimi Linear, arXiv:2510.26692):

    S <- diag(exp g_t) S;  r = beta_t (v_t - S^T k_t);  S <- S + k_t r^T;  o_t = scale S^T q_t

Same operands, options, errors and tolerances as the deterministic package. On the CPU only the gradients of A_log and
dt_bias differ: their partial sums are added as tasks finish.

Shapes: q, k `[B, S, H, K]`; v, out `[B, S, HV, V]`, HV a multiple of H; g `[B, S, HV, K]`; beta `[B, S, HV]`; states
`[N, HV, K, V]` with N documents (N = B without cu_seqlens); 1 <= K, V <= 256. q, k, v and beta share one of float32,
bfloat16, float16 (beta may be float32); g is float32, the natural logarithm of the decay and <= 0, or with
    use_gate_in_kernel raw and of any of the three; states, A_log and dt_bias are float32. Any strides. The CPU is the
    device of this version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from ._lazy import lazy_exports

if TYPE_CHECKING:
    from ._backend.kda_nondet_train import (
        CakeKDANondetArena,
        CakeKDANondetPlan,
        CakeKDANondetSaved,
        CakeKDANondetWorkspace,
    )

__all__ = [
    "CakeKDANondetArena",
    "CakeKDANondetPlan",
    "CakeKDANondetSaved",
    "CakeKDANondetWorkspace",
    "cake_kda_nondet",
    "cake_kda_nondet_train_arena",
    "cake_kda_nondet_train_backward",
    "cake_kda_nondet_train_forward",
    "cake_kda_nondet_train_prepare",
    "cake_kda_nondet_train_saved_bytes",
    "cake_kda_nondet_train_workspace",
    "cake_kda_nondet_train_workspace_bytes",
    "is_cake_kda_nondet_train_supported",
]

_LAZY_EXPORTS = {
    "CakeKDANondetArena": ("._backend.kda_nondet_train", "CakeKDANondetArena"),
    "CakeKDANondetPlan": ("._backend.kda_nondet_train", "CakeKDANondetPlan"),
    "CakeKDANondetSaved": ("._backend.kda_nondet_train", "CakeKDANondetSaved"),
    "CakeKDANondetWorkspace": ("._backend.kda_nondet_train", "CakeKDANondetWorkspace"),
}
__getattr__ = lazy_exports(__name__, _LAZY_EXPORTS)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def is_cake_kda_nondet_train_supported(device: Any = None) -> bool:
    """Whether this version has an implementation for the device (None: the CPU)."""
    from ._backend import kda_nondet_train as backend

    return backend.is_cake_kda_nondet_train_supported(device)


def cake_kda_nondet(
    q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any = None, *, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False, workspace: CakeKDANondetWorkspace | None = None,
    save_mode: str | None = None, arena: CakeKDANondetArena | None = None, doc_lengths: Sequence[int] | None = None,
    out: Any = None, use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> Any:
    """KDA with autograd, on torch tensors: out, or (out, final_state) with output_final_state.

    cu_seqlens: int32 `[N + 1]` row offsets of packed documents: first 0, non-decreasing, last <= S; B is then 1. Rows
    past the last offset belong to no document: outputs and gradients there are exactly 0. doc_lengths gives the same as
    lengths on the host; with both, they must agree. scale: of the output, K ** -0.5 when None. initial_state: float32
    `[N, HV, K, V]`, zero when None. use_gate_in_kernel: the decay is -exp(A_log) softplus(g + dt_bias), A_log `[HV]`,
    dt_bias `[HV, K]` or `[HV * K]` (optional); with lower_bound (< 0) it is lower_bound * sigmoid(exp(A_log) (g +
    dt_bias)). use_qk_l2norm_in_kernel: rows of q and k are divided by sqrt(sum of squares + 1e-6).
    use_beta_sigmoid_in_kernel: beta is a logit; allow_neg_eigval doubles it after the sigmoid. save_mode: what is kept
    for the backward, "light" (default) or "tape" (more memory, less work). workspace, arena: scratch memory to use
    again. out: `[B, S, HV, V]` for the result, only when no operand requires a gradient.

    Gradients have the dtype of their operand. Under torch.use_deterministic_algorithms(True) every backward of a
    problem with rows raises RuntimeError before it writes anything, with warn_only=True it warns once and runs; the
    switch is read when the backward runs. The forward never alerts. Works under torch.compile, torch.utils.checkpoint
    and autocast (which leaves its operands as they are); a retained graph may run its backward again; there is no
    second derivative and no vmap.

    Raises ValueError (shape, dtype, offsets, a missing or contradicting option, an object of the other mode),
    TypeError, NotImplementedError (a device this version lacks), MemoryError. The message names the argument.
    """
    from ._backend import kda_nondet_train as backend

    return backend.cake_kda_nondet(q, k, v, g, beta, cu_seqlens, scale, initial_state, output_final_state, workspace,
        save_mode, arena, doc_lengths, out, use_gate_in_kernel, A_log, dt_bias, lower_bound, use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel, allow_neg_eigval)


def cake_kda_nondet_train_forward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any = None, *, scale: float | None = None,
    initial_state: Any = None, output_final_state: bool = False, save_for_backward: bool = True,
    workspace: CakeKDANondetWorkspace | None = None, save_mode: str | None = None,
    arena: CakeKDANondetArena | None = None, doc_lengths: Sequence[int] | None = None, out: Any = None,
    final_state: Any = None, use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> tuple[Any, ...]:
    """The forward without autograd, on torch tensors or numpy arrays: (out, saved or None[, final_state]).

    Arguments and errors as in cake_kda_nondet. save_for_backward: also return the CakeKDANondetSaved that the backward
    reads. out, final_state: caller's buffers `[B, S, HV, V]` in the dtype of q and float32 `[N, HV, K, V]`; a
    final_state buffer implies output_final_state. Never alerts.
    """
    from ._backend import kda_nondet_train as backend

    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval)
    return backend.cake_kda_nondet_train_forward(q, k, v, g, beta, cu_seqlens, initial_state, output_final_state,
        save_for_backward, workspace, save_mode, arena, doc_lengths, out, final_state, A_log, dt_bias, options)


def cake_kda_nondet_train_backward(
    q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any, dout: Any, *, saved: CakeKDANondetSaved | None = None,
    d_final_state: Any = None, scale: float | None = None, initial_state: Any = None,
    workspace: CakeKDANondetWorkspace | None = None, save_mode: str | None = None,
    arena: CakeKDANondetArena | None = None, doc_lengths: Sequence[int] | None = None, dq: Any = None, dk: Any = None,
    dv: Any = None, dg: Any = None, dbeta: Any = None, dA_log: Any = None, ddt_bias: Any = None,
    dinitial_state: Any = None, use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> tuple[Any, ...]:
    """The backward without autograd: gradients of q, k, v, g, beta[, A_log][, dt_bias][, initial_state], of those that
    are given.

    dout: `[B, S, HV, V]` in the dtype of q, any strides. d_final_state: float32 `[N, HV, K, V]`, zero when None. saved:
    from the forward of the same operands and options; None recomputes everything from the inputs.
    dq ... dinitial_state: caller's buffers, in shape and dtype of their operand. May run again on one saved set.
    Under torch.use_deterministic_algorithms(True) every backward of
    a problem with rows raises RuntimeError before it writes anything, with warn_only=True it warns once and runs; the
    switch is read when the backward runs. The forward never alerts.

    Raises as cake_kda_nondet; a saved set that is empty, of another problem or of another package is a ValueError that
    names what it is. Checked in the order saved, workspace, options, tensors, before anything is written.
    """
    from ._backend import kda_nondet_train as backend

    buffers = dict(dq=dq, dk=dk, dv=dv, dg=dg, dbeta=dbeta, dA_log=dA_log, ddt_bias=ddt_bias,
        dinitial_state=dinitial_state)
    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval)
    return backend.cake_kda_nondet_train_backward(q, k, v, g, beta, cu_seqlens, dout, saved, d_final_state,
        initial_state, workspace, save_mode, arena, doc_lengths, A_log, dt_bias, buffers, options)


def cake_kda_nondet_train_prepare(
    q: Any, k: Any, v: Any, g: Any, beta: Any, cu_seqlens: Any = None, *, out: Any, dout: Any = None,
    d_final_state: Any = None, initial_state: Any = None, final_state: Any = None, save_mode: str | None = None,
    arena: CakeKDANondetArena | None = None, dq: Any = None, dk: Any = None, dv: Any = None, dg: Any = None,
    dbeta: Any = None, dA_log: Any = None, ddt_bias: Any = None, dinitial_state: Any = None, scale: float | None = None,
    use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None, lower_bound: float | None = None,
    use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False) -> CakeKDANondetPlan:
    """Resolves a call once: a CakeKDANondetPlan whose forward and backward allocate nothing.

    Takes the buffers of a call: operands, out and, for a plan with a backward, dout and the gradients that are wanted.
    Arguments and errors as in cake_kda_nondet_train_forward and _backward; of an arena only its options count, the plan
    has memory of its own. Nothing is computed and no buffer is kept.
    """
    from ._backend import kda_nondet_train as backend

    buffers = dict(dq=dq, dk=dk, dv=dv, dg=dg, dbeta=dbeta, dA_log=dA_log, ddt_bias=ddt_bias,
        dinitial_state=dinitial_state)
    options = dict(scale=scale, use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval)
    return backend.cake_kda_nondet_train_prepare(q, k, v, g, beta, cu_seqlens, out, dout, d_final_state,
        initial_state, final_state, save_mode, arena, A_log, dt_bias, buffers, options)


def cake_kda_nondet_train_arena(
    *, lean: bool = False, tail_passes: int = 1, batch_tokens: int | None = None,
    max_docs_per_batch: int | None = None) -> CakeKDANondetArena:
    """Scratch memory that grows, with options that make it smaller for more work; the results have the same bits.

    lean: no room for a backward without a saved set (refused there). tail_passes: ranges of a segment's chunks that the
    backward rebuilds one after another. batch_tokens, max_docs_per_batch: groups of whole documents of at most this
    size run one after another. Raises ValueError for a number below 1.
    """
    from ._backend import kda_nondet_train as backend

    return backend.cake_kda_nondet_train_arena(lean, tail_passes, batch_tokens, max_docs_per_batch)


def cake_kda_nondet_train_workspace(
    S: int, num_docs: int, H: int, device: Any = None, *, backward: bool = True, save_mode: str | None = None,
    HV: int | None = None, K: int = 128, V: int = 128, B: int = 1, cu_seqlens: Sequence[int] | None = None,
    gate_param_grads: bool = False, arena: CakeKDANondetArena | None = None, use_gate_in_kernel: bool = False,
    lower_bound: float | None = None, use_qk_l2norm_in_kernel: bool = False) -> CakeKDANondetWorkspace:
    """A workspace that is sized now and never grows: for forwards and (unless backward is False) backwards of B rows of
    S tokens that hold num_docs documents (B without packing), with H heads of q and k and HV of v (H when None).

    Without cu_seqlens (on the host) it holds every packing of num_docs documents. It serves the given gate and norm
    options only; calls of others are refused. A call that needs more raises MemoryError before it writes anything.
    gate_param_grads: the backwards also give gradients of A_log or dt_bias.
    """
    from ._backend import kda_nondet_train as backend

    flags = dict(use_gate_in_kernel=use_gate_in_kernel, lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel)
    return backend.cake_kda_nondet_train_workspace(S, num_docs, H, device, backward, save_mode, HV, K, V, B, cu_seqlens,
        gate_param_grads, arena, flags)


def cake_kda_nondet_train_workspace_bytes(
    S: int, num_docs: int, H: int, device: Any = None, *, backward: bool = True, save_mode: str | None = None,
    HV: int | None = None, K: int = 128, V: int = 128, B: int = 1, cu_seqlens: Sequence[int] | None = None,
    gate_param_grads: bool = False, arena: CakeKDANondetArena | None = None) -> int:
    """Bytes of a workspace for the current number of threads; arguments as in cake_kda_nondet_train_workspace."""
    from ._backend import kda_nondet_train as backend

    return backend.cake_kda_nondet_train_workspace_bytes(S, num_docs, H, device, backward, save_mode, HV, K, V, B,
        cu_seqlens, gate_param_grads, arena)


def cake_kda_nondet_train_saved_bytes(
    S: int, num_docs: int, H: int, device: Any = None, *, save_mode: str | None = None, HV: int | None = None,
    K: int = 128, V: int = 128, B: int = 1, cu_seqlens: Sequence[int] | None = None) -> int:
    """Bytes of a saved set; without cu_seqlens an upper bound over every packing. Arguments as in
    cake_kda_nondet_train_workspace."""
    from ._backend import kda_nondet_train as backend

    return backend.cake_kda_nondet_train_saved_bytes(S, num_docs, H, device, save_mode, HV, K, V, B, cu_seqlens)
