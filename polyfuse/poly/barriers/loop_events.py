"""What the threads of a GPU kernel do to memory, and where they wait: loop IR as events for isl.

    Access   a read or write of a buffer that is written somewhere, with indices over canonical variables
    Wait     a barrier, or a combination of lanes: all threads concerned come together

Scalars and the buffers of a single thread are left out, and so is what is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, substitute, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope, homes
from polyfuse.ir.linear import Range, linear
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    Combine,
    Declare,
    For,
    If,
    LocalRole,
    Node,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    block_nest,
    vector_rows,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    map_expr,
)
from polyfuse.poly.barriers.loop_regions import STRIDE, Nest, Place, Region, Regions

LANE = "lane"


@dataclass(frozen=True, slots=True)
class Access:
    """`indices` are None where any element may be meant; `count` neighbours are accessed at once.  Indices of
    two accesses of one storage mean the same element where they have the same `layout`."""

    buffer: str
    storage: str
    scope: Scope
    write: bool
    atomic: bool
    indices: tuple[IndexExpr | None, ...]
    count: int
    guards: tuple[str, ...]
    place: Place
    layout: object = None


@dataclass(frozen=True, slots=True)
class Wait:
    node: Barrier | Combine
    place: Place


@dataclass(frozen=True, slots=True)
class Events:
    threads: tuple[int, int]
    blocks: int | None  # None: not known
    sizes: tuple[str, ...]
    ranges: Mapping[str, Range]
    accesses: tuple[Access, ...]
    waits: tuple[Wait, ...]


def events(
    kernel: Kernel, block: Block, blocks: IndexExpr | int, copied: frozenset[str] = frozenset()
) -> Events:
    """The events of one launch of a kernel with `blocks` blocks.

    An output that aliases a parameter is the same storage, unless the parameter is in `copied`; so are
    shared arrays with one place.
    """
    aliases = ((t.name, t.alias) for t in kernel.graph.tensors)
    storage = {name: alias for name, alias in aliases if alias is not None and alias not in copied}
    storage |= {name: home.tensor for name, home in homes(kernel.buffers).items()}
    written = {storage.get(n, n) for n in _written(block)}
    shared = (Scope.SHARED, Scope.GLOBAL, Scope.ARGUMENT)
    buffers = {
        b.tensor: b
        for b in kernel.buffers
        if b.scope in shared and storage.get(b.tensor, b.tensor) in written
    }
    collector = _Collector(Regions(kernel.threads, as_index(blocks)), buffers, storage)
    collector.block(block, {"tx": IVar("tx"), "ty": IVar("ty")}, (), (), None)
    count = as_index(blocks)
    return Events(
        kernel.threads,
        count.value if isinstance(count, IConst) else None,
        kernel.graph.sizes,
        collector.regions.ranges,
        tuple(collector.accesses),
        tuple(collector.waits),
    )


def _written(block: Block) -> set[str]:
    found: set[str] = set()
    for node in block:
        match node:
            case For(body=body):
                found |= _written(body)
            case If(_, then, other):
                found |= _written(then) | _written(other)
            case Store(buffer) | Update(buffer) | VectorStore(buffer):
                found.add(buffer)
            case _:
                pass
    return found


@dataclass(slots=True)
class _Collector:
    regions: Regions
    buffers: Mapping[str, Buffer]
    storage: Mapping[str, str]
    accesses: list[Access] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def block(
        self,
        block: Block,
        env: dict[str, IndexExpr],
        regions: tuple[Region, ...],
        outer: tuple[int, ...],
        nest: Nest | None,
    ) -> None:
        for k, node in enumerate(block):
            place = Place(regions, (*outer, STRIDE * k + 2), nest)
            match node:
                case For(coordinate=Coordinate.BLK) if nest is None:
                    self.nest(node, env, place)
                case For():
                    region, value = self.regions.loop(node, env)
                    inner = {**env, node.var: value}
                    self.block(node.body, inner, (*regions, region), place.positions, nest)
                case If(cond, then, other):
                    self.branches(cond, then, other, env, place)
                case Barrier() | Combine():
                    self.waits.append(Wait(node, place))
                case Declare(name, role=LocalRole.INDEX):
                    self.regions.numbers.add(name)
                    self.touch(node, env, place)
                case _:
                    self.touch(node, env, place)

    def branches(
        self, cond: Expr, then: Block, other: Block, env: dict[str, IndexExpr], place: Place
    ) -> None:
        self.reads(cond, env, place, ())
        test = canonical(cond, env)
        for k, body in enumerate((then, other)):
            if body:
                at = (*place.positions[:-1], place.positions[-1] + k)
                region = self.regions.branch(test, k == 0)
                self.block(body, env, (*place.regions, region), at, place.nest)

    def nest(self, node: For, env: dict[str, IndexExpr], place: Place) -> None:
        """Loops over blocks that are the launch's coordinates, and what is in them."""
        regions, positions, extents = list(place.regions), place.positions, []
        loops, body = block_nest(node)
        for node in loops:
            lower, upper = substitute(node.lower, env), substitute(node.upper, env)
            region, value = self.regions.loop(node, env)
            region = replace(region, nest=True)
            self.regions.nests.add(region.name)
            env = {**env, node.var: value}
            regions.append(region)
            length = linear(binary("-", upper, lower)).expr()
            extents.append(binary("//", length + (node.step - 1), node.step))
        positions = (*positions, *(2 for _ in loops[1:]))
        nest = self.regions.described(tuple(regions[len(place.regions) :]), tuple(extents))
        self.block(body, env, tuple(regions), positions, nest)

    # --- accesses -----------------------------------------------------------------------------------------

    def touch(self, node: Node, env: Mapping[str, IndexExpr], place: Place) -> None:
        match node:
            case Declare(_, _, value):
                if value is not None:
                    self.reads(value, env, place, ())
            case Store(buffer, indices, value):
                self.reads(value, env, place, ())
                self.access(buffer, indices, env, place, write=True)
            case Update(buffer, indices, _, value, atomic):
                self.reads(value, env, place, ())
                self.access(buffer, indices, env, place, write=True, atomic=atomic)
            case VectorLoad(_, _, buffer, indices, count) | VectorStore(buffer, indices, _, count):
                if (b := self.buffers.get(buffer)) is not None:
                    write = isinstance(node, VectorStore)
                    for part, elements in vector_rows(indices, count, b.extents):
                        self.access(buffer, part, env, place, write=write, count=elements)
            case _:
                pass

    def reads(self, e: Expr, env: Mapping[str, IndexExpr], place: Place, guards: tuple[str, ...]) -> None:
        match e:
            case Read(name, indices):
                self.access(name, indices, env, place, guards=guards)
            case Select(cond, then, other):
                self.reads(cond, env, place, guards)
                test = canonical(cond, env)
                for part, positive in ((then, True), (other, False)):
                    text = self.regions.condition(test, positive)
                    self.reads(part, env, place, guards if text is None else (*guards, text))
            case Apply(_, args):
                for a in args:
                    self.reads(a, env, place, guards)
            case Cast(arg):
                self.reads(arg, env, place, guards)
            case Const() | IndexValue():
                pass

    def access(
        self,
        name: str,
        indices: tuple[Index, ...],
        env: Mapping[str, IndexExpr],
        place: Place,
        *,
        write: bool = False,
        atomic: bool = False,
        count: int = 1,
        guards: tuple[str, ...] = (),
    ) -> None:
        for i in indices:
            if isinstance(i, EXPR_TYPES):
                self.reads(i, env, place, guards)
        buffer = self.buffers.get(name)
        if buffer is None:
            return
        where = tuple(None if isinstance(i, EXPR_TYPES) else self.index(i, env) for i in indices)
        storage = self.storage.get(name, name)
        layout = (buffer.dtype, buffer.extents) if buffer.scope is Scope.SHARED else None
        found = Access(name, storage, buffer.scope, write, atomic, where, count, guards, place, layout)
        self.accesses.append(found)

    def index(self, i: IndexExpr, env: Mapping[str, IndexExpr]) -> IndexExpr | None:
        """Where an access is, or None where that depends on data."""
        found = substitute(i, env)
        return None if self.regions.numbers & set(variables(found)) else found


def canonical(cond: Expr, env: Mapping[str, IndexExpr]) -> Expr:
    return map_expr(cond, lambda e: e, lambda i: substitute(i, env))
