"""Bars of saved results as SVG: `python -m benchmarks.speed_chart RUN > speed.svg` (or `--dark`).

RUN is a workloads.json that `python -m benchmarks` wrote.  A bar is how many times as long as polyfuse's call
a peer takes, on a scale of doublings: upwards the peer is slower, downwards faster.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.performance_page import PEERS, PRODUCTS, Row, row_of
from benchmarks.report import geometric_mean
from benchmarks.surroundings import RESULTS

RUN = RESULTS / "amd-epyc-avx-512-l1-32k" / "workloads.json"
"""The run that the README shows."""
BAR, GROUP, HEIGHT, LEFT, TOP, BOTTOM = 7, 31, 230, 56, 74, 96
SANS = "'DejaVu Sans', Verdana, system-ui, Arial, sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours: of text, of lines, of the bars of each peer, of polyfuse."""

    ink: str
    line: str
    bars: tuple[str, ...]
    ours: str


LIGHT = Theme("#1f2328", "#d0d7de", ("#b6c3d1", "#4c78a8", "#e08a3c"), "#1a7f4b")
DARK = Theme("#e6edf3", "#3d444d", ("#57606a", "#6ea0d6", "#f0a35e"), "#3fb950")


def chart(run: Path, theme: Theme) -> str:
    """The page."""
    data = json.loads(run.read_text(encoding="utf-8"))
    rows = [row_of(w) for w in data["workloads"]]
    rows.sort(key=lambda r: r.best / r.call["median"], reverse=True)
    ratios = [t / r.call["median"] for r in rows for t in r.peers.values()]
    high, low = math.ceil(math.log2(max(ratios))), math.floor(math.log2(min(1.0, *ratios)))
    width = LEFT + GROUP * len(rows) + 16
    mean = geometric_mean([r.best / r.call["median"] for r in rows if r.case not in PRODUCTS])
    kept = sum(r.case not in PRODUCTS for r in rows)
    title = f"Time of PyTorch and JAX over the time of polyfuse, {data['cpu']}, {data['threads']} cores"
    told = (
        f"Above the line polyfuse is faster. Geometric mean over the best peer: {mean:.2f} "
        f"({kept} workloads without the matrix product)."
    )

    def y(ratio: float) -> float:
        return TOP + HEIGHT * (high - math.log2(ratio)) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + BOTTOM}" '
        f'viewBox="0 0 {width} {TOP + HEIGHT + BOTTOM}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>text{{font:11px {SANS};fill:{theme.ink}}} .t{{font:600 14px {SANS}}}</style>",
        f'<text class="t" x="16" y="22">{escape(title)}</text>',
        f'<text x="16" y="40">{escape(told)}</text>',
        *_legend(theme),
    ]
    for power in range(low, high + 1):
        ours = power == 0
        stroke = f'stroke="{theme.ours if ours else theme.line}" stroke-width="{2 if ours else 1}"'
        spot = _n(y(2.0**power))
        parts.append(f'<line x1="{LEFT}" x2="{width - 16}" y1="{spot}" y2="{spot}" {stroke}/>')
        label = f"{2**power}x" if power >= 0 else f"1/{2**-power}x"
        parts.append(f'<text x="{LEFT - 8}" y="{_n(y(2.0**power) + 4)}" text-anchor="end">{label}</text>')
    for k, row in enumerate(rows):
        bars = [(row.peers.get(p), colour) for p, colour in zip(PEERS, theme.bars, strict=True)]
        parts += _group(
            LEFT + GROUP * k, row, bars, y(1.0), [y(t / row.call["median"]) if t else 0 for t, _ in bars]
        )
    return "\n".join([*parts, "</svg>"])


def _group(
    x: float, row: Row, bars: Sequence[tuple[float | None, str]], zero: float, tops: Sequence[float]
) -> Iterator[str]:
    """The bars of one workload, and its name."""
    for k, ((time, colour), top) in enumerate(zip(bars, tops, strict=True)):
        if time:
            first, tall = min(zero, top), abs(zero - top)
            ratio = time / row.call["median"]
            yield (
                f'<rect x="{_n(x + 5 + BAR * k)}" y="{_n(first)}" width="{BAR - 1}" height="{_n(tall)}" '
                f'fill="{colour}"><title>{escape(row.case)}, {PEERS[k]}: {ratio:.2f}x</title></rect>'
            )
    middle, base = x + 5 + 1.5 * BAR, TOP + HEIGHT + 12
    turned = f'transform="rotate(-45 {_n(middle)} {base})"'
    yield f'<text x="{_n(middle)}" y="{base}" text-anchor="end" {turned}>{escape(row.case)}</text>'


def _legend(theme: Theme) -> Iterator[str]:
    x = 16.0
    for name, colour in (("polyfuse", theme.ours), *zip(PEERS, theme.bars, strict=True)):
        yield f'<rect x="{_n(x)}" y="51" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{_n(x + 15)}" y="60">{name}</text>'
        x += 38 + 6.6 * len(name)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def main() -> None:
    """Print the chart of a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, nargs="?", default=RUN, help="a workloads.json")
    parser.add_argument("--dark", action="store_true", help="colours for a dark page")
    chosen = parser.parse_args()
    print(chart(chosen.run, DARK if chosen.dark else LIGHT))


if __name__ == "__main__":
    main()
