"""Derived gradients beside those of the library that are written by hand: time of one thread, difference.

    .venv/bin/python -m benchmarks.gradients [NAME ...]

Both take turns; the time of each is the best of many, of the processor's clock for this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import polyfuse as pf

ROWS, WIDTH = 1024, 768
REPEAT = 60
Arrays = Mapping[str, Any]
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    """Normally distributed numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A forward operator with its arguments, and the arguments of the operator that is written by hand: of
    the forward one's arguments, its results, and the cotangents."""

    name: str
    arguments: tuple[Any, ...]
    by_hand: Callable[[Arrays, Arrays, Arrays], tuple[Any, ...]]
    wishes: Mapping[str, Any] = field(default_factory=dict)
    forward: str = ""


X, W = floats(ROWS, WIDTH), floats(WIDTH)
_X2 = {"ranks": {"B": 2}}
CASES = (
    Case("softmax", (X,), lambda a, r, d: (d["y"], r["y"])),
    Case("log_softmax", (X,), lambda a, r, d: (d["y"], r["y"])),
    Case("relu", (X,), lambda a, r, d: (d["y"], a["x"]), _X2),
    Case("gelu", (X,), lambda a, r, d: (d["y"], a["x"]), _X2),
    Case("gelu_tanh", (X,), lambda a, r, d: (d["y"], a["x"]), _X2),
    Case("silu", (X,), lambda a, r, d: (d["y"], a["x"]), _X2),
    Case(
        "layer_norm",
        (X, W, W),
        lambda a, r, d: (d["y"], a["x"], a["gamma"], r["mu"], r["rstd"]),
        {"of": ["y"]},
        "layer_norm_stats",
    ),
    Case("rms_norm", (X, W), lambda a, r, d: (d["y"], a["x"], a["gamma"])),
    Case(
        "batch_norm",
        (floats(16, 32, 14, 14), *(floats(32) for _ in range(4))),
        lambda a, r, d: (d["y"], a["x"], a["gamma"], r["mu"], r["rstd"]),
        {"of": ["y"], "wrt": ["x", "gamma", "beta"]},
        "batch_norm_train",
    ),
    Case(
        "cross_entropy",
        (X, RNG.integers(0, WIDTH, ROWS).astype(np.int32)),
        lambda a, r, d: (a["x"], a["target"], d["loss"]),
    ),
    Case(
        "linear", (floats(64, 256), floats(128, 256), floats(128)), lambda a, r, d: (d["y"], a["x"], a["w"])
    ),
    Case("bias_gelu", (X, W), lambda a, r, d: (d["y"], a["x"], a["bias"])),
    Case(
        "softmax_dropout",
        (X, RNG.integers(0, 2, (ROWS, WIDTH)).astype(bool)),
        lambda a, r, d: (d["y"], r["prob"], a["keep"]),
        {"of": ["y"]},
    ),
)


def run(case: Case) -> str:
    """A line of the table."""
    pair = pf.grad(pf.stdlib.op(case.forward or case.name), **case.wishes)
    forward, derived = (pf.compile(f, target="cpu", threads=1) for f in (pair.forward, pair.backward))
    hand = pf.compile(pf.stdlib.op(f"{case.name}_backward"), target="cpu", threads=1)
    arguments = dict(zip((p.name for p in pair.operator.signature.params), case.arguments, strict=False))
    results = dict(
        zip((r.name for r in pair.forward.signature.results), _tuple(forward(*case.arguments)), strict=True)
    )
    cotangents = {n: floats(*results[n].shape) if np.shape(results[n]) else np.float32(1.0) for n in pair.of}
    places = {"cotangent": cotangents, "argument": arguments, "result": results, "kept": results}
    given = {s.parameter: places[s.kind][s.name] for s in pair.sources if s.name in places[s.kind]}
    theirs = case.by_hand(arguments, results, cotangents)
    pairs = zip(_tuple(derived(**given)), _tuple(hand(*theirs)), strict=True)
    difference = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    ours, written = _best([lambda: derived(**given), lambda: hand(*theirs)])
    return f"{case.name:16} {ours * 1e6:9.1f} {written * 1e6:9.1f} {ours / written:7.2f} {difference:11.1e}"


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _best(calls: list[Callable[[], Any]]) -> list[float]:
    """The least time of each in seconds."""
    found = [float("inf")] * len(calls)
    for _ in range(REPEAT):
        for k, call in enumerate(calls):
            start = time.process_time()
            call()
            call()
            found[k] = min(found[k], (time.process_time() - start) / 2)
    return found


def main(names: list[str]) -> None:
    """Print the table."""
    print(
        f"{'gradient of':16} {'derived':>9} {'by hand':>9} {'ratio':>7} {'difference':>11}   (microseconds)"
    )
    for case in CASES:
        if not names or case.name in names:
            print(run(case), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
