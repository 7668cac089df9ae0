"""What names mean before a program says anything: functions, reductions, dtypes; and fresh names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence

from polyfuse.frontend_dsl import ast
from polyfuse.frontend_dsl.foreign import dtype_hint, function_hint, is_dtype_like
from polyfuse.ir.dtypes import ALL, BY_NAME
from polyfuse.ir.ops import COMBINES, OPS, Takes

_CALLED = {o.name: o for o in OPS.values() if o.called}

FLOAT_FUNCTIONS = frozenset(name for name, o in _CALLED.items() if o.takes is Takes.FLOATS)
"""Functions of floating-point operands."""

_MANY = 1 << 30  # as many as an expression may be high

FUNCTIONS: dict[str, tuple[int, int]] = {
    **{name: (o.arity, _MANY if o.many else o.arity) for name, o in _CALLED.items()},
    "select": (3, 3),
}
"""Scalar functions: the least and the greatest number of arguments."""

OLD = "old"
"""`old(m[i])` reads an inout parameter as it is at entry, and says so."""

CONSTANTS = {"inf": math.inf, "nan": math.nan, "pi": math.pi}
"""Names of numbers, where nothing else in the operator is called so; floats of the type they stand beside."""

REDUCTIONS = (*COMBINES, "mean", "argmax", "argmin")

GENERIC_KINDS = {
    "float": tuple(t for t in ALL if t.is_float),
    "int": tuple(t for t in ALL if t.is_integer),
}
"""What `F: kind` may stand for."""

MAX_AXES = 64
"""Axes of a tensor and index variables of a statement: what arrays of NumPy have."""

MAX_CALL_DEPTH = 24
MAX_STATEMENTS = 10_000
"""Limits on inlining: operators inside operators, and statements of one graph."""


def is_builtin(name: str) -> bool:
    """Whether `name(...)` is a scalar function, a cast or `old`."""
    return name in FUNCTIONS or name in BY_NAME or name == OLD


def representative(kind: str) -> str:
    """The dtype a generic stands for when an operator is checked without arguments."""
    return "i32" if kind == "int" else "f32"


def axes(count: int) -> str:
    """`1 axis`, `2 axes`."""
    return f"{count} {'axis' if count == 1 else 'axes'}"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known name, or None."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else None


def function_meant(name: str, arguments: Sequence[str], others: Iterable[str] = ()) -> str | None:
    """A hint for a function that there is not: what a known one of another library is here, or the
    one that takes as many arguments and is spelled alike but for a letter or two. `others` are such names."""
    known = function_hint(name, arguments)
    if known is not None:
        return known
    count = len(arguments)
    if name.lower() != name:  # capitals are no other letters
        return function_meant(name.lower(), arguments, others) or _same(name, (*FUNCTIONS, *BY_NAME))
    fitting = {f for f, (low, high) in FUNCTIONS.items() if low <= count <= high}
    fitting |= set(BY_NAME) if count == 1 and not is_dtype_like(name) else set()
    return did_you_mean(name, [f for f in (*fitting, *others) if slips(name, f) <= 1 + (len(name) > 5)])


def dtype_meant(name: str, generics: Iterable[str] = ()) -> str:
    """A hint for a dtype that there is not: u32 and c64 are known elsewhere, f23 is a slip."""
    known = dtype_hint(name)
    if known is not None:
        return known
    if name.lower() != name and (meant := dtype_hint(name.lower()) or _same(name, BY_NAME)):
        return meant
    near = [t for t in (*BY_NAME, *generics) if not is_dtype_like(name) or sorted(t) == sorted(name)]
    return did_you_mean(name, near) or f"dtypes are {', '.join(BY_NAME)}"


def _same(name: str, known: Iterable[str]) -> str | None:
    """What is spelled so but for capitals."""
    return f"did you mean '{name.lower()}'?" if name.lower() in known else None


def slips(a: str, b: str) -> int:
    """How many letters are wrong, missing, too many or in the place of their neighbour."""
    before, row = list[int](), list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, last, row = row, before, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


class Namer:
    """Hands out names that are not taken; the first request for a free name gets it as it is."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, base: str, first: int = 2, joint: str = "_") -> str:
        """`base`, or else the first free one of base_2, base_3, ..."""
        name = base
        number = self._next.get(base, first)
        while name in self._taken:
            name = f"{base}{joint}{number}"
            number += 1
        self._next[base] = number
        self._taken.add(name)
        return name


class Library:
    """The operators that calls can reach: those of the calling file first, then the others in order."""

    def __init__(self, programs: Iterable[ast.Program]) -> None:
        self.programs = tuple(programs)
        self._tables: dict[int, dict[str, ast.OpDef]] = {}
        self.too_large: set[int] = set()  # ids of operators that are beyond MAX_STATEMENTS
        for p in self.programs:
            self._tables[id(p)] = {}
            for op in p.ops:
                self._tables[id(p)].setdefault(op.name, op)

    def find(self, name: str, home: ast.Program) -> tuple[ast.OpDef, ast.Program] | None:
        for p in (home, *self.programs):
            op = self._tables[id(p)].get(name)
            if op is not None:
                return op, p
        return None

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.name for p in self.programs for op in p.ops))
