"""Chains of casts over all types, of numbers at the ends of their ranges, halfway between others, or none."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from targets import Array, Call

from kinds.writer import Writer
from polyfuse.ir.dtypes import BY_NAME

INTEGERS = ("u8", "i8", "i16", "i32", "i64", "u16", "u32", "u64")
FLOATS = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2")
TYPES = (*INTEGERS, *FLOATS, "bool")
ENDS = (0.0, -0.0, 0.5, -1.5, 2.5, 127.5, -129.0, 200.0, 255.5, 2048.5, 32767.5, -32769.0, 65519.0, 65520.0,
        2147483520.0, -2147483904.0, 9.3e18, -9.3e18, 448.0, 464.0, 57344.0, 61440.0,
        2.0**-10, 3.0 * 2.0**-10, 2.0**-17, np.nan, np.inf, -np.inf)  # fmt: skip


def values_of(dtype: str, count: int, draw: np.random.Generator) -> Array:
    """Half of them at the ends of ranges of this type and of others."""
    made = BY_NAME[dtype].numpy
    if dtype == "bool":
        return np.asarray(draw.random(count) < 0.5)
    with np.errstate(over="ignore"):
        if dtype in FLOATS:
            ends, others = np.array(ENDS).astype(made), (draw.standard_normal(count) * 300).astype(made)
        else:
            info = np.iinfo(made)
            near = [
                n for k in (7, 8, 11, 15, 16, 24, 31, 53, 63) for n in (2**k - 1, 2**k, 2**k + 1, -(2**k))
            ]
            ends = np.array([n for n in (0, *near) if info.min <= n <= info.max], made)
            others = draw.integers(info.min, info.max, count, made, endpoint=True)
    return np.where(draw.random(count) < 0.5, draw.choice(ends, count), others)


@dataclass
class Casts(Writer):
    """`chains` holds, for each result, the types from the argument to the outermost."""

    chains: list[tuple[str, ...]] = field(default_factory=list)

    def make(self, chains: int = 4) -> Call:
        self.sizes = {"N": self.pick(1, 7, 33, 200)}
        for _ in range(chains):
            self.chain(tuple(self.pick(*TYPES) for _ in range(self.pick(3, 3, 4, 5, 6))))
        return self.call()

    def chain(self, types: tuple[str, ...]) -> None:
        name = f"x_{types[0]}"
        if name not in self.inputs:
            self.argument(name, types[0], ["N"], values=values_of(types[0], self.sizes["N"], self.numbers))
        text = f"{name}[n]"
        for dtype in types[1:]:
            text = f"{dtype}({text})"
        result = f"y{len(self.chains)}"
        self.result(result, types[-1], ["N"])
        self.define(result, ["n"], text)
        self.chains.append(types)


def casts(seed: int) -> Call:
    return Casts("casts", seed).make()
