"""Ranges that move: reductions over ranges that grow with an index or over long windows, and their readers.

Ends that move forward, backward, by steps, that stop at a bound or begin empty; guards in place of bounds;
terms that count from the end; further dims; rows on any axis; totals of totals.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets import Call

from kinds.writer import Writer, brackets, cast, compute_type, over
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.identity import identity

LAYOUTS = (["T"], ["B", "T"], ["T", "B"], ["B", "T", "D"], ["T", "B", "D"], ["B", "D", "T"])
# First and end of a range; N is the extent of what is read, S by how much the range moves, W a width.
GROWING = (
    "0 t*S+1", "0 t*S+1", "t*S N", "t*S+1 N",
    "0 t*S", "0 min(t*S+4,N)", "max(t*S-3,0) N", "0 N-t*S", "1 max(t*S,2)",
)  # fmt: skip
WINDOWS = (
    "max(t*S-W,0) t*S+1", "t*S min(t*S+W,N)", "max(t*S-W,0) min(t*S+3,N)", "max(N-t*S-W,0) N-t*S",
)  # fmt: skip
DTYPES = ("f32", "f32", "f32", "f64", "bf16", "i32", "i8", "bool")


@dataclass
class _Ranges(Writer):
    def make(self) -> Call:
        self.axes = self.pick(*LAYOUTS)
        self.step = self.pick(1, 1, 1, 2, 3)
        few = self.pick(1, 7, 8, 33, 65, 130) if self.chance(0.95) else 0
        self.sizes = {"T": few, "B": self.pick(1, 2, 3, 17), "D": self.pick(1, 5, 16)}
        self.sizes["N"] = max(few * self.step, 2) + self.pick(0, 0, 1)
        self.conditions += [f"N >= {self.step}*T", "N >= 2"]
        self.dtype = self.pick(*DTYPES)
        self.compute = compute_type(self.dtype)
        self.is_float = BY_NAME[self.compute].is_float
        self.numbers_of(self.compute, *self.sizes)
        self.argument("x", self.dtype, self.given, special=self.pick(0, 0, 1, 2))
        self.source, self.source_type = "x", self.dtype
        if self.chance(0.25) and self.is_float:
            self.before()
        self.total("c0")
        self.follow()
        return self.call()

    @property
    def given(self) -> list[str]:
        return ["N" if a == "T" else a for a in self.axes]

    def at(self, t: str) -> str:
        return brackets(t if a == "T" else a.lower() for a in self.axes)

    def before(self) -> None:
        """What is read is computed first."""
        read = cast(self.compute, f"x{self.at('n')}", self.dtype)
        self.define("z", [a.lower() for a in self.given], self.pick(f"{read} * 0.5 + v_n[n]", f"abs({read})"))
        self.source, self.source_type = "z", self.compute

    # --- a total for each t ---

    def total(self, name: str) -> None:
        op = (
            self.pick("any", "all")
            if self.compute == "bool"
            else self.pick("sum", "sum", "max", "min", "prod")
        )
        low, high = self.ends()
        backward = self.chance(0.15)  # terms are counted from the end of the range
        s = f"{high}-1-s" if backward else "s"
        ranges = {"s": f"0..{high}-({low})" if backward else f"{low}..{high}"}
        term = self.term(s)
        nothing = identity(op, BY_NAME[self.compute])
        if op in ("max", "min") or (not backward and self.chance(0.15)):
            # A range may be empty, which a condition may be.
            ranges = {"s": "0..N"}
            other = str(nothing).lower() if self.compute == "bool" else self.literal(nothing)
            term = f"{self.term('s')} if s >= {low} and s < {high} else {other}"
        elif op == "sum" and self.chance(0.2):
            ranges |= {"d": "0..D"} if "D" not in self.axes else {"n": "0..3"}
        loops = ", ".join(f"{n} in {r}" for n, r in ranges.items())
        right = f"{op}[{loops}]({term})"
        self.define(name, [a.lower() for a in self.axes], right, over(self.axes))

    def literal(self, value: float) -> str:
        """A number as text that has the type of what is computed."""
        return str(value) if self.is_float else f"{self.compute}({value})"

    def ends(self) -> tuple[str, str]:
        width = str(self.pick(35, 40, 64))
        form = self.pick(*GROWING, *WINDOWS).replace("S", str(self.step)).replace("W", width)
        low, high = (e.replace(",", ", ") for e in form.split())
        return low, high

    def term(self, s: str) -> str:
        x = cast(self.compute, f"{self.source}{self.at(s)}", self.source_type)
        if self.compute == "bool":
            return self.pick(x, f"not {x}")
        forms = [
            x,
            x,
            f"(-{x})",
            f"({x} * v_n[{s}])",
            f"max({x}, {self.literal(0.0 if self.is_float else 0)})",
        ]
        if "B" in self.axes:
            forms.append(f"({x} * v_b[b])")
        return self.pick(*forms)

    # --- what reads it ---

    def follow(self) -> None:
        forms = [self.alone, self.alone, self.changed, self.neighbour, self.summed, self.again]
        if self.compute == "bool":
            forms = [self.alone]
        self.pick(*forms)()

    def alone(self) -> None:
        right = cast(self.dtype, f"c0{self.at('t')}", self.compute)
        self.whole(right)

    def whole(self, right: str) -> None:
        self.define("y", [a.lower() for a in self.axes], right, over(self.axes))
        self.result("y", self.dtype, self.axes)

    def changed(self) -> None:
        read = cast(self.compute, f"{self.source}{self.at('t')}", self.source_type)
        right = self.pick("{c} - v_t[t]", "{x} + {c}", "{c} * {x}").format(c=f"c0{self.at('t')}", x=read)
        self.whole(cast(self.dtype, f"({right})", self.compute))

    def neighbour(self) -> None:
        c, before = f"c0{self.at('t')}", f"c0{self.at('t - 1')}"
        self.whole(cast(self.dtype, f"({c} + ({before} if t >= 1 else v_t[t]))", self.compute))

    def summed(self) -> None:
        rest = [a for a in self.axes if a != "T"]
        self.result("m", self.compute, rest)
        self.define("m", [a.lower() for a in rest], f"sum[t in 0..T](c0{self.at('t')})", over(rest))
        if self.chance(0.5):
            self.result("c0", self.compute, self.axes)

    def again(self) -> None:
        """A total of totals."""
        op = self.pick("sum", "max") if self.is_float else "sum"
        right = f"{op}[s in 0..t+1](c0{self.at('s')})"
        self.whole(cast(self.dtype, right, self.compute))


def ranges(seed: int) -> Call:
    return _Ranges("ranges", seed).make()
