#!/usr/bin/env python3
"""Trains a byte-level language model with KDA layers in PyTorch, on one process or over several:

    python examples/train_lm.py
    torchrun --nproc-per-node 4 examples/train_lm.py

Needs `pip install '.[examples]'`. The text is the one that `cake train` takes: the licence texts that every Debian has,
or --text. Every step trains on one pack of documents, windows of the text. Over ranks (torch.distributed, gloo) each
rank holds a part of the pack's rows, and documents are cut wherever the parts end: KDA runs over the ranks through
`cake_kda_*_kcp`.

What is bitwise over ranks, and what is not: outputs and gradients of the det package are the bits of one process, which
--check-bits (on by default) shows in the first step, on operands of the model's shapes. Stock dense layers and
all_reduce are not: a matrix product of fewer rows, or a sum over ranks, rounds differently. So loss curves of 1 and 4
processes agree closely, not bit for bit. (`cake train`, in C++, keeps the whole step bitwise.)

Writes loss.json and loss.png to --out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

TAPS = 4  # of the causal convolution
DEFAULT_TEXT = Path("/usr/share/common-licenses")


class Sharding:
    """This rank's rows of a pack whose documents have fixed lengths, and what moves between ranks."""

    def __init__(self, lengths: list[int], mode: str, layout: str) -> None:
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        self.tokens = offsets[-1]
        self.cu_seqlens = torch.tensor(offsets, dtype=torch.int32)
        self.positions = torch.cat([torch.arange(n) for n in lengths])
        self.mode, self.context = mode, None
        self.rows = torch.arange(self.tokens)
        if self.world > 1:
            package = importlib.import_module(f"cake_train.cake_kda_{mode}_train_kcp")
            prefix = f"cake_kda_{mode}_train_kcp_"
            partition = getattr(package, prefix + "partition")(offsets, self.world, layout)
            self.context = getattr(package, prefix + "build_context")(partition, None, self.rank, conv_kernel_size=TAPS)
            self.rows = torch.as_tensor(partition.global_rows(self.rank))

    def kda(self, *operands: Tensor, **options: Any) -> Any:
        """KDA of this rank's rows."""
        if self.context is None:
            package = importlib.import_module(f"cake_train.cake_kda_{self.mode}_train")
            return getattr(package, f"cake_kda_{self.mode}")(*operands, self.cu_seqlens, **options)
        package = importlib.import_module(f"cake_train.cake_kda_{self.mode}_train_kcp")
        return getattr(package, f"cake_kda_{self.mode}_kcp")(*operands, self.context, **options)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def whole(self, x: Tensor) -> Tensor:
        """All rows of the pack from every rank's [rows, ...], exactly: integer sums of bits that one rank has."""
        if self.world == 1:
            return x
        bits = torch.zeros(self.tokens, *x.shape[1:], dtype=torch.int32)
        bits[self.rows] = x.detach().contiguous().view(torch.int32)
        return self.sum(bits).view(torch.float32)


class AllRows(torch.autograd.Function):
    """[rows, C] of every rank to [tokens, C] on each. An example's way: a convolution needs three rows of its
    neighbour, and a real run would exchange only those (CakeKcpContext plans them)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shards: Sharding) -> Tensor:
        ctx.shards = shards
        return shards.whole(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shards.sum(grad.contiguous())[ctx.shards.rows], None


class KdaLayer(nn.Module):
    """x + KDA(norm x): q, k, v behind a causal convolution of 4 taps and SiLU, gates, a gated output norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, inner = heads, width
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * inner, bias=False)
        self.taps = nn.Parameter(torch.randn(3 * inner, TAPS) / math.sqrt(TAPS))
        self.decay = nn.Linear(width, inner, bias=False)
        self.beta = nn.Linear(width, heads, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.A_log = nn.Parameter(torch.linspace(0.0, 1.0, heads))
        self.dt_bias = nn.Parameter(torch.full((inner,), -4.0))
        self.out_norm = nn.RMSNorm(inner // heads)
        self.out = nn.Linear(inner, width, bias=False)

    def convolution(self, x: Tensor, shards: Sharding) -> Tensor:
        """Causal within every document: a row reads itself and up to three rows before it."""
        whole = AllRows.apply(x, shards)
        y = x.new_zeros(x.shape)
        for back in range(TAPS):
            inside = (shards.positions[shards.rows] >= back).to(x.dtype)[:, None]
            y = y + self.taps[:, TAPS - 1 - back] * whole[(shards.rows - back).clamp(min=0)] * inside
        return F.silu(y)

    def forward(self, x: Tensor, shards: Sharding) -> Tensor:
        h = self.norm(x)
        heads = (1, x.shape[0], self.heads, -1)
        q, k, v = (part.reshape(heads) for part in self.convolution(self.qkv(h), shards).chunk(3, dim=-1))
        o = shards.kda(
            q,
            k,
            v,
            self.decay(h).reshape(heads),
            self.beta(h)[None],
            A_log=self.A_log,
            dt_bias=self.dt_bias,
            use_gate_in_kernel=True,
            use_qk_l2norm_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )
        o = self.out_norm(o) * torch.sigmoid(self.gate(h)).reshape(heads)
        return x + self.out(o.reshape(x.shape[0], -1))


class Mlp(nn.Module):
    """x + W2 SiLU(W1 norm x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, 4 * width, bias=False), nn.SiLU(),
                                    nn.Linear(4 * width, width, bias=False))

    def forward(self, x: Tensor, shards: Sharding) -> Tensor:
        return x + self.layers(x)


class LanguageModel(nn.Module):
    """Bytes [rows] to logits [rows, 256]."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(layer for _ in range(layers) for layer in (KdaLayer(width, heads), Mlp(width)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor, shards: Sharding) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, shards)
        return self.head(self.norm(x))


def read_text(path: Path) -> Tensor:
    """All bytes of a file, or of the files of a folder in the order of their names."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    data = b"\n".join(p.read_bytes() for p in files)
    if len(data) < 1024:
        sys.exit(f"train_lm.py: --text {path}: got {len(data)} bytes, expected at least 1024")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def draw_pack(text: Tensor, lengths: list[int], random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets [tokens] of a pack: a window of the text for every document. Every rank draws the same."""
    starts = [int(torch.randint(len(text) - n, (1,), generator=random)) for n in lengths]
    inputs = torch.cat([text[a : a + n] for a, n in zip(starts, lengths)])
    return inputs, torch.cat([text[a + 1 : a + n + 1] for a, n in zip(starts, lengths)])


def check_bits(args: argparse.Namespace, shards: Sharding) -> str:
    """Runs KDA over the ranks and on this rank alone, on the same drawn operands, and compares the bits of the output
    and every gradient. Returns a digest of them, which is the same for every number of ranks with the det package."""
    random = torch.Generator().manual_seed(args.seed)
    shape = (1, shards.tokens, args.heads, args.width // args.heads)
    rows = [torch.randn(shape, generator=random) for _ in range(5)]  # q, k, v, raw gate, dout
    beta = torch.randn(shape[:3], generator=random)
    parameters = {
        "A_log": torch.rand(args.heads, generator=random),
        "dt_bias": torch.randn(args.width, generator=random),
    }
    options = dict(use_gate_in_kernel=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True)

    def run(own: Sharding, **more: Any) -> list[Tensor]:
        operands = [x[:, own.rows].clone().requires_grad_() for x in (*rows[:4], beta)]
        leaves = [x.clone().requires_grad_() for x in parameters.values()]
        out = own.kda(*operands, A_log=leaves[0], dt_bias=leaves[1], **options, **more)
        grads = torch.autograd.grad(out, operands + leaves, rows[4][:, own.rows])
        return [own.whole(x[0].detach()) for x in (out, *grads[:5])] + list(grads[5:])

    over_ranks = run(shards, **({} if shards.context is None else {"gate_param_grads": "global"}))
    lengths = shards.cu_seqlens.diff().tolist()
    alone = Sharding.__new__(Sharding)
    alone.__dict__ = {**shards.__dict__, "context": None, "world": 1, "rows": torch.arange(sum(lengths))}
    names = ("output", "dq", "dk", "dv", "dg", "dbeta", "dA_log", "ddt_bias")
    differ = [
        n for n, a, b in zip(names, over_ranks, run(alone)) if not torch.equal(a.view(torch.int32), b.view(torch.int32))
    ]
    digest = "sha256:" + hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in over_ranks)).hexdigest()
    if shards.rank == 0:
        said = f"differ in {', '.join(differ)}" if differ else "the bits of one rank"
        print(f"KDA outputs and gradients over {shards.world} ranks: {said}, {digest}", flush=True)
    if differ and args.mode == "det":
        sys.exit(1)
    return digest


def train(args: argparse.Namespace) -> dict[str, Any]:
    """The run; what loss.json holds."""
    from tqdm import tqdm

    tokens = args.batch_tokens
    lengths = [tokens // 2, tokens // 4, tokens - tokens // 2 - tokens // 4]
    shards = Sharding(lengths, args.mode, args.layout)
    digest = check_bits(args, shards) if args.check_bits else None
    text = read_text(args.text)
    torch.manual_seed(args.seed)  # the same weights on every rank
    model = LanguageModel(args.width, args.heads, args.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    random = torch.Generator().manual_seed(args.seed + 1)
    losses = []
    bar = tqdm(range(args.steps), disable=shards.rank != 0 or not sys.stderr.isatty())
    for step in bar:
        inputs, targets = draw_pack(text, lengths, random)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, (step + 1) / 10)
        loss = F.cross_entropy(model(inputs[shards.rows], shards), targets[shards.rows], reduction="sum") / tokens
        optimizer.zero_grad()
        loss.backward()
        # This rank's share of every gradient, the gate parameters' too: their sum is the whole.
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = shards.sum(torch.cat([g.flatten() for g in gradients]))
        for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            g.copy_(part.view_as(g))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(shards.sum(loss.detach().clone())))
        bar.set_postfix(loss=f"{losses[-1]:.3f}")
    if shards.rank == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {args.steps} steps on {shards.world} ranks", flush=True)
    return {"losses": losses, "kda_digest": digest, "ranks": shards.world, "mode": args.mode}


def write_results(folder: Path, result: dict[str, Any]) -> None:
    """loss.json and the curve."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "loss.json").write_text(json.dumps(result), encoding="utf-8")
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(range(1, len(result["losses"]) + 1), result["losses"])
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=f"KDA, {result['mode']}, {result['ranks']} ranks")
    figure.savefig(folder / "loss.png", dpi=120)
    print(f"wrote {folder / 'loss.json'} and {folder / 'loss.png'}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="a file, or a folder of files")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-tokens", type=int, default=2048, help="rows of a pack, over all ranks")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--mode", choices=("det", "nondet"), default="det", help="which package is imported")
    parser.add_argument(
        "--layout", choices=("contiguous", "zigzag"), default="contiguous", help="which rank has which rows"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="per process; 0: the cores over the processes here")
    parser.add_argument("--check-bits", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path("runs/train_lm"))
    args = parser.parse_args()
    if args.width % args.heads or args.batch_tokens < 64 or args.steps < 1 or args.layers < 1:
        parser.error(
            "--width must be a multiple of --heads, --batch-tokens at least 64, --steps and --layers at least 1"
        )
    return args


def main() -> None:
    """One process, or one of torchrun's."""
    import os

    import cake_train

    args = arguments()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = args.threads or max(1, len(os.sched_getaffinity(0)) // processes)
    torch.set_num_threads(threads)
    cake_train.set_num_threads(threads)
    over_ranks = "RANK" in os.environ
    if over_ranks:
        dist.init_process_group("gloo")
    result = train(args)
    if not over_ranks or dist.get_rank() == 0:
        write_results(args.out, result)
    if over_ranks:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
