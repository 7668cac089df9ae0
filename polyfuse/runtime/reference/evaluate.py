"""The oracle: a tensor graph evaluated in float64, with a bound on what a kernel may differ by.

It knows no schedules: statements run in an order of their dependences, each over its whole domain with NumPy;
recurrences are stepped along an axis of their tensors, found here, or, where there is none, in rounds of what
has become ready (`run_in_order`).  Declared types round nothing: a value is the float64 result, except that
integers wrap, constants and inputs hold the nearest number of their type, and numbers beyond the range of
their type are infinities.  How far a kernel may be from the value is the bound that
`runtime.reference.values` defines and `runtime.reference.agreement` compares with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.index_expr import variables as index_variables
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Index,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    data_bounds_it,
    statement_reads,
)
from polyfuse.runtime.reference import reductions as reduction
from polyfuse.runtime.reference.block import (
    BLOCK_ELEMENTS,
    Active,
    Block,
    BlockEvaluator,
    Store,
    both,
    contraction,
    restrict,
)
from polyfuse.runtime.reference.ranges import moving_range
from polyfuse.runtime.reference.reductions import scattered
from polyfuse.runtime.reference.values import Array, Val, from_numpy, held_as, is_exact, undecided

# --- one statement ----------------------------------------------------------------------------------------


NO_DIMS = " "  # the one axis of a statement without loops
Ranges = Mapping[str, tuple[int, int]]
SCATTER_ELEMENTS = 1 << 24


@dataclass
class Runner:
    """The state of a reference run: what is known of every tensor."""

    graph: TensorGraph
    sizes: dict[str, int]
    stores: dict[str, Store]
    checked: bool
    chosen: Mapping[str, Array] = field(default_factory=dict)

    def box(self, s: Statement, fixed: Ranges) -> Block | None:
        """The smallest rectangle around the domain, or None if it is empty.

        `fixed` narrows the ranges of some dims.
        """
        ranges: dict[str, tuple[int, int]] = {}
        for d in s.dims:
            here = BlockEvaluator(s, Block(ranges or {NO_DIMS: (0, 1)}), self.stores, self.sizes, True)
            lo, hi = int(here.index(d.lower).min()), int(here.index(d.upper).max())
            if d.name in fixed:
                lo, hi = max(lo, fixed[d.name][0]), min(hi, fixed[d.name][1])
            if hi <= lo:
                return None
            ranges[d.name] = (lo, hi)
        return Block(ranges or {NO_DIMS: (0, 1)})

    def run(self, s: Statement, fixed: Ranges, wait: bool = False) -> bool:
        """Evaluate and store `s` on its domain; with `wait`, only where all it reads is defined.

        Says whether any element was left or found waiting.
        """
        reduced = s.reduction is not None and not s.accumulate
        outer = tuple(d.name for d in s.dims if not (d.reduce and reduced))
        whole = self.statement_box(s, fixed)
        if s.accumulate:
            self._start_accumulation(s)
        if whole is None:
            return False
        full = self.box(s, fixed)
        if full is not None and not wait:
            val = self._contract(s, full) or self._over_moving_range(s, full)
            if val is not None:
                at = BlockEvaluator(s, full, self.stores, self.sizes, self.checked)
                self._write(s, at, val, None)
                return False
        waiting = False
        limit = SCATTER_ELEMENTS if s.accumulate else BLOCK_ELEMENTS
        for part in (full or whole).split(outer, limit):
            waiting |= self._run_block(s, part, outer, reduced, empty=full is None, wait=wait)
        return waiting

    def statement_box(self, s: Statement, fixed: Ranges) -> Block | None:
        """The box of the dims that are not reduced (an empty reduction still defines elements)."""
        if s.reduction is None or s.accumulate:
            return self.box(s, fixed)
        return self.box(replace(s, dims=tuple(d for d in s.dims if not d.reduce)), fixed)

    def _run_block(
        self, s: Statement, block: Block, outer: tuple[str, ...], reduced: bool, *, empty: bool, wait: bool
    ) -> bool:
        pending = np.zeros(block.shape, bool) if wait else None
        at = BlockEvaluator(s, block, self.stores, self.sizes, self.checked, pending)
        mask = None if empty else self._inside(s, at)
        if s.accumulate:
            self._accumulate(s, at, mask)
            return False
        if reduced:
            val = self._reduce(s, at, mask, empty)
            axes = tuple(k for n, k in block.axis.items() if n not in outer)
            inside = None if mask is None else self._inside(s, at, outer_only=True)
            waits = None if pending is None else pending.any(axis=axes, keepdims=True)
        else:
            val, inside, waits = at.expr(s.expr, mask), mask, pending
        if waits is not None:
            ready: Array = np.logical_not(waits)
            inside = both(inside, ready)
        self._write(s, at, val, inside)
        return waits is not None and bool(waits.any())

    def _inside(self, s: Statement, at: BlockEvaluator, outer_only: bool = False) -> Active:
        """Where the block is inside the domain; None if everywhere (rectangular domains)."""
        mask: Active = None
        for d in s.dims:
            if (outer_only and d.reduce) or d.name not in at.block.ranges:
                continue
            if index_variables(d.lower) or index_variables(d.upper):
                v = at.block.coordinates(d.name)
                mask = both(mask, (v >= at.index(d.lower)) & (v < at.index(d.upper)))
        return mask

    # --- reductions ---

    def _reduce(self, s: Statement, at: BlockEvaluator, mask: Active, empty: bool) -> Val:
        op, block = cast(str, s.reduction), at.block
        inner = tuple(d.name for d in s.dims if d.reduce and d.name in block.ranges)
        if empty or (mask is not None and op in ("max", "min", "argmax", "argmin")):
            self._check_not_empty(s, at, mask, empty)
        if empty:
            kind: Any = held_as(s.expr.dtype if op in ("any", "all") or not s.expr.dtype.is_bool else I64)
            start = reduction.identity(op, s.expr.dtype)
            return Val(np.full(block.shape, start, kind), 0.0, True)
        axes = tuple(block.axis[n] for n in inner)
        if s.place is not None:
            return self._placed(s, at, mask, axes[0])
        if op in ARG_REDUCTIONS:
            (axis,) = axes
            first = block.ranges[inner[0]][0]
            return reduction.arg_extreme(op, at.expr(s.expr, mask), block.shape, axis, mask, first)
        total: reduction.Partial | None = None
        for part in block.split(inner):
            here = at
            if part is not block:
                here = BlockEvaluator(s, part, self.stores, self.sizes, self.checked, self._part(at, part))
            inside = self._inside(s, here)
            term = here.expr(s.expr, inside)
            more = reduction.partial(op, term, part.shape, axes, inside)
            total = more if total is None else reduction.merge(op, total, more)
        assert total is not None
        return reduction.finish(op, total, s.expr.dtype, _count(block, inner))

    def _placed(self, s: Statement, at: BlockEvaluator, mask: Active, axis: int) -> Val:
        """What stands at a place of an order."""
        assert s.place is not None
        (over,), ranges = s.reduction_dims, at.block.ranges
        place, term = at.index(s.place), at.expr(s.expr, mask)
        shape = [hi - lo if n == over else 1 for n, (lo, hi) in ranges.items()]
        v = np.broadcast_to(term.v, np.broadcast_shapes(np.shape(term.v), shape))
        choice, first = self._choice(s, at), ranges[over][0]
        return reduction.arg_place(str(s.reduction), replace(term, v=v), axis, mask, first, place, choice)

    def _choice(self, s: Statement, at: BlockEvaluator) -> reduction.Choice | None:
        """The part of a kernel's choice that a block is about."""
        chosen = self.chosen.get(s.target)
        if chosen is None:
            return None
        where, _ = at.locate(s.write, chosen.shape, s.target, s.span, None)
        return reduction.Choice(chosen[where], self._chosen_twice(s, chosen)[where])

    def _chosen_twice(self, s: Statement, chosen: Array) -> Array:
        """Which elements of a choice are those of another place of their row."""
        twice = np.zeros(chosen.shape, bool)
        if s.place in s.write:
            axis = s.write.index(s.place)
            order = np.argsort(chosen, axis=axis, kind="stable")
            same = np.diff(np.take_along_axis(chosen, order, axis), axis=axis) == 0
            later = np.pad(same, [(int(k == axis), 0) for k in range(chosen.ndim)])
            np.put_along_axis(twice, order, later, axis)
        return twice

    def _part(self, at: BlockEvaluator, part: Block) -> Array | None:
        """The view of `pending` that belongs to a part of the block."""
        if at.pending is None:
            return None
        cut = tuple(
            slice(lo - at.block.ranges[n][0], hi - at.block.ranges[n][0])
            for n, (lo, hi) in part.ranges.items()
        )
        return at.pending[cut]

    def _check_not_empty(self, s: Statement, at: BlockEvaluator, mask: Active, empty: bool) -> None:
        op = cast(str, s.reduction)
        if op in ("sum", "prod", "any", "all") or data_bounds_it(s.expr):
            return
        bad: Array = np.ones(at.block.shape, bool)
        if mask is not None and not empty:
            axes = tuple(at.block.axis[d.name] for d in s.dims if d.reduce)
            bad = np.asarray(~np.broadcast_to(mask, at.block.shape).any(axis=axes, keepdims=True))
        outer = self._inside(s, at, outer_only=True)
        if bool((bad if outer is None else bad & outer).any()):
            at.fail("PF451", f"{op} of no elements has no value", s.span, bad, outer)

    def _contract(self, s: Statement, full: Block) -> Val | None:
        """sum(a * b) as one matrix product over the whole box."""
        found = contraction(s, full)
        if found is None:
            return None
        parts = [restrict(full, tuple(names)) for names in found.names]
        x, y = (
            BlockEvaluator(s, part, self.stores, self.sizes, self.checked).expr(e)
            for part, e in zip(parts, (found.left, found.right), strict=True)
        )
        return found.evaluate(full, x, y, _count(full, found.reduced))

    def _over_moving_range(self, s: Statement, full: Block) -> Val | None:
        """A reduction of terms that are the same for many results, evaluated once."""
        found = moving_range(s, full)
        return None if found is None else found.values(full, self.stores, self.sizes, self.checked)

    # --- writing ---

    def _write(self, s: Statement, at: BlockEvaluator, val: Val, inside: Active) -> None:
        store = self.stores[s.target]
        outer = tuple(d.name for d in s.dims if not d.reduce)
        shape = tuple(
            n if name in outer else 1 for name, n in zip(at.block.ranges, at.block.shape, strict=True)
        )
        where, _ = at.locate(s.write, store.shape, s.target, s.span, inside) if s.write else ((), None)
        if any(extent == 0 for extent in store.shape):
            return
        v = np.broadcast_to(val.v, shape)
        if not is_exact(val.e) and is_exact(store.e):
            store.e = np.zeros(store.shape)
        e = None if is_exact(store.e) else np.broadcast_to(np.asarray(val.e, np.float64), shape)
        fast = at._as_slices(s.write, store.shape) if inside is None else None
        if fast is not None and fast[1] and set(fast[1]) == set(outer):
            slices = fast[0]
            at._aligned(store.v[slices], fast[1])[...] = v
            if e is not None:
                at._aligned(cast(Array, store.e)[slices], fast[1])[...] = e
            if store.defined is not None:
                store.defined[slices] = True
        else:
            put = np.ones(shape, bool) if inside is None else np.broadcast_to(inside, shape)
            places = tuple(np.broadcast_to(w, shape)[put] for w in where) if where else ...
            store.v[places] = v[put] if where else v.reshape(())
            if e is not None:
                cast(Array, store.e)[places] = e[put] if where else e.reshape(())
            if store.defined is not None and (where or bool(put.all())):
                store.defined[places] = True
        store.nonneg = store.nonneg and val.nonneg
        self._settle(store)

    def _settle(self, store: Store) -> None:
        if store.defined is not None and store.defined.all():
            store.defined = None

    def defined_count(self, tensor: str) -> int:
        """How many elements of a tensor are known."""
        store = self.stores[tensor]
        return store.v.size if store.defined is None else int(store.defined.sum())

    # --- accumulation ---

    def _start_accumulation(self, s: Statement) -> None:
        """What no statement defines starts at the identity (or the entry value of an inout)."""
        store = self.stores[s.target]
        if store.defined is not None and self.graph.tensor(s.target).alias is None:
            start = reduction.identity(cast(str, s.reduction), store.dtype)
            store.v[~store.defined] = start
            store.nonneg = store.nonneg and start >= 0
        store.defined = None

    def _accumulate(self, s: Statement, at: BlockEvaluator, mask: Active) -> None:
        store, op = self.stores[s.target], cast(str, s.reduction)
        term, shape = at.expr(s.expr, mask), at.block.shape
        where, unsure = at.locate(s.write, store.shape, s.target, s.span, mask)
        put = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        places = tuple(np.broadcast_to(w, shape)[put] for w in where)
        flat = np.zeros(int(put.sum()), np.int64)
        for place, extent in zip(places, store.shape, strict=True):
            flat = flat * extent + place
        v = np.broadcast_to(term.v, shape)[put]
        e = np.broadcast_to(np.asarray(term.e, np.float64), shape)[put]
        val = scattered(op, store, flat, v, e, is_exact(term.e))
        store.v, store.e = val.v, val.e
        if unsure is not None and bool(unsure.any()):
            store.e = np.full(store.shape, np.inf)
        store.nonneg = store.nonneg and term.nonneg


def _count(block: Block, names: tuple[str, ...]) -> int:
    return math.prod(block.ranges[n][1] - block.ranges[n][0] for n in names)


# --- the order of statements ------------------------------------------------------------------------------

# The order in which the reference evaluator runs statements, recurrences included.
#
# Statements are sorted by who reads whose elements, as far as rectangles around what is read and
# written tell.  A cycle of statements is a recurrence: if every tensor of it has an axis along which
# all reads inside the cycle point backwards (or all forwards) or stay, the cycle is stepped along those
# axes, and each step is sorted anew.  Else its statements run in rounds, each defining what has become
# ready, until nothing changes.


Interval = tuple[int, int]  # lowest and highest, both included
_FAR = 1 << 62
_PROBE = 1 << 20


@dataclass(frozen=True)
class Item:
    """A statement and the part of its domain to run: ranges that narrow some of its dims."""

    statement: Statement
    fixed: Ranges = field(default_factory=dict)


def run_in_order(runner: Runner) -> None:
    """Run every statement of the graph."""
    _run([Item(s) for s in runner.graph.statements], runner)


def _run(items: Sequence[Item], runner: Runner) -> None:
    live = [
        i for i in items if i.statement.accumulate or runner.statement_box(i.statement, i.fixed) is not None
    ]
    for group, cyclic in _components(live, runner):
        if not cyclic:
            runner.run(group[0].statement, group[0].fixed)
        elif not _step(group, runner):
            _in_rounds(group, runner)


# --- who reads whom ----------------------------------------------------------------------------------


def _components(items: Sequence[Item], runner: Runner) -> Iterator[tuple[list[Item], bool]]:
    """Strongly connected components, those read first."""
    needs = _needs(items, runner)
    for component in _tarjan(needs):
        members = sorted(component)
        cyclic = len(members) > 1 or members[0] in needs[members[0]]
        yield [items[k] for k in members], cyclic


def _needs(items: Sequence[Item], runner: Runner) -> list[list[int]]:
    writers: dict[str, list[int]] = {}
    for k, item in enumerate(items):
        writers.setdefault(item.statement.target, []).append(k)
    written = [_written(item, runner) for item in items]
    needs: list[list[int]] = []
    for item in items:
        s, found = item.statement, set[int]()
        for r in statement_reads(s):
            if r.tensor in writers:
                box = _intervals(r.indices, item, runner)
                found.update(w for w in writers[r.tensor] if _meet(box, written[w]))
        if s.accumulate:
            found.update(w for w in writers[s.target] if not items[w].statement.accumulate)
        needs.append(sorted(found))
    return needs


def _written(item: Item, runner: Runner) -> list[Interval] | None:
    """The rectangle a statement defines; None for all of the tensor."""
    return None if item.statement.accumulate else _intervals(item.statement.write, item, runner)


def _intervals(indices: Sequence[Index], item: Item, runner: Runner) -> list[Interval]:
    box = runner.box(item.statement, item.fixed) or runner.statement_box(item.statement, item.fixed)
    ranges = {} if box is None else {n: (lo, hi - 1) for n, (lo, hi) in box.ranges.items()}
    return [
        (-_FAR, _FAR) if isinstance(i, EXPR_TYPES) else interval(i, ranges, runner.sizes) for i in indices
    ]


def _meet(a: list[Interval], b: list[Interval] | None) -> bool:
    return b is None or all(p[0] <= q[1] and q[0] <= p[1] for p, q in zip(a, b, strict=True))


def interval(e: IndexExpr, ranges: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval:
    """Bounds of an index expression over a box of its variables."""
    match e:
        case IConst(value):
            return value, value
        case ISize(name):
            return sizes[name], sizes[name]
        case IVar(name):
            return ranges.get(name, (-_FAR, _FAR))
        case IBin(op, left, right):
            (a, b), (c, d) = interval(left, ranges, sizes), interval(right, ranges, sizes)
    match op:
        case "+":
            return a + c, b + d
        case "-":
            return a - d, b - c
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "*":
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        case "//" if c == d and c > 0:
            return a // c, b // c
        case "%" if c == d and c > 0:
            return (a % c, b % c) if a // c == b // c else (0, c - 1)
    return -_FAR, _FAR


def _tarjan(needs: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Strongly connected components, each after those it needs (iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    done: set[int] = set()
    for root in range(len(needs)):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(needs[root]))]
        while work:
            node, rest = work[-1]
            child = next(rest, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component, stack[at:] = stack[at:], []
                    done.update(component)
                    yield component
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                work.append((child, iter(needs[child])))
            elif child not in done:
                low[node] = min(low[node], index[child])


# --- recurrences -------------------------------------------------------------------------------------


def _step(group: list[Item], runner: Runner) -> bool:
    """Run a recurrence along an axis of its tensors; False if there is none."""
    found = _axes(group, runner)
    if found is None:
        return False
    axes, forward = found
    spans = _spans(group, axes, runner)
    times = range(min(lo for lo, _ in spans), max(hi for _, hi in spans) + 1)
    for time in times if forward else reversed(times):
        now = [
            _at_time(i, axes[i.statement.target], time, span) for i, span in zip(group, spans, strict=True)
        ]
        _run([i for i in now if i is not None], runner)
    return True


def _spans(group: list[Item], axes: Mapping[str, int], runner: Runner) -> list[Interval]:
    """First and last time of each item."""
    return [_intervals((i.statement.write[axes[i.statement.target]],), i, runner)[0] for i in group]


def _at_time(item: Item, axis: int, time: int, span: Interval) -> Item | None:
    """The part of the item that writes at `time` on an axis it writes by one variable or a constant."""
    if not span[0] <= time <= span[1]:
        return None
    moved = _one_variable(item.statement.write[axis])
    if moved is None:
        return item
    name, factor, constant = moved
    at, rest = divmod(time - constant, factor)
    low, high = item.fixed.get(name, (-_FAR, _FAR))
    return Item(item.statement, {**item.fixed, name: (at, at + 1)}) if not rest and low <= at < high else None


def _joined(index: Index) -> bool:
    """Whether several variables, or a variable's digits, make an index: no one of them is a time."""
    return not isinstance(index, EXPR_TYPES) and bool(index_variables(index)) and not _one_variable(index)


def _one_variable(index: Index) -> tuple[str, int, int] | None:
    """``2*t + 1`` as t, 2, 1."""
    match None if isinstance(index, EXPR_TYPES) else linear(index):
        case Linear(((IVar(name), factor),), constant):
            return name, factor, constant
        case _:
            return None


def _axes(group: list[Item], runner: Runner) -> tuple[dict[str, int], bool] | None:
    """An axis for each tensor such that every inner read points one way along them, and which way."""
    targets = list(dict.fromkeys(i.statement.target for i in group))
    ranks = [len(runner.stores[t].shape) for t in targets]
    if any(i.statement.accumulate for i in group) or not all(ranks):
        return None
    inner = [(i, r) for i in group for r in statement_reads(i.statement) if r.tensor in targets]
    known: dict[tuple[int, int, int], Interval | None] = {}
    for choice in itertools.islice(itertools.product(*map(range, ranks)), 4096):
        axes = dict(zip(targets, choice, strict=True))
        if any(_joined(i.statement.write[axes[i.statement.target]]) for i in group):
            continue
        spans = _spans(group, axes, runner)
        if min(lo for lo, _ in spans) == max(hi for _, hi in spans):
            continue
        deltas: list[Interval] = []
        for k, (item, read) in enumerate(inner):
            key = (k, axes[item.statement.target], axes[read.tensor])
            if key not in known:
                known[key] = _delta(item, read, key[1], key[2], runner)
            delta = known[key]
            if delta is None:
                break
            deltas.append(delta)
        if len(deltas) == len(inner):
            for forward in (True, False):
                far = [hi if forward else -lo for lo, hi in deltas]
                near = [lo if forward else -hi for lo, hi in deltas]
                if max(far) <= 0 and min(near) < 0:
                    return axes, forward
    return None


def _delta(item: Item, read: Read, written: int, axis: int, runner: Runner) -> Interval | None:
    """Bounds of (index read on `axis`) - (index written on `written`), or None if unknown."""
    at, to = read.indices[axis], item.statement.write[written]
    box = runner.box(item.statement, item.fixed)
    if isinstance(at, EXPR_TYPES) or isinstance(to, EXPR_TYPES) or box is None:
        return None
    names = (*index_variables(at), *index_variables(to))
    if np.prod([box.ranges[n][1] - box.ranges[n][0] for n in set(names)], dtype=np.float64) > _PROBE:
        return None
    here = Block({n: box.ranges[n] for n in dict.fromkeys(names)} or {" ": (0, 1)})
    evaluator = BlockEvaluator(item.statement, here, runner.stores, runner.sizes, True)
    delta = evaluator.index(at) - evaluator.index(to)
    return int(delta.min()), int(delta.max())


def _in_rounds(group: list[Item], runner: Runner) -> None:
    """Run a recurrence without a common axis: in every round, whatever has become ready."""
    before = -1
    while True:
        waiting = [runner.run(i.statement, i.fixed, wait=True) for i in group]
        targets = {i.statement.target for i in group}
        known = sum(runner.defined_count(t) for t in sorted(targets))
        if not any(waiting):
            return
        if known == before:
            s = group[waiting.index(True)].statement
            text = f"{s.target} is defined through itself: no order computes every element before it is read"
            raise DslError(text, code="PF355", span=s.span)
        before = known


# --- the evaluation ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluated:
    """A tensor of the reference run.

    `value` is float64, int64 or bool; `bound` (float64, same shape) is how far a kernel's element may
    be from it, 0 where it must be exact; `undecided` marks elements about which nothing can be said.
    """

    value: Array
    bound: Array
    undecided: Array


def evaluate(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    *,
    checked: bool = True,
    results: Mapping[str, Array] | None = None,
) -> dict[str, Evaluated]:
    """All tensors that `graph` computes: results, `p__out` of inout parameters, and temps.

    `inputs` holds an array for every input; scalars with a default may be left out. With `checked`,
    gathers and scatters out of range, integer division by zero and negative integer exponents raise
    `ArgumentError` (PF450, PF452, PF453); else indices are clamped and the results are 0.

    `results` are a kernel's. Where the order of elements is within their bounds, so that arglargest and
    argsmallest have several right results, what the kernel chose is followed if it is one of these.

    >>> evaluate(graph, {"N": 3}, {"x": x})["y"].value        # doctest: +SKIP
    """
    stores: dict[str, Store] = {}
    for t in graph.tensors:
        shape = tuple(evaluate_index(extent, sizes) for extent in t.shape)
        if t.role in (Role.INPUT, Role.INOUT):
            stores[t.name] = _input(t, shape, inputs)
    for t in graph.tensors:
        if t.name not in stores:
            shape = tuple(max(0, evaluate_index(extent, sizes)) for extent in t.shape)
            stores[t.name] = _empty(t, shape, stores)
    with np.errstate(all="ignore"):
        chosen = {s.target: np.asarray((results or {}).get(s.target)) for s in graph.statements if s.place}
        fitting = {n: a for n, a in chosen.items() if a.dtype == np.int64 and a.shape == stores[n].shape}
        runner = Runner(graph, dict(sizes), stores, checked, fitting)
        run_in_order(runner)
    written = [t for t in graph.tensors if t.role in (Role.OUTPUT, Role.TEMP)]
    return {t.name: _evaluated(t, stores[t.name]) for t in written}


def _input(t: Tensor, shape: tuple[int, ...], inputs: Mapping[str, Array]) -> Store:
    given = inputs.get(t.name, t.default)
    if given is None:
        raise ArgumentError(f"no value for {t.name}: {t.dtype}", code="PF454", span=t.span)
    a = np.asarray(given)
    a = a.astype(t.dtype.numpy) if a.dtype != t.dtype.numpy else a
    if a.shape != shape:
        raise ArgumentError(f"{t.name} has shape {a.shape}, expected {shape}", code="PF454", span=t.span)
    val = from_numpy(a, t.dtype)
    return Store(t.dtype, val.v, val.e)


def _empty(t: Tensor, shape: tuple[int, ...], stores: Mapping[str, Store]) -> Store:
    if t.alias is not None:
        entry = stores[t.alias]
        bound = entry.e if is_exact(entry.e) else np.array(entry.e)
        return Store(t.dtype, entry.v.copy(), bound, np.zeros(shape, bool))
    return Store(t.dtype, np.zeros(shape, held_as(t.dtype)), 0.0, np.zeros(shape, bool), True)


def _evaluated(t: Tensor, store: Store) -> Evaluated:
    """An element that nothing defines keeps the entry value (inout), else is undecided."""
    bound = np.array(np.broadcast_to(np.asarray(store.e, np.float64), store.shape))
    if store.defined is not None and t.alias is None:
        bound[~store.defined] = np.inf
    return Evaluated(store.v, bound, undecided(bound))
