"""A kernel as nests, the pieces that the cost model counts: what each one touches, and how it is spread.

    B(t: blk)[sum0; B(h: vec)(sum); mu; B(h: vec)(y)]    has the nests   sum0, B(h)(sum), mu, B(h)(y)

Statements under one innermost band share what they read; what a later nest reads again comes from wherever
it has stayed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import ceil, prod

from polyfuse.cost.cpu_device import Tiles
from polyfuse.cost.extents import Extents, Touched, dims_of, extents, inside, instances, touched, trips, union
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, variables
from polyfuse.ir.kernel import Kernel, Scope, tree
from polyfuse.ir.linear import flat
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree
from polyfuse.ir.schedule_tree import Sequence as Children
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Index,
    Statement,
    plain_variables,
    reads,
    statement_reads,
)

OUTSIDE = (Scope.ARGUMENT, Scope.GLOBAL)
# From so many rows on, of which a block has at most so much of each, partial results for parts of the rows
# would take little beside what memory takes longer for pieces of them.
MANY_ROWS, PIECE = 768, 1 / 2
_SPREAD = (Coordinate.ROW, Coordinate.THREAD, Coordinate.STEP)


@dataclass(frozen=True)
class Access:
    """One tensor in one nest: what is touched of it by its reads, or by its writes."""

    tensor: str
    written: bool
    scope: Scope
    item: int
    whole: tuple[Touched, ...]
    in_block: tuple[Touched, ...]

    @cached_property
    def nbytes(self) -> float:
        """Of the elements touched."""
        return union(self.whole) * self.item

    @cached_property
    def block_bytes(self) -> float:
        """Of the elements touched in one iteration of the block loops."""
        return union(self.in_block) * self.item

    @property
    def in_pieces(self) -> bool:
        """Does one iteration of the block loops touch a short piece of each of many rows of memory?"""
        return any(_is_narrow(all_, one) for all_, one in zip(self.whole, self.in_block, strict=True))


@dataclass(frozen=True)
class Nest:
    """Statements that share an innermost band, with the loops around them, outermost first."""

    kernel: Kernel
    loops: tuple[Member, ...]
    body: tuple[Statement, ...]

    @cached_property
    def names(self) -> Mapping[str, Statement]:
        return {s.name: s for s in self.body}

    @cached_property
    def blocks(self) -> tuple[Member, ...]:
        return tuple(m for m in self.loops if m.coordinate is Coordinate.BLK)

    @property
    def block_count(self) -> float:
        return self.count(Coordinate.BLK)

    def count(self, *kinds: Coordinate) -> float:
        """Iterations of the loops of some kinds."""
        return prod(
            (n for m, n in zip(self.loops, self._trips, strict=True) if m.coordinate in kinds), start=1.0
        )

    @cached_property
    def _trips(self) -> tuple[float, ...]:
        known = self.extents
        return tuple(trips(m, self.names, self.loops[:k], known) for k, m in enumerate(self.loops))

    def trip(self, m: Member) -> float:
        """Iterations of one of the loops in one of those outside of it."""
        return self._trips[self.loops.index(m)]

    @cached_property
    def timed(self) -> tuple[tuple[Statement, Extents], ...]:
        return tuple((s, self.extents[s.name]) for s in self.body)

    @cached_property
    def extents(self) -> Mapping[str, Extents]:
        """Of each statement."""
        return {s.name: extents(s) for s in self.body}

    @cached_property
    def vector(self) -> Member | None:
        """The loop whose iterations are lanes of vectors (CPU), or neighbouring threads (GPU)."""
        kinds = (Coordinate.THREAD, Coordinate.VECTOR)
        return next((m for m in self.loops if m.coordinate in kinds), None)

    @property
    def steps(self) -> float:
        """What one thread of a GPU does one after the other in a block: iterations times the vector."""
        everything = self.count(Coordinate.SEQ, Coordinate.ROUND, Coordinate.VECTOR, Coordinate.STEP)
        rows = self.kernel.threads[1] if self.count(Coordinate.STEP) > 1 else 1
        return max(1.0, everything / rows)

    @property
    def spread(self) -> float:
        """Threads of a block that take part."""
        return min(prod(self.kernel.threads), max(1.0, self.count(*_SPREAD)))

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """What it touches, one entry for each tensor and direction."""
        return tuple(self._accesses())

    def _accesses(self) -> Iterator[Access]:
        writers = {s.target for s in self.body}
        for b in self.kernel.buffers:
            for written in (False, True):
                if not written and b.tensor in writers and not self._updates(b.tensor):
                    continue  # what the nest has just written is at hand
                found = [
                    (s, i)
                    for s in self.body
                    for tensor, i, w in uses(s)
                    if tensor == b.tensor and w == written
                ]
                if not found:
                    continue
                known = self.extents
                whole = tuple(touched(i, b.shape, known[s.name]) for s, i in found)
                block = tuple(touched(i, b.shape, self._in_block[s.name]) for s, i in found)
                yield Access(b.tensor, written, b.scope, b.dtype.bytes, whole, block)

    @cached_property
    def _in_block(self) -> Mapping[str, Extents]:
        """What is left of extents in one iteration of the block loops."""
        return {s.name: inside(s, self.blocks, self.extents[s.name]) for s in self.body}

    def _updates(self, tensor: str) -> bool:
        """Are elements found by data added to?"""
        return any(s.accumulate and s.target == tensor for s in self.body)

    @cached_property
    def loads(self) -> float:
        """Instances of accesses to memory of any kind; what does not depend on a loop is loaded outside."""
        total = 0.0
        for s, found in self.timed:
            for tensor, indices, _ in set(uses(s)):
                if self.kernel.buffer(tensor).scope is not Scope.REGISTER:
                    plain = {n for i in indices for n in _index_dims(i)}
                    total += prod(found[n].length for n in plain if n in found)
        return total

    @property
    def reads_memory(self) -> bool:
        return any(a.scope in OUTSIDE and not a.written for a in self.accesses)

    @cached_property
    def lane_sums(self) -> float:
        """How often the lanes of a sum along the vector loop are added up."""
        if self.vector is None:
            return 0.0
        total = 0.0
        for s, found in self.timed:
            if s.name in dict(self.vector.exprs) and dims_of(self.vector.of(s.name)) & set(s.reduction_dims):
                total += instances(found)
        return total / max(1.0, self.count(Coordinate.VECTOR))

    @cached_property
    def tiles(self) -> Tiles | None:
        """The loops of a sum of products that stays in registers: over what is summed, rows and lanes, of
        which each factor knows one (`layers.contractions.cpu_tiles` makes them)."""
        if len(self.body) != 1 or len(self.loops) < 3:
            return None
        s, (*around, row, lane) = self.body[0], self.loops
        over = list(takewhile(lambda m: self._walks(m) in s.reduction_dims, reversed(around)))
        of_lane = self._walks(lane) if lane.coordinate is Coordinate.VECTOR else None
        if not over or s.reduction != "sum" or not self._crosses(s, self._walks(row), of_lane):
            return None
        *visits, rows, columns = self._trips
        outside = len(visits) - len(over)
        steps = prod(visits[outside:])
        return Tiles(ceil(rows), ceil(columns), steps, prod(visits[:outside]), s.expr.dtype.bytes)

    def _walks(self, m: Member) -> str | None:
        """The dim that a loop steps through one by one, if it runs in one thread."""
        e = dict(m.exprs).get(self.body[0].name)
        inner = m.coordinate in (Coordinate.SEQ, Coordinate.VECTOR)
        return e.name if isinstance(e, IVar) and inner else None

    @staticmethod
    def _crosses(s: Statement, row: str | None, lane: str | None) -> bool:
        """Is it a product of a value for each row and one for each lane?"""
        if row is None or lane is None or not (isinstance(s.expr, Apply) and s.expr.op == "mul"):
            return False
        known = [{n for r in reads(e) for i in r.indices for n in _index_dims(i)} for e in s.expr.args]
        both = [x & {row, lane} for x in known]
        return both in ([{row}, {lane}], [{lane}, {row}])

    def strided(self) -> float:
        """Instances of accesses that do not walk contiguous memory along the vector loop."""
        if self.vector is None:
            return 0.0
        total = 0.0
        for s, found in self.timed:
            if s.name in dict(self.vector.exprs):
                dims = dims_of(self.vector.of(s.name))
                buffers = {(i, self.kernel.buffer(tensor), w) for tensor, i, w in uses(s)}
                ways = [(i, b.shape) for i, b, _ in buffers if i and b.scope is not Scope.REGISTER]
                total += instances(found) * sum(_strides(i, shape, dims) for i, shape in ways)
        return total


def _is_narrow(whole: Touched, block: Touched) -> bool:
    """Is a block's box high and narrow beside that of all blocks?"""
    if len(whole.box) < 2:
        return False
    lengths = [high - low + 1 for low, high in block.box]
    along = whole.box[-1][1] - whole.box[-1][0] + 1
    return prod(lengths[:-1]) >= MANY_ROWS and lengths[-1] <= along * PIECE


def _index_dims(i: Index) -> set[str]:
    """Dims that an index depends on; data does through what it reads."""
    if not isinstance(i, EXPR_TYPES):
        return set(variables(i))
    return plain_variables(j for r in reads(i) for j in r.indices)  # `reads` goes into data, too


def data_rows(s: Statement) -> Iterator[tuple[str, set[str]]]:
    """(tensor, dims that choose a row of it) of each access whose place data tells."""
    for r in dict.fromkeys(statement_reads(s)):
        found = [i for i in r.indices if isinstance(i, EXPR_TYPES) and reads(i)]
        if found:
            yield r.tensor, {n for i in found for n in _index_dims(i)}


def uses(s: Statement) -> Iterator[tuple[str, tuple[Index, ...], bool]]:
    """(tensor, indices, written) of each access; a reduction has its value in a register."""
    for r in statement_reads(s):
        yield r.tensor, r.indices, False
    if s.accumulate:
        yield s.target, s.write, False
    yield s.target, s.write, True


def _strides(indices: tuple[Index, ...], shape: tuple[IndexExpr, ...], dims: set[str]) -> bool:
    """Do neighbouring iterations touch elements further apart? A row found by data counts as dense."""
    known = tuple(IConst(0) if isinstance(i, EXPR_TYPES) else i for i in indices)
    if isinstance(indices[-1], EXPR_TYPES):
        return True
    at = flat(known, shape)
    return any(abs(at.factor(IVar(d))) > 1 for d in dims)


def nests(kernel: Kernel) -> tuple[Nest, ...]:
    """In the order of the kernel."""
    names = {s.name: s for s in kernel.graph.statements}
    found = _walk(tree(kernel), (), names)
    return tuple(Nest(kernel, loops, body) for loops, body in found)


_Found = list[tuple[tuple[Member, ...], tuple[Statement, ...]]]


def _walk(t: Tree, loops: tuple[Member, ...], names: Mapping[str, Statement]) -> _Found:
    match t:
        case Leaf(name):
            return [(loops, (names[name],))]
        case Band(members, child):
            inner = _walk(child, (*loops, *members), names)
            if all(way == (*loops, *members) for way, _ in inner):
                return [((*loops, *members), tuple(s for _, body in inner for s in body))]
            return inner
        case Children(children):
            return [x for c in children for x in _walk(c, loops, names)]


def common(a: Nest, b: Nest) -> tuple[Member, ...]:
    """The loops that two nests of a kernel share."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(m for m, _ in takewhile(lambda p: p[0] is p[1], pairs))


def footprint(between: Sequence[Nest], loops: Sequence[Member], scopes: tuple[Scope, ...]) -> float:
    """Bytes that nests touch in one iteration of `loops`, each tensor once."""
    parts: dict[str, tuple[int, list[Touched]]] = {}
    for nest in between:
        for s in nest.body:
            found = inside(s, loops, nest.extents[s.name])
            for tensor, indices, _ in uses(s):
                b = nest.kernel.buffer(tensor)
                if b.scope in scopes:
                    entry = parts.setdefault(tensor, (b.dtype.bytes, []))
                    entry[1].append(touched(indices, b.shape, found))
    return sum(item * union(found) for item, found in parts.values())
