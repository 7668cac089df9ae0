"""The loop IR: what is printed as C++ or CUDA. A lowering form only; nothing is scheduled here.

    Node = For(var, lower, upper, step, body, coordinate)    half-open, step > 0
         | If(cond, then, other)
         | Exec(statement, args)            an instance, before lowering
         | Declare(name, dtype, value, count)      a scalar, or small array, of the enclosing block
         | Store(buffer, indices, value)
         | Update(buffer, indices, op, value)      buffer[indices] = buffer[indices] op value
         | Barrier(scope, reason)           all threads of a block (or of the grid) wait for each other
         | Combine(name, op, width)         a scalar becomes its total over a group of `width` lanes
         | VectorLoad(name, buffer, indices, count)      a small array of the thread from memory, at once
         | VectorStore(buffer, indices, name, count)
         | Prefetch(buffer, indices)        asks for a cache line of memory
         | RegisterTile(name, loops, left, right)   sums of products of rows and lanes, in registers
         | TransposedTile(name, buffer, indices, row, lane)  a small array: memory with two loops exchanged
         | OwnedLoop(loop, key, extent, share, ahead)     iterations whose key is in the share
         | Delinearize(loops, number)       the variables of one of the iterations of a nest, by its number
         | Comment(text)

On a GPU the variables ``tx`` and ``ty`` are the thread's place in its block; every other variable is
that of a loop around.

Expressions are the tensor graph's, where a Read names a buffer of the kernel (or a declared scalar,
with no indices) and indices are storage indices over loop variables.  Conditions are Exprs over
IndexValues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from operator import is_
from typing import Any, TypeAlias, TypeVar, Union

from polyfuse.ir.contraction import Term
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, binary, substitute, variables
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Expr,
    Index,
    Read,
    format_expr,
    format_index,
    map_expr,
    map_index,
)

# How terms of tiles are written.
_TERMS: dict[Term, str] = {
    "product": "{} * {}",
    "difference": "({} - {})**2",
    "words": "{} dot_words {}",
    "bytes": "{} dot_bytes {}",
    "row bytes": "{1} dot_bytes {0}",
    "pairs": "{} dot_pairs {}",
}


@dataclass(frozen=True, slots=True)
class For:
    """`lanes` names the scalars that are accumulated over this loop and may be split over lanes; those of one
    fill at most `lane_bytes` (0: as many as elsewhere).

    Iterations of a `joint` loop are rows that are computed at once; it combines `lanes` of all of them, which
    the loop in its body accumulates (`codegen.transforms.unroll_and_jam.batched_rows`).  Compilers shall see
    how often a `window` (`codegen.transforms.index_set_splitting.div_mod`) runs, and take no loop apart that
    is one `vector` (`codegen.transforms.vector_epilogues`).  Lanes of one that is `long` join their totals
    every so many iterations (`codegen.transforms.wide_accumulators`).  One that is `written` is to be written
    out, iteration by iteration (`codegen.cpu.workarounds`).  The scalar `scan` has totals of all steps so
    far, in an order that is free (`codegen.cpu.vectorize.scans`).  How often one `of_data` runs, data tells
    (`codegen.transforms.data_ranges`).
    """

    var: str
    lower: IndexExpr
    upper: IndexExpr
    step: int
    body: tuple[Node, ...]
    coordinate: Coordinate = Coordinate.SEQ
    lanes: tuple[str, ...] = ()
    lane_bytes: int = 0
    joint: bool = False
    window: bool = False
    vector: bool = False
    long: bool = False
    written: bool = False
    scan: str = ""
    of_data: bool = False


@dataclass(frozen=True, slots=True)
class If:
    cond: Expr
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Exec:
    statement: str
    args: tuple[IndexExpr, ...]


class LocalRole(Enum):
    """What passes ask of scalars and arrays that others declared."""

    PLAIN = "plain"
    CARRIED = "carried"  # what a step of a recurrence leaves for later ones
    PLACES = "places"  # indices, within the dims that they are for
    HELD = "held"  # totals of a strip of a row, in registers
    SHARED = "shared"  # what all iterations of a worker read, filled once for them
    INDEX = "index"  # a number that is a variable of index expressions as well


@dataclass(frozen=True, slots=True)
class Declare:
    """A scalar, or with `count` a small array, every element of which starts as `value`."""

    name: str
    dtype: DType
    value: Expr | None = None
    count: int = 0
    role: LocalRole = LocalRole.PLAIN


@dataclass(frozen=True, slots=True)
class Store:
    buffer: str
    indices: tuple[Index, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Update:
    """op is one of the reductions sum max min prod any all; `atomic`: other threads update it as well.
    Without `nan` an extreme may be anything where one of the values is NaN."""

    buffer: str
    indices: tuple[Index, ...]
    op: str
    value: Expr
    atomic: bool = False
    nan: bool = True


class BarrierScope(Enum):
    BLOCK = "block"
    GRID = "grid"


@dataclass(frozen=True, slots=True)
class Barrier:
    scope: BarrierScope
    reason: str


@dataclass(frozen=True, slots=True)
class Combine:
    """The scalar `name` of each of `width` neighbouring lanes becomes op over all of them, in all of them.

    `width` is a power of two up to 32 and divides the number of threads along x.  Before the threads'
    code is made it is 0, for all threads along x, or along y with `rows`.
    """

    name: str
    op: str
    dtype: DType
    width: int
    rows: bool = False


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """Declare the array `name` of `count` elements with those of the buffer from `indices` on.

    They are contiguous and aligned to their size.  Where `cond` does not hold nothing is loaded.
    """

    name: str
    dtype: DType
    buffer: str
    indices: tuple[Index, ...]
    count: int
    cond: Expr | None = None


@dataclass(frozen=True, slots=True)
class VectorStore:
    """Store the array `name` of `count` elements from `indices` on: contiguous and aligned."""

    buffer: str
    indices: tuple[Index, ...]
    name: str
    count: int


def vector_rows(
    indices: tuple[Index, ...], count: int, extents: tuple[IndexExpr, ...]
) -> Iterator[tuple[tuple[Index, ...], int]]:
    """The parts of a vector in rows of a buffer: where each begins, and its elements.

    Of `x[N, 2]`, the vector of 4 elements at `x[i, 0]` is that of 2 there and that of 2 at `x[i+1, 0]`.
    """
    at, length = indices[-1], extents[-1]
    if len(indices) < 2 or not isinstance(at, IConst) or not isinstance(length, IConst) or not length.value:
        yield indices, count
        return
    place = at.value
    while count:
        part = min(count, length.value - place % length.value)
        yield (*indices[:-2], _later(indices[-2], place // length.value), IConst(place % length.value)), part
        place, count = place + part, count - part


def _later(i: Index, by: int) -> Index:
    assert by == 0 or not isinstance(i, EXPR_TYPES), "a vector ends in the row that data finds"
    return i if isinstance(i, EXPR_TYPES) else binary("+", i, by)


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The line of an element is soon needed in L1; nothing is read."""

    buffer: str
    indices: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Declare the array `name`: sums over `loops` of what `left` and `right` make as factors of a `term`, for
    `rows` times `lanes` places.

    `left` reads an element for each row and `right` one for each lane, contiguous, through the variables
    `row` and `lane`.  These begin at `start`, which names two constants that are declared as well.  Each
    iteration of the first `parts` loops has a sum of its own, and these are added.  `ends`: rows and lanes
    from there on are not used; what they read exists where they are `held`, else the last one before is read.
    """

    name: str
    dtype: DType
    row: str
    rows: int
    lane: str
    lanes: int
    start: tuple[tuple[str, IndexExpr], tuple[str, IndexExpr]]
    loops: tuple[For, ...]
    left: Read
    right: Read
    parts: int = 0
    term: Term = "product"
    ends: tuple[IndexExpr | None, IndexExpr | None] = (None, None)
    held: tuple[bool, bool] = (True, True)


@dataclass(frozen=True, slots=True)
class TransposedTile:
    """Declare the array `name` of `rows` times `lanes` places: the elements of a buffer that the loops `row`
    and `lane` (which have no bodies) find, row after row.

    In memory neighbours along `row` lie side by side, if the buffer's own strides do not part them.  With
    `to`, a buffer and the indices of an element, they are stored there and nothing is declared; `back`, they
    come from an array of the worker.
    """

    name: str
    dtype: DType
    buffer: str
    indices: tuple[IndexExpr, ...]
    row: For
    rows: int
    lane: For
    lanes: int
    to: tuple[str, tuple[IndexExpr, ...]] | None = None
    back: bool = False


@dataclass(frozen=True, slots=True)
class OwnedLoop:
    """The iterations of `loop` with `low <= key < high`, where (low, high) is `share`, in order.

    `key` is data, clamped to 0..extent, and an index of what the loop updates (`update`, its buffer).
    `ahead` are reads whose rows are prefetched some iterations before.
    """

    loop: For
    key: Expr
    extent: IndexExpr
    share: tuple[IndexExpr, IndexExpr]
    update: str
    ahead: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Delinearize:
    """Declares the variables of `loops`, which have no bodies: those of iteration `number` of their nest. The
    innermost one runs fastest.

    With `over`, a loop without a body, there are many, and `number` has its variable: they are known in loops
    over that variable that follow in the block.  With `until` the innermost loop has a run of values, from
    `begin_of` it to `end_of` it: the iterations from `number` up to that one which differ in it alone.  The
    loop around goes on after them.
    """

    loops: tuple[For, ...]
    number: IndexExpr
    over: For | None = None
    until: IndexExpr | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """What it declares."""
        *outer, last = self.loops
        lasts = (last.var,) if self.until is None else (begin_of(last), end_of(last))
        return (*(x.var for x in outer), *lasts)


def begin_of(loop: For) -> str:
    """What the first of the iterations along a loop that follow one another is called."""
    return f"{loop.var}_begin"


def end_of(loop: For) -> str:
    """What the end of these is called."""
    return f"{loop.var}_end"


@dataclass(frozen=True, slots=True)
class Comment:
    text: str


Node: TypeAlias = Union[  # noqa: UP007
    For,
    If,
    Exec,
    Declare,
    Store,
    Update,
    Barrier,
    Combine,
    VectorLoad,
    VectorStore,
    Prefetch,
    RegisterTile,
    TransposedTile,
    OwnedLoop,
    Delinearize,
    Comment,
]
Block: TypeAlias = tuple[Node, ...]
Made = TypeVar("Made", bound=Node)


def map_nodes(block: Block, change: Callable[[Node], Node | Block]) -> Block:
    """Rebuild bottom-up; `change` may return several nodes, or none, for one."""
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                node = _with(node, body=map_nodes(node.body, change))
            case If():
                node = _with(node, then=map_nodes(node.then, change), other=map_nodes(node.other, change))
            case _:
                pass
        changed = change(node)
        result.extend(changed if isinstance(changed, tuple) else (changed,))
    return tuple(result)


def _with(node: Made, **parts: Any) -> Made:
    """The node with other parts; itself where they are what it has, so that what it belongs to stays too."""
    kept = all(_same(getattr(node, name), part) for name, part in parts.items())
    return node if kept else replace(node, **parts)


def _same(old: object, new: object) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(map(is_, old, new))
    return old is new


def map_outermost(block: Block, change: Callable[[For], Iterable[Node] | None]) -> Block:
    """Rebuild top-down: a loop becomes what `change` makes of it; where that is None, those in it do."""
    result: list[Node] = []
    for node in block:
        match node:
            case For():
                made = change(node)
                result += [_with(node, body=map_outermost(node.body, change))] if made is None else made
            case If():
                then, other = (map_outermost(b, change) for b in (node.then, node.other))
                result.append(_with(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def map_places(block: Block, at: Callable[[str, tuple[Index, ...]], tuple[Index, ...]]) -> Block:
    """The block with every element that is read, stored or updated at another place of its buffer."""

    def expr(e: Expr) -> Expr:
        return replace(e, indices=at(e.tensor, e.indices)) if isinstance(e, Read) else e

    def node(n: Node) -> Node:
        return replace(n, indices=at(n.buffer, n.indices)) if isinstance(n, (Store, Update)) else n

    return map_nodes(map_values(block, expr, lambda i: i), node)


def map_values(
    block: Block, on_expr: Callable[[Expr], Expr], on_index: Callable[[IndexExpr], IndexExpr]
) -> Block:
    """Rebuild with `on_index` on every index expression and `on_expr` on every rebuilt expression."""

    def expr(e: Expr) -> Expr:
        return map_expr(e, on_expr, on_index)

    def places(indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(map_index(i, expr, on_index) for i in indices)

    def bounds(loop: For) -> For:
        return _with(loop, lower=on_index(loop.lower), upper=on_index(loop.upper))

    def change(node: Node) -> Node:
        match node:
            case For():
                return bounds(node)
            case If():
                return _with(node, cond=expr(node.cond))
            case Store() | Update():
                return _with(node, indices=places(node.indices), value=expr(node.value))
            case Declare(_, _, value) if value is not None:
                return _with(node, value=expr(value))
            case VectorLoad(cond=cond) if cond is not None:
                return _with(node, indices=places(node.indices), cond=expr(cond))
            case VectorLoad() | VectorStore() | Prefetch():
                return _with(node, indices=places(node.indices))
            case Delinearize():
                until = None if node.until is None else on_index(node.until)
                loops = tuple(map(bounds, node.loops))
                return _with(node, loops=loops, number=on_index(node.number), until=until)
            case TransposedTile():
                row, lane = map(bounds, (node.row, node.lane))
                to = (node.to[0], tuple(map(on_index, node.to[1]))) if node.to else None
                return replace(node, indices=tuple(map(on_index, node.indices)), row=row, lane=lane, to=to)
            case _:
                return node

    return map_nodes(block, change)


def nodes_of(block: Block) -> Iterator[Node]:
    """The nodes of a block, and those in them."""
    for n in block:
        yield n
        match n:
            case For():
                yield from nodes_of(n.body)
            case If():
                yield from nodes_of((*n.then, *n.other))
            case _:
                pass


def block_nest(loop: For) -> tuple[tuple[For, ...], Block]:
    """Loops over blocks that are handed out as one, by the product of their trip counts, and what is in them.

    Those that are perfectly nested and whose bounds do not depend on one another.  A block that has an
    iteration of these runs any other loop inside as a loop of its own.
    """
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(inner := loops[-1].body[0], For):
        bounds = {*variables(inner.lower), *variables(inner.upper)}
        if inner.coordinate is not Coordinate.BLK or bounds & {x.var for x in loops}:
            break
        loops.append(inner)
    return tuple(loops), loops[-1].body


def values_of(nodes: Iterable[Node]) -> Iterator[Expr]:
    """What nodes compute themselves, without those in them."""
    for n in nodes:
        if isinstance(n, (Declare, Store, Update)) and n.value is not None:
            yield n.value


def substituted(block: Block, env: Mapping[str, IndexExpr]) -> Block:
    """The block with loop variables replaced."""
    return map_values(block, lambda e: e, lambda i: substitute(i, env))


def format_block(block: Block, indent: str = "") -> str:
    """Readable text; stable, for dumps and goldens."""
    return "\n".join(_format(node, indent) for node in block)


def _format(node: Node, indent: str) -> str:
    inner = indent + "  "
    match node:
        case For(var, lower, upper, step, body, coordinate, lanes):
            by = f" by {step}" if step != 1 else ""
            where = f" @{coordinate.value}" if coordinate is not Coordinate.SEQ else ""
            over = " of rows at once" if node.joint else ""
            over += f" accumulating {', '.join(lanes)}" if lanes else ""
            over += f" in {node.lane_bytes} bytes" if lanes and node.lane_bytes else ""
            over += f" scanning {node.scan}" if node.scan else ""
            return f"{indent}for {var} in {lower}..{upper}{by}{where}{over}:\n{format_block(body, inner)}"
        case If(cond, then, other):
            text = f"{indent}if {format_expr(cond)}:\n{format_block(then, inner)}"
            return text + (f"\n{indent}else:\n{format_block(other, inner)}" if other else "")
        case Exec(statement, args):
            return f"{indent}{statement}({', '.join(map(str, args))})"
        case Declare(name, dtype, value, count):
            size = f"[{count}]" if count else ""
            start = f" = {format_expr(value)}" if value is not None else ""
            return f"{indent}{dtype} {name}{size}{start}"
        case Store(buffer, indices, value):
            return f"{indent}{_place(buffer, indices)} = {format_expr(value)}"
        case Update(buffer, indices, op, value, atomic):
            how = "  # atomic" if atomic else ""
            return f"{indent}{_place(buffer, indices)} {op}= {format_expr(value)}{how}"
        case Barrier(scope, reason):
            return f"{indent}barrier of the {scope.value}  # {reason}"
        case Combine(name, op, _, width):
            return f"{indent}{name} = {op} of {name} over {width} lanes"
        case VectorLoad(name, dtype, buffer, indices, count, cond):
            where = "" if cond is None else f" if {format_expr(cond)}"
            return f"{indent}{dtype} {name}[{count}] = {_place(buffer, indices)} ...{where}"
        case VectorStore(buffer, indices, name, count):
            return f"{indent}{_place(buffer, indices)} ... = {name}[{count}]"
        case Prefetch(buffer, indices):
            return f"{indent}fetch {_place(buffer, indices)}"
        case RegisterTile(name, dtype, row, rows, lane, lanes):
            size = f"{dtype} {name}[{rows}, {lanes}]"
            over = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in node.loops)
            left, right = format_expr(node.left), format_expr(node.right)
            factors = _TERMS[node.term].format(left, right)
            at = f"{row} from {node.start[0][1]}, {lane} from {node.start[1][1]}"
            ends = zip((row, lane), node.ends, strict=True)
            at += "".join(f", {v} up to {e}" for v, e in ends if e is not None)
            return f"{indent}{size} = sum over {over} of {factors}  # in registers: {at}"
        case TransposedTile(name, dtype, buffer, indices, row, rows, lane, lanes):
            over = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in (row, lane))
            array = _place(*node.to) if node.to else f"{dtype} {name}[{rows}, {lanes}]"
            return f"{indent}{array} = {_place(buffer, indices)} for {over}"
        case OwnedLoop(loop, key, _, (low, high)):
            own = f"{indent}of those with {format_expr(key)} in {low}..{high}:"
            return f"{own}\n{_format(loop, inner)}"
        case Delinearize(loops, number):
            nest = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in loops)
            more = f" and on up to {node.until}" if node.until is not None else ""
            more += f" for {node.over.var} in {node.over.lower}..{node.over.upper}" if node.over else ""
            return f"{indent}{', '.join(node.variables)} = iteration {number}{more} of {nest}"
        case Comment(text):
            return f"{indent}# {text}"


def _place(buffer: str, indices: tuple[Index, ...]) -> str:
    return f"{buffer}[{', '.join(map(format_index, indices))}]" if indices else buffer
