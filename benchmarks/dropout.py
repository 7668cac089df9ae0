"""Dropout, a residual sum and LayerNorm, forward and backward: `python -m benchmarks.dropout [--threads N]`.

*polyfuse* draws the mask by counters, in the forward pass and again in the backward one; *stored mask* is our
program that reads a mask of bytes, whose making is not timed.  Beside them PyTorch, as it is and through
torch.compile, which draw the mask in the forward pass.  Each contender is a process of its own that computes
on request, so that they take turns; a figure is the median over rounds of the fastest call in a turn.
Contenders that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.turns import OURS, options_of, serve_cases, turns_of

STORED = "stored mask"
NEEDS = {OURS: "polyfuse", STORED: "polyfuse", "PyTorch": "torch", "torch.compile": "torch"}
CASES = ("forward", "forward and backward")
ROWS, COLUMNS, PART = 4096, 768, 0.1

DRAWN = ("seed: u64", "uniform(seed, 0, position(t, h)) >= p")
MASKED = ("keep: bool[T, H]", "keep[t, h]")
TEXT = """
op forward(x: f32[T, H], r: f32[T, H], gamma: f32[H], beta: f32[H], {argument}, p: f32 = 0.1)
    -> (y: f32[T, H], s: f32[T, H], mu: f32[T], rstd: f32[T]) where H >= 1 {{
  s[t, h] = r[t, h] + (x[t, h] / (1.0 - p) if {kept} else 0.0)
  (y, mu, rstd) = layer_norm_stats(s, gamma, beta)
}}

op backward(dy: f32[T, H], s: f32[T, H], gamma: f32[H], mu: f32[T], rstd: f32[T], {argument}, p: f32 = 0.1)
    -> (dx: f32[T, H], dr: f32[T, H], dgamma: f32[H], dbeta: f32[H]) where H >= 1 {{
  (dr, dgamma, dbeta) = layer_norm_backward(dy, s, gamma, mu, rstd)
  dx[t, h] = dr[t, h] / (1.0 - p) if {kept} else 0.0
}}
"""


def arrays() -> list[Any]:
    """x, r and dy, gamma and beta, and a mask."""
    import numpy as np

    from benchmarks.workload import at_line

    rng, shape = np.random.default_rng(0), (ROWS, COLUMNS)
    whole = [at_line(rng.standard_normal(shape, "f4")) for _ in range(3)]
    return [*whole, *rng.standard_normal((2, COLUMNS), "f4"), rng.random(shape) >= PART]


def call_of(peer: str, case: str, threads: int) -> Callable[[], Any]:
    """A call of a case."""
    ours = peer in (OURS, STORED)
    return _our_call(peer, case, threads) if ours else _torch_call(peer, case, threads)


def _our_call(peer: str, case: str, threads: int) -> Callable[[], Any]:
    import polyfuse as pf

    x, r, dy, gamma, beta, keep = arrays()
    argument, kept = DRAWN if peer == OURS else MASKED
    text, last = TEXT.format(argument=argument, kept=kept), 7 if peer == OURS else keep
    options = pf.Options(threads=threads, progress=False)
    forward, backward = (pf.compile(text, op=op, options=options) for op in ("forward", "backward"))
    _, s, mu, rstd = forward(x, r, gamma, beta, last)
    first, second = forward.bind(x, r, gamma, beta, last), backward.bind(dy, s, gamma, mu, rstd, last)
    return first if case == "forward" else lambda: (first(), second())


def _torch_call(peer: str, case: str, threads: int) -> Callable[[], Any]:
    import torch
    from torch.nn import functional

    torch.set_num_threads(threads)
    x, r, dy, gamma, beta = map(torch.from_numpy, arrays()[:5])
    given = [t.requires_grad_() for t in (x, r, gamma, beta)]

    def plain(x: Any, r: Any, gamma: Any, beta: Any) -> Any:
        return functional.layer_norm(functional.dropout(x, PART) + r, (COLUMNS,), gamma, beta)

    function = torch.compile(plain) if peer == "torch.compile" else plain

    def both() -> None:
        function(*given).backward(dy)
        for t in given:
            t.grad = None

    return both if case != "forward" else lambda: function(*given)


def table(threads: int, rounds: int) -> str:
    """Milliseconds of all cases, as Markdown."""
    peers = [p for p, library in NEEDS.items() if importlib.util.find_spec(library)]
    lines = [
        f"{ROWS} x {COLUMNS}, f32, {threads} threads, milliseconds; medians of {rounds} rounds.",
        "",
        f"| | {' | '.join(peers)} |",
        f"|---|{'---:|' * len(peers)}",
    ]
    for case, found in zip(
        CASES, turns_of("benchmarks.dropout", peers, len(CASES), threads, rounds), strict=True
    ):
        lines.append(f"| {case} | {' | '.join(f'{t * 1e3:.2f}' for t in found.values())} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    chosen = options_of(__doc__)
    print(table(chosen.threads, chosen.rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        peer, threads = sys.argv[2], int(sys.argv[3])
        serve_cases(lambda k: call_of(peer, CASES[k], threads), *map(int, sys.argv[4:6]))
    else:
        main()
