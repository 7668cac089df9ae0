"""Random reads with a value outside, judged by arrays that are padded and read with NumPy alone.

Indices are affine, quotients, remainders or data; tensors have one to three axes, some of extent 0 or 1; the
reads stand alone, in sums, in each other's values outside and in recurrences.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import polyfuse as pf

Array = np.ndarray[Any, Any]
TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
Place = dict[str, int]


@dataclass
class Drawn:
    """An operator over loops i and j, its arguments and what it computes."""

    seed: int
    rng: np.random.Generator = field(init=False)
    arguments: dict[str, Array] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.n, self.m = (int(self.rng.choice([0, 1, 2, 5, 9, 17])) for _ in range(2))
        self.argument("a", (self.n,), "N", self.rng.integers(-4, 20, self.n).astype(np.int32))
        self.argument("b", (self.m,), "M", self.rng.integers(-4, 20, self.m))

    def argument(self, name: str, shape: tuple[int, ...], extents: str, values: Array | None = None) -> None:
        made = self.rng.integers(-8, 9, shape).astype(np.float32) if values is None else values
        dtype = {"int32": "i32", "int64": "i64", "float32": "f32"}[made.dtype.name]
        self.parameters.append(f"{name}: {dtype}[{extents}]")
        self.arguments[name] = made

    def index(self, loops: str) -> tuple[str, Callable[[Place], int]]:
        """An index of the loops: its text, and its value."""
        v = str(self.rng.choice([*loops]))
        c, d = (int(self.rng.integers(-4, 5)) for _ in range(2))
        k = int(self.rng.integers(1, 4))
        forms: list[tuple[str, Callable[[Place], int]]] = [
            (f"{v} + {c}" if c >= 0 else f"{v} - {-c}", lambda at: at[v] + c),
            (f"{d}*{v} + {abs(c)}", lambda at: d * at[v] + abs(c)),
            (f"{abs(c)} - {v}", lambda at: abs(c) - at[v]),
            (f"({v} - {abs(c)})//{k}", lambda at: (at[v] - abs(c)) // k),
            (f"({v} - {abs(c)})%{k} - 1", lambda at: (at[v] - abs(c)) % k - 1),
            (f"{abs(c)}", lambda at: abs(c)),
            (v, lambda at: at[v]),
        ]
        if v in "ij":
            name = "a" if v == "i" else "b"
            forms += [(f"{name}[{v}]", lambda at: int(self.arguments[name][at[v]]))] * 2
        return forms[self.rng.integers(len(forms))]

    def read(self, loops: str, depth: int = 0) -> tuple[str, Callable[[Place], float]]:
        """A read with a value outside."""
        name = f"x{len(self.arguments)}"
        shape = tuple(int(self.rng.choice([0, 1, 3, 8, 16])) for _ in range(self.rng.integers(1, 4)))
        self.argument(name, shape, ", ".join(f"{name.upper()}_{k}" for k in range(len(shape))))
        texts, places = zip(*(self.index(loops) for _ in shape), strict=True)
        other, beyond = f"{self.rng.integers(-3, 4)}.0", None
        if depth < 1 and self.rng.random() < 0.3:
            other, beyond = self.read(loops, depth + 1)

        def value(at: Place) -> float:
            found = tuple(p(at) for p in places)
            if all(0 <= p < e for p, e in zip(found, shape, strict=True)):
                return float(self.arguments[name][found])
            return beyond(at) if beyond else float(other)

        return f"{name}[{', '.join(texts)} else {other}]", value

    def program(self) -> tuple[str, dict[str, Array]]:
        (one, first), (two, second) = self.read("ij"), self.read("ijr")
        length = int(self.rng.integers(1, 5))
        (three, third), before = self.read("i"), int(self.rng.integers(1, 4))
        y, c = np.zeros((self.n, self.m), np.float32), np.zeros(self.n, np.float32)
        for i in range(self.n):
            c[i] = third({"i": i}) - (c[i - before] if i >= before else 2.0)
            for j in range(self.m):
                at = {"i": i, "j": j}
                y[i, j] = first(at) + sum(second({**at, "r": r}) for r in range(length))
        body = f"""  y[i, j] = {one} + sum[r in 0..{length}]({two})
  c[i] = {three} - c[i - {before} else 2.0]"""
        results = "-> (y: f32[N, M], c: f32[N])"
        return f"op f({', '.join(self.parameters)})\n  {results} {{\n{body}\n}}", {"y": y, "c": c}


def check(seed: int, targets: list[str]) -> None:
    drawn = Drawn(seed)
    text, want = drawn.program()
    for target in targets:
        for checked in (False, True):
            y, c = pf.compile(text, target=target, checked=checked)(**drawn.arguments)
            np.testing.assert_array_equal(y, want["y"], err_msg=f"{target}\n{text}")
            np.testing.assert_array_equal(c, want["c"], err_msg=f"{target}\n{text}")


@pytest.mark.parametrize("seed", range(40))
def test_reads_are_those_of_numpy(seed: int) -> None:
    check(seed, TARGETS if seed % 8 == 0 else ["interpret"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_reads_are_those_of_numpy_on_many(seed: int) -> None:
    check(seed, TARGETS if seed % 4 == 0 else ["interpret"])
