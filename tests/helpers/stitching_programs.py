"""Random programs with several reductions, for layer II; the same seed gives the same program everywhere.

    p = stitching_program(7)

Tensors of 2 to 4 dims over small odd sizes (now and then 1, or a row longer than a block of threads): one
to five reductions over different axes, elementwise statements between them that broadcast the results
back, row and column reductions of one input, transposed and gathered reads, several results, of which
others may read some.  Numbers stay moderate, and nothing is compared, so that every element is decided.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from programs import RandomProgram

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 40, 67)
LONG = (129, 260, 300, 515, 1030)  # along the last axis: several rounds of the threads of a row
MOST_POINTS = 1600

_Axes = tuple[str, ...]
_ONE = ("tanh({a})", "exp(0.5 * tanh({a}))", "{a} * 0.75 - 0.25", "abs({a}) + 0.125", "{a} * sigmoid({a})")
_TWO = ("{a} + {b}", "{a} - {b}", "0.5 * {a} * tanh({b})", "{a} / (1.0 + abs({b}))", "max({a}, {b})",
        "{a} * rsqrt({b} * {b} + 1.0)")  # fmt: skip
_REDUCTIONS = ("sum", "sum", "mean", "mean", "max", "min")


@dataclass
class _Known:
    """A tensor by its axes; `given` if it is an argument."""

    name: str
    axes: _Axes
    given: bool = False
    used: bool = False
    kept: bool = False  # a result even if something reads it


@dataclass
class _Maker:
    seed: int
    rng: random.Random = field(init=False)
    sizes: dict[str, int] = field(init=False)
    known: list[_Known] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def make(self) -> RandomProgram:
        rng = self.rng
        self.choose_sizes()
        whole = tuple(self.sizes)
        for axes in (whole, whole if rng.random() < 0.6 else whole[1:], (whole[-1],), (whole[0],)):
            self.parameter(axes)
        reductions = rng.randint(1, 5)
        while reductions:
            kind = rng.choices(("between", "rows_and_columns", "reduce", "gather"), (3, 1, 4, 0.5))[0]
            if kind == "rows_and_columns" and reductions >= 2:
                self.rows_and_columns()
                reductions -= 2
            elif kind == "reduce":
                self.reduce(self.source())
                reductions -= 1
                if rng.random() < 0.7:
                    self.elementwise(whole)  # broadcast back
            elif kind == "gather":
                self.gather()
            else:
                self.elementwise(self.some_axes())
        if rng.random() < 0.6:
            self.elementwise(whole)
        return self.program()

    def choose_sizes(self) -> None:
        names = "ABCD"[: self.rng.choices((2, 3, 4), (5, 4, 2))[0]]
        long = self.rng.random() < 0.15
        while True:
            self.sizes = {n: self.rng.choice(SIZES) for n in names}
            if long:
                self.sizes[names[-1]] = self.rng.choice(LONG)
            if 8 <= np.prod(list(self.sizes.values())) <= (4 if long else 1) * MOST_POINTS:
                return

    def program(self) -> RandomProgram:
        results = [t for t in self.known if not t.given and (t.kept or not t.used)]
        outs = ", ".join(f"{t.name}: f32{_brackets(t.axes)}" for t in results)
        body = "\n".join(f"  {line}" for line in self.lines)
        text = f"op p({', '.join(self.params)})\n    -> ({outs}) {{\n{body}\n}}\n"
        return RandomProgram(self.seed, text, "p", dict(self.sizes), dict(self.inputs))

    # --- tensors -----------------------------------------------------------------------------------

    def parameter(self, axes: _Axes) -> None:
        name = f"x{len(self.params)}"
        self.params.append(f"{name}: f32{_brackets(axes)}")
        rng = np.random.default_rng((self.seed, len(self.params)))
        shape = tuple(self.sizes[a] for a in axes)
        self.inputs[name] = rng.standard_normal(shape).astype(np.float32)
        self.known.append(_Known(name, axes, given=True))

    def read(self, t: _Known) -> str:
        t.used = True
        return f"{t.name}{_brackets(tuple(a.lower() for a in t.axes))}"

    def define(self, axes: _Axes, right: str) -> _Known:
        """A new tensor; its axes may come in another order than the loops of what it is made from."""
        if len(axes) > 1 and self.rng.random() < 0.1:
            axes = tuple(self.rng.sample(axes, len(axes)))
        t = _Known(f"t{len(self.lines)}", axes, kept=self.rng.random() < 0.2)
        where = ", ".join(f"{a.lower()} in 0..{a}" for a in axes)
        left = f"{t.name}{_brackets(tuple(a.lower() for a in axes))}"
        self.lines.append(f"{left} = {right}" + (f" for {where}" if axes else ""))
        self.known.append(t)
        return t

    def within(self, axes: Sequence[str]) -> list[_Known]:
        """Tensors that statements over some axes may read, later ones more likely to be chosen."""
        return [t for t in self.known if set(t.axes) <= set(axes)]

    def pick(self, axes: Sequence[str]) -> _Known:
        found = self.within(axes)
        return self.rng.choices(found, [1 + 2 * (k > len(found) - 4) for k in range(len(found))])[0]

    def some_axes(self) -> _Axes:
        """The axes of a tensor that is not a scalar."""
        return self.rng.choice([t.axes for t in self.known if t.axes])

    # --- statements --------------------------------------------------------------------------------

    def expr(self, first: _Known, axes: _Axes) -> str:
        """Something of `first` and perhaps of tensors over fewer axes."""
        text = self.read(first)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            text = self.rng.choice(_TWO).format(a=f"({text})", b=self.read(self.pick(axes)))
        return self.rng.choice(_ONE).format(a=f"({text})") if self.rng.random() < 0.4 else text

    def elementwise(self, axes: _Axes) -> _Known:
        wide = [t for t in self.within(axes) if set(t.axes) == set(axes)]
        first = self.rng.choice(wide[-3:]) if wide else self.pick(axes)
        return self.define(axes, self.expr(first, axes))

    def source(self) -> _Known:
        """A tensor to reduce: one of the last, mostly."""
        wide = [t for t in self.known if t.axes]
        return self.rng.choice(wide[-4:] if self.rng.random() < 0.7 else wide)

    def reduce(self, t: _Known, away: set[str] | None = None) -> _Known:
        if away is None:
            count = self.rng.choices((1, 2, len(t.axes)), (6, 2, 1))[0]
            # the last axis is the row
            rows = self.rng.random() < 0.6
            away = {t.axes[-1]} if rows else set()
            away |= set(self.rng.sample(t.axes, min(len(t.axes), count) - len(away)))
        name = self.rng.choice(_REDUCTIONS)
        loops = ", ".join(f"{a.lower()} in 0..{a}" for a in t.axes if a in away)
        term = self.expr(t, t.axes)
        right = f"{name}[{loops}]({term})"
        if name == "sum":  # moderate, however many there are
            right += f" * {1 / max(1, int(np.prod([self.sizes[a] for a in away]))) ** 0.5:.4f}"
        return self.define(tuple(a for a in t.axes if a not in away), right)

    def rows_and_columns(self) -> None:
        """One tensor reduced along its rows, and along its columns."""
        t = self.rng.choice([k for k in self.known if len(k.axes) > 1])
        away = {t.axes[-1]}
        self.reduce(t, away)
        if self.rng.random() < 0.5:
            self.elementwise(t.axes)
        self.reduce(t, set(t.axes) - away)

    def gather(self) -> None:
        """Rows of a tensor as an input tells."""
        t = self.rng.choice([k for k in self.known if k.axes])
        a = t.axes[0]
        name = f"id{len(self.params)}"
        self.params.append(f"{name}: i32[{a}]")
        rng = np.random.default_rng((self.seed, len(self.params)))
        self.inputs[name] = rng.integers(0, self.sizes[a], self.sizes[a]).astype(np.int32)
        t.used = True
        at = ", ".join([f"{name}[{a.lower()}]", *(b.lower() for b in t.axes[1:])])
        self.define(t.axes, f"{t.name}[{at}] * 0.5 + {self.read(self.pick(t.axes))}")


def _brackets(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]" if names else ""


def stitching_program(seed: int) -> RandomProgram:
    """The program of a seed; equal seeds give equal programs and inputs."""
    return _Maker(seed).make()
