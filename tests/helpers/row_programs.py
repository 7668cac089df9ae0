"""Random operators over rows and columns, as people write them: the same seed gives the same one everywhere.

    p = random_row_program(7)
    graph = instantiate(parse_text(p.text), p.op)
    evaluate(graph, p.sizes, p.inputs)
    pf.compile(p.text)(**p.arguments())        # with arrays that lie in memory as p.layouts says

An operator over t in 0..T, h in 0..H of f16, bf16 or f32 has a few temporaries (elementwise ones, sums of
rows, columns or everything, of triangles and other parts, softmaxes, norms, recurrences, places of extremes)
and one to three results, of which some are in pieces: on both sides of a cut that is a number, a size or
another index, or one row, column or element alone, reading what all columns compute. One may be a parameter
that changes in place. What nothing reads is a result, too. Rows are about as long as vectors and strips of
them are; `points` limits how many elements there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from row_arrays import Array, laid_out, random_indices, random_layout, random_values
from row_expressions import EXTENT, RowExpressions, RowTensor

from polyfuse.ir.ops import PLACED

COLUMNS = (
    0, 1, 2, 3, *range(7, 18), 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 100, 127, 128, 129,
    *range(255, 261), 300, 400, 519, 768,
)  # fmt: skip
ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 65, 100)
MOST_POINTS = 30_000

RANGES = {"th": "t in 0..T, h in 0..H", "t": "t in 0..T", "h": "h in 0..H", "": ""}
# Parts of rows and of columns that are reduced; the first of each are never empty.
PARTS = {
    "t": ["h in 0..min(t + 1, H)", "h in min(t, H)..H", "h in 0..H // 2", "h in min(1, H)..H",
          "h in 0..H - H % 16"],
    "h": ["t in 0..min(h + 1, T)", "t in min(h, T)..T", "t in 0..T // 2"],
}  # fmt: skip
# Where the columns, or the rows, of a result begin to be something else.
CUTS = {
    "h": ["min(t + 1, H)", "min(t, H)", "max(H - t, 0)", "max(H - t - 1, 0)", "min(t // 2, H)", "H // 2",
          "min(3, H)", "H - H % 16"],
    "t": ["min(h + 1, T)", "max(T - h, 0)", "T // 2", "min(2, T)"],
}  # fmt: skip
# What one row, column or element is alone, and the rest.
LAST_ROW, LAST_COLUMN = ("t in T - 1..T", "t in 0..T - 1"), ("h in H - 1..H", "h in 0..H - 1")
FIRST_ROW, FIRST_COLUMN = ("t in 0..1", "t in 1..T"), ("h in 0..1", "h in 1..H")
LAST_COLUMNS = ("h in H - 2..H", "h in 0..H - 2")


@dataclass(frozen=True)
class RowProgram:
    """An operator, what to call it with, and how arrays of arguments and results lie in memory."""

    seed: int
    text: str
    op: str
    sizes: dict[str, int]
    inputs: dict[str, Array]
    layouts: dict[str, str]
    special: bool

    def arguments(self) -> dict[str, Array]:
        """New arrays in these layouts."""
        return {n: laid_out(a, self.layouts[n]) for n, a in self.inputs.items()}

    def __str__(self) -> str:
        layouts = ", ".join(f"{n} {how}" for n, how in self.layouts.items())
        return f"{self.text}{self.sizes}{' with special values' * self.special}\n{layouts}"


@dataclass
class _Maker(RowExpressions):
    points: int = MOST_POINTS
    lines: list[str] = field(default_factory=list)
    results: list[RowTensor] = field(default_factory=list)
    changed: RowTensor | None = None

    def make(self) -> RowProgram:
        self.sizes = self.random_sizes()
        self.input("x")
        if self.rng.random() < 0.12:
            self.changed = self.input("p")
            self.known.append(self.changed)
        right = self.rng.choices([self.general, self.softmax, self.norm], [6, 1, 1])[0]()
        if self.changed:
            self.define(self.changed, self.all_of("th", right))
        if not self.changed or self.rng.random() < 0.3:
            self.result("" if self.changed else right)
        if self.rng.random() < 0.35:
            self.result("")
        return self.program()

    def random_sizes(self) -> dict[str, int]:
        least = self.rng.choice([0, 1, 1, 2, 2, 2])
        fitting = [(t, h) for t in ROWS for h in COLUMNS if least <= min(t, h) and t * h <= self.points]
        columns = self.rng.choice(sorted({h for _, h in fitting}))
        rows = self.rng.choice([t for t, h in fitting if h == columns])
        return {
            "T": rows,
            "H": columns,
            "V": self.rng.choice([1, 2, 5, 17]),
            "B": self.rng.choice([1, 2, 3, 5]),
        }

    def program(self) -> RowProgram:
        left = [t for t in self.known if not t.used and not t.is_input]
        results = [*self.results, *left]
        lets = [f"let {t.signature}" for t in self.known if self.is_let(t) and t not in left]
        body = "\n".join(f"  {line}" for line in [*lets, *self.lines])
        params = ", ".join(
            ("inout " if t is self.changed else "") + t.signature for t in self.inputs.values()
        )
        outs = f"\n    -> ({', '.join(t.signature for t in results)})" if results else ""
        where = f" where {', '.join(dict.fromkeys(self.constraints))}" if self.constraints else ""
        special = self.rng.random() < 0.2
        inputs = {t.name: self.values(t, special) for t in self.inputs.values()}
        shared = random_layout(self.rng) if self.rng.random() < 0.3 else None
        names = [*inputs, *(t.name for t in results)]
        layouts = {n: shared or random_layout(self.rng) for n in names}
        sizes = {n: s for n, s in self.sizes.items() if any(n in t.extents for t in self.inputs.values())}
        text = f"op f({params}){outs}{where} {{\n{body}\n}}\n"
        return RowProgram(self.seed, text, "f", sizes, inputs, layouts, special)

    def is_let(self, t: RowTensor) -> bool:
        return t.dtype in ("f16", "bf16") and not t.is_input

    def values(self, t: RowTensor, special: bool) -> Array:
        shape = tuple(self.sizes[EXTENT[a]] for a in t.axes)
        if t.name[0] in "ij":
            return random_indices(self.rng, shape, t.dtype, self.sizes["V"], beyond=t.name[0] == "j")
        return random_values(self.rng, shape, t.dtype, special and self.rng.random() < 0.5)

    # --- definitions ---

    def everywhere(self, axes: str, right: str) -> list[tuple[str, str]]:
        return [(RANGES[axes], right)]

    def define(self, t: RowTensor, pieces: list[tuple[str, str]]) -> None:
        left = f"{t.name}[{', '.join(t.axes)}]" if t.axes else t.name
        for ranges, right in pieces:
            value = right if t.dtype in ("f32", "i64") else f"{t.dtype}({right})"
            self.lines.append(f"{left} = {value}" + (f" for {ranges}" if ranges else ""))

    def let(self, axes: str, right: str, dtype: str = "") -> RowTensor:
        """A temporary, now and then of 16 bits."""
        kinds = ["f32"] * 12 + ["f16", "bf16"]
        name = f"s{sum(t.name[0] == 's' for t in self.known)}"
        t = RowTensor(name, dtype or self.rng.choice(kinds), axes)
        self.define(t, self.everywhere(axes, right))
        self.known.append(t)
        return t

    def result(self, right: str) -> None:
        """A result, mostly of all rows and columns."""
        axes = "th" if right else self.rng.choice(["th"] * 7 + ["t", "h", ""])
        dtype = self.rng.choice([self.float] * 4 + ["f32", "f16", "bf16"])
        pieces = self.all_of(axes, right)
        t = RowTensor(f"y{len(self.results)}", dtype, axes)
        self.define(t, pieces)
        self.results.append(t)

    def all_of(self, axes: str, right: str) -> list[tuple[str, str]]:
        if axes != "th":
            return self.everywhere(axes, self.reduced(axes))
        if self.rng.random() < 0.7:
            return self.pieces(right)
        return self.everywhere(axes, right or self.expr(axes, self.rng.choice([1, 2, 2, 3])))

    # --- results in pieces ---

    def pieces(self, right: str) -> list[tuple[str, str]]:
        """Everything once: the first piece is the one of interest."""
        alone = self.alone() if self.rng.random() < 0.5 else []
        ranges = alone or self.cut()
        right = right or self.focus(ranges[0], windows=0.1 if alone else 0.55)
        rest = [(others, self.expr("th", self.rng.choice([0, 0, 0, 0, 1]))) for others in ranges[1:]]
        return [(ranges[0], right), *rest]

    def cut(self) -> list[str]:
        """Both sides of one, in any order."""
        i, other = self.rng.choice([("h", "t"), ("h", "t"), ("h", "t"), ("t", "h")])
        at = self.rng.choice(CUTS[i])
        sides = [f"{i} in 0..{at}", f"{i} in {at}..{EXTENT[i]}"]
        self.rng.shuffle(sides)
        return [f"{RANGES[other]}, {side}" for side in sides]

    def alone(self) -> list[str]:
        """One row, column or element, mostly the last, and the rest; nothing where there is none."""
        row = self.rng.choice([LAST_ROW, LAST_ROW, FIRST_ROW])
        column = self.rng.choice([LAST_COLUMN, LAST_COLUMN, FIRST_COLUMN])
        form = self.rng.random()
        if form < 0.05 and self.need("H", 2):
            return [f"t in 0..T, {h}" for h in LAST_COLUMNS]
        if form < 0.45 and self.need("H"):
            return [f"t in 0..T, {h}" for h in column]
        if form < 0.6 and self.need("T"):
            return [f"{t}, h in 0..H" for t in row]
        if self.need("T") and self.need("H"):
            return [f"{row[0]}, {column[0]}", f"{row[0]}, {column[1]}", f"{row[1]}, h in 0..H"]
        return []

    def focus(self, ranges: str, windows: float) -> str:
        """For a piece: what reads a temporary of all rows and columns, a window along it, or anything."""
        form = self.rng.random()
        if form > 0.85:
            return self.expr("th", self.rng.choice([1, 2]))
        if form < windows:
            made = self.neighbours(self.whole("th"), ranges.partition(", ")[2][0])
        else:
            made = self.read(self.let("th", self.expr("th", 1)))
        changed = self.rng.choice(["{e}", "{e}", "tanh({e})", "{e} * 2.0", "exp(-abs({e}))", "({e} + {x})"])
        return changed.format(e=made, x=self.leaf("th") if "{x}" in changed else "")

    # --- temporaries ---

    def general(self) -> str:
        """A few temporaries of any kind, and nothing that a result must be."""
        makers: list[tuple[int, Callable[[], object]]] = [
            (5, self.elementwise), (5, lambda: self.let("t", self.reduced("t"))),
            (4, lambda: self.let("h", self.reduced("h"))), (1, lambda: self.let("", self.reduced(""))),
            (2, self.of_less), (2, self.recurrence), (1, self.argument),
        ]  # fmt: skip
        for _ in range(self.rng.choice([0, 0, 0, 0, 1, 1, 2, 3, 4])):
            self.rng.choices([m for _, m in makers], [w for w, _ in makers])[0]()
        return ""

    def elementwise(self) -> RowTensor:
        return self.let("th", self.expr("th", self.rng.choice([1, 2, 2, 3])))

    def of_less(self) -> None:
        axes = self.rng.choice(["t", "h", ""])
        self.let(axes, self.expr(axes, self.rng.choice([1, 2])))

    def reduced(self, axes: str) -> str:
        """Of rows ("t"), of columns ("h"), or of everything, or of parts of them."""
        over = "".join(a for a in "th" if a not in axes)
        name = self.rng.choice(["sum", "sum", "sum", "mean", "max", "min"])
        right = self.expr("th", self.rng.choice([0, 1, 1, 2]))
        if len(over) == 1 and self.rng.random() < 0.3:
            part = self.rng.choice([PARTS[axes][0], *PARTS[axes]])
            name = name if part == PARTS[axes][0] and self.need(EXTENT[over]) else "sum"
            return f"{name}[{part}]({right})"
        name = name if name == "sum" or all(self.need(EXTENT[a]) for a in over) else "sum"
        return f"{name}[{', '.join(RANGES[a] for a in over)}]({right})"

    def recurrence(self) -> None:
        """Down the rows or up, or along them, with its start in the same statement or in another."""
        i, up = self.rng.choice("ttth"), self.rng.random() < 0.3
        n, name = EXTENT[i], f"s{sum(t.name[0] == 's' for t in self.known)}"
        at = ("t + 1, h" if up else "t - 1, h") if i == "t" else ("t, h + 1" if up else "t, h - 1")
        start, right = self.leaf("th"), self.expr("th", self.rng.choice([0, 1]))
        factor = self.rng.choice(["0.5", "0.9"]) if self.rng.random() < 0.7 else f"tanh({self.leaf('h')})"
        step = self.rng.choice([f"{factor} * {name}[{at}] + {right}"] * 3 + [f"max({name}[{at}], {right})"])
        t = RowTensor(name, "f32", "th")
        if self.rng.random() < 0.6 or not self.need(n):
            guard = f"{i} + 1 < {n}" if up else f"{i} >= 1"
            self.define(t, self.everywhere("th", f"({step} if {guard} else {start})"))
        else:
            first, rest = (
                (f"{i} in {n} - 1..{n}", f"{i} in 0..{n} - 1") if up else (f"{i} in 0..1", f"{i} in 1..{n}")
            )
            other = "t in 0..T" if i == "h" else "h in 0..H"
            self.define(t, [(f"{first}, {other}", start), (f"{rest}, {other}", step)])
        self.known.append(t)

    def argument(self) -> None:
        """The place of an extreme of an input: its elements are exact, so the choice is decided."""
        axes, over = self.rng.choice([("t", "h"), ("t", "h"), ("h", "t")])
        if self.need(EXTENT[over]):
            name = self.rng.choice(["argmax", "argmin", "arglargest", "argsmallest"])
            places = ["0", f"{EXTENT[over]} - 1", f"{EXTENT[over]} // 3", f"{axes[0]} % {EXTENT[over]}"]
            place = f", {self.rng.choice(places)}" if name in PLACED else ""
            self.let(axes, f"{name}[{RANGES[over]}](x[t, h]{place})", "i64")

    def softmax(self) -> str:
        axes, over = self.rng.choice([("t", "h"), ("t", "h"), ("h", "t")])
        e = self.read(self.let("th", self.expr("th", self.rng.choice([0, 1]))))
        if self.rng.random() < 0.6 and self.need(EXTENT[over]):
            e = f"{e} - {self.read(self.let(axes, f'max[{RANGES[over]}]({e})'))}"
        else:
            e = f"min({e}, 4.0)"
        p = self.read(self.let("th", f"exp({e})"))
        total = self.read(self.let(axes, f"sum[{RANGES[over]}]({p})"))
        whole = f"{p} / {self.rng.choice([total, total, f'({total} + 1e-2)', f'{total} * 2.0'])}"
        if self.rng.random() < 0.3:
            return f"-({whole}) * {self.leaf('h')}"
        return self.rng.choice([whole, whole, f"max({whole}, 0.001)"])

    def norm(self) -> str:
        axes, over = self.rng.choice([("t", "h"), ("t", "h"), ("h", "t")])
        if not self.need(EXTENT[over]):
            return self.general()
        e = self.read(
            self.let("th", f"{self.read(self.whole('th'))} + {self.expr('th', self.rng.choice([0, 1]))}")
        )
        mean = self.read(self.let(axes, f"mean[{RANGES[over]}]({e})"))
        variance = self.read(self.let(axes, f"mean[{RANGES[over]}](({e} - {mean}) ** 2)"))
        by = ["/ sqrt({v} + 1e-2)", "* rsqrt({v} + 1e-2)", "/ (sqrt({v}) + 0.125)"]
        right = f"({e} - {mean}) {self.rng.choice(by).format(v=variance)}"
        return f"{right} * {self.leaf('h')} + {self.leaf('h')}" if self.rng.random() < 0.6 else right


def random_row_program(seed: int, points: int = MOST_POINTS) -> RowProgram:
    """The operator of a seed, of so many elements at most; equal arguments give equal programs and arrays."""
    return _Maker(seed, points=points).make()
