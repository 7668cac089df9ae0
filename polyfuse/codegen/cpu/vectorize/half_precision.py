"""Vector loops over f16 and bf16 on a CPU: rows are converted by vector instructions around the lanes.

    for l in 0..64:                               pf_widen_f16(w, &x[c], 64)
      y[c + l] = f16(f(f32(x[c + l])))     ->     for l in 0..64:  n[l] = f(w[l])
                                                  pf_narrow_f16(&y[c], n, 64)

gcc 12 converts single halves by the machine's instruction and never vectors of them; in integer arithmetic
it vectorises, at ten instructions for each conversion.  Both arrays become registers where the lanes are
unrolled.  Only elements that lie side by side, and that every lane reads, are converted so; one that all
lanes share is converted by the machine's instruction, once.  The rest of a loop, or a loop of fewer lanes,
goes under masks (`codegen.cpu.vectorize.predicated_epilogues`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.accesses import converted
from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.analysis.trip_count import is_open_row, trip_of
from polyfuse.codegen.c_printer import Printer, bare
from polyfuse.codegen.cpu.vectorize.math_calls import Part, calls_rows, in_parts
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import FEWEST_LANES, carried, kept, tail_of
from polyfuse.codegen.math.conversions import STEP, scaled_name
from polyfuse.codegen.transforms.precision import is_normal, normal_names
from polyfuse.codegen.transforms.strength_reduction import (
    clamp_call,
    clamped_cast,
    scale_moved_inward,
    scaled_function,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import BF16, F16, F32, HALVES, DType
from polyfuse.ir.index_expr import IBin, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, Update, values_of
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Expr, Index, Read, depends_on, reads

Element = tuple[str, tuple[Index, ...]]
Half = tuple[str, tuple[Index, ...], DType]


def has_masked_end(body: Block, lane: str = "") -> bool:
    """Is what is left of a row of f32 computed under a mask: functions, which take long one by one?"""
    return calls_rows(body, lane)


@dataclass(slots=True)
class HalfPrinter(Printer):
    """Inside of lanes `widened` and `narrowed` name the arrays of elements that are read, and stored to, and
    `alike` what is the same for all.  Arrays in `roomy` have places for a whole step of lanes, wherever it
    begins.

    Neighbours in memory of buffers in `strided` may be apart.  Where arithmetic `flushes`, it makes 0 of
    denormals.  Loops `in_rows` that are computed at once (`codegen.cpu.printer`) are short: the rest of each
    goes under masks.  Iterations over a variable in `begin` begin with its lines.  Elements that
    are `held` are in arrays of the loop (`codegen.cpu.vectorize.predicated_epilogues`).
    """

    kernel: Kernel = field(kw_only=True)
    strided: frozenset[str] = field(default=frozenset(), kw_only=True)
    flushes: bool = field(default=False, kw_only=True)
    widened: Mapping[Element, str] = field(default_factory=dict, kw_only=True)
    narrowed: Mapping[Element, str] = field(default_factory=dict, kw_only=True)
    alike: Mapping[Element, str] = field(default_factory=dict, kw_only=True)
    roomy: set[str] = field(default_factory=set, kw_only=True)
    in_rows: bool = field(default=False, kw_only=True)
    begin: Mapping[str, tuple[str, ...]] = field(default_factory=dict, kw_only=True)
    held: Set[Element] = field(default=frozenset(), kw_only=True)

    def expr(self, e: Expr) -> str:
        match e:
            case Cast(Read(tensor, indices), dtype) if dtype == F32 and (tensor, indices) in self.widened:
                return f"{self.widened[tensor, indices]}[l]"
            case Cast(Read(tensor, indices), dtype) if dtype == F32 and (tensor, indices) in self.alike:
                return self.alike[tensor, indices]
            case Cast(Read(tensor, ()) as r, dtype) if (dtype, r.dtype) == (F32, F16) and self.kernel.find(
                tensor
            ):
                return self.call("pf_wide_f16", [Printer.expr(self, r)])
            case Cast(arg, dtype) if clamped_cast(e):
                return self.call(f"pf_{dtype.name}_within_{arg.dtype.name}", [self.expr(arg)])
            case Apply() if (clamp := clamp_call(e)) is not None:
                function, value, bound = clamp
                return self.call(function, [self.expr(value), bound])
            case Apply() if (made := scale_moved_inward(e)) is not e:
                return self.expr(made)
            case Apply() if (parts := scaled_function(e)) is not None:
                op, x, *constants = parts
                return self.call(scaled_name(op), [self.expr(x), *map(self.expr, constants)])
            case _:
                return Printer.expr(self, e)

    def node(self, node: Node, indent: str) -> list[str]:
        match node:
            case Store(buffer, indices, Cast(value)) if (buffer, indices) in self.narrowed:
                return [f"{indent}{self.narrowed[buffer, indices]}[l] = {bare(self.expr(value))};"]
            case _:
                return Printer.node(self, node, indent)

    def array(self, node: Declare, indent: str) -> list[str]:
        """With room for a step of lanes that begins at the last element: loops may start anywhere, and read
        what is further on.  Through a pointer: beside stores to an array gcc 12 leaves lanes in memory."""
        assert node.value is None, node
        self.roomy.add(node.name)
        name, kind, count = (
            scalar_name(node.name),
            node.dtype.c_name,
            node.count - 1 + FITTED.half_precision_lanes,
        )
        return [
            f"{indent}__attribute__((aligned(64))) {kind} {name}_m[{count}];",
            f"{indent}{kind}* __restrict const {name} = ({kind}*)__builtin_assume_aligned({name}_m, 64);",
        ]

    def loop(self, loop: For, indent: str) -> list[str]:
        if loop.window and (trip_of(loop) or FITTED.half_precision_lanes + 1) <= FITTED.half_precision_lanes:
            return self._window(loop, indent)
        if loop.coordinate is not Coordinate.VECTOR or loop.step != 1 or not self._worth(loop):
            return Printer.loop(self, loop, indent)
        i1 = indent + "  "
        return [
            f"{indent}{{",
            f"{i1}pf_i64 {loop.var}_s = {self.index(loop.lower)};",
            f"{i1}const pf_i64 {loop.var}_e = {self.index(loop.upper)};",
            *self.steps(loop, trip_of(loop), f"{loop.var}_e", i1),
            f"{indent}}}",
        ]

    def _window(self, loop: For, indent: str) -> list[str]:
        """A short loop whose start is computed, as one over so many lanes."""
        start = f"{loop.var}_s"
        return [
            f"{indent}{{",
            f"{indent}  const pf_i64 {start} = {self.index(loop.lower)};",
            *self.lanes_of(loop, start, trip_of(loop) or 0, indent + "  "),
            f"{indent}}}",
        ]

    def steps(self, loop: For, trip: int | None, end: str, indent: str) -> list[str]:
        """The iterations from the loop's start, a variable, to the end, so many if that is known."""
        i1, start, lanes = indent + "  ", f"{loop.var}_s", FITTED.half_precision_lanes
        is_open = is_open_row(self.kernel, loop)
        lanes = 2 * STEP if is_open else lanes
        whole = [
            *([f"{indent}PF_TWICE"] if is_open else []),
            f"{indent}for (; {start} + {lanes} <= {end}; {start} += {lanes}) {{",
            *self.lanes_of(loop, start, lanes, i1),
            f"{indent}}}",
        ]
        rest = FITTED.half_precision_lanes - 1 if trip is None else trip % FITTED.half_precision_lanes
        plain = [
            f"{indent}PF_IVDEP",
            f"{indent}for (pf_i64 {loop.var} = {start}; {loop.var} < {end}; ++{loop.var}) {{",
            *self.fence(loop.body, i1),
            *self.block(loop.body, i1),
            f"{indent}}}",
        ]
        if is_open:
            return [*whole, *self._open_rest(loop, end, plain, lanes, indent)]
        return [
            *(whole if trip is None or trip >= FITTED.half_precision_lanes else []),
            *(self._remainder(loop, end, rest, trip is not None, plain, indent) if rest else []),
        ]

    def _remainder(
        self, loop: For, end: str, most: int, known: bool, plain: list[str], indent: str
    ) -> list[str]:
        """At most so many iterations, all of them if that is known."""
        found, stored = self.halves(loop)
        if not found and not stored and not (self.in_rows and known) and not self._masked_end(loop):
            return plain
        lanes = -(-most // STEP) * STEP
        if known and lanes == most:
            return self.lanes_of(loop, f"{loop.var}_s", lanes, indent)
        return self.under_masks(loop, end, plain, lanes if known else STEP, indent, {}, once=known)

    def _open_rest(self, loop: For, end: str, plain: list[str], lanes: int, indent: str) -> list[str]:
        """What steps of so many lanes leave of a row whose length is open: steps of half as many, and so on,
        and what is less under masks."""
        start, lines = f"{loop.var}_s", list[str]()
        while (lanes := lanes // 2) >= STEP:
            lines += [
                f"{indent}if ({start} + {lanes} <= {end}) {{",
                *self.lanes_of(loop, start, lanes, indent + "  "),
                f"{indent}  {start} += {lanes};",
                f"{indent}}}",
            ]
        return [*lines, *self.under_masks(loop, end, plain, STEP, indent, {})]

    def under_masks(
        self,
        loop: For,
        end: str,
        plain: list[str],
        lanes: int,
        indent: str,
        totals: Mapping[str, int],
        *,
        once: bool = True,
        always: bool = False,
    ) -> list[str]:
        """The iterations from the loop's start to the end as one step of lanes, of which there are enough, or
        as several; `plain`, where that can't be.  `totals` are those of the lanes, {name: bytes}."""
        tail = (
            None
            if self.lazy
            else tail_of(loop, self.along, self.roomy if lanes <= FITTED.half_precision_lanes else ())
        )
        if tail is None:
            return plain
        i1, start = indent + "  ", f"{loop.var}_s"
        before, after = carried(tail, self, lanes, "rest", i1)
        copies, back = kept(totals, lanes, "rest", i1)
        inner = replace(self, element=tail.element(self.element), held=tail.places().keys())
        head = (
            ""
            if always
            else f"if ({start} < {end})"
            if once
            else f"for (; {start} < {end}; {start} += {lanes})"
        )
        left = f"{end} - {start}"
        rest = f"({left})" if once else self.call("pf_min_i64", [left, str(lanes)])
        return [
            "#ifdef PF_MASKS",
            f"{indent}{head}{' ' * bool(head)}{{",
            f"{i1}const int rest = (int){rest};",
            f"{i1}const pf_i64 {loop.var} = {start};",
            *before,
            *copies,
            *inner.lanes_of(loop, start, lanes, i1),
            *back,
            *after,
            f"{indent}}}",
            "#else",
            *plain,
            "#endif",
        ]

    def lanes_of(self, loop: For, start: str, lanes: int, indent: str) -> list[str]:
        """The iterations of a vector loop from `start` on, as a loop over so many lanes."""
        found, stored = self.halves(loop) if lanes % 16 == 0 else ([], [])
        wide = {(t, i): f"{loop.var}_w{k}" for k, (t, i, _) in enumerate(found)}
        narrow = {(t, i): f"{loop.var}_n{k}" for k, (t, i, _) in enumerate(stored)}
        alike = {(r.tensor, r.indices): f"{loop.var}_a{k}" for k, r in enumerate(self._alike(loop))}
        inner = replace(self, widened=wide, narrowed=narrow, alike=alike)
        lines = [f"{indent}float {', '.join(f'{n}[{lanes}]' for n in (*wide.values(), *narrow.values()))};"]
        here = f"const int l = 0; const pf_i64 {loop.var} = {start} + l;"
        names = self._normal(loop)
        normal = {
            (n.buffer, n.indices)
            for n in loop.body
            if isinstance(n, Store) and isinstance(n.value, Cast) and is_normal(n.value.arg, names)
        }

        def converted(way: str, half: Half, array: str) -> str:
            tensor, indices, dtype = half
            place = f"&{self.element(self, tensor, indices)}"
            given = [array, place] if way == "widen" else [place, array]
            return f"{indent}{{ {here} {self.call(f'pf_{way}_{dtype.name}', [*given, str(lanes)])}; }}"

        def narrowing(half: Half) -> str:
            return "narrow_normal" if half[2] == BF16 and half[:2] in normal else "narrow"

        return [
            *(lines if wide or narrow else []),
            *[
                f"{indent}const float {name} = {self.call('pf_wide_f16', [self.element(self, *e)])};"
                for e, name in alike.items()
            ],
            *[converted("widen", h, wide[h[:2]]) for h in found],
            *inner._unrolled(loop, start, lanes, indent),
            *[converted(narrowing(h), h, narrow[h[:2]]) for h in stored],
        ]

    def _unrolled(self, loop: For, start: str, lanes: int, indent: str) -> list[str]:
        """The loop over lanes, or several with functions of rows between them."""
        if lanes % 16 or self.lazy or not self._calls(loop):
            return self._part(Part(loop.body), loop.var, start, lanes, indent)
        cut = in_parts(
            loop.body,
            self._is_scalar,
            self._normal(loop),
            self._lane(loop),
        )
        inner = replace(self, element=cut.element(self.element))
        lines = [f"{indent}{t.c_name} {scalar_name(n)}[{lanes}];" for n, t in cut.arrays]
        for part in cut.parts:
            lines += inner._part(part, loop.var, start, lanes, indent)
        return lines

    def _is_scalar(self, s: Store) -> bool:
        """Does a store set a scalar of the function, no element of an array or of memory?"""
        b = self.kernel.find(s.buffer)
        return not s.indices if b is None else b.scope is Scope.REGISTER

    def _part(self, part: Part, var: str, start: str, lanes: int, indent: str) -> list[str]:
        i1 = indent + "  "
        rolled = " PF_ROLLED" if lanes < FEWEST_LANES else ""
        lines = [
            f"{indent}PF_IVDEP{rolled}",
            f"{indent}for (int l = 0; l < {lanes}; ++l) {{",
            f"{i1}const pf_i64 {var} = {start} + l;",
            *(f"{i1}{line}" for line in self.begin.get(var, ())),
            *self.fence(part.body, i1),
            *self.block(part.body, i1),
            f"{indent}}}",
        ]
        if part.function:
            same = map(self.expr, part.same)
            lines.append(f"{indent}{self.call(part.function, [part.array, str(lanes), *same])};")
        return lines

    def _lane(self, loop: For) -> str:
        """The variable of a loop that alone tells its lanes apart, if there is one."""
        return "" if loop.var in self.begin else loop.var

    def _calls(self, loop: For) -> bool:
        """Are there functions of rows?"""
        return calls_rows(loop.body, self._lane(loop))

    def _masked_end(self, loop: For) -> bool:
        return has_masked_end(loop.body, self._lane(loop))

    def _worth(self, loop: For) -> bool:
        """Are there conversions or functions of rows, and lanes enough for them?"""
        trip = trip_of(loop)
        if self.in_rows and trip and trip % FITTED.half_precision_lanes and not self.lazy:
            return True
        if not self.lazy and is_open_row(self.kernel, loop):
            return True
        if any(self.halves(loop)):
            return trip is None or trip >= FITTED.half_precision_fewest
        if self.lazy or not self._calls(loop):
            return False
        if trip is None or trip >= FITTED.half_precision_lanes:
            return True
        return trip > STEP // 2 and trip % STEP > 0 and self._masked_end(loop)

    def halves(self, loop: For) -> tuple[list[Half], list[Half]]:
        """Elements of 16 bits that all lanes read, and that they store; none where indices are reported."""
        if self.lazy or not all(isinstance(n, (Declare, Store, Update)) for n in loop.body):
            return [], []
        targets = [n.buffer for n in loop.body if isinstance(n, (Store, Update))]
        found = [
            (r.tensor, r.indices, r.dtype)
            for r in converted(loop.body)
            if r.tensor not in targets and self.along((r.tensor, r.indices), loop.var)
        ]
        stored = [
            (n.buffer, n.indices, n.value.dtype)
            for n in loop.body
            if isinstance(n, Store) and _narrows(n.value) and _alone(n, loop.body)
            if self.along((n.buffer, n.indices), loop.var)
        ]
        return list(dict.fromkeys(found)), stored

    def _normal(self, loop: For) -> frozenset[str] | None:
        """Scalars of a loop that are normal or 0; None where any value may be denormal."""
        return normal_names(loop.body) if self.flushes else None

    def _alike(self, loop: For) -> list[Read]:
        """Reads of f16 that all lanes share; none where a lane begins with the variables of its own row."""
        if (
            self.lazy
            or loop.var in self.begin
            or not all(isinstance(n, (Declare, Store, Update)) for n in loop.body)
        ):
            return []
        own = {n.name if isinstance(n, Declare) else n.buffer for n in loop.body}  # type: ignore[union-attr]
        found = [r for r in converted(loop.body) if r.dtype == F16 and r.tensor not in own]
        plain = [r for r in found if not any(isinstance(i, EXPR_TYPES) for i in r.indices)]
        return list(dict.fromkeys(r for r in plain if loop.var not in depends_on(*r.indices)))

    def along(self, e: Element, var: str) -> bool:
        """Do neighbouring lanes find neighbours in memory?"""
        name, indices = e
        if not indices or name in self.strided:
            return False
        *leading, last = indices
        if isinstance(last, EXPR_TYPES) or var in depends_on(*leading):
            return False
        return _follows(last, var)


def _follows(e: IndexExpr, var: str) -> bool:
    """Is an index the variable and something that does not depend on it?"""
    match e:
        case IBin("+", a, b):
            return (_follows(a, var) and var not in variables(b)) or (
                _follows(b, var) and var not in variables(a)
            )
        case IBin("-", a, b):
            return _follows(a, var) and var not in variables(b)
        case _:
            return e == IVar(var)


def _alone(store: Store, body: Block) -> bool:
    """Does nothing else in the body change what a store does, or read it after it?  Its indices differ by a
    number from those of others, and iterations do not meet."""
    after = body[next(k for k, n in enumerate(body) if n is store) + 1 :]
    if any(r.tensor == store.buffer for v in values_of(after) for r in reads(v)):
        return False
    others = [
        n for n in body if isinstance(n, (Store, Update)) and n.buffer == store.buffer and n is not store
    ]
    return all(any(map(_differ, store.indices, n.indices)) for n in others)


def _differ(a: Index, b: Index) -> bool:
    """Are two indices never the same?"""
    if isinstance(a, EXPR_TYPES) or isinstance(b, EXPR_TYPES):
        return False
    apart = linear(a - b)
    return not apart.terms and apart.constant != 0


def _narrows(e: Expr) -> bool:
    return isinstance(e, Cast) and e.dtype in HALVES and e.arg.dtype == F32
