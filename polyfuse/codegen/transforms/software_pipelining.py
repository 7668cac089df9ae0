"""Software pipelining: the first phase of the next row runs before the last phase of a row.

    for t in 0..T @blk:                    s = sum of x[0, :]
      s = sum of x[t, :]                   for t in 0..T @blk:
      v = sum of (x[t, :] - s) ** 2   ->     v = sum of (x[t, :] - s) ** 2
      y[t, :] = f(x[t, :], s, v)             n = sum of x[t + 1, :]
                                             y[t, :] = f(x[t, :], s, v);  s = n

A phase waits until the lanes of the phase before have become one number, and until roots and quotients of it
are there: together as long as the vectors of a row of some kilobytes take.  Now there is always a loop that
needs none of these numbers.  Lines that are prefetched are those of one row later, and requested by
a loop in between, which has its row in L1 while memory is idle, or else by the last loop.

Iterations of a parallel nest may run in any order, so also in this one.  What the first phase finds goes on
in scalars, and in arrays of the worker that have room for two rows.  Rows that are interleaved already
(`codegen.transforms.unroll_and_jam.interleaved_rows`) stay as they are, and so do those with functions that
take long: there vectors take longer than what they wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import read_names, taken_out
from polyfuse.codegen.analysis.op_cost import computes_little
from polyfuse.codegen.analysis.renaming import copy_of, private, row_variable, scalar_name
from polyfuse.codegen.analysis.row_batch import row_places
from polyfuse.codegen.analysis.row_phases import LONG
from polyfuse.codegen.analysis.trip_count import fewest_of, longest
from polyfuse.codegen.c_printer import guarded_load
from polyfuse.codegen.function import BEGIN, END, ITERATION, Function
from polyfuse.codegen.passes import missed
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import KIB, Core, CpuKnobs, overlap_room, skew_room
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import Range, interval, size_ranges
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    Delinearize,
    For,
    If,
    Node,
    Prefetch,
    Store,
    Update,
    map_nodes,
    map_places,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import HEAD, Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Expr, Index, IndexValue, Read, depends_on, reads, walk

# The copy of what is done ahead, for the next iteration.
NEXT = "row1"
_PLAIN = (For, If, Declare, Store, Update, Comment, Prefetch)


def software_pipelined(
    kernel: Kernel, functions: Sequence[Function], knobs: CpuKnobs
) -> tuple[Kernel, tuple[Function, ...]]:
    """The functions with their rows so, where that can be and pays (or wherever it can be, or nowhere, if
    `knobs.skew` says so), and the kernel with the arrays that they need."""
    wanted = knobs.skew
    local = {b.tensor: b.extents[:1] == (IConst(1),) for b in kernel.buffers if b.scope is Scope.LOCAL}
    made: list[Function] = []
    doubled: set[str] = set()
    for t in functions:
        found = _cut(kernel, t.body, local) if wanted is not False and t.loops else None
        if found is not None and not t.one_by_one:
            missed(t.body, "several rows are computed at a time")
            found = None
        if found is None:
            made.append(t)
            continue
        own = {n.buffer for n in nodes_of(found[0]) if isinstance(n, Store)} & set(local)
        row = sum(_row_bytes(kernel, t.body).values())
        against = None if wanted else _against(t, row, _bytes_in_l1(found, own, kernel), knobs.on)
        if against:
            missed(t.body, against)
        else:
            if row <= overlap_room(knobs.on):
                found = _prefetching(found, t.loops[-1])
            doubled |= own
            t = _pipelined(t, found, own)
        made.append(t)
    buffers = tuple(
        replace(b, extents=(IConst(2), *b.extents[1:])) if b.tensor in doubled else b for b in kernel.buffers
    )
    return replace(kernel, buffers=buffers), tuple(made)


def _pipelined(f: Function, parts: tuple[Block, Block, Block], own: Set[str]) -> Function:
    """Of the parts of a function's body; rows of `own`, a worker's arrays, are doubled."""
    rows = [n for n in parts[0] if isinstance(n, Declare) and n.count]
    sizes = {n.name: row_places(n) for n in rows}
    alone = tuple(n for n in parts[0] if n not in rows)
    first, middle, last = (_in_turns(part, own, sizes) for part in (alone, *parts[1:]))
    known = {n.name: n for n in first if isinstance(n, Declare)}
    used = set(_read((*middle, *last)))
    carried = [n for n in known.values() if n.name in used]
    start = tuple(replace(n, value=Read(_next(n.name), (), n.dtype)) for n in carried)
    nest = tuple(replace(x, var=row_variable(x.var, 1)) for x in f.loops)
    env: dict[str, IndexExpr] = {x.var: IVar(y.var) for x, y in zip(f.loops, nest, strict=True)}
    of_next = copy_of(first, NEXT, {**env, ITERATION.name: ITERATION + 1})
    prologue = (
        Delinearize((For(ITERATION.name, BEGIN, END, 1, ()),), IConst(0)),
        Delinearize(f.loops, ITERATION),
        *first,
        *(_keep(n, n.name) for n in carried),
    )
    ahead = (
        Delinearize(nest, ITERATION + 1),
        *of_next,
        *(_keep(n, private(n.name, NEXT)) for n in carried),
    )
    return f.with_before(
        (
            *(replace(n, count=2 * sizes[n.name]) for n in rows),
            *(Declare(_next(n.name), n.dtype) for n in carried),
            _if_any(BEGIN, prologue),
        )
    ).with_body((*start, *middle, _if_any(ITERATION + 1, ahead), *_later(last, f.loops[-1].var)))


def _if_any(number: IndexExpr, part: Block) -> If:
    """A part of an iteration of a worker, if it has one with that number."""
    return If(Apply("lt", (IndexValue(number, I64), IndexValue(END, I64)), BOOL), part)


def _next(name: str) -> str:
    return f"%next_{scalar_name(name)}"


def _keep(n: Declare, name: str) -> Store:
    return Store(_next(n.name), (), Read(name, (), n.dtype))


# --- whether ------------------------------------------------------------------------------------------


def _against(f: Function, row: int, held: int, core: Core) -> str | None:
    """Why it does not pay, if it does not; a row has `row` bytes, and `held` are in L1 at a time."""
    if row > FITTED.software_pipelining_most_row:
        return f"rows are longer than {FITTED.software_pipelining_most_row // KIB} KiB"
    if held > skew_room(core):
        return "L1 does not hold two rows"
    return "functions of elements take longer than a row waits" if _long(f.body) else None


def _long(body: Block) -> bool:
    """Is there a function of elements that takes long?"""
    loops = [n for n in nodes_of(body) if isinstance(n, For) and n.coordinate is Coordinate.VECTOR]
    every = (e for x in loops for v in _values(x) for e in walk(v) if isinstance(e, Apply))
    return not all(computes_little(e, "div") for e in every)


def _values(loop: For) -> list[Expr]:
    plain = [n.value for n in loop.body if isinstance(n, (Declare, Store, Update))]
    return [v for v in plain if v is not None]


def _cut(kernel: Kernel, body: Block, local: Mapping[str, bool]) -> tuple[Block, Block, Block] | None:
    """The first phase with what follows from it, what is in between, and from the last loop on; `local` are a
    worker's arrays, and whether each has one row."""
    places = [k for k, n in enumerate(body) if isinstance(n, For)]
    if len(places) < 2 or not all(isinstance(n, _PLAIN) for n in nodes_of(body)):
        return None
    one, two, end = places[0], places[1], places[-1]
    loop = body[one]
    before = body[:one]
    assert isinstance(loop, For)
    if not _reduces(kernel, loop) or not all(isinstance(n, (Declare, Store, Update)) for n in before):
        return None
    lengths = [longest(kernel, x) or 0 for x in nodes_of(body) if isinstance(x, For)]
    if (longest(kernel, loop) or 0) * HEAD < max(lengths):
        # It would touch a row long before the rest of it is needed.
        missed(body, "the first phase is too short to fill a wait")
        return None
    found = {n.name if isinstance(n, Declare) else n.buffer for n in before}  # type: ignore[union-attr]
    stored = found | {n.buffer for n in loop.body if isinstance(n, (Store, Update))}
    if not all(local.get(name, True) for name in stored):
        missed(body, "the first phase stores more than one row")
        return None
    follows, rest = _following(body[one + 1 : two], found)
    return (*before, loop, *follows), (*rest, *body[two:end]), body[end:]


def _bytes_in_l1(parts: tuple[Block, Block, Block], own: Set[str], kernel: Kernel) -> int:
    """Bytes of rows that are in L1 at a time: two of those that the last loop reads again and of a worker's
    `own`, which the first loop fills, and one of the others and of results that stay in the caches."""
    first, middle, last = parts
    again = {tensor for tensor, _ in _row_bytes(kernel, last)}
    read = _row_bytes(kernel, (*first, *middle, *last))
    rows = sum(size * (2 if tensor in again else 1) for (tensor, _), size in read.items())
    return rows + sum(size * (2 if name in own else 1) for name, size in _stored(parts, kernel).items())


def _stored(parts: tuple[Block, Block, Block], kernel: Kernel) -> dict[str, int]:
    """Bytes of the rows that vector loops store, but of those that are streamed."""
    loops = [x for part in parts for x in nodes_of(part) if isinstance(x, For)]
    vectors = [x for x in loops if x.coordinate is Coordinate.VECTOR]
    stored = {
        n.buffer for x in vectors for n in x.body if isinstance(n, Store) and x.var in depends_on(*n.indices)
    }
    rows = {b.tensor: b for b in kernel.buffers if b.tensor in stored and not b.past}
    ranges = size_ranges(kernel.graph)
    return {name: _row_of(b, ranges) for name, b in rows.items()}


def _row_of(b: Buffer, ranges: Mapping[str, Range]) -> int:
    """Bytes of a row of a buffer, at most."""
    length = interval(b.extents[-1], ranges)
    return LONG if length is None else length[1] * b.dtype.bytes


def _row_bytes(kernel: Kernel, body: Block) -> dict[tuple[str, tuple[Index, ...]], int]:
    """Of the rows of memory that loops go along, each counted once: a loop that has them in parts
    (`codegen.transforms.prefetch`) comes after one that has them whole."""
    rows: dict[tuple[str, tuple[Index, ...]], int] = {}
    for x in nodes_of(body):
        if isinstance(x, For) and x.coordinate is Coordinate.VECTOR:
            most = longest(kernel, x)
            for r in (r for v in _values(x) for r in reads(v)):
                if _along(r, x.var):
                    size = LONG if most is None else most * r.dtype.bytes
                    rows.setdefault((r.tensor, r.indices[:-1]), size)
    return rows


def _reduces(kernel: Kernel, loop: For) -> bool:
    """Is it a plain vector loop of totals?"""
    if loop.coordinate is not Coordinate.VECTOR or not loop.lanes or loop.step != 1:
        return False
    if not all(isinstance(n, (Declare, Update, Store)) for n in loop.body) or guarded_load(loop.body):
        return False
    return fewest_of(loop, size_ranges(kernel.graph)) >= FITTED.half_precision_lanes and {
        n.buffer for n in loop.body if isinstance(n, Update)
    } <= set(loop.lanes)


def _along(r: Read, var: str) -> bool:
    """Is it of a row of memory that is another one in each iteration around the loop?"""
    found = depends_on(*r.indices)
    return var in found and (len(found) > 1 or any(isinstance(i, EXPR_TYPES) for i in r.indices))


def _following(nodes: Sequence[Node], found: set[str]) -> tuple[list[Node], list[Node]]:
    """Those that declare or change what only needs what was found; new names join the others. The rest."""
    follows: list[Node] = []
    rest: list[Node] = []
    changed: set[str] = set()  # what the rest declares or sets
    for n in nodes:
        names = set(_read((n,)))
        match n:
            case Declare(name, count=0) if names & found and not names & changed:
                found.add(name)
                follows.append(n)
            case Store(name) | Update(name) if name in found - changed and not names & changed:
                follows.append(n)
            case Declare(name) | Store(name) | Update(name):
                changed.add(name)
                rest.append(n)
            case _:
                rest.append(n)
    return follows, rest


def _read(block: Block) -> Iterator[str]:
    """Names that a block reads, those that it updates among them."""
    for n in nodes_of(block):
        match n:
            case Declare(_, _, value) if value is not None:
                yield from read_names(value, ())
            case Store(_, indices, value):
                yield from read_names(value, indices)
            case Update(buffer, indices, _, value):
                yield buffer
                yield from read_names(value, indices)
            case If(cond):
                yield from read_names(cond, ())
            case _:
                pass


# --- how ----------------------------------------------------------------------------------------------


def _in_turns(block: Block, arrays: Set[str], sizes: Mapping[str, int]) -> Block:
    """The block, with rows of arrays by turns at their first place and at their second; `sizes` are those of
    arrays that are nothing but a row."""
    turn = binary("%", ITERATION, 2)

    def placed(name: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        match indices:
            case (_, *rest) if name in arrays:
                return (turn, *rest)
            case (IConst() | ISize() | IVar() | IBin() as place,) if name in sizes:
                return (binary("+", binary("*", turn, sizes[name]), place),)
            case _:
                return indices

    return map_places(block, placed)


def _prefetching(parts: tuple[Block, Block, Block], rows: For) -> tuple[Block, Block, Block]:
    """The parts, with requests of the last one in a vector loop of the middle one, if there is one."""
    first, middle, last = parts
    plain, lines = taken_out(last)
    place = next((k for k, n in enumerate(middle) if isinstance(n, For) and _is_vector(n)), None)
    if not lines or place is None:
        return parts
    asked: list[Node] = []
    for n in lines:
        (request,) = substituted(n.body, {rows.var: binary("+", IVar(rows.var), 1)})
        assert isinstance(request, Prefetch)
        *lead, row, line = request.indices
        assert not isinstance(row, EXPR_TYPES)
        there = binary("min", row, binary("-", rows.upper, 1))
        asked.append(replace(n, body=(replace(request, indices=(*lead, there, line)),)))
    loop = middle[place]
    assert isinstance(loop, For)
    asking = replace(loop, body=(*asked, *loop.body))
    return first, (*middle[:place], asking, *middle[place + 1 :]), plain


def _is_vector(loop: For) -> bool:
    return loop.coordinate is Coordinate.VECTOR and loop.step == 1


def _later(block: Block, var: str) -> Block:
    """The block, with prefetches of lines that are those of one row later."""

    def node(n: Node) -> Node:
        fetches = isinstance(n, If) and any(isinstance(x, Prefetch) for x in nodes_of((n,)))
        return substituted((n,), {var: binary("+", IVar(var), 1)})[0] if fetches else n

    return map_nodes(block, node)
