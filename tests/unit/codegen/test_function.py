"""The loops over a worker's share: each iteration of a nest once, in order, whatever the share."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from polyfuse.codegen.analysis.loop_values import LoopProgram, Memories
from polyfuse.codegen.analysis.row_batch import first_row, loop_over_batch, places_of_batch
from polyfuse.codegen.function import ITERATION, Function, function_of
from polyfuse.codegen.transforms.outline import with_run_loops
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IConst, IVar, evaluate
from polyfuse.ir.loop_ir import Block, Delinearize, For, Store, Update, format_block
from polyfuse.ir.tensor_graph import Const, Read

NESTS = [((0, 7),), ((2, 9),), ((0, 3), (1, 6)), ((2, 4), (0, 3), (3, 5)), ((2, 4), (0, 1), (3, 8))]
SHARES = [(0, 0), (0, 1), (0, 7), (1, 2), (2, 7), (3, 7), (1, 12)]
FIRST = (IConst(0),)


def nest_of(bounds: tuple[tuple[int, int], ...]) -> tuple[For, ...]:
    return tuple(For(f"c{k}", IConst(a), IConst(b), 1, ()) for k, (a, b) in enumerate(bounds))


def noted(nest: tuple[For, ...]) -> Block:
    """Notes an iteration: when it is done, by its variables."""
    count = Update("count", FIRST, "sum", Const(1, I64))
    return count, Store("seen", tuple(IVar(x.var) for x in nest), Read("count", FIRST, I64))


def done(f: Function, share: tuple[int, int]) -> list[tuple[int, ...]]:
    """The iterations of a worker's share, in the order in which they are done."""
    p, memories = LoopProgram({}), Memories()
    total = prod(evaluate(x.upper - x.lower, {}) for x in f.loops)
    p.block(f.block)
    p.run(memories, {"begin": min(share[0], total), "end": min(share[1], total)}, 10_000)
    seen = dict(memories.get("seen", {}))
    counted = memories.of("count", I64)[0,] if seen else 0
    assert sorted(seen.values()) == [*range(counted - len(seen) + 1, counted + 1)], "each is done once"
    return sorted(seen, key=seen.__getitem__)


def expected(bounds: tuple[tuple[int, int], ...], share: tuple[int, int]) -> list[tuple[int, ...]]:
    return [*product(*(range(*x) for x in bounds))][slice(*share)]


def interleaved(f: Function, rows: int) -> Function:
    names = [tuple(replace(x, var=f"row{k}_{x.var}") for x in f.loops) for k in range(rows)]
    places = [Delinearize(nest, ITERATION + k) for k, nest in enumerate(names)]
    return f.with_batch(rows, places, tuple(n for nest in names for n in noted(nest)))


def batched(f: Function, rows: int) -> Function:
    return f.with_batch(rows, places_of_batch(f.loops, rows), (loop_over_batch(noted(f.loops), rows),))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("bounds", NESTS)
def test_each_iteration_of_a_share_is_done_once_and_in_order(
    bounds: tuple[tuple[int, int], ...], share: tuple[int, int]
) -> None:
    nest = nest_of(bounds)
    alone = function_of(nest, noted(nest))
    ways = [
        alone,
        interleaved(alone, 2),
        batched(alone, 3),
        batched(interleaved(alone, 2), 5),
    ]
    assert [len(f.worker) for f in ways] == [1, 2, 2, 3]
    for f in ways:
        assert done(f, share) == expected(bounds, share)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("bounds", NESTS[2:])
def test_iterations_along_the_innermost_loop_are_a_loop(
    bounds: tuple[tuple[int, int], ...], share: tuple[int, int]
) -> None:
    nest = nest_of(bounds)
    store = For("c9", IConst(0), IConst(1), 1, (Store("y", (IVar("c9"),), Const(1, I64)),))
    f = with_run_loops(function_of(nest, (store,)))
    assert f.run and f.row == (store,)
    assert done(f.in_runs((replace(f.body[0], body=noted(nest)),)), share) == expected(bounds, share)


def test_only_rows_of_stores_are_such_loops() -> None:
    nest = nest_of(NESTS[2])
    alone = function_of(nest, (For("c9", IConst(0), IConst(4), 1, noted(nest)),))
    stores = function_of(nest, (For("c9", IConst(0), IConst(4), 1, noted(nest)[1:]),))
    assert with_run_loops(alone) is alone
    for f in (replace(stores, loops=nest[:1]), interleaved(stores, 2)):
        assert with_run_loops(f) is f
    assert with_run_loops(stores).run


def test_what_a_function_says_of_itself() -> None:
    nest = nest_of(NESTS[0])
    f = function_of(nest, noted(nest))
    assert f.with_body(f.body) is f and f.one_by_one and f.row == f.body == noted(nest)
    assert batched(f, 3).without_batches == f and not batched(f, 3).one_by_one
    assert [x.step for x in batched(interleaved(f, 2), 5).batches] == [5, 2]
    first, of_row = places_of_batch(nest, 3)
    assert first.variables == (first_row("c0"),) and of_row.variables == ("c0",)
    hoisted = f.with_before(noted(nest)[:1])
    assert hoisted.before == noted(nest)[:1] and hoisted.body == f.body
    serial = function_of((), noted(nest)[:1])
    assert serial.with_batches([]) == serial
    assert serial.with_before(noted(nest)[:1]).body == noted(nest)[:1] * 2 and serial.row is None


def test_loops_of_a_worker_as_text() -> None:
    nest = nest_of(NESTS[2])
    first, *_ = format_block(interleaved(function_of(nest, noted(nest)), 2).block).splitlines()
    assert first == "for it in begin..begin + (end - begin)//2*2 by 2 @wrk:"
    text = format_block(function_of(nest, noted(nest)).in_runs(()).block)
    assert "c0, c1_begin, c1_end = iteration it and on up to end of c0 in 0..3, c1 in 1..6" in text
