"""Outlining: top-level loops become functions, and steps that workers share kernels of their own.

`outlined` makes a function of chunks of a parallel nest, or of one serial piece.

Scalars are declared in the smallest block that holds all their uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.accesses import read_names
from polyfuse.codegen.function import Function, along_run, function_of
from polyfuse.ir.index_expr import IndexExpr, binary, evaluate, product
from polyfuse.ir.kernel import Kernel, Scope, Stage, in_steps, tree
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, Update, block_nest
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, map_members, statements
from polyfuse.ir.tensor_graph import statement_reads


def outlined(kernel: Kernel, block: Block) -> list[Function]:
    """Each parallel nest is a function of its own; what lies between runs serially, in order."""
    made: list[Function] = []
    serial: list[Node] = []
    for node in block:
        if isinstance(node, For) and node.coordinate is Coordinate.BLK:
            if serial:
                made.append(_function(kernel, (), tuple(serial)))
                serial = []
            loops, body = block_nest(node)
            loops = tuple(replace(x, body=()) for x in loops)
            outside = loops[0] if in_steps(kernel) else None
            made.append(_function(kernel, loops[1:] if outside else loops, body, outside))
        else:
            serial.append(node)
    if serial:
        made.append(_function(kernel, (), tuple(serial)))
    return made


def _function(kernel: Kernel, loops: tuple[For, ...], body: Block, time: For | None = None) -> Function:
    for b in kernel.buffers:
        if b.scope is Scope.REGISTER:
            body = _declare(body, Declare(b.tensor, b.dtype))
    return function_of(loops, body, time)


def with_run_loops(f: Function) -> Function:
    """The function with a loop over iterations in which only the innermost variable differs: the others, and
    what follows from them, are found once for all of these.

        for it @wrk:                                       for it @wrk:
          i, j = iteration it of i in 0..I, j in 0..J  ->    i, j_begin, j_end = iteration it and on of ...
          body                                               for j in j_begin..j_end:  body

    Only where there are loops of stores: their rows may be short, beside which finding an iteration takes
    long.  Where there are loops in loops gcc 12 finds worse addresses in deeper nests.
    """
    rows = all(isinstance(n, For) and all(isinstance(x, (Declare, Store)) for x in n.body) for n in f.body)
    if len(f.loops) < 2 or not rows or f.batches or f.pipelined or f.run:
        return f
    return f.in_runs((along_run(f.loops[-1], f.body),))


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


# --- parts of shared steps --------------------------------------------------------------------------------

# Kernels whose steps workers share, as one kernel for each part of a step.
#
#     B(t @tim)[B(i @blk, k)(u); m]      becomes      B(t @tim)B(i @blk, k)(u)  and  B(t @tim)(m)
#
# The pool runs them in turns, for one t after the other, and no worker begins one before all others are done
# with the one before.  To what makes code of a part, loop t is one over blocks: nothing is kept from one of
# its iterations to the next, and its variable is the same in a call.


def time_parts(kernel: Kernel) -> tuple[Kernel, ...]:
    """The parts of a kernel's steps, in order; of one that has none, the kernel itself."""
    if not in_steps(kernel):
        return (kernel,)
    (stage,) = kernel.stages
    return tuple(_part(kernel, stage.band, k, p.tree) for k, p in enumerate(stage.phases))


def _part(kernel: Kernel, time: tuple[Member, ...], number: int, part: Tree) -> Kernel:
    inside = frozenset(statements(part))
    chosen = tuple(s for s in kernel.graph.statements if s.name in inside)
    touched = {s.target for s in chosen} | {r.tensor for s in chosen for r in statement_reads(s)}
    graph = replace(
        kernel.graph,
        statements=chosen,
        tensors=tuple(t for t in kernel.graph.tensors if t.name in touched),
    )
    return replace(
        kernel,
        name=f"{kernel.name}_{number}",
        graph=graph,
        stages=(
            Stage(tuple(m.restricted(inside) for m in time), kernel.stages[0].phases[number : number + 1]),
        ),
        buffers=tuple(b for b in kernel.buffers if b.tensor in touched),
    )


@dataclass(frozen=True, slots=True)
class Series:
    """Launches that take turns: how many, the step that round 0 is, and how many rounds there are."""

    length: int = 1
    first: int = 0
    rounds: int = 1


def series_of(functions: Sequence[Function]) -> Series:
    """What the functions of a kernel are as launches: those of steps take turns, others run once."""
    loops = [t.time for t in functions if t.time is not None]
    if not loops:
        return Series()
    first, end = min(evaluate(x.lower, {}) for x in loops), max(evaluate(x.upper, {}) for x in loops)
    return Series(len(loops), first, end - first)


def round_text(f: Function, series: Series) -> list[str]:
    """What finds the step of a call and its iterations in this step; nothing is done for a step that is not
    one of the part."""
    if f.time is None:
        return []
    var, low, high = f.time.var, evaluate(f.time.lower, {}), evaluate(f.time.upper, {})
    count = max(1, evaluate(iteration_count(f), {}))
    lines = [f"const pf_i64 {var} = {series.first} + begin / {count};"]
    if high - low < series.rounds:
        lines.append(f"if ({var} < {low} || {var} >= {high}) return;")
    return [
        *lines,
        f"begin -= ({var} - {series.first}) * {count};",
        f"end -= ({var} - {series.first}) * {count};",
    ]


def iteration_count(f: Function) -> IndexExpr:
    """Iterations of a function that are handed out, those of one step."""
    return product(tuple(binary("-", x.upper, x.lower) for x in f.loops))


def block_tree(kernel: Kernel) -> Tree:
    """The tree of a kernel, with a loop over steps as one over blocks."""

    def as_block(m: Member) -> Member:
        return replace(m, coordinate=Coordinate.BLK) if m.coordinate is Coordinate.TIME else m

    return map_members(tree(kernel), as_block) if in_steps(kernel) else tree(kernel)
