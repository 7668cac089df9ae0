"""Random steps by hand on random programs.

A step that is taken must be legal, and one that is refused illegal, by an oracle that knows no isl: it
enumerates the instances at small sizes.  It judges the marks of loops and bands as well, and the memory in
which elements take turns.  What the last schedule computes is compared with the float64 reference.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from brute_force import Enumeration, Time
from kinds import kind_call

import polyfuse as pf
from polyfuse.driver import by_hand
from polyfuse.ir.index_expr import evaluate as value
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, path, statements
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.poly.legality.kept_storage import Kept
from polyfuse.poly.scheduling.tree_edit import loops
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

KINDS = ("rows", "windows", "scans", "pieces", "inouts", "contractions", "scatters", "ranges")
STEPS = 8
MOST_INSTANCES = 600
FIRST, LAST = map(int, os.environ.get("POLYFUSE_TEST_GROUPS", "100:112").split(":"))

SMALL = {
    "chain": """op f(x: f32[N, M]) -> (y: f32[N, M]) where N >= 2 {
      a[i, j] = x[i, j] + 1.0
      b[k, j] = a[k, j] * a[k + 1, j] for k in 0..N-1
      y[i, j] = b[i, j] + 0.5 * a[i, j] for i in 0..N-1
      y[N - 1, j] = a[N - 1, j]
    }""",
    "softmax": """op f(x: f32[N, M]) -> (y: f32[N, M]) where M >= 1 {
      m[t] = max[h](x[t, h])
      e[t, h] = exp(x[t, h] - m[t])
      s[t] = sum[h](e[t, h])
      y[t, h] = e[t, h] / s[t]
    }""",
    "grid": """op f(x: f32[N, M]) -> (u: f32[N, M]) where N >= 2, M >= 3 {
      u[0, i] = x[0, i]
      u[t, i] = 0.5 * x[t, i] + 0.25 * (u[t - 1, i - 1] + u[t - 1, i + 1]) for t in 1..N, i in 1..M-1
      u[t, 0] = x[t, 0] for t in 1..N
      u[t, M - 1] = x[t, M - 1] for t in 1..N
    }""",
    "product": """op f(a: f32[N, K], b: f32[K, M]) -> (y: f32[N]) {
      c[i, j] = sum[k](a[i, k] * b[k, j])
      d[i, j] = c[i, j] + 1.0
      y[i] = sum[j](d[i, j])
    }""",
    "triangle": """op f(x: f32[N], w: f32[N]) -> (y: f32[N]) {
      a[i] = x[i] * w[i]
      p[i] = sum[j in 0..i+1](a[j]) for i in 0..N
      y[i] = p[i] - a[i]
    }""",
    "inout": """op f(inout p: f32[N], x: f32[N]) -> (y: f32[N]) where N >= 2 {
      y[i] = old(p[i]) * x[i]
      p[i] = old(p[i + 1]) + x[i] for i in 0..N-1
      p[N - 1] = 3.0
    }""",
    "two": """op f(x: f32[N]) -> (b: f32[N]) where N >= 2 {
      a[0] = x[0]
      b[0] = a[0]
      a[i] = 0.5 * b[i - 1] + x[i] for i in 1..N
      b[i] = a[i] + 1.0 for i in 1..N
    }""",
}

Step = Callable[[pf.Schedule], pf.Schedule]


def random_step(rng: random.Random, s: pf.Schedule) -> Step:
    """A primitive with arguments that mostly fit."""
    names = list(statements(s.tree))
    around = [(rng.choice(m.exprs)[0], m) for m in loops(s.tree)]
    first, second = (rng.choice(names) for _ in range(2))
    neighbours = [(statements(a)[-1], statements(b)[0]) for a, b in _neighbours(s.tree)]
    if neighbours:
        first, second = rng.choice(neighbours)
    tensor = rng.choice([t.name for t in s.graph.tensors])
    if not around:
        return lambda t: t.recompute(tensor)
    name, m = rng.choice(around)
    at = f"{name}.{m.name}"
    nest = [x.name for x in path(s.tree, name) if isinstance(x, Member)]
    inner, outer = rng.choice(nest), rng.choice(nest)
    order = [f"{name}.{x}" for x in rng.sample(nest, len(nest))]
    shared = rng.choice([None, None, m.name])
    steps: list[Step] = [
        *[lambda t: fused(rng, t, first, second, shared)] * 4,
        lambda t: t.distribute(at),
        lambda t: t.split(at, rng.choice((2, 3, 5))),
        lambda t: t.tile(order[:2], (2, 3)[: len(order[:2])]),
        *[lambda t: t.interchange(*order)] * 2,
        lambda t: t.reverse(at),
        lambda t: t.skew(f"{name}.{inner}", outer, rng.choice((1, 2, -1))),
        *[lambda t: t.shift(name, m.name, rng.choice((1, 2, -1)))] * 2,
        lambda t: t.move(first, after=second),
        lambda t: t.recompute(tensor),
        lambda t: t.recompute(tensor, at=at),
        lambda t: t.cache(tensor, at=at),
        *[lambda t: t.contract(tensor)] * 3,
    ]
    return rng.choice(steps)


def fused(rng: random.Random, s: pf.Schedule, first: str, second: str, at: str | None) -> pf.Schedule:
    """Two nests fused; before that their outermost loops get the same name now and then."""
    heads = [next((x.name for x in path(s.tree, n) if isinstance(x, Member)), None) for n in (first, second)]
    if None not in heads and heads[0] != heads[1] and rng.random() < 0.8:
        s = s.rename(f"{second}.{heads[1]}", str(heads[0]))
    return s.fuse(first, second, at=at)


def _neighbours(tree: Tree) -> Iterator[tuple[Tree, Tree]]:
    match tree:
        case Band(_, child):
            yield from _neighbours(child)
        case Sequence(children):
            yield from itertools.pairwise(children)
            for c in children:
                yield from _neighbours(c)
        case Leaf():
            return


class Oracle:
    """What the steps ask to be proved, judged by enumeration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[TensorGraph, Tree]] = []
        real = by_hand.proved

        def noted(graph: TensorGraph, tree: Tree, *kept: Any) -> Tree:
            self.asked.append((graph, tree))
            return real(graph, tree, *kept)

        monkeypatch.setattr(by_hand, "proved", noted)
        self.counts: Counter[str] = Counter()

    def take(self, s: pf.Schedule, step: Step) -> pf.Schedule:
        """The schedule after the step, or before it if that is rightly refused."""
        self.asked.clear()
        try:
            after = step(s)
        except pf.ScheduleError as refused:
            self.counts[refused.code] += 1
            if refused.code == "PF537":
                graph, tree = self.asked[-1]
                found = Enumeration(graph, {})
                assert not (found.complete(tree) and found.ordered(tree)), refused
            return s
        self.counts["taken"] += 1
        found = Enumeration(after.graph, {})
        assert found.complete(after.tree) and found.ordered(after.tree), after.history
        temporaries = {t.name for t in after.graph.tensors if t.role is Role.TEMP}
        assert all(cell in found.writes for cell in found.reads if cell[0] in temporaries), after.history
        if not after.kept:
            for m in loops(after.tree):
                assert m.coincident == found.parallel(after.tree, m), (after.history, m.name)
            self.check_bands(found, after.tree)
        for k in after.kept:
            check_storage(found, after.tree, k)
        return after

    def check_bands(self, found: Enumeration, whole: Tree) -> None:
        for b in _bands(whole):
            first = statements(b)[0]
            along = [m for m in path(whole, first) if isinstance(m, Member)]
            place = next(k for k, m in enumerate(along) if m is b.members[0])
            times = _times(found, whole, statements(b), place + len(b.members))
            assert b.permutable == _permutable(found, times, place), str(b)


def check_storage(found: Enumeration, tree: Tree, kept: Kept) -> None:
    """Every read finds its element, and every total its own, in memory where elements take turns."""
    times, here = found.times(tree), kept.tensor
    result = next((t.name for t in found.graph.tensors if t.alias == here), here)
    reductions = {s.name for s in found.graph.statements if s.reduction is not None}
    events: list[tuple[Time, int, tuple[str, tuple[int, ...]], str]] = []
    for cell, readers in found.reads.items():
        events += [(times[i], 0, cell, i[0]) for i in readers if cell[0] in (here, result)]
    for cell, writers in found.writes.items():
        events += [(times[i], 1, cell, i[0]) for i in writers if cell[0] == result]
    memory: dict[tuple[int, ...], tuple[str, tuple[int, ...]]] = {}
    begun: set[object] = set()
    for _, writes, cell, name in sorted(events):
        extents = [value(e, {}) for e in kept.extents] or [1 << 30] * len(cell[1])
        place = tuple(x % e for x, e in zip(cell[1], extents, strict=True))
        entry = memory.get(place, (here, place))  # a parameter has its values at entry
        if not writes or (name in reductions and cell in begun):
            assert entry == cell, (cell, place, kept)
        if writes:
            memory[place] = cell
            begun.add(cell)


def _bands(tree: Tree) -> Iterator[Band]:
    match tree:
        case Band(_, child):
            yield tree
            yield from _bands(child)
        case Sequence(children):
            for c in children:
                yield from _bands(c)


def _times(found: Enumeration, whole: Tree, names: tuple[str, ...], depth: int) -> dict[Any, Time]:
    members = {n: [m for m in path(whole, n) if isinstance(m, Member)][:depth] for n in names}
    return {
        i: tuple(value(m.of(i[0]), found.envs[i]) for m in members[i[0]])
        for i in found.instances
        if i[0] in members
    }


def _permutable(found: Enumeration, times: dict[Any, Time], place: int) -> bool:
    pairs = (p for sources, sinks in found._dependences() for p in itertools.product(sources, sinks))
    both = ((times[a], times[b]) for a, b in pairs if a in times and b in times)
    near = (zip(a[place:], b[place:], strict=True) for a, b in both if a[:place] == b[:place])
    return not any(x > y for steps in near for x, y in steps)


def begun(kind: str, seed: int) -> tuple[pf.Schedule, dict[str, Any]] | None:
    """The schedule of a random program, and its inputs; None where it is too large to be enumerated."""
    if kind in SMALL:
        dice = np.random.default_rng(seed)
        operator = pf.parse(SMALL[kind]).op()
        sizes = {n: int(dice.integers(3, 7)) for n in operator.signature.sizes}
        s = pf.schedule(operator, **sizes, fusion=pf.LoopFusion() if seed % 3 == 1 else None)
        tensors = [s.graph.tensor(n) for n in s.graph.inputs]
        shapes = {t.name: tuple(int(str(e)) for e in t.shape) for t in tensors}
        return s, {n: dice.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}
    call = kind_call(kind, seed)
    try:
        s = pf.schedule(call.text, **call.sizes)
    except pf.PolyfuseError:
        return None
    count = len(Enumeration(s.graph, {}).instances)
    return (s, call.inputs) if 0 < count <= MOST_INSTANCES else None


def run(s: pf.Schedule, inputs: dict[str, Any], target: str) -> None:
    graph = s.specialized.graph
    wanted = evaluate(graph, {}, inputs)
    arrays = {k: np.array(v) for k, v in inputs.items()}
    for t in graph.tensors:
        if t.role is Role.OUTPUT:
            shape = tuple(int(str(e)) for e in t.shape)
            arrays[t.name] = arrays[t.alias] if t.alias else np.zeros(shape, t.dtype.numpy)
    s.lower(pf.Options(threads=2), target=target).build(target).run(arrays)  # type: ignore[arg-type]
    for t in graph.tensors:
        if t.role is Role.OUTPUT:
            verdict = agrees(arrays[t.name], wanted[t.name], t.dtype)
            assert verdict, (t.name, verdict.message, s.history)


def check(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch, target: str) -> Counter[str]:
    start = begun(kind, seed)
    if start is None:
        return Counter()
    s, inputs = start
    rng, oracle = random.Random(seed), Oracle(monkeypatch)
    for tensor in s.graph.tensors if seed % 3 == 1 else ():  # storage to go wrong with
        s = oracle.take(s, lambda t, name=tensor.name: t.contract(name))  # type: ignore[misc]
    for _ in range(STEPS):
        s = oracle.take(s, random_step(rng, s))
    run(s, inputs, target)
    return oracle.counts


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("kind", SMALL)
def test_random_steps(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(kind, seed, monkeypatch, "interpret")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, LAST))
@pytest.mark.parametrize("kind", [*KINDS, *SMALL])
def test_many_random_steps(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(kind, seed, monkeypatch, ("interpret", "cpu", "emulate")[seed % 3])
