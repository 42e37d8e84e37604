"""The neutral objects over ranks: partitions, contexts, groups of threads; what they refuse."""

from __future__ import annotations

import pytest
import torch
from kda_kcp_support import entry, on_ranks, partition_of, with_contexts

from cake_train.cake_kcp import CakeKcpContext
from cake_train.comm import MpiGroup, ThreadGroup


def test_neutral_objects():
    partition = partition_of("det", [0, 300, 500], 3, layout="zigzag")
    assert partition.world_size == 3 and partition.documents == 2 and partition.cu_seqlens == [0, 300, 500]
    rows = sorted(int(n) for r in range(3) for n in partition.global_rows(r))
    assert rows == list(range(500))
    assert partition.fragments(0) == [(0, 0, 83), (1, 116, 84)]
    for call, kind, words in (
        (lambda: partition_of("det", [0, 5], 0), ValueError, "world_size"),
        (lambda: partition_of("det", [0, 5], 2, layout="ring"), ValueError, "layout"),
        (lambda: partition_of("det", [0, 5], 2, cut_points=[2], fragments=[[], []]), ValueError, "cut_points"),
        (lambda: partition_of("det", [0, 5], 3, cut_points=[2]), ValueError, "world_size"),
        (lambda: partition_of("det", [0, 5], 2, cut_points=[2], layout="zigzag"), ValueError, "layout"),
        (lambda: partition_of("det", [0, 5], 1, fragments=[[(0, 0, 4)]]), ValueError, "no rank|on none|fragments"),
        (lambda: partition_of("det", [0, 5], 1, fragments=[[(0, 0)]]), ValueError, "document, offset, length"),
        (lambda: partition.rows(3), ValueError, "rank"),
        (lambda: entry("det", "partition")([0.5, 2], 1), TypeError, "integers"),
        (lambda: entry("det", "build_context")(partition, 7, 0), TypeError, "group: got a int"),
        (lambda: entry("det", "build_context")(partition, ThreadGroup(3), 3), ValueError, "rank"),
        (lambda: entry("det", "build_context")(partition, ThreadGroup(3), 0, "cuda"), NotImplementedError, "cuda"),
        (lambda: entry("det", "build_context")(partition, ThreadGroup(3), 0, heads=2), NotImplementedError, "heads"),
        (lambda: entry("det", "build_context")(partition, ThreadGroup(3), 0, stream=2), NotImplementedError, "stream"),
        (lambda: entry("det", "build_context")(None, ThreadGroup(3), 0), TypeError, "partition must be"),
        (MpiGroup, NotImplementedError, "MpiGroup"),
        (lambda: ThreadGroup(0), ValueError, "ranks"),
        (lambda: ThreadGroup(2, 0), ValueError, "timeout"),
    ):
        with pytest.raises(kind, match=words):
            call()

    def rank(ctx):
        assert isinstance(ctx, CakeKcpContext)
        assert (ctx.world_size, ctx.documents, ctx.conv_kernel_size) == (3, 2, 4)
        assert ctx.rows == partition.rows(ctx.rank)
        own = torch.from_numpy(partition.global_rows(ctx.rank))[:, None]
        before = ctx.exchange_halo(own)
        after = ctx.exchange_halo(own.numpy(), "after")
        assert len(before) == sum(ctx.halo_rows()) and len(after) == sum(ctx.halo_rows("after"))
        assert sum(ctx.halo_bytes("before", 8)) >= 0
        return before[:, 0].tolist()
    assert with_contexts("det", partition, rank) == [[413, 414, 415], [80, 81, 82, 330, 331, 332], [163, 164, 165]]


def test_a_rank_that_fails_or_stays_away():
    partition = partition_of("det", [0, 100], 2)
    with pytest.raises(ZeroDivisionError):
        on_ranks(lambda rank: 1 // 0 if rank == 1 else entry("det", "build_context")(partition, group, rank),
                 group := ThreadGroup(2, 20))
    group = ThreadGroup(2, 0.2)
    with pytest.raises(RuntimeError, match="rank 0 waited 200 ms for rank 1"):
        on_ranks(lambda rank: rank == 1 or entry("det", "build_context")(partition, group, rank), group)
