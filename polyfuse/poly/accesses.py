"""What a statement reads and writes, each under its guards: the subjects of the range proofs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    IterDim,
    Read,
    Select,
    Statement,
    children,
    format_index,
)
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds (or, if not `positive`, does not hold) where an access happens."""

    cond: Expr
    positive: bool


@dataclass(frozen=True, slots=True)
class Element:
    """One access; `dims` are the loops around it."""

    tensor: str
    indices: tuple[Index, ...]
    dims: tuple[IterDim, ...]
    guards: tuple[Guard, ...]
    is_write: bool
    span: Span = field(compare=False)

    def __str__(self) -> str:
        return self.named(self.tensor)

    def named(self, tensor: str) -> str:
        """Its text, for a tensor that the program calls so."""
        return f"{tensor}[{', '.join(map(format_index, self.indices))}]"


def outer_dims(s: Statement) -> tuple[IterDim, ...]:
    """The loops that number the elements a statement defines."""
    return s.dims if s.accumulate else tuple(d for d in s.dims if not d.reduce)


def write_of(s: Statement) -> Element:
    return Element(s.target, s.write, outer_dims(s), (), True, s.span)


def reads_of(s: Statement) -> list[Element]:
    """All reads, left to right, those inside data indices included."""
    found = list(_reads(s.expr, s.dims, ()))
    for i in s.write:
        if isinstance(i, EXPR_TYPES):
            found += _reads(i, s.dims, ())
    return found


def _reads(e: Expr, dims: tuple[IterDim, ...], guards: tuple[Guard, ...]) -> Iterator[Element]:
    if isinstance(e, Select):
        yield from _reads(e.cond, dims, guards)
        yield from _reads(e.then, dims, (*guards, Guard(e.cond, True)))
        yield from _reads(e.other, dims, (*guards, Guard(e.cond, False)))
        return
    if isinstance(e, Read):
        yield Element(e.tensor, e.indices, dims, guards, False, e.span)
    for c in children(e):
        yield from _reads(c, dims, guards)
