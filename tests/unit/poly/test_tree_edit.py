"""Named changes of schedule trees: what they do, what they keep, and what they say when they cannot."""

from __future__ import annotations

from collections.abc import Callable

import graphs
import pytest
from graphs import graph

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import Band, Tree, format_tree, shape, statements
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import check_schedule, mark_coincident, parallel
from polyfuse.poly.model.dependences import ordering
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.scheduling import tree_edit
from polyfuse.poly.scheduling.axis_planner import plan
from polyfuse.poly.scheduling.tree_edit import loops

ELEMENTWISE = plan(graphs.ELEMENTWISE)
LAYER_NORM = plan(graphs.LAYER_NORM)
TWO = graph("two", "x[T,H]", "a[T,H] b[T,H]", "a[t,h] = x[t,h] | t<T, h<H\nb[t,h] = x[t,h] | t<T, h<H")


def test_interchange() -> None:
    tree = tree_edit.interchange(ELEMENTWISE, "t", ("h", "t"))
    assert isinstance(tree, Band)
    assert [m.name for m in tree.members] == ["h", "t"]
    assert tree.permutable and all(m.coincident for m in tree.members)
    assert tree_edit.interchange(tree, "h", ("t", "h")) == ELEMENTWISE


def test_interchange_drops_a_flag_that_hung_on_the_loop_outside() -> None:
    """Inside `t` the stencil's `i` is parallel; outside it is not."""
    tree = plan(graphs.STENCIL)
    alone = tree_edit.distribute(tree, "um.t")
    changed = tree_edit.interchange(alone, "um.t", ("i", "t"))
    assert "B00(um)" in shape(changed)
    assert shape(plan(graphs.SCAN)) == "B1([c0; B0(c1)])"


def test_tile_and_split() -> None:
    tree = tree_edit.tile(ELEMENTWISE, ("t", "h"), (4, 8))
    assert format_tree(tree).splitlines()[:4] == [
        "band* t_tile (parallel: a,b,y->t//4)",
        "     h_tile (parallel: a,b,y->h//8)",
        "     t (parallel: a,b,y->t%4)",
        "     h (parallel: a,b,y->h%8)",
    ]
    assert check_schedule(build_model(graphs.ELEMENTWISE), tree)
    inner = tree_edit.split(ELEMENTWISE, "h", 16)
    assert isinstance(inner, Band)
    assert [str(m.of("a")) for m in inner.members] == ["t", "h//16", "h%16"]


def test_fuse_and_distribute_are_inverse() -> None:
    tree = tree_edit.distribute(plan(TWO), "t")
    assert shape(tree) == "[B11(a); B11(b)]"
    fused = tree_edit.fuse(tree, "a", "b")
    assert shape(fused) == "B00(a+b)"
    assert shape(mark_coincident(build_model(TWO), fused)) == shape(plan(TWO)) == "B11(a+b)"


def test_fuse_keeps_what_is_not_shared_inside() -> None:
    tree = tree_edit.distribute(LAYER_NORM, "sm.t")
    assert shape(tree) == "[B1(B1(sm)); B1(mu); B1(B1(ce+sq)); B1(rs); B1(B1(nm+y))]"
    assert (
        shape(tree_edit.fuse(tree, "sm", "mu")) == "[B0([B1(sm); mu]); B1(B1(ce+sq)); B1(rs); B1(B1(nm+y))]"
    )


def test_shift_drops_the_flags_of_what_is_shared_inside() -> None:
    tree = tree_edit.shift(ELEMENTWISE, "t", "y", 1)
    assert shape(tree) == "B00(a+b+y)"
    assert str(loops(tree)[0].of("y")) == "t + 1"
    assert check_schedule(build_model(graphs.ELEMENTWISE), tree)
    assert shape(tree_edit.shift(LAYER_NORM, "sm.h", "sm", 3)) == shape(LAYER_NORM)


def test_reverse() -> None:
    tree = tree_edit.reverse(ELEMENTWISE, "h")
    assert str(loops(tree)[1].of("y")) == "0 - h"
    assert shape(tree) == shape(ELEMENTWISE)


def test_move_and_reorder() -> None:
    tree = tree_edit.move(LAYER_NORM, "mu", before="sm")
    assert shape(tree) == "B1([mu; B1(sm); B1(ce+sq); rs; B1(nm+y)])"
    assert tree_edit.move(tree, "mu", after="sm") == LAYER_NORM
    assert shape(tree_edit.reorder(ELEMENTWISE, ("y", "b", "a"))) == "B11(y+b+a)"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda t: tree_edit.reverse(t, "q"), "PF520", "no loop 'q' in the tree; there are: t, h"),
        (lambda t: tree_edit.reverse(t, "mu.h"), "PF520", "no loop 'h' around 'mu'; there are: t"),
        (lambda t: tree_edit.reverse(t, "zz.h"), "PF520", "no statement 'zz'"),
        (lambda t: tree_edit.reverse(t, "h"), "PF521", "'sm.h', 'ce.h', 'nm.h'"),
        (lambda t: tree_edit.shift(t, "sm.h", "y", 1), "PF520", "no statement 'y' under loop h"),
        (lambda t: tree_edit.interchange(t, "t", ("t", "h")), "PF523", "no order of the loops t"),
        (lambda t: tree_edit.tile(t, ("t",), (0,)), "PF523", "by 0"),
        (lambda t: tree_edit.tile(t, ("t", "sm.h"), (2, 2)), "PF522", "not in one perfect nest"),
        (lambda t: tree_edit.fuse(t, "sm", "ce"), "PF522", "right after"),
        (lambda t: tree_edit.fuse(t, "sm", "mu"), "PF522", "no loops of the same names"),
        (lambda t: tree_edit.fuse(t, "sm", "sm"), "PF522", "twice"),
        (lambda t: tree_edit.distribute(t, "sm.h"), "PF522", "no sequence"),
        (lambda t: tree_edit.move(t, "ce", before="sm"), "PF522", "ce, sq"),
        (lambda t: tree_edit.move(t, "mu"), "PF523", "one of before= and after="),
        (lambda t: tree_edit.reorder(t, ("sm", "mu")), "PF523", "each child once"),
        (lambda t: tree_edit.reorder(t, ("sm",)), "PF523", "two statements"),
        (lambda t: tree_edit.move(t, "nothing", after="sm"), "PF520", "there are: sm, mu"),
    ],
)
def test_errors_name_what_exists(change: Callable[[Tree], Tree], code: str, says: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        change(LAYER_NORM)
    assert caught.value.code == code
    assert says in str(caught.value)


@pytest.mark.parametrize("g", graphs.ALL, ids=lambda g: g.name)
def test_flags_that_are_kept_are_true(g: TensorGraph) -> None:
    """Every edit of every loop: what still says parallel is parallel, and nothing is lost."""
    if g is graphs.SOLVE:
        return
    model, tree = build_model(g), plan(g)
    order = ordering(model)
    for m in loops(tree):
        name = m.exprs[0][0]
        at = f"{name}.{m.name}"
        edits: list[Callable[[], Tree]] = [
            lambda at=at: tree_edit.split(tree, at, 3),
            lambda at=at: tree_edit.reverse(tree, at),
            lambda at=at, name=name: tree_edit.shift(tree, at, name, 1),
            lambda at=at: tree_edit.distribute(tree, at),
        ]
        edits += [
            lambda at=at, two=two: tree_edit.interchange(tree, at, two)
            for x in loops(tree)
            if x is not m
            for two in [(x.name, m.name)]
        ]
        for edit in edits:
            try:
                changed = edit()
            except ScheduleError:
                continue
            assert sorted(statements(changed)) == sorted(statements(tree))
            for x in loops(changed):
                assert not x.coincident or parallel(model, changed, x, order), (at, x.name)
