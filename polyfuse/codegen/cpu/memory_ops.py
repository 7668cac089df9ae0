"""Memory in loops as C++: non-temporal stores, prefetches of lines, alignment peeling.

Three printers, each of which does what the one before does (`codegen.cpu.vectorize`), and one thing more:
`StreamPrinter`, `PrefetchPrinter`, `AlignmentPrinter`.  Which buffers have such stores and prefetches is
decided before (`layers.mapping.memory_hints`).

Results that are too large for the caches have non-temporal stores (`Buffer.past`).

    for c1: y[c1] = v(c1)     becomes     up to a border of a line as it was
                                          for c1 by 64:
                                            for l in 0..64: y_q[l] = v(c1 + l)
                                            stream y_q to y[c1..]
                                          the rest as it was

A plain store reads the line that it writes first, which costs half as much again; a non-temporal one does
not, if whole lines are written, several together.  The values are made in an array that stays in L1.  Such
stores are not ordered: the function ends with a fence.

Windows (`codegen.transforms.index_set_splitting.div_mod`) are neighbours.  Where they are whole lines and the
first begins with one, all do, and shorter loops than others have non-temporal stores; else none has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.codegen.analysis.accesses import LINE, along
from polyfuse.codegen.analysis.trip_count import most_trips, trip_of
from polyfuse.codegen.c_printer import Printer, guarded_load
from polyfuse.codegen.cpu.printer import to_border, transposed_text
from polyfuse.codegen.cpu.vectorize.reductions import LanePrinter
from polyfuse.codegen.function import Function
from polyfuse.codegen.transforms.transpose_loads import is_short
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Prefetch,
    Store,
    TransposedTile,
    Update,
    map_values,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read, reads

# --- non-temporal stores ----------------------------------------------------------------------------------


STREAM = """\
// Whole lines go past the caches, if they begin where a line begins.
#if defined(__x86_64__)
#if defined(__AVX512F__)
#define PF_STREAM_BYTES 64
#define PF_STREAM_STORE __builtin_ia32_movntdq512
#elif defined(__AVX__)
#define PF_STREAM_BYTES 32
#define PF_STREAM_STORE __builtin_ia32_movntdq256
#else
#define PF_STREAM_BYTES 16
#define PF_STREAM_STORE __builtin_ia32_movntdq
#endif
#define PF_STREAM_END __builtin_ia32_sfence()
#else
#define PF_STREAM_BYTES 16
#define PF_STREAM_END (void)0
#endif
typedef long long pf_streamed __attribute__((vector_size(PF_STREAM_BYTES), may_alias));
typedef long long pf_anywhere __attribute__((vector_size(PF_STREAM_BYTES), may_alias, aligned(1)));
PF_INLINE void pf_stream(void* to, const void* from, pf_i64 bytes) {
  const pf_streamed* values = (const pf_streamed*)from;
  if ((__UINTPTR_TYPE__)to % PF_STREAM_BYTES) {
    for (pf_i64 k = 0; k < bytes / PF_STREAM_BYTES; ++k) ((pf_anywhere*)to)[k] = values[k];
    return;
  }
  pf_streamed* lines = (pf_streamed*)to;
  PF_STORES(to, bytes);
  for (pf_i64 k = 0; k < bytes / PF_STREAM_BYTES; ++k) {
#if defined(__clang__)
    __builtin_nontemporal_store(values[k], lines + k);
#elif defined(__x86_64__)
    PF_STREAM_STORE(lines + k, values[k]);
#else
    lines[k] = values[k];
#endif
  }
}
"""


@dataclass(slots=True)
class StreamPrinter(LanePrinter):
    """Stores to `streamed` in vector loops are non-temporal."""

    streamed: frozenset[str] = field(default_factory=frozenset, kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        found = [n for n in loop.body if isinstance(n, Store) and n.buffer in self.streamed]
        if not found or not _fits(loop, found):
            return LanePrinter.loop(self, loop, indent)
        self.made.update(("stream", s.buffer) for s in found)
        if loop.window and (size := together(loop, found)):
            return self._streamed_window(loop, found, size, indent)
        return self._streaming(loop, found, indent)

    def _streaming(self, loop: For, found: list[Store], indent: str) -> list[str]:
        lanes = FITTED.non_temporal_together // min(s.value.dtype.bytes for s in found)
        plain = replace(self, streamed=frozenset())
        i1 = indent + "  "
        at, end, border = f"{loop.var}_s", f"{loop.var}_e", f"{loop.var}_b"
        return [
            f"{indent}{{",
            f"{i1}pf_i64 {at} = {self.index(loop.lower)};",
            f"{i1}const pf_i64 {end} = {self.index(loop.upper)};",
            f"{i1}pf_i64 {border} = {at} + {self._to_border(loop, found[0])};",
            f"{i1}{border} = {border} < {end} ? {border} : {end};",
            *plain.between(loop, at, border, i1),
            f"{i1}{at} = {border};",
            *self._together(loop, found, lanes, i1),
            *plain.between(loop, at, end, i1),
            f"{indent}}}",
        ]

    def _streamed_window(self, loop: For, found: list[Store], size: int, indent: str) -> list[str]:
        """A window of whole lines is streamed where it begins with one: then all of them do."""
        i1, i2 = indent + "  ", indent + "    "
        begins = " && ".join(f"{self._to_border(loop, s)} == 0" for s in found)
        return [
            f"{indent}{{",
            f"{i1}pf_i64 {loop.var}_s = {self.index(loop.lower)};",
            f"{i1}if ({begins}) {{",
            f"{i2}const pf_i64 {loop.var}_e = {self.index(loop.upper)};",
            *self._together(loop, found, size // min(s.value.dtype.bytes for s in found), i2),
            f"{i1}}} else {{",
            *replace(self, streamed=frozenset()).loop(loop, i2),
            f"{i1}}}",
            f"{indent}}}",
        ]

    def _to_border(self, loop: For, s: Store) -> str:
        place = self.element(self, s.buffer, s.indices)
        return to_border(place, s.value.dtype.bytes, loop.var, f"{loop.var}_s")

    def _together(self, loop: For, found: list[Store], lanes: int, indent: str) -> list[str]:
        """As many iterations as there are whole steps of so many lanes, from a border of lines on."""
        arrays = {s.buffer: f"{s.buffer}_q" for s in found}
        part = "p + " if lanes > FITTED.half_precision_lanes else ""
        inner = replace(self, element=into_arrays(self.element, arrays, part), streamed=frozenset())
        i1, at = indent + "  ", f"{loop.var}_s"
        lines = [f"{indent}for (; {at} + {lanes} <= {loop.var}_e; {at} += {lanes}) {{"]
        for s in found:
            kind = f"{s.value.dtype.c_name} {arrays[s.buffer]}[{lanes}]"
            lines.append(f"{i1}__attribute__((aligned({LINE}))) {kind};")
        lines += _by_parts(inner, loop, at, lanes, i1) if part else inner.lanes_of(loop, at, lanes, i1)
        lines.append(f"{i1}const pf_i64 {loop.var} = {at};")
        for s in found:
            place = self.element(self, s.buffer, s.indices)
            array = arrays[s.buffer]
            lines.append(f"{i1}pf_stream(&{place}, {array}, sizeof {array});")
        return [*lines, f"{indent}}}"]

    def between(self, loop: For, at: str, end: str, indent: str) -> list[str]:
        """The iterations from where the loop has come to, up to `end`."""
        if any(self.halves(loop)):
            return self.steps(loop, None, end, indent)
        return [
            f"{indent}PF_IVDEP",
            f"{indent}for (pf_i64 {loop.var} = {at}; {loop.var} < {end}; ++{loop.var}) {{",
            *self.block(loop.body, indent + "  "),
            f"{indent}}}",
        ]


def _by_parts(printer: StreamPrinter, loop: For, at: str, lanes: int, indent: str) -> list[str]:
    """Many lanes, some at a time: what is in between stays in registers."""
    return [
        f"{indent}for (int p = 0; p < {lanes}; p += {FITTED.half_precision_lanes}) {{",
        *printer.lanes_of(loop, f"({at} + p)", FITTED.half_precision_lanes, indent + "  "),
        f"{indent}}}",
    ]


def _fits(loop: For, found: list[Store]) -> bool:
    """Is it a long vector loop of plain stores along memory?"""
    if loop.coordinate is not Coordinate.VECTOR or loop.lanes or loop.step != 1 or guarded_load(loop.body):
        return False
    if not all(_is_plain(n, loop.var) for n in loop.body):
        return False
    if len({s.buffer for s in found}) < len(found) or not all(along(s, loop.var) for s in found):
        return False
    most = most_trips(loop)
    if loop.window and together(loop, found):
        return True
    return most is None or most * min(s.value.dtype.bytes for s in found) >= FITTED.non_temporal_least_bytes


def _is_plain(node: Node, var: str) -> bool:
    """Does a node store elements, add to others along memory, or name a value?"""
    match node:
        case Store():
            return True
        case Update():
            return along(node, var)
        case Declare(count=0):
            return True
        case _:
            return False


def together(loop: For, found: list[Store]) -> int:
    """So many bytes of a window are stored together; 0 if its shortest elements are no pairs of lines."""
    size = (most_trips(loop) or 0) * min(s.value.dtype.bytes for s in found)
    return next((n for n in (FITTED.non_temporal_together, 2 * LINE) if size and size % n == 0), 0)


def into_arrays(
    element: Callable[[Printer, str, tuple[Index, ...]], str], arrays: dict[str, str], part: str
) -> Callable[[Printer, str, tuple[Index, ...]], str]:
    """Stores to some buffers are to arrays, lane by lane."""

    def lane(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
        return f"{arrays[buffer]}[{part}l]" if buffer in arrays else element(printer, buffer, indices)

    return lane


# --- prefetches -------------------------------------------------------------------------------------------

# Lines that are needed soon are prefetched in vector loops (`Buffer.soon`).
#
#     for c1 by 64:                           for c1 by 64:
#       for l in 0..64:                         fetch the lines of x[c1 + 32] to x[c1 + 96] into L2
#         y[c1 + l] = f(x[c1 + l])              for l in 0..64:  y[c1 + l] = f(x[c1 + l])
#
# Requests of a loop's own (loops over lines of another row in its body,
# `codegen.transforms.software_pipelining`) are made there as well, as far as the lanes have come.  What an
# earlier loop of the same iteration has read is in a cache already, and is not prefetched again.
#
# Measured, it pays in loops that compute for long between two lines, and beside non-temporal stores
# where vectors cross lines: arrays of NumPy begin 16 bytes after one (docs/lab/targets.md).


_Row: TypeAlias = tuple[str, tuple[Index, ...]]  # a tensor, and where its row is


@dataclass(slots=True)
class PrefetchPrinter(StreamPrinter):
    """Vector loops over what is in `soon` go in strips, each of which begins with requests.  Rows of up to
    `near_room` bytes are near once a loop has read them.  Rows of what is in `ahead` are prefetched alone
    (`codegen.transforms.prefetch`).

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
            lines += self.marked(node, indent)
            if isinstance(node, For):
                self.near |= _read_whole(node, self.near_room)
        self.near = before
        return lines

    def node(self, node: Node, indent: str) -> list[str]:
        if isinstance(node, Prefetch):
            self.made.add(("prefetch rows" if node.buffer in self.ahead else "prefetch lines", node.buffer))
        return StreamPrinter.node(self, node, indent)

    def transposed(self, node: TransposedTile, indent: str) -> list[str]:
        self.made.add(("transpose", node.buffer))
        self.made.update({("transpose", node.to[0])} if node.to else ())
        if node.buffer in self.soon and not is_short(node):
            self.made.add(("prefetch lines", node.buffer))
        return transposed_text(self, node, indent, ahead=node.buffer in self.soon)

    def lanes_of(self, loop: For, start: str, lanes: int, indent: str) -> list[str]:
        fetches = [
            line for r in self._prefetched(loop) for line in self._prefetch(r, loop.var, start, lanes, indent)
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
        long = trip is None or trip >= FITTED.half_precision_lanes
        return StreamPrinter._worth(self, loop) or (long and bool(self.asked or self._prefetched(loop)))

    def _prefetch(self, r: Read, var: str, start: str, lanes: int, indent: str) -> list[str]:
        size = r.dtype.bytes
        step = LINE // size
        place = self.element(self, r.tensor, r.indices)
        here = f"const pf_i64 {var} = {start} + l + {FITTED.prefetch_lines_ahead // size};"
        each = f"for (int l = 0; l < {lanes}; l += {step})"
        self.made.add(("prefetch lines", r.tensor))
        return [f"{indent}{each} {{ {here} __builtin_prefetch(&{place}, 0, 2); }}"]

    def _prefetched(self, loop: For) -> list[Read]:
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
            if (r.tensor, r.indices) not in self.held and row not in self.near:  # nor in an array that L1 has
                rows.setdefault(row, r)
        many = Counter(name for name, _ in rows)
        return [r for r in rows.values() if many[r.tensor] < FITTED.prefetch_lines_streams]


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


# --- alignment peeling ------------------------------------------------------------------------------------

# Strips of memory that is updated in place begin where a cache line begins.
#
#     for c0 in parallel:                          for c0 in parallel:
#       for c1 in 2048 * c0 .. 2048 * c0 + 2048:     for c1 in border(2048 * c0) .. border(2048 * c0 + 2048):
#         p[c1] = f(p[c1], x[c1])                      p[c1] = f(p[c1], x[c1])
#
# `border(k)` is the first element from k on that begins a line, or the end of all; strip 0 begins where it
# did. Large arrays of NumPy begin 16 bytes after a line, so without this every vector crosses one: that costs
# little where it is only read, or only written, but half as much again where it is both.


@dataclass(frozen=True, slots=True)
class Strip:
    """A loop over a part of `first .. last`; the parts of a function's iterations follow one another."""

    loop: For
    first: IndexExpr
    last: IndexExpr


@dataclass(slots=True)
class AlignmentPrinter(PrefetchPrinter):
    """The loop of `strip` runs between borders of lines, if it updates memory of the caller in place."""

    strip: Strip | None = field(default=None, kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        changed = self.in_place(loop) if self.strip and loop == self.strip.loop else None
        if self.strip is None or changed is None:
            return PrefetchPrinter.loop(self, loop, indent)
        i1, last = indent + "  ", self.index(self.strip.last)
        begin, end = f"{loop.var}_f", f"{loop.var}_t"
        place = self.element(self, changed.buffer, changed.indices)
        more = [to_border(place, changed.value.dtype.bytes, loop.var, at) for at in (begin, end)]
        lines = [
            f"{indent}{{",
            f"{i1}pf_i64 {begin} = {self.index(loop.lower)}, {end} = {self.index(loop.upper)};",
            f"{i1}if ({begin} > {self.index(self.strip.first)}) {begin} += {more[0]};",
            f"{i1}if ({end} < {last}) {end} += {more[1]};",
            *[f"{i1}{x} = {x} < {last} ? {x} : {last};" for x in (begin, end)],
        ]
        shifted = replace(loop, lower=IVar(begin), upper=IVar(end))
        return [*lines, *PrefetchPrinter.loop(self, shifted, i1), f"{indent}}}"]


def strip_of(kernel: Kernel, f: Function) -> Strip | None:
    """The only loop of a function whose iterations are strips of it, one by one: those that run together have
    loops of their own, which would begin elsewhere."""
    row = f.row or ()
    loops = [n for n in row if isinstance(n, For)]
    if len(loops) != 1 or not all(_is_scalar(kernel, n) for n in row if n != loops[0]):
        return None
    (loop,), block = loops, f.loops[-1]
    plain = loop.coordinate is Coordinate.VECTOR and loop.step == 1 and not loop.lanes
    if not plain or _uses(loop.body, block.var):
        return None
    match loop.lower:
        case IBin("*", IConst(size), IVar(var)) if var == block.var:
            last = _last(loop, size, block)
            return Strip(loop, binary("*", size, block.lower), last) if last is not None else None
        case _:
            return None


def _last(loop: For, size: int, block: For) -> IndexExpr | None:
    """The end of all strips, if each but the last ends where the next one begins."""
    if loop.upper == loop.lower + size:
        return binary("*", size, block.upper)
    within = loop.lower + (size - 1)
    match loop.upper:
        case IBin("+", IBin("min", a, b), IConst(1)) if within in (a, b):
            last = a if b == within else b
            return None if block.var in variables(last) else last + 1
        case IBin("min", a, b) if loop.lower + size in (a, b):
            last = a if b == loop.lower + size else b
            return None if block.var in variables(last) else last
        case _:
            return None


def _is_scalar(kernel: Kernel, node: Node) -> bool:
    """Does a node only make scalars?"""
    match node:
        case Declare(count=0) | Comment():
            return True
        case Store(buffer):
            return kernel.find(buffer) is None
        case If(_, then, other):
            return all(_is_scalar(kernel, n) for n in (*then, *other))
        case _:
            return False


def _uses(block: Block, var: str) -> bool:
    found: set[str] = set()

    def index(i: IndexExpr) -> IndexExpr:
        found.update(variables(i))
        return i

    map_values(block, lambda e: e, index)
    return var in found
