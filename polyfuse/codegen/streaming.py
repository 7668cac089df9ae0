"""Non-temporal stores: results that are too large for the caches go past them (`Buffer.past`).

    for c1: y[c1] = v(c1)     becomes     up to a border of a line as it was
                                          for c1 by 64:
                                            for l in 0..64: y_q[l] = v(c1 + l)
                                            stream y_q to y[c1..]
                                          the rest as it was

A plain store reads the line that it writes first, which costs half as much again; a non-temporal one does
not, if whole lines are written, several together.  The values are made in an array that stays in L1.  Such
stores are not ordered: the function ends with a fence.

Windows (`codegen.digits`) are neighbours.  Where they are whole lines and the first begins with one, all do,
and shorter loops than others go past the caches; else none does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from polyfuse.codegen.c_family import Printer, guarded_load
from polyfuse.codegen.lanes import LanePrinter
from polyfuse.codegen.trips import most_trips
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index

LINE = Core().line

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
    """Stores to `streamed` in vector loops go past the caches."""

    streamed: frozenset[str] = field(default_factory=frozenset, kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        found = [n for n in loop.body if isinstance(n, Store) and n.buffer in self.streamed]
        if not found or not _fits(loop, found):
            return LanePrinter.loop(self, loop, indent)
        self.made.update(("stream", s.buffer) for s in found)
        if loop.window and (size := together(loop, found)):
            return self._window_past(loop, found, size, indent)
        return self._streaming(loop, found, indent)

    def _streaming(self, loop: For, found: list[Store], indent: str) -> list[str]:
        lanes = FITTED.streaming_together // min(s.value.dtype.bytes for s in found)
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

    def _window_past(self, loop: For, found: list[Store], size: int, indent: str) -> list[str]:
        """A window of whole lines goes past the caches where it begins with one: then all of them do."""
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
        part = "p + " if lanes > FITTED.halves_lanes else ""
        inner = replace(self, element=_into_arrays(self.element, arrays, part), streamed=frozenset())
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


def to_border(place: str, size: int, var: str, at: str) -> str:
    """How many elements it is from `at` to one that begins a line; `place` is that at index `var`."""
    to = f"(pf_i64)(-(__UINTPTR_TYPE__)&{place} % {LINE}) / {size}"
    return f"({{ const pf_i64 {var} = {at}; {to}; }})"


def _by_parts(printer: StreamPrinter, loop: For, at: str, lanes: int, indent: str) -> list[str]:
    """Many lanes, some at a time: what is in between stays in registers."""
    return [
        f"{indent}for (int p = 0; p < {lanes}; p += {FITTED.halves_lanes}) {{",
        *printer.lanes_of(loop, f"({at} + p)", FITTED.halves_lanes, indent + "  "),
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
    return most is None or most * min(s.value.dtype.bytes for s in found) >= FITTED.streaming_least_bytes


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
    return next((n for n in (FITTED.streaming_together, 2 * LINE) if size and size % n == 0), 0)


def along(s: Store | Update, var: str) -> bool:
    """Do iterations of a loop store to neighbours in memory?"""
    if not s.indices or any(isinstance(i, EXPR_TYPES) for i in s.indices):
        return False
    *leading, last = s.indices
    return last == IVar(var) and not any(
        not isinstance(i, EXPR_TYPES) and var in variables(i) for i in leading
    )


def _into_arrays(
    element: Callable[[Printer, str, tuple[Index, ...]], str], arrays: dict[str, str], part: str
) -> Callable[[Printer, str, tuple[Index, ...]], str]:
    def lane(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
        return f"{arrays[buffer]}[{part}l]" if buffer in arrays else element(printer, buffer, indices)

    return lane
