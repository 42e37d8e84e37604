"""CPU time of KDA forward and backward: cake_kda_det against chunked KDA in plain PyTorch with autograd.

usage: kda_vs_torch.py [-T 4096] [-H 4] [--hv HV] [-K 128] [-V 128] [--dtype float32|bfloat16|float16] [--threads N]
                       [-n 7] [--mode det|nondet] [--json FILE|-]

Both sides get the same operands and the same number of threads, and compute the output and all gradients of one
document. Each is the faster of its own choices: plain PyTorch of `bounded_gate` on and off (the decays are drawn so
that both hold), ours of the save modes. Calls of the two sides alternate; times are medians of n after 2 warm-up calls,
with the spread from the first to the third quartile. The largest relative difference of any result is printed too: a
fast wrong result is no result. PyTorch computes in fp32 whatever the dtype of the operands is.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve()
_WARM_UP = 2
# Far above rounding of the dtype, far below any mistake.
_AGREEMENT = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 5e-3}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-T", type=int, default=4096, help="tokens")
    parser.add_argument("-H", type=int, default=4, help="heads of q and k")
    parser.add_argument("--hv", type=int, help="heads of v; default H")
    parser.add_argument("-K", type=int, default=128, help="head dimension of q and k")
    parser.add_argument("-V", type=int, default=128, help="head dimension of v")
    parser.add_argument("--dtype", choices=sorted(_AGREEMENT), default="float32", help="of q, k, v and beta")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both sides")
    parser.add_argument("-n", type=int, default=7, help="timed calls of each choice")
    parser.add_argument("--mode", choices=["det", "nondet"], default="det")
    parser.add_argument("--json", metavar="FILE", help="write the result there; - for the standard output alone")
    args = parser.parse_args(arguments)
    if args.hv is None:
        args.hv = args.H
    for name in ("T", "H", "hv", "K", "V", "threads", "n"):
        if getattr(args, name) < 1:
            parser.error(f"{name} is {getattr(args, name)}; expected at least 1")
    return args


def choices(args: argparse.Namespace) -> dict[str, Callable[[], list[Any]]]:
    """Name of a choice -> function that returns out and the gradients of q, k, v, g, beta."""
    import importlib

    import torch
    from chunked_kda import chunked_kda

    facade = importlib.import_module(f"cake_train.cake_kda_{args.mode}_train")
    kda = getattr(facade, f"cake_kda_{args.mode}")
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    unit = torch.nn.functional.normalize
    q, k = (unit(torch.randn(1, args.T, args.H, args.K), dim=-1).to(dtype) for _ in range(2))
    v, dout = (torch.randn(1, args.T, args.hv, args.V).to(dtype) for _ in range(2))
    g = torch.nn.functional.logsigmoid(torch.randn(1, args.T, args.hv, args.K) + 1).clamp(min=-5.0)
    beta = torch.rand(1, args.T, args.hv).to(dtype)
    leaves = [x.requires_grad_() for x in (q, k, v, g, beta)]

    def call(function: Callable[..., Any], **options: Any) -> list[Any]:
        out = function(*leaves, **options)
        out = out[0] if isinstance(out, tuple) else out
        return [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    return {f"cake_kda_{args.mode}, save_mode {m}": lambda m=m: call(kda, save_mode=m) for m in ("light", "tape")} | {
        f"torch, bounded_gate {b}": lambda b=b: call(chunked_kda, bounded_gate=b) for b in (True, False)}


def measure(functions: dict[str, Callable[[], list[Any]]], n: int) -> dict[str, dict[str, float]]:
    """Median and quartiles of the seconds of each choice; the choices take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(_WARM_UP + n):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if i >= _WARM_UP:
                seconds[name].append(time.perf_counter() - begin)
    table = {}
    for name, list_of in seconds.items():
        quartiles = statistics.quantiles(list_of, n=4) if len(list_of) > 1 else [list_of[0]] * 3
        table[name] = {"median_s": statistics.median(list_of), "q1_s": quartiles[0], "q3_s": quartiles[2]}
    return table


def difference(functions: dict[str, Callable[[], list[Any]]]) -> float:
    """The largest relative difference of a result of any choice from the last choice's."""
    *others, last = [function() for function in functions.values()]
    return max(((a.double() - b.double()).norm() / b.double().norm()).item() for x in others for a, b in zip(x, last))


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints. Returns 1 when the two sides disagree, else 0."""
    args = parse(arguments)
    # Read when the library loads.
    os.environ["CAKE_NUM_THREADS"] = str(args.threads)
    sys.path.append(str(_HERE.parents[2] / "python"))  # behind an installed package
    sys.path.insert(0, str(_HERE.parent))
    import torch

    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    functions = choices(args)
    worst = difference(functions)
    table = measure(functions, args.n)
    best, peer = (min(row["median_s"] for n, row in table.items() if n.startswith("torch") == is_torch)
                  for is_torch in (False, True))
    agrees = worst <= _AGREEMENT[args.dtype]
    result = {"T": args.T, "H": args.H, "HV": args.hv, "K": args.K, "V": args.V, "dtype": args.dtype,
              "threads": args.threads, "n": args.n, "mode": args.mode, "torch": torch.__version__,
              "machine": platform.machine(), "load_before": load, "choices": table, "ratio": peer / best,
              "worst_difference": worst, "agrees": agrees}
    if args.json == "-":
        print(json.dumps(result, indent=1))
        return 0 if agrees else 1
    print(f"KDA forward and backward, T={args.T} H={args.H} HV={args.hv} K={args.K} V={args.V} {args.dtype}, "
          f"{args.threads} thread(s), median of {args.n}")
    for name, row in table.items():
        print(f"  {name:36} {1e3 * row['median_s']:9.1f} ms  ({1e3 * row['q1_s']:.1f} to {1e3 * row['q3_s']:.1f})")
    print(f"  torch {torch.__version__}; ratio of the fastest of each: {peer / best:.2f}; results differ by {worst:.1e}"
          + ("" if agrees else f", more than {_AGREEMENT[args.dtype]:g}"))
    if load > 0.5:
        print(f"  the load average was {load:.1f} before: other programs took time from both sides")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
