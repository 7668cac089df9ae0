"""Random expressions over the tensors of a program in the making: the lower half of `programs`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from polyfuse.ir.dtypes import BY_NAME

SIZES = (1, 2, 3, 3, 5, 5, 7, 8, 11, 13, 16, 17)
MOST_POINTS = 1500  # product of all sizes


@dataclass
class Tensor:
    name: str
    dtype: str
    extents: tuple[str, ...]
    is_input: bool = False
    used: bool = False
    declared: bool = False


@dataclass(frozen=True)
class Start:
    """What a scatter adds to: a `let`, or the first definition of a result."""

    tensor: Tensor
    value: str

    def line(self, is_result: bool) -> str:
        t = self.tensor
        if not is_result:
            return f"let {t.name}: {t.dtype}[{', '.join(t.extents)}] = {self.value}"
        loops = [f"i{k}" for k in range(len(t.extents))]
        ranges = ", ".join(f"{v} in 0..{e}" for v, e in zip(loops, t.extents, strict=True))
        return f"{t.name}[{', '.join(loops)}] = {float(self.value)} for {ranges}"


Axes = tuple[str, ...]  # extents of the loops i0, i1, ...


def padded(read: str, outside: str) -> str:
    """``t[i - 1 else 0.0]``, in the cast that the read is in."""
    before, _, after = read.rpartition("]")
    return f"{before} else {outside}]{after}"


@dataclass
class Expressions:
    seed: int
    rng: random.Random = field(init=False)
    numbers: np.random.Generator = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    lines: list[str | Start] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    covered: set[str] = field(default_factory=set)  # loops that some plain subscript gives a range

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        self.float = self.rng.choice(["f32", "f32", "f32", "f64", "f16", "bf16"])
        self.compute = "f32" if self.float in ("f16", "bf16") else self.float

    # --- sizes, tensors, names ---

    def signature(self, t: Tensor) -> str:
        return f"{t.name}: {t.dtype}[{', '.join(t.extents)}]" if t.extents else f"{t.name}: {t.dtype}"

    def value(self, extent: str) -> int:
        return int(eval(extent, {"__builtins__": {}}, dict(self.sizes)))

    def new_input(self, dtype: str, extents: Axes, low: int = -5, high: int = 6) -> Tensor:
        name = f"x{len(self.inputs)}"
        shape = tuple(self.value(e) for e in extents)
        numpy_type = BY_NAME[dtype].numpy
        if BY_NAME[dtype].is_float:
            values = self.numbers.normal(size=shape).astype(numpy_type)
        else:
            values = self.numbers.integers(low, max(high, low + 1), shape).astype(numpy_type)
        self.inputs[name] = np.asarray(values)
        self.tensors.append(Tensor(name, dtype, extents, is_input=True))
        return self.tensors[-1]

    def new_tensor(self, extents: Axes, dtype: str | None = None, declared: bool = False) -> Tensor:
        name = f"t{sum(not t.is_input for t in self.tensors)}"
        self.tensors.append(Tensor(name, dtype or self.compute, extents, declared=declared))
        return self.tensors[-1]

    def axes(self, least: int = 0) -> Axes:
        """Extents to loop over, like those of a tensor there is."""
        found = [
            t.extents for t in self.tensors if least <= len(t.extents) <= 3 and self.points(t.extents) < 3000
        ]
        extents = list(self.rng.choice(found[-6:] or found))
        if self.rng.random() < 0.3:
            self.rng.shuffle(extents)
        return tuple(extents)

    def points(self, extents: Axes) -> int:
        return int(np.prod([self.value(e) for e in extents], dtype=np.int64))

    def need(self, extent: str) -> bool:
        """State that an extent is at least 1; False if it is not."""
        if self.value(extent) < 1:
            return False
        self.constraints.append(f"{extent} >= 1")
        return True

    # --- expressions ---

    def fitting(self, axes: Axes, want: Callable[[Tensor], bool]) -> tuple[Tensor, list[str]] | None:
        """A tensor whose axes are some of the loops, and those loops."""
        found = []
        for t in self.tensors:
            free = [f"i{k}" for k in range(len(axes))]
            self.rng.shuffle(free)
            at = []
            for extent in t.extents:
                loop = next((v for v in free if axes[int(v[1:])] == extent), None)
                if loop is None:
                    break
                free.remove(loop)
                at.append(loop)
            if len(at) == len(t.extents) and want(t):
                found += [(t, at)] * (1 + 3 * (not t.is_input and not t.used))
        return self.rng.choice(found) if found else None

    def is_float(self, t: Tensor) -> bool:
        return BY_NAME[t.dtype].is_float

    def read(self, t: Tensor, at: list[str], plain: bool = True) -> str:
        t.used = True
        if plain:
            self.covered.update(at)
        text = f"{t.name}[{', '.join(at)}]" if at else t.name
        # Nothing is lost: no cast.
        mixes = t.dtype in ("f16", "bf16") and self.compute == "f32" and self.seed % 2
        return text if mixes or t.dtype == self.compute else f"{self.compute}({text})"

    def leaf(self, axes: Axes) -> str:
        if axes and self.rng.random() < 0.08:
            return f"{self.compute}(i{self.rng.randrange(len(axes))}) * 0.125"
        found = self.fitting(axes, self.is_float)
        if found is None or self.rng.random() < 0.05:
            number = self.rng.choice([0.5, 1.25, -0.75, 0.1, 3.0])
            return f"{number}" if self.compute == "f32" else f"{self.compute}({number})"
        return self.read(*found)

    def guarded(self, axes: Axes) -> str:
        """A shifted read with the guard it needs."""
        found = self.fitting(axes, lambda t: self.is_float(t) and len(t.extents) > 0)
        if found is None:
            return self.leaf(axes)
        t, at = found
        k = self.rng.randrange(len(at))
        loop, shift = at[k], self.rng.choice([-2, -1, 1, 2])
        moved = f"{loop} - {-shift}" if shift < 0 else f"{loop} + {shift}"
        guard = f"{loop} >= {-shift}" if shift < 0 else f"{loop} < {t.extents[k]} - {shift}"
        form = self.rng.random()
        if form < 0.3:
            guard = f"not ({loop} < {-shift})" if shift < 0 else f"0 <= {loop} < {t.extents[k]} - {shift}"
        text = self.read(t, [*at[:k], moved, *at[k + 1 :]], plain=False)
        known = set(self.covered)
        other = self.rng.choice(["0.0", "1.0", self.leaf(axes)])
        self.covered = known  # a guarded read gives no range
        if form > 0.7 and (t.dtype == self.compute or other in ("0.0", "1.0")):
            return padded(text, other)
        return f"({text} if {guard} else {other})"

    def choice(self, axes: Axes) -> str:
        """A choice by exact data: inputs and literals only."""
        found = self.fitting(
            axes, lambda t: t.is_input and BY_NAME[t.dtype].kind.value in ("float", "signed")
        )
        known = set(self.covered)
        a, b = self.expr(axes, 1), self.leaf(axes)
        self.covered = known
        if found is None:
            return f"max({a}, {b})"
        t, at = found
        t.used = True
        self.covered.update(at)
        bound = (
            self.rng.choice(["0.5", "-0.25", "0.0"])
            if self.is_float(t)
            else self.rng.choice(["1", "0", "-2"])
        )
        return (
            f"({a} if {t.name}[{', '.join(at)}] {self.rng.choice(['<', '>=', '>', '!='])} {bound} else {b})"
        )

    def expr(self, axes: Axes, depth: int) -> str:
        """A moderate number of the compute type over the loops `axes`."""
        if depth <= 0:
            return self.leaf(axes)
        form = self.rng.random()
        if form >= 0.75:
            return self.guarded(axes) if form < 0.9 else self.choice(axes)
        known = set(self.covered)
        a = self.expr(axes, depth - 1)
        if form < 0.05:
            self.covered = known  # the sides of a select give no range
            return f"select({self.expr(axes, depth - 1)} > 100.0, {a} * 0.5, {a})"
        if form < 0.45:
            b = self.expr(axes, depth - 1)
            return self.rng.choice(
                [f"({a} + {b})", f"({a} - {b})", f"tanh({a}) * ({b})", f"max({a}, {b})", f"min({a}, {b})",
                 f"{a} / (1.5 + abs({b}))", f"({a} + {b}) * 0.5"]
            )  # fmt: skip
        return self.rng.choice(
            [f"tanh({a})", f"sigmoid({a})", f"exp(-abs({a}))", f"sqrt(abs({a}) + 0.5)", f"erf({a})",
             f"rsqrt({a} * {a} + 1.0)", f"log(abs({a}) + 1.0)", f"sin({a})", f"cos({a})", f"-({a})",
             f"(abs({a}) + 0.25) ** 1.5", f"(tanh({a})) ** 2", f"abs({a})", f"(0.0 if isnan({a}) else {a})",
             f"log1p(abs({a}))"]
        )  # fmt: skip
