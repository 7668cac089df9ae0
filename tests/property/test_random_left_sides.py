"""Random affine left sides, judged by Python that looks up which instance defines an element.

An axis is covered by shifts, reversals, strides, variables side by side or digits of a variable; right sides
read arrays, sum, or continue from an element before.  Elements that nothing defines are those of an `inout`,
or what a scatter starts from.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from targets import Call
from ways import WAYS, check

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.numpy_text import Unsupported

Array = np.ndarray[Any, Any]
Place = dict[str, int]
Index = tuple[str, Callable[[Place], int], dict[str, str]]  # text, value, ranges of its variables
NEEDS_GXX = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def covers(v: str, n: int, m: int) -> list[tuple[str, int, list[Index]]]:
    """Ways to cover an axis by variables v and v2: extent as text and number, and the indices."""
    w, span = f"{v}2", {v: "N"}
    even: Index = (f"2*{v}", lambda at: 2 * at[v], span)
    thirds: list[Index] = [
        (f"3*{v} + {r}", lambda at, r=r: 3 * at[v] + r, {v: "N + 1"} if r == 0 else span)  # type: ignore[misc]
        for r in range(3)
    ]
    pairs: list[Index] = [
        (f"4*({v}//2) + {2 * k} + {v}%2", lambda at, k=k: 4 * (at[v] // 2) + 2 * k + at[v] % 2, {v: "2*N"})  # type: ignore[misc]
        for k in range(2)
    ]
    ends: list[Index] = [("0", lambda _: 0, {}), ("N + 1", lambda _: n + 1, {})]
    return [
        ("N", n, [(v, lambda at: at[v], span)]),
        ("N", n, [(f"N - 1 - {v}", lambda at: n - 1 - at[v], span)]),
        ("N + 2", n + 2, [*ends, (f"{v} + 1", lambda at: at[v] + 1, span)]),
        ("2*N", 2 * n, [even, (f"2*{v} + 1", lambda at: 2 * at[v] + 1, span)]),
        ("2*N", 2 * n, [even, (f"2*N - 1 - 2*{v}", lambda at: 2 * n - 1 - 2 * at[v], span)]),
        ("3*N + 1", 3 * n + 1, thirds),
        ("N*M", n * m, [(f"{v}*M + {w}", lambda at: at[v] * m + at[w], {v: "N", w: "M"})]),
        ("5*N", 5 * n, [(f"{w} + 5*{v}", lambda at: at[v] * 5 + at[w], {v: "N", w: "5"})]),
        ("4*N", 4 * n, pairs),
    ]


class Drawn:
    """An operator with a tensor y of one or two axes."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.n, self.m = self.dice.choice([0, 1, 2, 5, 9]), self.dice.choice([0, 1, 3, 4])
        self.rank = self.dice.choice([1, 1, 2])
        rng = np.random.default_rng(seed)
        self.x = rng.integers(-8, 9, 64).astype(np.float32)
        self.k = rng.integers(-2, 3, (3, 4)).astype(np.float32)
        axes = [self.dice.choice(covers(v, self.n, self.m)) for v in "ij"[: self.rank]]
        self.shape = tuple(extent for _, extent, _ in axes)
        pieces = [*itertools.product(*(indices for _, _, indices in axes))]
        self.dice.shuffle(pieces)
        self.kind = self.dice.choice(["result", "result", "result", "temp", "inout", "scatter"])
        if self.kind in ("inout", "scatter") and len(pieces) > 1:
            pieces = pieces[: len(pieces) // 2]
        self.elements: dict[tuple[int, ...], Callable[[], float]] = {}
        self.known: dict[tuple[int, ...], float] = {}
        lines = [self.piece(p) for p in pieces]
        self.text = self.program(", ".join(text for text, _, _ in axes), lines)

    def piece(self, indices: tuple[Index, ...]) -> str:
        sizes = {"N": self.n, "M": self.m, "N + 1": self.n + 1, "2*N": 2 * self.n, "5": 5}
        ranges = {v: r for _, _, own in indices for v, r in own.items()}
        text, value = self.right([*ranges], bool(indices[0][2]))
        for point in itertools.product(*(range(sizes[r]) for r in ranges.values())):
            at = dict(zip(ranges, point, strict=True))
            place = tuple(f(at) for _, f, _ in indices)
            assert place not in self.elements
            self.elements[place] = lambda at=at, place=place: value(at, place)  # type: ignore[misc]
        left = ", ".join(t for t, _, _ in indices)
        loops = ", ".join(f"{v} in 0..{r}" for v, r in ranges.items())
        before = ", ".join([f"{indices[0][0]} - 1", *(t for t, _, _ in indices[1:])])
        text = text.replace("BEFORE", f"{'m' if self.kind == 'inout' else 'y'}[{before}]")
        text = text.replace("FIRST", indices[0][0])
        return f"  {'m' if self.kind == 'inout' else 'y'}[{left}] = {text}" + (
            f" for {loops}" if loops else ""
        )

    def right(self, names: list[str], moves: bool) -> tuple[str, Callable[[Place, tuple[int, ...]], float]]:
        at_x = " + ".join([*(f"{c}*{v}" for c, v in zip((1, 3, 2, 1), names, strict=False)), "2"])
        where = lambda at: sum(c * at[v] for c, v in zip((1, 3, 2, 1), names, strict=False)) + 2  # noqa: E731
        x = lambda at: float(self.x[where(at) % 64])  # noqa: E731
        read = f"x[({at_x})%64]"
        match self.dice.choice(["read", "sum", "term", "before", "index"]):
            case "sum":
                return f"sum[q in 0..4](k[1, q] * {read})", lambda at, _: float(self.k[1].sum()) * x(at)
            case "term":
                total = float(self.k.sum())
                return f"{read} - sum[p in 0..3, q in 0..4](k[p, q])", lambda at, _: x(at) - total
            case "before" if self.kind == "result" and moves:
                go = lambda at, p: x(at) - (self.value((p[0] - 1, *p[1:])) if p[0] > 0 else 7.0)  # noqa: E731
                return f"{read} - (BEFORE if FIRST > 0 else 7.0)", go
            case "index":
                return f"{read} + ({at_x})", lambda at, _: x(at) + where(at)
            case _:
                return read, lambda at, _: x(at)

    def value(self, place: tuple[int, ...]) -> float:
        for first in range(place[0] + 1):  # a recurrence from its start: Python's stack is not deep
            at = (first, *place[1:])
            if at in self.elements and at not in self.known:
                self.known[at] = self.elements[at]()
        return self.known[place]

    def program(self, extents: str, lines: list[str]) -> str:
        head = "x: f32[64], k: f32[3, 4], a: f32[N], b: f32[M]"
        axes = ", ".join("pq"[: self.rank])
        if self.kind == "inout":
            return f"op f({head}, inout m: f32[{extents}]) {{\n" + "\n".join(lines) + "\n}"
        result = f"-> (z: f32[{extents}])" if self.kind == "temp" else f"-> (y: f32[{extents}])"
        if self.kind == "temp":
            lines = [f"  let y: f32[{extents}]", *lines, f"  z[{axes}] = y[{axes}] + y[{axes}]"]
        if self.kind == "scatter":
            ranges = ", ".join(f"{v} in 0..{e}" for v, e in zip("pq", extents.split(", "), strict=False))
            lines.append(f"  y[{axes}] += 2.5 for {ranges}")
        return f"op f({head})\n  {result} {{\n" + "\n".join(lines) + "\n}"

    def arguments(self) -> dict[str, Array]:
        zeros = {"a": np.zeros(self.n, np.float32), "b": np.zeros(self.m, np.float32)}
        entry = np.arange(np.prod(self.shape), dtype=np.float32).reshape(self.shape) / 4
        return {"x": self.x, "k": self.k, **zeros, **({"m": entry} if self.kind == "inout" else {})}

    def want(self) -> Array:
        found = self.arguments().get("m", np.zeros(self.shape, np.float32)).copy()
        for place in sorted(self.elements):
            found[place] = self.value(place)
        return found * 2 if self.kind == "temp" else found + 2.5 * (self.kind == "scatter")


def run(seed: int, targets: list[str]) -> None:
    drawn = Drawn(seed)
    for target in targets:
        for checked in (False, True):
            arguments = drawn.arguments()
            found = pf.compile(drawn.text, target=target, checked=checked)(**arguments)
            found = arguments["m"] if drawn.kind == "inout" else found
            np.testing.assert_array_equal(found, drawn.want(), err_msg=f"{seed} {target}\n{drawn.text}")


@pytest.mark.parametrize("seed", range(40))
def test_each_element_is_that_of_its_instance(seed: int) -> None:
    run(seed, ["interpret"])


def test_the_numpy_baseline_says_the_same() -> None:
    done = 0
    for seed in range(60):
        drawn = Drawn(seed)
        graph = instantiate(parse_text(drawn.text, "t.pf"), "f")
        try:
            function = baseline(graph, {"N": drawn.n, "M": drawn.m})
        except Unsupported:  # a recurrence along no axis
            continue
        name = {"temp": "z", "inout": "m__out"}.get(drawn.kind, "y")
        np.testing.assert_array_equal(function(drawn.arguments())[name], drawn.want(), err_msg=drawn.text)
        done += 1
    assert done >= 45


@NEEDS_GXX
@pytest.mark.parametrize("group", range(4))
def test_all_layers_agree_with_the_reference(group: int) -> None:
    chosen = []
    for k in range(6):
        seed = 6 * group + k
        drawn = Drawn(seed)
        graph = instantiate(parse_text(drawn.text, "t.pf"), "f")
        call = Call(str(seed), drawn.text, graph, {"N": drawn.n, "M": drawn.m}, drawn.arguments())
        chosen += [(call, WAYS[(seed + 5 * w) % 16]) for w in range(4)]
    check(chosen)


@pytest.mark.slow
@NEEDS_GXX
@pytest.mark.parametrize("seed", range(40, 400))
def test_each_element_is_that_of_its_instance_on_many(seed: int) -> None:
    run(seed, ["interpret", *(["cpu", "emulate"] if seed % 8 == 0 else [])])
