"""Random operators with optional tensors, called with each choice of them and judged by NumPy.

Conditions are made of `given` with `and`, `or` and `not`, alone and beside conditions on data; tensors are
passed on to another operator, or `None` is.
"""

from __future__ import annotations

import itertools
import random
import shutil
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.checking import check_text

Array = np.ndarray[Any, Any]
TARGETS = ["interpret", *(["cpu", "emulate"] if shutil.which("g++") else [])]
INNER = """op inner(x: f32[N], p: f32[N]?, q: f32[N]?) -> (z: f32[N]) {
  z[n] = x[n] * 2.0 + (p[n] if given(p) else 1.0) - (q[n] if given(q) else x[n])
}
"""


class Drawn:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.n = self.dice.choice([0, 1, 3, 7])
        self.names = ["b", "c", "d"][: self.dice.choice([1, 2, 3])]
        rng = np.random.default_rng(seed)
        self.x = rng.integers(-8, 9, self.n).astype(np.float32)
        self.all = {name: rng.integers(-8, 9, self.n).astype(np.float32) for name in self.names}
        kept = [self.dice.choice([*self.names, "None", ""]) for _ in range(2)]
        self.passed = [k for k in kept if k] if kept[0] else kept[1:] and [f"q={kept[1]}"] * bool(kept[1])
        self.text = ""
        body = f"  y[n] = {self.term(2)} + h[n]"
        call = ", ".join(["x", *self.passed])
        parameters = ", ".join(f"{name}: f32[N]?" for name in self.names)
        head = f"op f(x: f32[N], {parameters}) -> (y: f32[N]) {{\n  h = inner({call})\n"
        self.text = f"{INNER}{head}{body}\n}}"
        self.body = body.split(" = ")[1].removesuffix(" + h[n]")

    def condition(self, name: str) -> str:
        """One that holds only where the tensor is there."""
        other = self.dice.choice(self.names)
        forms = [f"given({name})"] * 3
        forms += [f"given({name}) and {name}[n] > 0.0", f"given({name}) and x[n] > 0.0"]
        forms += [f"not (not given({name}) or x[n] > 0.0)", f"given({name}) and given({other})"]
        return self.dice.choice(forms)

    def term(self, depth: int) -> str:
        name = self.dice.choice(self.names)
        if not depth or self.dice.random() < 0.2:
            return self.dice.choice(["x[n]", "2.0", f"(1.0 if given({name}) else x[n])"])
        there = f"({self.term(depth - 1)} + {name}[n])" if self.dice.random() < 0.7 else f"{name}[n]"
        other = self.term(depth - 1)
        if self.dice.random() < 0.3:
            return f"select({self.condition(name)}, {there}, {other})"
        if self.dice.random() < 0.3:
            return f"({other} if not given({name}) else {there})"
        return f"({there} if {self.condition(name)} else {other})"

    def want(self, given: dict[str, Array]) -> Array:
        """By Python's own conditionals, which are written alike."""

        def inner(x: Array, p: Array | None = None, q: Array | None = None) -> Array:
            return np.asarray(x * 2 + (1 if p is None else p) - (x if q is None else q))

        tensors = {"x": self.x, **{name: given.get(name) for name in self.names}}
        h = eval(f"inner({', '.join(['x', *self.passed])})", {"inner": inner, **tensors})
        flags = {name: name in given for name in self.names}
        text = self.body
        for name, flag in flags.items():
            text = text.replace(f"given({name})", str(flag))
        found = np.zeros(self.n, np.float32)
        names = {"select": None, **tensors}
        for n in range(self.n):
            found[n] = eval(_lazy(text), {**names, "n": n}) + h[n]
        return found


def _lazy(text: str) -> str:
    """`select(c, a, b)` as `(a if c else b)`, which reads one of them only."""
    while "select(" in text:
        start = text.rindex("select(")
        depth, cuts, at = 0, [start + 7], start + 6
        while True:
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[at], 0)
            if depth == 1 and text[at] == ",":
                cuts.append(at + 1)
            if not depth:
                break
            at += 1
        c, a, b = (text[i:j] for i, j in zip(cuts, [cuts[1] - 1, cuts[2] - 1, at], strict=True))
        text = f"{text[:start]}({a} if {c} else {b}){text[at + 1 :]}"
    return text


def run(seed: int, targets: list[str]) -> None:
    drawn = Drawn(seed)
    assert not check_text(drawn.text, "t.pf").found.errors, drawn.text
    for target in targets:
        f = pf.compile(drawn.text, op="f", target=target)
        for k in range(len(drawn.names) + 1):
            for there in itertools.combinations(drawn.names, k):
                given = {name: drawn.all[name] for name in there}
                found = f(drawn.x, **given)
                np.testing.assert_array_equal(found, drawn.want(given), err_msg=f"{there}\n{drawn.text}")


@pytest.mark.parametrize("seed", range(30))
def test_each_choice_is_what_numpy_says(seed: int) -> None:
    run(seed, TARGETS if seed % 10 == 0 else ["interpret"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 300))
def test_each_choice_is_what_numpy_says_on_many(seed: int) -> None:
    run(seed, TARGETS if seed % 8 == 0 else ["interpret"])
