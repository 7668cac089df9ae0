"""Loops that double windows in arrays of a worker: each joins elements of what the loops before have made.

    for j in 0..446: of2[j] = max(terms[j], terms[j + 1])
    for j in 0..444: of4[j] = max(of2[j], of2[j + 2])
    for j in 0..440: y[j] = max(of4[j], of4[j + 4])             windows of 8

Where a window ends, all that it is made of has been seen: a window in an array ends `lead` places after where
it begins.  So at each place a link joins what is there with what was there `delay` places before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.codegen.math.vector_reduce import DTYPES, SCANS
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import DType
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.linear import linear
from polyfuse.ir.loop_ir import Block, Declare, For, If, Node, Store, map_values, nodes_of, values_of
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Cast, Const, Expr, Read, reads, walk

_REDUCTIONS = {COMBINES[op]: op for op in SCANS}


@dataclass(frozen=True, slots=True)
class Part:
    """Windows of a level (0: the terms, 1: what the first loop makes), so many places before."""

    level: int
    delay: int


@dataclass(frozen=True, slots=True)
class Chain:
    """`loops` follow one another, and `links` are what each joins, from left to right, by the reduction `op`.
    `total` is what the last one makes of this, `lead` places after its first term.

    Before them come `pieces`, if all terms are made there and can be made a vector at a time; most are by the
    loop `most`.
    """

    loops: tuple[For, ...]
    links: tuple[tuple[Part, ...], ...]
    levels: tuple[Read, ...]
    op: str
    total: Expr
    lead: int
    pieces: Block = ()
    most: For | None = None

    @property
    def nodes(self) -> Block:
        return (*self.pieces, *self.loops)

    @property
    def inner(self) -> tuple[str, ...]:
        """Arrays that links make for links."""
        return tuple(x.tensor for x in self.levels[1 : len(self.loops)])

    @property
    def terms(self) -> Read:
        """At the variable of the first loop."""
        return self.levels[0]

    @property
    def totals(self) -> Read:
        """Where totals can be, at the variable of the last loop: in the first array that registers hold."""
        return replace(self.levels[1], indices=_along(self.levels[1], self.loops[-1].var))

    @property
    def dtype(self) -> DType:
        return self.terms.dtype

    def before(self, level: int) -> int:
        """How many places of a level links look back, at most."""
        return max((p.delay for parts in self.links for p in parts if p.level == level), default=0)

    def registers(self, core: Core) -> int:
        """What was before, in vectors of a core."""
        lanes = core.vector_bytes // self.dtype.bytes
        return sum(-(-self.before(k) // lanes) for k in range(len(self.links)))

    @property
    def last(self) -> For:
        """The last loop, with totals in place of what they are made of."""
        loop, total, found = self.loops[-1], self.total, self.totals
        return replace(loop, body=map_values(loop.body, lambda e: found if e == total else e, lambda i: i))


def chains_of(kernel: Kernel, block: Block, core: Core) -> tuple[Chain, ...]:
    """Chains of a function for which a core has registers, each as long as can be; what links make for links
    nothing else reads."""
    found: list[tuple[Block, list[Chain]]] = []
    room = core.registers - FITTED.window_chains_other_registers
    for part in _blocks(block):
        at = 0
        while at < len(part):
            chains = [c for c in _beginning(kernel, part[at:]) if c.registers(core) <= room]
            found += [(part[:at], chains)] if chains else []
            at += len(chains[-1].loops) if chains else 1
    used = _uses(block)
    while True:
        own = sum((_uses(chains[-1].loops) for _, chains in found), Counter[str]())
        wrong = [chains for _, chains in found if any(own[n] != used[n] for n in chains[-1].inner)]
        for chains in wrong:
            chains.pop()
        found = [(before, chains) for before, chains in found if chains]
        if not wrong:
            break
    apart = {n for _, chains in found if own[n := chains[-1].terms.tensor] != used[n]}
    return _with_pieces([(before, chains[-1]) for before, chains in found], apart, block)


def _with_pieces(found: list[tuple[Block, Chain]], apart: set[str], block: Block) -> tuple[Chain, ...]:
    """Chains with what makes their terms right before them, if all terms of such an array are made so and
    nothing `apart` reads them."""
    whole = [_pieced(chain, before) for before, chain in found]
    made = Counter(n.buffer for c in whole for n in nodes_of(c.pieces) if isinstance(n, Store))
    every = Counter(n.buffer for n in nodes_of(block) if isinstance(n, Store))
    alone = [c.terms.tensor not in apart and made[c.terms.tensor] == every[c.terms.tensor] for c in whole]
    return tuple(c if w else chain for c, w, (_, chain) in zip(whole, alone, found, strict=True))


def is_simple(loop: For) -> bool:
    """Does a loop store elements that a vector of the machine makes, in a few operations?"""
    (*before, store) = loop.body
    if before or not isinstance(store, Store) or has_function(store.value):
        return False
    if any(isinstance(i, EXPR_TYPES) for r in reads(store.value) for i in r.indices):
        return False
    return all(isinstance(e, Const | Read | Apply | Cast) and e.dtype in DTYPES for e in walk(store.value))


def _uses(block: Block) -> Counter[str]:
    return Counter(r.tensor for v in values_of(nodes_of(block)) for r in reads(v))


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for n in block:
        if isinstance(n, For):
            yield from _blocks(n.body)
        if isinstance(n, If):
            yield from (*_blocks(n.then), *_blocks(n.other))


def _beginning(kernel: Kernel, block: Block) -> Iterator[Chain]:
    """Chains that a block begins with, by length."""
    growing = _Growing(kernel)
    for n in block:
        made = growing.add(n)
        if made is None:
            return
        if len(made.loops) > 1:
            yield made


def _pieced(chain: Chain, before: Block) -> Chain:
    """The chain with what makes its terms right before it, if a vector can."""
    name, count = chain.terms.tensor, 0
    while count < len(before) and _is_piece(before[-1 - count], name):
        count += 1
    pieces = before[len(before) - count :]
    loops = [n for n in nodes_of(pieces) if isinstance(n, For)]
    most = [n for n in pieces if isinstance(n, For) and any(map(reads, values_of(n.body)))]
    if len(most) != 1 or not all(map(is_simple, loops)):
        return chain
    return replace(chain, pieces=pieces, most=most[0])


def _is_piece(n: Node, terms: str) -> bool:
    """Is it a loop along the terms, which stores nothing else, or one under a condition?"""
    match n:
        case If(_, then, ()):
            return all(_is_piece(x, terms) for x in then)
        case For(var, _, _, 1, (Store(name, (*_, last), _),)):
            return name == terms and last == IVar(var)
        case _:
            return False


@dataclass(slots=True)
class _Growing:
    """The loops of a chain so far; `leads` are how far windows of each level reach."""

    kernel: Kernel
    op: str = ""
    loops: tuple[For, ...] = ()
    links: tuple[tuple[Part, ...], ...] = ()
    levels: tuple[Read, ...] = ()
    leads: tuple[int, ...] = ()

    def add(self, n: Node) -> Chain | None:
        """The chain with one more loop, if it is a link."""
        if len(self.levels) < len(self.leads) or not isinstance(n, For) or not _is_plain(n):
            return None
        total = self._total(n)
        if total is None:
            return None
        names = [x.tensor for x in self.levels]
        found = [(names.index(r.tensor), _distance(r, n.var) or 0) for r in _joined(total, self.op)]
        lead = max(self.leads[k] + at for k, at in found)
        self.links += (tuple(Part(k, lead - self.leads[k] - at) for k, at in found),)
        self.loops += (n,)
        self.leads += (lead,)
        self._take(n, total)
        return Chain(self.loops, self.links, self.levels, _REDUCTIONS[self.op], total, lead)

    def _take(self, loop: For, total: Expr) -> None:
        """What a loop makes is a level, if it is an array of its own."""
        (*_, store) = loop.body
        assert isinstance(store, Store)
        place = Read(store.buffer, store.indices, total.dtype)
        if store.value == total and self._is_own(place, loop.var) and _distance(place, loop.var) == 0:
            self.levels += (place,)

    def _total(self, loop: For) -> Apply | None:
        """What a loop makes of the levels; nothing else in it reads them."""
        for value in values_of(loop.body):
            for e in walk(value):
                if isinstance(e, Apply) and self._is_link(e, loop.var):
                    self._begin(e, loop.var)
                    names = {x.tensor for x in self.levels}
                    others = sum(n for name, n in _uses(loop.body).items() if name in names)
                    return e if others == len(list(_joined(e, e.op))) else None
        return None

    def _begin(self, e: Apply, var: str) -> None:
        if not self.levels:
            first = next(_joined(e, e.op))
            self.op, self.leads = e.op, (0,)
            self.levels = (replace(first, indices=_along(first, var)),)

    def _is_link(self, e: Apply, var: str) -> bool:
        if e.op not in _REDUCTIONS or e.op != (self.op or e.op) or e.dtype not in DTYPES:
            return False
        parts = list(_joined(e, e.op))
        names = {x.tensor for x in self.levels} or {parts[0].tensor}
        return len(parts) > 1 and all(
            r.tensor in names and r.dtype == e.dtype and self._is_own(r, var) for r in parts
        )

    def _is_own(self, place: Read, var: str) -> bool:
        """Is it in an array of a worker, along the loop?"""
        buffer = self.kernel.find(place.tensor)
        if buffer is None or buffer.scope is not Scope.LOCAL or not place.indices:
            return False
        return all(i == IConst(0) for i in place.indices[:-1]) and _distance(place, var) is not None


def _is_plain(loop: For) -> bool:
    """Is it a vector loop from 0 on that does one thing, and no pass has marked?"""
    plain = For(loop.var, IConst(0), loop.upper, 1, loop.body, Coordinate.VECTOR)
    *before, last = loop.body
    return loop == plain and isinstance(last, Store) and all(isinstance(n, Declare) for n in before)


def _joined(e: Expr, op: str) -> Iterator[Read]:
    """What is joined from left to right; something that is no read is a read of nothing."""
    if isinstance(e, Apply) and e.op == op and len(e.args) == 2:
        yield from _joined(e.args[0], op)
        e = e.args[1]
    yield e if isinstance(e, Read) else Read("", (), e.dtype)


def _distance(place: Read, var: str) -> int | None:
    """How many elements after that of the loop's variable it is."""
    last = place.indices[-1]
    if isinstance(last, EXPR_TYPES):
        return None
    rest = linear(last - IVar(var))
    return None if rest.terms or rest.constant < 0 else rest.constant


def _along(place: Read, var: str) -> tuple[IConst | IVar, ...]:
    return (*(IConst(0) for _ in place.indices[1:]), IVar(var))
