"""Two ways to write the same computation, one beside the other: `python -m benchmarks.forms [--only WORD]`.

Each line has the times of the slower and of the faster form in microseconds, the least of several turns on
one thread, and their ratio; one above 1.25 has a mark. A pair is the operator `f` twice, on the same arrays.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import polyfuse as pf

BAR = 1.25
TURNS, TURN_S = 9, 0.02
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """One computation in two forms; `arguments` makes what both get. Where they are not `alike`, the faster
    one computes less: what the slower one should have to wait for."""

    name: str
    slow: str
    fast: str
    arguments: Callable[[np.random.Generator], Sequence[Array | np.generic]]
    alike: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="pairs with this in their names")
    only = parser.parse_args().only
    print(f"{'':<32} {'slow':>9} {'fast':>9} {'ratio':>6}")
    for pair in PAIRS:
        if only in pair.name:
            slow, fast = (seconds * 1e6 for seconds in times(pair))
            mark = " *" if slow > BAR * fast else ""
            print(f"{pair.name:<32} {slow:9.1f} {fast:9.1f} {slow / fast:6.2f}{mark}", flush=True)


def times(pair: Pair) -> list[float]:
    """The seconds of both forms, which take turns."""
    given = pair.arguments(np.random.default_rng(0))
    forms = [pf.compile(text, target="cpu", threads=1) for text in (pair.slow, pair.fast)]
    for one, other in zip(*(_as_tuple(f(*given)) for f in forms), strict=True):
        if pair.alike:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    calls = [f.bind(*given) for f in forms]
    least = [float("inf")] * 2
    for _ in range(TURNS):
        for k, call in enumerate(calls):
            end = time.perf_counter() + TURN_S
            while (start := time.perf_counter()) < end:
                call()
                least[k] = min(least[k], time.perf_counter() - start)
    return least


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _arrays(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Array]]:
    return lambda rng: [(rng.random(s) + 0.1).astype("f4") for s in shapes]


def _pool(window: int, axes: int, side: int, reduction: str, images: int = 64) -> Pair:
    """A pool whose windows do not overlap, and its terms written out."""
    free, over = "hij"[:axes], "abc"[:axes]
    large, small = ([n] * axes for n in (side, side // window))
    dims = ", ".join(f"{d} in 0..{n}" for d, n in zip(free, small, strict=True))
    places = [", ".join(f"{window}*{d} + {k}" for d, k in zip(free, at, strict=True))
              for at in itertools.product(range(window), repeat=axes)]  # fmt: skip
    terms = [f"x[n, {p}]" for p in places]
    written = " + ".join(terms)
    if reduction != "sum":
        written = terms[0]
        for term in terms[1:]:
            written = f"{reduction}({written}, {term})"
    place = ", ".join(f"{window}*{d} + {r}" for d, r in zip(free, over, strict=True))
    summed = ", ".join(f"{r} in 0..{window}" for r in over)

    def text(value: str) -> str:
        shapes = [", ".join(map(str, [images, *n])) for n in (large, small)]
        head = f"op f(x: f32[{shapes[0]}]) -> (y: f32[{shapes[1]}])"
        return f"{head} {{ y[n, {', '.join(free)}] = {value} for n in 0..{images}, {dims} }}"

    name = f"{reduction} pool {'x'.join([str(window)] * axes)}"
    return Pair(name, text(f"{reduction}[{summed}](x[n, {place}])"), text(written), _arrays((images, *large)))


def _chain(name: str, slow: str, fast: str) -> Pair:
    """Steps of a recurrence with a mask, and ones without."""
    head = "op f(x: f32[32, 32768], m: bool[32, 32768]) -> (y: f32[32, 32768])"

    def text(step: str) -> str:
        return f"{head} {{ y[i, 0] = x[i, 0]\n y[i, j] = {step} for j in 1..32768 }}"

    def arguments(rng: np.random.Generator) -> list[Array]:
        return [(rng.random((32, 32768)) - 0.5).astype("f4"), rng.random((32, 32768)) < 0.5]

    return Pair(name, text(slow), text(fast), arguments, alike=False)


def _guarded() -> Pair:
    """A strided convolution with a padding of two."""
    head = "op f(x: f32[4, 3, 56, 56], w: f32[32, 3, 5, 5]) -> (y: f32[4, 32, 28, 28])"
    i, j = "2*i + a - 2", "2*j + b - 2"
    inside = f"0 <= {i} and {i} < 56 and 0 <= {j} and {j} < 56"
    x, w = f"x[n, c, {i}, {j}]", "w[o, c, a, b]"

    def text(term: str) -> str:
        over = "c in 0..3, a in 0..5, b in 0..5"
        free = "n in 0..4, o in 0..32, i in 0..28, j in 0..28"
        return f"{head} {{ y[n, o, i, j] = sum[{over}]({term}) for {free} }}"

    slow, fast = f"({x} * {w} if {inside} else 0.0)", f"({x} if {inside} else 0.0) * {w}"
    return Pair("guarded product", text(slow), text(fast), _arrays((4, 3, 56, 56), (32, 3, 5, 5)))


def _power(g: float, fast: str, dtype: str = "f32") -> Pair:
    """A power with an argument as exponent, and what it is for one of its values."""
    head = f"op f(x: {dtype}[262144], g: {dtype}) -> (y: {dtype}[262144])"
    kind = np.float32 if dtype == "f32" else np.float64
    texts = (f"{head} {{ y[i] = {value} }}" for value in ("x[i] ** g", fast))
    name = f"x ** g, {dtype}, g = {g:g}, and {fast}"
    return Pair(name, *texts, lambda rng: [(rng.random(262144) + 0.1).astype(kind), kind(g)])


def _focal() -> Pair:
    def text(power: str) -> str:
        return f"""op f(x: f32[262144], t: f32[262144], g: f32) -> (y: f32) {{
          p[i] = sigmoid(x[i])
          q[i] = p[i] * t[i] + (1 - p[i]) * (1 - t[i])
          y = sum[i](-((1 - q[i]) ** {power}) * log(q[i])) / 262144.0
        }}"""

    def arguments(rng: np.random.Generator) -> list[Array | np.generic]:
        x, t = rng.standard_normal((2, 262144)).astype("f4")
        return [x, (t > 0).astype("f4"), np.float32(2)]

    return Pair("focal loss, gamma = 2", text("g"), text("2.0"), arguments)


PAIRS = (
    *(_pool(w, axes, side, r) for r in ("sum", "max") for w, axes, side in
      [(3, 2, 63), (4, 2, 64), (5, 2, 65), (8, 2, 64), (2, 3, 24), (3, 3, 24)]),
    _chain("masked cumsum", "y[i, j-1] + x[i, j] * f32(m[i, j])", "y[i, j-1] + x[i, j]"),
    _chain("chosen cumsum", "y[i, j-1] + (x[i, j] if m[i, j] else 0.0)", "y[i, j-1] + x[i, j]"),
    _guarded(),
    *(_power(g, "exp(g * log(x[i]))", t) for t in ("f32", "f64") for g in (2.0, 0.5, -1.0, 3.0)),
    _power(1.7, "x[i] ** 1.7"),
    _power(1.7, "x[i] ** 1.7", "f64"),
    _focal(),
)  # fmt: skip


if __name__ == "__main__":
    main()
