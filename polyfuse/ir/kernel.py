"""The kernel IR: what layers I to III pass on.

    Kernel = name, graph, stages, buffers; on a GPU the threads (x, y) of a block, the elements of a
             vector, the statements whose updates are atomic; and where one launch runs several
             kernels with grid barriers between, these parts, and the blocks
             that are launched, all of them resident, at least `per_sm` on a multiprocessor; where one
             launch runs independent kernels side by side, these as `packed`; where a library
             computes what the kernel says, what it is to it; where the elements of a scatter's result
             are shared out among workers, these `owners`
    Stage  = band (blk members), phases       between stages: a grid barrier or a kernel cut
    Phase  = tree                             between phases: a block barrier or a reduction; under a loop
             over steps that the workers of a CPU share (tim), a barrier of these, after the last one as well
    Buffer = where a tensor lives inside the kernel, and how its indices map to storage

`graph` holds the bodies of the kernel's statements with reductions made explicit: each reduction
``S`` is an initialising statement ``S__init`` and an accumulating one, so that the schedule orders
both and legality is checked on exactly what is emitted.  `placement` (statement -> coordinates) follows
from the trees.  Sizes may be symbolic: extents are index expressions, evaluated at launch.

A kernel of layer I has one stage with one phase.  Its schedule tree is `tree(kernel)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.data_ranges import divided
from polyfuse.ir.dtypes import DType
from polyfuse.ir.functions import is_function
from polyfuse.ir.index_expr import (
    IndexExpr,
    ISize,
    as_index,
    binary,
    evaluate,
    product,
    substitute,
    variables,
)
from polyfuse.ir.schedule_tree import Coordinate, Member, Tree, band, format_tree, path, sequence, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Constraint,
    Index,
    IterDim,
    Purpose,
    Statement,
    Tensor,
    TensorGraph,
    statement_reads,
    walk,
)


class Scope(Enum):
    """Storage, from the nearest to the furthest."""

    REGISTER = "register"
    LOCAL = "local"  # an array of one worker (CPU) or thread (GPU)
    SHARED = "shared"
    GLOBAL = "global"
    ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage of a tensor inside a kernel.

    `extents` are those of the storage, one per dim of the tensor: element ``x`` lives at
    ``x mod extent`` along each dim, which is the identity where the extent is the tensor's own, unless
    `slots` says otherwise (an expression over ``x`` per dim).  `reason` says why it lives there.
    While a CPU's kernel works on one row of it, the row `ahead` of that is prefetched (0: none).  With
    `soon`, a CPU's loops prefetch its lines shortly before they are read.  With `past`, a CPU's stores are
    non-temporal.
    On a GPU, arrays of a scope with one `place` lie in the same memory (the end of this module).
    """

    tensor: str
    dtype: DType
    scope: Scope
    extents: tuple[IndexExpr, ...]
    shape: tuple[IndexExpr, ...]
    reason: str = ""
    slots: tuple[IndexExpr, ...] = ()
    ahead: int = 0
    past: bool = False
    soon: bool = False
    place: int | None = None

    @property
    def elements(self) -> IndexExpr:
        return product(self.extents)

    def storage_index(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        """Tensor indices -> storage indices."""
        if self.slots:
            return tuple(
                i if isinstance(i, EXPR_TYPES) else substitute(slot, {"x": i})
                for i, slot in zip(indices, self.slots, strict=True)
            )
        result: list[Index] = []
        for i, extent, full in zip(indices, self.extents, self.shape, strict=True):
            if extent == full or isinstance(i, EXPR_TYPES):
                result.append(i)
            else:
                result.append(binary("%", i, extent))
        return tuple(result)

    def __str__(self) -> str:
        index = ", ".join(map(str, self.extents))
        place = "" if self.place is None else f" at {self.place}"
        return f"{self.scope.value:8s} {self.tensor}: {self.dtype}[{index}]{place}" + (
            f"  # {self.reason}" if self.reason else ""
        )


@dataclass(frozen=True, slots=True)
class Phase:
    tree: Tree


@dataclass(frozen=True, slots=True)
class Stage:
    """Phases under common block loops (`band` may be empty)."""

    band: tuple[Member, ...]
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Owners:
    """A CPU's kernel runs `parts` times, side by side: a part makes all stores and updates of `tensor` whose
    index at `place` is in its share, and no others (`layers.mapping.scatters`)."""

    tensor: str
    place: int
    parts: int


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    graph: TensorGraph
    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]
    threads: tuple[int, int] = (1, 1)
    vector: int = 1
    atomic: frozenset[str] = frozenset()
    parts: tuple[Kernel, ...] = ()
    resident: int = 0
    per_sm: int = 1
    packed: tuple[Kernel, ...] = ()
    library: MatrixProduct | None = None
    owners: Owners | None = None
    far: Constraint | None = None
    """For which sizes buffers have prefetches and non-temporal stores, if not for all."""

    def buffer(self, tensor: str) -> Buffer:
        return next(b for b in self.buffers if b.tensor == tensor)

    def find(self, name: str) -> Buffer | None:
        """The buffer of a name in loops; None where a pass declared it (`loop_ir.Declare`)."""
        return next((b for b in self.buffers if b.tensor == name), None)

    @property
    def statements(self) -> tuple[str, ...]:
        return statements(tree(self))

    @property
    def computed(self) -> tuple[str, ...]:
        """The statements in order, without first values of totals."""
        return tuple(n for n in self.statements if self.graph.statement(n).purpose is not Purpose.INIT)

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """Buffers that live outside: arguments and global intermediates, in order of the graph."""
        return tuple(b for b in self.buffers if b.scope in (Scope.ARGUMENT, Scope.GLOBAL))

    @property
    def unchanged(self) -> tuple[Buffer, ...]:
        """Buffers that live outside and that the kernel leaves as they are, under any name."""
        changed = {s.target for s in self.graph.statements}
        changed |= {a for n in changed if (a := self.graph.tensor(n).alias) is not None}
        return tuple(b for b in self.arguments if b.tensor not in changed)

    def __str__(self) -> str:
        shape = f": {self.threads[0]} x {self.threads[1]} threads, vectors of {self.vector}"
        lines = [f"kernel {self.name}{shape if self.threads != (1, 1) else ''}"]
        if (own := self.owners) is not None:
            lines.append(f"  {own.parts} owners of {own.tensor}, by its index {own.place}")
        lines += [f"  {b}" for b in self.buffers]
        if self.far is not None:
            lines.append(f"  memory is far where {self.far}")
        for k, stage in enumerate(self.stages):
            lines.append(f"  stage {k}")
            lines += [format_tree(_stage_tree(stage), "    ", self.graph)]
        lines += [f"  {s}" for s in self.graph.statements]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Touched:
    """Memory outside of a kernel that it reads, and that it writes, by the names of tensors."""

    read: frozenset[str]
    written: frozenset[str]

    def meets(self, other: Touched) -> bool:
        """Does one of two kernels write what the other touches?"""
        return bool(self.written & (other.read | other.written) or other.written & self.read)


def touched_memory(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Touched:
    """What a kernel touches outside; an inout parameter and what it becomes are one memory."""

    def memory(name: str) -> str:
        return tensors[name].alias or name

    outside = {b.tensor for b in kernel.arguments}
    written = {s.target for s in kernel.graph.statements} & outside
    read = {r.tensor for s in kernel.graph.statements for r in statement_reads(s)} & outside
    return Touched(frozenset(map(memory, read)), frozenset(map(memory, written)))


def _stage_tree(stage: Stage) -> Tree:
    return band(list(stage.band), sequence([p.tree for p in stage.phases]), permutable=True)


def tree(kernel: Kernel) -> Tree:
    """The schedule tree of the whole kernel."""
    return sequence([_stage_tree(s) for s in kernel.stages])


def in_steps(kernel: Kernel) -> bool:
    """Do workers of a CPU share the steps of a recurrence in it?"""
    return any(m.coordinate is Coordinate.TIME for s in kernel.stages for m in s.band)


def placement(kernel: Kernel) -> dict[str, dict[Coordinate, tuple[IndexExpr, ...]]]:
    """statement -> coordinate -> the values of its loops, outermost first."""
    whole = tree(kernel)
    result: dict[str, dict[Coordinate, tuple[IndexExpr, ...]]] = {}
    for name in kernel.statements:
        place: dict[Coordinate, tuple[IndexExpr, ...]] = {}
        for m in path(whole, name):
            if isinstance(m, Member):
                place[m.coordinate] = (*place.get(m.coordinate, ()), m.of(name))
        result[name] = place
    return result


@dataclass(frozen=True, slots=True)
class KernelGraph:
    """All kernels of an operator in launch order, with what lives between them.

    `graph` is the operator after the graph-level rewrites; `kernels` run one after the other.
    """

    graph: TensorGraph
    kernels: tuple[Kernel, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.kernels))


# --- work -------------------------------------------------------------------------------------------------


# Of an instance of a statement: what it computes besides functions, each of these, and, once for all
# statements of a kernel, what it moves.  So that kernels in L2 whose work is equal take about as long.
PLAIN, FUNCTION, MOVED = 1, 16, 7
WHOLE = PLAIN + MOVED
# A launch of less work is not worth waking a worker.
PARALLEL_WORK = 24 * 1024


def work(found: Iterable[tuple[Statement, IndexExpr]]) -> IndexExpr:
    """Of statements with so many instances."""
    computed, most = as_index(0), as_index(0)
    for s, count in found:
        each = PLAIN + FUNCTION * sum(map(is_function, walk(s.expr)))
        computed = binary("+", computed, binary("*", count, each))
        most = binary("max", most, count)
    return binary("//", binary("+", computed, binary("*", most, MOVED)), WHOLE)


def instances(s: Statement) -> IndexExpr:
    """Instances of a statement; a dim whose bounds depend on others counts as in the middle of these, or on
    average if it is longer at their ends, and what data divides among rows once for all of them."""
    first: dict[str, IndexExpr] = {}
    middle: dict[str, IndexExpr] = {}
    last: dict[str, IndexExpr] = {}
    extents: dict[str, IndexExpr] = {}
    for d in s.dims:
        low, high = substitute(d.lower, middle), substitute(d.upper, middle)
        begin, center, end = (_length(d, at) for at in (first, middle, last))
        extents[d.name] = center
        if {*variables(d.lower), *variables(d.upper)}:
            average = binary("//", binary("+", binary("+", begin, end), binary("*", 4, center)), 6)
            extents[d.name] = binary("max", center, average)
        first[d.name] = substitute(d.lower, first)
        middle[d.name] = binary("//", binary("+", low, high), 2)
        last[d.name] = binary("-", substitute(d.upper, last), 1)
    for var, others in divided(s).items():
        rows = binary("max", 1, product(tuple(extents[o] for o in others)))
        extents[var] = binary("max", binary("min", 1, extents[var]), binary("//", extents[var], rows))
    return product(tuple(extents.values()))


def _length(d: IterDim, at: Mapping[str, IndexExpr]) -> IndexExpr:
    """Of a dim, where those outside are at a place; it may be empty."""
    length = binary("-", substitute(d.upper, at), substitute(d.lower, at))
    return length if isinstance(length, ISize) else binary("max", 0, length)


# --- shared memory ----------------------------------------------------------------------------------------

# Which arrays of a GPU kernel lie in the same memory, and where: those of a block and those of a thread.
#
# Arrays with the same `Buffer.place` are never needed at the same time: they begin at the same address, and
# the largest of them is the *home* of all.  In shared memory they have elements of the same size; those of a
# thread have the same type and extents, and lie in registers.


# Every array begins at a multiple of so many bytes.
ALIGNMENT = 16


def nbytes(b: Buffer) -> int:
    return evaluate(b.elements, {}) * b.dtype.bytes


def aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def homes(buffers: Iterable[Buffer], scope: Scope = Scope.SHARED) -> dict[str, Buffer]:
    """Array -> the one in whose memory it lies: itself, if it is alone there or the largest."""
    together: dict[object, list[Buffer]] = {}
    for b in buffers:
        if b.scope is scope:
            kind = b.dtype.bytes if scope is Scope.SHARED else (b.dtype, b.extents)
            together.setdefault(b.tensor if b.place is None else (b.place, kind), []).append(b)
    return {b.tensor: max(group, key=nbytes) for group in together.values() for b in group}


def offsets(buffers: Iterable[Buffer]) -> tuple[dict[str, int], int]:
    """Where each shared array begins, and the bytes of all."""
    found = homes(buffers)
    begins: dict[str, int] = {}
    total = 0
    for home in found.values():
        if home.tensor not in begins:
            begins[home.tensor] = aligned(total)
            total = begins[home.tensor] + nbytes(home)
    return {name: begins[home.tensor] for name, home in found.items()}, total


def registers(buffers: Iterable[Buffer]) -> int:
    """What a thread's arrays and scalars take, in registers of 4 bytes."""
    known = tuple(buffers)
    arrays = {h.tensor: h for h in homes(known, Scope.LOCAL).values()}.values()
    return sum(words(b.dtype.bytes, evaluate(b.elements, {})) for b in (*arrays, *_scalars(known)))


def words(element: int, count: int) -> int:
    """Registers of 4 bytes for so many elements; those of a byte take two."""
    return -(-max(2, element) * count // 4)


def _scalars(buffers: Iterable[Buffer]) -> list[Buffer]:
    return [b for b in buffers if b.scope is Scope.REGISTER]
