"""Loops that scan: totals up to each iteration, a vector of terms at once.

    for t in 0..T scanning p:          for (; t + n <= T; t += n) {      // n lanes
      q = p + x[t]                       for (l = 0; l < n; ++l) v[l] = x[t + l];
      y[t] = q                    ->     pf_scan_sum_f32(v);             // totals up to each lane
      p = q                              for (l = 0; l < n; ++l) { q = p + v[l];  y[t + l] = q; }
                                         p += v[n - 1];
                                       }                                 and what is left step by step

Vectors begin where those do that the first store writes.  Terms of f32 whose total is kept in f64 are added
up in f32 within a vector, and to the total before it in f32 as well where nothing but f32 is made of it: that
rounds three times in place of once for each step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.accesses import along
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.analysis.scan_loops import Scan, scan_of
from polyfuse.codegen.c_printer import bare
from polyfuse.codegen.cpu.memory_ops import AlignmentPrinter, into_arrays
from polyfuse.codegen.cpu.printer import to_border
from polyfuse.codegen.math.vector_reduce import scan_name
from polyfuse.ir.dtypes import DType
from polyfuse.ir.loop_ir import Block, For, Store


@dataclass(slots=True)
class ScanPrinter(AlignmentPrinter):
    """Prints loops that scan."""

    def loop(self, loop: For, indent: str) -> list[str]:
        scan = scan_of(loop)
        if scan is None:
            return AlignmentPrinter.loop(self, loop, indent)
        self.made.add(("scan", scan.total.name))
        i1 = indent + "  "
        at, end = f"{loop.var}_s", f"{loop.var}_e"
        lanes = f"(PF_VECTOR / {scan.dtype.bytes})"
        return [
            f"{indent}{{",
            f"{i1}pf_i64 {at} = {self.index(loop.lower)};",
            f"{i1}const pf_i64 {end} = {self.index(loop.upper)};",
            *self._from_border(scan, at, end, i1),
            f"{i1}for (; {at} + {lanes} <= {end}; {at} += {lanes}) {{",
            *self._vector(scan, at, lanes, i1 + "  "),
            f"{i1}}}",
            *self._stepwise(loop, at, end, i1),
            f"{indent}}}",
        ]

    def _from_border(self, scan: Scan, at: str, end: str, indent: str) -> list[str]:
        """Steps before the first whole line."""
        stores = [n for n in scan.after if isinstance(n, Store)]
        if not stores:
            return []
        border = f"{scan.loop.var}_b"
        place = self.element(self, stores[0].buffer, stores[0].indices)
        more = to_border(place, stores[0].value.dtype.bytes, scan.loop.var, at)
        return [
            f"{indent}pf_i64 {border} = {at} + {more};",
            f"{indent}{border} = {border} < {end} ? {border} : {end};",
            *self._stepwise(scan.loop, at, border, indent),
        ]

    def _stepwise(self, loop: For, at: str, end: str, indent: str) -> list[str]:
        return [
            f"{indent}for (; {at} < {end}; ++{at}) {{",
            f"{indent}  const pf_i64 {loop.var} = {at};",
            *self.block(loop.body, indent + "  "),
            f"{indent}}}",
        ]

    def _vector(self, scan: Scan, at: str, lanes: str, indent: str) -> list[str]:
        """Terms, their totals, and what is made of these."""
        loop, wide = scan.loop, scan.total.dtype
        v, carried, i1 = f"{loop.var}_v", f"{loop.var}_c", indent + "  "
        each = [
            f"{indent}PF_IVDEP",
            f"{indent}for (int l = 0; l < {lanes}; ++l) {{",
            f"{i1}const pf_i64 {loop.var} = {at} + l;",
        ]
        state, name = scalar_name(loop.scan), scalar_name(scan.total.name)
        narrow = scan.narrow
        dtype = wide if narrow is None else scan.dtype

        def total(lane: str, dtype: DType) -> str:
            parts = (self.cast(carried, wide, dtype), self.cast(f"{v}[{lane}]", scan.dtype, dtype))
            return self.combine(scan.op, *parts, dtype)

        after = scan.after if narrow is None else narrow
        past = self._past(scan, after)
        arrays = {s.buffer: f"{s.buffer}_q" for s in past}
        inner = replace(self, element=into_arrays(self.element, arrays, "")) if past else self
        self.made.update(("stream", s.buffer) for s in past)
        return [
            f"{indent}__attribute__((aligned(64))) {scan.dtype.c_name} {v}[{lanes}];",
            *each,
            *self.block(scan.before, i1),
            f"{i1}{v}[l] = {bare(self.expr(scan.term))};",
            f"{indent}}}",
            f"{indent}{self.call(scan_name(scan.op, scan.dtype), [v])};",
            f"{indent}const {wide.c_name} {carried} = {state};",
            *(
                f"{indent}__attribute__((aligned(64))) {s.value.dtype.c_name} {arrays[s.buffer]}[{lanes}];"
                for s in past
            ),
            *each,
            f"{i1}const {dtype.c_name} {name} = {bare(total('l', dtype))};",
            *inner.block(after, i1),
            f"{indent}}}",
            *(self._streamed(s, loop.var, at, arrays[s.buffer], indent) for s in past),
            f"{indent}{state} = {bare(total(f'{lanes} - 1', wide))};",
        ]

    def _past(self, scan: Scan, after: Block) -> list[Store]:
        """Stores of whole lines along memory that go past the caches."""
        found = [n for n in after if isinstance(n, Store) and n.buffer in self.streamed]
        whole = [s for s in found if s.value.dtype.bytes >= scan.dtype.bytes and along(s, scan.loop.var)]
        return whole if len({s.buffer for s in whole}) == len(found) else []

    def _streamed(self, s: Store, var: str, at: str, array: str, indent: str) -> str:
        place = self.element(self, s.buffer, s.indices)
        return f"{indent}{{ const pf_i64 {var} = {at}; pf_stream(&{place}, {array}, sizeof {array}); }}"
