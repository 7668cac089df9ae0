"""The legality check against an enumerator, on schedule trees broken on purpose.

Every verdict of `legality.check_schedule`, `parallel` and `races` must be the enumerator's, and every
witness must be a pair of instances that really is in the wrong order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import graphs
import pytest
from brute_force import Enumeration

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar, binary, substitute
from polyfuse.ir.schedule_tree import Member, Sequence, Tree, map_members, statements
from polyfuse.ir.tensor_graph import Const, Expr, Read, TensorGraph, map_expr
from polyfuse.poly.legality.schedules import Illegal, Verdict, Witness, check_schedule, earlier_than, parallel
from polyfuse.poly.model.dependences import ordering, reduction_self
from polyfuse.poly.model.domains import PolyModel, build_model, specialize
from polyfuse.poly.scheduling import tree_edit
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.poly.scheduling.isl_scheduler import schedule
from polyfuse.poly.scheduling.tree_edit import loops

MUTANTS_PER_GRAPH = 30
PAIRS_PER_GRAPH = 16
CHOICES = (
    (3, 2, 4, 2, 3),
    (2, 4, 3, 3, 2),
    (1, 3, 1, 2, 2),
    (5, 3, 2, 2, 2),
    (4, 4, 2, 1, 1),
    (7, 2, 2, 2, 2),
)

Mutation = Callable[[random.Random, Tree, TensorGraph], Tree]


def _address(rng: random.Random, tree: Tree) -> tuple[str, Member]:
    m = rng.choice(loops(tree))
    return f"{rng.choice(m.exprs)[0]}.{m.name}", m


def _sequences(tree: Tree) -> list[Sequence]:
    if isinstance(tree, Sequence):
        return [tree, *(s for c in tree.children for s in _sequences(c))]
    return _sequences(tree.child) if hasattr(tree, "child") else []


def swap_phases(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    children = [statements(c)[0] for c in rng.choice(_sequences(tree)).children]
    k = rng.randrange(len(children) - 1)
    children[k], children[k + 1] = children[k + 1], children[k]
    return tree_edit.reorder(tree, children)


def shuffle_phases(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    children = [statements(c)[0] for c in rng.choice(_sequences(tree)).children]
    rng.shuffle(children)
    return tree_edit.reorder(tree, children)


def move_statement(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    children = rng.choice(_sequences(tree)).children
    single = [c for c in children if len(statements(c)) == 1]
    moved = rng.choice(single)
    other = rng.choice([c for c in children if c is not moved])
    where = {rng.choice(("before", "after")): statements(other)[0]}
    return tree_edit.move(tree, statements(moved)[0], **where)


def shift(rng: random.Random, tree: Tree, graph: TensorGraph) -> Tree:
    at, m = _address(rng, tree)
    return tree_edit.shift(tree, at, rng.choice(m.exprs)[0], rng.choice((-2, -1, 1, 2)))


def reverse(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    return tree_edit.reverse(tree, _address(rng, tree)[0])


def tile(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    return tree_edit.split(tree, _address(rng, tree)[0], rng.choice((2, 3)))


def interchange(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    at, m = _address(rng, tree)
    name = m.exprs[0][0]
    for size in range(5, 1, -1):
        for order in _orders(rng, [x.name for x in loops(tree) if name in dict(x.exprs)], size):
            try:
                return tree_edit.interchange(tree, at, order)
            except ScheduleError:
                continue
    raise ScheduleError("no nest", code="PF522")


def _orders(rng: random.Random, names: list[str], size: int) -> Iterator[list[str]]:
    for start in range(len(names) - size + 1):
        order = names[start : start + size]
        rng.shuffle(order)
        yield order


def fuse(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    renamed = map_members(tree, lambda m: replace(m, name=f"loop{_depth(tree, m)}"))
    children = rng.choice(_sequences(renamed)).children
    k = rng.randrange(len(children) - 1)
    return tree_edit.fuse(renamed, statements(children[k])[0], statements(children[k + 1])[0])


def _depth(tree: Tree, member: Member) -> int:
    around = [m for m in loops(tree) if member.exprs[0][0] in dict(m.exprs)]
    return next(k for k, m in enumerate(around) if m is member)


def distribute(rng: random.Random, tree: Tree, _: TensorGraph) -> Tree:
    return tree_edit.distribute(tree, _address(rng, tree)[0])


def _change_row(rng: random.Random, tree: Tree, graph: TensorGraph, change: Callable[..., object]) -> Tree:
    _, target = _address(rng, tree)
    name = rng.choice(target.exprs)[0]
    dims = graph.statement(name).dims
    if not dims:
        raise ScheduleError("a statement without loops", code="PF522")
    dim = IVar(rng.choice(dims).name)

    def on(m: Member) -> Member:
        if m is not target:
            return m
        return replace(m, exprs=tuple((s, change(e, dim) if s == name else e) for s, e in m.exprs))

    return map_members(tree, on)


def reverse_one(rng: random.Random, tree: Tree, graph: TensorGraph) -> Tree:
    return _change_row(rng, tree, graph, lambda e, _: binary("-", 0, e))


def replace_row(rng: random.Random, tree: Tree, graph: TensorGraph) -> Tree:
    return _change_row(rng, tree, graph, lambda _, dim: dim)


def skew(rng: random.Random, tree: Tree, graph: TensorGraph) -> Tree:
    op = rng.choice("+-")
    return _change_row(rng, tree, graph, lambda e, dim: binary(op, e, dim))


def ignore_dependence(rng: random.Random, tree: Tree, graph: TensorGraph) -> Tree:
    """A schedule computed with one of the reads forgotten."""
    written = {s.target for s in graph.statements}
    name = rng.choice([s.name for s in graph.statements if any(r in written for r in _reads(s.expr))])
    victim = rng.choice([t for t in _reads(graph.statement(name).expr) if t in written])

    def forget(e: Expr) -> Expr:
        return Const(0.0, F32) if isinstance(e, Read) and e.tensor == victim else e

    changed = tuple(
        replace(s, expr=map_expr(s.expr, forget)) if s.name == name else s for s in graph.statements
    )
    wrong = replace(graph, statements=changed)
    return plan(wrong) if rng.random() < 0.5 else schedule(build_model(wrong))


def _reads(e: Expr) -> list[str]:
    found: list[str] = []

    def look(x: Expr) -> Expr:
        if isinstance(x, Read):
            found.append(x.tensor)
        return x

    map_expr(e, look)
    return found


MUTATIONS: tuple[Mutation, ...] = (
    swap_phases,
    shuffle_phases,
    move_statement,
    shift,
    reverse,
    tile,
    interchange,
    fuse,
    distribute,
    reverse_one,
    replace_row,
    skew,
    ignore_dependence,
)


def base_trees(graph: TensorGraph, model: PolyModel) -> list[Tree]:
    trees = [schedule(model)]
    try:
        trees.append(plan(graph))
    except ScheduleError as error:
        assert error.code == "PF510"
    return trees


def mutants(graph: TensorGraph, model: PolyModel) -> Iterator[tuple[str, Tree]]:
    """(what was done, tree), the unchanged trees included. The same in every run."""
    rng = random.Random(graph.name)
    bases = base_trees(graph, model)
    yield from (("base", b) for b in bases)
    made, tries = 0, 0
    while made < MUTANTS_PER_GRAPH:
        mutation = MUTATIONS[tries % len(MUTATIONS)]
        tries += 1
        try:
            tree = mutation(rng, rng.choice(bases), graph)
            if rng.random() < 0.2:
                tree = rng.choice(MUTATIONS[:-1])(rng, tree, graph)
        except (ScheduleError, IndexError, ValueError):
            continue
        made += 1
        yield mutation.__name__, tree


def all_sizes(graph: TensorGraph) -> list[dict[str, int]]:
    return [dict(zip(graph.sizes, values, strict=False)) for values in CHOICES]


def violates(enumeration: Enumeration, tree: Tree, witness: Witness, code: str) -> bool:
    """Is the witness a pair in the wrong order?"""
    source, sink = ((i.statement, tuple(v for _, v in i.values)) for i in (witness.source, witness.sink))
    times = enumeration.times(tree)
    if code == "PF502":
        return source != sink and source[0] == sink[0] and times[source] == times[sink]
    return enumeration.is_dependence(source, sink) and times[source] >= times[sink]


def judge(graph: TensorGraph, tree: Tree, verdict: Verdict, enumerations: list[Enumeration]) -> bool:
    """The enumerator's verdict, at the small sizes and at those of the witness; checks the witness."""
    if isinstance(verdict, Illegal):
        assert verdict.witness is not None
        sizes = dict(enumerations[0].sizes) | dict(verdict.witness.sizes)
        assert max(sizes.values(), default=0) <= 7, f"a witness at sizes {sizes}"
        at = Enumeration(graph, sizes)
        assert violates(at, tree, verdict.witness, verdict.code), verdict.message
        enumerations = [*enumerations, at]
    return all(e.complete(tree) and e.ordered(tree) for e in enumerations)


def _at_sizes(tree: Tree, sizes: dict[str, int]) -> Tree:
    values = {n: IConst(v) for n, v in sizes.items()}
    return map_members(
        tree, lambda m: replace(m, exprs=tuple((s, substitute(e, sizes=values)) for s, e in m.exprs))
    )


TALLY: Counter[str] = Counter()
PAIRS: Counter[str] = Counter()


@pytest.mark.parametrize("graph", graphs.ALL, ids=lambda g: g.name)
def test_verdicts_are_the_enumerators(graph: TensorGraph) -> None:
    model = build_model(graph)
    order = ordering(model)
    enumerations = [Enumeration(graph, sizes) for sizes in all_sizes(graph)]
    fixed = all_sizes(graph)[1]
    fixed_model = build_model(specialize(graph, fixed))
    for what, tree in mutants(graph, model):
        verdict = check_schedule(model, tree)
        legal = judge(graph, tree, verdict, enumerations)
        assert bool(verdict) == legal, (what, verdict, tree)
        TALLY["legal" if legal else verdict.code] += 1
        if not (isinstance(verdict, Illegal) and verdict.code == "PF502"):
            assert bool(earlier_than(model, tree, order)) == legal, (what, tree)
        at_fixed = enumerations[1].complete(tree) and enumerations[1].ordered(tree)
        assert bool(check_schedule(fixed_model, _at_sizes(tree, fixed))) == at_fixed, (what, tree)
        if what == "base":
            assert legal


@pytest.mark.parametrize("graph", graphs.ALL, ids=lambda g: g.name)
def test_parallel_and_races_are_the_enumerators(graph: TensorGraph) -> None:
    model = build_model(graph)
    enumerations = [Enumeration(graph, sizes) for sizes in all_sizes(graph)]
    rng = random.Random(graph.name)
    relations = ordering(model), reduction_self(model)
    trees = [tree for what, tree in mutants(graph, model)]
    chosen = [(t, m) for t in trees[:2] for m in loops(t)]
    others = [(t, m) for t in trees[2:] for m in loops(t)]
    for tree, member in [*chosen, *rng.sample(others, min(PAIRS_PER_GRAPH, len(others)))]:
        for races, relation in enumerate(relations):
            verdict = parallel(model, tree, member, relation)
            at = list(enumerations)
            if isinstance(verdict, Illegal):
                assert verdict.witness is not None
                at.append(Enumeration(graph, dict(at[0].sizes) | dict(verdict.witness.sizes)))
            expected = all(e.parallel(tree, member, bool(races)) for e in at)
            assert bool(verdict) == expected, (member, races, verdict, tree)
            PAIRS[f"{'races' if races else 'parallel'} {expected}"] += 1
        if (tree, member) in chosen and member.coincident:
            assert parallel(model, tree, member, relations[0]), "a claim of the scheduler is wrong"


def test_enough_was_judged(request: pytest.FixtureRequest) -> None:
    """Counts over this run: only meaningful after the tests above ran in this process."""
    if sum(TALLY.values()) < MUTANTS_PER_GRAPH * len(graphs.ALL):
        pytest.skip("needs the whole file in one process")
    illegal = sum(n for k, n in TALLY.items() if k != "legal")
    print(dict(TALLY), dict(PAIRS))
    assert sum(TALLY.values()) >= 400 and illegal >= 200
    assert sum(PAIRS.values()) >= 400
    assert min(PAIRS.values()) >= 30
