"""Ranges that data bounds: totals of rows of elements, what is made of them, and the row of each element.

Pointers are in order, or fall, overlap, and lie outside; ends are elements, constants beside them, computed,
under `min` and `max`, or written as conditions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from targets import Array, Call

from kinds.writer import Writer, brackets, cast, compute_type, over
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.identity import identity

DTYPES = ("f32", "f32", "f32", "f64", "bf16", "i32", "bool")
# Axes of a total, those of its row and its columns; each may be fused with the other.
LAYOUTS = (["N"], ["N"], ["N", "F"], ["N", "F"], ["F", "N"], ["B", "N", "F"])
ENDS = (
    "p[n] p[n + 1]", "p[n] p[n + 1]", "p[n] p[n + 1]", "q[n] q[n + 1]", "q[n] q[n + 1]",
    "0 p[n + 1]", "p[n] E", "p[n] - 2 p[n] + 3", "max(1, p[n]) min(p[n + 1] + 1, E)",
    "min(p[n], q[n]) q[n + 1]", "one E", "p[N - n - 1] p[N - n]",
)  # fmt: skip


@dataclass
class _Segments(Writer):
    def make(self) -> Call:
        self.axes = self.pick(*LAYOUTS)
        self.sizes = {
            "N": self.pick(1, 2, 9, 17, 40),
            "E": self.pick(1, 5, 33, 65, 130, 300) if self.chance(0.95) else 0,
            "F": self.pick(1, 3, 8, 17, 64),
            "B": self.pick(1, 2),
            "M": self.pick(1, 7, 30),
        }
        self.conditions += ["N >= 1", "M >= 1"]
        self.dtype = self.pick(*DTYPES)
        self.compute = compute_type(self.dtype)
        self.is_float = BY_NAME[self.compute].is_float
        self.numbers_of(self.compute, "E", "N", "F", "B", "M")
        narrow = "u8" if self.sizes["E"] < 256 else "u16"  # a condition compares it with an index
        kind = self.pick("i32", "i32", "i64", "i16", narrow)
        for name in ("p", "q"):
            self.argument(name, kind, ["N + 1"], values=self.pointers())
        self.argument("one", "i64", [], values=self.numbers.integers(-2, self.sizes["E"] + 3))
        self.argument(
            "col", "i32", ["E"], values=self.numbers.integers(-1, self.sizes["M"] + 1, self.sizes["E"])
        )
        self.argument("x", self.dtype, [*self.others, "E", *self.columns], special=self.pick(0, 0, 1, 2))
        self.argument("d", self.dtype, ["M", *self.columns])
        self.total("c0")
        self.follow()
        return self.call()

    def pointers(self) -> Array:
        """In order, equal or falling, overlapping, outside, or all of one row."""
        n, e = self.sizes["N"], self.sizes["E"]
        kind = self.pick("order", "order", "order", "any", "outside", "one", "falling")
        if kind == "one":
            return np.where(np.arange(n + 1) > self.numbers.integers(0, n + 1), e, 0)
        if kind in ("order", "falling"):
            found = np.sort(self.numbers.integers(0, e, n + 1, endpoint=True))
            found[[0, -1]] = self.pick((0, e), (found[0], found[-1]))
            return found if kind == "order" else found[::-1]
        more = 20 if kind == "outside" else 0
        return np.asarray(self.numbers.integers(-more, e + more, n + 1, endpoint=True))

    @property
    def others(self) -> list[str]:
        """The axes before those of the elements."""
        return [a for a in self.axes if a == "B"]

    @property
    def columns(self) -> list[str]:
        return [a for a in self.axes if a == "F"]

    def element(self, e: str) -> str:
        """The element of what rows consist of."""
        place = brackets([*(a.lower() for a in self.others), e, *(a.lower() for a in self.columns)])
        return cast(self.compute, f"x{place}", self.dtype)

    def row(self, name: str, n: str = "n") -> str:
        return f"{name}{brackets(n if a == 'N' else a.lower() for a in self.axes)}"

    # --- a total for each row ---

    def total(self, name: str) -> None:
        ops = ("any", "all") if self.compute == "bool" else ("sum", "sum", "sum", "max", "min", "prod")
        op = self.pick(*ops) if not self.is_float or self.chance(0.85) else "mean"
        if not self.is_float and self.compute != "bool" and op == "prod":
            op = "max"
        low, high = self.ends()
        term = self.term()
        some = bool(self.sizes["E"]) or op not in ("max", "min")  # an extreme of no elements has no value
        if op != "mean" and self.chance(0.15) and some:
            right = f"{op}[e in 0..E]({term} if e >= {low} and e < {high} else {self.nothing(op)})"
        elif op == "sum" and self.chance(0.15):
            right = f"sum[e in {low}..{high}, m in 0..M]({term} * v_m[m])"
        else:
            right = f"{op}[e in {low}..{high}]({term})"
        self.define(name, [a.lower() for a in self.axes], right, over(self.axes))

    def ends(self) -> tuple[str, str]:
        low, high = self.pick(*ENDS).replace(", ", ",").replace(" + ", "+").replace(" - ", "-").split()
        if self.chance(0.15):
            self.define("c", ["n"], "min(i64(p[n]), i64(q[n]) + 4)", over(["N"]))
            return "c[n]", high
        return low, high

    def nothing(self, op: str) -> str:
        found = identity(op, BY_NAME[self.compute])
        if self.compute == "bool":
            return str(found).lower()
        return str(found) if self.is_float else f"{self.compute}({found})"

    def term(self) -> str:
        x = self.element("e")
        if self.compute == "bool":
            return self.pick(x, f"not {x}")
        of_column = cast(
            self.compute, f"d{brackets(['col[e]', *(a.lower() for a in self.columns)])}", self.dtype
        )
        forms = [x, x, f"v_e[e] * {of_column}", of_column, f"({x} * v_n[n])", f"({x} - v_e[E - 1 - e])"]
        if self.is_float:
            forms += [f"exp(min({x}, 3.0))", f"({x} if col[e] > 2 else v_n[n])"]
        return self.pick(*forms)

    # --- what reads it ---

    def follow(self) -> None:
        self.pick(self.alone, self.alone, self.again, self.softmax, self.spread, self.rows)()

    def alone(self) -> None:
        c = self.row("c0")
        right = c if self.compute == "bool" else self.pick(c, f"({c} - v_n[n])")
        self.define(
            "y", [a.lower() for a in self.axes], cast(self.dtype, right, self.compute), over(self.axes)
        )
        self.result("y", self.dtype, self.axes)

    def again(self) -> None:
        """A total over the same or other ends of what lies between."""
        if self.compute == "bool":
            return self.alone()
        low, high = self.pick(*ENDS[:5]).replace(" + ", "+").split()
        right = f"{self.pick('sum', 'max')}[e in {low}..{high}](({self.element('e')} - {self.row('c0')}))"
        self.result("y", self.compute, self.axes)
        self.define("y", [a.lower() for a in self.axes], right, over(self.axes))
        return None

    def softmax(self) -> None:
        """Of each row, by guards along the whole range."""
        if not self.is_float:
            return self.alone()
        self.result("y", self.compute, [*self.axes, "E"])
        shifted = f"exp(min({self.element('e')} - {self.row('c0')}, 3.0))"
        place = [*(a.lower() for a in self.axes), "e"]
        right = f"{shifted} if e >= p[n] and e < p[n+1] else 0.0"
        self.define("y", place, right, over([*self.axes, "E"]))
        return None

    def spread(self) -> None:
        """Each element reads the total of its row."""
        axes = [*self.others, "E", *self.columns]
        of_row = self.row("c0", f"row({self.pick('p', 'q')}, e)")
        right = of_row if self.compute == "bool" else f"({self.element('e')} - {of_row})"
        self.result("y", self.compute, axes)
        self.define("y", [a.lower() for a in axes], right, over(axes))

    def rows(self) -> None:
        self.alone()
        self.result("r", "i64", ["E"])
        self.define("r", ["e"], f"row(p, {self.pick('e', 'e', 'E - 1 - e', 'e + 2')})", over(["E"]))


def segments(seed: int) -> Call:
    return _Segments("segments", seed).make()
