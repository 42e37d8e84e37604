"""`cp_context` of `cake_train.compat`: contexts of both projects, on threads and on processes."""
import importlib
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from compat_fla_context import PeerContext, make_pack, peer_context, run

from cake_train.compat import _cp_context

MODES = ("det", "nondet")


def compat(mode):
    """chunk_kda of a mode."""
    return importlib.import_module(f"cake_train.compat.fla_{mode}").chunk_kda


def joined(contexts, layout):
    """Offsets of the pack and rows by part, from the contexts of all ranks, as the ranks make them."""
    ranks = [_cp_context._Local(layout, 4, _cp_context._parts(c, layout)) for c in contexts]
    return _cp_context._joined(_cp_context._agreed(ranks)[2])


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_the_offsets_of_a_pack_come_back_from_those_of_its_ranks(layout):
    draw = random.Random(5)
    for _ in range(300):
        world = draw.randint(1, 5)
        parts = world if layout == "contiguous" else 2 * world
        total = parts * draw.randint(1, 12)
        inner = draw.sample(range(1, total), draw.randint(0, min(total - 1, 9)))
        if draw.random() < 0.5:
            inner += [total * i // parts for i in range(1, parts)]
        offsets = tuple(sorted({0, total, *inner}))
        contexts = [peer_context(offsets, world, r, layout=layout) for r in range(world)]
        if draw.random() < 0.5:
            for c in contexts:
                # Numbers of ranks alone say the same.
                c.is_first_rank = c.is_last_rank = c.is_first_by_part = c.is_last_by_part = None
        assert joined(contexts, layout) == (list(offsets), [total // parts] * parts), (offsets, world)


def test_parts_of_unequal_length():
    a = PeerContext(cu_seqlens=torch.tensor([0, 3, 10]), is_first_rank=True, is_last_rank=False)
    b = PeerContext(cu_seqlens=torch.tensor([0, 4]), pre_num_ranks=1, post_num_ranks=1)
    c = PeerContext(cu_seqlens=torch.tensor([0, 1, 2]), is_first_rank=False, is_last_rank=True)
    offsets, rows = joined([a, b, c], "contiguous")
    assert offsets == [0, 3, 15, 16] and rows == [10, 4, 2]
    assert _cp_context._cuts("contiguous", rows) == {"cut_points": [10, 14]}
    assert _cp_context._cuts("contiguous", [5, 5]) == {"layout": "contiguous"}
    with pytest.raises(ValueError, match="equal parts"):
        _cp_context._cuts("zigzag", [5, 4])


def test_a_context_that_says_nothing_about_its_borders():
    context = PeerContext(cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(ValueError, match="neither is_first_rank nor pre_num_ranks"):
        _cp_context._parts(context, "contiguous")
    context = peer_context((0, 8), 2, 0, layout="zigzag")
    context.is_last_by_part = context.post_num_ranks_by_part = None
    with pytest.raises(ValueError, match="is_last_by_part"):
        _cp_context._parts(context, "zigzag")


@pytest.mark.parametrize("mode", MODES)
def test_a_context_without_group_is_its_offsets(mode):
    pack, dout = make_pack(80, 1)
    table = torch.tensor([0, 30, 80])
    alone = run(compat(mode), pack, dout, cu_seqlens=table)
    context = PeerContext(cu_seqlens=table.int(), cu_seqlens_cpu=table, is_first_rank=True)
    local = run(compat(mode), pack, dout, cp_context=context)
    for name, x in alone.items():
        if mode == "det" or name not in ("A_log", "dt_bias"):
            assert torch.equal(x, local[name]), name
        else:
            assert torch.allclose(x, local[name], rtol=1e-5), name


@pytest.mark.parametrize("mode", MODES)
def test_refusals(mode):
    pack, _ = make_pack(80, 1)
    context = PeerContext(cu_seqlens=torch.tensor([0, 80]), is_first_rank=True, is_last_rank=True)
    for options, name in (({"initial_state": torch.zeros(1, 2, 16, 16)}, "initial_state"),
                          ({"output_final_state": True}, "output_final_state")):
        with pytest.raises(ValueError, match=name):
            compat(mode)(**pack, use_gate_in_kernel=True, cp_context=context, **options)
    context.group = "ranks"
    with pytest.raises(TypeError, match="cp_context.group is a str"):
        compat(mode)(**pack, use_gate_in_kernel=True, cp_context=context)


@pytest.mark.parametrize("mode", MODES)
def test_the_package_s_own_context_on_threads(mode):
    package = importlib.import_module(f"cake_train.cake_kda_{mode}_train_kcp")
    from cake_train.comm import ThreadGroup

    world, offsets = 2, torch.tensor([0, 50, 150], dtype=torch.int32)
    pack, dout = make_pack(150, 3)
    states = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(4))
    options = {"use_gate_in_kernel": True, "use_qk_l2norm_in_kernel": True, "output_final_state": True,
               "state_v_first": True, "initial_state": states}
    out, final_state = compat(mode)(**pack, **options, cu_seqlens=offsets)
    whole = run(compat(mode), pack, dout, cu_seqlens=offsets)
    partition = getattr(package, f"cake_kda_{mode}_train_kcp_partition")(offsets, world, cut_points=[70])
    group = ThreadGroup(world)
    got, faults = [None] * world, []

    def rank_main(rank):
        try:
            build = getattr(package, f"cake_kda_{mode}_train_kcp_build_context")
            context = build(partition, group, rank)
            rows = torch.as_tensor(partition.global_rows(rank), dtype=torch.int64)
            local = {n: x if n in ("A_log", "dt_bias") else x[:, rows] for n, x in pack.items()}
            forward = compat(mode)(**local, **options, cp_context=context)
            got[rank] = (rows, *forward, run(compat(mode), local, dout[:, rows], cp_context=context,
                                             disable_recompute=True))
        except BaseException as error:  # noqa: BLE001 - raised again below
            faults.append(error)
    threads = [threading.Thread(target=rank_main, args=(r,), daemon=True) for r in range(world)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
    assert not faults, faults
    assert all(x is not None for x in got), "a rank has not finished"
    # Every document's final state is on the rank with its last row, and 0 elsewhere.
    state_error = (got[0][2] + got[1][2] - final_state).norm()
    assert state_error == 0 if mode == "det" else state_error <= 1e-5 * final_state.norm()
    for rows, local_out, _, grads in got:
        for a, b in [(local_out, out[:, rows])] + [(grads[n], whole[n][:, rows]) for n in ("out", "q", "k", "v", "g")]:
            assert torch.equal(a, b) if mode == "det" else (a - b).norm() <= 1e-5 * b.norm()
    for name in ("A_log", "dt_bias"):
        total = got[0][3][name] + got[1][3][name]
        assert (total - whole[name]).norm() <= 1e-5 * whole[name].norm(), name


@pytest.mark.parametrize("mode", MODES)
def test_contexts_of_the_other_project_on_processes(mode, tmp_path):
    program = Path(__file__).with_name("compat_fla_context.py")
    world = 2
    ranks = [subprocess.Popen([sys.executable, str(program), mode, str(tmp_path / "rendezvous"), str(rank), str(world)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(world)]
    try:
        texts = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, text in zip(ranks, texts):
        assert process.returncode == 0 and text.strip().endswith("passed"), text
