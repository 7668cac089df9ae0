"""Lines that are needed soon are asked for in vector loops (`Buffer.soon`).

    for c1 by 64:                           for c1 by 64:
      for l in 0..64:                         fetch the lines of x[c1 + 32] to x[c1 + 96] into L2
        y[c1 + l] = f(x[c1 + l])              for l in 0..64:  y[c1 + l] = f(x[c1 + l])

Requests of a loop's own (loops over lines of another row in its body, `codegen.skewed`) are made there as
well, as far as the lanes have come.  What an earlier loop of the same iteration has read is in a cache
already, and is not asked for again.

Measured, it pays in loops that compute for long between two lines, and beside stores past the caches where
vectors cross lines: arrays of NumPy begin 16 bytes after one (docs/targets.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.codegen.streaming import LINE, StreamPrinter, along
from polyfuse.codegen.transposed import is_short, turned_text
from polyfuse.codegen.trips import trip_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Prefetch, Store, TurnedTile, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read, reads

_Row: TypeAlias = tuple[str, tuple[Index, ...]]  # a tensor, and where its row is


@dataclass(slots=True)
class SoonPrinter(StreamPrinter):
    """Vector loops over what is in `soon` go in strips, each of which begins with requests.  Rows of up to
    `near_room` bytes are near once a loop has read them.  Rows of what is in `ahead` are asked for one by one
    (`codegen.prefetch`).

    Not so where a loop updates memory of the caller (`inout`) in place: measured, it gains nothing there.
    """

    soon: frozenset[str] = field(default_factory=frozenset, kw_only=True)
    ahead: frozenset[str] = field(default_factory=frozenset, kw_only=True)
    inout: frozenset[str] = field(default_factory=frozenset, kw_only=True)
    near_room: int = field(default=0, kw_only=True)
    near: frozenset[_Row] = field(default_factory=frozenset, kw_only=True)
    asked: tuple[For, ...] = field(default=(), kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        asked = tuple(n for n in loop.body if isinstance(n, For) and isinstance(n.body[0], Prefetch))
        if loop.coordinate is not Coordinate.VECTOR or not asked:
            return StreamPrinter.loop(self, loop, indent)
        plain = replace(loop, body=tuple(n for n in loop.body if n not in asked))
        return StreamPrinter.loop(replace(self, asked=asked), plain, indent)

    def has_read(self, nodes: Block) -> None:
        """Rows that these loops read are near from now on."""
        for node in nodes:
            if isinstance(node, For):
                self.near |= _read_whole(node, self.near_room)

    def block(self, nodes: Block, indent: str) -> list[str]:
        before, lines = self.near, []
        for node in nodes:
            lines += self.node(node, indent)
            if isinstance(node, For):
                self.near |= _read_whole(node, self.near_room)
        self.near = before
        return lines

    def node(self, node: Node, indent: str) -> list[str]:
        if isinstance(node, Prefetch):
            self.made.add(("prefetch rows" if node.buffer in self.ahead else "prefetch lines", node.buffer))
        return StreamPrinter.node(self, node, indent)

    def turned(self, node: TurnedTile, indent: str) -> list[str]:
        self.made.add(("transpose", node.buffer))
        self.made.update({("transpose", node.to[0])} if node.to else ())
        if node.buffer in self.soon and not is_short(node):
            self.made.add(("prefetch lines", node.buffer))
        return turned_text(self, node, indent, ahead=node.buffer in self.soon)

    def lanes_of(self, loop: For, start: str, lanes: int, indent: str) -> list[str]:
        fetches = [
            line for r in self._fetched(loop) for line in self._fetch(r, loop.var, start, lanes, indent)
        ]
        for lines in self.asked:
            each = f"for (int l = 0; l < {lanes}; l += {lines.step})"
            here = f"const pf_i64 {lines.var} = {start} + l;"
            (request,) = self.block(lines.body, "")
            fetches.append(f"{indent}{each} {{ {here} {request} }}")
        return [*fetches, *StreamPrinter.lanes_of(self, loop, start, lanes, indent)]

    def in_place(self, loop: For) -> Store | Update | None:
        """What of `inout` the loop reads, changes and stores again, element after element."""
        seen = {self.element(self, r.tensor, r.indices) for r in _all_reads(loop.body) if r.indices}
        for n in loop.body:
            if not isinstance(n, (Store, Update)) or n.buffer not in self.inout or not along(n, loop.var):
                continue
            if isinstance(n, Update) or self.element(self, n.buffer, n.indices) in seen:
                return n
        return None

    def _worth(self, loop: For) -> bool:
        trip = trip_of(loop)
        long = trip is None or trip >= FITTED.halves_lanes
        return StreamPrinter._worth(self, loop) or (long and bool(self.asked or self._fetched(loop)))

    def _fetch(self, r: Read, var: str, start: str, lanes: int, indent: str) -> list[str]:
        size = r.dtype.bytes
        step = LINE // size
        place = self.element(self, r.tensor, r.indices)
        here = f"const pf_i64 {var} = {start} + l + {FITTED.soon_ahead // size};"
        each = f"for (int l = 0; l < {lanes}; l += {step})"
        self.made.add(("prefetch lines", r.tensor))
        return [f"{indent}{each} {{ {here} __builtin_prefetch(&{place}, 0, 2); }}"]

    def _fetched(self, loop: For) -> list[Read]:
        """One read of each row of memory that the lanes go along and do not change."""
        plain = all(isinstance(n, (Declare, Store, Update)) for n in loop.body)
        if self.lazy or not plain or self.in_place(loop):
            return []
        others = {n.buffer for n in loop.body if isinstance(n, (Store, Update))}
        others |= {n.buffer for lines in self.asked for n in lines.body if isinstance(n, Prefetch)}
        rows: dict[_Row, Read] = {}
        for r in _all_reads(loop.body):
            if r.tensor not in self.soon - others or not self.along((r.tensor, r.indices), loop.var):
                continue
            if any(isinstance(i, EXPR_TYPES) for i in r.indices):
                continue  # the data may be there under a condition only
            row = r.tensor, r.indices[:-1]
            memory = self.element(self, r.tensor, r.indices).startswith("b_")  # or an array that L1 has
            if memory and row not in self.near:
                rows.setdefault(row, r)
        many = Counter(name for name, _ in rows)
        return [r for r in rows.values() if many[r.tensor] < FITTED.soon_streams]


def _read_whole(loop: For, room: int) -> frozenset[_Row]:
    """Rows of so many bytes at most, all of which a loop along them reads."""
    trip = trip_of(loop)
    found = [r for r in _all_reads(loop.body) if r.indices and r.indices[-1] == IVar(loop.var)]
    return frozenset(
        (r.tensor, r.indices[:-1])
        for r in found
        if trip is not None and trip * r.dtype.bytes <= room
        if not any(isinstance(i, EXPR_TYPES) or loop.var in variables(i) for i in r.indices[:-1])
    )


def _all_reads(body: Block) -> Iterator[Read]:
    for n in body:
        if isinstance(n, (Store, Update, Declare)) and n.value is not None:
            yield from reads(n.value)
