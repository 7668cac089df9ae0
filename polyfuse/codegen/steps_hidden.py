"""Steps of lanes that the compiler is not to know.

    for i in 0..256 @vec: t[i] = tanh(x[i, j])              x[i*512 + j]: lanes 512 elements apart

gcc 12 vectorises such a loop where it does not know the step: it loads lane by lane.  Of a step that is a
power of two and longer than a vector it says "not falling back to elementwise accesses", and the whole loop,
with all functions in it, stays scalar.  So such steps are variables, which `PF_STEP` hides:

    const pf_i64 step512 = PF_STEP(512);                    x[i*step512 + j]
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from polyfuse.codegen.c_family import UNROLLED
from polyfuse.codegen.tasks import Task, Together
from polyfuse.codegen.told import LANES
from polyfuse.codegen.trips import trip_of
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.index_expr import IConst, IVar, binary, substitute
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.linear import flat
from polyfuse.ir.loop_ir import Block, Declare, For, Node, Store, Update, map_nodes, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, Index, Read, depends_on

# gcc takes reads that lie further apart than so many elements for strided ones by itself.
FURTHEST = 4096
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
    kernel: Kernel, task: Task, core: Core, strided: Set[str], made: set[tuple[str, str]]
) -> Task:
    """The task, with such steps as variables; whose they are goes into `made`. Steps of `strided` tensors are
    known at run time only."""

    def node(n: Node) -> Node:
        if not isinstance(n, For) or n.coordinate is not Coordinate.VECTOR or not _is_long(n):
            return n
        return _Steps(kernel, n, core.vector_bytes, strided, made).hidden()

    def block(b: Block) -> Block:
        return map_nodes(b, node)

    def way(t: Together | None) -> Together | None:
        return None if t is None else replace(t, body=block(t.body), rest=way(t.rest))

    body, along, before = block(task.body), block(task.along), block(task.before)
    return replace(task, body=body, along=along, before=before, together=way(task.together))


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
        seen = self.vector_bytes // b.dtype.bytes < step <= FURTHEST and self.loop.var not in at.hidden
        return step if seen else 0
