"""Scans beside PyTorch, NumPy, JAX and a copy: `python -m benchmarks.scans [--write]`.

Running sums and sliding maxima of few long rows.  Each contender is a process of its own
that computes on request, so that they take turns; a figure is the median over rounds of the fastest call in a
turn.  *copy* is our program ``y[b, t] = x[b, t]``.  Contenders that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.pages import write_measured
from benchmarks.surroundings import load_average, surroundings
from benchmarks.turns import OURS, serve_cases, turns_of

COPY = "copy"
NEEDS = {COPY: "polyfuse", OURS: "polyfuse", "NumPy": "numpy", "PyTorch": "torch", "jax.jit": "jax"}
WIDTH = 64
PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "scans.md"


@dataclass(frozen=True, slots=True)
class Case:
    """An operator over rows, and what others call it."""

    what: str
    rows: int
    columns: int

    @property
    def label(self) -> str:
        """For a row of the table."""
        return f"{self.what} {self.rows} x {self.columns}"

    def arrays(self) -> list[Any]:
        """Its arguments."""
        import numpy as np

        from benchmarks.workload import at_line

        rng = np.random.default_rng(0)
        return [at_line(rng.standard_normal((self.rows, self.columns), "f4"))]


TEXTS = {
    COPY: "op f(x: f32[B, T]) -> (y: f32[B, T]) { y[b, t] = x[b, t] }",
    "cumsum": "op f(x: f32[B, T]) -> (y: f32[B, T]) { y[b, t] = sum[s in 0..t+1](x[b, s]) }",
    "sliding max": f"""op f(x: f32[B, T]) -> (y: f32[B, T]) {{
  y[b, t] = max[s in max(t - {WIDTH - 1}, 0)..t+1](x[b, s])
}}""",
}
SHAPES = ((64, 65536), (8, 1 << 20))
CASES = tuple(Case(what, *shape) for what in TEXTS if what != COPY for shape in SHAPES)


def call_of(peer: str, case: Case, threads: int) -> Callable[[], Any]:
    """A call of a case."""
    given = case.arrays()
    match peer:
        case "polyfuse" | "copy":
            import polyfuse as pf

            text = TEXTS[case.what] if peer == OURS else TEXTS[COPY]
            f = pf.compile(text, options=pf.Options(threads=threads, progress=False))
            return f.bind(*given)
        case "NumPy":
            return _numpy_call(case, *given)
        case "PyTorch":
            return _torch_call(case, threads, *given)
        case _:
            return _jax_call(case, *given)


def _numpy_call(case: Case, x: Any) -> Callable[[], Any]:
    import numpy as np

    if case.what == "cumsum":
        return lambda: np.cumsum(x, -1)
    from scipy.ndimage import maximum_filter1d

    behind = (WIDTH - 1) // 2
    return lambda: maximum_filter1d(x, WIDTH, -1, mode="constant", cval=-np.inf, origin=behind)


def _torch_call(case: Case, threads: int, x: Any) -> Callable[[], Any]:
    import torch
    from torch.nn.functional import max_pool1d, pad

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    t = torch.from_numpy(x)
    if case.what == "cumsum":
        return lambda: torch.cumsum(t, -1)
    return lambda: max_pool1d(pad(t, (WIDTH - 1, 0), value=float("-inf")), WIDTH, 1)


def _jax_call(case: Case, x: Any) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    def sliding(x: Any) -> Any:
        pads = ((0, 0), (WIDTH - 1, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, WIDTH), (1, 1), pads)

    f = jax.jit((lambda x: jnp.cumsum(x, -1)) if case.what == "cumsum" else sliding)
    given = jnp.asarray(x)
    return lambda: f(given).block_until_ready()


def table(threads: int, rounds: int) -> str:
    """Milliseconds of all cases, as Markdown."""
    peers = [p for p, library in NEEDS.items() if importlib.util.find_spec(library)]
    lines = [
        f"{threads} thread{'s' * (threads > 1)}, f32, milliseconds; medians of {rounds} rounds.",
        "",
        f"| | {' | '.join(peers)} | by a copy |",
        f"|---|{'---:|' * (len(peers) + 1)}",
    ]
    for case, found in zip(
        CASES, turns_of("benchmarks.scans", peers, len(CASES), threads, rounds), strict=True
    ):
        cells = " | ".join(f"{t * 1e3:.2f}" for t in found.values())
        lines.append(f"| {case.label} | {cells} | {found[OURS] / found[COPY]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; with --write also into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE.name}")
    chosen = parser.parse_args()
    for threads in chosen.threads:
        where = surroundings()
        about = f"{where['cpu']}, {where['date'][:10]}, load average {load_average():.1f}."
        found = f"{about} {table(threads, chosen.rounds)}"
        print(found, flush=True)
        if chosen.write:
            write_measured(PAGE, found, f"threads {threads}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        peer, threads = sys.argv[2], int(sys.argv[3])
        serve_cases(lambda k: call_of(peer, CASES[k], threads), *map(int, sys.argv[4:6]))
    else:
        main()
