"""Copies of a body are put together; each join gives the loops that its picture shows."""

from __future__ import annotations

import pytest

from polyfuse.codegen.transforms.unroll_and_jam.rule import Jam, LoopRule, jammed
from polyfuse.codegen.transforms.unroll_and_jam.weave import Join, apart, copies, weave
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Declare, For, Node, Store, Update
from polyfuse.ir.tensor_graph import Apply, Const, Read, TensorGraph

KERNEL = Kernel("k", TensorGraph("f", (), (), (), (), (), ()), (), ())
ZERO = Const(0.0, F32)
T, C, X = IVar("t"), IVar("c"), Read("x", (IVar("t"), IVar("c")), F32)


def over(var: str, *body: Node, lanes: tuple[str, ...] = ()) -> For:
    return For(var, IConst(0), IConst(9), 1, body, lanes=lanes)


def stores(loop: Node) -> list[str]:
    """`buffer row`, in order."""
    assert isinstance(loop, For)
    found = []
    for n in loop.body:
        assert isinstance(n, Store)
        found.append(f"{n.buffer} {n.indices[0]}")
    return found


PAIR = over("t", over("c", Store("a", (T, C), X), Store("b", (T, C), X)))


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (Join.APART, [["a t", "b t"], ["a t + 1", "b t + 1"]]),
        (Join.CONCATENATED, [["a t", "b t", "a t + 1", "b t + 1"]]),
        (Join.INTERLEAVED, [["a t", "a t + 1", "b t", "b t + 1"]]),
        (Join.JAMMED, [["a t", "a t + 1", "b t", "b t + 1"]]),
    ],
)
def test_a_loop_of_two_copies_is_joined_as_its_picture_says(join: Join, expected: list[list[str]]) -> None:
    woven = weave(copies(PAIR, PAIR.body, 2), lambda loop: join)
    assert [stores(n) for n in woven] == expected


@pytest.mark.parametrize(("join", "inner"), [(Join.JAMMED, 1), (Join.INTERLEAVED, 2)])
def test_loops_inside_are_joined_where_copies_are_jammed_alone(join: Join, inner: int) -> None:
    nest = over("t", over("r", over("c", Store("a", (T, C), X))))
    (rows,) = weave(copies(nest, nest.body, 2), lambda loop: join if loop.var == "r" else Join.CONCATENATED)
    assert isinstance(rows, For) and len(rows.body) == inner


def test_an_update_gets_the_terms_of_all_copies() -> None:
    loop = over("t", over("c", Update("y", (C,), "sum", X)))
    (inner,) = weave(copies(loop, loop.body, 2), lambda loop: Join.COMBINED)
    assert isinstance(inner, For)
    terms = X, Read("x", (T + 1, C), F32)
    assert inner.body == (Update("y", (C,), "sum", Apply("add", terms, F32)),)


def test_a_number_that_all_copies_add_to_has_its_lanes_once() -> None:
    loop = over("t", over("c", Update("s", (), "sum", X), lanes=("s",)))
    (inner,) = weave(copies(loop, loop.body, 3), lambda loop: Join.COMBINED)
    assert isinstance(inner, For) and inner.lanes == ("s",)


def test_statements_take_turns_and_copies_have_names_of_their_own() -> None:
    total = over("c", Update("m", (), "sum", X), lanes=("m",))
    loop = over("t", Declare("m", F32, ZERO), total, Store("y", (T,), Read("m", (), F32)))
    first, second, *rest = weave(copies(loop, loop.body, 2), apart)
    assert isinstance(first, Declare) and isinstance(second, Declare)
    assert first.name == "m" and second.name not in ("m", "%m")
    loops = [n for n in rest if isinstance(n, For)]
    assert [n.lanes for n in loops] == [("m",), (second.name,)]
    assert [n.value for n in rest[2:] if isinstance(n, Store)] == [
        Read("m", (), F32),
        Read(second.name, (), F32),
    ]


def test_names_of_copies_of_copies_are_all_different() -> None:
    nest = over("r", over("c", Declare("m", F32, ZERO), Store("y", (IVar("r"), C), Read("m", (), F32))))
    (columns,) = nest.body
    assert isinstance(columns, For)
    inner = tuple(jammed(columns, Jam(3, columns.body, apart)))
    main, *_ = jammed(nest, Jam(2, inner, lambda loop: Join.JAMMED))
    assert isinstance(main, For) and isinstance(main.body[0], For)
    names = [n.name for n in main.body[0].body if isinstance(n, Declare)]
    assert len(names) == len(set(names)) == 6


def test_what_is_left_is_what_the_rule_says() -> None:
    loop = over("t", Store("y", (T,), ZERO))
    main, left = jammed(loop, Jam(2, loop.body, apart, tail=(Store("z", (T,), ZERO),)))
    assert isinstance(main, For) and isinstance(left, For)
    assert (main.step, main.upper, left.step, left.lower) == (2, IConst(8), 1, IConst(8))
    assert stores(main) == ["y t", "y t + 1"] and stores(left) == ["z t"]


def test_a_rule_acts_only_where_iterations_commute() -> None:
    always = LoopRule("always", "all loops", lambda kernel, loop, knobs: Jam(3, loop.body, apart))
    each = over("t", Store("y", (T,), ZERO))
    made, rows = always.in_block(KERNEL, (each,), CpuKnobs())
    assert rows == 3 and made != (each,)
    chain = (over("t", Store("y", (T + 1,), Read("y", (T,), F32))),)
    assert always.in_block(KERNEL, chain, CpuKnobs()) == (chain, 1)
