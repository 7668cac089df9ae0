"""Reductions of long rows and what is made of them: several in a program, rows along any axis.

`half_rows` are those in 16 bits, with many rows and numbers of 16 bits that all of them share.
"""

from __future__ import annotations

from dataclasses import dataclass

from targets import Call

from kinds.writer import HALVES, Writer, brackets, cast, compute_type, loops, over

LAYOUTS = (["R", "C"],) * 3 + (["C", "R"], ["B", "R", "C"], ["R", "B", "C"], ["B", "C", "R"])
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129, 255, 257, 513, 1000, 1025, 2050)
MOST_ELEMENTS = 20_000


@dataclass
class _Rows(Writer):
    halves: bool = False

    def make(self) -> Call:
        count, length = self.pick(0, 1, 2, 3, 5, 17, 33), self.pick(*LENGTHS)
        self.sizes = {"R": count, "C": length, "B": self.pick(1, 2, 3)}
        if self.halves:
            self.sizes["R"] = self.pick(3, 16, 21, 40)
        if self.number("R * C * B") > MOST_ELEMENTS:
            self.sizes |= {"R": 3, "B": 1}
        self.dtype = self.pick(*HALVES) if self.halves else self.pick("f32", "f32", "f32", "f64", *HALVES)
        self.compute = compute_type(self.dtype)
        self.axes = self.pick(*LAYOUTS)
        self.outer = [x for x in self.axes if x != "C"]
        self.row, self.at = loops(self.outer), loops(self.axes)
        self.need("C")
        self.argument("x", self.dtype, self.axes, special=self.pick(0, 0, 0, 2, 5))
        x = self.given
        forms = [x, x, f"{x} * v_c[c]", f"{x} + v_r[r]", f"tanh({x})", f"{x} * 0.5 + v_c[C - 1 - c]"]
        if self.halves:
            self.argument("w", self.dtype, self.axes)
            self.argument("h_c", self.dtype, ["C"])
            self.numbers_of(self.compute, "B", "R")
            self.define("v_c", ["c"], "f32(h_c[c])", over(["C"]))
            other = cast(self.compute, self.element("w"), self.dtype)
            forms += [f"{x} + {other}", f"{x} * v_c[c] + {other}", f"max({x}, {other}) + v_c[c]"]
            if "B" in self.axes:  # a row for all rows of a batch
                self.argument("h_bc", self.dtype, ["B", "C"])
                forms += [f"{x} * {cast(self.compute, 'h_bc[b, c]', self.dtype)}"] * 4
        else:
            self.numbers_of(self.compute, "C", "B", "R")
        form = self.pick(*forms)
        self.define("u", self.at, form, over(self.axes))
        self.source = self.element("u")
        steps = [
            self.softmax, self.norm, self.argument_of, self.scan, self.neighbours, self.tests,
            self.root, self.log_sum, self.total, self.columns, self.span, self.product,
        ]  # fmt: skip
        steps += [self.gate] * self.halves
        for k, step in enumerate(self.dice.sample(steps, self.pick(1, 2, 3))):
            step(f"y{k}")
        return self.call()

    @property
    def given(self) -> str:
        return cast(self.compute, self.element("x"), self.dtype)

    def element(self, name: str) -> str:
        return f"{name}{brackets(self.at)}"

    def of_row(self, name: str) -> str:
        return f"{name}{brackets(self.row)}"

    def whole(self, name: str, right: str, where: str = "", go_on: bool = False) -> None:
        """A result of all elements, stored in the one type or the other; what comes next may read it."""
        dtype = self.pick(self.dtype, self.compute)
        right = self.optional(name, right, self.axes, self.dtype)
        self.result(name, dtype, self.axes)
        self.define(name, self.at, cast(dtype, right, self.compute), where)
        if go_on and self.chance(0.5):
            self.source = cast(self.compute, self.element(name), dtype)

    def one_for_each(self, name: str, right: str, dtype: str | None = None) -> None:
        self.result(name, dtype or self.compute, self.outer)
        self.define(name, self.row, right)

    # --- steps: `name` is that of the result ---

    def softmax(self, name: str) -> None:
        self.define(f"{name}m", self.row, f"max[c]({self.source})")
        self.define(f"{name}e", self.at, f"exp({self.source} - {self.of_row(f'{name}m')})")
        self.define(f"{name}s", self.row, f"sum[c]({self.element(f'{name}e')})")
        self.whole(name, f"{self.element(f'{name}e')} / {self.of_row(f'{name}s')}", go_on=True)

    def norm(self, name: str) -> None:
        mean, spread = self.of_row(f"{name}m"), self.of_row(f"{name}v")
        self.define(f"{name}m", self.row, f"sum[c]({self.source}) / C")
        self.define(f"{name}v", self.row, f"sum[c](({self.source} - {mean}) ** 2) / C")
        self.whole(name, f"({self.source} - {mean}) * rsqrt({spread} + 0.01) * v_c[c]", go_on=True)

    def argument_of(self, name: str) -> None:
        """Of an argument: its elements are exact, so the choice is decided."""
        self.one_for_each(name, f"{self.pick('argmax', 'argmin')}[c]({self.element('x')})", "i64")
        self.one_for_each(f"{name}v", f"{self.pick('max', 'min')}[c]({self.source}) * 2.0")

    def scan(self, name: str) -> None:
        down = self.chance(0.4)
        first, before, rest = ("C - 1", "c + 1", "0..C - 1") if down else ("0", "c - 1", "1..C")
        start, last = ([i if a == "c" else a for a in self.at] for i in (first, before))
        self.result(name, self.compute, self.axes)
        self.define(name, start, f"u{brackets(start)}", over(self.outer))
        step = f"{name}{brackets(last)} * {self.pick('0.5', '0.9', '1.0')} + {self.element('u')}"
        self.define(name, self.at, step, over(self.outer, c=rest))

    def neighbours(self, name: str) -> None:
        left, right = (brackets(i if a == "c" else a for a in self.at) for i in ("c - 1", "c + 2"))
        other = self.pick("0.0", "v_c[c]")
        text = f"{self.element('u')} - (u{left} if c >= 1 else {other}) + (u{right} if c < C - 2 else 1.0)"
        self.whole(name, text, over(self.axes))

    def tests(self, name: str) -> None:
        x = self.given
        test = f"{x} {self.pick('>', '<', '!=')} {self.pick(f'{x} * 2.0', '1.5')}"
        self.one_for_each(name, f"{self.pick('any', 'all')}[c]({test})", "bool")

    def root(self, name: str) -> None:
        square = f"sum[c]({self.source} * {self.source})"
        self.define(f"{name}q", self.row, f"rsqrt({square} / C + 0.01)")
        self.whole(name, f"{self.source} * {self.of_row(f'{name}q')}")

    def log_sum(self, name: str) -> None:
        most = self.of_row(f"{name}m")
        self.define(f"{name}m", self.row, f"max[c]({self.source})")
        self.one_for_each(name, f"log(sum[c](exp({self.source} - {most}))) + {most}")

    def total(self, name: str) -> None:
        self.result(name, self.compute, [])
        self.define(name, [], f"sum{brackets(self.at)}(abs({self.source}))")

    def columns(self, name: str) -> None:
        self.result(name, self.compute, ["C"])
        self.define(name, ["c"], f"sum{brackets(self.row)}({self.source})")

    def span(self, name: str) -> None:
        self.one_for_each(name, f"max[c]({self.source}) - min[c]({self.source})")

    def gate(self, name: str) -> None:
        """Functions that are short where this is rounded at once."""
        gate = self.pick(
            "sigmoid({0})", "{0} * sigmoid({0} * 0.5)", "exp(-abs({0})) / (1.0 + exp(-abs({0})))"
        )
        self.whole(name, gate.format(self.source), go_on=True)

    def product(self, name: str) -> None:
        self.one_for_each(name, f"prod[c](1.0 + 0.01 * tanh({self.source}))")


def rows(seed: int) -> Call:
    return _Rows("rows", seed).make()


def half_rows(seed: int) -> Call:
    return _Rows("half_rows", seed, halves=True).make()
