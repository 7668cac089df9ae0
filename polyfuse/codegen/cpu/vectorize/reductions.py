"""Reduction loops on a CPU: one partial result per lane, and a total of the lanes after the loop.

    for c1: acc sum= x[c1]      becomes      acc_v[64] = 0
                                             for c1 by 64:  for l in 0..64:  acc_v[l] += x[c1 + l]
                                             the rest, of fewer than 64
                                             acc = acc + total of acc_v

Reassociation is written out because no compiler flag allows it (Meaning, in the language).

Minima and maxima of floats take the larger (smaller) of two numbers, one instruction, and a second array
keeps a NaN that came by: a choice that lets NaN through would be four, one after the other.  That array
starts as -0, which changes no number that it is added to.  Extremes of the same terms (`max(x) - min(x)`)
share one, and those that need not know of NaN (`codegen.transforms.nan_free_extremes`) have none.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.periodicity import by_steps
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.analysis.row_batch import joint_totals
from polyfuse.codegen.analysis.trip_count import is_open_row, longest, most_trips, trip_of
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.cpu.printer import part_text, rows_text, sums_text, tile_text
from polyfuse.codegen.cpu.scatter_printer import owned_text
from polyfuse.codegen.cpu.vectorize.half_precision import HalfPrinter
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import FEWEST_LANES, tail_lanes
from polyfuse.codegen.math.vector_reduce import fold_name, joins, offered
from polyfuse.codegen.transforms.wide_accumulators import CHAIN, terms_of
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IVar
from polyfuse.ir.linear import size_ranges
from polyfuse.ir.loop_ir import Block, Declare, For, If, OwnedLoop, RegisterTile, Update, values_of
from polyfuse.ir.ops import Cost, of_cost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Const, Expr, Index, reads, walk

_DIVIDER = of_cost(Cost.DIVIDER)


@dataclass(slots=True)
class LanePrinter(HalfPrinter):
    """Accumulators of a loop fill `lane_bytes` each, and at most `lane_room` together; inside the loop
    `arrays` holds the names of their lanes, and `nans` those of another accumulator that keep their NaN.

    In one of the rows that are computed at once, lanes of what is in `parts` wait for those of other rows.
    """

    lane_bytes: int = field(kw_only=True)
    lane_room: int = field(kw_only=True)
    arrays: dict[str, str] = field(default_factory=dict, kw_only=True)
    nans: dict[str, str] = field(default_factory=dict, kw_only=True)
    parts: frozenset[str] = field(default=frozenset(), kw_only=True)

    def loop(self, loop: For, indent: str) -> list[str]:
        if loop.joint:
            return self._joint(loop, indent)
        return self._lanes(loop, indent) if loop.lanes else HalfPrinter.loop(self, loop, indent)

    def update(self, node: Update, indent: str) -> list[str]:
        if node.buffer not in self.arrays or not _is_extreme(node):
            return Printer.update(self, node, indent)
        total = f"{self.arrays[node.buffer]}[l]"
        sign = ">" if node.op == "max" else "<"
        lines = [
            f"{indent}  const {node.value.dtype.c_name} q = {bare(self.expr(node.value))};",
            f"{indent}  {total} = {total} {sign} q ? {total} : q;",
        ]
        if node.nan and node.buffer not in self.nans:
            kept = f"{_nan_array(self.arrays[node.buffer])}[l]"
            lines.append(f"{indent}  {kept} = q != q ? q : {kept};")
        return [f"{indent}{{", *lines, f"{indent}}}"]

    def tile(self, node: RegisterTile, indent: str) -> list[str]:
        gathered = node.right.tensor in self.strided
        return tile_text(self, node, indent, gathered, size_ranges(self.kernel.graph))

    def owned(self, node: OwnedLoop, indent: str) -> list[str]:
        return owned_text(self, node, indent)

    def _joint(self, loop: For, indent: str) -> list[str]:
        """A loop over rows that are computed at once; in the end it combines their totals."""
        inner = replace(self, in_rows=True, parts=frozenset(loop.lanes))
        if loop.coordinate is Coordinate.VECTOR:
            # Its lanes are rows: no lines follow that could be asked for (`codegen.cpu.memory_ops`).
            return [
                f"{indent}{{",
                *HalfPrinter.lanes_of(inner, loop, "0", trip_of(loop) or 0, indent + "  "),
                f"{indent}}}",
            ]
        begin = [f"{indent}    {x}" for x in self.begin.get(loop.var, ())]
        totals = [(u, _arrays_of(u, f"{scalar_name(u.buffer)}_v")) for u in _totals(loop)]
        return rows_text(self, loop, [*begin, *inner.block(loop.body, indent + "    ")], totals, indent)

    def _lanes(self, loop: For, indent: str) -> list[str]:
        updates = {n.buffer: n for n in _updates(loop.body) if n.buffer in loop.lanes}
        i1, i2 = indent + "  ", indent + "    "
        arrays = {name: f"{scalar_name(name)}_v" for name in updates}
        nans = {} if self.in_rows else {a: _nan_array(arrays[b]) for a, b in _same_nan(loop, updates).items()}
        inner = replace(self, element=_lane_element(self.element, arrays), arrays=arrays, nans=nans)
        count = sum(len(inner._own(u)) for u in updates.values())
        lanes = self._count(loop, max(u.value.dtype.bytes for u in updates.values()), count)
        most = most_trips(loop)
        piece = max(1, CHAIN // terms_of(loop)) * lanes
        pieces = loop.long and not self.in_rows and (most is None or most > piece)
        start, end = f"{loop.var}_s", f"{loop.var}_e"
        lines = [line for u in updates.values() for line in inner._start(u, lanes, i2 if pieces else i1)]
        loop = by_steps(loop, lanes, IVar(start))
        first = f"pf_i64 {start} = {self.index(loop.lower)};"
        if pieces:
            near = self.call("pf_min_i64", [f"{start} + {piece}", f"{loop.var}_u"])
            return [
                f"{indent}{{",
                f"{i1}{first}",
                f"{i1}const pf_i64 {loop.var}_u = {self.index(loop.upper)};",
                f"{i1}while ({start} < {loop.var}_u) {{",
                f"{i2}const pf_i64 {end} = {near};",
                *lines,
                *self._steps(inner, loop, updates, lanes, i2),
                f"{i2}{start} = {end};",
                f"{i1}}}",
                f"{indent}}}",
            ]
        lines += [f"{i1}{first}", f"{i1}const pf_i64 {end} = {self.index(loop.upper)};"]
        return [f"{indent}{{", *lines, *self._steps(inner, loop, updates, lanes, i1), f"{indent}}}"]

    def _steps(
        self, inner: LanePrinter, loop: For, updates: dict[str, Update], lanes: int, indent: str
    ) -> list[str]:
        """Steps of lanes from where the loop has come to, what is left, and the totals of the lanes."""
        start, end, arrays = f"{loop.var}_s", f"{loop.var}_e", inner.arrays
        lines = [
            *([f"{indent}PF_TWICE"] if is_open_row(self.kernel, loop) else []),
            f"{indent}for (; {start} + {lanes} <= {end}; {start} += {lanes}) {{",
            *inner.lanes_of(loop, start, lanes, indent + "  "),
            f"{indent}}}",
            *inner._rest(loop, [*updates.values()], lanes, indent),
        ]
        if many_sums(loop) and not self.parts & {*updates}:
            totals = {scalar_name(name): array for name, array in arrays.items()}
            dtype = next(iter(updates.values())).value.dtype
            return [*lines, *sums_text(self, totals, dtype, lanes, indent)]
        after = replace(self, nans=inner.nans)
        for name, u in updates.items():
            lines += after._total(u, arrays[name], lanes, scalar_name(name), indent)
        return lines

    def _rest(self, loop: For, updates: list[Update], lanes: int, indent: str) -> list[str]:
        """The iterations that fill no step of all lanes, under masks or one by one."""
        trip = trip_of(loop)
        rest = None if trip is None else trip % lanes
        if rest == 0:
            return []
        i1 = indent + "  "
        start, end = f"{loop.var}_s", f"{loop.var}_e"
        plain = [
            f"{indent}PF_IVDEP",
            f"{indent}for (int l = 0; l < (int)({end} - {start}); ++l) {{",
            f"{i1}const pf_i64 {loop.var} = {start} + l;",
            *self.fence(loop.body, i1),
            *self.block(loop.body, i1),
            f"{indent}}}",
        ]
        totals = {a: u.value.dtype.bytes for u in updates for a in self._own(u)}
        if is_open_row(self.kernel, loop):
            return self.under_masks(loop, end, plain, lanes, indent, totals, always=not _divides(loop))
        count = tail_lanes(rest, lanes, min(totals.values()), self.in_rows)
        return plain if count is None else self.under_masks(loop, end, plain, count, indent, totals)

    def _count(self, loop: For, widest: int, arrays: int) -> int:
        """How many lanes: short loops have fewer, so that less is left to combine, and so have loops of many
        arrays, which shall stay in registers."""
        lanes = max(8, min(self.lane_bytes, loop.lane_bytes or self.lane_bytes) // widest)
        trip = longest(self.kernel, loop)
        if is_open_row(self.kernel, loop):
            return min(lanes, _count_in_open_row(trip or 0, widest))
        if self.in_rows:
            return _count_in_rows(trip, lanes)
        while (
            lanes > FITTED.vector_reductions_least_bytes // widest
            and lanes * widest * arrays > self.lane_room
        ):
            lanes //= 2
        while (
            trip is not None
            and lanes > FEWEST_LANES
            and lanes * FITTED.vector_reductions_fewest_rounds > trip
        ):
            lanes //= 2
        return lanes

    def _own(self, u: Update) -> list[str]:
        """The arrays of an accumulator: that of its NaN only if no other one keeps it."""
        lanes, *nan = _arrays_of(u, self.arrays[u.buffer])
        return [lanes] if u.buffer in self.nans else [lanes, *nan]

    def _start(self, u: Update, lanes: int, indent: str) -> list[str]:
        dtype = u.value.dtype
        starts = (identity(u.op, dtype), -0.0)
        lines = []
        for name, start in zip(self._own(u), starts, strict=False):
            value = self.expr(Const(start, dtype))
            lines.append(f"{indent}{dtype.c_name} {name}[{lanes}];")
            lines.append(f"{indent}for (int l = 0; l < {lanes}; ++l) {name}[l] = {value};")
        return lines

    def _total(self, u: Update, array: str, lanes: int, total: str, indent: str) -> list[str]:
        """The lanes join the total, or become those of one vector and wait for other rows."""
        if u.buffer in self.parts:
            arrays = _arrays_of(u, array)
            return [f"{indent}{x}" for x in part_text(self, u.value.dtype, arrays, lanes)]
        lines: list[str] = []
        dtype = u.value.dtype
        found = self._fold(u.op, u, array, lanes, lines, indent)
        if _keeps_nan(u):
            kept = self.nans.get(u.buffer, _nan_array(array))
            found = f"({found} + {self._fold('sum', u, kept, lanes, lines, indent)})"
        return [*lines, f"{indent}{total} = {bare(self.combine(u.op, total, found, dtype))};"]

    def _fold(self, op: str, u: Update, array: str, lanes: int, lines: list[str], indent: str) -> str:
        """One value of an array: a function of the prelude, or else a tree, whose steps join `lines`."""
        dtype = u.value.dtype
        if offered(op, dtype, lanes):
            return self.call(fold_name(op, dtype), [array, str(lanes)])
        half = lanes // 2
        while half >= 1:
            both = self.combine(op, f"{array}[l]", f"{array}[l + {half}]", dtype)
            lines.append(f"{indent}for (int l = 0; l < {half}; ++l) {array}[l] = {bare(both)};")
            half //= 2
        return f"{array}[0]"


def many_sums(loop: For) -> bool:
    """Are there many sums of one type, whose lanes are combined in steps of all of them?"""
    kinds = {(u.op, u.value.dtype) for u in _updates(loop.body) if u.buffer in loop.lanes}
    one = len(kinds) == 1 and all(op == "sum" and joins(op, dtype) for op, dtype in kinds)
    return one and len(loop.lanes) >= FITTED.vector_reductions_many_sums


def adds_to_several(loop: For, held: Set[str]) -> bool:
    """Does a loop add to several arrays of totals that are held in registers (`LocalRole.HELD`)?"""
    found = {n.buffer for n in loop.body if isinstance(n, Update)}
    return len(found) > 1 and found <= held


def _is_extreme(u: Update) -> bool:
    return u.op in ("max", "min") and u.value.dtype.is_float


def _keeps_nan(u: Update) -> bool:
    return _is_extreme(u) and u.nan


def _arrays_of(u: Update, array: str) -> dict[str, str]:
    """The lanes of an accumulator, and those of its NaN: how each are combined."""
    return {array: u.op, _nan_array(array): "sum"} if _keeps_nan(u) else {array: u.op}


def _same_nan(loop: For, updates: dict[str, Update]) -> dict[str, str]:
    """Extremes whose NaN an earlier one of the same terms keeps, and that one."""
    if not all(isinstance(n, (Update, Declare)) for n in loop.body):
        return {}
    first: dict[Expr, str] = {}
    every = [
        u for u in updates.values() if _keeps_nan(u) and not {r.tensor for r in reads(u.value)} & set(updates)
    ]
    return {u.buffer: first[u.value] for u in every if first.setdefault(u.value, u.buffer) != u.buffer}


def _totals(loop: For) -> list[Update]:
    """What a loop over rows combines."""
    return [u for n in loop.body if isinstance(n, For) for u in joint_totals(n) if u.buffer in loop.lanes]


def _count_in_open_row(most: int, widest: int) -> int:
    """Lanes for a row of an open length: few, as they are all computed for what is left of it."""
    one = max(16, 64 // widest)
    return one if most <= FITTED.open_rows_short else max(FEWEST_LANES, one)


def _count_in_rows(trip: int | None, lanes: int) -> int:
    """Lanes of one of the rows that are computed at once: a short one may be a single vector."""
    lanes = max(16, lanes)
    fewest = 16 if trip is not None and trip <= 16 else FEWEST_LANES
    while trip is not None and lanes > fewest and lanes * FITTED.vector_reductions_fewest_rounds > trip:
        lanes //= 2
    return lanes


def _nan_array(array: str) -> str:
    return f"{array}_nan"


def _lane_element(
    element: Callable[[Printer, str, tuple[Index, ...]], str], arrays: dict[str, str]
) -> Callable[[Printer, str, tuple[Index, ...]], str]:
    def lane(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
        return f"{arrays[buffer]}[l]" if buffer in arrays else element(printer, buffer, indices)

    return lane


def _updates(block: Block) -> list[Update]:
    found: list[Update] = []
    for node in block:
        match node:
            case Update():
                found.append(node)
            case If():
                found += _updates(node.then) + _updates(node.other)
            case _:
                pass
    return found


def _divides(loop: For) -> bool:
    """Has a loop quotients or roots, which take longer than a branch and totals in memory behind it?"""
    every = (e for v in values_of(loop.body) for e in walk(v) if isinstance(e, Apply))
    return any(e.op in _DIVIDER for e in every)
