"""Random programs at random shapes, open kernels beside fixed ones:
`python -m benchmarks.open_kinds [--seed S] [--only KIND ...] [--write]`.

Of each kind of the tests' random programs (`tests/kinds`) the first one is taken whose sizes may be open.
Two of its sizes are drawn on a logarithmic scale, the others are as the program has them.  Calls with
`sizes="auto"` and `sizes="fixed"` are measured in turns in one process, as those of `benchmarks.open_sizes`;
what counts is the median of their ratios.  With `--json` the results of earlier runs in the file are kept, so
that kinds may be measured one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import polyfuse as pf
from benchmarks.open_sizes import PAGE, TIMED, counted, in_turns, kept
from benchmarks.pages import write_measured
from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.driver.open_sizes import NotOpen, affine, region
from polyfuse.runtime.inputs import make_inputs

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "helpers")]

from kinds import KINDS, kind_call  # noqa: E402
from open_calls import are_small  # noqa: E402

LONGEST, MOST_INSTANCES = 1024, 1_000_000
PROGRAMS = 20
"""Programs of a kind that are looked at, until one may have open sizes."""


def program_of(kind: str, seed: int) -> tuple[Any, tuple[str, ...]]:
    """A program of a kind, and those of its sizes that vary: two, if there are so many."""
    for k in range(seed, seed + PROGRAMS):
        call = kind_call(kind, k)
        names, _ = affine(call.graph, tuple(call.sizes), call.sizes)
        varied = tuple(sorted(random.Random(k).sample(sorted(names), min(2, len(names)))))
        try:
            region(call.graph, {n: v for n, v in call.sizes.items() if n not in varied})
        except NotOpen:
            continue
        if varied:
            return call, varied
    raise LookupError(f"no program of kind {kind} from seed {seed} on has sizes that may be open")


def shapes_of(call: Any, varied: tuple[str, ...], seed: int) -> Iterator[dict[str, int]]:
    """Random sizes, those that vary on a logarithmic scale."""
    rng = random.Random(seed)
    for _ in range(50 * TIMED):
        sizes = {**call.sizes, **{n: round(LONGEST ** rng.random()) for n in varied}}
        if are_small(call.graph, sizes, MOST_INSTANCES):
            yield sizes


def measured(kind: str, seed: int, threads: int) -> dict[str, Any]:
    """Median seconds of calls with open and with fixed sizes, at each of some shapes."""
    call, varied = program_of(kind, seed)
    options = pf.Options(threads=threads, progress=False)
    forms = [pf.compile(call.text, sizes=how, options=options) for how in ("auto", "fixed")]
    ready: list[list[Callable[[], Any]]] = []
    for k, sizes in enumerate(shapes_of(call, varied, seed)):
        if len(ready) == TIMED:
            break
        try:
            calls = [partial(f, **_arguments(call, f, sizes, k)) for f in forms]
            for f in calls:
                f()
        except (ArgumentError, DslError):  # sizes, or numbers among the inputs, that may not be given
            continue
        ready.append(calls)
    times = [in_turns(calls) for calls in ready]
    return {"variants": len(forms[0].variants), "open": [t[0] for t in times], "fixed": [t[1] for t in times]}


def _arguments(call: Any, f: pf.Compiled, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Arrays and numbers of a call, of its own."""
    inputs = {n: np.array(a) for n, a in make_inputs(call.graph, sizes, seed).items()}
    given = {p.name: sizes[p.name] for p in f.signature.size_params}
    return {**{n: a if a.shape else a[()] for n, a in inputs.items()}, **given}


def table(found: Mapping[str, Mapping[str, Any]], seed: int, threads: int) -> str:
    """A table in Markdown, the slowest first."""
    ratios = {n: [a / b for a, b in zip(x["open"], x["fixed"], strict=True)] for n, x in found.items()}
    medians = {n: statistics.median(r) for n, r in ratios.items()}
    mean = statistics.geometric_mean(medians.values())
    every = statistics.median(r for some in ratios.values() for r in some)
    lines = [
        f"{len(found)} random programs of seed {seed}, one of each kind, {TIMED} shapes each, "
        f"{counted(threads)}; geometric mean of the medians {mean:.2f}, median of all shapes {every:.2f}.",
        "",
        "| kind | compilations | fixed, us | open, us | of fixed |",
        "|---|---|---|---|---|",
    ]
    for n in sorted(medians, key=lambda n: -medians[n]):
        fixed, opened = (statistics.median(found[n][w]) * 1e6 for w in ("fixed", "open"))
        lines.append(f"| {n} | {found[n]['variants']} | {fixed:.1f} | {opened:.1f} | {medians[n]:.2f} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.open_kinds", description="Random programs with open sizes."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", choices=KINDS, metavar="KIND")
    parser.add_argument("--json", type=Path, help="results of earlier runs in it are kept")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", pf.PolyfuseWarning)
    found = kept(args.json)
    for kind in args.only if args.only is not None else KINDS:
        found[kind] = measured(kind, args.seed, args.threads)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    text = table(found, args.seed, args.threads)
    print(text)
    if args.write:
        write_measured(PAGE, text, "kinds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
