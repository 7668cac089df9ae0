"""Random operators, as text with their arguments: the same seed draws the same programs.

A program is a chain of statements over two or three axes: each reads the tensor made last, and others.
Values stay near 1, so that no time goes into NaN, infinities or subnormal numbers.  What nothing reads is a
result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

LEAST_ELEMENTS, MOST_ELEMENTS = 2**14, 2**22
SHORT = (2, 3, 4, 5, 7)
TRANSPOSED = "transposed"
"""The kind of programs with a result stored in another order than it is computed in."""

# How a statement combines what it reads; all keep values near 1.
_TWO = ("{0} + 0.5 * {1}", "{0} - 0.3 * {1}", "{0} * {1}", "{0} / (1.5 + abs({1}))", "max({0}, {1})")
_ONE = ("tanh({0})", "{0} * 0.7 + 0.1", "exp(-abs({0}))", "sqrt(abs({0}) + 0.5)", "max({0}, 0.2)", "{0}")
_FOLDS = ("sum", "sum", "max", "min")


@dataclass(frozen=True)
class Parameter:
    """An argument: its name, dtype and shape; integers are drawn below `below`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    below: int = 0


@dataclass(frozen=True)
class Drawn:
    """A program: its number in the sequence, what is in it, and its arguments."""

    number: int
    kinds: tuple[str, ...]
    text: str
    parameters: tuple[Parameter, ...]

    def arrays(self) -> dict[str, np.ndarray]:
        """The arguments by name."""
        rng = np.random.default_rng(self.number)
        made: dict[str, np.ndarray] = {}
        for p in self.parameters:
            made[p.name] = (
                rng.integers(0, p.below, p.shape) if p.below else rng.uniform(0.1, 1.0, p.shape).astype("f4")
            )
        return made


@dataclass(frozen=True)
class _Tensor:
    name: str
    axes: str

    def at(self, **other: str) -> str:
        """The element at the loop variables of its axes, or at other indices for some of them."""
        return f"{self.name}[{', '.join(other.get(a, a) for a in self.axes)}]" if self.axes else self.name


@dataclass
class _Program:
    """A program that is being drawn."""

    rng: random.Random
    transposed: bool
    limits: tuple[int, int] = (LEAST_ELEMENTS, MOST_ELEMENTS)
    sizes: dict[str, int] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    made: list[_Tensor] = field(default_factory=list)
    inputs: list[_Tensor] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    kinds: list[str] = field(default_factory=list)

    def draw(self) -> None:
        self.sizes = _sizes(self.rng, *self.limits)
        self.made.append(self.input(self.order("".join(self.sizes))))
        makers: tuple[tuple[Callable[[], None], int], ...] = (
            (self.map, 6), (self.fold, 5), (self.gather, 1), (self.strided, 1),
            (self.shifted, 1), (self.recurrence, 1), (self.product, 1),
        )  # fmt: skip
        for _ in range(self.rng.randint(2, 6)):
            self.rng.choices([m for m, _ in makers], [w for _, w in makers])[0]()
        if len(self.latest.axes) < 2:
            self.map("".join(self.sizes))
        self.results()

    # --- what statements read -----------------------------------------------------------------------------

    @property
    def latest(self) -> _Tensor:
        return self.made[-1]

    def order(self, axes: str) -> str:
        """The axes in alphabetical order, now and then in another one."""
        found = sorted(axes)
        if self.rng.random() < 0.12:
            self.rng.shuffle(found)
        return "".join(found)

    def input(self, axes: str, *, last: int | None = None, first: int | None = None) -> _Tensor:
        """A new argument over these axes; its first or last extent may be another."""
        shape = [self.sizes[a] for a in axes]
        if first is not None:
            shape[0] = first
        if last is not None:
            shape[-1] = last
        tensor = _Tensor(f"x{len(self.parameters)}", axes)
        self.parameters.append(Parameter(tensor.name, "f32", tuple(shape)))
        return tensor

    def some(self, axes: str) -> _Tensor:
        """A tensor over some of these axes: one that was made, or an argument."""
        fitting = [t for t in (*self.made[:-1], *self.inputs) if set(t.axes) <= set(axes)]
        if fitting and self.rng.random() < 0.65:
            return self.rng.choice(fitting)
        count = self.rng.choice((1, len(axes), len(axes)))
        self.inputs.append(self.input(self.order("".join(self.rng.sample(axes, count)))))
        return self.inputs[-1]

    def value(self, axes: str, latest: str | None = None) -> str:
        """An expression over these axes of the tensor made last, and perhaps of another one."""
        text = latest or self.latest.at()
        self.read.add(self.latest.name)
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            other = self.some(axes)
            self.read.add(other.name)
            text = "(" + self.rng.choice(_TWO).format(text, other.at()) + ")"
        return self.rng.choice(_ONE).format(text)

    # --- statements ---------------------------------------------------------------------------------------

    def define(self, axes: str, value: str, kind: str) -> None:
        tensor = _Tensor(f"t{len(self.made)}", axes)
        loops = ", ".join(f"{a} in 0..{self.sizes[a]}" for a in axes)
        self.lines.append(f"{tensor.at()} = {value}" + (f" for {loops}" if axes else ""))
        self.made.append(tensor)
        self.kinds.append(kind)

    def map(self, axes: str | None = None) -> None:
        mine = set(axes or self.latest.axes)
        if axes is None and self.rng.random() < 0.5:
            mine = set(self.sizes)
        ordered = self.order("".join(mine))
        self.define(ordered, self.value(ordered), "map")

    def fold(self) -> None:
        axes = self.latest.axes
        if len(axes) < 2:
            return self.map()
        gone = self.rng.sample(axes, 1 if len(axes) == 2 or self.rng.random() < 0.8 else 2)
        kept = "".join(a for a in axes if a not in gone)
        op = self.rng.choice(_FOLDS)
        loops = ", ".join(f"{a} in 0..{self.sizes[a]}" for a in gone)
        scale = f" / {math.prod(self.sizes[a] for a in gone)}.0" if op == "sum" else ""
        where = "rows" if axes[-1] in gone else "columns"
        return self.define(kept, f"{op}[{loops}]({self.value(axes)}){scale}", f"fold of {where}")

    def gather(self) -> None:
        axes = self.latest.axes
        if not axes:
            return self.map()
        a = self.rng.choice(axes[:-1] or axes)
        index = self.places(a)
        return self.define(axes, self.value(axes, self.latest.at(**{a: f"{index}[{a}]"})), "gather")

    def places(self, axis: str) -> str:
        """An argument of indices along an axis."""
        name = f"i{len(self.parameters)}"
        self.parameters.append(Parameter(name, "i64", (self.sizes[axis],), self.sizes[axis]))
        return name

    def strided(self) -> None:
        axes = self.latest.axes
        if not axes:
            return self.map()
        step = self.rng.choice((2, 2, 3, 4))
        last = self.rng.random() < 0.5
        a = axes[-1] if last else axes[0]
        extent = self.sizes[a] * step
        other = self.input(axes, last=extent) if last else self.input(axes, first=extent)
        self.define(axes, self.value(axes) + f" + 0.1 * {other.at(**{a: f'{step}*{a}'})}", "strided")
        return None

    def shifted(self) -> None:
        axes = self.latest.axes
        if not axes:
            return self.map()
        a = self.rng.choice(axes)
        back, on = f"max({a} - 1, 0)", f"min({a} + 1, {self.sizes[a] - 1})"
        t = self.latest
        around = f"({t.at()} + 0.25 * {t.at(**{a: back})} + 0.25 * {t.at(**{a: on})})"
        return self.define(axes, self.value(axes, around), "shifted")

    def recurrence(self) -> None:
        axes = self.latest.axes
        if not axes:
            return self.map()
        a = self.rng.choice(axes)
        tensor = _Tensor(f"t{len(self.made)}", axes)
        loops = [f"{x} in 0..{self.sizes[x]}" for x in axes if x != a]
        first = ", ".join(loops)
        value = self.value(axes)
        start = f"{self.latest.at(**{a: '0'})}"
        self.lines.append(f"{tensor.at(**{a: '0'})} = {start}" + (f" for {first}" if first else ""))
        step = f"0.5 * {tensor.at(**{a: f'{a} - 1'})} + 0.5 * ({value})"
        self.lines.append(f"{tensor.at()} = {step} for {', '.join([*loops, f'{a} in 1..{self.sizes[a]}'])}")
        self.made.append(tensor)
        self.kinds.append("recurrence")
        return None

    def product(self) -> None:
        axes = self.latest.axes
        if len(axes) < 2 or self.sizes[axes[-1]] > 512:
            return self.map()
        k = axes[-1]
        weight = self.input(k + k)
        self.read.add(self.latest.name)
        term = f"{self.latest.at(**{k: 'k'})} * {weight.name}[k, {k}] / {self.sizes[k]}.0"
        return self.define(axes, f"sum[k in 0..{self.sizes[k]}]({term})", "product")

    # --- results ------------------------------------------------------------------------------------------

    def results(self) -> None:
        """The tensor made last, and all that nothing reads."""
        last = self.latest
        self.final: list[str] = []
        unread = [t for t in self.made[1:-1] if t.name not in self.read]
        for k, t in enumerate((last, *unread)):
            self.result(f"y{k}", t)

    def result(self, name: str, t: _Tensor) -> None:
        kind = self.rng.choices(("plain", "scattered", "pieces"), (8, 1, 1))[0]
        if self.transposed and len(t.axes) > 1:
            kind = TRANSPOSED
        axes = t.axes
        if kind == TRANSPOSED:
            while axes[-1] == t.axes[-1]:
                axes = "".join(self.rng.sample(t.axes, len(t.axes)))
        loops = ", ".join(f"{a} in 0..{self.sizes[a]}" for a in axes)
        extents = [str(self.sizes[a]) for a in axes]
        value = self.rng.choice(_ONE).format(t.at())
        if kind == "scattered" and axes:
            index = self.places(axes[0])
            place = _Tensor(name, axes).at(**{axes[0]: f"{index}[{axes[0]}]"})
            self.lines.append(f"{place} += {value} for {loops}")
        elif kind == "pieces" and axes:
            inner = ", ".join(axes)
            self.lines.append(f"{name}[{inner}, 0] = {value} for {loops}")
            self.lines.append(f"{name}[{inner}, 1] = {t.at()} * 0.5 for {loops}")
            extents.append("2")
        else:
            self.lines.append(f"{_Tensor(name, axes).at()} = {value}" + (f" for {loops}" if axes else ""))
            kind = kind if kind == TRANSPOSED else "plain"
        self.final.append(f"{name}: f32" + (f"[{', '.join(extents)}]" if extents else ""))
        if kind != "plain":
            self.kinds.append(kind)

    def text(self) -> str:
        given = ", ".join(f"{p.name}: {p.dtype}[{', '.join(map(str, p.shape))}]" for p in self.parameters)
        body = "\n".join(f"  {line}" for line in self.lines)
        return f"op f({given})\n    -> ({', '.join(self.final)}) {{\n{body}\n}}\n"


def _sizes(rng: random.Random, least: int, most: int) -> dict[str, int]:
    """Sizes of two or three axes, of so many elements in all: each on a logarithmic scale, half of them
    powers of two."""
    total = math.exp(rng.uniform(math.log(least), math.log(most)))
    count = rng.choice((2, 2, 3))
    shares = [rng.uniform(0.4, 1.0) for _ in range(count)]
    found = [max(2, round(total ** (s / sum(shares)))) for s in shares]
    if rng.random() < 0.15:
        short = rng.choice(SHORT)
        found = [max(2, round(total / short) if count == 2 else round((total / short) ** 0.5))] * (count - 1)
        found.append(short)
    if rng.random() < 0.5:
        found = [2 ** round(math.log2(n)) for n in found]
    return dict(zip("abc", found, strict=False))


def draw(seed: int, least: int = LEAST_ELEMENTS, most: int = MOST_ELEMENTS) -> Iterator[Drawn]:
    """Programs without end over about `least` to `most` elements; one in four has a transposed result.

    Other limits draw the same numbers: programs with the same statements, unless a size decides on them.
    """
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        program = _Program(rng, number % 4 == 3, (least, most))
        program.draw()
        yield Drawn(number, tuple(dict.fromkeys(program.kinds)), program.text(), tuple(program.parameters))
        number += 1
