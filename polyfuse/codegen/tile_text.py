"""A register tile as C++: accumulators are vectors of the machine, one or more for each row.

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

from math import prod
from typing import assert_never

from polyfuse.codegen.c_family import Printer, bare, scalar_name
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IndexExpr, IVar, binary, substitute
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import RegisterTile
from polyfuse.ir.tensor_graph import EXPR_TYPES, Read

_UNROLL = '_Pragma("GCC unroll 32")'
# Bytes of a vector at most; the prelude says how many the machine has.
WIDEST = 64


def tile_text(printer: Printer, node: RegisterTile, indent: str, gathered: bool) -> list[str]:
    """The statements of a tile; `gathered` lanes of the right operand are apart in memory."""
    name, c = scalar_name(node.name), node.dtype.c_name
    (row, first_row), (lane, first_lane) = node.start
    size = node.lanes * node.dtype.bytes
    widest = min(WIDEST, 1 << size.bit_length() - 1)
    loops = [
        f"for (pf_i64 {x.var} = {printer.index(x.lower)}; {x.var} < {printer.index(x.upper)}; ++{x.var}) {{"
        for x in node.loops
    ]
    i1, i2 = indent + "  ", indent + "  " * (1 + len(loops))
    each = f"{_UNROLL} for (int v = 0; v < {name}_vectors; ++v)"
    summed = [f"{name}_vector {name}_acc[{node.rows}][{name}_vectors] = {{}};"]
    rows = f"{_UNROLL} for (int k = 0; k < {node.rows}; ++k)"
    place = f"*(({name}_memory*)({name} + {node.lanes} * k + {_offset(node)}))"
    stores = [rows, f"  {each} {place} = {name}_acc[k][v];"]
    if node.parts:  # what two vectors have is added once
        stores = [rows, f"  {each} {name}_acc[k][v] += {place};", *stores]
    lines = [
        f"{indent}const pf_i64 {row} = {bare(printer.index(first_row))};",
        f"{indent}const pf_i64 {lane} = {bare(printer.index(first_lane))};",
        f"{indent}{c} {name}[{node.rows * node.lanes}]{' = {}' if node.parts else ''};",
        f"{indent}{{",
        f"{i1}enum {{ {name}_bytes = {widest} < PF_VECTOR ? {widest} : PF_VECTOR,"
        f" {name}_vectors = ({size} + {name}_bytes - 1) / {name}_bytes,"
        f" {name}_last = {node.lanes} - {name}_bytes / {node.dtype.bytes} }};",
        f"{i1}typedef {c} {name}_vector __attribute__((vector_size({name}_bytes)));",
        f"{i1}typedef {c} {name}_memory"
        f" __attribute__((vector_size({name}_bytes), aligned({node.dtype.bytes}), may_alias));",
    ]
    short = 0 if gathered else _short(node)
    marks = ["PF_ROLLED"] * (len(loops) - node.parts - short) + ["PF_UNROLLED"] * short
    marked = [f"{mark} {x}" for mark, x in zip(marks, loops[node.parts :], strict=True)]
    for k, text in enumerate([*loops[: node.parts], *summed, *marked]):
        lines.append(indent + "  " * (1 + k - (k > node.parts)) + text)
    lines += _right(printer, node, i2 + "  ", gathered)
    for k in range(node.rows):
        left = printer.expr(_at(node.left, node.row, binary("+", IVar(row), k)))
        added = _added(printer, node, name, k)
        added = f"{{ {added} PF_HELD({name}_acc[{k}][v]); }}" if short else added
        lines.append(f"{i2}  {{ const {c} q = {left}; {each} {added} }}")
    ends = [indent + "  " * (len(loops) - k) + "}" for k in range(len(loops))]
    inner = len(loops) - node.parts
    lines += [*ends[:inner], *[indent + "  " * (1 + node.parts) + x for x in stores], *ends[inner:]]
    return [*lines, f"{indent}}}"]


def _short(node: RegisterTile) -> int:
    """How many of the innermost loops over what is summed are written out."""
    trips = [trip_of(x) or FITTED.tile_text_most_steps + 1 for x in node.loops[node.parts :]]
    return sum(prod(trips[k:]) <= FITTED.tile_text_most_steps for k in range(len(trips)))


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


def _right(printer: Printer, node: RegisterTile, indent: str, gathered: bool) -> list[str]:
    """The lanes of one step, as vectors."""
    name, (_, (lane, _first)) = scalar_name(node.name), node.start
    each = f"{_UNROLL} for (int v = 0; v < {name}_vectors; ++v)"
    lines = []
    if gathered:
        element = printer.expr(_at(node.right, node.lane, binary("+", IVar(lane), IVar("l"))))
        lines.append(f"{indent}{node.dtype.c_name} {name}_lanes[{node.lanes}];")
        lines.append(f"{indent}for (int l = 0; l < {node.lanes}; ++l) {name}_lanes[l] = {element};")
        source = f"{name}_lanes"
    else:
        source = f"&{printer.expr(_at(node.right, node.lane, IVar(lane)))}"
    return [
        *lines,
        f"{indent}const {node.dtype.c_name}* const {name}_from = {source};",
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
