"""The loops of a kernel as a graph: nodes are loops, accesses, operations and the tensors they touch.

    for t @wrk:                          loop.wrk ---> loop.vec ---> load ---> op.exp ---> update.sum
      for k @vec:                                                     ^
        acc sum= exp(x[t, k])                                         |
                                                                    tensor

An edge goes from what is computed to what uses it, from a tensor to its loads, from a store to its tensor,
and from a loop to all that is directly in it.  Equal nodes are one: twenty additions of one loop are a node
with `copies` of 20, so a graph has tens of nodes however far loops are unrolled.  What a loop does not change
counts as often as the loops around it run.  Names play no part.

Source: "A Learned Performance Model for Tensor Processing Units" (MLSys 2021), whose nodes are operations of
tensors; here they are those of the loops that are printed, where variants of one kernel differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod

from polyfuse.codegen.function import Function
from polyfuse.cost.extents import extents as extents_of
from polyfuse.cost.loop_time import Values, middle, trips
from polyfuse.cost.operations import weight_of
from polyfuse.ir.cpu_core import L1_WAY
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, evaluate, sizes, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.linear import flat
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    Combine,
    Declare,
    Delinearize,
    For,
    If,
    LocalRole,
    Node,
    OwnedLoop,
    Prefetch,
    RegisterTile,
    Store,
    TransposedTile,
    Update,
    VectorLoad,
    VectorStore,
    begin_of,
    end_of,
)
from polyfuse.ir.ops import OPS, Cost
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Const, Expr, Index, IndexValue, Read, Select
from polyfuse.learn.nodes import LONG, OPERATIONS, SIZES, NodeGraph

_STRIDES = SIZES[6:9]
_SCOPES = {
    Scope.ARGUMENT: "argument",
    Scope.GLOBAL: "global",
    Scope.LOCAL: "local",
    Scope.SHARED: "local",
    Scope.REGISTER: "register",
}
LINE = 64
THREADS = ("tx", "ty")


@dataclass(frozen=True, slots=True)
class _Level:
    """A loop around: how often it runs in one iteration of those outside, and its body in all."""

    trips: float
    times: float


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the loops something stands; `node` is the loop around, `lanes` are those of its vectors."""

    levels: tuple[_Level, ...] = ()
    node: int = -1
    known: Values = field(default_factory=dict)
    vector: bool = False
    worker: int = 0
    base: float = 1.0

    @property
    def times(self) -> float:
        return self.at(len(self.levels))

    def at(self, depth: int) -> float:
        """How often what depends on so many of the loops is computed."""
        return self.levels[depth - 1].times if depth else self.base


@dataclass(frozen=True, slots=True)
class _Value:
    """A value: the nodes that made it, how many of the loops around it depends on, and its number, by which
    equal ones are known."""

    nodes: tuple[int, ...]
    depth: int
    number: int


class LoopGraph(NodeGraph):
    """Collects the nodes of the functions of one kernel, or of several that run side by side."""

    def add(
        self, kernel: Kernel, functions: Sequence[Function], since: Mapping[str, float], series: float = 1.0
    ) -> None:
        """The functions of a lowered kernel; `since`: bytes that others touched since a tensor was."""
        _Walk(self, kernel, since).functions(functions, series)

    def add_device(
        self, kernel: Kernel, loops: Sequence[For], body: Block, since: Mapping[str, float]
    ) -> None:
        """A function of a GPU: what each thread does in an iteration of the loops over blocks."""
        _Walk(self, kernel, since).device(loops, body)


@dataclass(slots=True)
class _Walk:
    """Goes through the functions of a kernel."""

    graph: LoopGraph
    kernel: Kernel
    since: Mapping[str, float]
    buffers: dict[str, Buffer] = field(init=False)
    lengths: dict[str, float] = field(init=False)
    tensors: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, tuple[DType, int]] = field(default_factory=dict)
    values: dict[str, _Value] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)
    reach: dict[str, frozenset[int]] = field(default_factory=dict)
    numbers: dict[object, int] = field(default_factory=dict)
    alike: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buffers = {b.tensor: b for b in self.kernel.buffers}
        self.lengths = {}
        for s in self.kernel.graph.statements:
            for name, extent in extents_of(s).items():
                self.lengths[name] = max(self.lengths.get(name, 0.0), extent.length)

    # --- functions and loops ------------------------------------------------------------------------------

    def functions(self, functions: Sequence[Function], series: float) -> None:
        for f in functions:
            place = _Place(base=series * (trips(f.time, {}) if f.time else 1))
            known = {f.time.var: trips(f.time, {}) // 2} if f.time else {}
            before = tuple(n for n in f.block if n not in f.worker)
            self.block(before, replace(place, known=known))
            self._share(f, replace(place, known=known))

    def _share(self, f: Function, place: _Place) -> None:
        """The loops over a worker's iterations: one over many at a time first, the rest after it."""
        loops = [*f.loops]
        known = dict(place.known)
        if f.run is not None and loops:  # the body is for all iterations of the last loop
            last = loops.pop()
            known |= {begin_of(last): _value(last.lower, known), end_of(last): _value(last.upper, known)}
        counts: list[float] = []
        for x in loops:
            counts.append(self._trips(x, known))
            known = {**middle(x, known)}
        whole = left = prod(counts, start=1.0)
        for w in f.worker:
            rounds = left // w.step
            left -= rounds * w.step
            if not rounds and w is not f.worker[0]:
                continue  # as many iterations as there are go together
            node = self._loop_node(w, rounds, replace(place, known=known))
            share = rounds / whole if whole else 0.0
            levels, times = [], place.base * share
            for k, (x, n) in enumerate(zip(loops, counts, strict=True)):
                times *= n
                levels.append(_Level(n, times))
                self._enter(x, k + 1)
            inner = _Place(tuple(levels), node, known, worker=len(levels), base=place.base)
            before = dict(self.values)
            self.block(w.body, inner)
            self.values = before

    def device(self, loops: Sequence[For], body: Block) -> None:
        """Loops over blocks, then over the threads of one, whose places are `tx` and `ty`."""
        rows, threads = self.kernel.threads[1], self.kernel.threads[0]
        ends = ((THREADS[1], rows, Coordinate.ROW), (THREADS[0], threads, Coordinate.THREAD))
        own = [For(n, IConst(0), IConst(end), 1, (), where) for n, end, where in ends]
        place = _Place()
        for x in (*loops, *own):
            count = self._trips(x, place.known)
            node = self._loop_node(x, count, place)
            levels = (*place.levels, _Level(count, place.times * count))
            place = _Place(levels, node, middle(x, place.known), worker=len(loops))
            self._enter(x, len(levels))
        self.block(body, place)

    def block(self, nodes: Block, place: _Place) -> None:
        for n in nodes:
            self._one(n, place)

    def _one(self, n: Node, place: _Place) -> None:
        match n:
            case For():
                self._loop(n, place)
            case OwnedLoop():
                self._value(n.key, place)
                self._loop(n.loop, place)
            case If():
                self._branch(n, place)
            case Declare():
                self._declared(n, place)
            case Store():
                self._stored(n, "store", place)
            case Update():
                self._stored(n, f"update.{n.op}", place)
            case VectorLoad() | VectorStore():
                self._vector(n, place)
            case Barrier():
                self._inside("barrier", (n.scope,), place, place.times, {"depth": len(place.levels)})
                self.graph.count(f"{n.scope.value} barriers", 1.0)
            case Combine():
                self._combined(n, place)
            case Prefetch():
                self._access("prefetch", n.buffer, n.indices, self._dtype(n.buffer), place)
            case RegisterTile():
                self._tile(n, place)
            case TransposedTile():
                self._transposed(n, place)
            case Delinearize():
                for k, x in enumerate(n.loops):
                    self._enter(x, min(k + 1, max(place.worker, 1), len(place.levels)))
                self._inside("places", (), place, place.times, {})
            case _:
                pass

    def _loop(self, x: For, place: _Place) -> None:
        count = self._trips(x, place.known)
        node = self._loop_node(x, count, place)
        levels = (*place.levels, _Level(count, place.times * count))
        before = self.where.get(x.var, 0), self.reach.get(x.var, frozenset())
        self._enter(x, len(levels))
        vector = x.coordinate is Coordinate.VECTOR and not any(isinstance(n, For) for n in x.body)
        inner = replace(place, levels=levels, node=node, known=middle(x, place.known), vector=vector)
        self.block(x.body, inner)
        if before[0]:
            self.where[x.var], self.reach[x.var] = before

    def _enter(self, x: For, depth: int) -> None:
        """A loop's variable is at a depth; what it takes in all depends on the loops of its bounds, too."""
        around = (self.reach.get(v, frozenset()) for v in (*variables(x.lower), *variables(x.upper)))
        self.where[x.var] = depth
        self.reach[x.var] = frozenset({depth}).union(*around)

    def _loop_node(self, x: For, count: float, place: _Place) -> int:
        features = {
            "trip": count,
            "step": x.step,
            "accumulators": len(x.lanes),
            "accumulator bytes": x.lane_bytes,
            "depth": len(place.levels),
            "in lanes": float(x.coordinate is Coordinate.VECTOR),
            "rest": self._rest(count) if x.coordinate is Coordinate.VECTOR else 0.0,
            "written out": float(x.written or x.window),
            "joint": float(x.joint),
            "of data": float(x.of_data),
        }
        opcode = f"loop.{x.coordinate.value}"
        return self._inside(opcode, tuple(features.values()), place, place.times * count, features)

    def _rest(self, count: float) -> float:
        lanes = self.graph.vector_bytes // 4
        whole = ceil(count / lanes) * lanes
        return 1 - count / whole if whole else 0.0

    def _branch(self, n: If, place: _Place) -> None:
        found = self._value(n.cond, place)
        node = self._inside("if", (), place, place.at(found.depth), {"depth": len(place.levels)})
        for producer in found.nodes:
            self.graph.edge(producer, node)
        self.block(n.then, place)
        self.block(n.other, place)

    def _trips(self, x: For, known: Values) -> float:
        """Iterations of a loop; where data tells, as many as on average."""
        open_ends = (*variables(x.lower), *variables(x.upper))
        if all(v in known for v in open_ends):
            return trips(x, known)
        return max(1.0, self.lengths.get(x.var, 1.0) / x.step)

    # --- statements ---------------------------------------------------------------------------------------

    def _declared(self, n: Declare, place: _Place) -> None:
        if n.count:
            self.arrays[n.name] = n.dtype, n.count
            features = {"tensor bytes": n.count * n.dtype.bytes, "item bytes": n.dtype.bytes, "register": 1.0}
            self.tensors[n.name] = self._inside("array", (n.dtype, n.count), place, place.times, features)
        if n.value is None:
            return
        found = self._value(n.value, place)
        self.values[n.name] = found
        if n.role is LocalRole.INDEX:
            self.where[n.name] = found.depth

    def _stored(self, n: Store | Update, opcode: str, place: _Place) -> None:
        found = self._value(n.value, place)
        if n.buffer in self.arrays or (n.indices and n.buffer in self.buffers):
            node = self._access(opcode, n.buffer, n.indices, n.value.dtype, place)
        else:
            kind = opcode if isinstance(n, Update) else "set"
            features = self._of_value(n.value.dtype, place, len(place.levels))
            node = self._inside(kind, (n.value.dtype, len(place.levels)), place, place.times, features)
            old = self.values.get(n.buffer)
            made = (node,) if old is None else tuple(dict.fromkeys((*old.nodes, node)))
            self.values[n.buffer] = _Value(made[-4:], len(place.levels), self._fresh())
        self.graph.count(kind_of_update(n), place.times)
        for producer in found.nodes:
            self.graph.edge(producer, node)

    def _tile(self, n: RegisterTile, place: _Place) -> None:
        inner, before = place, (dict(self.where), dict(self.reach))
        for own, start in ((n.row, n.start[0][1]), (n.lane, n.start[1][1])):
            self.where[own] = self._depth(variables(start), place)
            self.reach[own] = frozenset().union(*(self.reach.get(v, ()) for v in variables(start)))
        for x in n.loops:
            count = self._trips(x, inner.known)
            levels = (*inner.levels, _Level(count, inner.times * count))
            inner = replace(inner, levels=levels, known=middle(x, inner.known), vector=False)
            self._enter(x, len(levels))
        steps = inner.times / place.times if place.times else 0.0
        features = {"rows": n.rows, "columns": n.lanes, "trip": steps, **self._of_type(n.dtype)}
        features["depth"] = len(place.levels)
        node = self._inside("tile", (*features.values(), n.term), place, inner.times, features)
        self.graph.count("products", inner.times * n.rows * n.lanes)
        for side in (n.left, n.right):
            for producer in self._value(side, inner).nodes:
                self.graph.edge(producer, node)
        self.where, self.reach = before
        self.arrays[n.name] = n.dtype, n.rows * n.lanes
        self.tensors[n.name] = node

    def _transposed(self, n: TransposedTile, place: _Place) -> None:
        features = {"rows": n.rows, "columns": n.lanes, "depth": len(place.levels), **self._of_type(n.dtype)}
        key = n.rows, n.lanes, n.dtype, n.back
        node = self._inside("transpose", key, place, place.times, features)
        self.graph.edge(self._access("load", n.buffer, n.indices, n.dtype, place), node)
        self.graph.count("transposed", place.times * n.rows * n.lanes)
        if n.to is not None:
            self.graph.edge(node, self._access("store", n.to[0], n.to[1], n.dtype, place))
        else:
            self.arrays[n.name] = n.dtype, n.rows * n.lanes
            self.tensors[n.name] = node

    def _vector(self, n: VectorLoad | VectorStore, place: _Place) -> None:
        """A small array of a thread from memory, or back, at once."""
        opcode = "load" if isinstance(n, VectorLoad) else "store"
        dtype = n.dtype if isinstance(n, VectorLoad) else self._dtype(n.buffer)
        node = self._access(opcode, n.buffer, n.indices, dtype, place)
        self.graph.put(node, "columns", n.count)
        if isinstance(n, VectorLoad):
            self.arrays[n.name], self.tensors[n.name] = (n.dtype, n.count), node
        elif n.name in self.tensors:
            self.graph.edge(self.tensors[n.name], node)

    def _combined(self, n: Combine, place: _Place) -> None:
        features = {"columns": n.width, "depth": len(place.levels), **self._of_type(n.dtype)}
        key = n.width, n.dtype, n.rows
        node = self._inside("combine", key, place, place.times, features)
        for producer in self.values[n.name].nodes if n.name in self.values else ():
            self.graph.edge(producer, node)
        self.values[n.name] = _Value((node,), len(place.levels), self._fresh())

    # --- values -------------------------------------------------------------------------------------------

    def _value(self, e: Expr, place: _Place) -> _Value:
        """A value; equal ones of one loop are computed once."""
        match e:
            case Const(value):
                return _Value((), 0, self._number(("const", value)))
            case IndexValue(index):
                depth = self._depth(variables(index), place)
                return self._made("index", (index,), (), depth, e.dtype, place)
            case Read(name, indices):
                return self._read(e, name, indices, place)
            case Apply(op, args):
                found = [self._value(x, place) for x in args]
                return self._computed(_opcode(op), e, found, place, LONG.get(_cost(op), "plain"))
            case Select():
                found = [self._value(x, place) for x in (e.cond, e.then, e.other)]
                return self._computed("select", e, found, place, "plain")
            case Cast(arg):
                inner = self._value(arg, place)
                if arg.dtype == e.dtype or isinstance(arg, Const):
                    return inner
                return self._computed("cast", e, [inner], place, "casts", arg.dtype.bytes)

    def _computed(
        self, opcode: str, e: Expr, found: Sequence[_Value], place: _Place, kind: str, operand: int = 0
    ) -> _Value:
        depth = max((x.depth for x in found), default=0)
        key = opcode, e.dtype, *(x.number for x in found)
        new = (key, place.node) not in self.numbers
        made = self._made(opcode, key, found, depth, e.dtype, place, weight_of(e), operand)
        if new:
            self.graph.count(kind, place.at(depth))
        return made

    def _made(
        self, opcode: str, key: tuple[object, ...], found: Sequence[_Value], depth: int, dtype: DType,
        place: _Place, weight: float = 0.0, operand: int = 0,
    ) -> _Value:  # fmt: skip
        """A value of a node; the same key in one loop is the same value."""
        known = self.numbers.get((key, place.node))
        features = {**self._of_value(dtype, place, depth), "weight": weight / 10, "operand bytes": operand}
        alike = (dtype, depth, operand, weight)
        if known is None:
            node = self._inside(opcode, alike, place, place.at(depth), features)
            for x in found:
                for producer in x.nodes:
                    self.graph.edge(producer, node)
        else:
            node = self.graph.known(opcode, (place.node, alike))
        return _Value((node,), depth, self._number((key, place.node)))

    def _read(self, e: Read, name: str, indices: tuple[Index, ...], place: _Place) -> _Value:
        if name in self.values and not indices:
            found = self.values[name]
            return replace(found, depth=min(found.depth, len(place.levels)))
        if name not in self.buffers and name not in self.arrays:
            return _Value((), 0, self._number(("name", self._fresh())))
        node, depth = self._accessed("load", name, indices, e.dtype, place)
        return _Value((node,), depth, self._number(("load", name, indices, place.node)))

    # --- accesses -----------------------------------------------------------------------------------------

    def _dtype(self, name: str) -> DType:
        return self.buffers[name].dtype if name in self.buffers else self.arrays[name][0]

    def _access(self, opcode: str, name: str, indices: Sequence[Index], dtype: DType, place: _Place) -> int:
        return self._accessed(opcode, name, tuple(indices), dtype, place)[0]

    def _accessed(
        self, opcode: str, name: str, indices: tuple[Index, ...], dtype: DType, place: _Place
    ) -> tuple[int, int]:
        """The node of an access, and of how many of the loops it depends; one load of a place in a loop."""
        plain = [i for i in indices if not isinstance(i, EXPR_TYPES)]
        data = [self._value(i, place) for i in indices if isinstance(i, EXPR_TYPES)]
        steps, parts = self._steps(name, plain, len(plain) == len(indices), place)
        used = self._used(plain, place)
        own = self._depth([v for i in plain for v in variables(i)], place)
        depth = max(own, *(x.depth for x in data), 0) if opcode == "load" else len(place.levels)
        tensor = self._tensor(name)
        strides = tuple(steps.get(len(place.levels) - k, 0) for k in range(len(_STRIDES)))
        alike = (tensor, dtype, strides, bool(data), parts, depth)
        features = self._of_access(name, dtype, strides, used, bool(data), parts, depth, place)
        seen = ("access", opcode, name, indices, place.node)
        new = opcode != "load" or seen not in self.numbers
        self._number(seen)
        if new:
            node = self._inside(opcode, alike, place, place.at(depth), features)
            self._count_access(opcode, strides, bool(data), place, depth)
        else:
            node = self.graph.known(opcode, (place.node, alike))
        for x in data:
            for producer in x.nodes:
                self.graph.edge(producer, node)
        self.graph.edge(*((tensor, node) if opcode in ("load", "prefetch") else (node, tensor)))
        return node, depth

    def _steps(
        self, name: str, plain: Sequence[IndexExpr], known: bool, place: _Place
    ) -> tuple[dict[int, int], bool]:
        """Bytes from one iteration of a loop to the next, by the loop's depth; does an index go over to
        other parts along the innermost one?"""
        buffer, item = self.buffers.get(name), self._dtype(name).bytes
        found: dict[int, int] = {}
        extents = buffer.extents if buffer is not None else ()
        if known and plain and len(extents) == len(plain) and not any(sizes(x) for x in extents):
            at = flat(tuple(plain), extents)
        elif plain and (buffer is None or not known):
            at = flat((plain[-1],), (IConst(1),))
        else:
            return found, False
        for atom, factor in at.terms:
            if isinstance(atom, IVar) and (depth := self.where.get(atom.name, 0)):
                found[depth] = found.get(depth, 0) + abs(factor) * item
        hidden = any(self.where.get(v, 0) == len(place.levels) for v in at.hidden)
        return found, hidden and bool(place.levels)

    def _used(self, plain: Sequence[IndexExpr], place: _Place) -> list[int]:
        """The depths of loops on which indices depend."""
        found = {d for i in plain for v in variables(i) for d in self.reach.get(v, ())}
        return sorted(d for d in found if 0 < d <= len(place.levels))

    def _of_access(
        self, name: str, dtype: DType, strides: Sequence[int], used: Sequence[int], data: bool, parts: bool,
        depth: int, place: _Place,
    ) -> dict[str, float]:  # fmt: skip
        item, whole = self._dtype(name).bytes, self._bytes(name)
        touched = item * prod((place.levels[d - 1].trips for d in used), start=1.0)
        row = item * prod((place.levels[d - 1].trips for d in used if d > place.worker), start=1.0)
        if data:
            touched = item * place.at(depth)
        return {
            **self._of_value(dtype, place, depth),
            **dict(zip(_STRIDES, map(float, strides), strict=True)),
            **self._of_memory(name),
            "item bytes": item,
            "touched bytes": min(whole, touched),
            "row bytes": min(whole, row),
            "by data": float(data),
            "by parts": float(parts),
            "same sets": float(any(x and x % L1_WAY == 0 for x in strides[:2])),
        }

    def _of_memory(self, name: str) -> dict[str, float]:
        b = self.buffers.get(name)
        if b is None:
            return {"register": 1.0, "tensor bytes": self._bytes(name)}
        row = _value(b.extents[-1], {}) * b.dtype.bytes if b.extents else 0
        return {
            _SCOPES[b.scope]: 1.0,
            "tensor bytes": self._bytes(name),
            "since bytes": self.since.get(name, 0.0),
            "streamed": float(b.past),
            "prefetched": float(b.soon),
            "rows ahead": float(b.ahead),
            "at lines": float(row > 0 and row % LINE == 0),
        }

    def _bytes(self, name: str) -> float:
        if name in self.arrays:
            dtype, count = self.arrays[name]
            return dtype.bytes * count
        b = self.buffers[name]
        return b.dtype.bytes * max(1, _value(b.elements, {}))

    def _tensor(self, name: str) -> int:
        """The node of a tensor."""
        if name not in self.tensors:
            dtype = self._dtype(name)
            features = {**self._of_memory(name), **self._of_type(dtype)}
            alike = tuple(features.items())  # that of another kernel of a pack is one with it
            key = alike, sum(x == alike for x in self.alike)
            self.alike.append(alike)
            self.tensors[name] = self.graph.node("tensor", key, 1.0, features)
        return self.tensors[name]

    def _count_access(
        self, opcode: str, strides: Sequence[int], data: bool, place: _Place, depth: int
    ) -> None:
        kind = "loads" if opcode == "load" else "prefetches" if opcode == "prefetch" else "stores"
        times = place.at(depth)
        self.graph.count(kind, times)
        if place.vector and depth == len(place.levels):
            self.graph.count(f"{kind} by data", times * data)
            self.graph.count(f"{kind} across memory", times * (strides[0] > LINE and not data))

    # --- parts --------------------------------------------------------------------------------------------

    def _inside(
        self, opcode: str, key: object, place: _Place, times: float, features: Mapping[str, float]
    ) -> int:
        """A node of the loop around."""
        node = self.graph.node(opcode, (place.node, key), times, features)
        self.graph.edge(place.node, node)
        return node

    def _of_type(self, dtype: DType) -> dict[str, float]:
        return {"item bytes": dtype.bytes, "float": float(dtype.is_float)}

    def _of_value(self, dtype: DType, place: _Place, depth: int) -> dict[str, float]:
        lanes = 0.0
        if place.vector and depth == len(place.levels):
            lanes = min(place.levels[-1].trips, self.graph.vector_bytes / max(1, dtype.bytes))
        trip = place.levels[depth - 1].trips if depth else 1.0
        return {
            **self._of_type(dtype),
            "trip": trip,
            "lanes": lanes,
            "in lanes": float(lanes > 0),
            "depth": depth,
        }

    def _depth(self, names: Sequence[str], place: _Place) -> int:
        return min(len(place.levels), max((self.where.get(v, 0) for v in names), default=0))

    def _number(self, key: object) -> int:
        """The number of a value."""
        return self.numbers.setdefault(key, len(self.numbers))

    def _fresh(self) -> int:
        return self._number(("fresh", len(self.numbers)))


def kind_of_update(n: Store | Update) -> str:
    """What a store counts as among operations."""
    return "plain" if isinstance(n, Update) else "copies"


def _opcode(op: str) -> str:
    return f"op.{op}" if op in OPERATIONS else f"op of {_cost(op).value} work"


def _cost(op: str) -> Cost:
    """The work of an operation, or of a form of one that code generation made."""
    row = OPS.get(op) or OPS.get(op.partition("_")[2])
    return row.cost if row else Cost.PLAIN


def _value(e: IndexExpr, known: Values) -> int:
    """An expression's value; 1 where it needs what is not known."""
    try:
        return evaluate(e, known)
    except (KeyError, ZeroDivisionError):
        return 1
