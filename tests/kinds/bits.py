"""Random numbers by counters, places, and the bits of floats: results that are the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from targets import Call

from kinds.writer import Writer, over

SHAPE = ["N", "M"]
WIDTHS = {"f64": "u64", "f32": "u32", "f16": "u16", "bf16": "u16", "f8e4m3fn": "u8", "f8e5m2": "u8"}
# As the library has them, which these programs are without.
FUNCTIONS = """\
fn uniform(seed, stream, i) = f32(i32(philox4x32(seed, stream, i, 0) >> 8)) * 5.9604644775390625e-08
fn normal(seed, stream, i) =
  sqrt(-2.0 * log(1.0 - uniform(seed, stream, i)))
    * cos(3.7450702829239286e-07 * f32(i32(philox4x32(seed, stream, i, 1) >> 8)))
"""


@dataclass
class _Bits(Writer):
    def make(self) -> Call:
        self.functions = FUNCTIONS
        self.sizes = {"N": self.pick(1, 3, 17, 33), "M": self.pick(1, 2, 8, 17, 65, 130)}
        self.need("N"), self.need("M")
        self.float = self.pick("f32", "f32", "f64", "f16", "bf16", "f8e4m3fn", "f8e5m2")
        self.word = WIDTHS[self.float]
        self.argument("x", self.float, SHAPE)
        self.argument("u", self.word, SHAPE, whole=True)
        self.argument("seed", "u64", [], values=self.numbers.integers(0, 2**64, dtype=np.uint64))
        self.argument("k", self.pick("i32", "u8", "i64"), ["M"], whole=True)
        forms = [self.mask, self.rows, self.words, self.bits, self.floats, self.normal, self.places]
        for n in range(self.pick(1, 2, 3)):
            form: Callable[[str], None] = self.dice.choice(forms)
            form(f"y{n}")
        return self.call()

    def kept(self, text: str) -> str:
        """A value as a result: floats of 8 bits are cast."""
        return f"{self.float}({text})" if self.float.startswith("f8") else text

    # --- counters ---

    def place(self) -> str:
        return self.pick(
            "position(n, m)", "position(m, n)", "n * M + m", "n", "k[m]", "position(m)", "u[n, m]"
        )

    def stream(self) -> str:
        return self.pick("0", "7", "m", "0xffff_ffff_ff", "k[m]", "seed")

    def drawn(self) -> str:
        return f"uniform({self.pick('seed', '3', 'seed ^ 5')}, {self.stream()}, {self.place()})"

    def dropped(self) -> str:
        scale = self.pick("0.5", "0.1", "0.9")
        test = f"{self.drawn()} {self.pick('>=', '<')} {scale}"
        return f"(x[n, m] {self.pick('*', '/')} {scale} if {test} else {self.pick('0.0', '-x[n, m]')})"

    def mask(self, name: str) -> None:
        self.result(name, self.float, SHAPE)
        self.define(name, ["n", "m"], self.kept(self.dropped()), over(SHAPE))

    def rows(self, name: str) -> None:
        """A dropout and its row: computed again, or kept."""
        self.result(name, self.float, SHAPE)
        self.lines.append(f"let {name}d: {self.float}[N, M]")
        self.define(f"{name}d", ["n", "m"], self.kept(self.dropped()), over(SHAPE))
        self.define(f"{name}m", ["n"], f"{self.pick('mean', 'max')}[m in 0..M]({name}d[n, m])", over(["N"]))
        self.define(name, ["n", "m"], self.kept(f"{name}d[n, m] - {name}m[n]"), over(SHAPE))

    def words(self, name: str) -> None:
        """Several words of one counter, or one that data chooses."""
        self.result(name, "u32", SHAPE)
        counter = f"seed, {self.stream()}, {self.place()}"
        word = self.pick("0", "3", "m & 3", "n % 4")
        words = [f"philox4x32({counter}, {w})" for w in (word, self.pick("1", "2"))]
        self.define(name, ["n", "m"], f"{words[0]} {self.pick('^', '+', '>>')} {words[1]}", over(SHAPE))

    def normal(self, name: str) -> None:
        self.result(name, "f32", ["N"])
        right = f"mean[m in 0..M](normal(seed, {self.stream()}, {self.place()}))"
        self.define(name, ["n"], right, over(["N"]))

    def places(self, name: str) -> None:
        self.result(name, "i64", SHAPE)
        right = f"{self.pick('position(n, m)', 'position(m, n)')} {self.pick('*', '-')} position(m)"
        self.define(name, ["n", "m"], right, over(SHAPE))

    # --- bits ---

    def bits(self, name: str) -> None:
        self.result(name, self.word, SHAPE)
        value = self.pick("x[n, m]", f"from_bits({self.float}, u[n, m])", f"{self.float}(k[m])")
        self.define(name, ["n", "m"], f"bits({value}) {self.pick('^', '&', '|')} u[n, m]", over(SHAPE))

    def floats(self, name: str) -> None:
        """Of bits that are a number: the sign, the exponent halved, or all of one that is read."""
        sign = 1 << int(self.word[1:]) - 1
        bits = self.pick(f"bits(x[n, m]) ^ {sign}", f"bits(x[n, m]) & {sign - 1}", "bits(x[n, m])")
        self.result(name, self.float, SHAPE)
        more = self.pick("", " + x[n, m]", " * 2.0")
        self.define(name, ["n", "m"], self.kept(f"from_bits({self.float}, {bits}){more}"), over(SHAPE))


def bits(seed: int) -> Call:
    return _Bits("bits", seed).make()
