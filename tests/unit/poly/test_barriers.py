"""Barriers of kernels written by hand: what is missing, what is too much, and where new ones go."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graph_helpers import const, number, op, read, where
from thread_traces import Event, Launch, launch, race

from polyfuse.diagnostics import ScheduleError, Severity
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IndexExpr, ISize, IVar, as_index, binary
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.loop_ir import (
    Barrier,
    BarrierScope,
    Block,
    Combine,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    map_nodes,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Expr, Role, Tensor, TensorGraph
from polyfuse.poly.barriers.conflicts import demands
from polyfuse.poly.barriers.insertion import insert_barriers
from polyfuse.poly.barriers.loop_events import events
from polyfuse.poly.barriers.proof import Conflict, Touch, Unsafe, check_barriers, unneeded_barriers

tx, ty, row, w, h = (IVar(n) for n in ("tx", "ty", "row", "w", "h"))
BLOCK_BARRIER = Barrier(BarrierScope.BLOCK, "a reason")
GRID_BARRIER = Barrier(BarrierScope.GRID, "a reason")
VALUE = const(1.0)


def buffer(name: str, scope: Scope, *extents: IndexExpr | int) -> Buffer:
    shape = tuple(map(as_index, extents))
    return Buffer(name, F32, scope, shape, shape)


def kernel(*buffers: Buffer, threads: tuple[int, int] = (64, 1), sizes: tuple[str, ...] = ()) -> Kernel:
    return Kernel("k", TensorGraph("k", sizes, (), (), (), (), ()), (), buffers, threads)


def loop(
    var: str,
    upper: IndexExpr | int,
    *body: Node,
    lower: IndexExpr | int = 0,
    kind: str = "seq",
    step: int = 1,
) -> For:
    return For(var, as_index(lower), as_index(upper), step, body, Coordinate(kind))


def put(name: str, *indices: IndexExpr | int | Expr, value: Expr = VALUE) -> Store:
    return Store(name, read(name, *indices).indices, value)


def get(name: str, *indices: IndexExpr | int | Expr) -> Declare:
    return Declare("%v", F32, read(name, *indices))


def when(test: Expr, *body: Node) -> If:
    return If(test, body)


def first_lane() -> Expr:
    return op("eq", number(binary("%", tx, 32)), number(0))


def unsafe(k: Kernel, block: Block, blocks: int) -> Unsafe:
    verdict = check_barriers(k, block, blocks)
    assert isinstance(verdict, Unsafe)
    assert verdict.diagnostic.code == verdict.code and verdict.diagnostic.message == verdict.message
    if verdict.witness is not None:
        assert real(launch(k, block, blocks), verdict.witness), verdict.message
    return verdict


def real(run: Launch, witness: Conflict) -> bool:
    """Do threads of a simulated launch make the two accesses with no barrier between?"""
    return any(race(a, b) for a in made(run, witness.first) for b in made(run, witness.second))


def made(run: Launch, touch: Touch) -> list[Event]:
    wanted = (touch.buffer, touch.write, touch.loops, touch.thread)
    return [
        e
        for t in run.threads
        for e in t.events
        if (e.name, e.write, e.loops, e.thread) == wanted
        and (touch.element == e.element or None in e.element)
        and touch.block in (None, e.block)
    ]


# --- block reductions ---------------------------------------------------------------------------------------


def reduction(name: str) -> tuple[Block, Block]:
    """The first lane of each warp puts its part; every thread reads all parts."""
    total = loop("w", 2, Update("%t", (), "sum", read(name, w)))
    return (Combine("%a", "sum", F32, 32), when(first_lane(), put(name, binary("//", tx, 32)))), (total,)


def layer_norm(second: str, rows: int, *, barriers: int = 15) -> Block:
    """Two reductions and a result, a row per iteration; bits of `barriers` say which are there."""
    put_sum, get_sum = reduction("red0")
    put_square, get_square = reduction(second)
    b = [(BLOCK_BARRIER,) if barriers >> k & 1 else () for k in range(4)]
    x = loop("h", 3, get("x", row, 64 * h + tx))
    y = loop("h", 3, put("y", row, 64 * h + tx))
    parts = (x, *put_sum, *b[0], *get_sum, *b[1], *put_square, *b[2], *get_square, y, *b[3])
    return (loop("row", rows, *parts, kind="blk"),)


def norm_kernel(rows: int) -> Kernel:
    arguments = [buffer(n, Scope.ARGUMENT, rows, 192) for n in ("x", "y")]
    return kernel(*arguments, *(buffer(n, Scope.SHARED, 2) for n in ("red0", "red1")))


# (second buffer, rows, blocks, barriers that must be there)
NORMS = {
    "two buffers, a row each": ("red1", 4, 4, 0b0101),
    "two buffers, several rows": ("red1", 8, 3, 0b0101),
    "one buffer, a row each": ("red0", 4, 4, 0b0111),
    "one buffer, several rows": ("red0", 8, 3, 0b1111),
}


@pytest.mark.parametrize("case", NORMS)
def test_every_missing_barrier_of_a_block_reduction_is_found(case: str) -> None:
    second, rows, blocks, needed = NORMS[case]
    k = norm_kernel(rows)
    for barriers in range(16):
        block = layer_norm(second, rows, barriers=barriers)
        if needed & ~barriers == 0:
            assert check_barriers(k, block, blocks)
        else:
            verdict = unsafe(k, block, blocks)
            assert verdict.code == "PF530" and "red" in verdict.message


@pytest.mark.parametrize("case", NORMS)
def test_barriers_that_are_not_needed_are_told(case: str) -> None:
    second, rows, blocks, needed = NORMS[case]
    found = unneeded_barriers(norm_kernel(rows), layer_norm(second, rows), blocks)
    alone = [k for k in range(4) if needed & ~(15 ^ 1 << k) == 0]
    assert len(found) == len(alone)
    assert all(u.barrier == BLOCK_BARRIER and u.diagnostic.severity is Severity.WARNING for u in found)
    assert [u.place for u in found] == sorted(u.place for u in found)


@pytest.mark.parametrize("case", NORMS)
def test_a_block_reduction_gets_the_barriers_it_needs(case: str) -> None:
    second, rows, blocks, needed = NORMS[case]
    full, reasons = insert_barriers(norm_kernel(rows), layer_norm(second, rows, barriers=0), blocks)
    assert check_barriers(norm_kernel(rows), full, blocks)
    assert len(reasons) == needed.bit_count()
    assert reasons[0] == "red0: threads read what others wrote"


def test_the_last_barrier_may_stand_for_the_next_row() -> None:
    put_sum, get_sum = reduction("red0")
    body = (*put_sum, *get_sum)
    k = kernel(buffer("red0", Scope.SHARED, 2))
    full, reasons = insert_barriers(k, (loop("row", 8, *body, kind="blk"),), 3)
    assert reasons == (
        "red0: threads read what others wrote",
        "red0: threads write where others have read in an earlier iteration of row",
    )
    inside = full[0]
    assert isinstance(inside, For) and isinstance(inside.body[-1], Barrier)


# --- order --------------------------------------------------------------------------------------------------


def test_a_witness_names_everything() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64), threads=(4, 2))
    block = (loop("row", 2, put("s", tx + 4 * ty), get("s", 7), kind="blk"),)
    witness = unsafe(k, block, 2).witness
    assert witness is not None and witness.scope is BarrierScope.BLOCK
    assert (witness.first.write, witness.second.write) == (True, False)
    assert witness.first.element == witness.second.element == (7,)
    assert witness.first.thread == (3, 1) != witness.second.thread
    assert "reads s[7], which tx 3, ty 1, block" in str(witness)


def test_two_slots_need_one_barrier_an_iteration() -> None:
    """The element written again is that of the iteration before the last."""
    slot = binary("%", h, 2)
    body = (put("s", slot, tx), BLOCK_BARRIER, get("s", slot, 63 - tx))
    k = kernel(buffer("s", Scope.SHARED, 2, 64))
    assert check_barriers(k, (loop("h", 5, *body),), 1)
    assert not unneeded_barriers(k, (loop("h", 5, *body),), 1)
    one = (put("s", 0, tx), BLOCK_BARRIER, get("s", 0, 63 - tx))
    assert unsafe(k, (loop("h", 5, *one),), 1).code == "PF530"


def test_barriers_in_every_other_iteration() -> None:
    even = op("eq", number(binary("%", h, 2)), number(0))
    odd = op("eq", number(binary("%", h, 2)), number(1))
    k = kernel(buffer("s", Scope.SHARED, 64))

    def block(*tests: Expr) -> Block:
        return (loop("h", 4, put("s", tx), *(when(t, BLOCK_BARRIER) for t in tests), get("s", 63 - tx),
                     BLOCK_BARRIER),)  # fmt: skip

    assert check_barriers(k, block(even, odd), 1)
    assert unsafe(k, block(odd), 1).code == "PF530"


def test_a_barrier_after_every_other_iteration() -> None:
    odd = op("eq", number(binary("%", h, 2)), number(1))
    k = kernel(buffer("s", Scope.SHARED, 64))
    body = (put("s", tx), BLOCK_BARRIER, get("s", 63 - tx))
    assert unsafe(k, (loop("h", 4, *body, when(odd, BLOCK_BARRIER)),), 1).code == "PF530"
    even = op("eq", number(binary("%", h, 2)), number(0))
    assert check_barriers(k, (loop("h", 4, when(even, BLOCK_BARRIER), *body, when(even, BLOCK_BARRIER)),), 1)


def test_iterations_that_are_not_neighbours() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))

    def block(*barrier_at: int) -> Block:
        first, third = (op("eq", number(h), number(n)) for n in (0, 2))
        barriers = (when(op("eq", number(h), number(n)), BLOCK_BARRIER) for n in barrier_at)
        return (loop("h", 4, when(first, put("s", tx)), when(third, get("s", 63 - tx)), *barriers),)

    for there in ((0,), (1,), (2, 1)):
        assert check_barriers(k, block(*there), 1)
    for missing in ((), (2,), (3,), (2, 3)):
        assert unsafe(k, block(*missing), 1).code == "PF530"


def test_a_barrier_in_a_loop_that_may_not_run() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))

    def block(trips: IndexExpr | int) -> Block:
        inner = (put("s", tx), loop("w", trips, BLOCK_BARRIER), get("s", 63 - tx), BLOCK_BARRIER)
        return (loop("h", 4, *inner),)

    assert check_barriers(k, block(1), 1) and check_barriers(k, block(h + 1), 1)
    assert unsafe(k, block(0), 1).code == "PF530"
    assert unsafe(k, block(h), 1).code == "PF530"


def test_masks_tell_threads_apart() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    low, high = (op(o, number(tx), number(32)) for o in ("lt", "ge"))
    assert check_barriers(k, (when(low, put("s", tx)), when(high, get("s", tx))), 1)
    assert unsafe(k, (when(low, put("s", tx)), when(high, get("s", tx - 32))), 1).code == "PF530"
    choice = (where(low, read("s", 63 - tx), VALUE), where(high, VALUE, read("s", 63 - tx)))
    for value in choice:
        assert check_barriers(k, (when(low, put("s", tx)), Declare("%v", F32, value)), 1)
    other = Declare("%v", F32, where(high, read("s", 63 - tx), VALUE))
    assert unsafe(k, (when(low, put("s", tx)), other), 1).code == "PF530"


def test_private_storage_is_nobody_elses_business() -> None:
    k = kernel(buffer("r", Scope.REGISTER), buffer("l", Scope.LOCAL, 4))
    block = (put("r"), put("l", 0), put("%f"), get("r"), get("l", 1), get("%f"))
    assert check_barriers(k, block, 8)
    assert insert_barriers(k, block, 8) == (block, ())


# --- races --------------------------------------------------------------------------------------------------


def test_one_statement_cannot_be_put_in_order() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    verdict = unsafe(k, (put("s", 0),), 1)
    assert verdict.code == "PF533"
    with pytest.raises(ScheduleError) as caught:
        insert_barriers(k, (put("s", 0),), 1)
    assert caught.value.code == "PF533"


def test_a_mask_around_both_leaves_no_place() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    low = op("lt", number(tx), number(32))
    assert unsafe(k, (when(low, put("s", tx), get("s", 31 - tx)),), 1).code == "PF533"


def test_branches_of_a_mask_run_at_the_same_time() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    low = op("lt", number(tx), number(32))
    assert unsafe(k, (If(low, (put("s", tx),), (get("s", tx - 32),)),), 1).code == "PF533"
    outer = op("lt", number(h), number(2))
    branches = If(outer, (put("s", tx),), (get("s", 63 - tx),))
    assert check_barriers(k, (loop("h", 4, branches, BLOCK_BARRIER),), 1)


def test_atomic_updates_race_with_other_accesses_only() -> None:
    k = kernel(buffer("g", Scope.GLOBAL, 4))
    update = Update("g", (as_index(0),), "sum", VALUE, atomic=True)
    assert check_barriers(k, (loop("row", 8, update, kind="blk"),), 8)
    assert unsafe(k, (loop("row", 8, replace(update, atomic=False), kind="blk"),), 8).code == "PF533"
    assert unsafe(k, (loop("row", 8, update, get("g", 0), kind="blk"),), 8).code == "PF530"


def test_data_may_mean_any_element() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64), buffer("x", Scope.ARGUMENT, 64))
    block = (put("s", read("x", tx)), BLOCK_BARRIER, get("s", tx))
    assert unsafe(k, block, 1).code == "PF533"
    block = (put("s", tx), get("s", read("x", tx)))
    verdict = unsafe(k, block, 1)
    assert verdict.code == "PF530" and verdict.witness is not None
    assert verdict.witness.second.element == (None,)


def test_vectors_touch_all_their_elements() -> None:
    k = kernel(buffer("s", Scope.SHARED, 256))
    stores = (VectorStore("s", (4 * tx,), "%w", 4), VectorLoad("%u", F32, "s", (4 * tx,), 4))
    assert check_barriers(k, stores, 1)
    near = VectorStore("s", (2 * tx,), "%w", 4)
    assert unsafe(k, (near,), 1).code == "PF533"
    assert unsafe(k, (stores[0], get("s", 4 * tx - 1)), 1).code == "PF530"


def eq(e: IndexExpr, value: int) -> Expr:
    return op("eq", number(e), number(value))


WARP, FIRST_ROW = binary("//", tx, 32), eq(ty, 0)
FIRST_LANE, SECOND_LANE = (op("and", eq(binary("%", tx, 32), n), FIRST_ROW) for n in (0, 1))
ONE = as_index(1)

# (index of one write, its condition, index of another, its condition, is each element written by one thread?)
CONDITIONS: dict[str, tuple[IndexExpr, Expr, IndexExpr, Expr, bool]] = {
    "the same lane": (WARP, FIRST_LANE, WARP, FIRST_LANE, True),
    "different lanes": (WARP, FIRST_LANE, WARP, SECOND_LANE, False),
    "a lane of every row": (WARP, eq(binary("%", tx, 32), 0), WARP, FIRST_LANE, False),
    "a row that is 0": (tx + 2 * ty, FIRST_ROW, tx, FIRST_ROW, True),
    "a row that is not 0": (tx + 2 * ty, eq(ty, 1), tx, FIRST_ROW, False),
    "a row as a number": (tx + 2, eq(ty, 1), tx + 2 * ty, eq(ty, 1), True),
    "a number as a row": (tx + 2 * ty, eq(ty, 1), tx + 2, eq(ty, 1), True),
    "another number": (4 * tx - 2 * ty, op("and", eq(ty, 1), op("gt", number(tx), number(0))), 4 * tx + 2,
                       eq(ty, 1), False),
    "one of two": (ONE, op("and", op("or", eq(tx, 0), eq(tx, 5)), FIRST_ROW), tx, FIRST_LANE, False),
    "neither of two": (ONE, op("not", op("or", op("ne", number(tx), number(5)), eq(ty, 0))), ONE,
                       op("and", eq(tx, 5), eq(ty, 1)), True),
    "below": (tx, op("and", op("lt", number(tx), number(32)), FIRST_ROW), 32 + ty, eq(tx, 0), True),
    "not above": (tx, op("and", op("le", number(tx), number(32)), FIRST_ROW), 32 + ty, eq(tx, 0), False),
}  # fmt: skip


@pytest.mark.parametrize("case", CONDITIONS)
def test_what_conditions_tell_of_an_index(case: str) -> None:
    one, test, two, other, alone = CONDITIONS[case]
    k = kernel(buffer("red", Scope.SHARED, 256), threads=(64, 2))
    block = (when(test, put("red", one)), when(other, put("red", two)))
    assert (next(launch(k, block, 1).races(), None) is None) == alone
    assert bool(check_barriers(k, block, 1)) == alone


def test_no_isl_where_digits_tell() -> None:
    """A kernel without shared memory is checked without a question to isl."""
    k = kernel(buffer("y", Scope.ARGUMENT, 32, 1024), threads=(64, 4))
    body = VectorStore("y", (4 * row + ty, 256 * h + 4 * tx), "%w", 4)
    block = (
        loop("row", 8, loop("h", 4, when(op("lt", number(4 * row + ty), number(30)), body)), kind="blk"),
    )
    assert not list(demands(events(k, block, 8), frozenset()))
    wide = (loop("row", 8, loop("h", 4, replace(body, count=8)), kind="blk"),)
    assert list(demands(events(k, wide, 8), frozenset()))


# --- blocks -------------------------------------------------------------------------------------------------


def stages(*between: Node) -> Block:
    one = loop("row", 4, put("g", 64 * row + tx), kind="blk")
    two = loop("row", 4, get("g", 255 - (64 * row + tx)), kind="blk")
    return (one, *between, two)


def test_stages_need_a_barrier_of_the_grid() -> None:
    k = kernel(buffer("g", Scope.GLOBAL, 256))
    assert check_barriers(k, stages(GRID_BARRIER), 4)
    assert not unneeded_barriers(k, stages(GRID_BARRIER), 4)
    for wrong in ((), (BLOCK_BARRIER,)):
        verdict = unsafe(k, stages(*wrong), 4)
        assert verdict.code == "PF530" and verdict.witness is not None
        assert verdict.witness.scope is BarrierScope.GRID
    with pytest.raises(ScheduleError) as caught:
        insert_barriers(k, stages(), 4)
    assert caught.value.code == "PF532"


def test_one_block_needs_a_barrier_of_the_block_only() -> None:
    k = kernel(buffer("g", Scope.GLOBAL, 256))
    assert check_barriers(k, stages(BLOCK_BARRIER), 1)
    _, reasons = insert_barriers(k, stages(), 1)
    assert reasons == ("g: threads read what others wrote",)


def test_a_barrier_of_the_grid_in_a_loop_over_blocks() -> None:
    k = kernel(buffer("g", Scope.GLOBAL, 256))
    body = (put("g", 64 * row + tx), GRID_BARRIER, get("g", 255 - (64 * row + tx)))
    block = (loop("row", 4, *body, kind="blk"),)
    assert check_barriers(k, block, 4)
    for blocks in (2, 3, 5):
        verdict = check_barriers(k, block, blocks)
        assert isinstance(verdict, Unsafe) and verdict.code == "PF531"


def test_elements_of_a_block_need_no_barrier_of_the_grid() -> None:
    k = kernel(buffer("g", Scope.GLOBAL, 4, 64))
    body = (put("g", row, tx), BLOCK_BARRIER, get("g", row, 63 - tx))
    assert check_barriers(k, (loop("row", 4, *body, kind="blk"),), 4)
    assert check_barriers(k, (loop("row", 4, *body, kind="blk"),), 3)


def test_flat_elements_of_two_dims() -> None:
    """Blocks of the flat index set write a matrix: quotient and remainder tell the element."""
    e = 64 * row + tx
    k = kernel(buffer("y", Scope.ARGUMENT, 16, 24))
    block = (loop("row", 6, put("y", binary("//", e, 24), binary("%", e, 24)), kind="blk"),)
    assert check_barriers(k, block, 6)
    wrong = (loop("row", 6, put("y", binary("//", e, 24), binary("%", e, 12)), kind="blk"),)
    assert unsafe(k, wrong, 6).code == "PF533"


def test_a_parameter_in_place_is_the_same_memory() -> None:
    k = kernel(buffer("p", Scope.ARGUMENT, 64), buffer("p__out", Scope.ARGUMENT, 64))
    tensors = (
        Tensor("p", F32, (as_index(64),), Role.INOUT),
        Tensor("p__out", F32, (as_index(64),), Role.OUTPUT, alias="p"),
    )
    same = replace(k, graph=replace(k.graph, tensors=tensors))
    apart = (put("p__out", tx, value=read("p", 63 - tx)),)
    assert check_barriers(k, apart, 1)
    assert unsafe(same, apart, 1).code == "PF533"
    assert check_barriers(same, (put("p__out", tx, value=read("p", tx)),), 1)
    assert check_barriers(same, apart, 1, copied=frozenset(["p"]))


def test_open_sizes() -> None:
    n = ISize("N")
    k = kernel(buffer("s", Scope.SHARED, 64), buffer("y", Scope.ARGUMENT, n, 64), sizes=("N",))
    body = (put("s", tx), BLOCK_BARRIER, put("y", row, tx, value=read("s", 63 - tx)))
    block = (loop("row", n, *body, kind="blk"),)
    assert check_barriers(k, block, n), "a block for each row"
    verdict = check_barriers(k, block, 8)
    assert isinstance(verdict, Unsafe) and verdict.code == "PF530", "blocks run several rows"
    full, reasons = insert_barriers(k, block, 8)
    assert len(reasons) == 1 and check_barriers(k, full, 8)


# --- all threads come ---------------------------------------------------------------------------------------


def test_barriers_on_a_way_that_only_some_threads_take() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64), buffer("x", Scope.ARGUMENT, 64))
    some = op("lt", number(tx), number(8))
    data = op("lt", read("x", 0), const(0.0))
    ways: dict[str, Block] = {
        "a mask": (when(some, BLOCK_BARRIER),),
        "data": (when(data, BLOCK_BARRIER),),
        "a loop of threads": (loop("h", tx, BLOCK_BARRIER),),
        "a loop of rounds": (loop("h", 100, BLOCK_BARRIER, lower=tx, step=64),),
    }
    for what, block in ways.items():
        verdict = check_barriers(k, block, 1)
        assert isinstance(verdict, Unsafe) and verdict.code == "PF531", what
        with pytest.raises(ScheduleError):
            insert_barriers(k, block, 1)


def test_barriers_that_all_threads_reach_after_all() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    for block in (
        (when(op("lt", number(tx), number(64)), BLOCK_BARRIER),),
        (loop("h", 128, BLOCK_BARRIER, lower=tx, step=64),),
        (loop("h", tx + 3, BLOCK_BARRIER, lower=tx),),
        (loop("h", tx + 1, BLOCK_BARRIER, lower=tx),),
    ):
        assert check_barriers(k, block, 1)
        body = (put("s", tx), *block, get("s", 63 - tx))
        assert check_barriers(k, body, 1)


def test_lanes_combine_together() -> None:
    k = kernel()
    combine = Combine("%a", "sum", F32, 8)
    assert check_barriers(k, (when(op("lt", number(tx), number(16)), combine),), 1)
    verdict = check_barriers(k, (when(op("lt", number(tx), number(12)), combine),), 1)
    assert isinstance(verdict, Unsafe) and verdict.code == "PF531"
    assert "a combination of lanes" in verdict.message


def test_insertion_keeps_what_is_there() -> None:
    k = kernel(buffer("s", Scope.SHARED, 64))
    block = (put("s", tx), BLOCK_BARRIER, get("s", 63 - tx), put("s", tx))
    full, reasons = insert_barriers(k, block, 1)
    assert reasons == ("s: threads write where others have read",)
    assert full[:3] == block[:3] and full[4] == block[3]
    bare = map_nodes(full, lambda n: () if isinstance(n, Barrier) and n != BLOCK_BARRIER else n)
    assert bare == block
