"""Random bounds of reductions from data and rows of elements, judged by loops of Python over single elements.

Pointers have any integer type, fall, overlap and leave the range; bounds are elements, sums with constants,
minima, maxima, conditionals or computed; reductions nest, stand in expressions and are read by rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.api import LAYERS

Array = np.ndarray[Any, Any]
COMPILED = ["cpu", "emulate"] if shutil.which("g++") else []
FOLDS: dict[str, tuple[Callable[[list[float]], float], str]] = {
    "sum": (lambda v: float(sum(v)), "f32"),
    "max": (lambda v: max(v, default=-np.inf), "f32"),
    "min": (lambda v: min(v, default=np.inf), "f32"),
    "prod": (lambda v: float(np.prod(v)), "f32"),
    "any": (lambda v: any(x > 0 for x in v), "bool"),
    "all": (lambda v: all(x > 0 for x in v), "bool"),
}
End = Callable[[int], int]


@dataclass
class Drawn:
    """An operator over rows n and columns f, its arguments and what it computes."""

    seed: int
    rng: np.random.Generator = field(init=False)
    arguments: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.n, self.f = (int(self.rng.choice([1, 2, 5, 9, 33])) for _ in range(2))
        self.e = int(self.rng.choice([0, 1, 3, 8, 30, 61]))
        self.give("x", self.rng.integers(-2, 3, (self.e, self.f)).astype(np.float32))
        self.give("col", self.rng.integers(-3, self.e + 3, self.e).astype(np.int32))

    def give(self, name: str, values: Array) -> Array:
        self.arguments[name] = values
        return values

    def pointers(self, name: str, count: int) -> Array:
        e, kind = self.e, self.rng.integers(4)
        drawn = self.rng.integers(-4, e + 5, count)
        made = [drawn, np.sort(drawn), np.sort(drawn)[::-1], np.where(drawn > e // 2, e, 0)][kind]
        return self.give(name, made.astype(str(self.rng.choice(["int8", "int16", "int32", "int64"]))))

    def ends(self) -> tuple[str, End, End]:
        """The text of bounds, and what they are for a row."""
        p, a, b = (self.pointers(*x) for x in (("ptr", self.n + 1), ("a", self.n), ("b", self.n)))
        c = int(self.rng.integers(0, 4))
        at = int(self.rng.integers(0, self.n))
        forms: list[tuple[str, End, End]] = [
            ("ptr[n]..ptr[n + 1]", lambda n: int(p[n]), lambda n: int(p[n + 1])),
            (f"i64(a[n]) - {c}..i64(b[n]) + {c}", lambda n: int(a[n]) - c, lambda n: int(b[n]) + c),
            (f"0..b[{at}]", lambda n: 0, lambda n: int(b[at])),
            ("a[n]..E", lambda n: int(a[n]), lambda n: self.e),
            (f"max({c}, a[n])..min(b[n], E)", lambda n: max(c, int(a[n])), lambda n: int(b[n])),
            ("(a[n] if a[n] > 2 else 1)..last[n]", lambda n: max(int(a[n]), 0) if a[n] > 2 else 1,
             lambda n: min(int(p[n + 1]), 9)),
        ]  # fmt: skip
        return forms[self.rng.integers(len(forms))]

    def program(self) -> tuple[str, dict[str, Array]]:
        text, low, high = self.ends()
        op = str(self.rng.choice([*FOLDS]))
        fold, dtype = FOLDS[op]
        gathers = self.rng.random() < 0.4
        term = "x[col[e], f] + x[e, f]" if gathers else "x[e, f]"
        test = " > 0.0" if dtype == "bool" else ""
        x, col = self.arguments["x"], np.clip(self.arguments["col"], 0, max(self.e - 1, 0))
        y = np.zeros((self.n, self.f), bool if dtype == "bool" else np.float32)
        ptr = self.arguments["ptr"]
        for n in range(self.n):
            begin, end = (min(max(v(n), 0), self.e) for v in (low, high))
            for f in range(self.f):
                values = [float(x[e, f] + (x[col[e], f] if gathers else 0)) for e in range(begin, end)]
                y[n, f] = fold(values)
        r = [max((k for k, at in enumerate(ptr) if at <= e), default=-1) for e in range(self.e)]
        z = np.array([y[min(max(k, 0), self.n - 1), 0] for k in r], y.dtype)
        parameters = ["x: f32[E, F]", "col: i32[E]"]
        for name, extent in (("ptr", "N + 1"), ("a", "N"), ("b", "N")):
            bits = self.arguments[name].dtype.itemsize * 8
            parameters.append(f"{name}: i{bits}[{extent}]")
        last = "  last[n] = min(i64(ptr[n + 1]), 9) for n in 0..N\n" if "last" in text else ""
        body = f"""{last}  y[n, f] = {op}[e in {text}]({term}{test})
  z[e] = y[row(ptr, e), 0]
  r[e] = row(ptr, e)"""
        results = f"(y: {dtype}[N, F], z: {dtype}[E], r: i64[E])"
        program = f"op p({', '.join(parameters)})\n    -> {results} where F >= 1, N >= 1 {{\n{body}\n}}"
        return program, {"y": y, "z": z, "r": np.array(r, np.int64)}


def check(seed: int, targets: list[str]) -> None:
    drawn = Drawn(seed)
    text, want = drawn.program()
    rng = np.random.default_rng(seed)
    for target in targets:
        layers = tuple(x for x in LAYERS if rng.random() < 0.6)
        found = pf.compile(text, target=target, layers=layers)(**drawn.arguments)
        for (name, values), got in zip(want.items(), found, strict=True):
            np.testing.assert_array_equal(got, values, err_msg=f"{name}, {target}, {layers}\n{text}")


@pytest.mark.skipif(not COMPILED, reason="no g++")
@pytest.mark.parametrize("seed", range(16))
def test_bounds_are_those_of_loops(seed: int) -> None:
    check(seed, [COMPILED[seed % 2]])


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="no g++")
@pytest.mark.parametrize("seed", range(16, 400))
def test_bounds_are_those_of_loops_on_many(seed: int) -> None:
    check(seed, COMPILED)
