"""What compilers get wrong or do badly in loops, and what is done about it (docs/lab/targets.md).

`falls` finds addresses that fall, `in_two_orders` prints loops with several large results twice,
`with_kept_loops` marks vector loops whose rest is not to be written out.

Where an address falls along a loop, gcc 12 counts its iterations by it, wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.codegen.analysis.accesses import strides_of
from polyfuse.codegen.analysis.trip_count import trip_of
from polyfuse.codegen.c_printer import UNROLLED
from polyfuse.codegen.decisions import LANES
from polyfuse.codegen.function import Function
from polyfuse.codegen.transforms.vector_epilogues import WIDTHS
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat, linear
from polyfuse.ir.loop_ir import (
    Block,
    Comment,
    Declare,
    For,
    If,
    Node,
    Store,
    Update,
    map_nodes,
    map_places,
    map_values,
    values_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, depends_on, reads

# --- addresses that fall ----------------------------------------------------------------------------------


def falls_in(f: Function) -> bool:
    """Does an index in a function fall where a variable of a loop rises?

    Windows that a border cuts begin later in each row, where a maximum began them before: rows of such, in
    front of those that go several at a time, have the addresses of the others.
    """
    body = f.body
    if f.run:
        several = (k for k, n in enumerate(body) if isinstance(n, For) and n.step > 1)
        body = body[next(several, 0) :]
    return falls((*f.before, *body), {x.var: x.lower + IVar(x.var) for x in f.loops})


def falls(block: Block, begins: Mapping[str, IndexExpr] | None = None) -> bool:
    """Does an index fall where a variable of a loop rises?

    `begins` are the variables of loops around the block, as sums of where they begin and how far they are: a
    tile's own place falls nowhere, since the beginning of its loop makes up for it.
    """
    env = begins or {}
    for node in block:
        match node:
            case For(var, lower):
                begin = binary("+", substitute(lower, env), IVar(var))
                found = falls(node.body, {**env, var: begin})
            case If(_, then, other):
                found = falls((*then, *other), env) or _any_falls((If(node.cond, ()),), env)
            case _:
                found = _any_falls((node,), env)
        if found:
            return True
    return False


def _any_falls(block: Block, env: Mapping[str, IndexExpr]) -> bool:
    falling: list[Index] = []

    def at(_: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        falling.extend(
            i for i in indices if not isinstance(i, EXPR_TYPES) and _falls(substitute(i, env), env)
        )
        return indices

    map_places(block, at)
    return bool(falling)


def _falls(index: IndexExpr, loops: Mapping[str, IndexExpr]) -> bool:
    """Is there less of it where a loop's variable is greater? What else rises with that one makes up for it:
    a tile begins at a minimum or maximum of its places."""
    terms = [({*variables(atom)} & {*loops}, factor) for atom, factor in linear(index).terms]
    rising = {v for found, factor in terms if factor > 0 for v in found}
    return any(factor < 0 and not found <= rising for found, factor in terms)


# --- loops in two orders ----------------------------------------------------------------------------------

# Loops that store several large results are there twice, once with instructions in the order of the text.
#
#     body(p, m, g):  for c @vec:  m[c] = f(m[c], g[c]);  p[c] = h(p[c], m[c])
#
# gcc moves the store to m before the load of p.  Where both lie at the same place of a page, that load waits:
# its address looks like that of a store under way.  Large arrays mostly do, as systems give them whole pages,
# so which code runs is decided by where arrays begin.  Elsewhere the order of gcc is a little faster, as it
# is in loops with functions, if not many arrays come from memory (docs/lab/targets.md).


# Bytes of an element that is not converted.
LEAST_BYTES = 4
IN_ORDER = """#if defined(__x86_64__) && !defined(__clang__)
#define PF_IN_ORDER __attribute__((optimize("no-schedule-insns", "no-schedule-insns2")))
#else
#define PF_IN_ORDER
#endif
// Do pointers agree in the line of a page?
#define PF_ALIKE(a, b) ((((__UINTPTR_TYPE__)(a) ^ (__UINTPTR_TYPE__)(b)) & 4032) == 0)

"""


def stores_several(loop: Node, large: Set[str]) -> bool:
    """Do lanes store elements of several of these tensors, and compute no functions and convert nothing?"""
    if not isinstance(loop, For) or loop.coordinate is not Coordinate.VECTOR:
        return False
    stores = [n for n in loop.body if isinstance(n, Store) and n.value.dtype.bytes >= LEAST_BYTES]
    return len({n.buffer for n in stores} & large) > 1 and not any(map(has_function, values_of(loop.body)))


def in_two_orders(name: str, text: str, parameters: Sequence[str], alike: Sequence[str]) -> str:
    """A function's text in both orders, and under its name the choice: in order where pointers are alike."""
    head = f"void {name}("
    given = ", ".join(p.split()[-1].lstrip("*") for p in parameters)
    declared = ",\n    ".join(parameters)
    first, *others = alike
    same = " && ".join(f"PF_ALIKE({first}, {p})" for p in others)
    return "\n".join(
        [
            text.replace(head, f"void {name}_any(", 1),
            text.replace(head, f"PF_IN_ORDER void {name}_in_order(", 1),
            f"PF_INLINE {head}\n    {declared}) {{",
            f"  if ({same})",
            f"    {name}_in_order({given});",
            "  else",
            f"    {name}_any({given});",
            "}",
        ]
    )


# --- loops that stay loops --------------------------------------------------------------------------------

# Vector loops whose rest compilers must not write out.
#
#     for i in 0..61 @vec:  y[i] = t[i, i] if a[i] else w[i, i + 3]
#
# gcc writes the rest of such a loop out, what its vectors leave of 61 iterations.  Then it looks for vectors
# among reads that lie apart, and for each pair of lanes it loads all that lies between them: a hundred
# thousand instructions, for which its range propagation takes half a minute (docs/lab/targets.md).


def with_kept_loops(kernel: Kernel, f: Function) -> Function:
    """The function, with loops that read far apart marked as ones that stay as they are."""

    def kept(node: Node) -> Node | Block:
        return replace(node, vector=True) if isinstance(node, For) and _reads_apart(kernel, node) else node

    return f.with_body(map_nodes(f.body, kept))


def _reads_apart(kernel: Kernel, loop: For) -> bool:
    """Does a vector loop of so many iterations read elements that no vector has together?"""
    if loop.coordinate is not Coordinate.VECTOR or (trip_of(loop) or 0) <= UNROLLED:
        return False
    found = (r for v in values_of(loop.body) for r in reads(v))
    return any(strides_of(kernel, r, loop.var)[0] * r.dtype.bytes > WIDTHS[0] for r in found)


# Steps of lanes that the compiler is not to know.
#
#     for i in 0..256 @vec: t[i] = tanh(x[i, j])              x[i*512 + j]: lanes 512 elements apart
#
# gcc 12 vectorises such a loop where it does not know the step: it loads lane by lane.  Of a step that is a
# power of two and longer than a vector it says "not falling back to elementwise accesses", and the whole
# loop, with all functions in it, stays scalar.  So such steps are variables, which `PF_STEP` hides:
#
#     const pf_i64 step512 = PF_STEP(512);                    x[i*step512 + j]


_NAME = "step"
_USED = re.compile(rf"\b{_NAME}(\d+)\b")
STEPS = """\
// gcc 12 does not vectorise loops whose lanes load a constant power of two apart: such steps are hidden.
#if defined(__clang__)
#define PF_STEP(n) (n)
#else
#define PF_STEP(n) ({ pf_i64 q = (n); __asm__("" : "+r"(q)); q; })
#endif
"""


def with_hidden_steps(
    kernel: Kernel, f: Function, core: Core, strided: Set[str], made: set[tuple[str, str]]
) -> Function:
    """The function, with such steps as variables; whose they are goes into `made`. Steps of `strided` tensors
    are known at run time only."""

    def node(n: Node) -> Node:
        if not isinstance(n, For) or n.coordinate is not Coordinate.VECTOR or not _is_long(n):
            return n
        return _Steps(kernel, n, core.vector_bytes, strided, made).hidden()

    return replace(f, block=map_nodes(f.block, node))


def steps_text(body: Sequence[str], indent: str) -> list[str]:
    """The variables that a printed body has its steps from."""
    used = sorted({int(n) for line in body for n in _USED.findall(line)})
    return [f"{indent}const pf_i64 {_NAME}{n} = PF_STEP({n});" for n in used]


def _is_long(loop: For) -> bool:
    """Does the compiler look for vectors in this loop? Others are written out before."""
    trip = trip_of(loop)
    straight = all(isinstance(n, (Declare, Store, Update)) for n in loop.body)
    return straight and (loop.vector or trip is None or trip > UNROLLED)


@dataclass(frozen=True, slots=True)
class _Steps:
    """A vector loop, and what its lanes load of a kernel's memory."""

    kernel: Kernel
    loop: For
    vector_bytes: int
    strided: Set[str]
    made: set[tuple[str, str]]

    def hidden(self) -> For:
        """The loop, with variables for such steps."""

        def read(e: Expr) -> Expr:
            return replace(e, indices=self._indices(e.tensor, e.indices)) if isinstance(e, Read) else e

        def update(n: Node) -> Node:
            return replace(n, indices=self._indices(n.buffer, n.indices)) if isinstance(n, Update) else n

        body = map_values(self.loop.body, read, lambda i: i)
        return replace(self.loop, body=tuple(map(update, body)))

    def _indices(self, tensor: str, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Where an element is, by such a variable if lanes are so far apart."""
        step = self._step(tensor, indices)
        if step <= 0 or step & (step - 1):
            return indices
        lane = {self.loop.var: IConst(0)}
        *leading, last = (i if isinstance(i, EXPR_TYPES) else substitute(i, lane) for i in indices)
        assert not isinstance(last, EXPR_TYPES)
        self.made.add((LANES, tensor))
        return (*leading, binary("+", last, binary("*", IVar(self.loop.var), IVar(f"{_NAME}{step}"))))

    def _step(self, tensor: str, indices: tuple[Index, ...]) -> int:
        """Elements from lane to lane, where the compiler sees them and they are more than a vector, or 0."""
        b = next((b for b in self.kernel.buffers if b.tensor == tensor), None)
        if (
            b is None
            or tensor in self.strided
            or len(indices) != len(b.extents)
            or not indices
            or isinstance(indices[-1], EXPR_TYPES)
        ):
            return 0
        if any(isinstance(i, EXPR_TYPES) and self.loop.var in depends_on(i) for i in indices):
            return 0
        at = flat(tuple(IConst(0) if isinstance(i, EXPR_TYPES) else i for i in indices), b.extents)
        step = at.factor(IVar(self.loop.var))
        seen = self.vector_bytes // b.dtype.bytes < step <= FITTED.hidden_steps_furthest
        return step if seen and self.loop.var not in at.hidden else 0


# Short loops that compilers shall write out, to find vectors in the loop around.
#
#     for a in 0..N:                              for a in 0..N:
#       for c in 0..4 @vec:                ->       y[a, 0] = exp(x[a, 0]);  ...;  y[a, 3] = exp(x[a, 3])
#         y[a, c] = exp(x[a, c])
#
# gcc writes such a loop out where what comes of it is small enough, and makes whole vectors of several
# iterations of the loop around. With two functions it is too large: vectors of two or four lanes are left, or
# numbers. `PF_WRITTEN` has it written out whatever its size.


WRITTEN = """\
// gcc writes such loops out whatever their size, and finds vectors in the loop around.
#if defined(__clang__)
#define PF_WRITTEN
#else
#define PF_WRITTEN _Pragma("GCC unroll 16")
#endif
"""


def with_loops_written_out(f: Function) -> Function:
    """The function, with such loops marked, if they are all that the loop around them has."""

    def marked(n: Node) -> Node:
        return replace(n, body=_marked(n.body, n.var)) if isinstance(n, For) else n

    body = map_nodes(f.body, marked)
    return f.with_body(_marked(body, f.loops[-1].var) if f.loops and f.jammed == 1 and not f.run else body)


def _marked(body: Block, around: str) -> Block:
    """The body of a loop around, with its loop marked if it is such a one."""
    loops = [n for n in body if isinstance(n, For)]
    if len(loops) != 1 or any(not isinstance(n, (For, Declare, Store, Comment)) for n in body):
        return body
    loop = loops[0]
    straight = all(isinstance(n, (Declare, Store, Update)) for n in loop.body)
    vector = loop.coordinate is Coordinate.VECTOR and not (loop.lanes or loop.joint or loop.vector)
    short = FITTED.written_out_shortest <= (trip_of(loop) or 0) <= FITTED.written_out_longest
    if not (straight and vector and short and any(map(has_function, values_of(loop.body)))):
        return body
    own = {n.name for n in (*body, *loop.body) if isinstance(n, Declare)}
    stored = [n for n in loop.body if isinstance(n, (Store, Update)) and n.buffer not in own]
    if any(around not in depends_on(*n.indices) for n in stored):
        return body  # iterations meet in memory: no vectors are found there
    return tuple(replace(n, written=True) if n is loop else n for n in body)
