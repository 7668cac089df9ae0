"""A nest of loops laid out for a target: what mapping gives, and questions about loops that it asks.

The last two parts are about memory: how a loop walks it (`contiguity`, `vector_width`), and which accesses
run along it in one loop and jump in that of the lanes (`Lanes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd, prod

from polyfuse.cost.extents import extents
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.data_ranges import divided
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, evaluate, sizes, variables
from polyfuse.ir.kernel import Owners
from polyfuse.ir.kernel import work as work_of
from polyfuse.ir.linear import Linear, flat, interval, linear, size_ranges
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, band, sequence, statements
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Index,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
    depends_on,
    plain_variables,
    statement_reads,
    walk,
)


@dataclass(frozen=True, slots=True)
class Nest:
    """`threads` (x, y), `vector` and `owners` are those of `ir.kernel.Kernel`; statements in `atomic` update
    memory that other threads update as well; `shared` are rows that are to stay in shared memory; `starts` is
    where the rows of statements begin (`layers.mapping.gpu_row_alignment`)."""

    tree: Tree
    threads: tuple[int, int] = (1, 1)
    vector: int = 1
    atomic: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    owners: Owners | None = None
    starts: Mapping[str, tuple[str, IndexExpr]] = field(default_factory=dict)

    @property
    def lead(self) -> int:
        """Elements that rows may be longer by as they are counted from an aligned place."""
        return self.vector - 1 if self.starts else 0


def racing(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> tuple[str, ...]:
    """Reductions whose updates of one element are spread over iterations of a loop."""
    found = []
    for n in names:
        s = graph.statement(n)
        if s.reduction is None or n not in dict(m.exprs):
            continue
        written = {i.name for i in s.write if isinstance(i, IVar)}
        used = set(variables(m.of(n)))
        if not used or not used <= written:
            found.append(n)
    return tuple(found)


def is_free(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> bool:
    """May the iterations run at the same time, every element being updated by one of them only?"""
    return m.coincident and not racing(graph, m, names)


def has_band(tree: Tree) -> bool:
    match tree:
        case Band():
            return True
        case Sequence(children):
            return any(has_band(c) for c in children)
        case Leaf():
            return False


def side_by_side(tree: Tree) -> list[Tree]:
    """The nests of a tree that follow one another: neighbouring leaves are one, every other child stands for
    itself."""
    groups: list[list[Tree]] = []
    for c in tree.children if isinstance(tree, Sequence) else (tree,):
        if groups and isinstance(c, Leaf) and isinstance(groups[-1][-1], Leaf):
            groups[-1].append(c)
        else:
            groups.append([c])
    return [sequence(g) for g in groups]


def innermost(tree: Tree) -> list[Band]:
    """The bands with no band below."""
    match tree:
        case Leaf():
            return []
        case Sequence(children):
            return [b for c in children for b in innermost(c)]
        case Band(_, child):
            return innermost(child) or [tree]


def span_of(graph: TensorGraph, m: Member) -> range | None:
    """The iterations of a loop that is a plain dim with constant bounds, else None."""
    dims = [dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None for n, e in m.exprs]
    bounds = [
        (d.lower.value, d.upper.value)
        for d in dims
        if d is not None and isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
    ]
    if len(bounds) < len(dims):
        return None
    return range(min(low for low, _ in bounds), max(high for _, high in bounds))


def trip_of(graph: TensorGraph, m: Member) -> int | None:
    """Iterations of a loop that is a plain dim with constant bounds, else None."""
    span = span_of(graph, m)
    return None if span is None else len(span)


def longest_of(graph: TensorGraph, m: Member) -> int | None:
    """Iterations of a loop that is a plain dim, at most in the region of open sizes; None where data says."""
    dims = [dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None for n, e in m.exprs]
    ranges = size_ranges(graph)
    found = [interval(binary("-", d.upper, d.lower), ranges) if d is not None else None for d in dims]
    return max((f[1] for f in found if f), default=None) if all(found) else None


def open_trips_of(graph: TensorGraph, m: Member) -> IndexExpr | None:
    """Iterations of a loop that is a plain dim from 0 on, in terms of sizes; None for other loops."""
    dims = [dim_of(graph.statement(n), e.name) if isinstance(e, IVar) else None for n, e in m.exprs]
    found = {d.upper for d in dims if d is not None and d.lower == IConst(0)}
    plain = len(found) == 1 and all(d is not None and d.lower == IConst(0) for d in dims)
    (trips, *_) = (*found, None)
    return trips if plain and trips is not None and sizes(trips) and not variables(trips) else None


def most_trips(graph: TensorGraph, m: Member) -> int | None:
    """Iterations of a loop that is a plain dim, at most: at a border those of a window are fewer."""
    lengths: list[int] = []
    for n, e in m.exprs:
        s = graph.statement(n)
        if not isinstance(e, IVar) or any(sizes(b) for d in s.dims for b in (d.lower, d.upper)):
            return None
        found = extents(s).get(e.name)
        if found is None:
            return None
        lengths.append(found.high - found.low + 1)
    return max(lengths, default=None)


def without_units(graph: TensorGraph, tree: Tree) -> Tree:
    """The tree without loops of one iteration, which would pass for parallel ones or for vectors."""
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(without_units(graph, c) for c in children))
        case Band(members, child, permutable):
            kept = [m for m in members if trip_of(graph, m) != 1]
            return band(kept, without_units(graph, child), permutable)


def iterations(graph: TensorGraph, members: tuple[Member, ...]) -> int:
    """Iterations of several loops; one that is not known counts as many."""
    return prod(t if (t := trip_of(graph, m)) is not None else 1024 for m in members)


def dim_of(s: Statement, name: str) -> IterDim | None:
    return next((d for d in s.dims if d.name == name), None)


def volume(graph: TensorGraph, names: tuple[str, ...]) -> int:
    """Instances of the largest statement; a size that is not known counts as large."""
    largest = 0
    for n in names:
        trips: dict[str, int] = {}
        for d in graph.statement(n).dims:
            known = isinstance(d.lower, IConst) and isinstance(d.upper, IConst)
            trips[d.name] = max(0, d.upper.value - d.lower.value) if known else 1024  # type: ignore[union-attr]
        for var, others in divided(graph.statement(n)).items():
            rows = max(1, prod(trips[o] for o in others))
            trips[var] = max(min(1, trips[var]), trips[var] // rows)
        largest = max(largest, prod(trips.values()))
    return largest


def work(graph: TensorGraph, names: tuple[str, ...]) -> int:
    """What there is to compute, in instances of a plain statement (`ir.kernel.work`)."""
    counts = ((graph.statement(n), as_index(volume(graph, (n,)))) for n in names)
    return evaluate(work_of(counts), {})


def heavy(graph: TensorGraph, names: tuple[str, ...]) -> tuple[str, ...]:
    """The statements that matter for time: those with an eighth or more of the largest one's instances."""
    counts = {n: volume(graph, (n,)) for n in names}
    most = max(counts.values(), default=0)
    return tuple(n for n, count in counts.items() if count * 8 >= most)


def push(m: Member, tree: Tree, together: bool = False) -> Tree:
    """Put a loop inside everything below; `together`: in one for neighbouring statements."""
    match tree:
        case Band(members, child, permutable) if has_band(child):
            return Band(members, push(m, child, together), permutable)
        case Band(members, child, permutable):
            return Band((*members, _restricted(m, child)), child, permutable)
        case Sequence(children) if has_band(tree):
            parts = side_by_side(tree) if together else children
            return Sequence(tuple(push(m, c, together) for c in parts))
        case _:
            return Band((_restricted(m, tree),), tree, True)


def _restricted(m: Member, tree: Tree) -> Member:
    return m.restricted(frozenset(statements(tree)))


# --- strides, and vectors that alignment allows -----------------------------------------------------------


VECTOR_BYTES = 16
# Accesses of so many bytes that a vector of wider elements is made of, at most.
MOST_ACCESSES = 4


def accesses(graph: TensorGraph, s: Statement) -> Iterator[tuple[str, Linear]]:
    """(tensor, element number) of what one instance touches; the sum of a reduction is in a register."""
    if s.reduction is None or s.accumulate:
        yield s.target, address(graph, s.target, s.write)
    for r in statement_reads(s):
        yield r.tensor, address(graph, r.tensor, r.indices)


def address(graph: TensorGraph, tensor: str, indices: tuple[Index, ...]) -> Linear:
    """The element number in dense memory; an index that is data is an atom of its own."""
    plain: list[IndexExpr] = [
        IVar(f"%data{k}") if isinstance(i, EXPR_TYPES) else i for k, i in enumerate(indices)
    ]
    return flat(tuple(plain), graph.tensor(tensor).shape)


def stride(where: Linear, var: str) -> int | None:
    """Elements from one iteration of a loop to the next; None if that varies."""
    for atom, _ in where.terms:
        if atom != IVar(var) and var in variables(atom):
            return None
    return where.factor(IVar(var))


def large_tensors(graph: TensorGraph, names: tuple[str, ...]) -> frozenset[str]:
    """Of what statements access, the tensors with an eighth or more of the largest one's bytes; all of them
    while sizes are open."""
    found: dict[str, int] = {}
    for t in (t for n in names for t, _ in accesses(graph, graph.statement(n))):
        tensor = graph.tensor(t)
        if any(sizes(e) for e in tensor.shape):
            return frozenset(t.name for t in graph.tensors)
        found[t] = prod(evaluate(e, {}) for e in tensor.shape) * tensor.dtype.bytes
    most = max(found.values(), default=0)
    return frozenset(t for t, nbytes in found.items() if nbytes * 8 >= most)


def contiguity(
    graph: TensorGraph, m: Member, names: tuple[str, ...], tensors: frozenset[str] | None = None
) -> int:
    """Accesses that walk contiguous memory along a loop count 2, those that jump -1; of these only."""
    score = 0
    for n, e in m.exprs:
        if n not in names or not isinstance(e, IVar):
            continue
        for tensor, where in accesses(graph, graph.statement(n)):
            if tensors is not None and tensor not in tensors:
                continue
            step = stride(where, e.name)
            score += 2 if step == 1 else 0 if step == 0 else -1
    return score


def vector_width(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> int:
    """Elements that a thread may take at once along a loop: those of one access of 16 bytes, all contiguous
    accesses aligned.

    The element type that most bytes are of decides; wider elements of a vector take several accesses,
    narrower ones a shorter one, and pairs stay together.  1 where nothing is contiguous, or an address is not
    a multiple of the vector in every iteration of the other loops.  Memory is taken to begin at a multiple of
    16 bytes; launches see to it.
    """
    turns = _taken_in_turn(graph, m, names)
    found: list[tuple[str, int, Linear]] = []
    for n, e in m.exprs:
        if n not in names:
            continue
        if not isinstance(e, IVar) or not _starts_at_zero(graph.statement(n), e.name):
            return 1
        for tensor, where in accesses(graph, graph.statement(n)):
            step = stride(where, e.name)
            if step is None:
                return 1
            base = where.without(e)
            if step == 1 or (step == turns.get(tensor) and all(c % step == 0 for _, c in base.terms)):
                found.append((tensor, step, Linear(base.terms, base.constant - base.constant % step)))
    if not found:
        return 1
    width = access_elements(graph, tuple(dict.fromkeys(t for t, _, _ in found)), turns)
    while width > 1 and not all(base.divisible(width * step) for _, step, base in found):
        width //= 2
    return width


def _taken_in_turn(graph: TensorGraph, m: Member, names: tuple[str, ...]) -> dict[str, int]:
    """Tensors of which a loop takes every so many elements, and all together: one and the other of pairs."""
    rests: dict[tuple[str, int], set[int]] = {}
    for n, e in m.exprs:
        if n not in names or not isinstance(e, IVar):
            continue
        for tensor, where in accesses(graph, graph.statement(n)):
            step = stride(where, e.name) or 0
            if 1 < step <= NEAR and graph.tensor(tensor).role is not Role.TEMP:
                rests.setdefault((tensor, step), set()).add(where.constant % step)
    return {tensor: step for (tensor, step), found in rests.items() if len(found) == step}


def access_elements(
    graph: TensorGraph, tensors: tuple[str, ...], turns: Mapping[str, int] | None = None
) -> int:
    """Elements of the type that most bytes of these tensors are of, in one access.

    Those in `turns` are taken in turn, groups of so many elements.
    """
    turns = turns or {}
    outside = [graph.tensor(t) for t in tensors if graph.tensor(t).role is not Role.TEMP]
    each = outside or [graph.tensor(t) for t in tensors]
    total: dict[int, int] = {}
    for t in each:
        elements = prod(d.value if isinstance(d, IConst) else 1024 for d in t.shape)
        group = t.dtype.bytes * turns.get(t.name, 1)
        total[group] = total.get(group, 0) + t.dtype.bytes * elements
    mine = max(total, key=lambda nbytes: (total[nbytes], nbytes))
    widest = max(graph.tensor(t).dtype.bytes * turns.get(t, 1) for t in tensors)
    whole = max(VECTOR_BYTES // gcd(mine, VECTOR_BYTES), 2 if turns else 1)
    most = min(whole, MOST_ACCESSES * VECTOR_BYTES // widest)
    return 1 << most.bit_length() - 1


def _starts_at_zero(s: Statement, name: str) -> bool:
    dim = next((d for d in s.dims if d.name == name), None)
    return dim is not None and (dim.lower == IConst(0) or bool(variables(dim.lower)))


# Elements that lie so many apart share lines, as those of a channel of a picture do: such steps neither walk
# along memory nor stride.
NEAR = 4


# --- lanes that jump --------------------------------------------------------------------------------------


LINE = Core().line
# Lines so many bytes apart are in few sets of a cache.
CROWDED = 2048
# A tile saves a jump of each lane; what no tile can be made of counts as so many that can.
AS_MANY = 8


@dataclass(frozen=True, slots=True)
class Lanes:
    """Two loops around statements of a graph: `row`, and the vector lanes in it."""

    graph: TensorGraph
    names: tuple[str, ...]
    row: Member
    lanes: tuple[Member, ...]

    def reads(self) -> list[Read]:
        """Those along memory in the row, which jump in the lanes."""
        return [
            r
            for s, row, lane in self._statements()
            for r in statement_reads(s)
            if steps_along(r.indices, row, lane) == 1
        ]

    def stores(self) -> list[Statement]:
        """Statements whose results are so, with neighbours of the row in a line."""
        return [s for s, row, lane in self._statements() if _is_across(self.graph, s, row, lane)]

    def cost(self) -> int:
        """Bytes that are transposed for an iteration of both loops, those many times that cannot be."""
        total = 0
        for s, row, lane in self._statements():
            results = [] if self.graph.tensor(s.target).role is Role.TEMP else [(s.target, s.write)]
            reads = [(r.tensor, r.indices) for r in statement_reads(s)]
            for tensor, indices in dict.fromkeys([*results, *reads]):
                if jumps(indices, lane) or by_data(indices, lane):
                    turned = steps_along(indices, row, lane) and not (guards(s) and indices is not s.write)
                    total += self.graph.tensor(tensor).dtype.bytes * (1 if turned else AS_MANY)
        return total

    def _statements(self) -> Iterator[tuple[Statement, str, str]]:
        """Those that are in both loops, with their dims of both."""
        for n in self.names:
            row = self.row.of(n)
            lane = next((f for m in self.lanes for s, f in m.exprs if s == n), None)
            if isinstance(row, IVar) and isinstance(lane, IVar) and row != lane:
                yield self.graph.statement(n), row.name, lane.name


def stored_across(graph: TensorGraph, lanes: Iterable[Member], names: Iterable[str]) -> list[Statement]:
    """The statements whose results jump in the lanes, along whatever they run."""
    of = {n: e.name for m in lanes for n, e in m.exprs if isinstance(e, IVar)}
    return [
        s
        for s in map(graph.statement, names)
        if s.name in of and graph.tensor(s.target).role is not Role.TEMP and s.reduction is None
        if not any(isinstance(i, EXPR_TYPES) for i in s.write) and jumps(s.write, of[s.name])
        if (apart := stride(address(graph, s.target, s.write), of[s.name])) is None or abs(apart) > NEAR
    ]


def crowds(graph: TensorGraph, s: Statement, lane: Member) -> bool:
    """Are the lines that neighbouring lanes store to in few sets of a cache?"""
    at = lane.of(s.name)
    apart = stride(address(graph, s.target, s.write), at.name) if isinstance(at, IVar) else None
    return apart is not None and apart * graph.tensor(s.target).dtype.bytes % CROWDED == 0


def jumps(indices: tuple[Index, ...], lane: str) -> bool:
    """Are neighbouring lanes in other rows of memory?"""
    return lane in plain_variables(indices[:-1])


def by_data(indices: tuple[Index, ...], lane: str) -> bool:
    """Does data say where the elements of neighbouring lanes are?"""
    return any(lane in depends_on(i) for i in indices if isinstance(i, EXPR_TYPES))


def clamped_across(s: Statement, lane: str) -> bool:
    """Is something read at places that jump in the lanes, and that no tile is made of as they are clamped?"""
    if guards(s):
        return False
    for *leading, last in (r.indices for r in statement_reads(s) if len(r.indices) > 1):
        clamped = not isinstance(last, EXPR_TYPES) and linear(last).hidden
        if clamped and jumps((*leading, last), lane) and not any(isinstance(i, EXPR_TYPES) for i in leading):
            return True
    return False


def steps_along(indices: tuple[Index, ...], row: str, lane: str) -> int:
    """The steps in memory of an access along a row that jumps in the lanes; 0 if it doesn't."""
    *leading, last = indices or (None,)
    if last is None or isinstance(last, EXPR_TYPES) or any(isinstance(i, EXPR_TYPES) for i in leading):
        return 0
    inside = plain_variables(leading)
    if row in inside or lane not in inside or lane in variables(last):
        return 0
    return abs(linear(last).factor(IVar(row)))


def guards(s: Statement) -> bool:
    """Are there conditions on indices in it?"""
    conditions = [e.cond for e in walk(s.expr) if isinstance(e, Select)]
    return any(isinstance(x, IndexValue) for c in conditions for x in walk(c))


def has_arms(s: Statement, lane: str) -> bool:
    """Does what is read along the lanes change where an index or a condition goes over to another arm?"""
    plain = [i for r in statement_reads(s) for i in r.indices if not isinstance(i, EXPR_TYPES)]
    return guards(s) or any(lane in linear(i).hidden for i in plain)


def _is_across(graph: TensorGraph, s: Statement, row: str, lane: str) -> bool:
    tensor = graph.tensor(s.target)
    if tensor.role is Role.TEMP or s.reduction is not None:
        return False
    hidden = {v for i in s.write if not isinstance(i, EXPR_TYPES) for v in linear(i).hidden}
    return not hidden & {row, lane} and 0 < steps_along(s.write, row, lane) * tensor.dtype.bytes < LINE
