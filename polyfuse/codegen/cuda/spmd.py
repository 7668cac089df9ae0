"""Loop IR of a GPU kernel: what every thread does.

threads      loops over threads and rows become masks on `tx` and `ty`
steps        a loop that the rows of a block share:  k = step TY + ty
rounds       a loop that the threads of a row share becomes rounds:  h = (round TX + tx) V + v
vectors      loops over the elements of a vector have constant bounds, whole vectors apart from masked ones
one thread   what stands outside of these loops is done by every thread, but memory is written by the first
combine      the scalars of a row's threads: by shuffles in a warp, through shared memory between warps

A condition that ranges of the loop variables decide is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.index_ranges import at_most
from polyfuse.codegen.cuda.partial_vectors import PartialVector
from polyfuse.codegen.cuda.pipeline import ACCESSES, THREADS
from polyfuse.codegen.function import Function
from polyfuse.codegen.passes import Loops, PassContext
from polyfuse.codegen.transforms.scalar_replacement import merge_initial
from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.dtypes import BOOL, I64, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, variables
from polyfuse.ir.intervals import of_tree
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import Range, interval, linear, simplify
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
    map_nodes,
    map_values,
    nodes_of,
    substituted,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Const, Expr, IndexValue, Read, depends_on, walk

# --- masks of a part of a joined kernel -------------------------------------------------------------------

# Threads that have no place in a part of a joined kernel do nothing there, but they wait with the others.
#
#     red[tx] = a; a = red[0]         becomes          if (ty < 1) { red[tx] = a }
#                                                      barrier of the block
#                                                      if (ty < 1) { a = red[0] }
#
# Every access to memory is masked by itself, so that barriers find their place between any two; conditions
# that are left side by side are one again (`merged`).  What touches no memory, combinations of lanes above
# all, is done by every thread.


OUTSIDE = (Scope.SHARED, Scope.GLOBAL, Scope.ARGUMENT)


def masked(kernel: Kernel, block: Block, cond: Expr) -> Block:
    """The block with every access to memory that others see under a condition on the thread."""
    outside = frozenset(b.tensor for b in kernel.buffers if b.scope in OUTSIDE)
    return tuple(n for node in block for n in _masked(node, cond, outside))


def _masked(node: Node, cond: Expr, outside: frozenset[str]) -> Block:
    if not _touches((node,), outside):
        return (node,)
    match node:
        case For(coordinate=Coordinate.VECTOR) if not _combines(node.body):
            return (If(cond, (node,)),)
        case For(body=body):
            return (replace(node, body=_all_masked(body, cond, outside)),)
        case If(asked, then, other) if not _reads(asked, outside):
            return (If(asked, _all_masked(then, cond, outside), _all_masked(other, cond, outside)),)
        case Declare(name, dtype, value, count) if value is not None:
            if not count:
                return replace(node, value=_zero(dtype)), If(cond, (Store(name, (), value),))
            one = f"{name}m"
            start = _masked(Declare(one, dtype, value), cond, outside)
            return (*start, replace(node, value=Read(one, (), dtype)))
        case _:
            return (If(cond, (node,)),)


def _all_masked(block: Block, cond: Expr, outside: frozenset[str]) -> Block:
    return tuple(n for node in block for n in _masked(node, cond, outside))


def _zero(dtype: DType) -> Const:
    return Const(0.0 if dtype.is_float else False if dtype.is_bool else 0, dtype)


def _touches(block: Block, outside: frozenset[str]) -> bool:
    """Does a block access memory that other threads see?"""
    for node in block:
        match node:
            case For(body=body):
                found = _touches(body, outside)
            case If(asked, then, other):
                found = _reads(asked, outside) or _touches((*then, *other), outside)
            case Store(buffer, indices, value) | Update(buffer, indices, _, value):
                places = [i for i in indices if isinstance(i, EXPR_TYPES)]
                found = buffer in outside or any(_reads(e, outside) for e in (value, *places))
            case Declare(value=value) if value is not None:
                found = _reads(value, outside)
            case _:
                found = False
        if found:
            return True
    return False


def _reads(e: Expr, outside: frozenset[str]) -> bool:
    return any(isinstance(x, Read) and x.tensor in outside for x in walk(e))


def _combines(block: Block) -> bool:
    return any(
        isinstance(n, Combine)
        or (isinstance(n, For) and _combines(n.body))
        or (isinstance(n, If) and _combines((*n.then, *n.other)))
        for n in block
    )


def merged(block: Block, in_blocks: bool = False) -> Block:
    """Neighbours under one condition on indices in one branch, and such conditions around loops.

    `in_blocks`: inside a loop over blocks. Those that are nested stay together, because blocks take their
    iterations in turn, all loops at once: a condition goes outside of all of them or stays inside.
    """
    result: list[Node] = []
    for node in block:
        match node:
            case For(coordinate=Coordinate.BLK):
                node = replace(node, body=merged(node.body, True))
                node = node if in_blocks else _outside_loop(node)
            case For():
                node = _outside_loop(replace(node, body=merged(node.body)))
            case If():
                node = replace(node, then=merged(node.then), other=merged(node.other))
            case _:
                pass
        last = result[-1] if result else None
        if (
            isinstance(node, If)
            and isinstance(last, If)
            and last.cond == node.cond
            and not last.other
            and not node.other
            and _on_indices(node.cond)
        ):
            result[-1] = replace(last, then=merged((*last.then, *node.then)))
        else:
            result.append(node)
    return tuple(result)


def _outside_loop(loop: For) -> Node:
    """A loop all of whose body is under a condition that it does not change; loops over blocks as one."""
    match loop.body:
        case (If(cond, then, ()),) if _on_indices(cond) and not _asks(cond, loop.var):
            return If(cond, (replace(loop, body=then),))
        case (For(coordinate=Coordinate.BLK) as inner,) if loop.coordinate is Coordinate.BLK:
            match _outside_loop(inner):
                case If(cond, then, ()) if not _asks(cond, loop.var):
                    return If(cond, (replace(loop, body=then),))
                case _:
                    return loop
        case _:
            return loop


def _on_indices(cond: Expr) -> bool:
    return not any(isinstance(x, Read) for x in walk(cond))


# --- what a thread does -----------------------------------------------------------------------------------

WARP = 32
TX, TY = IVar("tx"), IVar("ty")


@dataclass(frozen=True, slots=True)
class DeviceTask:
    """One GPU function: the block loops, what each thread does in an iteration of them, and the kernel
    with the shared buffers that combining needs.  `ranges` holds what each loop variable can be, if all
    are known; `aligned` the buffers that are accessed by vectors, with the bytes.  Where so many blocks are
    `resident`, these take the iterations of the block loops in the body in turn."""

    kernel: Kernel
    loops: tuple[For, ...]
    body: Block
    ranges: Mapping[str, Range] | None
    aligned: Mapping[str, int]
    resident: int = 0


@dataclass(slots=True)
class Spmd:
    kernel: Kernel
    copied: frozenset[str]
    cx: PassContext
    ranges: dict[str, Range] = field(default_factory=dict)
    known: bool = True
    shared: list[Buffer] = field(default_factory=list)
    mask: Expr | None = None  # threads for which it fails have no place in the kernel
    waiting: bool = False  # threads without a row come to the barriers of the others

    @property
    def tx(self) -> int:
        return self.kernel.threads[0]

    @property
    def ty(self) -> int:
        return self.kernel.threads[1]

    def task(self, task: Function) -> DeviceTask:
        self.ranges |= {"tx": (0, self.tx - 1), "ty": (0, self.ty - 1)}
        for loop in task.loops:
            self._learn(loop)
        body = task.body
        if self.kernel.vector > 1:
            body = THREADS.run(Loops(self.kernel, body), self.cx).block
        body = self.block(body, False, False)
        body = map_nodes(merge_initial(body), _mask_outside)
        body = map_values(body, lambda e: e, lambda i: simplify(i, self.ranges))
        kernel = self.with_shared()
        if self.mask is not None:
            body = masked(kernel, body, self.mask)
        accesses = replace(self.cx, aligned={})
        body = ACCESSES.run(Loops(kernel, body), accesses).block
        ranges = dict(self.ranges) if self.known else None
        return DeviceTask(kernel, task.loops, body, ranges, accesses.aligned)

    def with_shared(self) -> Kernel:
        """The kernel with the arrays that combining needs."""
        return replace(self.kernel, buffers=(*self.kernel.buffers, *self.shared))

    def _learn(self, loop: For) -> None:
        """Note what a loop variable can be; one name may stand for several loops."""
        low, high = interval(loop.lower, self.ranges), interval(loop.upper, self.ranges)
        if low is None or high is None:
            self.known = False
            self.ranges.pop(loop.var, None)
            return
        self._may_be(loop.var, low[0], max(low[0], high[1] - 1))

    def _may_be(self, var: str, low: int, high: int) -> None:
        """Note values of a variable, beside those of others with that name."""
        old = self.ranges.get(var, (low, high))
        self.ranges[var] = min(low, old[0]), max(high, old[1])

    # --- nodes --------------------------------------------------------------------------------------------

    def block(self, nodes: Block, threaded: bool, rowed: bool) -> Block:
        """The nodes, each as a thread has it; loops that are gone may have had scalars of the same name."""
        made = [n for node in nodes for n in self.node(node, threaded, rowed)]
        fresh = [k for k, n in enumerate(made) if isinstance(n, Declare) and n.value is None and not n.count]
        again = {k for k in fresh if made.index(made[k]) < k}
        return tuple(n for k, n in enumerate(made) if k not in again)

    def node(self, node: Node, threaded: bool, rowed: bool) -> Block:
        """`threaded`, `rowed`: inside a loop over threads, over rows."""
        match node:
            case Declare(name, value=value, role=LocalRole.INDEX) if value is not None:
                low, high = of_tree(value, self.ranges)
                self._may_be(name, int(low), int(high))
                return (node,)
            case For(coordinate=Coordinate.ROUND):
                return self.rounds(node, rowed)
            case For(coordinate=Coordinate.STEP):
                return self.steps(node, threaded)
            case For(coordinate=Coordinate.THREAD):
                return self.place(node, TX, True, rowed)
            case For(coordinate=Coordinate.ROW):
                return self.place(node, TY, threaded, True)
            case For(coordinate=Coordinate.VECTOR):
                return self.vector(node, threaded, rowed)
            case For():
                self._learn(node)
                return (replace(node, body=self.block(node.body, threaded, rowed)),)
            case If(cond, then, other):
                return self.branch(
                    cond, self.block(then, threaded, rowed), self.block(other, threaded, rowed)
                )
            case Store() | Update() if self.in_memory(node.buffer):
                return self.once(node, threaded, rowed)
            case Combine():
                return self.combine(node)
            case _:
                return (node,)

    def branch(self, cond: Expr, then: Block, other: Block) -> Block:
        """Without the parts of a condition that always hold."""
        asked = self.asked(cond)
        if other and asked:
            return (If(_all(asked), then, other),)
        return guarded(asked, then)

    def asked(self, cond: Expr) -> list[Expr]:
        match cond:
            case Apply("and", (left, right)):
                return [*self.asked(left), *self.asked(right)]
            case Apply("le" | "lt" as op, (IndexValue(left, a), IndexValue(right, b))) if a is b is I64:
                return self.holds(op, left, right)
            case _:
                return [cond]

    def in_memory(self, buffer: str) -> bool:
        b = self.kernel.find(buffer)
        return b is not None and b.scope not in (Scope.REGISTER, Scope.LOCAL)

    def once(self, node: Node, threaded: bool, rowed: bool) -> Block:
        """Memory is written by one thread where all of them come by."""
        conditions = []
        if not threaded and self.tx > 1:
            conditions.append(compare("eq", TX, as_index(0)))
        if not rowed and self.ty > 1:
            conditions.append(compare("eq", TY, as_index(0)))
        return guarded(conditions, (node,))

    # --- loops --------------------------------------------------------------------------------------------

    def place(self, loop: For, mine: IVar, threaded: bool, rowed: bool) -> Block:
        """A loop over threads: the thread whose place is the value of the loop runs the iteration."""
        body = self.block(substituted(loop.body, {loop.var: mine}), threaded, rowed)
        conditions = self.within(mine, loop.lower, loop.upper, loop.step)
        if self.waiting and mine == TY and conditions:
            return masked(self.with_shared(), body, _all(conditions))
        if any(isinstance(n, Combine) and n.rows for n in loop.body):
            return _each_guarded(conditions, body)  # all threads must come to the barriers in between
        return guarded(conditions, body)

    def steps(self, loop: For, threaded: bool) -> Block:
        """A loop that the rows of a block share: row ty takes the iterations lower + step TY + ty."""
        extent = simplify(binary("-", loop.upper, loop.lower), self.ranges)
        count = binary("//", extent + (self.ty - 1), self.ty)
        head = For(f"s{loop.var[1:]}", as_index(0), count, 1, ())
        self._learn(head)
        mine = simplify(loop.lower + IVar(head.var) * self.ty + TY, self.ranges)
        body = self.block(substituted(loop.body, {loop.var: mine}), threaded, True)
        whole = replace(head, body=guarded(self.within(mine, loop.lower, loop.upper), body))
        sums = sums_of_rows(self.kernel, loop) if self.ty > 1 else []
        return (whole, *(n for found in sums for n in self.combine_arrays(found, threaded)))

    def combine_arrays(self, found: SumOfRow, threaded: bool) -> Block:
        """Over the rows of a block: one after the other adds its array to one in shared memory.

        if (ty == 0) red[h] = acc[h];  for j in 1..TY: if (ty == j) red[h] += acc[h];  acc[h] = red[h]
        """
        update, j = found.update, f"j{next(self.cx.numbers)}"
        dtype = self.kernel.buffer(update.buffer).dtype
        self.ranges[j] = (1, self.ty - 1)
        # Whole vectors, as those that hold the last elements are stored whole.
        length = -(-found.length(self.ranges) // self.kernel.vector) * self.kernel.vector
        red = self.scratch(dtype, length, "the rows of a block combine their sums")
        mine, place = Read(update.buffer, update.indices, dtype), found.place
        start = found.nest(Store(red, place, mine))
        more = found.nest(Update(red, place, update.op, mine))
        total = found.nest(Store(update.buffer, update.indices, Read(red, place, dtype)))
        first, own = compare("eq", TY, as_index(0)), compare("eq", TY, IVar(j))
        return (
            If(first, self.block(start, threaded, True)),
            For(j, as_index(1), as_index(self.ty), 1, (If(own, self.block(more, threaded, True)),)),
            *self.block(total, threaded, True),
        )

    def rounds(self, loop: For, rowed: bool) -> Block:
        """A loop that the threads of a row share."""
        width = self.kernel.vector
        step = self.tx * width
        low, high = interval(loop.lower, self.ranges), interval(loop.upper, self.ranges)
        name = f"r{loop.var[1:]}"
        first = (
            simplify(binary("//", loop.lower, step), self.ranges) if low is None else as_index(low[0] // step)
        )
        last = (
            binary("//", loop.upper + (step - 1), step)
            if high is None
            else as_index(max(low[0] // step if low else 0, -(-high[1] // step)))
        )
        whole = _whole_rounds(low, high, step) if low is not None else None
        if whole is None or not isinstance(first, IConst) or not isinstance(last, IConst):
            return self.some_rounds(loop, name, first, last, rowed)
        # All elements of most rounds exist, so that only the first and the last ask for them.
        ends = (first.value, *whole, last.value)
        parts = zip((f"{name}a", name, f"{name}z"), ends, ends[1:], strict=False)
        return tuple(
            n
            for x, a, b in parts
            if a < b
            for n in self.some_rounds(loop, x, as_index(a), as_index(b), rowed)
        )

    def some_rounds(self, loop: For, name: str, first: IndexExpr, last: IndexExpr, rowed: bool) -> Block:
        """The rounds first .. last of a shared loop."""
        width = self.kernel.vector
        head = For(name, first, last, 1, (), Coordinate.ROUND)
        others = self.ranges.pop(name, None)  # what loops of that name can be elsewhere
        self._learn(head)
        start = simplify(IVar(name) * (self.tx * width) + TX * width, self.ranges)
        body = self.elements(loop, start, width, rowed)
        if others is not None and name in self.ranges:
            self._may_be(name, *others)
        if isinstance(first, IConst) and last == first + 1:
            return substituted(body, {name: first})
        return (replace(head, body=body),)

    def elements(self, loop: For, start: IndexExpr, width: int, rowed: bool) -> Block:
        """The iterations start .. start + width of a shared loop, as far as they exist."""
        if width == 1:
            body = self.block(substituted(loop.body, {loop.var: start}), True, rowed)
            return guarded(self.within(start, loop.lower, loop.upper), body)
        name = f"v{loop.var[1:]}"
        one = binary("+", start, IVar(name))
        self.ranges[name] = (0, width - 1)
        body = self.block(substituted(loop.body, {loop.var: one}), True, rowed)
        vector = For(name, as_index(0), as_index(width), 1, body, Coordinate.VECTOR)
        whole = [
            *self.holds("le", loop.lower, start),
            *self.holds("le", binary("+", start, width), loop.upper),
        ]
        if linear(loop.lower).divisible(width) and linear(loop.upper).divisible(width):
            whole = self.within(start, loop.lower, loop.upper)
            return guarded(whole, (vector,))
        if not whole:
            return (vector,)
        inside = self.within(one, loop.lower, loop.upper)
        count = loop.upper - loop.lower
        partial = PartialVector(
            self.kernel, self.cx.strided, name, width, _all(inside), count, self.cx.numbers
        )
        if (anyway := partial.block(body)) is not None:
            some = [
                *self.holds("lt", loop.lower, binary("+", start, width)),
                *self.holds("lt", start, loop.upper),
            ]
            return guarded(some, (replace(vector, body=anyway),))
        masked = replace(vector, body=guarded(inside, body))
        return (If(_all(whole), (vector,), (masked,)),)

    def vector(self, loop: For, threaded: bool, rowed: bool) -> Block:
        """A loop over the elements of a vector."""
        width = self.kernel.vector
        self._may_be(loop.var, 0, width - 1)
        body = self.block(loop.body, threaded, rowed)
        whole = replace(loop, lower=as_index(0), upper=as_index(width), body=body, lanes=())
        missing = [
            *self.holds("le", loop.lower, as_index(0)),
            *self.holds("le", as_index(width), loop.upper),
        ]
        if not missing:
            return (whole,)
        inside = self.within(IVar(loop.var), loop.lower, loop.upper)
        return (If(_all(missing), (whole,), (replace(whole, body=guarded(inside, body)),)),)

    def within(self, value: IndexExpr, lower: IndexExpr, upper: IndexExpr, step: int = 1) -> list[Expr]:
        """What must be asked for lower <= value < upper, in steps from lower."""
        found = [*self.holds("le", lower, value), *self.holds("lt", value, upper)]
        if step != 1:
            found.append(compare("eq", binary("%", binary("-", value, lower), step), as_index(0)))
        return found

    def holds(self, op: str, left: IndexExpr, right: IndexExpr) -> list[Expr]:
        """left <= right or left < right as a condition; none where ranges tell that it always holds."""
        gap = interval(linear(binary("-", right, left)).expr(), self.ranges)
        if gap is not None and gap[0] >= (0 if op == "le" else 1):
            return []
        arms = [a for a in at_most(right) if a != right]
        if arms:  # below a minimum: below each of its arms
            return [c for a in arms for c in self.holds(op, left, a)]
        return [compare(op, left, right)]

    # --- combining ----------------------------------------------------------------------------------------

    def combine(self, node: Combine) -> Block:
        if node.rows:
            return self.combine_rows(node)
        if self.tx == 1:
            return ()
        if self.tx <= WARP and self.tx & (self.tx - 1) == 0:
            return (replace(node, width=self.tx),)
        if self.tx % WARP:
            return self.combine_anyhow(node)
        warps = self.tx // WARP
        width = 1 << (warps - 1).bit_length()
        red = self.scratch(node.dtype, warps * self.ty)
        total = f"%t{next(self.cx.numbers)}"
        lane = binary("%", TX, width)
        row = TY * warps if self.ty > 1 else as_index(0)
        first = If(
            compare("eq", binary("%", TX, WARP), as_index(0)),
            (Store(red, (row + binary("//", TX, WARP),), Read(node.name, (), node.dtype)),),
        )
        mine = Store(total, (), Read(red, (row + lane,), node.dtype))
        return (
            replace(node, width=WARP),
            first,
            Declare(total, node.dtype, _identity(node)),
            *guarded(self.holds("lt", lane, as_index(warps)), (mine,)),
            *((Combine(total, node.op, node.dtype, width),) if width > 1 else ()),
            Store(node.name, (), Read(total, (), node.dtype)),
        )

    def combine_rows(self, node: Combine) -> Block:
        """Over the rows of a block: every thread adds up the values of its column, in order."""
        red = self.scratch(node.dtype, self.tx * self.ty, "the rows of a block combine their parts")
        total, j = f"%t{next(self.cx.numbers)}", f"j{next(self.cx.numbers)}"
        self.ranges[j] = (0, self.ty - 1)
        one = Update(total, (), node.op, Read(red, (IVar(j) * self.tx + TX,), node.dtype))
        return (
            Store(red, (TY * self.tx + TX,), Read(node.name, (), node.dtype)),
            Declare(total, node.dtype, _identity(node)),
            For(j, as_index(0), as_index(self.ty), 1, (one,)),
            Store(node.name, (), Read(total, (), node.dtype)),
        )

    def combine_anyhow(self, node: Combine) -> Block:
        """For a number of threads that shuffles cannot serve: every thread adds up all values, in order."""
        red = self.scratch(node.dtype, self.tx * self.ty)
        total, j = f"%t{next(self.cx.numbers)}", f"j{next(self.cx.numbers)}"
        self.ranges[j] = (0, self.tx - 1)
        row = TY * self.tx if self.ty > 1 else as_index(0)
        one = Update(total, (), node.op, Read(red, (row + IVar(j),), node.dtype))
        return (
            Store(red, (row + TX,), Read(node.name, (), node.dtype)),
            Declare(total, node.dtype, _identity(node)),
            For(j, as_index(0), as_index(self.tx), 1, (one,)),
            Store(node.name, (), Read(total, (), node.dtype)),
        )

    def scratch(
        self, dtype: DType, count: int, reason: str = "the warps of a row combine their parts"
    ) -> str:
        """A shared array for values of the threads of a block."""
        name = f"red{len(self.shared)}"
        while any(b.tensor == name for b in self.kernel.buffers):
            name += "_"
        extents = (as_index(count),)
        self.shared.append(Buffer(name, dtype, Scope.SHARED, extents, extents, reason))
        return name


@dataclass(frozen=True, slots=True)
class SumOfRow:
    """An update of an array that each thread of a row has a part of, and the loops that it is in."""

    update: Update
    loops: tuple[For, ...]

    @property
    def place(self) -> tuple[IndexExpr, ...]:
        """Of the element in an array of one dim."""
        (loop,) = self.loops
        return (binary("-", IVar(loop.var), loop.lower),)

    def length(self, ranges: Mapping[str, Range]) -> int:
        """Elements of that array."""
        (loop,) = self.loops
        extent = interval(linear(binary("-", loop.upper, loop.lower)).expr(), dict(ranges))
        if extent is None:
            raise uncombined_error(self.update)
        return max(1, extent[1])

    def nest(self, node: Node) -> Block:
        """A node in the loops."""
        return _in_loops(self.loops, node)


def _in_loops(loops: tuple[For, ...], node: Node) -> Block:
    for loop in reversed(loops):
        node = replace(loop, body=(node,))
    return (node,)


def sums_of_rows(kernel: Kernel, steps: For) -> list[SumOfRow]:
    """Sums over a loop that the rows of a block share which each row has in arrays of its threads.

    Raises ScheduleError PF536 for one that is in no single loop that the threads of a row share.
    """
    stored = {n.buffer for n in nodes_of(steps.body) if isinstance(n, Store)}
    found: dict[str, SumOfRow] = {}

    def look(block: Block, loops: tuple[For, ...]) -> None:
        for node in block:
            match node:
                case For():
                    look(node.body, (*loops, node))
                case If(_, then, other):
                    look((*then, *other), loops)
                case Update(buffer, indices) if buffer not in stored:
                    home = kernel.find(buffer)
                    if home is None or home.scope not in (Scope.REGISTER, Scope.LOCAL):
                        continue
                    mine = tuple(x for x in loops if depends_on(*indices) & {x.var})
                    whole = len(mine) == 1 and mine[0].coordinate is Coordinate.ROUND
                    if not whole or depends_on(*indices) & {steps.var} or buffer in found:
                        raise uncombined_error(node)
                    found[buffer] = SumOfRow(node, mine)
                case _:
                    pass

    look(steps.body, ())
    return list(found.values())


def uncombined_error(lost: Update) -> ScheduleError:
    """PF536: an update that nothing would combine."""
    message = f"threads share a loop that updates '{lost.buffer}', and each would keep a part of it"
    return ScheduleError([Diagnostic("PF536", message, hint="compile it with fewer layers")])


def _whole_rounds(low: Range, high: Range | None, step: int) -> tuple[int, int] | None:
    """The rounds of `step` iterations that are all there, wherever in its range a loop begins; None if
    there are none."""
    found = (-(-low[1] // step), high[0] // step) if high is not None else (0, 0)
    return found if found[0] < found[1] else None


def _identity(node: Combine) -> Const:
    return Const(identity(node.op, node.dtype), node.dtype)


def compare(op: str, left: IndexExpr, right: IndexExpr) -> Expr:
    return Apply(op, (IndexValue(left, I64), IndexValue(right, I64)), BOOL)


def _all(conditions: list[Expr]) -> Expr:
    result = conditions[0]
    for c in conditions[1:]:
        result = Apply("and", (result, c), BOOL)
    return result


def _each_guarded(conditions: list[Expr], body: Block) -> Block:
    """Every node under the conditions by itself; declarations stay visible to all."""
    nodes: list[Node] = []
    for node in body:
        nodes += [node] if isinstance(node, Declare) else guarded(conditions, (node,))
    return tuple(nodes)


def _mask_outside(node: Node) -> Node:
    """A condition around all of a vector loop's body that does not ask for the element goes outside."""
    match node:
        case For(var, coordinate=Coordinate.VECTOR, body=(If(cond, then, ()),)) if not _asks(cond, var):
            return If(cond, (replace(node, body=then),))
        case _:
            return node


def _asks(cond: Expr, var: str) -> bool:
    return any(isinstance(x, IndexValue) and var in variables(x.index) for x in walk(cond))


def guarded(conditions: list[Expr], body: Block) -> Block:
    return (If(_all(conditions), body),) if conditions and body else body
