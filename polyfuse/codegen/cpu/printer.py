"""What passes have made for registers, as C++: register tiles, batches of rows, transposed tiles.

`tile_text` prints a register tile, `rows_text` and `sums_text` loops of a batch of rows, `transposed_text` a
tile that is transposed in registers.

Accumulators of a register tile are vectors of the machine, one or more for each row.

gcc and clang keep an array of vectors in registers where every index is known once loops of fixed length
are unrolled; the width of vectors is the prelude's PF_VECTOR, so one text serves all machines.  Where they
do not fill a row the last one begins earlier, and computes some lanes again.

Short loops over what is summed (the window of a convolution) are written out: a core that another thread
shares begins few instructions in a cycle, and those of such loops are a quarter.  gcc 12 would load the
right factor again for each row of several steps, or keep elements of the left one for later steps, in
registers that sums have need of; so each sum is a value of its own after each step, before later loads
(PF_HELD).  Other loops stay loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import assert_never

from polyfuse.codegen.analysis.accesses import LINE
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.analysis.row_batch import ROW, of_all
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.math.vector_reduce import join_name, part_name
from polyfuse.codegen.transforms.transpose_loads import is_short, place_and_steps
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IndexExpr, IndexLike, IVar, binary, substitute
from polyfuse.ir.linear import Range, interval, linear
from polyfuse.ir.loop_ir import For, RegisterTile, TransposedTile, Update
from polyfuse.ir.tensor_graph import EXPR_TYPES, Read

# --- register tiles ---------------------------------------------------------------------------------------

_UNROLL = '_Pragma("GCC unroll 32")'
# Bytes of a vector at most; the prelude says how many the machine has.
WIDEST = 64


def tile_text(
    printer: Printer, node: RegisterTile, indent: str, gathered: bool, ranges: Mapping[str, Range]
) -> list[str]:
    """The statements of a tile; `gathered` lanes of the right operand are apart in memory, `ranges` are those
    of open sizes."""
    name, c = scalar_name(node.name), node.dtype.c_name
    (row, first_row), (lane, first_lane) = node.start
    first = _has_first_part(node, ranges)
    lines = [
        f"{indent}const pf_i64 {row} = {bare(printer.index(first_row))};",
        f"{indent}const pf_i64 {lane} = {bare(printer.index(first_lane))};",
        f"{indent}{c} {name}[{node.rows * node.lanes}]{' = {}' if node.parts and not first else ''};",
        f"{indent}{{",
    ]
    if node.ends == (None, None):
        return [*lines, *_sums(printer, node, _Part(node.rows, node.lanes, gathered), indent), f"{indent}}}"]
    part = _Part(node.rows, node.lanes, gathered, first)
    return [*lines, *_parts(printer, node, part, indent + "  "), f"{indent}}}"]


@dataclass(frozen=True, slots=True)
class _Part:
    """So many rows and lanes of a tile, from the first ones on; `ends`: the last of them may not exist.
    first: what is summed has one part at least, so that a tile need not begin with 0."""

    rows: int
    lanes: int
    gathered: bool
    first: bool = False
    ends: bool = False


def _parts(printer: Printer, node: RegisterTile, part: _Part, indent: str) -> list[str]:
    """A tile of which fewer rows and lanes may be used: all of it, or the smallest part that has them."""
    name, sides = scalar_name(node.name), (("rows", node.rows), ("lanes", node.lanes))
    lines, whole = [], []
    for (what, count), (first, _), end in zip(sides, node.start, node.ends, strict=True):
        if end is not None:
            lines.append(f"{indent}const pf_i64 {name}_{what} = {printer.index(end)} - {first};")
            whole.append(f"{name}_{what} >= {count}")
    lines.append(f"{indent}if ({' && '.join(whole)}) {{")
    lines += _sums(printer, node, part, indent)
    rows = _fewer(node.rows, 1) if node.ends[0] is not None else [node.rows]
    lanes = _fewer(node.lanes, WIDEST // node.dtype.bytes) if node.ends[1] is not None else [node.lanes]
    for n in lanes:
        for r in rows:
            found = [
                *([f"{name}_rows <= {r}"] * (r < node.rows)),
                *([f"{name}_lanes <= {n}"] * (n < node.lanes)),
            ]
            condition = f"if ({' && '.join(found)}) " if found else ""
            lines.append(f"{indent}}} else {condition}{{")
            lines += _sums(printer, node, replace(part, rows=r, lanes=n, ends=True), indent)
    return [*lines, f"{indent}}}"]


def _fewer(count: int, unit: int) -> list[int]:
    """Rows or lanes of smaller and smaller parts, the smallest first: each has half of the one after it, in
    units."""
    found = [count]
    while found[0] > 2 * unit or found[0] == 2 * unit > 2:
        found.insert(0, -(-found[0] // 2 // unit) * unit)
    return found


def _sums(printer: Printer, node: RegisterTile, part: _Part, indent: str) -> list[str]:
    """The loops of a part of a tile."""
    name, c = scalar_name(node.name), node.dtype.c_name
    size, i1 = part.lanes * node.dtype.bytes, indent + "  "
    widest = min(WIDEST, 1 << size.bit_length() - 1)
    lines = [
        f"{i1}enum {{ {name}_bytes = {widest} < PF_VECTOR ? {widest} : PF_VECTOR,"
        f" {name}_vectors = ({size} + {name}_bytes - 1) / {name}_bytes,"
        f" {name}_last = {part.lanes} - {name}_bytes / {node.dtype.bytes} }};",
        f"{i1}typedef {c} {name}_vector __attribute__((vector_size({name}_bytes)));",
        f"{i1}typedef {c} {name}_memory"
        f" __attribute__((vector_size({name}_bytes), aligned({node.dtype.bytes}), may_alias));",
    ]
    loops = [
        f"for (pf_i64 {x.var} = {printer.index(x.lower)}; {x.var} < {printer.index(x.upper)}; ++{x.var}) {{"
        for x in node.loops
    ]
    i2 = indent + "  " * (1 + len(loops))
    each = f"{_UNROLL} for (int v = 0; v < {name}_vectors; ++v)"
    summed = [f"{name}_vector {name}_acc[{part.rows}][{name}_vectors] = {{}};"]
    rows = f"{_UNROLL} for (int k = 0; k < {part.rows}; ++k)"
    place = f"*(({name}_memory*)({name} + {node.lanes} * k + {_offset(node)}))"
    stores = [rows, f"  {each} {place} = {name}_acc[k][v];"]
    if node.parts:  # what two vectors have is added once
        loop = node.loops[0]
        first = [f"if ({loop.var} > {printer.index(loop.lower)})"] * part.first
        stores = [*first, rows, f"  {each} {name}_acc[k][v] += {place};", *stores]
    short = 0 if part.gathered else _short(node)
    marks = ["PF_ROLLED"] * (len(loops) - node.parts - short) + ["PF_UNROLLED"] * short
    marked = [f"{mark} {x}" for mark, x in zip(marks, loops[node.parts :], strict=True)]
    for k, text in enumerate([*loops[: node.parts], *summed, *marked]):
        lines.append(indent + "  " * (1 + k - (k > node.parts)) + text)
    lines += _right(printer, node, part, i2 + "  ")
    for k in range(part.rows):
        left = printer.expr(_at(node.left, node.row, _place(node, part, 0, k)))
        added = _added(printer, node, name, k)
        added = f"{{ {added} PF_HELD({name}_acc[{k}][v]); }}" if short else added
        lines.append(f"{i2}  {{ const {c} q = {left}; {each} {added} }}")
    ends = [indent + "  " * (len(loops) - k) + "}" for k in range(len(loops))]
    inner = len(loops) - node.parts
    return [*lines, *ends[:inner], *[indent + "  " * (1 + node.parts) + x for x in stores], *ends[inner:]]


def _has_first_part(node: RegisterTile, ranges: Mapping[str, Range]) -> bool:
    """Has what a tile of open sizes sums one part at least?"""
    if node.ends == (None, None) or node.parts != 1:
        return False
    count = interval(node.loops[0].upper - node.loops[0].lower, ranges)
    return count is not None and count[0] >= 1


def _place(node: RegisterTile, part: _Part, side: int, k: IndexLike) -> IndexExpr:
    """Which row or lane is the one of this number in a tile: the last of those that are used, at most."""
    (first, _), end = node.start[side], node.ends[side]
    place = binary("+", IVar(first), k)
    if not part.ends or end is None or node.held[side]:
        return place
    return binary("min", place, binary("-", end, 1))


def _short(node: RegisterTile) -> int:
    """How many of the innermost loops over what is summed are written out."""
    trips = [trip_of(x) or FITTED.register_tiling_most_steps + 1 for x in node.loops[node.parts :]]
    return sum(prod(trips[k:]) <= FITTED.register_tiling_most_steps for k in range(len(trips)))


def _added(printer: Printer, node: RegisterTile, name: str, row: int) -> str:
    """What a step adds to a vector of a row; its element of the left factor is `q`."""
    total, right = f"{name}_acc[{row}][v]", f"{name}_right[v]"
    match node.term:
        case "product":
            return f"{total} += q * {right};"
        case "difference":
            return f"{{ const {name}_vector d = q - {right}; {total} += d * d; }}"
        case "words" | "bytes" | "row bytes":
            function = "pf_add_words_i32" if node.term == "words" else "pf_add_bytes_i32"
            given = [f"{name}_vector{{}} + q", right]
            given = given[::-1] if node.term == "row bytes" else given
            return f"{total} = {printer.call(function, [total, *given])};"
        case "pairs":
            return f"{total} = {printer.call('pf_add_pairs_f32', [total, 'q', right])};"
        case _:
            assert_never(node.term)


def _right(printer: Printer, node: RegisterTile, part: _Part, indent: str) -> list[str]:
    """The lanes of one step, as vectors; those that may not exist are loaded under a mask."""
    name, (_, (lane, _first)) = scalar_name(node.name), node.start
    each = f"{_UNROLL} for (int v = 0; v < {name}_vectors; ++v)"
    size, c, lanes = node.dtype.bytes, node.dtype.c_name, f"{name}_step"
    masked = part.ends and node.ends[1] is not None and not node.held[1]
    copied = f"{indent}for (int l = 0; l < {part.lanes}; ++l) {lanes}[l] = "
    copied += f"{printer.expr(_at(node.right, node.lane, _place(node, part, 1, IVar('l'))))};"
    lines, source = [], f"&{printer.expr(_at(node.right, node.lane, IVar(lane)))}"
    if part.gathered or masked:
        room = -(-part.lanes * size // WIDEST) * WIDEST if masked else part.lanes * size
        lines.append(f"{indent}{c} {lanes}[{room // size}];")
        if masked and not part.gathered:
            used = f"{name}_lanes < {part.lanes} ? (int){name}_lanes : {part.lanes}"
            lines += [
                "#ifdef PF_MASKS",
                f"{indent}pf_take({lanes}, {source}, ({used}) * {size}, {room});",
                "#else",
            ]
        lines += [copied, *["#endif"] * (masked and not part.gathered)]
        source = lanes
    return [
        *lines,
        f"{indent}const {c}* const {name}_from = {source};",
        f"{indent}{name}_vector {name}_right[{name}_vectors];",
        f"{indent}{each} {name}_right[v] = *(const {name}_memory*)({name}_from + {_offset(node)});",
    ]


def _offset(node: RegisterTile) -> str:
    """Where vector v of a row begins."""
    name = scalar_name(node.name)
    return f"(v + 1 < {name}_vectors ? v * ({name}_bytes / {node.dtype.bytes}) : {name}_last)"


def _at(read: Read, var: str, value: IndexExpr) -> Read:
    """An element with a variable replaced; what cancels out is left out."""
    places = tuple(
        i if isinstance(i, EXPR_TYPES) else linear(substitute(i, {var: value})).expr() for i in read.indices
    )
    return Read(read.tensor, places, read.dtype, read.span)


# --- batches of rows --------------------------------------------------------------------------------------

# Loops over rows that are computed at once (`codegen.transforms.unroll_and_jam.batched_rows`), as C++: each
# combines its totals.
#
# float acc_v_p[16 * 16];
# for (pf_i64 row = 0; row < 16; ++row) {
#   ... lanes of a row in acc_v ...
#   pf_part_sum_f32(acc_v, 32, acc_v_p + row * 16);
# }
# float acc_v_t[16];
# pf_join_sum_f32(acc_v_p, 16, acc_v_t);
# for (int row = 0; row < 16; ++row) all_acc[row] = all_acc[row] + acc_v_t[row];


Arrays = Mapping[str, str]
"""The arrays of one total, and how each is combined."""


def rows_text(
    printer: Printer, loop: For, body: list[str], totals: Sequence[tuple[Update, Arrays]], indent: str
) -> list[str]:
    """The loop with a body, and what combines the totals of its rows."""
    rows, i1 = trip_of(loop), indent + "  "
    lines = [f"{indent}{{"]
    for u, arrays in totals:
        size = f"{rows} * (PF_VECTOR / {u.value.dtype.bytes})"
        lines += [f"{i1}{_aligned(u.value.dtype)} {a}_p[{size}];" for a in arrays]
    lines += [
        f"{i1}for (pf_i64 {ROW} = 0; {ROW} < {rows}; ++{ROW}) {{",
        *body,
        f"{i1}}}",
    ]
    for u, arrays in totals:
        dtype = u.value.dtype
        for a, op in arrays.items():
            lines.append(f"{i1}{_aligned(dtype)} {a}_t[{rows}];")
            lines.append(f"{i1}{printer.call(join_name(op, dtype), [f'{a}_p', str(rows), f'{a}_t'])};")
        place = f"{scalar_name(of_all(u.buffer))}[{ROW}]"
        found = " + ".join(f"{a}_t[{ROW}]" for a in arrays)
        total = printer.combine(u.op, place, f"({found})" if len(arrays) > 1 else found, dtype)
        lines.append(f"{i1}PF_IVDEP PF_ROLLED")
        lines.append(f"{i1}for (int {ROW} = 0; {ROW} < {rows}; ++{ROW}) {place} = {bare(total)};")
    return [*lines, f"{indent}}}"]


def sums_text(
    printer: Printer, totals: Mapping[str, str], dtype: DType, lanes: int, indent: str
) -> list[str]:
    """Sums of one loop join their totals, from so many lanes each, all at once. `totals` has their arrays."""
    arrays, n = [*totals.values()], f"(PF_VECTOR / {dtype.bytes})"
    rows = f"({len(arrays)} + {n} - 1) / {n} * {n}"
    lines = [f"{_aligned(dtype)} sums_p[{rows} * {n}], sums_t[{rows}];"]
    # Vectors that are not used hold a number that adding does not slow down.
    lines.append(f"for (int k = {len(arrays)} * {n}; k < {rows} * {n}; ++k) sums_p[k] = 0;")
    for k, a in enumerate(arrays):
        lines.append(f"{printer.call(part_name('sum', dtype), [a, str(lanes), f'sums_p + {k} * {n}'])};")
    lines.append(f"{printer.call(join_name('sum', dtype), ['sums_p', rows, 'sums_t'])};")
    for k, total in enumerate(totals):
        lines.append(f"{total} = {bare(printer.combine('sum', total, f'sums_t[{k}]', dtype))};")
    return [indent + x for x in lines]


def part_text(printer: Printer, dtype: DType, arrays: Arrays, lanes: int) -> Iterable[str]:
    """The lanes of a row's total wait for those of other rows."""
    for a, op in arrays.items():
        place = f"{a}_p + {ROW} * (PF_VECTOR / {dtype.bytes})"
        yield f"{printer.call(part_name(op, dtype), [a, str(lanes), place])};"


def _aligned(dtype: DType) -> str:
    return f"__attribute__((aligned(64))) {dtype.c_name}"


# --- transposed tiles -------------------------------------------------------------------------------------


def to_border(place: str, size: int, var: str, at: str) -> str:
    """How many elements it is from `at` to one that begins a line; `place` is that at index `var`."""
    to = f"(pf_i64)(-(__UINTPTR_TYPE__)&{place} % {LINE}) / {size}"
    return f"({{ const pf_i64 {var} = {at}; {to}; }})"


def transposed_text(printer: Printer, tile: TransposedTile, indent: str, ahead: bool = False) -> list[str]:
    """The array, if there is one, and the call that fills it; `ahead`, the next lines are prefetched."""
    row, lane, i1 = tile.row, tile.lane, indent + "  "
    array = scalar_name(tile.name)
    target = (array, str(tile.lanes), "1")
    if tile.to is not None:
        target = place_and_steps(printer, *tile.to, row.var, lane.var)
    counts = [printer.index(binary("-", x.upper, x.lower)) for x in (row, lane)]
    given = [*target, *place_and_steps(printer, tile.buffer, tile.indices, row.var, lane.var), *counts]
    kind = tile.dtype.c_name
    size = tile.rows * tile.lanes
    call = f"pf_turn<{tile.dtype.bytes}, {2 if tile.back else int(ahead)}>("
    if is_short(tile):
        call, given = f"pf_turn_short<{tile.dtype.bytes}, {tile.rows}, {tile.lanes}>(", given[:-2]
    declared = [f"{indent}__attribute__((aligned({LINE}))) {kind} {array}[{size}];"]
    return [
        *(declared if tile.to is None else []),
        f"{indent}{{",
        *[f"{i1}const pf_i64 {x.var} = {printer.index(x.lower)};" for x in (row, lane)],
        f"{i1}{call}",
        *[f"{i1}    {g}{',' if k < len(given) - 1 else ');'}" for k, g in enumerate(given)],
        f"{indent}}}",
    ]
