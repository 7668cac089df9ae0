"""Trees of both schedulers, as golden files, and what must be true of every tree of isl's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import graphs
import pytest
from brute_force import Enumeration
from graphs import graph
from random_graphs import random_graph
from thinned import thinned

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.index_expr import variables
from polyfuse.ir.schedule_tree import Band, format_tree, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import check_schedule, parallel
from polyfuse.poly.model.dependences import ordering
from polyfuse.poly.model.domains import build_model, specialize
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.poly.scheduling.isl_scheduler import MACRO_THRESHOLD, ScheduleTimeout, schedule
from polyfuse.poly.scheduling.macro_statements import contract
from polyfuse.poly.scheduling.tree_edit import loops

by_name = pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)


def describe(g: TensorGraph) -> str:
    """The golden text of a graph: the graph and both trees."""
    sections = [str(g)]
    for name, tree in (("axis planner", plan(g)), ("isl", schedule(build_model(g)))):
        sections.append(f"{name}: {shape(tree)}\n{format_tree(tree, graph=g)}")
    return "\n\n".join(sections)


@pytest.mark.parametrize("g", graphs.GOLDEN, ids=lambda g: g.name)
def test_golden_trees(g: TensorGraph, golden: Callable[[str, str], None]) -> None:
    golden(f"trees/{g.name}.txt", describe(g))


@pytest.mark.parametrize("seed", ["0", "1"])
def test_trees_do_not_depend_on_the_hash_seed(seed: str) -> None:
    program = "import graphs, test_poly_scheduler as t\nfor g in graphs.GOLDEN: print(t.describe(g))"
    tests = Path(__file__).parents[2]
    known = [str(tests), str(tests / "helpers"), str(Path(__file__).parent), str(tests.parent)]
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(known)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    wanted = "".join((tests / "golden" / "trees" / f"{g.name}.txt").read_text() for g in graphs.GOLDEN)
    assert done.stdout == wanted


def test_layer_norm_backward_keeps_a_coincident_outer_loop() -> None:
    model = build_model(graphs.LAYER_NORM_BACKWARD)
    tree = schedule(model)
    assert isinstance(tree, Band) and tree.members[0].coincident
    assert set(statements(tree)) == set(model.domains)
    assert {str(e) for _, e in tree.members[0].exprs} == {"t"}


@by_name
def test_legal_and_honest_about_parallel_loops(g: TensorGraph) -> None:
    model = build_model(g)
    tree = schedule(model)
    assert check_schedule(model, tree)
    for m in loops(tree):
        if m.coincident:
            assert parallel(model, tree, m, ordering(model)), m.name


@by_name
def test_known_sizes_give_a_legal_tree_as_well(g: TensorGraph) -> None:
    model = build_model(specialize(g, {n: 1000 + 37 * k for k, n in enumerate(g.sizes)}))
    assert check_schedule(model, schedule(model))


def test_the_same_model_twice_gives_the_same_tree() -> None:
    assert schedule(build_model(graphs.BATCH_NORM)) == schedule(build_model(graphs.BATCH_NORM))


@pytest.mark.parametrize(
    ("g", "wanted"),
    [
        (graphs.SCAN, "B1(B0(c0+c1))"),
        (graphs.STENCIL, "[B1(u0); B0([ul; ur; B1(um)])]"),
        (graphs.DIAGONAL, "B0([B1(a); B1(b); B1(c)])"),
        (graphs.SOLVE, "B0([B1(p); x])"),
        (graphs.RNN, "[B1(h0); B0([B11(m); B1(h1)])]"),
    ],
    ids=lambda x: x.name if isinstance(x, TensorGraph) else "",
)
def test_recurrences_keep_a_parallel_loop(g: TensorGraph, wanted: str) -> None:
    """Diagonal and triangular ones are skewed to a wavefront."""
    assert shape(schedule(build_model(g))) == wanted


def test_skewing_is_expressed() -> None:
    tree = schedule(build_model(graphs.DIAGONAL))
    assert isinstance(tree, Band)
    assert str(tree.members[0].of("c")) == "i + j"


def test_independent_parts_are_scheduled_apart() -> None:
    g = graph("apart", "x[N] w[M]", "y[N] z[M]", "y[i] = x[i] | i<N\nz[j] = w[j] | j<M")
    assert shape(schedule(build_model(g))) == "[B1(y); B1(z)]"


def test_some_statements_only() -> None:
    model = build_model(graphs.LAYER_NORM)
    tree = schedule(model, ("ce", "sq"))
    assert sorted(statements(tree)) == ["ce", "sq"]
    assert shape(tree) == "B11(ce+sq)"


@pytest.mark.parametrize("batch", thinned(range(6), 2))
def test_random_graphs(batch: int) -> None:
    """Above and below the number of statements from which macro-statements are formed."""
    for seed in range(batch * 12, (batch + 1) * 12):
        g = random_graph(seed, 3 + seed % 18)
        model = build_model(g)
        tree = schedule(model)
        assert check_schedule(model, tree), seed
        e = Enumeration(g, {"T": 2 + seed % 3, "H": 3, "S": 2})
        assert e.complete(tree) and e.ordered(tree), seed
        assert all(e.parallel(tree, m) for m in loops(tree) if m.coincident), seed
        if not any("_first" in s.name for s in g.statements):
            assert all(len(variables(x)) < 2 for m in loops(tree) for _, x in m.exprs), "skewed for nothing"


# --- macro-statements ------------------------------------------------------------------------------

CHAIN = "\n".join(
    ["a0[t,h] = x[t,h] + 1 | t<T, h<H"]
    + [f"a{k}[t,h] = a{k - 1}[t,h] + x[t,h] | t<T, h<H" for k in range(1, 10)]
    + ["s[t] sum= a9[t,h] | t<T, h<H*", "b0[t,h] = a9[t,h] - s[t] | t<T, h<H"]
    + [f"b{k}[h,t] = b{k - 1}[{'h,t' if k > 1 else 't,h'}] + 1 | h<H, t<T" for k in range(1, 10)]
    + ["y[t,h] = b9[h,t] + a3[t,h] | t<T, h<H"]
)


def test_chains_become_macro_statements() -> None:
    g = graph("chain", "x[T,H]", "y[T,H]", CHAIN)
    model = build_model(g)
    macros = contract(model, tuple(s.name for s in g.statements), ordering(model))
    assert [m.members for m in macros] == [
        [*(f"a{k}" for k in range(10)), "s"],
        [*(f"b{k}" for k in range(10)), "y"],
    ]
    assert {n: str(e) for n, e in macros[1].values["b5"].items()} == {"t": "t", "h": "h"}


def test_many_statements_are_scheduled_through_macro_statements() -> None:
    g = graph("chain", "x[T,H]", "y[T,H]", CHAIN)
    assert len(g.statements) > MACRO_THRESHOLD
    model = build_model(g)
    tree = schedule(model)
    first = "+".join(f"a{k}" for k in range(10))
    second = "+".join(f"b{k}" for k in range(10))
    assert shape(tree) == f"B1([B1({first}+s); B1({second}+y)])"
    assert check_schedule(model, tree)
    assert Enumeration(g, {"T": 3, "H": 2}).ordered(tree)


def test_a_chain_is_not_closed_around_something_outside() -> None:
    """`y` needs `a` and, through the sum, all of it: they cannot be one statement."""
    text = "a[i] = x[i] | i<N\ns[] sum= a[i] | i<N*\ny[i] = a[i] + s[()] | i<N"
    g = graph("outside", "x[N]", "y[N]", text)
    model = build_model(g)
    assert [m.members for m in contract(model, ("a", "s", "y"), ordering(model))] == [["a", "s"], ["y"]]


def test_a_cell_of_a_recurrence_is_one_macro_statement() -> None:
    model = build_model(graphs.TWO_RECURRENCES)
    macros = contract(model, tuple(model.domains), ordering(model))
    assert [m.members for m in macros] == [["c0"], ["h0"], ["f", "c1", "h1"]]


@by_name
def test_macro_statements_everywhere_stay_legal(g: TensorGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.poly.scheduling.isl_scheduler.MACRO_THRESHOLD", 0)
    model = build_model(g)
    assert check_schedule(model, schedule(model))


# --- failures --------------------------------------------------------------------------------------


def test_no_schedule_is_a_typed_failure() -> None:
    g = graph("swap", "x[N]", "y[N]", "y0: y[i] = y[N-1-i] | i in 1..N")
    with pytest.raises(ScheduleError) as caught:
        schedule(build_model(g))
    assert caught.value.code == "PF512"
    assert "'swap'" in str(caught.value)


def test_too_many_operations_are_a_typed_failure() -> None:
    model = build_model(graphs.MASKED_SOFTMAX)
    with pytest.raises(ScheduleTimeout) as caught:
        schedule(model, operations=10)
    assert caught.value.code == "PF511"
    assert isinstance(caught.value, ScheduleError)
    assert shape(schedule(model)) == "B111([B1(sc+mx); B1(ex+sm); B1(y)])"
