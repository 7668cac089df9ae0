"""Scatters: updates of rows whose numbers are data, and what reads the result.

Destinations at random, sorted, all the same, few, and in runs; sums and extremes; features before and after
the rows; totals that begin with a constant, another statement, pieces, or what an `inout` parameter had.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from targets import Array, Call

from kinds.writer import Writer, brackets, cast, compute_type, loops, over

DTYPES = ("f32", "f32", "f32", "f64", "i32", "i64", "f16")


@dataclass
class _Scatter(Writer):
    def make(self) -> Call:
        self.sizes = {
            "N": self.pick(1, 2, 5, 16, 33, 70),
            "E": self.pick(0, 1, 3, 17, 40, 90, 200),
            "F": self.pick(1, 2, 3, 8, 16, 17, 33, 64, 65),
            "G": self.pick(1, 3, 5),
            "S": self.pick(1, 4, 20),
        }
        self.dtype = self.pick(*DTYPES)
        self.compute = compute_type(self.dtype)
        self.is_float = self.compute[0] == "f"
        self.zero, self.factor = ("0.0", "1.5") if self.is_float else ("0", "2")
        self.features = self.pick(["F"], ["F"], ["F"], ["G", "F"], [])
        self.arguments()
        self.places()
        start = self.pick(self.constant, self.statement, self.parameter, self.pieces, self.nothing)
        start()
        self.updates()
        if start == self.parameter:  # its name means what it was at the call
            self.define("z", [], "sum[n in 0..N](v_n[n])")
            self.result("z", self.compute, [])
        else:
            self.followed(always=start == self.constant)
        return self.call()

    def arguments(self) -> None:
        n, count = self.sizes["N"], self.sizes["E"]
        self.numbers_of(self.compute, "N", "F", "G")
        indices = self.pick("i32", "i64", "i64", "u8")
        self.argument("to", indices, ["E"], values=self.destinations(n, count))
        source = self.numbers.integers(0, self.sizes["S"], count)
        self.argument("source", self.pick("i32", "i64"), ["E"], values=source)
        special = self.pick(0, 0, 0, 3) if self.is_float else 0
        self.argument("x", self.dtype, ["S", *self.features], special=special)
        self.argument("w", self.compute, ["E"])

    def destinations(self, top: int, count: int) -> Array:
        order = self.pick("random", "sorted", "same", "few", "runs")
        if order == "same":
            return np.full(count, self.dice.randrange(top))
        found = self.numbers.integers(0, max(1, top // 4) if order == "few" else top, count)
        if order == "runs" and count:
            return np.resize(np.repeat(found[: max(1, count // 7)], 8), count)
        return np.sort(found) if order == "sorted" else found

    def places(self) -> None:
        """The axes of the result: rows first, mostly."""
        form = self.dice.random()
        self.axes = ["N", *self.features]
        if form < 0.2:
            self.axes = [*self.features, "N"]
        elif form < 0.3 and len(self.features) == 2:
            self.axes = [self.features[0], "N", self.features[1]]
        self.at = loops(self.axes)

    # --- what a total begins with ---

    def constant(self) -> None:
        start = self.pick(self.zero, self.factor)
        self.lines.append(f"let t: {self.compute}{brackets(self.axes)} = {start}")

    def nothing(self) -> None:
        self.result("t", self.compute, self.axes)

    def statement(self) -> None:
        self.nothing()
        self.define("t", self.at, f"v_n[n] * {self.factor}", over(self.axes))

    def parameter(self) -> None:
        self.argument("t", self.compute, self.axes, inout=True)

    def pieces(self) -> None:
        self.nothing()
        self.need("N")
        first = ["0" if i == "n" else i for i in self.at]
        self.define("t", first, self.factor, over(self.features))
        self.define("t", self.at, "v_n[n]", over(self.axes, n="1..N"))

    # --- updates, and what reads the totals ---

    def updates(self) -> None:
        read = cast(self.compute, f"x{brackets(['source[e]', *loops(self.features)])}", self.dtype)
        value = self.pick(read, f"w[e] * {read}", f"{read} * {read}", "w[e]")
        if self.is_float and self.chance(0.2):
            value = f"tanh({read}) + w[e]"
        if self.chance(0.15):
            value = f"({value} if e % 2 == 0 else {self.zero})"
        sign = self.pick("+=", "+=", "+=", "max=", "min=")
        turns = ["e", "E - 1 - e"] if self.chance(0.25) else ["e"]
        for e in turns:
            at = [f"to[{e}]" if i == "n" else i for i in self.at]
            self.lines.append(f"t{brackets(at)} {sign} {value}{over(['E', *self.features])}")

    def followed(self, always: bool) -> None:
        forms = [self.elementwise, self.total, self.gathered, self.with_counts]
        if self.features:
            forms.append(self.without_sum)
        if self.features and self.is_float:
            forms.append(self.softmax)
        if not always:
            forms += [self.alone, self.alone]
        self.pick(*forms)()

    @property
    def element(self) -> str:
        return f"t{brackets(self.at)}"

    def alone(self) -> None:
        """The totals are the result."""

    def elementwise(self) -> None:
        self.result("y", self.compute, self.axes)
        self.define("y", self.at, f"max({self.element}, {self.zero}) + v_n[n]")

    def total(self) -> None:
        self.result("y", self.compute, [])
        self.define("y", [], f"sum{brackets(loops(['N', *self.features]))}({self.element})")

    def without_sum(self) -> None:
        self.result("y", self.compute, self.axes)
        self.define("s", ["n"], f"sum{brackets(loops(self.features))}({self.element})")
        self.define("y", self.at, f"{self.element} - s[n]")

    def softmax(self) -> None:
        self.result("y", self.compute, self.axes)
        inner, at = brackets(loops(self.features)), brackets(self.at)
        for axis in self.features:
            self.need(axis)
        self.define("m", ["n"], f"max{inner}({self.element})")
        self.define("q", self.at, f"exp({self.element} - m[n])")
        self.define("s", ["n"], f"sum{inner}(q{at})")
        self.define("y", self.at, f"q{at} / s[n]")

    def gathered(self) -> None:
        self.result("y", self.compute, ["E", *self.features])
        at = brackets(["to[e]" if i == "n" else i for i in self.at])
        axes = ["E", *self.features]
        self.define("y", loops(axes), f"t{at} * {self.factor}", over(axes))

    def with_counts(self) -> None:
        self.result("counts", "i32", ["N"])
        self.result("y", self.compute, self.axes)
        self.lines.append("counts[to[e]] += 1 for e in 0..E")
        sign = "/" if self.is_float else "//"
        self.define("y", self.at, f"{self.element} {sign} {self.compute}(max(counts[n], 1))")


def scatter(seed: int) -> Call:
    return _Scatter("scatters", seed).make()
