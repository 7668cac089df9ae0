"""Loops over what an owner updates (`codegen.transforms.scatter`), as C++: by runs of one key, or row by row.

Rows of several vectors go stretch by stretch, run by run (`owned_text`):

    for e by 1024:                           a stretch of indices
      skip it if its least and its greatest key say that nothing of it is in the share
      keys[..] = their keys;  list[..] = the iterations of the share
      for each run of iterations with one key in the list:
        acc[l] = y[key, f + l]               64 lanes in registers
        for e in the run:  acc[l] += ...     while rows some places further in the list are prefetched
        y[key, f + l] = acc[l]

Rows of as many lanes or less go otherwise (`register_row_text`): where a run ends, it is found while rows are
added, and not before.

What is prefetched: rows that data name (x[src[e], f]); where the list has gaps, rows in the order of e
(x[e, f]), which the hardware would fetch whole, with what other owners need; where the keys of a stretch lie
too far apart for the caches, rows of the result.  Sorted keys have neither gaps nor such stretches.

Sorted keys make most stretches foreign or wholly own, and runs long; any others only make it slower.
Additions to an element keep the order of e: the result does not depend on runs, stretches or owners.
Where indices are checked, each iteration of the list runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.transforms.vector_epilogues import WIDTHS, pieces
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IVar, binary, variables
from polyfuse.ir.loop_ir import Declare, For, Node, OwnedLoop, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read

# --- rows in registers ------------------------------------------------------------------------------------

# Of rows of a few vectors one is in registers while the key is the same.
#
#     key = keys[list[0]];  acc[l] = y[key, l]
#     for q in the list:
#       if keys[list[q]] != key:             the row goes back, another one comes
#         y[key, l] = acc[l];  key = keys[list[q]];  acc[l] = y[key, l]
#       acc[l] += ...
#     y[key, l] = acc[l]
#
# A processor guesses where keys change.  That is right where each iteration has a key of its own or many have
# one, and wrong each time where two to six have: then a row that is short is loaded and stored in each
# iteration, although loads wait for stores that they follow.


# Lanes are elements of a row. gcc 12 would have iterations of a run side by side, with gathers: two to six
# times as slow where runs are long.
NOT_VECTORISED = '__asm__ volatile("");'


@dataclass(frozen=True, slots=True)
class RegisterRow:
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


def register_row_text(printer: Printer, held: RegisterRow, indent: str) -> list[str]:
    """See the head of this section; after the list is there, and `asked` has what it needs."""
    _, inner, _ = held.row
    in_registers = list(_in_registers(printer, held, indent))
    if (trip_of(inner) or 0) * held.size > WIDTHS[0]:
        return in_registers
    e, i1 = held.node.loop.var, indent + "  "
    least, most = FITTED.register_rows_least_guessed, FITTED.register_rows_most_guessed
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


def _in_memory(printer: Printer, held: RegisterRow, indent: str) -> Iterator[str]:
    """Each iteration loads and stores its row."""
    e, (before, inner, update) = held.node.loop.var, held.row
    body = tuple(replace(n, indices=held.by_key) if n is update else n for n in inner.body)
    yield f"{indent}for (int q = 0; q < {e}_count; ++q) {{"
    yield from (f"{indent}  {line}" for line in held.asked)
    yield f"{indent}  const pf_i64 {e} = {e}_s + {e}_list[q], {e}_key = {e}_keys[{e}_list[q]];"
    yield from printer.block((*before, *pieces(replace(inner, body=body), held.size)), indent + "  ")
    yield f"{indent}}}"


def _in_registers(printer: Printer, held: RegisterRow, indent: str) -> Iterator[str]:
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


def _moved(printer: Printer, held: RegisterRow, way: str, indent: str) -> Iterator[str]:
    """The row of the key is loaded, or stored."""
    place = printer.element(printer, held.row[2].buffer, held.by_key)
    for acc, p in held.parts:
        yield from _lanes(printer, held, p, indent)
        yield f"{indent}  {f'{place} = {acc}[l]' if way == 'store' else f'{acc}[l] = {place}'};"
        yield f"{indent}}}"


def _updated(printer: Printer, held: RegisterRow, acc: str, piece: For, indent: str) -> Iterator[str]:
    """What an iteration adds to a part of the row."""
    buffer, own = held.row[2].buffer, printer.element

    def element(p: Printer, name: str, indices: tuple[Index, ...]) -> str:
        return f"{acc}[l]" if name == buffer else own(p, name, indices)

    yield from _lanes(printer, held, piece, indent)
    yield from replace(printer, element=element).block(piece.body, indent + "  ")
    yield f"{indent}}}"


def _lanes(printer: Printer, held: RegisterRow, piece: For, indent: str) -> Iterator[str]:
    """The head of a loop over a part of a row; of one vector gcc 12 would make scalars."""
    trip = trip_of(piece) or 0
    rolled = " PF_ROLLED" if 4 <= trip <= WIDTHS[0] // held.size else ""
    yield f"{indent}PF_IVDEP{rolled}"
    yield f"{indent}for (int l = 0; l < {trip}; ++l) {{"
    yield f"{indent}  const pf_i64 {piece.var} = {printer.index(piece.lower)} + l;"


# --- runs of one key --------------------------------------------------------------------------------------

LINE = Core().line


def owned_text(printer: Printer, node: OwnedLoop, indent: str) -> list[str]:
    """See the module docstring."""
    e = node.loop.var
    low, high = (bare(printer.index(b)) for b in node.share)
    key = bare(printer.data_index(node.key, node.extent))
    i1, i2 = indent + "  ", indent + "    "
    place, stretch = f"const pf_i64 {e} = {e}_s + l, {e}_key = {key};", FITTED.scatter_runs_stretch
    return [
        f"{indent}{{",
        f"{i1}const pf_i64 {e}_e = {printer.index(node.loop.upper)}, {e}_low = {low}, {e}_high = {high};",
        f"{i1}for (pf_i64 {e}_s = {printer.index(node.loop.lower)}; {e}_s < {e}_e; {e}_s += {stretch}) {{",
        f"{i2}const int {e}_n = {e}_e - {e}_s < {stretch} ? (int)({e}_e - {e}_s) : {stretch};",
        f"{i2}pf_i64 {e}_least = {e}_high, {e}_most = -1;",
        f"{i2}for (int l = 0; l < {e}_n; ++l) {{",
        f"{i2}  {place}",
        f"{i2}  {e}_least = {e}_key < {e}_least ? {e}_key : {e}_least;",
        f"{i2}  {e}_most = {e}_key > {e}_most ? {e}_key : {e}_most;",
        f"{i2}}}",
        f"{i2}if ({e}_most < {e}_low || {e}_least >= {e}_high) continue;",
        f"{i2}pf_i64 {e}_keys[{FITTED.scatter_runs_stretch}];",
        f"{i2}int {e}_own[{FITTED.scatter_runs_stretch}], {e}_list[{FITTED.scatter_runs_stretch}];",
        f"{i2}for (int l = 0; l < {e}_n; ++l) {{",
        f"{i2}  {place}",
        f"{i2}  {e}_keys[l] = {e}_key;",
        f"{i2}  {e}_own[l] = ({e}_key >= {e}_low) & ({e}_key < {e}_high);",
        f"{i2}}}",
        f"{i2}const int {e}_count = {printer.call('pf_listed', [f'{e}_own', f'{e}_n', f'{e}_list'])};",
        *_listed(printer, node, i2),
        f"{i1}}}",
        f"{indent}}}",
    ]


def _listed(printer: Printer, node: OwnedLoop, indent: str) -> list[str]:
    """What runs over the list."""
    e = node.loop.var
    row = _row(node)
    if row is None or printer.lazy:
        return [
            f"{indent}for (int q = 0; q < {e}_count; ++q) {{",
            f"{indent}  const pf_i64 {e} = {e}_s + {e}_list[q];",
            *printer.block(node.loop.body, indent + "  "),
            f"{indent}}}",
        ]
    _, inner, update = row
    length, until = trip_of(inner), _until(printer, node, inner, indent)
    if length is None:
        return [*until, *_open_runs(printer, node, row, indent)]
    if length * update.value.dtype.bytes <= FITTED.scatter_runs_held_bytes:
        asked = [line for r in node.ahead for line in _prefetches(printer, node, inner, r, "q", "")]
        return [*until, *register_row_text(printer, RegisterRow(node, row, asked), indent)]
    i1, i2 = indent + "  ", indent + "    "
    lines = [
        *until,
        f"{indent}for (int {e}_k = 0, {e}_next; {e}_k < {e}_count; {e}_k = {e}_next) {{",
        f"{i1}const pf_i64 {e} = {e}_s + {e}_list[{e}_k], {e}_key = {e}_keys[{e}_list[{e}_k]];",
        f"{i1}for ({e}_next = {e}_k + 1; {e}_next < {e}_count; ++{e}_next)",
        f"{i2}if ({e}_keys[{e}_list[{e}_next]] != {e}_key) break;",
        *_before_run(printer, node, inner, i1),
    ]
    lanes = FITTED.scatter_runs_lane_bytes // update.value.dtype.bytes
    assert isinstance(inner.lower, IConst)  # `_row` asked
    low = inner.lower.value
    whole = length // lanes
    if whole > 1:
        lines.append(
            f"{i1}for (pf_i64 {inner.var}_s = {low}; "
            f"{inner.var}_s < {low + whole * lanes}; {inner.var}_s += {lanes}) {{"
        )
        lines += [*_strip(printer, node, row, f"{inner.var}_s", lanes, i2, True), f"{i1}}}"]
    elif whole == 1:
        lines += _strip(printer, node, row, str(low), lanes, i1, True)
    rest = length - whole * lanes
    if rest:
        start = str(low + whole * lanes)
        lines += _strip(printer, node, row, start, rest, i1, not whole)
    return [*lines, f"{indent}}}"]


def _open_runs(
    printer: Printer, node: OwnedLoop, row: tuple[list[Declare], For, Update], indent: str
) -> list[str]:
    """The same where the length of a row is open: strips, and what is left.  Where a run ends is found while
    its first strip is added, which a processor guesses wrongly once."""
    _, inner, update = row
    lanes = FITTED.scatter_runs_lane_bytes // update.value.dtype.bytes
    e, f, i1, i2 = node.loop.var, inner.var, indent + "  ", indent + "    "
    at, end, rest = f"{f}_s", bare(printer.index(inner.upper)), f"{f}_n"
    return [
        f"{indent}for (int {e}_k = 0, {e}_next; {e}_k < {e}_count; {e}_k = {e}_next) {{",
        f"{i1}const pf_i64 {e} = {e}_s + {e}_list[{e}_k], {e}_key = {e}_keys[{e}_list[{e}_k]];",
        f"{i1}{e}_next = {e}_count;",
        *_before_run(printer, node, inner, i1),
        f"{i1}pf_i64 {at} = {printer.index(inner.lower)};",
        f"{i1}for (; {at} + {lanes} <= {end}; {at} += {lanes}) {{",
        *_strip(printer, node, row, at, lanes, i2, True),
        f"{i1}}}",
        f"{i1}if ({at} < {end}) {{",
        f"{i2}const int {rest} = (int)({end} - {at});",
        *_strip(printer, node, row, at, lanes, i2, True, rest),
        f"{i1}}}",
        f"{indent}}}",
    ]


def _row(node: OwnedLoop) -> tuple[list[Declare], For, Update] | None:
    """What an iteration computes before its row, the loop over the row, and its update of the row; None if
    the body is not of this form."""
    *before, inner = node.loop.body
    if not isinstance(inner, For) or inner.coordinate is not Coordinate.VECTOR or inner.lanes:
        return None
    declared = [n for n in before if isinstance(n, Declare) and not n.count]
    updates = [n for n in inner.body if isinstance(n, Update) and n.buffer == node.update]
    if len(declared) < len(before) or len(updates) != 1 or not _plain(inner.body):
        return None
    (update,) = updates
    fits = isinstance(inner.lower, IConst) and not variables(inner.upper) and inner.step == 1
    rest = [i for i in update.indices if not isinstance(i, EXPR_TYPES)]
    return (declared, inner, update) if fits and IVar(inner.var) in rest else None


def _plain(body: tuple[Node, ...]) -> bool:
    return all(isinstance(n, (Declare, Update)) for n in body)


def _strip(
    printer: Printer,
    node: OwnedLoop,
    row: tuple[list[Declare], For, Update],
    start: str,
    lanes: int,
    indent: str,
    ahead: bool,
    used: str = "",
) -> list[str]:
    """`lanes` elements of a row from `start` on, or so many of them as are `used`, over a run; `ahead`: are
    rows asked for?"""
    before, inner, update = row
    count = used or str(lanes)
    e, f = node.loop.var, inner.var
    acc = f"{e}_acc"
    i1, i2, i3 = indent + "  ", indent + "    ", indent + "      "
    place = printer.element(printer, update.buffer, update.indices)
    own = printer.element
    loop, after = f"for (int q = {e}_k; q < {e}_next; ++q) {{", list[str]()
    if trip_of(inner) is None:
        loop = f"int q = {e}_k; for (; q < {e}_next && {e}_keys[{e}_list[q]] == {e}_key; ++q) {{"
        after = [f"{i1}{e}_next = q;"]

    def element(p: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
        return f"{acc}[l]" if buffer == update.buffer else own(p, buffer, indices)

    inside = replace(printer, element=element)
    lane = f"for (int l = 0; l < {count}; ++l) {{ const pf_i64 {f} = {start} + l;"
    return [
        f"{indent}{{",
        f"{i1}{update.value.dtype.c_name} {acc}[{lanes}];",
        f"{i1}PF_IVDEP",
        f"{i1}{lane} {acc}[l] = {place}; }}",
        f"{i1}{loop}",
        f"{i2}{NOT_VECTORISED}",
        *(_ahead(printer, node, inner, start, i2) if ahead else []),
        f"{i2}const pf_i64 {e} = {e}_s + {e}_list[q];",
        *printer.block(tuple(before), i2),
        f"{i2}PF_IVDEP",
        f"{i2}for (int l = 0; l < {count}; ++l) {{",
        f"{i3}const pf_i64 {f} = {start} + l;",
        *inside.block(inner.body, i3),
        f"{i2}}}",
        f"{i1}}}",
        *after,
        f"{i1}PF_IVDEP",
        f"{i1}{lane} {place} = {acc}[l]; }}",
        f"{indent}}}",
    ]


def _until(printer: Printer, node: OwnedLoop, inner: For, indent: str) -> list[str]:
    """How much of the list is prefetched, by the kind of rows: all or nothing of it, in each stretch; and how
    far ahead, where that is open."""
    e, length = node.loop.var, _length(printer, inner)
    kinds = {_kind(node, r) for r in node.ahead}
    lines = []
    if "gaps" in kinds:
        lines.append(f"{indent}const int {e}_gaps = {e}_count < {e}_n ? {e}_count : 0;")
    if "far" in kinds:
        (own,) = {r for r in node.ahead if r.tensor == node.update}
        rows = _rows_of(FITTED.owner_computes_least_ahead_bytes, length, own.dtype.bytes)
        lines.append(f"{indent}const int {e}_far = {e}_most - {e}_least > {rows} ? {e}_count : 0;")
    if not isinstance(length, int):
        for size in sorted({r.dtype.bytes for r in node.ahead}):
            rows = _rows_of(FITTED.scatter_runs_ahead_bytes, length, size)
            most = printer.call("pf_min_i64", [str(FITTED.scatter_runs_ahead), rows])
            lines.append(f"{indent}const pf_i64 {e}_rows{size} = {printer.call('pf_max_i64', ['1', most])};")
    return lines


def _rows_of(room: int, length: int | str, size: int) -> str:
    """How many rows of so many elements have room."""
    return str(room // max(1, length * size)) if isinstance(length, int) else f"{room} / ({length} * {size})"


def _before_run(printer: Printer, node: OwnedLoop, inner: For, indent: str) -> list[str]:
    """What is prefetched once in a run, so that long ones do not look for it: these are of sorted keys.
    Where rows are open it is not known yet where the run ends."""
    e = node.loop.var
    lines: list[str] = []
    for r in node.ahead:
        if _kind(node, r) == "far":
            lines += _prefetches(printer, node, inner, r, f"{e}_k", indent)
        elif _kind(node, r) == "gaps" and trip_of(inner) is not None:
            lines.append(f"{indent}if ({e}_gaps) for (int q = {e}_k; q < {e}_next; ++q) {{")
            lines += [*_prefetches(printer, node, inner, r, "q", indent + "  "), f"{indent}}}"]
    return lines


def _kind(node: OwnedLoop, r: Read) -> str:
    """The suffix of the variable that says how much of the list is prefetched."""
    if r.tensor == node.update:
        return "far"
    return "count" if any(isinstance(i, EXPR_TYPES) for i in r.indices) else "gaps"


def _length(printer: Printer, inner: For) -> int | str:
    """The elements of a row, an expression where that is open."""
    trip = trip_of(inner)
    return printer.index(binary("-", inner.upper, inner.lower)) if trip is None else trip


def _ahead(printer: Printer, node: OwnedLoop, inner: For, start: str, indent: str) -> list[str]:
    """Ask for rows that data name, where rows are open for all; in the first of several strips only."""
    first = "" if start.isdigit() else f"{start} == {bare(printer.index(inner.lower))} && "
    kinds = ("count", "gaps") if trip_of(inner) is None else ("count",)
    named = [r for r in node.ahead if _kind(node, r) in kinds]
    return [line for r in named for line in _prefetches(printer, node, inner, r, "q", indent, first)]


def _prefetches(
    printer: Printer, node: OwnedLoop, inner: For, r: Read, q: str, indent: str, first: str = ""
) -> list[str]:
    """Ask for the row that the list needs some iterations after `q`."""
    e, f = node.loop.var, inner.var
    assert isinstance(inner.lower, IConst)  # `_row` asked
    low, length = inner.lower.value, _length(printer, inner)
    each = LINE // r.dtype.bytes
    some = low + FITTED.scatter_runs_row_lines * each
    if isinstance(length, int):
        room = FITTED.scatter_runs_ahead_bytes // max(1, length * r.dtype.bytes)
        rows, end = str(max(1, min(FITTED.scatter_runs_ahead, room))), str(min(low + length, some))
    else:
        rows = f"{e}_rows{r.dtype.bytes}"
        end = printer.call("pf_min_i64", [printer.index(inner.upper), str(some)])
    what = printer.element(printer, r.tensor, r.indices)
    printer.made.add(("prefetch lines", r.tensor))
    return [
        f"{indent}if ({first}{q} + {rows} < {e}_{_kind(node, r)}) {{",
        f"{indent}  const pf_i64 {e} = {e}_s + {e}_list[{q} + {rows}];",
        f"{indent}  for (pf_i64 {f} = {low}; {f} < {end}; {f} += {each}) __builtin_prefetch(&{what});",
        f"{indent}}}",
    ]
