"""Kernel IR -> loop IR.

instances     Exec nodes become stores and updates of buffers
accumulators  updates of one element over inner loops go through a scalar, added under the guards it had
windows       `i % extent` becomes `i - start` where a strip of a loop is the window
collisions    a vector loop whose updates may meet in one element runs in order
invariants    functions of what a loop does not change are computed before it
fetches       the next row's inputs are asked for before the last phase of a row
tiles, jams   sums of products stay in vector registers; a row of totals gets several terms at a time
scalars       are declared in the smallest block that holds all their uses
tasks         top-level loops become functions: chunks of a parallel nest, one serial piece, or owners' shares
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from polyfuse.codegen.collisions import order_collisions
from polyfuse.codegen.hoist import hoist
from polyfuse.codegen.jam import jam
from polyfuse.codegen.nan_care import spare_nan
from polyfuse.codegen.owners import owned
from polyfuse.codegen.prefetch import fetch_ahead
from polyfuse.codegen.register_tiles import register_tiles
from polyfuse.codegen.windows import simplify_windows
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IndexExpr, substitute, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope, tree
from polyfuse.ir.loop_ir import (
    Block,
    Combine,
    Declare,
    Exec,
    For,
    If,
    Node,
    Store,
    Update,
    map_nodes,
)
from polyfuse.ir.schedule_tree import Coordinate, sequential
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    map_expr,
    map_index,
    reads,
    walk,
)
from polyfuse.poly.ast_build import loops_of


@dataclass(frozen=True, slots=True)
class Task:
    """One function: `loops` is the parallel nest whose iterations are handed out (empty: serial)."""

    loops: tuple[For, ...]
    body: Block


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    kernel: Kernel
    tasks: tuple[Task, ...]


def lower(kernel: Kernel) -> LoweredKernel:
    """The kernel's functions as loop IR."""
    numbers = itertools.count()
    block = accumulated(kernel, numbers)
    block = simplify_windows(block, {})
    block = order_collisions(kernel, block)
    block = hoist(kernel, block, numbers)
    block = fetch_ahead(kernel, block)
    block = jam(register_tiles(kernel, block, numbers))
    made = [Task(*owned(kernel, kernel.owners, block))] if kernel.owners else tasks(kernel, block)
    return LoweredKernel(kernel, tuple(made))


def accumulated(kernel: Kernel, numbers: itertools.count[int]) -> Block:
    """Loops with bodies, values that are used again and accumulators in scalars; the same on all targets.
    `numbers` numbers the scalars."""
    block = loops_of(kernel.graph, sequential(tree(kernel)))
    block = spare_nan(kernel, _bodies(kernel, block))
    block = _forward(kernel, block, numbers)
    return _promote(kernel, block, numbers)


# --- instances ------------------------------------------------------------------------------------------


def _bodies(kernel: Kernel, block: Block) -> Block:
    def body(node: Node) -> Node:
        return _instance(kernel, node) if isinstance(node, Exec) else node

    return map_nodes(block, body)


def _instance(kernel: Kernel, node: Exec) -> Node:
    s = kernel.graph.statement(node.statement)
    env: dict[str, IndexExpr] = {d.name: a for d, a in zip(s.dims, node.args, strict=True)}

    def index(i: IndexExpr) -> IndexExpr:
        return substitute(i, env)

    def place(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        return replace(e, indices=storage_indices(kernel.buffer(e.tensor), e.indices))

    def expr(e: Expr) -> Expr:
        return map_expr(e, place, index)

    write = tuple(map_index(i, expr, index) for i in s.write)
    target = kernel.buffer(s.target)
    indices = storage_indices(target, write)
    if s.accumulate:
        assert s.reduction is not None
        return Update(s.target, indices, s.reduction, expr(s.expr), s.name in kernel.atomic)
    return Store(s.target, indices, expr(s.expr))


def storage_indices(buffer: Buffer, indices: tuple[Index, ...]) -> tuple[Index, ...]:
    """Where an element lives; a register has no indices."""
    return () if buffer.scope is Scope.REGISTER else buffer.storage_index(indices)


# --- values -----------------------------------------------------------------------------------------


def _forward(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """A value that is stored and read again in the same block is kept in a scalar.

        s[c0, c1] = x[c0, c1] + b[c1]; acc sum= s[c0, c1]
    becomes
        f0 = x[c0, c1] + b[c1]; s[c0, c1] = f0; acc sum= f0
    """
    result: list[Node] = []
    rest = list(block)
    while rest:
        node = rest.pop(0)
        match node:
            case For():
                result.append(replace(node, body=_forward(kernel, node.body, numbers)))
            case If():
                then, other = (_forward(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case Store(buffer, indices, value) if _reread(node, rest):
                name = f"%f{next(numbers)}"
                scalar = Read(name, (), value.dtype)
                result += [Declare(name, value.dtype, value), replace(node, value=scalar)]
                rest = _with_scalar(rest, Read(buffer, indices, value.dtype), scalar)
            case _:
                result.append(node)
    return tuple(result)


def _reread(store: Store, rest: list[Node]) -> bool:
    """Is the stored element read by a later statement of the block before it may change?"""
    if not store.indices or any(isinstance(i, EXPR_TYPES) for i in store.indices):
        return False
    for node in rest:
        if not isinstance(node, (Store, Update)):
            return False
        element = (store.buffer, store.indices)
        if any((r.tensor, r.indices) == element for r in reads(node.value)):
            return True
        if node.buffer == store.buffer:
            return False
    return False


def _with_scalar(rest: list[Node], element: Read, scalar: Read) -> list[Node]:
    """Replace reads of an element by a scalar, up to the next statement that may change the buffer."""
    changed: list[Node] = []
    for k, node in enumerate(rest):
        if not isinstance(node, (Store, Update)):
            return changed + rest[k:]
        value = map_expr(node.value, lambda e: scalar if e == element else e)
        changed.append(replace(node, value=value))
        if node.buffer == element.tensor:
            return changed + rest[k + 1 :]
    return changed


# --- accumulators --------------------------------------------------------------------------------------


def _promote(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """Updates whose element no inner loop changes go through a scalar around these loops.

    Where threads share a loop, they combine their scalars after it (Combine; its width is set later).
    """
    result: list[Node] = []
    for node in block:
        match node:
            case For() if node.coordinate not in (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD):
                result.extend(_promote_loop(kernel, node, numbers))
            case For():
                result.append(replace(node, body=_promote(kernel, node.body, numbers)))
            case If():
                then, other = (_promote(kernel, b, numbers) for b in (node.then, node.other))
                result.append(replace(node, then=then, other=other))
            case _:
                result.append(node)
    return tuple(result)


def _promote_loop(kernel: Kernel, loop: For, numbers: itertools.count[int]) -> list[Node]:
    before: list[Node] = []
    after: list[Node] = []
    for update, guards in _hoistable(loop):
        ways = _sharing(loop, update)
        if update.buffer.startswith("%") or len(ways) > 1:
            continue  # an outer loop made a scalar of it already; or only some of the updates are shared
        buffer = kernel.buffer(update.buffer)
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
        lanes = tuple(u.buffer for u, _ in _hoistable(loop) if u.buffer.startswith("%"))
        return [*before, replace(loop, lanes=lanes), *after]
    inner = _promote(kernel, loop.body, numbers)
    return [*before, replace(loop, body=inner), *after]


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


def _hoistable(loop: For) -> list[tuple[Update, tuple[Expr, ...]]]:
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
                case Update():
                    key = (node.buffer, node.indices, node.op)
                    same = key not in found or found[key][1] == guards
                    found.setdefault(key, (node, guards))
                    if not same:
                        found[key] = (node, None)
                case _:
                    pass

    go(loop.body, nonempty(loop, set()))
    if len({u.buffer for u, _ in found.values()}) < len(found):
        return []
    others = touched_otherwise(loop.body)
    return [
        (u, guards or ())
        for u, guards in found.values()
        if (guards is not None or u.buffer.startswith("%"))
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


def touched_otherwise(block: Block) -> set[str]:
    """Buffers that are stored to, or read, in a block (updates do not count)."""
    touched: set[str] = set()

    def look(node: Node) -> Node:
        match node:
            case Store(buffer, indices, value):
                touched.add(buffer)
                touched.update(_read_names(value, indices))
            case Update(_, indices, _, value):
                touched.update(_read_names(value, indices))
            case _:
                pass
        return node

    map_nodes(block, look)
    return touched


def _read_names(value: Expr, indices: tuple[Index, ...]) -> set[str]:
    names = {r.tensor for r in reads(value)}
    return names | {r.tensor for i in indices if isinstance(i, EXPR_TYPES) for r in reads(i)}


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


# --- scalars and tasks -----------------------------------------------------------------------------------


def tasks(kernel: Kernel, block: Block) -> list[Task]:
    """Each parallel nest is a task of its own; what lies between runs serially, in order."""
    tasks: list[Task] = []
    serial: list[Node] = []
    for node in block:
        if isinstance(node, For) and node.coordinate is Coordinate.BLK:
            if serial:
                tasks.append(_task(kernel, (), tuple(serial)))
                serial = []
            loops, body = _peel(node)
            tasks.append(_task(kernel, loops, body))
        else:
            serial.append(node)
    if serial:
        tasks.append(_task(kernel, (), tuple(serial)))
    return tasks


def _task(kernel: Kernel, loops: tuple[For, ...], body: Block) -> Task:
    for b in kernel.buffers:
        if b.scope is Scope.REGISTER:
            body = _declare(body, Declare(b.tensor, b.dtype))
    return Task(loops, body)


def _peel(loop: For) -> tuple[tuple[For, ...], Block]:
    """The perfectly nested block loops with bounds that do not depend on one another."""
    loops = [replace(loop, body=())]
    body = loop.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].coordinate is Coordinate.BLK:
        inner = body[0]
        outer = {x.var for x in loops}
        if outer & (set(variables(inner.lower)) | set(variables(inner.upper))):
            break
        loops.append(replace(inner, body=()))
        body = inner.body
    return tuple(loops), body


def _declare(block: Block, scalar: Declare) -> Block:
    """Put a declaration at the head of the smallest block that holds every use."""
    users = [k for k, node in enumerate(block) if _uses(node, scalar.name)]
    if not users:
        return block
    if len(users) == 1:
        k = users[0]
        node = block[k]
        match node:
            case For():
                inner: Node = replace(node, body=_declare(node.body, scalar))
                return (*block[:k], inner, *block[k + 1 :])
            case If(_, then, other):
                uses = [any(_uses(n, scalar.name) for n in b) for b in (then, other)]
                if uses == [True, False]:
                    return (*block[:k], replace(node, then=_declare(then, scalar)), *block[k + 1 :])
            case _:
                pass
    return (*block[: users[0]], scalar, *block[users[0] :])


def _uses(node: Node, name: str) -> bool:
    match node:
        case For(_, _, _, _, body):
            return any(_uses(n, name) for n in body)
        case If(cond, then, other):
            return name in _read_names(cond, ()) or any(_uses(n, name) for n in (*then, *other))
        case Store(buffer, indices, value) | Update(buffer, indices, _, value):
            return buffer == name or name in _read_names(value, indices)
        case Declare(_, _, value):
            return value is not None and name in _read_names(value, ())
        case _:
            return False
