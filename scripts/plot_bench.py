#!/usr/bin/env python3
"""Draws a report of `cake bench --json` as an SVG bar chart: scripts/plot_bench.py REPORT.json CHART.svg

One bar per case that counts operations: GFLOP/s at the median time, with a line from the slowest to the fastest sample.
Exit code 2 when the report cannot be read. Needs nothing but Python's standard library."""
import json
import sys
from xml.sax.saxutils import escape

WIDTH, LABEL, VALUE, ROW, TOP = 960, 360, 70, 26, 64
COLOURS = {"fma_peak": "#9a9a9a", "gemm_64x128x128": "#9a9a9a"}
PEER, PACKAGE = "#d9a441", "#3b6ea5"


def colour(name):
    """Ceilings grey, token-by-token peers yellow, the package blue."""
    if name.startswith(("token_", "plain_")):
        return PEER
    return COLOURS.get(name, PACKAGE)


def bar(case, y, scale):
    """One row of the chart."""
    value = case["gflops"]
    slow, fast = case["flops"] / case["max_s"] * 1e-9, case["flops"] / case["min_s"] * 1e-9
    middle = y + ROW / 2
    return [
        f'<text x="{LABEL - 8}" y="{middle + 4}" text-anchor="end">{escape(case["label"])}</text>',
        f'<rect class="bar" x="{LABEL}" y="{y + 4}" width="{value * scale:.2f}" height="{ROW - 8}" '
        f'fill="{colour(case["name"])}"/>',
        f'<line x1="{LABEL + slow * scale:.2f}" x2="{LABEL + fast * scale:.2f}" y1="{middle}" y2="{middle}" '
        'stroke="#222" stroke-width="1.5"/>',
        f'<text x="{WIDTH - 8}" y="{middle + 4}" text-anchor="end">{value:.1f}</text>',
    ]


def draw(report):
    """The chart's text. Raises KeyError, TypeError or ValueError for anything that is no report."""
    cases = [case for case in report["cases"] if case["flops"] > 0]
    if not cases:
        raise ValueError("the report has no timed cases")
    most = max(case["flops"] / case["min_s"] * 1e-9 for case in cases)
    scale = (WIDTH - LABEL - VALUE) / most
    shape = ",".join(f"{name}={value}" for name, value in report["shape"].items())
    title = f'{report["module"]}: {shape}, {report["dtype"]}, level {report["level"]}, {report["threads"]} thread(s)'
    height = TOP + ROW * len(cases) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="24" font-size="16">{escape(title)}</text>',
        f'<text x="16" y="44" fill="#555">{escape(report["machine"]["model"])}; GFLOP/s by the formula\'s operations, '
        "median of "
        f'{report["rounds"]} rounds, line from slowest to fastest</text>',
    ]
    for i, case in enumerate(cases):
        lines += bar(case, TOP + i * ROW, scale)
    return "\n".join(lines + ["</svg>", ""])


def main(arguments):
    """Reads the report, writes the chart; returns the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, target = arguments
    try:
        with open(source, encoding="utf-8") as file:
            chart = draw(json.load(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{source}: not a report of cake bench --json: {error!r}", file=sys.stderr)
        return 2
    with open(target, "w", encoding="utf-8") as file:
        file.write(chart)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
