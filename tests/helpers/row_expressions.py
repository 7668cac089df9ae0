"""Random expressions over rows and columns: the lower half of `row_programs`.

An expression is computed for every t of 0..T, every h of 0..H, both, or once: its loops are "t", "h", "th"
or "". It reads tensors that have these axes or fewer, as they are, moved, turned around, through windows
and through indices, as f32, whatever type they are kept in.

Results stay decided: conditions compare inputs with literals, divisors are inputs or far from zero, and
only inputs are rounded to whole numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

EXTENT = {"t": "T", "h": "H", "v": "V", "n": "V", "b": "B"}

# Parameters, and the axes of each; a program has those that it reads. Names of indices begin with i if
# they are all in range, and with j if not.
AXES = {
    "x": "th", "z": "th", "q": "ht", "c": "t", "w": "h", "d": "", "a": "bth", "p": "th",
    "g": "vh", "u": "tv", "e": "vn", "f": "v",
    "it": "t", "ih": "h", "ith": "th", "jt": "t", "jh": "h", "jth": "th",
}  # fmt: skip
LEAVES = {"th": "xxxzzqcccwww", "t": "ccc", "h": "www", "": "d"}
GATHERED = {"th": ("g", "g", "u", "e", "f"), "t": ("f",), "h": ("f",)}
CONDITIONS = {
    "th": ["h < 5", "h >= 20", "h < H - 3", "h != 0", "t == 0", "h % 2 == 0", "(t + h) % 3 == 0", "h <= t"],
    "t": ["t % 2 == 0", "t > 0", "t < 9"],
    "h": ["h % 2 == 0", "h > 0", "h < 17"],
}


@dataclass
class RowTensor:
    """What a program computes: its axes, and whether something reads it."""

    name: str
    dtype: str
    axes: str
    is_input: bool = False
    used: bool = False

    @property
    def extents(self) -> str:
        return f"[{', '.join(EXTENT[a] for a in self.axes)}]" if self.axes else ""

    @property
    def signature(self) -> str:
        return f"{self.name}: {self.dtype}{self.extents}"


@dataclass
class RowExpressions:
    seed: int
    rng: random.Random = field(init=False)
    float: str = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, RowTensor] = field(default_factory=dict)
    known: list[RowTensor] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.float = self.rng.choice(["f16", "f16", "bf16", "bf16", "f32"])

    # --- sizes and tensors ---

    def need(self, size: str, least: int = 1) -> bool:
        """State that a size is at least so much; False if it is not."""
        if self.sizes[size] < least:
            return False
        self.constraints.append(f"{size} >= {least}")
        return True

    def input(self, name: str) -> RowTensor:
        """A parameter, from now on one of this program."""
        if name not in self.inputs:
            index = name[0] in "ij"
            dtype = self.rng.choice(["i32", "i64"]) if index else "f32" if name == "d" else self.float
            self.inputs[name] = RowTensor(name, dtype, AXES[name], is_input=True)
        return self.inputs[name]

    def read(self, t: RowTensor, /, **at: str) -> str:
        """An element as f32, at the loops of its axes, where `at` says nothing else."""
        t.used = True
        index = ", ".join(at.get(a, a) for a in t.axes)
        text = f"{t.name}[{index}]" if t.axes else t.name
        return text if t.dtype == "f32" else f"f32({text})"

    def some(self, loops: str) -> RowTensor:
        """A tensor with these axes or fewer; what nothing reads yet comes first."""
        known = [t for t in self.known if set(t.axes) <= set(loops) and t.dtype != "i64"]
        weights = [3 if t.used else 8 for t in known]
        names = LEAVES[loops]
        k = self.rng.choices(range(len(known) + 1), [*weights, 10])[0]
        return known[k] if k < len(known) else self.input(self.rng.choice(names))

    def whole(self, loops: str) -> RowTensor:
        """A tensor with all of these axes."""
        known = [t for t in self.known if t.axes == loops and t.dtype != "i64"]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        return self.input(self.rng.choice({"th": "xxz", "t": "c", "h": "w"}[loops]))

    # --- what reads elements ---

    def leaf(self, loops: str) -> str:
        if not loops:
            return self.read(self.some("")) if self.rng.random() < 0.8 else self.number()
        forms: list[tuple[int, Callable[[str], str]]] = [
            (60, self.plain), (14, self.moved), (6, self.window), (7, self.gathered), (3, self.folded),
            (3, self.place), (4, self.picked),
        ]  # fmt: skip
        return self.rng.choices([f for _, f in forms], [w for w, _ in forms])[0](loops)

    def number(self) -> str:
        return self.rng.choice(["3.0", "0.5", "1.7", "0.1", "7.0", "(-2.0)", "0.001"])

    def plain(self, loops: str) -> str:
        return self.number() if self.rng.random() < 0.1 else self.read(self.some(loops))

    def moved(self, loops: str) -> str:
        """An element of another row or column: under a guard, held at the last, or turned around."""
        t = self.whole(self.rng.choice([loops, loops, *loops]))
        i = self.rng.choice(t.axes)
        n, by = EXTENT[i], self.rng.choice([1, 1, 2, 3])
        other = self.rng.choice(["0.0", "0.5", self.read(t)])
        form = self.rng.randrange(9)
        if form < 2:
            return f"({self.read(t, **{i: f'{i} - {by}'})} if {i} >= {by} else {other})"
        if form < 4:
            return f"({self.read(t, **{i: f'{i} + {by}'})} if {i} + {by} < {n} else {other})"
        moves = [f"min({i} + {by}, {n} - 1)", f"max({i} - {by}, 0)", f"{n} - 1 - {i}", f"{i} // 2"]
        return self.read(t, **{i: [*moves, f"{i} - {i} % 2"][form - 4]})

    def window(self, loops: str) -> str:
        """Neighbours along rows or columns, with something else, the last or the first beyond a border."""
        t = self.whole(self.rng.choice([loops, loops, *loops]))
        return self.neighbours(t, self.rng.choice([*t.axes, t.axes[-1]]))

    def neighbours(self, t: RowTensor, i: str) -> str:
        n, size = EXTENT[i], self.rng.choice([3, 3, 5])
        at = self.rng.choice([*[f"{i} + k - {size // 2}"] * 3, f"{i} - k", f"{i} + k"])
        name = self.rng.choice(["sum", "sum", "sum", "max", "min"])
        form = self.rng.random()
        if form < 0.1:
            return f"{name}[k in 0..{size}]({self.read(t, **{i: f'min(max({at}, 0), {n} - 1)'})})"
        if form < 0.15 and self.need(n):
            return f"{name}[k in 0..{size}]({self.read(t, **{i: f'({at}) % {n}'})})"
        guard = self.rng.choice([f"0 <= {at} < {n}", f"0 <= {at} and {at} < {n}"])
        term = f"{self.read(t, **{i: at})}" + self.rng.choice(["", "", " * f32(k + 1)"])
        return f"{name}[k in 0..{size}]({term} if {guard} else {self.rng.choice(['0.0', '0.0', '-1.0'])})"

    def gathered(self, loops: str) -> str:
        """An element of a table: rows, columns or single elements by indices, as they are or clamped."""
        name = self.rng.choice(GATHERED[loops])
        by = {"g": {"v": self.rng.choice([loops, "t"])}, "u": {"v": "h"}, "e": {"v": "t", "n": "h"}}
        at = by.get(name, {"v": loops})
        return self.read(self.input(name), **{axis: self.index(over) for axis, over in at.items()})

    def index(self, loops: str) -> str:
        """A place of a table: from an array of them that are in range, or of any, held in range."""
        self.need("V")
        checked = self.rng.random() < 0.5
        i = self.input(f"{'i' if checked else 'j'}{loops}")
        at = f"{i.name}[{', '.join(loops)}]"
        return at if checked else f"min(max({at}, 0), V - 1)"

    def folded(self, loops: str) -> str:
        """A sum over an outer axis."""
        if loops != "th":
            return self.plain(loops)
        name = self.rng.choice(["sum", "sum", "mean", "max"])
        return f"{name}[b in 0..B]({self.read(self.input('a'))})" if self.need("B") else self.number()

    def place(self, loops: str) -> str:
        return f"f32({self.rng.choice(loops)}) * {self.rng.choice(['0.125', '0.01'])}"

    def picked(self, loops: str) -> str:
        """An element at the place that an argmax has found."""
        found = [t for t in self.known if t.dtype == "i64" and t.axes in loops]
        if not found:
            return self.plain(loops)
        t = self.rng.choice(found)
        t.used = True
        other = "h" if t.axes == "t" else "t"
        return self.read(self.input("x"), **{other: f"{t.name}[{t.axes}]"})

    # --- what computes with them ---

    def expr(self, loops: str, depth: int) -> str:
        """A number of moderate size for each of the loops."""
        if depth <= 0:
            return self.leaf(loops)
        forms: list[tuple[int, Callable[[str, int], str]]] = [
            (40, self.binary), (20, self.quotient), (22, self.function), (9, self.choice), (6, self.rounded),
            (6, self.gate),
        ]  # fmt: skip
        return self.rng.choices([f for _, f in forms], [w for w, _ in forms])[0](loops, depth)

    def binary(self, loops: str, depth: int) -> str:
        a, b = self.expr(loops, depth - 1), self.expr(loops, depth - 2)
        sums = [f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} * {b})"]
        return self.rng.choice([*sums, f"max({a}, {b})", f"min({a}, {b})", f"({a} + {b}) * 0.5"])

    def gate(self, loops: str, depth: int) -> str:
        a, b = self.expr(loops, depth - 1), self.leaf(loops)
        return self.rng.choice([f"sigmoid({a}) * ({b})", f"({a}) * tanh({b})", f"max({a}, 0.0) * ({b})"])

    def quotient(self, loops: str, depth: int) -> str:
        """By a number, or by what is the same for all of a row or a column."""
        by = self.rng.choice([*loops, *loops, "", loops])
        return f"({self.expr(loops, depth - 1)} / {self.divisor(by)})"

    def divisor(self, loops: str) -> str:
        form = self.rng.random()
        if form < 0.2:
            return self.rng.choice(["3.0", "7.0", "0.1", "4.0"])
        if form < 0.4:
            return self.read(self.input(self.rng.choice(LEAVES[loops])))
        b = self.read(self.some(loops))
        return self.rng.choice(
            [f"(abs({b}) + 1.0)", f"(sqrt(abs({b})) + 0.125)", f"({b} * {b} + 0.25)", f"max({b}, 0.5)",
             f"sqrt({b} * {b} + 1e-2)", f"exp(tanh({b}))"]
        )  # fmt: skip

    def function(self, loops: str, depth: int) -> str:
        a = self.expr(loops, depth - 1)
        made = self.rng.choice(
            [f"exp(min({a}, 3.0))", f"exp(-abs({a}))", f"tanh({a})", f"sigmoid({a})", f"erf({a})",
             f"abs({a})", f"sqrt(abs({a}))", f"rsqrt(abs({a}) + 1e-2)", f"log(abs({a}) + 1.0)",
             f"sin(tanh({a}))", f"({a}) ** 2", f"-({a})", f"(0.0 if isnan({a}) else {a})", "", ""]
        )  # fmt: skip
        return made or self.newer(a)

    def newer(self, a: str) -> str:
        """Functions of a number of any size, of one between -1 and 1, and of a positive one."""
        t, size = f"tanh({a})", f"abs({a})"
        inside = [f"{f}({t})" for f in ("asin", "acos", "tan", "sinh", "cosh", "expm1", "exp2", "erfc")]
        outside = [f"{f}({a})" for f in ("atan", "asinh", "cbrt", "erfc")]
        right = [f"log1p({size})", f"log2({size} + 0.5)", f"acosh({size} + 1.0)", f"lgamma({size} + 0.5)"]
        right += [f"digamma({size} + 0.5)", f"atanh(0.9 * {t})", f"hypot({a}, 0.75)"]
        right += [f"atan2({a}, {size} + 0.5)", f"({a} if isfinite({a}) else 0.0)"]
        return self.rng.choice([*inside, *outside, *right, f"(0.0 if isinf({a}) else {a})"])

    def rounded(self, loops: str, depth: int) -> str:
        """Rounded in the middle: to a 16-bit type, or an input to a whole number."""
        if self.rng.random() < 0.25:
            x = self.read(self.input(self.rng.choice(LEAVES[loops])))
            rounding = [f"{f}({x})" for f in ("floor", "round", "ceil", "trunc", "sign")]
            return self.rng.choice([*rounding, f"fmod({x}, 1.5)"])
        return f"f32({self.rng.choice(['f16', 'bf16'])}({self.expr(loops, depth - 1)}))"

    def choice(self, loops: str, depth: int) -> str:
        a, b = self.expr(loops, depth - 1), self.expr(loops, depth - 2)
        if not loops:
            return f"max({a}, {b})"
        condition = self.rng.choice(CONDITIONS[loops])
        if self.rng.random() < 0.3:
            x = self.input(self.rng.choice(LEAVES[loops]))
            x.used = True
            condition = f"{x.name}[{', '.join(x.axes)}] {self.rng.choice(['<', '>', '>='])} 0.5"
        return f"({a} if {condition} else {b})"
