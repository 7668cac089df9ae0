"""Random expressions of all types, with conversions between any two, at the ends of their ranges."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from targets import Call, check_emulated, check_everywhere
from thinned import thinned

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BY_NAME

INTEGERS, FLOATS = ("i8", "u8", "i16", "i32", "i64"), ("f32", "f64")
TYPES = (*INTEGERS, *FLOATS)
SIZES = (0, 1, 7, 33, 200)
PROGRAMS, TOGETHER = 96, 12
# Ends of ranges and what is next to them, and numbers halfway between others.
NUMBERS = [
    0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 127, 128, -128.5, -129, 255.5, 256, 32767.5, -32769,
    2147483520, 2147483648, -2147483904, 9.3e18, -9.3e18, np.nan, np.inf, -np.inf,
]  # fmt: skip


@dataclass
class Drawn:
    """Expressions of element k of parameters, which are noted."""

    rng: random.Random
    parameters: dict[str, str] = field(default_factory=dict)

    def leaf(self, t: str) -> str:
        if self.rng.random() < 0.8:
            name = f"{t}_{self.rng.randrange(2)}"
            self.parameters[name] = t
            return f"{name}[k]"
        return f"{t}({self.rng.choice([0, 1, 2, 3, 7, 100])})"

    def any(self, t: str, depth: int) -> str:
        if depth <= 0:
            return self.leaf(t)
        kinds = [self.converted, self.chosen, self.extreme, self.signed, self.calculated]
        kind = self.rng.choices(kinds, [4, 1, 1, 1, 4])[0]
        return kind(t, depth - 1)

    def converted(self, t: str, depth: int) -> str:
        """To floats what they hold: a conversion to integers would tell any two roundings apart."""
        held = {"f32": ("i8", "u8", "i16"), "f64": ("i8", "u8", "i16", "i32", "f32")}
        return f"{t}({self.any(self.rng.choice(held.get(t, TYPES)), depth)})"

    def chosen(self, t: str, depth: int) -> str:
        u, compared = self.rng.choice(TYPES), self.rng.choice(["<", "<=", "==", "!="])
        condition = f"{self.any(u, depth - 1)} {compared} {self.any(u, depth - 1)}"
        return f"({self.any(t, depth)} if {condition} else {self.any(t, depth)})"

    def extreme(self, t: str, depth: int) -> str:
        return f"{self.rng.choice(['min', 'max'])}({self.any(t, depth)}, {self.any(t, depth)})"

    def signed(self, t: str, depth: int) -> str:
        functions = ["abs", "-", *(("floor", "ceil", "round") if t in FLOATS else ())]
        return f"{self.rng.choice(functions)}({self.any(t, depth)})"

    def calculated(self, t: str, depth: int) -> str:
        if t in FLOATS:
            return self.signed(t, depth)
        if self.rng.random() < 0.5:
            return f"({self.any(t, depth)} {self.rng.choice('+-*')} {self.any(t, depth)})"
        other = self.leaf(t) if self.rng.random() < 0.5 else f"{t}({self.rng.choice([1, 2, 3, 8, 10, 100])})"
        divisor = f"({other} if {other} != {t}(0) else {t}(1))"
        return f"({self.any(t, depth)} {self.rng.choice(['//', '%'])} {divisor})"


def values(t: str, n: int, draw: np.random.Generator) -> np.ndarray:
    """Half of them at ends of ranges."""
    dtype = BY_NAME[t].numpy
    if t in FLOATS:
        ends, others = np.array(NUMBERS).astype(dtype), (draw.standard_normal(n) * 20).astype(dtype)
    else:
        info = np.iinfo(dtype)
        ends = np.array([info.min, info.min + 1, info.max - 1, info.max, 0, 1, 2], dtype)
        others = draw.integers(max(-50, int(info.min)), 51, n).astype(dtype)
    return np.where(draw.random(n) < 0.5, draw.choice(ends, n), others)


def call_of(seed: int) -> Call:
    drawn = Drawn(random.Random(seed))
    results = [drawn.rng.choice(TYPES) for _ in range(3)]
    lines = [
        f"  y{i}[k] = {drawn.any(t, drawn.rng.choice([2, 3, 4]))} for k in 0..N"
        for i, t in enumerate(results)
    ]
    drawn.leaf("f32")
    taken = drawn.parameters or {"f32_0": "f32"}
    given = ", ".join(f"{name}: {t}[N]" for name, t in sorted(taken.items()))
    made = ", ".join(f"y{i}: {t}[N]" for i, t in enumerate(results))
    text = "\n".join([f"op f({given}) -> ({made}) {{", *lines, "}"])
    n, draw = SIZES[seed % len(SIZES)], np.random.default_rng(seed)
    inputs = {name: values(t, n, draw) for name, t in sorted(taken.items())}
    return Call(f"types {seed}", text, instantiate(parse_text(text), "f"), {"N": n}, inputs)


@pytest.mark.parametrize("group", thinned(range(PROGRAMS // TOGETHER), 4))
def test_types_agree(group: int) -> None:
    calls = [call_of(TOGETHER * group + k) for k in range(TOGETHER)]
    check_everywhere(calls)
    check_emulated(calls, orders=("random",))
