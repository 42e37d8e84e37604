"""The KDA packages over ranks, with ranks as threads: det has the bits of one rank, nondet its accuracy; recompute
handles, refusals, the determinism alert, byte queries."""

from __future__ import annotations

import random
import re
import warnings
from typing import Any, Callable

import kda_support as one
import pytest
import torch
from kda_kcp_support import (
    entry,
    facade,
    local_explicit,
    local_run,
    on_ranks,
    partition_of,
    shard,
    together,
    whole_cotangents,
    with_contexts,
)
from kda_support import GATE, MODES, OPTIONS, assert_same_bits, problem
from torch.utils.checkpoint import checkpoint

import cake_train
from cake_train.cake_kcp import CakeKcpRecomputeHandle
from cake_train.comm import ThreadGroup

OFFSETS = [0, 210, 210, 300, 301, 420]
LAYOUTS = ("contiguous", "zigzag", "zigzag_per_document")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    cake_train.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    cake_train.set_num_threads(0)


def check_autograd(mode: str, offsets: list[int], partition: Any, options: dict[str, Any], **more: Any) -> None:
    x, options = problem(offsets, options)
    expected = one.run(one.entry(mode), x, options)
    cotangents = whole_cotangents(x, offsets)
    del options["cu_seqlens"]
    ranks = with_contexts(mode, partition, lambda ctx: local_run(
        entry(mode), shard(x, partition, ctx.rank), ctx, *cotangents, options | {"gate_param_grads": "global"} | more))
    got = together(partition, ranks, True)
    if mode == "det":
        return assert_same_bits(got, expected)
    for name, t in got.items():
        assert (t.double() - expected[name].double()).norm() <= 1e-5 * expected[name].double().norm(), name


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(world, layout):
    options = OPTIONS[random.Random(f"{world}{layout}").choice(["softplus", "bound", "plain", "tape"])]
    check_autograd("det", OFFSETS, partition_of("det", OFFSETS, world, layout=layout), options)


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    check_autograd("det", OFFSETS, partition_of("det", OFFSETS, 3, cut_points=[70, 205]), OPTIONS[name])


@pytest.mark.parametrize("exchange", ["relay", "gather"])
@pytest.mark.parametrize("mode", MODES)
def test_exchange_forms(mode, exchange):
    offsets = [0, 500, 640]
    partition = partition_of(mode, offsets, 3)
    check_autograd(mode, offsets, partition, OPTIONS["softplus"], exchange=exchange)
    check_autograd(mode, offsets, partition, OPTIONS["softplus"], exchange=exchange, save_transfer=False)


@pytest.mark.parametrize("seed", range(6))
def test_random_cuts(seed):
    draw = random.Random(seed)
    documents = [draw.choice([0, 1, 63, 64, 65, draw.randrange(200)]) for _ in range(draw.randint(1, 5))]
    offsets = [sum(documents[:n]) for n in range(len(documents) + 1)]
    world = draw.randint(1, 4)
    if draw.random() < 0.5:
        cuts = sorted(draw.randint(0, offsets[-1]) for _ in range(world - 1))
        partition = partition_of("det", offsets, world, cut_points=cuts)
    else:
        fragments: list[list[tuple[int, int, int]]] = [[] for _ in range(world)]
        for d, length in enumerate(documents):
            at = 0
            while at < length:
                n = min(length - at, draw.randint(1, 90))
                fragments[draw.randrange(world)].append((d, at, n))
                at += n
        partition = partition_of("det", offsets, world, fragments=fragments)
    assert sum(partition.rows(r) for r in range(world)) == offsets[-1]
    check_autograd("det", offsets, partition, draw.choice(list(OPTIONS.values())))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("name", ["softplus", "no_bias", "bound_alone"])
def test_explicit_calls(name, keep):
    x, options = problem(OFFSETS, OPTIONS[name])
    expected = one.run(one.entry("det"), x, options)
    partition = partition_of("det", OFFSETS, 3, layout="zigzag")
    cotangents = whole_cotangents(x, OFFSETS)

    def rank(ctx):
        size = dict(H=2, K=16, V=20, gate_param_grads=True, initial_state=True)
        workspace = entry("det", "workspace")(ctx, **size)
        assert workspace.nbytes() == entry("det", "workspace_bytes")(ctx, **size)
        local = shard(x, partition, ctx.rank)
        return local_explicit("det", local, ctx, *cotangents, options, keep, workspace=workspace)
    assert_same_bits(together(partition, with_contexts("det", partition, rank), True), expected)


def test_numpy_and_buffers():
    x, options = problem(OFFSETS, GATE, grad=False)
    expected = one.explicit("det", x, options)
    partition = partition_of("det", OFFSETS, 2)
    dout = whole_cotangents(x, OFFSETS)[0]

    def rank(ctx):
        local = {n: t.numpy() for n, t in shard(x, partition, ctx.rank).items()}
        rows = partition.global_rows(ctx.rank)
        out = torch.empty(1, ctx.rows, 2, 20).numpy()
        got, saved = entry("det", "forward")(**local, ctx=ctx, out=out, **GATE)
        assert got is out and saved.nbytes() == entry("det", "saved_bytes")(
            ctx, H=2, K=16, V=20, initial_state=True)
        dv = torch.empty(1, ctx.rows, 2, 20).numpy()
        found = entry("det", "backward")(**local, ctx=ctx, dout=dout.numpy()[:, rows], saved=saved, dv=dv, **GATE)
        assert found[2] is dv and found[5].nbytes() > 0
        share = found[5].local_grads()
        assert share[0].shape == (2,) and share[1].shape == (32,)
        return torch.from_numpy(out)
    parts = with_contexts("det", partition, rank)
    got = torch.cat(parts, 1)
    assert torch.equal(got, expected["out"])


def test_local_shares_sum_to_the_total():
    x, options = problem(OFFSETS, OPTIONS["softplus"])
    expected = one.run(one.entry("det"), x, options)
    partition = partition_of("det", OFFSETS, 3)
    cotangents = whole_cotangents(x, OFFSETS)
    ranks = with_contexts("det", partition, lambda ctx: local_run(
        entry("det"), shard(x, partition, ctx.rank), ctx, *cotangents, options))
    got = together(partition, ranks, False)
    for name in ("dA_log", "ddt_bias"):
        assert torch.allclose(got.pop(name), expected.pop(name), rtol=1e-4, atol=1e-5)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", ["transfer", "states"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_communicates_nothing(mode, keep, reentrant):
    offsets = [0, 500, 640]
    x, options = problem(offsets, GATE, state=False)
    del options["cu_seqlens"]
    partition = partition_of(mode, offsets, 3, layout="zigzag")
    dout = whole_cotangents(x, offsets)[0]

    def rank(ctx):
        handle, workspace = CakeKcpRecomputeHandle(), getattr(facade(mode), f"CakeKDA{mode.capitalize()}KcpWorkspace")()
        moved: list[tuple[dict[str, int], dict[str, int]]] = []

        def region(*tensors):
            before = ctx.counters()
            out = entry(mode)(**dict(zip(x, tensors)), ctx=ctx, recompute_handle=handle, checkpoint_keep=keep,
                              workspace=workspace, **options)
            moved.append((before, ctx.counters()))
            return out
        local = shard(x, partition, ctx.rank)
        # Without early stop, so that the recompute gets to its end and is counted.
        from torch.utils.checkpoint import set_checkpoint_early_stop
        with set_checkpoint_early_stop(False):
            out = checkpoint(region, *local.values(), use_reentrant=reentrant)
            assert handle.entries == ["kda"] and handle.nbytes() > 0
            out.backward(dout[:, torch.from_numpy(partition.global_rows(ctx.rank))])
        assert len(moved) == 2 and moved[0][0] != moved[0][1], "the first forward communicates"
        assert moved[1][0] == moved[1][1], "the recompute does not"
        stats = workspace.handoff_stats() if mode == "nondet" else None
        handle.clear()
        assert handle.entries == [] and handle.nbytes() == 0
        return {"out": out.detach()} | {"d" + n: t.grad for n, t in local.items()}, stats
    found = with_contexts(mode, partition, rank)
    got = together(partition, [x[0] for x in found], False)

    def plain(ctx):
        local = shard(x, partition, ctx.rank)
        out = entry(mode)(**local, ctx=ctx, **options)
        out.backward(dout[:, torch.from_numpy(partition.global_rows(ctx.rank))])
        return {"out": out.detach()} | {"d" + n: t.grad for n, t in local.items()}
    expected = together(partition, with_contexts(mode, partition, plain), False)
    if mode == "nondet":
        assert all(stats["save"] == 1 and stats["bound"] == 1 for _, stats in found)
        for name in ("dA_log", "ddt_bias"):
            assert torch.allclose(got.pop(name), expected.pop(name), rtol=1e-4, atol=1e-5)
    assert_same_bits(got, expected)


def refused(ctx: Any, call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    """The call raises this on this rank, and leaves the group usable."""
    with pytest.raises(kind, match=words):
        call()
    ctx.exchange_halo(torch.zeros(ctx.rows, 2))


@pytest.mark.parametrize("mode", MODES)
def test_refusals(mode):
    other = "nondet" if mode == "det" else "det"
    x, _ = problem(OFFSETS, {}, state=False, grad=False)
    partition = partition_of(mode, OFFSETS, 2)
    single_saved = one.entry(mode, "forward")(**x, cu_seqlens=torch.tensor(OFFSETS, dtype=torch.int32))[1]

    def rank(ctx):
        local = shard(x, partition, ctx.rank)
        forward, backward = entry(mode, "forward"), entry(mode, "backward")
        _, foreign = entry(other, "forward")(**local, ctx=ctx)
        workspace = getattr(facade(other), f"CakeKDA{other.capitalize()}KcpWorkspace")()
        single = getattr(one.facade(mode), f"CakeKDA{mode.capitalize()}Workspace")()
        dout = torch.zeros(1, ctx.rows, 2, 20)
        package = re.escape(f"cake_kda_{other}_train_kcp")
        refused(ctx, lambda: backward(**local, ctx=ctx, dout=dout, saved=foreign), ValueError, package)
        refused(ctx, lambda: forward(**local, ctx=ctx, workspace=workspace), ValueError, "workspace")
        refused(ctx, lambda: entry(mode)(**local, ctx=ctx, workspace=workspace), ValueError, "workspace")
        refused(ctx, lambda: forward(**local, ctx=ctx, workspace=single), TypeError, "workspace must be a CakeKDA")
        refused(ctx, lambda: backward(**local, ctx=ctx, dout=dout, saved=single_saved), ValueError, "saved")
        refused(ctx, lambda: forward(**local, ctx=ctx, workspace=3), TypeError, "workspace must be a CakeKDA")
        refused(ctx, lambda: forward(**local, ctx=ctx, exchange="ring"), ValueError, "exchange.*ring")
        refused(ctx, lambda: forward(**local, ctx=ctx, checkpoint_keep="all"), ValueError, "checkpoint_keep")
        refused(ctx, lambda: forward(**local, ctx=ctx, checkpoint_keep="states", save_transfer=True), ValueError,
                "save_transfer")
        refused(ctx, lambda: entry(mode)(**local, ctx=ctx, gate_param_grads="sum"), ValueError, "gate_param_grads")
        refused(ctx, lambda: entry(mode)(**local, ctx=ctx, recompute_handle=3), TypeError, "recompute_handle must be")
        refused(ctx, lambda: entry(mode)(**local | {"q": 1}, ctx=ctx), TypeError, "q: got a int")
        refused(ctx, lambda: entry(mode, "reduce_gate_param_grads")(ctx, foreign), (TypeError, ValueError), "partials")
        for wrong in (3, None, partition, foreign):
            with pytest.raises(TypeError, match="ctx must be a CakeKcpContext"):
                forward(**local, ctx=wrong)
        if mode == "nondet":
            refused(ctx, lambda: forward(**local, ctx=ctx, saved_rows="wy"), NotImplementedError, "saved_rows")
            refused(ctx, lambda: forward(**local, ctx=ctx, checkpoint_handoff=3), ValueError, "checkpoint_handoff")
            with pytest.raises(ValueError, match="workspace"):
                entry(mode, "handoff_stats")(workspace)
    with_contexts(mode, partition, rank)


def test_what_one_rank_does_wrong_fails_on_all():
    x, _ = problem(OFFSETS, {}, state=False)
    partition = partition_of("det", OFFSETS, 3)

    def rank(ctx):
        local = shard(x, partition, ctx.rank)
        mine = ctx.rank == 1
        wrong: list[tuple[dict[str, Any], Any, str]] = [
            ({"q": local["q"].double()}, ValueError, "q: got dtype float64"),
            ({"q": local["q"][:, :-1]}, ValueError, "k: got shape"),
            ({"workspace": "none"}, TypeError, "workspace must be"),
            ({"save_mode": "all"}, ValueError, "save_mode"),
            ({"gate_param_grads": 1}, ValueError, "gate_param_grads"),
        ]
        for arguments, kind, words in wrong:
            refused(ctx, lambda: entry("det")(**local | (arguments if mine else {}), ctx=ctx),
                    kind if mine else RuntimeError, words if mine else f"rank 1: .*{words}")
        refused(ctx, lambda: entry("det")(**local, ctx=ctx, exchange="relay" if mine else "gather"), ValueError,
                "exchange differs between ranks: rank 0 gather, rank 1 relay")
        refused(ctx, lambda: ctx.exchange_halo(local["q"][0].double() if mine else local["q"][0]),
                ValueError if mine else RuntimeError, "float64")
    with_contexts("det", partition, rank)


def test_the_alert():
    x, _ = problem(OFFSETS, {}, state=False)
    partition = partition_of("nondet", OFFSETS, 2)
    dout = whole_cotangents(x, OFFSETS)[0]

    def rank(mode):
        def call(ctx):
            local = shard(x, partition, ctx.rank)
            out = entry(mode)(**local, ctx=ctx)
            found = entry(mode, "forward")(**{n: t.detach() for n, t in local.items()}, ctx=ctx)
            rows = torch.from_numpy(partition.global_rows(ctx.rank))
            return (lambda: torch.autograd.grad(out, list(local.values()), dout[:, rows], retain_graph=True),
                    lambda: entry(mode, "backward")(**{n: t.detach() for n, t in local.items()}, ctx=ctx,
                                                    dout=dout[:, rows], saved=found[1]))
        return call
    words = (r"^cake_kda_nondet_kcp does not", r"^cake_kda_nondet_train_kcp_backward does not")
    for mode in MODES:
        backwards = with_contexts(mode, partition, lambda ctx: (ctx, *rank(mode)(ctx)))
        torch.use_deterministic_algorithms(True)
        for i in (1, 2):
            def forbidden(r):
                if mode == "det":
                    return backwards[r][i]()
                with pytest.raises(RuntimeError, match=words[i - 1] + "|rank . has|rank .: "):
                    backwards[r][i]()
            on_ranks(forbidden, ThreadGroup(2))
        torch.use_deterministic_algorithms(True, warn_only=True)
        for i in (1, 2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                on_ranks(lambda r: backwards[r][i](), ThreadGroup(2))
            texts = [str(w.message) for w in caught if w.category is UserWarning]
            assert len(texts) == (2 if mode == "nondet" else 0) and all(re.match(words[i - 1], t) for t in texts)
        torch.use_deterministic_algorithms(False)


def test_retained_graph_and_forgotten_context():
    x, options = problem(OFFSETS, GATE)
    expected = one.run(one.entry("det"), x, options)
    del options["cu_seqlens"]
    partition = partition_of("det", OFFSETS, 2)
    group = ThreadGroup(2, 20)
    dout, d_state = whole_cotangents(x, OFFSETS)

    def rank(r):
        local = shard(x, partition, r)
        ctx = entry("det", "build_context")(partition, group, r)
        out, state = entry("det")(**local, ctx=ctx, output_final_state=True, gate_param_grads="global", **options)
        del ctx
        rows = torch.from_numpy(partition.global_rows(r))
        found = [torch.autograd.grad([out, state], list(local.values()), [dout[:, rows], d_state], retain_graph=True)
                 for _ in range(2)]
        assert all(torch.equal(a, b) for a, b in zip(*found))
        return {"out": out.detach(), "final_state": state.detach()} | {"d" + n: d for n, d in zip(local, found[0])}
    assert_same_bits(together(partition, on_ranks(rank, group), True), expected)


@pytest.mark.parametrize("mode", MODES)
def test_counters_are_what_comm_bytes_says(mode):
    offsets = [0, 500, 640]
    x, options = problem(offsets, OPTIONS["softplus"])
    partition = partition_of(mode, offsets, 3, layout="zigzag")
    cotangents = whole_cotangents(x, offsets)

    def rank(ctx):
        before = ctx.counters()
        local_explicit(mode, shard(x, partition, ctx.rank), ctx, *cotangents, options, True)
        after = ctx.counters()
        table = entry(mode, "comm_bytes")(ctx, H=2, K=16, V=20, gate_param_grads=True, initial_state=True)
        assert set(table) == {"halo_fwd", "c1", "c2", "halo_bwd", "b1", "b2", "gate_params"}
        moved = tuple(after[n] - before[n] for n in ("bytes_sent", "bytes_received"))
        assert moved == tuple(sum(phase[i] for phase in table.values()) for i in (0, 1))
    with_contexts(mode, partition, rank)
