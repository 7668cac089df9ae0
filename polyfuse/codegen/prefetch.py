"""Rows that are to be fetched ahead (`Buffer.ahead`): loops over their cache lines in the last phase.

Memory is idle while the last phase computes.  Short rows are asked for as one:

    for t:                            for t:
      phases                            phases
      for h: y[t, h] = x[t, h] ...      if t + 1 < T:  for l in 0..H by 16:  fetch x[t + 1, l]
                                        for h: y[t, h] = x[t, h] ...

A core has only so many requests under way: long rows are asked for in pieces, as the phase goes on:

                                      for t:
                                        phases
                                        for p in 0..H by 512:
                                          if t + 1 < T:  for l in p..p+512 by 16:  fetch x[t + 1, l]
                                          for h in p..min(p+512, H): y[t, h] = x[t, h] ...

`taken_out` undoes that, for rows that ask elsewhere (`codegen.skewed`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from polyfuse.codegen.turned_stores import steps_across
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Prefetch, Store, Update, map_nodes
from polyfuse.ir.tensor_graph import Apply, Index, IndexValue, reads

LINE_BYTES = Core().line
START = IConst(0)
WHOLE = 128  # a strip has whole vectors for every accumulator

_Row: TypeAlias = tuple[Buffer, tuple[IndexExpr, ...]]  # a tensor, and where its rows are


def fetch_ahead(kernel: Kernel, block: Block) -> Block:
    """See the module docstring."""
    chosen = [b for b in kernel.buffers if b.ahead]

    def change(node: Node) -> Node:
        return _with_fetches(node, chosen) if isinstance(node, For) else node

    return map_nodes(block, change) if chosen else block


def _with_fetches(rows: For, chosen: list[Buffer]) -> For:
    """The loop over rows with the next one's lines fetched in its last loop; other loops stay."""
    phases = [k for k, n in enumerate(rows.body) if isinstance(n, For)]
    found = [(b, lead) for b in chosen if (lead := _leading(rows, b.tensor)) is not None]
    if len(phases) < 2 or not found:
        return rows
    last = rows.body[phases[-1]]
    assert isinstance(last, For)
    if any(isinstance(n, Store) and steps_across(n.indices, rows.var, last.var) for n in last.body):
        return rows  # tiles that are turned around (`codegen.turned_stores`) are of whole rows
    if sum(_row_bytes(b) for b, _ in found) <= FITTED.prefetch_as_one_bytes:
        fetched: Block = (_ahead(rows, chosen, [_lines(rows, b, lead) for b, lead in found]), last)
    elif last.step == 1 and last.lower == IConst(0) and isinstance(last.upper, IConst):
        fetched = (_in_pieces(rows, last, last.upper.value, found),)
    else:
        return rows
    return replace(rows, body=(*rows.body[: phases[-1]], *fetched, *rows.body[phases[-1] + 1 :]))


def taken_out(block: Block) -> tuple[Block, tuple[For, ...]]:
    """A row's phases without requests, and a loop over lines for each tensor that was asked for."""
    found: dict[str, For] = {}
    rest: list[Node] = []
    for node in block:
        match node:
            case If(_, then) if lines := _requests(then):
                found |= lines
            case For(body=(If(_, then), For(upper=IBin("min", _, end)) as last)) if lines := _requests(then):
                found |= lines
                rest.append(replace(last, lower=START, upper=end))
            case _:
                rest.append(node)
    return tuple(rest), tuple(found.values())


def _requests(nodes: Block) -> dict[str, For]:
    """The loops over lines that nodes are, if they are nothing else."""
    asked = {n.body[0].buffer: n for n in nodes if isinstance(n, For) and isinstance(n.body[0], Prefetch)}
    return asked if len(asked) == len(nodes) else {}


def _in_pieces(rows: For, last: For, extent: int, found: list[_Row]) -> For:
    """The last loop in strips, each after a piece of every row that is its share of the loop."""
    row = sum(_row_bytes(b) for b, _ in found)
    pieces = -(-row // min(FITTED.prefetch_piece_bytes, max(FITTED.prefetch_as_one_bytes, row // 4)))
    strip, p = -(-extent // (pieces * WHOLE)) * WHOLE, IVar(f"{last.var}_p")
    strips = -(-extent // strip)
    lines = []
    for b, lead in found:
        line = LINE_BYTES // b.dtype.bytes
        share = -(-_width(b) // (strips * line)) * line
        lines.append(_lines(rows, b, lead, p * share, binary("min", p * share + share, b.shape[-1])))
    within = replace(last, lower=p * strip, upper=binary("min", p * strip + strip, last.upper))
    return For(p.name, IConst(0), IConst(strips), 1, (_ahead(rows, [b for b, _ in found], lines), within))


def _ahead(rows: For, chosen: list[Buffer], lines: list[For]) -> If:
    """Lines of the row ahead, if there is one."""
    following = (IndexValue(IVar(rows.var) + chosen[0].ahead, I64), IndexValue(rows.upper, I64))
    return If(Apply("lt", following, BOOL), tuple(lines))


def _lines(
    rows: For,
    b: Buffer,
    lead: tuple[IndexExpr, ...],
    begin: IndexExpr = START,
    end: IndexExpr | None = None,
) -> For:
    """A loop over lines of a row ahead of this one."""
    name = f"{rows.var}_l"
    line = Prefetch(b.tensor, (*lead, IVar(rows.var) + b.ahead, IVar(name)))
    return For(name, begin, end or b.shape[-1], LINE_BYTES // b.dtype.bytes, (line,))


def _width(b: Buffer) -> int:
    last = b.shape[-1]
    assert isinstance(last, IConst)  # rows of unknown length are not chosen
    return last.value


def _row_bytes(b: Buffer) -> int:
    return _width(b) * b.dtype.bytes


def _leading(rows: For, tensor: str) -> tuple[IndexExpr, ...] | None:
    found: list[tuple[Index, ...]] = []

    def look(node: Node) -> Node:
        if isinstance(node, (Declare, Store, Update)) and node.value is not None:
            found.extend(r.indices for r in reads(node.value) if r.tensor == tensor)
        return node

    map_nodes(rows.body, look)
    mine = [i for i in found if i[-2] == IVar(rows.var)]
    return tuple(mine[0][:-2]) if mine else None  # type: ignore[arg-type]
