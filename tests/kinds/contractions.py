"""Contractions: sums of products over factors of any layout, type and index form, and what follows them.

Batches, rows, columns and summed axes of any number (none, too); windows, strides, turned and shifted reads;
factors that are computed; sums over parts; results that are followed, summed, turned, or multiplied again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from targets import Call

from kinds.writer import HALVES, Writer, brackets, cast, compute_type, loops, over

SIZES = (1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 64, 65)
MOST_PRODUCTS = 60_000
FLOATS = ("f32",) * 6 + ("f64", "f64", "f16", "bf16")
INTEGERS = ("i32", "i64", "i16", "i8")


@dataclass
class _Contraction(Writer):
    batches: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    summed: list[str] = field(default_factory=list)

    def make(self) -> Call:
        self.choose_axes()
        self.dtype = self.pick(*FLOATS, *INTEGERS)
        self.compute = compute_type(self.dtype)
        self.is_float = self.dtype[0] in "fb"
        self.window = False
        factors = [self.factor("a", self.rows), self.factor("b", self.columns)]
        self.numbers_of(self.compute, *self.sizes)
        factors += [f"v_{k.lower()}[{k.lower()}]" for k in self.summed[:1] if self.chance(0.2)]
        factors += [f"v_{m.lower()}[{m.lower()}]" for m in self.rows[:1] if self.chance(0.15)]
        self.axes = self.shuffled([*self.batches, *self.rows, *self.columns])
        self.sum_of(self.shuffled(factors))
        self.followed()
        return self.call()

    def choose_axes(self) -> None:
        for letter, axes, counts in (
            ("P", self.batches, (0, 0, 1, 1, 2)),
            ("M", self.rows, (1, 1, 1, 2, 0)),
            ("N", self.columns, (1, 1, 1, 2, 0)),
            ("K", self.summed, (1, 1, 1, 2)),
        ):
            axes += [f"{letter}{k}" for k in range(self.pick(*counts))]
        names = [*self.batches, *self.rows, *self.columns, *self.summed]
        while True:
            self.sizes = {n: self.pick(*((1, 2, 3, 5) if n[0] == "P" else SIZES)) for n in names}
            if np.prod(list(self.sizes.values())) <= MOST_PRODUCTS:
                break
        if self.chance(0.04):
            self.sizes[self.pick(*names)] = 0

    # --- factors ---

    def factor(self, name: str, own: list[str]) -> str:
        """A parameter, and a factor that reads it."""
        axes = self.shuffled([*(p for p in self.batches if self.chance(0.85)), *own, *self.summed])
        if self.chance(0.12) and own and not self.window:
            extents, indices = self.windowed(axes, own[0])
        else:
            extents, indices = map(list, zip(*map(self.read_along, axes), strict=True))
        dtype = self.dtype
        if dtype in HALVES and self.chance(0.15):
            dtype = "f32"
        special = self.pick(0, 0, 0, 0, 2) if self.is_float else 0
        self.argument(name, dtype, extents, special=special)
        return self.computed(cast(self.compute, f"{name}{brackets(indices)}", dtype))

    def windowed(self, axes: list[str], own: str) -> tuple[list[str], list[str]]:
        """One summed axis is a window that moves along an axis of the factor's own."""
        self.window = True
        step, over_it = self.pick(1, 1, 2), self.summed[0]
        rest = [x for x in axes if x != over_it and (x != own or self.chance(0.2))]
        at = self.dice.randint(0, len(rest))
        pairs = [*map(self.read_along, rest)]
        pairs.insert(at, (f"{step}*{own} + {over_it}", f"{step}*{own.lower()} + {over_it.lower()}"))
        return [e for e, _ in pairs], [i for _, i in pairs]

    def read_along(self, axis: str) -> tuple[str, str]:
        """The extent of a parameter along an axis, and the index of what is read."""
        loop, form = axis.lower(), self.dice.random()
        if form < 0.07:
            shift = self.pick(1, 3)
            return f"{axis} + {shift}", f"{loop} + {shift}"
        if form < 0.12:
            return axis, f"{axis} - 1 - {loop}"
        return (f"2*{axis}", f"2*{loop} + 1") if form < 0.16 else (axis, loop)

    def computed(self, text: str) -> str:
        """A factor is mostly an element, and now and then computed from one."""
        k = self.summed[0].lower()
        if not self.is_float:
            return f"({text} + 1)" if self.chance(0.2) else text
        if self.chance(0.72):
            return text
        return self.pick(
            f"tanh({text})", f"({text} + 1.0)", f"({text} * 0.5 if {k} >= 1 else 0.0)",
            f"exp({text} * 0.1)", f"{text} * {self.compute}({k})",
        )  # fmt: skip

    # --- the sum and what comes after ---

    def sum_of(self, factors: list[str]) -> None:
        at = loops(self.axes)
        ranges = ", ".join(f"{k.lower()} in {self.part_of(k)}" for k in self.summed)
        scale = ("0.125 * " if self.is_float else "3 * ") if self.chance(0.3) else ""
        more = f" + v_{at[0]}[{at[0]}]" if at and self.chance(0.2) else ""
        self.define("c", at, f"{scale}sum[{ranges}]({' * '.join(factors)}){more}", over(self.axes))

    def part_of(self, axis: str) -> str:
        form = self.dice.random()
        if form < 0.1 and self.sizes[axis] >= 3:
            self.need(axis, 2)
            return f"2..{axis}"
        if form < 0.16 and self.rows:
            return f"0..min({axis}, {self.rows[0].lower()} + 1)"
        return f"0..{axis}"

    def followed(self) -> None:
        if not self.axes:
            return self.result("c", self.compute, [])
        forms = [self.alone, self.alone, self.with_bias, self.turned, self.added, self.multiplied]
        if self.is_float:
            forms.append(self.with_both)
        if self.is_float and self.sizes[self.axes[-1]]:
            forms.append(self.softmax)
        if self.sizes[self.axes[0]]:
            forms.append(self.extreme)
        return self.pick(*forms)()

    @property
    def element(self) -> str:
        return f"c{brackets(loops(self.axes))}"

    def alone(self) -> None:
        self.result("c", self.compute, self.axes)

    def with_bias(self) -> None:
        last = self.axes[-1].lower()
        right = f"max({self.element} + v_{last}[{last}], {'0.0' if self.is_float else '0'})"
        right = self.optional("y", right, self.axes, self.dtype)
        self.result("y", self.dtype, self.axes)
        self.define("y", loops(self.axes), cast(self.dtype, right, self.compute))
        if self.chance(0.4):
            self.alone()

    def turned(self) -> None:
        self.result("y", self.compute, self.axes[::-1])
        self.define("y", loops(self.axes[::-1]), f"{self.element} + {'1.0' if self.is_float else '1'}")

    def added(self) -> None:
        self.reduced(self.pick(*self.axes), "sum")

    def extreme(self) -> None:
        self.need(self.axes[0])
        self.reduced(self.axes[0], "max")
        self.alone()

    def reduced(self, axis: str, reduction: str) -> None:
        rest = [x for x in self.axes if x != axis]
        self.result("y", self.compute, rest)
        self.define("y", loops(rest), f"{reduction}[{axis.lower()}]({self.element})")

    def multiplied(self) -> None:
        *rest, last = self.axes
        self.sizes["Q"] = self.pick(*SIZES)
        self.argument("w", self.compute, [last, "Q"])
        self.result("y", self.compute, [*rest, "Q"])
        right = f"sum[{last.lower()}]({self.element} * w[{last.lower()}, q])"
        self.define("y", [*loops(rest), "q"], right)

    def with_both(self) -> None:
        self.alone()
        self.result("y", self.compute, self.axes)
        right = self.optional("y", f"tanh({self.element} * 0.1)", self.axes, self.dtype)
        self.define("y", loops(self.axes), right)

    def softmax(self) -> None:
        *rest, last = self.axes
        self.need(last)
        row, at = brackets(loops(rest)), loops(self.axes)
        self.define("m", loops(rest), f"max[{last.lower()}]({self.element})")
        self.define("e", at, f"exp({self.element} - m{row})")
        self.define("s", loops(rest), f"sum[{last.lower()}](e{brackets(at)})")
        self.define("y", at, f"e{brackets(at)} / s{row}")
        self.result("y", self.compute, self.axes)


def contraction(seed: int) -> Call:
    return _Contraction("contractions", seed).make()
