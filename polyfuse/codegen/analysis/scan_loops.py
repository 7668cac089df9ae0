"""Loops that scan: each step adds a term to the total of those before (`ir.loop_ir.For.scan`)."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.codegen.math.vector_reduce import DTYPES, SCANS
from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.ir.loop_ir import Block, Comment, Declare, For, Store, map_values, values_of
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, reads

_REDUCTIONS = {COMBINES[op]: op for op in SCANS}


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop that scans: `before` are scalars of its terms, `total` is the scalar of each step with its own
    `term`, and `after` what is made of it."""

    loop: For
    before: Block
    total: Declare
    term: Expr
    op: str
    after: Block

    @property
    def dtype(self) -> DType:
        """The type of a lane."""
        return self.term.dtype

    @property
    def narrow(self) -> Block | None:
        """What is made of totals in a wider type, if all of it is of their values in the type of a lane."""
        if self.total.dtype is self.dtype:
            return None
        names = self._names
        after = tuple(n for n in self.after if not (isinstance(n, Declare) and n.name in names))
        value = Read(self.total.name, (), self.dtype)

        def narrowed(e: Expr) -> Expr:
            return value if isinstance(e, Cast) and e.dtype is self.dtype and _is(e.arg, names) else e

        made = map_values(after, narrowed, lambda i: i)
        wide = (r for v in values_of(made) for r in reads(v) if r.tensor in names and r.dtype != self.dtype)
        return None if any(wide) else made

    @property
    def _names(self) -> set[str]:
        """Of the total of a step."""
        return _names_of(self.total, self.after)


def scan_of(loop: For) -> Scan | None:
    """The loop as one that scans; None where steps are more than a term added to a total."""
    if (
        not loop.scan
        or loop.step != 1
        or not all(isinstance(n, Declare | Store | Comment) for n in loop.body)
    ):
        return None
    if any(isinstance(n, Declare) and n.count for n in loop.body):
        return None
    totals = [(k, n) for k, n in enumerate(loop.body) if isinstance(n, Declare) and _asks(n.value, loop.scan)]
    last = loop.body[-1]
    if len(totals) != 1 or not isinstance(last, Store) or last.buffer != loop.scan:
        return None
    ((at, total),) = totals
    value = total.value
    if not isinstance(value, Apply) or value.op not in _REDUCTIONS or len(value.args) != 2:
        return None
    states = [a for a in value.args if isinstance(a, Read) and a.tensor == loop.scan]
    terms = [a for a in value.args if not _asks(a, loop.scan)]
    before, after = loop.body[:at], loop.body[at + 1 : -1]
    if len(states) != 1 or len(terms) != 1 or not _is_last(last, total, after) or not _apart(loop):
        return None
    if not all(isinstance(n, Declare | Comment) for n in before):
        return None
    term = terms[0]
    if isinstance(term, Cast) and term.dtype is F64 and term.arg.dtype is F32:
        term = term.arg
    if term.dtype not in DTYPES:
        return None
    return Scan(loop, before, total, term, _REDUCTIONS[value.op], after)


def _asks(e: Expr | None, scalar: str) -> bool:
    return e is not None and any(r.tensor == scalar for r in reads(e))


def _is_last(last: Store, total: Declare, after: Block) -> bool:
    """Is what a step leaves its total?"""
    names = _names_of(total, after)
    others = (n for n in after if isinstance(n, Store))
    return _is(last.value, names) and all(n.buffer != last.buffer and n.indices for n in others)


def _names_of(total: Declare, after: Block) -> set[str]:
    names = {total.name}
    return names | {n.name for n in after if isinstance(n, Declare) and _is(n.value, names)}


def _is(e: Expr | None, names: set[str]) -> bool:
    return isinstance(e, Read) and not e.indices and e.tensor in names


def _apart(loop: For) -> bool:
    """Does no step read memory that steps write?"""
    written = {n.buffer for n in loop.body if isinstance(n, Store) and n.indices}
    return not any(r.tensor in written for v in values_of(loop.body) for r in reads(v))
