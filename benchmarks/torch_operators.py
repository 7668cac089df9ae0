"""Sixty single operators of PyTorch by `torch.compile(backend="polyfuse")`, beside eager mode and Inductor.

    python -m benchmarks.torch_operators                     all, a table
    python -m benchmarks.torch_operators --only pool loss    those with one of these words in their names
    python -m benchmarks.torch_operators --keep FILE         rows go into a file; what it has is not run
    python -m benchmarks.torch_operators --keep FILE --write   the tables go into the page, too

Each is a function that calls PyTorch, without gradients, at a usual size and at one inside the cache.  A time
is CPU time of a call, the least of many rounds in which contenders take turns; the spread is what the median
of ours is above it.  All results are compared with eager mode's in float64.  A fourth contender computes
nothing: what its calls take is torch.compile's own, guards and wrappers, in which Inductor's and ours are
wrapped, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import write_measured
from benchmarks.torch_functions import FUNCTIONS, PLACES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "torch_operators.md"
CONTENDERS = ("eager", "inductor", "polyfuse", "nothing")
ROUNDS = 21
BATCH_SECONDS = 0.004
BAR = 0.9


@dataclass
class Row:
    """Seconds of a call by contender, the spread of ours, errors, and what ATen computes in ours."""

    seconds: dict[str, float]
    spread: float
    error: dict[str, float]
    left: list[str] = field(default_factory=list)
    kernels: int = 0

    @property
    def ratio(self) -> float:
        """The better of eager mode's and Inductor's time, by ours."""
        return min(self.seconds["eager"], self.seconds["inductor"]) / self.seconds["polyfuse"]

    @property
    def own_ratio(self) -> float:
        """The same without what is torch.compile's own."""
        wrapped = self.seconds["nothing"]
        own = {c: max(self.seconds[c] - wrapped, 1e-7) for c in ("inductor", "polyfuse")}
        return min(self.seconds["eager"], own["inductor"]) / own["polyfuse"]


# --- measuring --------------------------------------------------------------------------------------------


def nothing(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that gives results which were computed once."""
    from torch._dynamo.backends.common import aot_autograd

    def compiler(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def run(arguments: list[Any]) -> Any:
            given = list(arguments)
            arguments.clear()
            if not kept:
                kept.extend(module(*given))
            return list(kept)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    made: Callable[..., Any] = aot_autograd(fw_compiler=compiler)(module, inputs)
    return made


def compiled(f: Callable[..., Any], contender: str) -> Callable[..., Any]:
    """The function by a contender; in code of its own, so that torch finds one compilation for it."""
    if contender == "eager":
        return f

    def run(*given: Any) -> Any:
        return f(*given)

    own = types.FunctionType(
        run.__code__.replace(co_name=contender), run.__globals__, contender, None, run.__closure__
    )
    backend: Any = nothing if contender == "nothing" else contender
    made: Callable[..., Any] = torch.compile(own, backend=backend, dynamic=False)
    return made


def error_of(found: Any, wanted: Any) -> float:
    """The largest difference, in parts of the largest value; 1 for integers that differ."""
    if not wanted.dtype.is_floating_point:
        return float(not torch.equal(found, wanted))
    difference = (found.double() - wanted).abs()
    return float(difference.max() / wanted.abs().max().clamp(min=1e-30))


def measured(name: str, place: str) -> Row:
    """A row of the table."""
    from polyfuse.torch.dynamo.report import GRAPHS

    torch.manual_seed(0)
    f, given = FUNCTIONS[name].function, FUNCTIONS[name].inputs(place)
    wanted = f(*(x.double() if x.is_floating_point() else x for x in given))
    runs: dict[str, Callable[..., Any]] = {}
    errors: dict[str, float] = {}
    GRAPHS.clear()
    torch._dynamo.reset()
    for c in CONTENDERS:
        runs[c] = compiled(f, c)
        errors[c] = error_of(runs[c](*given), wanted)
    times = _times(runs, given)
    left = [n for g in GRAPHS for names in g.aten.values() for n in names]
    left += [f for g in GRAPHS for f in g.fallbacks]
    seconds = {c: min(found) for c, found in times.items()}
    spread = statistics.median(times["polyfuse"]) / seconds["polyfuse"] - 1
    kernels = sum(r.kernels or 0 for g in GRAPHS for r in g.regions)
    return Row(seconds, spread, errors, left, kernels)


def _times(runs: dict[str, Callable[..., Any]], given: Sequence[Any]) -> dict[str, list[float]]:
    """Seconds of a call, of all rounds."""
    counts = {}
    for c, run in runs.items():
        run(*given)
        start = time.process_time()
        run(*given)
        counts[c] = max(1, min(200, int(BATCH_SECONDS / max(1e-6, time.process_time() - start))))
    times: dict[str, list[float]] = {c: [] for c in runs}
    for _ in range(ROUNDS):
        for c, run in runs.items():
            start = time.process_time()
            for _ in range(counts[c]):
                run(*given)
            times[c].append((time.process_time() - start) / counts[c])
    return times


# --- the table --------------------------------------------------------------------------------------------


def line(name: str, row: Row) -> str:
    """A line of the table."""
    times = " | ".join(f"{row.seconds[c] * 1e6:.0f}" for c in CONTENDERS)
    left = ", ".join(row.left)
    return f"| {name} | {times} | {row.ratio:.2f} | {row.own_ratio:.2f} | {row.spread:.0%} | {left} |"


def table(rows: dict[str, Row]) -> str:
    """Lines of all operators of a place, and what they amount to."""
    titles = "operator | eager, us | Inductor | polyfuse | torch.compile's own | better / ours"
    lines = [f"| {titles} | without its own | spread | with ATen |", f"|{'---|' * 9}"]
    lines += [line(n, r) for n, r in rows.items()]
    mean, own = (
        math.exp(sum(math.log(v) for v in values) / len(values))
        for values in ([r.ratio for r in rows.values()], [r.own_ratio for r in rows.values()])
    )
    low = [n for n, r in rows.items() if r.ratio < BAR]
    own_low = [n for n in low if rows[n].own_ratio < BAR]
    found = (
        f"\n{len(rows)} operators: geometric mean {mean:.2f}, {own:.2f} without what is torch.compile's own. "
    )
    found += f"Below {BAR}: {len(low)}, {len(own_low)} without it{': ' * bool(own_low)}{', '.join(own_low)}."
    return "\n".join(lines) + f"\n{found}"


def wrong(rows: dict[str, Row]) -> list[str]:
    """Those whose error is above eager mode's, but for rounding (its scans add in f64, ours in f32)."""
    return [n for n, r in rows.items() if not r.error["polyfuse"] <= 4 * r.error["eager"] + 1e-5]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[""])
    parser.add_argument("--place", choices=PLACES, action="append")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--again", action="store_true", help="run those that the file has, too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after these")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    os.environ["POLYFUSE_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    kept = json.loads(chosen.keep.read_text()) if chosen.keep and chosen.keep.exists() else {}
    start = time.monotonic()
    for place in chosen.place or PLACES:
        rows = {}
        for name in FUNCTIONS:
            key = f"{name}|{place}"
            if any(w in name for w in chosen.only):
                late = time.monotonic() - start > chosen.seconds
                if not late and (chosen.again or key not in kept):
                    with torch.no_grad():
                        kept[key] = asdict(measured(name, place))
                    print(line(key, Row(**kept[key])), flush=True)
                    if chosen.keep:
                        chosen.keep.write_text(json.dumps(kept, indent=1))
                if key in kept:
                    rows[name] = Row(**kept[key])
        if not rows:
            continue
        print(f"\n{place}\n{table(rows)}")
        if bad := wrong(rows):
            print(f"wrong: {', '.join(f'{n} ({rows[n].error})' for n in bad)}")
        if chosen.write:
            write_measured(PAGE, table(rows), place)


if __name__ == "__main__":
    main()
