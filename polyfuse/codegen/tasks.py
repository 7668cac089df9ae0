"""Top-level loops become functions: chunks of a parallel nest, or one serial piece.

Scalars are declared in the smallest block that holds all their uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.codegen.touched import read_names
from polyfuse.ir.index_expr import variables
from polyfuse.ir.kernel import Kernel, Scope, in_steps
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update
from polyfuse.ir.schedule_tree import Coordinate


@dataclass(frozen=True, slots=True)
class Together:
    """Several iterations of a task at once, `rows` of them: its loops as each of them has them, and one body
    for all.  Where loops of the body are over these rows (`codegen.rows_jointly`), the task's loops are there
    once.  Those that are left go as `rest` says, or one by one."""

    loops: tuple[tuple[For, ...], ...]
    body: Block
    rows: int
    rest: Together | None = None


@dataclass(frozen=True, slots=True)
class Skew:
    """Iterations that overlap: a part of the next one, `ahead` with the variables of `loops`, is in each.

    `carried` are scalars from one iteration to the next. The first one begins with `first`; each has `start`,
    `ahead` if there is a next one, and `last`.
    """

    carried: Block
    first: Block
    start: Block
    loops: tuple[For, ...]
    ahead: Block
    last: Block


@dataclass(frozen=True, slots=True)
class Task:
    """One function: `loops` is the parallel nest whose iterations are handed out (empty: serial).

    `together` is how several iterations that follow one another are run, as long as there are so many.
    `before` runs before the iterations that are handed out; with `skew` these overlap.
    In loops inside of it `jammed` rows are computed at a time.  With `time` each call is for one iteration of
    that loop, which is around `loops` (`codegen.time_parts`).  `along` is what is done in place of the body
    for iterations that follow one another along the innermost loop, from `begin_of` it to `end_of` it.
    """

    loops: tuple[For, ...]
    body: Block
    together: Together | None = None
    before: Block = ()
    skew: Skew | None = None
    jammed: int = 1
    time: For | None = None
    along: Block = ()

    @property
    def ways(self) -> Iterator[Together]:
        """How several iterations are run, and those that are left."""
        way = self.together
        while way is not None:
            yield way
            way = way.rest


def begin_of(loop: For) -> str:
    """What the first of the iterations along a loop that follow one another is called."""
    return f"{loop.var}_begin"


def end_of(loop: For) -> str:
    """What the end of these is called."""
    return f"{loop.var}_end"


def tasks_of(kernel: Kernel, block: Block) -> list[Task]:
    """Each parallel nest is a task of its own; what lies between runs serially, in order."""
    tasks: list[Task] = []
    serial: list[Node] = []
    for node in block:
        if isinstance(node, For) and node.coordinate is Coordinate.BLK:
            if serial:
                tasks.append(_task(kernel, (), tuple(serial)))
                serial = []
            loops, body = _peel(node)
            outside = loops[0] if in_steps(kernel) else None
            task = _task(kernel, loops[1:] if outside else loops, body)
            tasks.append(replace(task, time=outside))
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
    """Put a declaration at the head of the smallest block that holds every use, or into each of several loops
    if no iteration of these needs what another one leaves."""
    users = [k for k, node in enumerate(block) if _uses(node, scalar.name)]
    if not users:
        return block
    if all(_is_fresh(block[k], scalar.name) for k in users):
        inside = (replace(n, body=_declare(n.body, scalar)) if isinstance(n, For) else n for n in block)
        return tuple(inside)
    if len(users) == 1:
        k = users[0]
        node = block[k]
        match node:
            case For():
                inner: Node = replace(node, body=_declare(node.body, scalar))
                return (*block[:k], inner, *block[k + 1 :])
            case If(_, then, other):
                if not _uses(If(node.cond, ()), scalar.name):
                    sides = replace(node, then=_declare(then, scalar), other=_declare(other, scalar))
                    return (*block[:k], sides, *block[k + 1 :])
            case _:
                pass
    return (*block[: users[0]], scalar, *block[users[0] :])


def _is_fresh(node: Node, name: str) -> bool:
    """Is it a loop whose iterations store to a scalar before they read it?"""
    if not isinstance(node, For):
        return False
    users = [n for n in node.body if _uses(n, name)]
    match users[0]:
        case Store(buffer, (), value) if buffer == name and name not in read_names(value, ()):
            return True
        case _:
            return all(_is_fresh(n, name) for n in users)


def _uses(node: Node, name: str) -> bool:
    match node:
        case For(_, _, _, _, body):
            return any(_uses(n, name) for n in body)
        case If(cond, then, other):
            return name in read_names(cond, ()) or any(_uses(n, name) for n in (*then, *other))
        case Store(buffer, indices, value) | Update(buffer, indices, _, value):
            return buffer == name or name in read_names(value, indices)
        case Declare(_, _, value):
            return value is not None and name in read_names(value, ())
        case _:
            return False
