"""Where the temporaries of a GPU kernel live.

register   all that touch an element are one thread (or each thread has a copy of its own)
local      the same with a few elements: a small array of the thread, or a thread's part of a row
shared     the threads of a block touch it, and no others
global     the rest, and what does not fit

Arrays that are never needed at once share a place (`places`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import prod

from polyfuse.decisions import Decision, counted, format_bytes
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, sizes, variables
from polyfuse.ir.kernel import Buffer, Kernel, Scope, aligned, homes, nbytes, words
from polyfuse.ir.linear import linear
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, path, statements
from polyfuse.ir.schedule_tree import Sequence as Steps
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, TensorGraph, statement_reads
from polyfuse.layers.mapping.gpu_row_shape import WARP
from polyfuse.layers.mapping.nests import Nest, trip_of
from polyfuse.poly.model.domains import PolyModel
from polyfuse.poly.model.storage import Window, common_loops, window, window_of

# --- places by lifetimes ----------------------------------------------------------------------------------

# Memory of a GPU kernel's arrays, planned by lifetimes: arrays that are never needed at once share a place.
#
#     B(t)[B(h)(a, m: max a); B(h)(b, s: sum b of a); B(h)(c of b); B(h)(y of c)]     a: 0-1, b: 1-2, c: 2-3
#     places: a and c, b
#
# The steps of a kernel are what its block loops enclose, loop nest by loop nest.  An array is alive from the
# first step that touches it to the last; a loop carries all that it touches around, so it is one step.
# Barriers between two arrays of one place are the matter of `poly.barriers.insertion`, which knows of places.
#
# Arrays that a thread keeps its part of a row in, in registers, are touched at one element by an iteration:
# the statement that reads one for the last time may write the other.
#
# Source: AStitch (ASPLOS'22) section 4.4; largest first, as Pisarchyk and Lee, "Efficient memory management
# for deep neural net inference" (2020).


_BLOCKS = (Coordinate.BLK, Coordinate.ROW)
_SPREAD = (*_BLOCKS, Coordinate.ROUND, Coordinate.THREAD, Coordinate.VECTOR)


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that an array needs from step `first` to step `last`; those of one `kind` can share a place."""

    name: str
    nbytes: int
    kind: object
    first: int
    last: int

    def meets(self, other: Need) -> bool:
        """Are both alive in some step?"""
        return self.first <= other.last and other.first <= self.last


def steps(tree: Tree) -> dict[str, int]:
    """Statement -> the step of a block that it is in."""
    found: dict[str, int] = {}
    for number, names in enumerate(_steps(tree)):
        found |= dict.fromkeys(names, number)
    return found


def _steps(tree: Tree) -> list[tuple[str, ...]]:
    match tree:
        case Leaf(name):
            return [(name,)]
        case Steps(children):
            return [s for c in children for s in _steps(c)]
        case Band(members, child) if all(m.coordinate in _BLOCKS for m in members):
            return _steps(child)
        case Band():
            return [statements(tree)]


def need(name: str, count: int, element: int, users: Iterable[str], at: Mapping[str, int]) -> Need:
    """What an array of `count` elements needs that these statements touch."""
    touched = [at[u] for u in users]
    return Need(name, aligned(count * element), element, min(touched), max(touched))


def kept_row(
    name: str, words: int, kind: object, tree: Tree, written: Iterable[str], users: Iterable[str]
) -> Need:
    """What a thread's part of a row takes, in bytes, statement by statement: reads come before writes.

    Where a loop runs in each thread there may be several accesses in an iteration of the row's loop: such
    an array is needed all the time.
    """
    whole = statements(tree)
    order = {n: k for k, n in enumerate(whole)}
    loops = (m for n in users for m in path(tree, n) if isinstance(m, Member))
    if any(m.coordinate not in _SPREAD for m in loops):
        return Need(name, 4 * words, kind, 0, 2 * len(whole))
    first = min(2 * order[n] + 1 for n in written)
    return Need(name, 4 * words, kind, first, max(first, *(2 * order[n] for n in users)))


def places(needs: Sequence[Need]) -> list[list[Need]]:
    """The arrays of each place, the largest first: no two of them are alive at once."""
    found: list[list[Need]] = []
    for one in sorted(needs, key=lambda n: (-n.nbytes, n.first, n.name)):
        fits = (p for p in found if p[0].kind == one.kind and not any(map(one.meets, p)))
        place = next(fits, None)
        if place is None:
            found.append([one])
        else:
            place.append(one)
    return found


def total(needs: Sequence[Need]) -> int:
    """Bytes of all places."""
    return sum(p[0].nbytes for p in places(needs))


def with_places(buffers: tuple[Buffer, ...], needs: Sequence[Need]) -> tuple[Buffer, ...]:
    """Buffers that share a place know its number; those that are alone in theirs have none."""
    numbers = {n.name: k for k, p in enumerate(shared(needs)) for n in p}
    return tuple(replace(b, place=numbers[b.tensor]) if b.tensor in numbers else b for b in buffers)


def shared(needs: Sequence[Need]) -> list[list[Need]]:
    """The places that have several arrays."""
    return [p for p in places(needs) if len(p) > 1]


def overlaid(parts: Sequence[Kernel], buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
    """The buffers of kernels that run one after the other in one launch: the largest place of each is the
    same memory, and so on."""
    numbers: dict[str, int] = {}
    for part in parts:
        inside = homes(part.buffers)
        by_size = sorted(
            {h.tensor: h for h in inside.values()}.values(), key=lambda h: (-nbytes(h), h.tensor)
        )
        rank = {h.tensor: k for k, h in enumerate(by_size)}
        numbers |= {name: rank[home.tensor] for name, home in inside.items()}
    if len({n for p in parts for n in homes(p.buffers)}) < 2:
        return buffers
    return tuple(replace(b, place=numbers[b.tensor]) if b.scope is Scope.SHARED else b for b in buffers)


# Elements of a thread's own array, and rounds over it: more would not stay in registers.
LARGEST_LOCAL = 64
MOST_ROUNDS = 16
# Copies of an access to it when all loops are unrolled. NVRTC 12 (November 2026) unrolls loops of 324 copies
# and leaves those of 648, whose array is then in memory.
MOST_COPIES = 512
# Registers that a block has, and those of a thread that are not for arrays.
REGISTERS, OTHER_REGISTERS = 64 * 1024, 32
_OWN = (Coordinate.BLK, Coordinate.ROW, Coordinate.THREAD)


def array_elements(threads: tuple[int, int]) -> int:
    """Elements of 4 bytes that each thread of a block can keep in registers."""
    return max(8, REGISTERS // (threads[0] * threads[1]) - OTHER_REGISTERS)


def scratch_bytes(graph: TensorGraph, nest: Nest) -> int:
    """Shared memory in which the threads of a block combine their parts of reductions, at most."""
    (x, _), threads = nest.threads, prod(nest.threads)
    total = 0
    for s in graph.statements:
        kinds = (
            {m.coordinate for m in path(nest.tree, s.name) if isinstance(m, Member)} if s.reduction else ()
        )
        values = 0
        if Coordinate.STEP in kinds or (Coordinate.ROUND in kinds and x % WARP):
            values = threads
        elif Coordinate.ROUND in kinds and x > WARP:
            values = threads // WARP
        total += -(-values * max(4, s.expr.dtype.bytes) // 16) * 16
    return total


# --- where arrays live ------------------------------------------------------------------------------------


@dataclass(slots=True)
class GpuStorage:
    """Chooses buffers for one kernel. `tree` has shared loops as one (`sequential`); `free_bytes` is what is
    left of a block's shared memory."""

    graph: TensorGraph
    part: PolyModel
    tree: Tree
    nest: Nest
    free_bytes: int
    decisions: list[Decision]
    halvings: int = 0
    needs: list[Need] = field(default_factory=list)
    kept: list[Need] = field(default_factory=list)
    at: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.free_bytes -= scratch_bytes(self.graph, self.nest)
        self.at = steps(self.tree)

    def buffer(self, name: str) -> Buffer:
        """Storage of a temporary that only this kernel uses."""
        ways = [self._in_thread, self._in_rounds, self._in_block]
        if name in self.nest.shared:
            ways = [self._in_block, self._in_rounds]
        chosen = next(filter(None, (way(name) for way in ways)), None)
        if chosen is not None:
            where = {Scope.REGISTER: "a register", Scope.LOCAL: "an array of the thread"}
            text = f"to {where.get(chosen.scope, 'shared memory')}: {chosen.reason}"
            self.decisions.append(Decision("contract", name, True, text))
            return chosen
        tensor = self.graph.tensor(name)
        reason = "several blocks use it, or too much of it lives at a time"
        self.decisions.append(Decision("contract", name, False, reason))
        return Buffer(name, tensor.dtype, Scope.GLOBAL, tensor.shape, tensor.shape, reason)

    def planned(self, buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        """All buffers of the kernel, those in shared memory with their places."""
        for needs, where in ((self.needs, "of shared memory"), (self.kept, "of registers of a thread")):
            found, apart = total(needs), sum(n.nbytes for n in needs)
            if found < apart:
                text = f"{format_bytes(found)} {where} for {len(needs)} arrays"
                why = f"{text} that are not all needed at once; {format_bytes(apart)} if each had its own"
                self.decisions.append(Decision("share", ", ".join(n.name for n in needs), True, why))
        return with_places(with_places(buffers, self.needs), self.kept)

    # --- scopes -------------------------------------------------------------------------------------------

    def _in_thread(self, name: str) -> Buffer | None:
        """A register, or a small array, where each thread has storage of its own."""
        found = window(self.part, self.tree, name)
        private = all(_private(found, self.tree, n) for n in self._users(name))
        if not private or self._crosses(name):
            return None
        if found.scalar:
            return self._make(name, Scope.REGISTER, found.extents, "one element lives in a thread at a time")
        count = _count(found.extents)
        if count is None or count > LARGEST_LOCAL or self._picked(name, found.extents):
            return None
        if count > 1 and self._copies(name, found.extents) > MOST_COPIES:
            return None
        size = words(self.graph.tensor(name).dtype.bytes, count)
        if count > 1 and not self._keep(Need(name, 4 * size, name, 0, 0)):
            return None
        live = "lives" if count == 1 else "live"
        reason = f"{counted(count, 'element')} {live} in a thread at a time"
        return self._make(name, Scope.LOCAL, found.extents, reason)

    def _in_rounds(self, name: str) -> Buffer | None:
        """A thread's part of a row: all touch an element in one iteration of loops that threads share."""
        users = self._users(name)
        shared = {n: m for n in users if (m := _round(self.tree, n)) is not None}
        if len(shared) < len(users):
            return None
        common = [m for m in common_loops(self.tree, users) if m.coordinate is not Coordinate.ROUND]
        spread = Member("", tuple(sorted((n, m.of(n)) for n, m in shared.items())))
        found = window_of(self.part, name, [*common, spread])
        dim = self._spread_dim(name, spread)
        if found is None or not found.scalar or dim is None or not _covers(common, self.tree, users):
            return None
        step, width = self.nest.threads[0] * self.nest.vector, self.nest.vector
        length = self.graph.tensor(name).shape[dim]
        rounds = -(-evaluate(length, {}) // step) if not sizes(length) else MOST_ROUNDS + 1
        if rounds > MOST_ROUNDS or rounds * width > LARGEST_LOCAL:
            return None
        dtype, count = self.graph.tensor(name).dtype, rounds * width
        written = [s.name for s in self.graph.writers(name)]
        kind = dtype, found.extents, dim, count
        if not self._keep(kept_row(name, words(dtype.bytes, count), kind, self.tree, written, users)):
            return None
        x = IVar("x")
        slot = binary("+", binary("*", binary("//", x, step), width), binary("%", x, width))
        extents = tuple(IConst(rounds * width if k == dim else 1) for k in range(len(found.extents)))
        slots = tuple(slot if k == dim else IConst(0) for k in range(len(found.extents)))
        live = "lives" if rounds * width == 1 else "live"
        reason = f"{counted(rounds * width, 'element')} of a row {live} in a thread"
        return self._make(name, Scope.LOCAL, extents, reason, slots)

    def _in_block(self, name: str) -> Buffer | None:
        """Shared memory, where each block has storage of its own and it fits."""
        users = self._users(name)
        common = common_loops(self.tree, users)
        blocks = [m for m in common if m.coordinate is Coordinate.BLK]
        if not _covers(blocks, self.tree, users, (Coordinate.BLK,)):
            return None
        # Rows that a block takes one after the other have one place, if none hands on to the next.
        in_turn = list(takewhile(lambda m: m.coordinate in (Coordinate.BLK, Coordinate.SEQ), common))
        found = window_of(self.part, name, in_turn) if len(in_turn) > len(blocks) else None
        found = found or window_of(self.part, name, blocks)
        count = None if found is None else _count(found.extents)
        if found is None or count is None:
            return None
        mine = need(name, count, self.graph.tensor(name).dtype.bytes, users, self.at)
        if total([*self.needs, mine]) > self.free_bytes:
            return None
        self.needs.append(mine)
        return self._make(name, Scope.SHARED, found.extents, f"{format_bytes(mine.nbytes)} are of one block")

    def _keep(self, mine: Need) -> bool:
        """Note what each thread keeps in registers, if that does not make it too much."""
        if total([*self.kept, mine]) > 4 * array_elements(self.nest.threads) >> self.halvings:
            return False
        self.kept.append(mine)
        return True

    # --- questions ----------------------------------------------------------------------------------------

    def _users(self, name: str) -> list[str]:
        return [s.name for s in (*self.graph.writers(name), *self.graph.readers(name))]

    def _make(
        self,
        name: str,
        scope: Scope,
        extents: tuple[IndexExpr, ...],
        reason: str,
        slots: tuple[IndexExpr, ...] = (),
    ) -> Buffer:
        tensor = self.graph.tensor(name)
        return Buffer(name, tensor.dtype, scope, extents, tensor.shape, reason, slots)

    def _crosses(self, name: str) -> bool:
        """Does a tensor go from threads that share a loop to others?

        The total of a reduction is in every thread once the threads have combined what they have.
        """
        users = (*self.graph.writers(name), *self.graph.readers(name))
        rows = _common_steps(self.tree, [s.name for s in users])
        inside = {
            s.name: _way(self.tree, s.name, rows)
            for s in users
            if not (s.target == name and s.reduction is not None)
        }
        written = {inside[s.name] for s in self.graph.writers(name) if s.name in inside}
        read = {inside[s.name] for s in self.graph.readers(name) if s.name in inside}
        return written != {None} and bool(written) and (len(written) > 1 or not read <= written)

    def _picked(self, name: str, extents: tuple[IndexExpr, ...]) -> bool:
        """Does data, or a thread's part of a shared loop, choose among the elements of a small array?

        Registers have no addresses: the array would be in memory.
        """
        for statement, indices in self._accesses(name):
            shared = [m for m in path(self.tree, statement) if isinstance(m, Member)]
            shared = [m for m in shared if m.coordinate in (Coordinate.ROUND, Coordinate.STEP)]
            moving = {v for m in shared for v in variables(m.of(statement))}
            for i, extent in zip(indices, extents, strict=True):
                chosen = isinstance(i, EXPR_TYPES) or moving & set(variables(i))
                if extent != IConst(1) and chosen:
                    return True
        return False

    def _copies(self, name: str, extents: tuple[IndexExpr, ...]) -> int:
        """Copies of an access that the compiler makes where it unrolls all loops that choose the element."""
        most = 1
        for statement, indices in self._accesses(name):
            pairs = zip(indices, extents, strict=True)
            plain = [i for i, e in pairs if e != IConst(1) and not isinstance(i, EXPR_TYPES)]
            choosing = {v for i in plain for v in variables(i)}
            loops = [m for m in path(self.tree, statement) if isinstance(m, Member)]
            own = [m for m in loops if m.coordinate in (Coordinate.SEQ, Coordinate.VECTOR)]
            first = next(
                (k for k, m in enumerate(own) if choosing & set(variables(m.of(statement)))), len(own)
            )
            most = max(most, prod(trip_of(self.graph, m) or 1 for m in own[first:]))
        return most

    def _spread_dim(self, name: str, spread: Member) -> int | None:
        """The dim of a tensor along which all accesses follow the shared loop."""
        rank = len(self.graph.tensor(name).shape)
        for k in range(rank):
            if all(_same(i[k], spread.of(n)) for n, i in self._accesses(name)):
                return k
        return None

    def _accesses(self, name: str) -> list[tuple[str, tuple[Index, ...]]]:
        found: list[tuple[str, tuple[Index, ...]]] = []
        for s in self.graph.statements:
            if s.target == name:
                found.append((s.name, s.write))
            found += [(s.name, r.indices) for r in statement_reads(s) if r.tensor == name]
        return found


def _same(i: Index, e: IndexExpr) -> bool:
    return not isinstance(i, EXPR_TYPES) and linear(i) == linear(e)


def _count(extents: tuple[IndexExpr, ...]) -> int | None:
    elements = product(extents)
    return None if sizes(elements) else evaluate(elements, {})


def _private(found: Window, tree: Tree, statement: str) -> bool:
    """Does every iteration of the block, row and thread loops around a statement have its own storage?

    Loops that threads share are the matter of `GpuStorage._crosses`.
    """
    return _covers(list(found.loops), tree, [statement])


def _covers(loops: list[Member], tree: Tree, users: list[str], kinds: tuple[Coordinate, ...] = _OWN) -> bool:
    """Are all loops of these kinds around the statements among `loops`?"""
    known = {(m.name, m.coordinate) for m in loops}
    mine = [m for n in users for m in path(tree, n) if isinstance(m, Member) and m.coordinate in kinds]
    return all((m.name, m.coordinate) in known for m in mine)


def _round(tree: Tree, statement: str) -> Member | None:
    """The loop around a statement that threads share."""
    found = [m for m in path(tree, statement) if isinstance(m, Member) and m.coordinate is Coordinate.ROUND]
    return found[-1] if found else None


def _common_steps(tree: Tree, users: list[str]) -> int:
    """Loops on the way to all of the statements, down to the last one that the rows of a block share."""
    ways = [list(path(tree, n)) for n in users]
    common = 0
    for k, here in enumerate(zip(*ways, strict=False)):
        if any(x != here[0] and not _same_loop(x, here[0]) for x in here):
            break
        if isinstance(here[0], Member) and here[0].coordinate is Coordinate.STEP:
            common = k + 1
    return common


def _same_loop(a: Member | int, b: Member | int) -> bool:
    return isinstance(a, Member) and isinstance(b, Member) and (a.name, a.exprs) == (b.name, b.exprs)


def _way(tree: Tree, statement: str, start: int) -> str | None:
    """The loop that threads share around a statement, by the names and positions on the way to it.

    Loops before `start` are around all that is asked for: one row of threads does all of it.
    """
    way = list(path(tree, statement))
    kinds = (Coordinate.ROUND, Coordinate.STEP)
    shared = [k for k, m in enumerate(way) if k >= start and isinstance(m, Member) and m.coordinate in kinds]
    if not shared:
        return None
    return "/".join(str(x) if isinstance(x, int) else x.name for x in way[: shared[-1] + 1])
