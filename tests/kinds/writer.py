"""What all kinds of random programs are written with: sizes, arguments, results and lines.

An axis is a name of a size, as `N`; the loop over it is the same in small letters, `n`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from targets import Array, Call

from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BY_NAME

HALVES = ("f16", "bf16")
# Zeros of both signs, what is no number, a denormal, the largest of f16, and a small number.
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 65504.0, -1e-6)

Choice = TypeVar("Choice")


def brackets(indices: Iterable[str]) -> str:
    """``[a, b]``, or nothing."""
    text = ", ".join(indices)
    return f"[{text}]" if text else ""


def loops(axes: Iterable[str]) -> list[str]:
    return [axis.lower() for axis in axes]


def over(axes: Iterable[str], **ranges: str) -> str:
    """`` for n in 0..N, m in 0..M``; `ranges` of loops come in place of the whole ones, and after them."""
    whole = {axis.lower(): f"0..{axis}" for axis in axes}
    text = ", ".join(f"{loop} in {r}" for loop, r in {**whole, **ranges}.items())
    return f" for {text}" if text else ""


def compute_type(dtype: str) -> str:
    """What is computed in where elements have this type."""
    return "f32" if dtype in HALVES else dtype


def cast(dtype: str, text: str, given: str) -> str:
    """The text, of type `given`, as another type."""
    return text if dtype == given else f"{dtype}({text})"


@dataclass
class Writer:
    """A program in the making."""

    kind: str
    seed: int
    dice: random.Random = field(init=False)
    numbers: np.random.Generator = field(init=False)
    sizes: dict[str, int] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    functions: str = ""
    absent: list[str] = field(default_factory=list)
    left_out: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.kind} {self.seed}")
        self.left_out = random.Random(f"optional {self.kind} {self.seed}")
        self.numbers = np.random.default_rng(self.seed)

    # --- choices ---

    def pick(self, *choices: Choice) -> Choice:
        return self.dice.choice(choices)

    def chance(self, part: float) -> bool:
        return self.dice.random() < part

    def shuffled(self, names: Iterable[str]) -> list[str]:
        found = list(names)
        self.dice.shuffle(found)
        return found

    def number(self, extent: str) -> int:
        """What an extent like ``2*M + K`` or ``N - 1`` is."""
        return int(eval(extent, {"__builtins__": {}}, dict(self.sizes)))

    # --- the signature ---

    def argument(
        self,
        name: str,
        dtype: str,
        extents: Sequence[str],
        *,
        special: int = 0,
        whole: bool = False,
        values: Array | None = None,
        inout: bool = False,
    ) -> None:
        """A parameter with values of its own: standard normal with some special ones, or integers, small ones
        or any of the `whole` type."""
        self.parameters.append(f"{'inout ' * inout}{name}: {dtype}{brackets(extents)}")
        shape = tuple(map(self.number, extents))
        made = self._drawn(dtype, shape, special, whole) if values is None else values
        self.inputs[name] = np.asarray(made).astype(BY_NAME[dtype].numpy).reshape(shape)

    def _drawn(self, dtype: str, shape: tuple[int, ...], special: int, whole: bool) -> Array:
        kind = BY_NAME[dtype]
        if dtype == "bool":
            return np.asarray(self.numbers.random(shape) < 0.5)
        if not kind.is_float:
            info: Any = np.iinfo(kind.numpy)
            low, high = (info.min, info.max) if whole else (max(info.min, -5), 5)
            return np.asarray(self.numbers.integers(low, high, shape, dtype=kind.numpy, endpoint=True))
        made = np.asarray(self.numbers.normal(size=shape)).astype(kind.numpy)
        for _ in range(special if made.size else 0):
            with np.errstate(over="ignore"):
                made[tuple(self.numbers.integers(0, s) for s in shape)] = self.dice.choice(SPECIAL)
        return made

    def numbers_of(self, dtype: str, *axes: str) -> None:
        """A parameter ``v_n`` for each axis, from which its size follows."""
        for axis in axes:
            self.argument(f"v_{axis.lower()}", dtype, [axis])

    def optional(self, name: str, right: str, axes: Sequence[str], dtype: str) -> str:
        """The value of an element, now and then with a tensor that may be absent: added, a factor, a mask."""
        if not axes or self.left_out.random() >= 0.25:
            return right
        own = [x for x in axes if self.left_out.random() < 0.6] or [axes[-1]]
        element = f"o_{name}{brackets(loops(own))}"
        form = self.left_out.choice(("added", "factor", "mask"))
        kind = "bool" if form == "mask" else self.left_out.choice([dtype, compute_type(dtype)])
        if self.left_out.random() < 0.5:
            self.argument(f"o_{name}", kind, own)
            self.parameters[-1] += "?"
        else:
            self.parameters.append(f"o_{name}: {kind}{brackets(own)}?")
            self.absent.append(f"o_{name}")
        if form == "mask":
            zero = "0.0" if BY_NAME[dtype].is_float else "0"
            return f"({zero} if given(o_{name}) and not {element} else {right})"
        there = f"({right}) {'+' if form == 'added' else '*'} {cast(compute_type(dtype), element, kind)}"
        return f"({there} if given(o_{name}) else {right})"

    def result(self, name: str, dtype: str, extents: Sequence[str]) -> None:
        self.results.append(f"{name}: {dtype}{brackets(extents)}")

    def is_result(self, name: str) -> bool:
        return any(r.startswith(f"{name}:") for r in self.results)

    def need(self, extent: str, least: int = 1) -> None:
        self.conditions.append(f"{extent} >= {least}")

    # --- the body ---

    def define(self, name: str, indices: Sequence[str], right: str, where: str = "") -> None:
        self.lines.append(f"{name}{brackets(indices)} = {right}{where}")

    def call(self) -> Call:
        needed = ", ".join(dict.fromkeys(self.conditions))
        results = f"\n    -> ({', '.join(self.results)})" if self.results else ""
        head = f"op p({', '.join(self.parameters)}){results}"
        body = "".join(f"  {line}\n" for line in self.lines)
        text = f"{self.functions}{head}{' where ' * bool(needed)}{needed} {{\n{body}}}\n"
        graph = instantiate(parse_text(text), "p", absent=self.absent)
        return Call(f"{self.kind}, seed {self.seed}", text, graph, self.sizes, self.inputs)
