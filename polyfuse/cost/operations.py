"""What statements compute: operations, weighted by what they take of a processor's lanes.

A weight of 1 is an addition, a multiplication or a fused pair in single precision.  On a GPU a special
function takes one of the 16 units per multiprocessor that 128 lanes share, and a few operations around it;
on a CPU it is a polynomial (`codegen.math.prelude`), and a division takes its unit for so many cycles.
What does not depend on a loop is counted outside of it, and equal expressions in a nest once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

from polyfuse.cost.extents import Extents
from polyfuse.ir.index_expr import variables
from polyfuse.ir.ops import OPS
from polyfuse.ir.powers import exponent, has_root, multiplications
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    IndexValue,
    Read,
    Select,
    Statement,
    children,
    walk,
)

Machine = Literal["cpu", "gpu"]

_SPECIAL: dict[Machine, dict[str, float]] = {
    "gpu": {o.name: o.gpu for o in OPS.values() if o.is_special},
    "cpu": {o.name: o.cpu for o in OPS.values() if o.is_special},
}
# They let NaN through, which takes more than one instruction.
_TWO_SIDED = ("max", "min")
# Double precision takes two lanes of a CPU's vectors; of GPUs it is the data-centre ones' half rate.
_DOUBLE = 2.0


@dataclass(frozen=True, slots=True)
class Operations:
    """plain: additions and the like; special: functions and divisions; weighted: both in lanes."""

    plain: float = 0.0
    special: float = 0.0
    weighted: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.plain + other.plain, self.special + other.special, self.weighted + other.weighted
        )


def operations(nest: Iterable[tuple[Statement, Extents]], machine: Machine) -> Operations:
    """Of all instances of the statements of one nest."""
    seen: set[tuple[Expr, float]] = set()
    total = Operations()
    for s, found in nest:
        dims: dict[int, frozenset[str]] = {}
        for e in _expressions(s):
            times = prod(found[n].length for n in _dims(e, dims) if n in found)
            if (e, times) not in seen:
                seen.add((e, times))
                total += _scaled(e, times, machine)
        if s.reduction is not None:
            each = prod(x.length for x in found.values())
            total += Operations(each, 0, each * _width(s.expr))
    return total


def counts(nest: Iterable[tuple[Statement, Extents]]) -> dict[str, float]:
    """How often a nest computes what takes a CPU as long: "plain", or a function by its name; lanes of single
    precision, of which a double takes two."""
    seen: set[tuple[Expr, float]] = set()
    found: dict[str, float] = {}

    def add(kind: str, times: float) -> None:
        found[kind] = found.get(kind, 0.0) + times

    for s, extents in nest:
        dims: dict[int, frozenset[str]] = {}
        for e in _expressions(s):
            times = prod(extents[n].length for n in _dims(e, dims) if n in extents)
            if (e, times) in seen:
                continue
            seen.add((e, times))
            plain, special, _ = _of(e, "cpu")
            if (n := exponent(e)) is not None:
                add("plain", times * plain * _width(e))
                for kind in _units(n):
                    add(kind, times * _width(e))
            elif special or (isinstance(e, Apply) and e.op in _TWO_SIDED):
                assert isinstance(e, Apply)
                add("max" if e.op == "min" else e.op, times * _width(e))
            elif plain:
                add("plain", times * _width(e))
        if s.reduction is not None:
            kind = "max" if s.reduction in _TWO_SIDED else "plain"
            add(kind, prod(x.length for x in extents.values()) * _width(s.expr))
    return found


def cpu_weight(kind: str) -> float:
    """What a function takes of a CPU's lanes, where nobody has measured it."""
    return _SPECIAL["cpu"].get(kind, 1.0)


def weight_of(e: Expr) -> float:
    """What one node of an expression takes of a CPU's lanes."""
    return _of(e, "cpu")[2] * _width(e)


def _expressions(s: Statement) -> Iterable[Expr]:
    yield from walk(s.expr)
    for i in s.write:
        if isinstance(i, EXPR_TYPES):
            yield from walk(i)


def _dims(e: Expr, known: dict[int, frozenset[str]]) -> frozenset[str]:
    """Dims that a value depends on; `known` has those of parts of one statement, by identity."""
    if id(e) not in known:
        own: set[str] = set()
        if isinstance(e, IndexValue):
            own.update(variables(e.index))
        elif isinstance(e, Read):
            own.update(v for i in e.indices if not isinstance(i, EXPR_TYPES) for v in variables(i))
        known[id(e)] = frozenset(own.union(*(_dims(x, known) for x in children(e))))
    return known[id(e)]


def _width(e: Expr) -> float:
    return _DOUBLE if str(e.dtype) == "f64" else 1.0


def _scaled(e: Expr, times: float, machine: Machine) -> Operations:
    plain, special, weight = _of(e, machine)
    return Operations(plain * times, special * times, weight * times * _width(e))


def _units(n: float) -> list[str]:
    """What a power that is a product or a root takes besides products."""
    return (["sqrt"] if has_root(n) else []) + (["div"] if n < 0 else [])


def _of(e: Expr, machine: Machine) -> tuple[float, float, float]:
    """(plain, special, weight) of one node."""
    match e:
        case Apply("pow") if (n := exponent(e)) is not None:
            kinds = _units(n)
            plain = multiplications(n)
            return plain, len(kinds), plain + sum(_SPECIAL[machine][kind] for kind in kinds)
        case Apply("div", (_, Const(value))) if value and math.frexp(abs(value))[0] == 0.5:
            return 1, 0, 1  # by a power of two: a multiplication
        case Apply(op, _) if op in _SPECIAL[machine]:
            return 0, 1, _SPECIAL[machine][op]
        case Apply() | Select():
            return 1, 0, 1
        case Cast(arg, dtype) if arg.dtype != dtype and not isinstance(arg, Const):
            return 1, 0, 1
        case _:
            return 0, 0, 0
