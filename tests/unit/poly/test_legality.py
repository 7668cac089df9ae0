"""The legality check on cases decided by hand: verdicts, witnesses and places in the source."""

from __future__ import annotations

from dataclasses import replace

import graphs
import pytest
from graphs import graph

from polyfuse.ir.index_expr import ISize, IVar
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, map_members, restrict, shape
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import (
    Illegal,
    Instance,
    Legal,
    Verdict,
    Witness,
    check_complete,
    check_schedule,
    mark_coincident,
    parallel,
    races,
)
from polyfuse.poly.model.dependences import ordering, reduction_self
from polyfuse.poly.model.domains import build_model, specialize
from polyfuse.poly.scheduling import tree_edit
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.poly.scheduling.tree_edit import loops


def illegal(verdict: Verdict) -> Illegal:
    assert isinstance(verdict, Illegal)
    assert verdict.witness is not None
    assert verdict.diagnostic.code == verdict.code
    return verdict


def at(name: str, **values: int) -> Instance:
    return Instance(name, tuple(values.items()))


def check(g: TensorGraph, tree: Tree, **sizes: int) -> Verdict:
    return check_schedule(build_model(specialize(g, sizes)), tree)


def loop(tree: Tree, name: str, statement: str) -> Member:
    return next(m for m in loops(tree) if m.name == name and statement in dict(m.exprs))


def test_the_plan_of_layer_norm_is_legal() -> None:
    assert check_schedule(build_model(graphs.LAYER_NORM), plan(graphs.LAYER_NORM)) == Legal()


def test_a_consumer_before_its_producer() -> None:
    text = "a[t] = x[t] + 1 | t<T\ny[t] = a[t] + x[0] | t<T"
    g = graph("g", "x[T]", "y[T]", text)
    tree = tree_edit.reorder(plan(g), ("y", "a"))
    verdict = illegal(check(g, tree, T=4))
    assert verdict.code == "PF501"
    assert verdict.witness == Witness(at("a", t=0), at("y", t=0))
    assert verdict.message == "y(t=0) reads an element before it is written: it needs a(t=0)"
    assert verdict.diagnostic.span is not None
    assert verdict.diagnostic.span.text == "a[t]"
    ((place, remark),) = verdict.diagnostic.related
    assert place.text.startswith("a[t] = x[t] + 1") and remark == "a(t=0) is defined here"
    assert (verdict.diagnostic.span.line, place.line) == (2, 1)


def test_the_witness_names_the_sizes_it_was_found_at() -> None:
    tree = tree_edit.reverse(plan(graphs.SCAN), "t")
    verdict = illegal(check_schedule(build_model(graphs.SCAN), tree))
    assert verdict.witness is not None
    sizes = dict(verdict.witness.sizes)
    source, sink = dict(verdict.witness.source.values), dict(verdict.witness.sink.values)
    assert verdict.witness.source.statement == verdict.witness.sink.statement == "c1"
    assert source["t"] + 1 == sink["t"] < sizes["T"] and source["j"] == sink["j"] < sizes["J"]
    assert f"T={sizes['T']}" in verdict.message


def test_the_place_is_that_of_the_read_in_question() -> None:
    """Of three reads of one tensor, only the one to the right is too early."""
    text = "u0: u[0,i] = x[i] | i<N\nu1: u[t,i] = u[t-1,i] + u[t-1,i+1] | t in 1..T, i<N-t"
    g = graph("g", "x[N]", "u[T,N]", text)
    time = Member("t", (("u1", IVar("t")),))
    space = Member("i", (("u1", IVar("i")),))
    first = Band((Member("i", (("u0", IVar("i")),)),), Leaf("u0"))
    tree = Sequence((first, Band((space, time), Leaf("u1"))))
    verdict = illegal(check(g, tree, T=3, N=4))
    assert verdict.witness == Witness(at("u1", t=1, i=1), at("u1", t=2, i=0))
    assert verdict.diagnostic.span is not None and verdict.diagnostic.span.text == "u[t-1,i+1]"


def test_a_reduction_must_be_finished_before_it_is_read() -> None:
    """Fused into the loop of the sum, the consumer sees a part of it: the last update is not enough."""
    text = "s[t] sum= x[t,h] | t<T, h<H*\ny[t,h] = s[t] | t<T, h<H"
    g = graph("g", "x[T,H]", "y[T,H]", text)
    tree = tree_edit.fuse(plan(g), "s", "y")
    assert shape(tree) == "B1(B0(s+y))"
    verdict = illegal(check(g, tree, T=1, H=3))
    assert verdict.witness == Witness(at("s", t=0, h=1), at("y", t=0, h=0))
    assert verdict.diagnostic.span is not None and verdict.diagnostic.span.text == "s[t]"
    assert check(g, tree, T=5, H=1) == Legal()


def test_an_accumulation_before_its_definition() -> None:
    tree = tree_edit.reorder(plan(restricted := graphs.SCATTER), ("o1", "o0", "y"))
    verdict = illegal(check(restricted, tree, T=2, H=1, V=1))
    assert verdict.code == "PF501"
    assert verdict.message.startswith("o1(t=0, h=0) adds to an element before it has its first value")
    assert verdict.witness == Witness(at("o0", v=0, h=0), at("o1", t=0, h=0))


def test_instances_without_a_time_of_their_own() -> None:
    g = graph("g", "x[T,H]", "y[T,H]", "y[t,h] = x[t,h] | t<T, h<H")
    tree = Band((Member("t", (("y", IVar("t")),)),), Leaf("y"))
    verdict = illegal(check(g, tree, T=2, H=2))
    assert verdict.code == "PF502"
    assert verdict.witness is not None
    assert verdict.witness.source != verdict.witness.sink
    assert dict(verdict.witness.source.values)["t"] == dict(verdict.witness.sink.values)["t"]
    assert check(g, tree, T=2, H=1) == Legal()
    assert not check_complete(build_model(g), Leaf("y"))


def test_a_statement_that_reads_what_it_writes() -> None:
    g = graph("g", "x[T]", "y[T]", "y[t] = y[t] + x[t] | t<T")
    tree = Band((Member("t", (("y", IVar("t")),)),), Leaf("y"))
    verdict = illegal(check(g, tree, T=3))
    assert verdict.witness == Witness(at("y", t=0), at("y", t=0))


def test_assumptions_on_sizes_are_used() -> None:
    """A shift by H is harmless only while H is not negative."""
    text = "a[t] = x[t] | t<T\ny[t,h] = a[t] | t<T, h<H"
    g = graph("g", "x[T]", "y[T,H]", text)
    tree = tree_edit.shift(plan(g), "t", "y", ISize("H"))
    assert check_schedule(build_model(g), tree) == Legal()
    assert not check_schedule(build_model(g), tree_edit.shift(plan(g), "t", "a", ISize("H")))


def test_part_of_a_graph_is_judged_by_itself() -> None:
    model = build_model(graphs.LAYER_NORM)
    part = restrict(plan(graphs.LAYER_NORM), frozenset(["nm", "y"]))
    assert part is not None
    assert check_schedule(model, part)
    assert not check_schedule(model, tree_edit.reorder(part, ("y", "nm")))


# --- parallel loops ----------------------------------------------------------------------------------


def test_parallel_and_races_of_a_column_sum() -> None:
    """Over rows, the column sums race; over columns nothing does."""
    model = build_model(graphs.LAYER_NORM_BACKWARD)
    tree = plan(graphs.LAYER_NORM_BACKWARD)
    rows, columns = loop(tree, "t", "dgm"), loop(tree, "h", "dgm")
    assert parallel(model, tree, rows, ordering(model))
    verdict = illegal(races(model, tree, rows))
    assert verdict.code == "PF503" and "loop t" in verdict.message
    assert verdict.witness is not None
    assert verdict.witness.source.statement == verdict.witness.sink.statement == "dbt"
    # Inside one row each column is updated once; the row sums are what races there.
    witness = illegal(races(model, tree, columns)).witness
    assert witness is not None and witness.source.statement in ("s1", "s2")


@pytest.mark.parametrize(
    ("g", "name", "statement", "ok", "safe"),
    [
        (graphs.ELEMENTWISE, "t", "y", True, True),
        (graphs.SCAN, "j", "c1", True, True),
        (graphs.SCAN, "t", "c1", False, True),
        (graphs.STENCIL, "i", "um", True, True),
        (graphs.STENCIL, "t", "um", False, True),
        (graphs.MATMUL_BIAS_GELU, "k", "mm", True, False),
        (graphs.MATMUL_BIAS_GELU, "i", "mm", True, True),
        (graphs.SCATTER, "t", "o1", True, False),
        (graphs.RNN, "e", "m", True, False),
    ],
    ids=lambda x: x.name if isinstance(x, TensorGraph) else str(x),
)
def test_loops(g: TensorGraph, name: str, statement: str, ok: bool, safe: bool) -> None:
    model, tree = build_model(g), plan(g)
    m = loop(tree, name, statement)
    assert bool(parallel(model, tree, m, ordering(model))) == ok
    assert bool(races(model, tree, m)) == safe
    both = ordering(model).union(reduction_self(model))
    assert bool(parallel(model, tree, m, both)) == (ok and safe)


def test_a_crossing_dependence_has_a_witness_and_its_read() -> None:
    model, tree = build_model(specialize(graphs.SCAN, {"T": 4, "J": 2})), plan(graphs.SCAN)
    verdict = illegal(parallel(model, tree, loop(tree, "t", "c1"), ordering(model)))
    assert verdict.witness == Witness(at("c1", t=1, j=0), at("c1", t=2, j=0))
    assert verdict.diagnostic.span is not None and verdict.diagnostic.span.text == "c[t-1,j]"
    assert verdict.diagnostic.related[0][0].line == verdict.diagnostic.span.line == 3


def test_the_same_loop_twice() -> None:
    """The inner copy has nothing left to carry, however the outer one is judged."""
    g = graph("g", "x[T]", "c[T]", "c0: c[0] = x[0] | \nc1: c[t] = c[t-1] + x[t] | t in 1..T")
    m = Member("t", (("c1", IVar("t")),))
    again = replace(m, name="t")
    tree = Sequence((Leaf("c0"), Band((m, again), Leaf("c1"))))
    model = build_model(g)
    assert not parallel(model, tree, m, ordering(model))
    assert parallel(model, tree, again, ordering(model))


@pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)
def test_flags_are_proved_anew(g: TensorGraph) -> None:
    if g is graphs.SOLVE:
        return
    model, tree = build_model(g), plan(g)
    bare = map_members(tree, lambda m: replace(m, coincident=False))
    bold = map_members(tree, lambda m: replace(m, coincident=True))
    assert mark_coincident(model, bare) == mark_coincident(model, bold)
    claimed = [m.coincident for m in loops(tree)]
    proved = [m.coincident for m in loops(mark_coincident(model, bare))]
    assert all(p for c, p in zip(claimed, proved, strict=True) if c)
