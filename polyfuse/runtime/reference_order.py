"""The order in which the reference evaluator runs statements, recurrences included.

Statements are sorted by who reads whose elements, as far as rectangles around what is read and
written tell.  A cycle of statements is a recurrence: if every tensor of it has an axis along which
all reads inside the cycle point backwards (or all forwards) or stay, the cycle is stepped along those
axes, and each step is sorted anew.  Else its statements run in rounds, each defining what has become
ready, until nothing changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from polyfuse.diagnostics import DslError
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar
from polyfuse.ir.index_expr import variables as index_variables
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, Read, Statement, statement_reads
from polyfuse.runtime.reference_block import Block, BlockEvaluator
from polyfuse.runtime.reference_run import Ranges, Runner

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
    """The part of the item that writes at `time` on an axis it writes by a variable or a constant."""
    if not span[0] <= time <= span[1]:
        return None
    index = item.statement.write[axis]
    if isinstance(index, IVar):
        return Item(item.statement, {**item.fixed, index.name: (time, time + 1)})
    return item


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
