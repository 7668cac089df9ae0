"""Scalar replacement: an element of memory lives in a scalar while a loop updates it.

`accumulators_in_scalars` makes the scalars, `uncombined` finds those that threads would share, and
`merge_initial` drops stores of initial values.

Updates of one element over inner loops are added under the guards that they had.

    for j:                       acc = 0
      y[i] sum= x[i, j]    ->    for j: acc sum= x[i, j]
                                 y[i] sum= acc
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.analysis.accesses import touched_otherwise
from polyfuse.codegen.analysis.dependence import tells_apart
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IVar, variables
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import (
    Block,
    Combine,
    Declare,
    For,
    If,
    LocalRole,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    map_nodes,
    map_outermost,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    depends_on,
    reads,
    walk,
)

# --- accumulators -----------------------------------------------------------------------------------------

# Loops whose iterations are of one thread each: elements that their variables name are of one thread.
_OF_THREADS = (Coordinate.THREAD, Coordinate.ROW, Coordinate.STEP)


def accumulators_in_scalars(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """Updates whose element no inner loop changes go through a scalar around these loops.

    Where threads share a loop, they combine their scalars after it (Combine; its width is set later).
    """
    parallel = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)
    return map_outermost(
        block, lambda loop: None if loop.coordinate in parallel else _promote_loop(kernel, loop, numbers)
    )


def _promote_loop(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> list[Node]:
    before: list[Node] = []
    after: list[Node] = []
    for update, guards in _hoistable(kernel, loop):
        ways = _sharing(loop, update)
        buffer = kernel.find(update.buffer)
        if buffer is None or len(ways) > 1:
            continue  # an outer loop made a scalar of it already; or only some of the updates are shared
        name = f"%acc{next(numbers)}"
        zero = Const(identity(update.op, buffer.dtype), buffer.dtype)
        before.append(Declare(name, buffer.dtype, zero))
        (shared,) = ways
        if Coordinate.STEP in shared:
            after.append(Combine(name, update.op, buffer.dtype, 0, rows=True))
        if Coordinate.ROUND in shared:
            after.append(Combine(name, update.op, buffer.dtype, 0))
        total = Read(name, (), buffer.dtype)
        whole: Node = replace(update, value=total)
        for cond in guards:
            whole = If(cond, (whole,))
        after.append(whole)
        loop = replace(loop, body=_redirect(loop.body, update, name))
    if loop.coordinate is Coordinate.VECTOR and not any(isinstance(n, For) for n in loop.body):
        lanes = tuple(u.buffer for u, _ in _hoistable(kernel, loop) if kernel.find(u.buffer) is None)
        return [*before, replace(loop, lanes=lanes), *after]
    inner = accumulators_in_scalars(kernel, loop.body, numbers)
    return [*before, replace(loop, body=inner), *after]


def uncombined(kernel: Kernel, block: Block) -> Update | None:
    """An update of a thread's own memory in a loop that threads share, which is in no scalar: nothing would
    combine what each of them adds. Elements that the loops tell apart are each of one thread."""

    def look(nodes: Block, shared: frozenset[str] | None, mine: frozenset[str]) -> Update | None:
        """`shared`: in a loop that threads share (else None), what each of its iterations begins anew."""
        for node in nodes:
            found = None
            match node:
                case For():
                    within = _begun_anew(node, shared)
                    tells = node.coordinate in _OF_THREADS or _is_whole(node)
                    known = within is not None and tells
                    found = look(node.body, within, mine | {node.var} if known else mine)
                case If(_, then, other):
                    found = look((*then, *other), shared, mine)
                case Update(buffer, indices) if shared is not None and (b := kernel.find(buffer)) is not None:
                    own = b.scope in (Scope.REGISTER, Scope.LOCAL) and buffer not in shared
                    found = node if own and not depends_on(*indices) & mine else None
                case _:
                    pass
            if found is not None:
                return found
        return None

    return look(block, None, frozenset())


def _begun_anew(loop: For, around: frozenset[str] | None) -> frozenset[str] | None:
    """What iterations of a loop begin anew, if the rows of a block share it: each of them is of one row.

    A total over rounds is of all threads of a row, wherever it begins.
    """
    if loop.coordinate is Coordinate.ROUND:
        return frozenset()
    if loop.coordinate is not Coordinate.STEP:
        return around
    begun = frozenset(n.buffer for n in nodes_of(loop.body) if isinstance(n, Store))
    return begun if around is None else begun & around


def _is_whole(loop: For) -> bool:
    """A loop over rounds and threads in one (`sequential`), not over rounds of threads in it?"""
    inner = (n.coordinate for n in loop.body if isinstance(n, For))
    return loop.coordinate is Coordinate.ROUND and Coordinate.THREAD not in inner


def _sharing(loop: For, update: Update) -> set[frozenset[Coordinate]]:
    """How threads share the loops around an update: by ROUND, by STEP; one set for each place of it."""
    found: set[frozenset[Coordinate]] = set()

    def go(node: Node, around: frozenset[Coordinate]) -> None:
        match node:
            case For():
                mine = {node.coordinate} & {Coordinate.ROUND, Coordinate.STEP}
                for n in node.body:
                    go(n, around | mine)
            case If():
                for n in (*node.then, *node.other):
                    go(n, around)
            case Update():
                if (node.buffer, node.indices, node.op) == (update.buffer, update.indices, update.op):
                    found.add(around)
            case _:
                pass

    go(loop, frozenset())
    return found


def _hoistable(kernel: Kernel, loop: For) -> list[tuple[Update, tuple[Expr, ...]]]:
    """Updates in the loop of elements that it and the loops inside leave alone, one for each element.

    With each comes what must hold for any update to happen: where it does not, the element may not even
    exist.
    """
    found: dict[tuple[str, tuple[Index, ...], str], tuple[Update, tuple[Expr, ...] | None]] = {}
    inner = {loop.var}

    def go(block: Block, guards: tuple[Expr, ...] | None) -> None:
        for node in block:
            match node:
                case For():
                    mine = _joined(guards, nonempty(node, inner))
                    inner.add(node.var)
                    go(node.body, mine)
                case If(cond, then, other):
                    go(then, _joined(guards, _outside(cond, inner)))
                    go(other, _joined(guards, _outside(Apply("not", (cond,), BOOL), inner)))
                case Declare(name, role=LocalRole.INDEX):
                    inner.add(name)
                case Update():
                    key = (node.buffer, node.indices, node.op)
                    same = key not in found or found[key][1] == guards
                    found.setdefault(key, (node, guards))
                    if not same:
                        found[key] = (node, None)
                case _:
                    pass

    go(loop.body, nonempty(loop, set()))
    # Updates by one operation commute, whatever elements they meet in; by two they do not.
    ways = {(u.buffer, u.op) for u, _ in found.values()}
    mixed = {buffer for buffer, _ in ways if sum(b == buffer for b, _ in ways) > 1}
    others = touched_otherwise(loop.body) | mixed
    return [
        (u, guards or ())
        for u, guards in found.values()
        if (guards is not None or kernel.find(u.buffer) is None)
        and u.buffer not in others
        and not any(_varies(i, inner) for i in u.indices)
    ]


def _joined(a: tuple[Expr, ...] | None, b: tuple[Expr, ...] | None) -> tuple[Expr, ...] | None:
    return None if a is None or b is None else (*a, *b)


def nonempty(loop: For, inner: set[str]) -> tuple[Expr, ...] | None:
    """What must hold for a loop to run at all; None if that depends on inner loops."""
    used = set(variables(loop.lower)) | set(variables(loop.upper))
    if used & inner:
        return None
    bounds = (IndexValue(loop.lower, I64), IndexValue(loop.upper, I64))
    return (Apply("lt", bounds, BOOL),) if used and loop.upper != loop.lower + 1 else ()


def _outside(cond: Expr, inner: set[str]) -> tuple[Expr, ...] | None:
    """The part of a condition that outer loops decide; None if it mixes outer and inner ones."""
    match cond:
        case Apply("and", (left, right)):
            return _joined(_outside(left, inner), _outside(right, inner))
        case _:
            used = {v for e in walk(cond) if isinstance(e, IndexValue) for v in variables(e.index)}
            if not used & inner:
                return (cond,)
            return () if used <= inner else None


def _varies(i: Index, inner: set[str]) -> bool:
    return isinstance(i, EXPR_TYPES) or bool(set(variables(i)) & inner)


def _redirect(block: Block, update: Update, name: str) -> Block:
    def change(node: Node) -> Node:
        if isinstance(node, Update) and (node.buffer, node.indices, node.op) == (
            update.buffer,
            update.indices,
            update.op,
        ):
            return replace(node, buffer=name, indices=())
        return node

    return map_nodes(block, change)


# --- initial values ---------------------------------------------------------------------------------------

# An element that is set to the identity of a reduction and updated once is stored once.
#
#     y[i] = 0; %acc = 0; for ...: %acc += ...; y[i] += %acc
# becomes
#     %acc = 0; for ...: %acc += ...; y[i] = %acc
#
# Both may stand in loops and conditions of the same form (the elements of a vector, a mask), if each
# iteration has an element of its own.


def merge_initial(block: Block) -> Block:
    """The block with initial stores merged into the updates that follow them."""
    nodes = [_inside(n) for n in block]
    k = 0
    while k < len(nodes):
        place = _update_of(nodes, k)
        if place is None:
            k += 1
            continue
        nodes[place] = _stored(nodes[place])
        del nodes[k]
    return tuple(nodes)


def _inside(node: Node) -> Node:
    match node:
        case For():
            return replace(node, body=merge_initial(node.body))
        case If():
            return replace(node, then=merge_initial(node.then), other=merge_initial(node.other))
        case _:
            return node


def _update_of(nodes: list[Node], k: int) -> int | None:
    """The position of the one update that the initial store at k may be merged into."""
    store = _single(nodes[k])
    if not isinstance(store, Store) or not isinstance(store.value, Const):
        return None
    if any(isinstance(i, EXPR_TYPES) for i in store.indices):
        return None
    for place in range(k + 1, len(nodes)):
        node = nodes[place]
        if not _touches(node, store.buffer):
            continue
        update = _single(node)
        fits = (
            isinstance(update, Update)
            and not update.atomic
            and store.buffer not in {r.tensor for r in reads(update.value)}
            and store.value == Const(identity(update.op, store.value.dtype), store.value.dtype)
            and _same_form(nodes[k], node)
            and tells_apart(store.indices, _loops(nodes[k]))
        )
        return place if fits else None
    return None


def _single(node: Node) -> Node | None:
    """The one statement inside loops and conditions."""
    while isinstance(node, (For, If)):
        body = node.body if isinstance(node, For) else node.then
        if len(body) != 1 or (isinstance(node, If) and node.other):
            return None
        node = body[0]
    return node


def _loops(node: Node) -> list[For]:
    """The loops around the one statement."""
    found = []
    while isinstance(node, (For, If)):
        if isinstance(node, For):
            found.append(node)
        (node,) = node.body if isinstance(node, For) else node.then
    return found


def _same_form(a: Node, b: Node) -> bool:
    """Do two nodes run their one statement for the same element, up to the names of loop variables?"""
    match a, b:
        case For(), For():
            heads = (a.lower, a.upper, a.step) == (b.lower, b.upper, b.step)
            return heads and _same_form(a.body[0], substituted(b.body, {b.var: IVar(a.var)})[0])
        case If(), If():
            return a.cond == b.cond and _same_form(a.then[0], b.then[0])
        case Store(buffer, indices), Update():
            return (buffer, indices) == (b.buffer, b.indices)
        case _:
            return False


def _stored(node: Node) -> Node:
    match node:
        case For():
            return replace(node, body=(_stored(node.body[0]),))
        case If():
            return replace(node, then=(_stored(node.then[0]),))
        case Update(buffer, indices, _, value):
            return Store(buffer, indices, value)
        case _:
            raise AssertionError(node)


def _touches(node: Node, buffer: str) -> bool:
    match node:
        case For():
            return any(_touches(n, buffer) for n in node.body)
        case If(cond, then, other):
            return _reads(cond, buffer) or any(_touches(n, buffer) for n in (*then, *other))
        case Store() | Update():
            used = any(_reads(i, buffer) for i in node.indices if isinstance(i, EXPR_TYPES))
            return node.buffer == buffer or used or _reads(node.value, buffer)
        case VectorLoad() | VectorStore():
            return node.buffer == buffer
        case _:
            value = getattr(node, "value", None)
            return value is not None and _reads(value, buffer)


def _reads(e: Expr, buffer: str) -> bool:
    return any(r.tensor == buffer for r in reads(e))
