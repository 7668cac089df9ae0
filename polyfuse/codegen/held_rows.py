"""Rows of a few vectors that an owner updates, as C++: one of them is in registers while the key is the same.

    key = keys[list[0]];  acc[l] = y[key, l]
    for q in the list:
      if keys[list[q]] != key:             the row goes back, another one comes
        y[key, l] = acc[l];  key = keys[list[q]];  acc[l] = y[key, l]
      acc[l] += ...
    y[key, l] = acc[l]

A processor guesses where keys change.  That is right where each iteration has a key of its own or many have
one, and wrong each time where two to six have: then a row that is short is loaded and stored in each
iteration, although loads wait for stores that they follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.codegen.c_family import Printer
from polyfuse.codegen.row_pieces import WIDTHS, pieces
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.loop_ir import Declare, For, OwnedLoop, Update
from polyfuse.ir.tensor_graph import Index

# Lanes are elements of a row. gcc 12 would have iterations of a run side by side, with gathers: two to six
# times as slow where runs are long.
NOT_VECTORISED = '__asm__ volatile("");'


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A loop of an owner; what its iterations compute before the row, the loop over the row and its update;
    and lines that ask for rows of later iterations."""

    node: OwnedLoop
    row: tuple[list[Declare], For, Update]
    asked: list[str]

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.row[2].value.dtype.bytes

    @property
    def by_key(self) -> tuple[Index, ...]:
        """The indices of the update, where `key` is a variable."""
        node, (_, _, update) = self.node, self.row
        return tuple(IVar(f"{node.loop.var}_key") if i == node.key else i for i in update.indices)

    @property
    def parts(self) -> list[tuple[str, For]]:
        """Arrays that are registers, each with its loop."""
        _, inner, _ = self.row
        return [(f"{self.node.loop.var}_acc{k}", p) for k, p in enumerate(pieces(inner, self.size))]


def held_text(printer: Printer, held: HeldRow, indent: str) -> list[str]:
    """See the module docstring; after the list is there, and `asked` has what it needs."""
    _, inner, _ = held.row
    in_registers = list(_in_registers(printer, held, indent))
    if (trip_of(inner) or 0) * held.size > WIDTHS[0]:
        return in_registers
    e, i1 = held.node.loop.var, indent + "  "
    least, most = FITTED.held_rows_least_guessed, FITTED.held_rows_most_guessed
    return [
        f"{indent}int {e}_changes = 1;",
        f"{indent}for (int l = 1; l < {e}_n; ++l) {e}_changes += {e}_keys[l] != {e}_keys[l - 1];",
        f"{indent}const int {e}_each = 4 * {e}_n / {e}_changes;",
        f"{indent}if ({e}_each >= {least} && {e}_each < {most}) {{",
        *_in_memory(printer, held, i1),
        f"{indent}}} else {{",
        *(f"  {line}" for line in in_registers),
        f"{indent}}}",
    ]


def _in_memory(printer: Printer, held: HeldRow, indent: str) -> Iterator[str]:
    """Each iteration loads and stores its row."""
    e, (before, inner, update) = held.node.loop.var, held.row
    body = tuple(replace(n, indices=held.by_key) if n is update else n for n in inner.body)
    yield f"{indent}for (int q = 0; q < {e}_count; ++q) {{"
    yield from (f"{indent}  {line}" for line in held.asked)
    yield f"{indent}  const pf_i64 {e} = {e}_s + {e}_list[q], {e}_key = {e}_keys[{e}_list[q]];"
    yield from printer.block((*before, *pieces(replace(inner, body=body), held.size)), indent + "  ")
    yield f"{indent}}}"


def _in_registers(printer: Printer, held: HeldRow, indent: str) -> Iterator[str]:
    """A row stays until the key changes."""
    e, (before, _, update) = held.node.loop.var, held.row
    i1, i2, i3 = indent + "  ", indent + "    ", indent + "      "
    yield f"{indent}if ({e}_count) {{"
    for acc, p in held.parts:
        yield f"{i1}{update.value.dtype.c_name} {acc}[{trip_of(p)}];"
    yield f"{i1}pf_i64 {e}_key = {e}_keys[{e}_list[0]];"
    yield from _moved(printer, held, "load", i1)
    yield f"{i1}for (int q = 0; q < {e}_count; ++q) {{"
    yield f"{i2}{NOT_VECTORISED}"
    yield from (f"{i2}{line}" for line in held.asked)
    yield f"{i2}const pf_i64 {e} = {e}_s + {e}_list[q];"
    yield f"{i2}if ({e}_keys[{e}_list[q]] != {e}_key) {{"
    yield from _moved(printer, held, "store", i3)
    yield f"{i3}{e}_key = {e}_keys[{e}_list[q]];"
    yield from _moved(printer, held, "load", i3)
    yield f"{i2}}}"
    yield from printer.block(tuple(before), i2)
    for acc, p in held.parts:
        yield from _updated(printer, held, acc, p, i2)
    yield f"{i1}}}"
    yield from _moved(printer, held, "store", i1)
    yield f"{indent}}}"


def _moved(printer: Printer, held: HeldRow, way: str, indent: str) -> Iterator[str]:
    """The row of the key is loaded, or stored."""
    place = printer.element(printer, held.row[2].buffer, held.by_key)
    for acc, p in held.parts:
        yield from _lanes(printer, held, p, indent)
        yield f"{indent}  {f'{place} = {acc}[l]' if way == 'store' else f'{acc}[l] = {place}'};"
        yield f"{indent}}}"


def _updated(printer: Printer, held: HeldRow, acc: str, piece: For, indent: str) -> Iterator[str]:
    """What an iteration adds to a part of the row."""
    buffer, own = held.row[2].buffer, printer.element

    def element(p: Printer, name: str, indices: tuple[Index, ...]) -> str:
        return f"{acc}[l]" if name == buffer else own(p, name, indices)

    yield from _lanes(printer, held, piece, indent)
    yield from replace(printer, element=element).block(piece.body, indent + "  ")
    yield f"{indent}}}"


def _lanes(printer: Printer, held: HeldRow, piece: For, indent: str) -> Iterator[str]:
    """The head of a loop over a part of a row; of one vector gcc 12 would make scalars."""
    trip = trip_of(piece) or 0
    rolled = " PF_ROLLED" if 4 <= trip <= WIDTHS[0] // held.size else ""
    yield f"{indent}PF_IVDEP{rolled}"
    yield f"{indent}for (int l = 0; l < {trip}; ++l) {{"
    yield f"{indent}  const pf_i64 {piece.var} = {printer.index(piece.lower)} + l;"
