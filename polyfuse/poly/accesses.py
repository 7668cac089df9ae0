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

    @property
    def by_data(self) -> bool:
        """Do values of tensors tell where it is?"""
        return any(isinstance(i, EXPR_TYPES) for i in self.indices)

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
    return [
        Element(e.tensor, e.indices, s.dims, guards, False, e.span)
        for e, guards in guarded_parts(s)
        if isinstance(e, Read)
    ]


def guarded_parts(s: Statement) -> Iterator[tuple[Expr, tuple[Guard, ...]]]:
    """All expressions in a statement, parents first, each with the guards around it."""
    yield from _parts(s.expr, ())
    for i in s.write:
        if isinstance(i, EXPR_TYPES):
            yield from _parts(i, ())


def _parts(e: Expr, guards: tuple[Guard, ...]) -> Iterator[tuple[Expr, tuple[Guard, ...]]]:
    yield e, guards
    if isinstance(e, Select):
        yield from _parts(e.cond, guards)
        yield from _parts(e.then, (*guards, Guard(e.cond, True)))
        yield from _parts(e.other, (*guards, Guard(e.cond, False)))
        return
    for c in children(e):
        yield from _parts(c, guards)
