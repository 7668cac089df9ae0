"""Integers that wrap around: any values of all types, divisions by zero and of the smallest by -1, casts of
floats that do not fit, and reductions of all of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from targets import Call

from kinds.writer import Writer, over

SIGNED, UNSIGNED = ("i8", "i16", "i32", "i64"), ("u8", "u16", "u32", "u64")
TYPES = (*SIGNED, *UNSIGNED)
SHAPE = ["N", "M"]
DIVISORS = (1, 2, 3, 8, 16, 100)


@dataclass
class _Integers(Writer):
    def make(self) -> Call:
        self.sizes = {"N": self.pick(1, 3, 17, 33, 70), "M": self.pick(1, 2, 8, 17, 65)}
        self.dtype, self.other = self.pick(*TYPES), self.pick(*TYPES)
        self.float = self.pick("f32", "f64", "f16")
        self.arguments()
        for k in range(self.pick(1, 2, 3)):
            right = self.expression(self.pick(1, 2, 3))
            self.dice.choices(*zip(*self.forms(), strict=True))[0](f"y{k}", right)
        return self.call()

    def arguments(self) -> None:
        self.argument("a", self.dtype, SHAPE, whole=True)
        self.argument("c", self.dtype, SHAPE, whole=self.chance(0.5))
        self.argument("k", self.other, ["M"], whole=True)
        self.argument("f", self.float, SHAPE, special=4)
        self.argument("q", self.dtype, ["N"], whole=True)
        self.argument("h", "bool", SHAPE)
        if self.chance(0.5):
            with np.errstate(over="ignore"):
                self.inputs["f"] *= self.inputs["f"].dtype.type(50)
        if self.chance(0.5):
            self.divisors(self.inputs["a"], self.inputs["c"])

    def divisors(self, a: np.ndarray, c: np.ndarray) -> None:
        """Zeros and, where the type has them, -1 beside the smallest number."""
        c[self.numbers.random(c.shape) < 0.2] = 0
        if self.dtype in SIGNED:
            c[self.numbers.random(c.shape) < 0.1] = -1
            a[self.numbers.random(c.shape) < 0.2] = np.iinfo(c.dtype).min

    # --- expressions over n and m ---

    def leaf(self) -> str:
        return self.pick(
            "a[n, m]", "c[n, m]", f"{self.dtype}(k[m])", "q[n]", f"{self.dtype}(h[n, m])",
            self.pick("1", "2", "3", "7", "100"), f"{self.dtype}(n)", f"{self.dtype}(m * 3)",
        )  # fmt: skip

    def expression(self, depth: int) -> str:
        if not depth:
            return self.leaf()
        x, y = self.expression(depth - 1), self.expression(depth - 1)
        minus = self.pick("~", "-") if self.dtype in SIGNED else "~"
        return self.pick(
            f"({x} + {y})", f"({x} - {y})", f"({x} * {y})", f"({x} // {y})", f"({x} % {y})",
            f"({x} // {self.pick(*DIVISORS)})", f"({x} % {self.pick(*DIVISORS)})", f"max({x}, {y})",
            f"min({x}, {y})", f"abs({x})", f"({minus}{x})", f"({x} if {y} > {x} else {y})",
            f"({x} if h[n, m] else {y})", f"{self.dtype}({self.other}({x}))", f"({x} ** 2)",
            f"({x} & {y})", f"({x} | {y})", f"({x} ^ {y})", f"({self.dtype}({x}) << {self.places(y)})",
            f"({self.dtype}({x}) >> {self.places(y)})", f"{self.dtype}({x} == {y})",
            f"{self.dtype}(not ({x} <= {y}))",
        )  # fmt: skip

    def places(self, y: str) -> str:
        """How far a shift goes: any number, fewer than the width, or a literal."""
        return self.pick(y, f"({y} & 7)", "3", str(int(self.dtype[1:]) - 1), self.dtype[1:])

    # --- results ---

    def forms(self) -> list[tuple[Callable[[str, str], None], int]]:
        """What can be made of an expression, and how often it is."""
        return [
            (self.elements, 8), (self.of_rows, 4), (self.of_columns, 2), (self.of_all, 2), (self.floats, 2),
            (self.tests, 2), (self.casts, 3),
        ]  # fmt: skip

    def elements(self, name: str, right: str) -> None:
        self.result(name, self.dtype, SHAPE)
        self.define(name, ["n", "m"], right, over(SHAPE))

    def of_rows(self, name: str, right: str) -> None:
        self.reduced(name, right, "N", "M")

    def of_columns(self, name: str, right: str) -> None:
        self.reduced(name, right, "M", "N")

    def reduced(self, name: str, right: str, kept: str, axis: str) -> None:
        self.need(axis)
        reduction = self.pick("sum", "prod", "max", "min", "argmax", "argmin")
        self.result(name, "i64" if reduction.startswith("arg") else self.dtype, [kept])
        loop = axis.lower()
        self.define(name, [kept.lower()], f"{reduction}[{loop} in 0..{axis}]({right})", over([kept]))

    def of_all(self, name: str, right: str) -> None:
        self.result(name, self.dtype, [])
        self.define(name, [], f"{self.pick('sum', 'prod')}[n in 0..N, m in 0..M]({right})")

    def floats(self, name: str, right: str) -> None:
        f = self.float
        self.result(name, f, SHAPE)
        text = f"f16(f32({right}) * 0.01)" if f == "f16" else f"{f}({right}) * f[n, m]"
        self.define(name, ["n", "m"], text, over(SHAPE))

    def tests(self, name: str, right: str) -> None:
        self.result(name, "bool", ["N"])
        test = f"{right} {self.pick('<', '>=', '==', '!=')} {self.expression(1)}"
        self.define(name, ["n"], f"{self.pick('any', 'all')}[m in 0..M]({test})", over(["N"]))

    def casts(self, name: str, right: str) -> None:
        """Of floats, some of which are no number or do not fit."""
        dtype = self.pick(*TYPES)
        self.result(name, dtype, SHAPE)
        read = self.pick("f[n, m]", "f[n, m] * 100.0", "floor(f[n, m])")
        self.define(name, ["n", "m"], f"{dtype}({read})", over(SHAPE))


def integers(seed: int) -> Call:
    return _Integers("integers", seed).make()
