"""Common subexpressions of loops: what several make of elements of 16 bits is made once, and kept as f32.

    for l: s += f32(x[t, l]) + b[l]                 for l: q = f32(x[t, l]) + b[l];  z[l] = q;  s += q
    m = s / N                                 ->    m = s / N
    for l: y[t, l] = f16(f32(x[t, l]) + b[l] - m)   for l: y[t, l] = f16(z[l] - m)

To convert two elements again costs more than to store a value to L1 and read it there; for one element it
is the same.  For f32 that is decided before (`layers.mapping.gpu_row_cache`): there an element costs nothing
but a load.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import guarded_load
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core, kept_room
from polyfuse.ir.dtypes import BF16, F16, F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, walk

_PLAIN = (Declare, Store, Update)


def common_subexpressions(kernel: Kernel, block: Block, numbers: itertools.count[int], core: Core) -> Block:
    """The block, with such rows in arrays of their own; `numbers` numbers them."""
    unchanged = frozenset(b.tensor for b in kernel.unchanged)

    def changed(block: Block) -> Block:
        return _of_block(tuple(map(node, block)), unchanged, numbers, kept_room(core))

    def node(n: Node) -> Node:
        match n:
            case For() if n.coordinate is not Coordinate.VECTOR:
                return replace(n, body=changed(n.body))
            case If():
                return replace(n, then=changed(n.then), other=changed(n.other))
            case _:
                return n

    return changed(block)


def _of_block(block: Block, unchanged: frozenset[str], numbers: itertools.count[int], room: int) -> Block:
    """The same for the vector loops that follow one another in a block; their rows have so many bytes."""
    loops = [n for n in block if isinstance(n, For) and _possible(n)]
    for same in _alike(loops):
        wanted = _wanted(same, unchanged)
        most = room // (_trip(same[0]) * F32.bytes)
        names = {e: f"%kept{next(numbers)}" for e in wanted[:most]}
        if names:
            first = {e: min(k for k, x in enumerate(same) if e in _made(x)) for e in names}
            made = {
                id(x): _keeping(x, names, [e for e in names if first[e] == k]) for k, x in enumerate(same)
            }
            arrays = [Declare(name, F32, None, _trip(same[0])) for name in names.values()]
            start = next(k for k, n in enumerate(block) if id(n) in made)
            rest = tuple(made.get(id(n), n) for n in block[start:])
            block = (*block[:start], *arrays, *rest)
    return block


def _possible(loop: For) -> bool:
    """Is it a vector loop of plain nodes from 0 on, long enough for lanes?"""
    trip = trip_of(loop)
    return (
        loop.coordinate is Coordinate.VECTOR
        and loop.step == 1
        and loop.lower == IConst(0)
        and trip is not None
        and trip >= FITTED.half_precision_lanes // 2
        and all(isinstance(n, _PLAIN) for n in loop.body)
        and not guarded_load(loop.body)
    )


def _alike(loops: Sequence[For]) -> Iterator[list[For]]:
    """Those with the same variable and the same bounds, where there are several."""
    for key in dict.fromkeys((x.var, x.upper) for x in loops):
        same = [x for x in loops if (x.var, x.upper) == key]
        if len(same) > 1:
            yield same


def _trip(loop: For) -> int:
    assert isinstance(loop.upper, IConst)
    return loop.upper.value


def _wanted(loops: Sequence[For], unchanged: frozenset[str]) -> list[Expr]:
    """The largest expressions of conversions that several of the loops compute."""
    counts = Counter(e for x in loops for e in _made(x) if _constant(e, x.var, unchanged))
    several = {e for e, n in counts.items() if n > 1}
    found: dict[Expr, None] = {}
    for x in loops:
        for value in _values(x.body):
            found |= dict.fromkeys(_largest(value, several))
    return list(found)


def _made(loop: For) -> set[Expr]:
    """What each iteration computes, whatever the data."""
    return {e for value in _values(loop.body) for e in _unguarded(value) if e.dtype == F32}


def _constant(e: Expr, var: str, unchanged: frozenset[str]) -> bool:
    """Is it made of enough conversions of such elements, and otherwise of what no loop changes?"""
    every = list(walk(e))
    halves = {x for x in every if isinstance(x, Cast) and x.dtype == F32 and x.arg.dtype in (F16, BF16)}
    rows = [x for x in halves if isinstance(x.arg, Read) and x.arg.indices and x.arg.indices[-1] == IVar(var)]
    return len(rows) >= FITTED.common_subexpressions_fewest and all(
        x.tensor in unchanged for x in every if isinstance(x, Read)
    )


def _values(body: Block) -> Iterator[Expr]:
    for n in body:
        if isinstance(n, _PLAIN) and n.value is not None:
            yield n.value


def _unguarded(e: Expr) -> Iterator[Expr]:
    yield e
    for a in _operands(e):
        yield from _unguarded(a)


def _largest(e: Expr, wanted: set[Expr]) -> Iterator[Expr]:
    if e in wanted:
        yield e
        return
    for a in _operands(e):
        yield from _largest(a, wanted)


def _operands(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Apply(_, args):
            return args
        case Cast(arg):
            return (arg,)
        case _:
            return ()


def _keeping(loop: For, names: Mapping[Expr, str], new: Sequence[Expr]) -> For:
    """The loop, with arrays read in place of the expressions, and those that are new filled before."""
    place = (IVar(loop.var),)
    here = {e: Read(f"{names[e]}_q", (), F32) for e in new}

    def reading(e: Expr) -> Expr:
        if e in names:
            return here.get(e) or Read(names[e], place, F32)
        match e:
            case Apply(_, args):
                return replace(e, args=tuple(map(reading, args)))
            case Cast(arg):
                return replace(e, arg=reading(arg))
            case _:
                return e

    def node(n: Node) -> Node:
        if isinstance(n, _PLAIN) and n.value is not None:
            return replace(n, value=reading(n.value))
        return n

    kept: list[Node] = []
    for e, read in here.items():
        kept += [Declare(read.tensor, F32, e), Store(names[e], place, read)]
    return replace(loop, body=(*kept, *map(node, loop.body)))
