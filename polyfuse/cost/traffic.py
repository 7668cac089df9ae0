"""What kernels move, and from which level of memory it comes.

A kernel's first touch of a tensor comes from where it has stayed since an earlier kernel touched it (or the
call before: figures are those of repeated calls); a later nest of the same kernel finds it where what its
loops touch meanwhile fits: re-reading a row that fits L1 costs L1 bytes.  A level holds what was touched
last, as much as it has room for.

    first touch    bytes since the last kernel that touched it        -> level
    next nest      bytes of one iteration of the loops in common      -> level
    next block     what several blocks touch (a bias): bytes of one block

Blocks of a GPU run side by side: what is live there is that of all resident ones, and below L2 nothing is
kept between nests but what the kernel keeps itself (registers, shared memory).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from polyfuse.cost.extents import Touched, Union, union
from polyfuse.cost.nests import OUTSIDE, Access, Nest, common, footprint
from polyfuse.ir.kernel import Scope
from polyfuse.ir.schedule_tree import Coordinate

# A tensor's bytes in a kernel: what is touched, as boxes with the size of an element.
Footprints = Mapping[str, tuple[int, tuple[Touched, ...]]]
# Bytes -> the nearest level that holds them.
Holds = Callable[[float], int]


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where bytes stay: `outer` those of all, `inner` those live in each worker or block, `shared` those of
    one block until the next one touches them too.  `arrays`: are the kernel's own arrays memory (of a CPU),
    not registers and shared memory?"""

    outer: Holds
    inner: Holds
    shared: Holds
    arrays: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """read, written: bytes outside of the kernel, every element touched counted once.  by_level: all bytes
    moved, by the level that they come from or go to."""

    read: float
    written: float
    by_level: tuple[float, ...]


def footprints(kernel: tuple[Nest, ...]) -> Footprints:
    """What a kernel touches outside."""
    found: dict[str, tuple[int, tuple[Touched, ...]]] = {}
    for nest in kernel:
        for a in nest.accesses:
            if a.scope in OUTSIDE:
                found[a.tensor] = a.item, (*found.get(a.tensor, (a.item, ()))[1], *a.whole)
    return found


def distances(kernels: list[Footprints]) -> list[dict[str, float]]:
    """For each kernel and tensor: bytes touched since the last kernel that touched it, the own ones too."""
    count = len(kernels)
    touching: dict[str, list[int]] = {}
    for k, mine in enumerate(kernels):
        for tensor in mine:
            touching.setdefault(tensor, []).append(k)
    # All kernels touch as many bytes in one round, wherever it begins.
    whole = _sums(kernels, 0, count - 1)[-1] if count else 0.0
    result: list[dict[str, float]] = []
    for k, mine in enumerate(kernels):
        back = {n: min(_steps_back(touching[n], k, count), count - 1) for n in mine}
        sums = _sums(kernels, k, max((d for d in back.values() if d < count - 1), default=0))
        result.append({n: whole if d == count - 1 else sums[d] for n, d in back.items()})
    return result


def _steps_back(places: list[int], k: int, count: int) -> int:
    """From kernel k to the one before that is among these, in a ring of so many."""
    return k - places[places.index(k) - 1] if k != places[0] else k + count - places[-1]


def _sums(kernels: list[Footprints], k: int, steps: int) -> list[float]:
    """Bytes that kernel k touches, then those that it and one before touch, and so on."""
    boxes: dict[str, Union] = {}
    found, total = [], 0.0
    for d in range(steps + 1):
        for tensor, (item, more) in kernels[(k - d) % len(kernels)].items():
            known = boxes.setdefault(tensor, Union())
            before = known.elements
            known.add(more)
            total += item * (known.elements - before)
        found.append(total)
    return found


def traffic(kernel: tuple[Nest, ...], since: Mapping[str, float], keeping: Keeping) -> Traffic:
    """Of one kernel. `since` is its row of `distances`."""
    *_, whole = (Traffic(0.0, 0.0, (0.0,)), *growing_traffic(kernel, since, keeping))
    return whole


def growing_traffic(
    kernel: tuple[Nest, ...], since: Mapping[str, float], keeping: Keeping
) -> Iterator[Traffic]:
    """Of the first nest of a kernel, of the first two, and so on."""
    count = _Count(kernel, since, keeping)
    for k, nest in enumerate(kernel):
        for a in nest.accesses:
            count.add(k, nest, a)
        most = max(count.levels, default=0) + 1
        yield Traffic(count.read, count.written, tuple(count.levels.get(i, 0.0) for i in range(most)))


class _Count:
    """Running sums over the nests of a kernel."""

    def __init__(self, kernel: tuple[Nest, ...], since: Mapping[str, float], keeping: Keeping) -> None:
        self.kernel, self.since, self.keeping = kernel, since, keeping
        self.levels: dict[int, float] = {}
        self.read = self.written = 0.0
        self._seen: dict[tuple[str, bool], tuple[Touched, ...]] = {}
        self._last: dict[str, int] = {}
        self._made: set[str] = set()

    def add(self, k: int, nest: Nest, a: Access) -> None:
        outside = a.scope in OUTSIDE
        if a.scope is Scope.REGISTER or not (outside or self.keeping.arrays):
            return
        again = a.nbytes
        if outside and (a.written or a.tensor not in self._made):
            again -= self._first(a)
        if again > 0 and a.tensor in self._last:
            last = self.kernel[self._last[a.tensor]]
            self._move(self._near(self._last[a.tensor], k, common(last, nest)), again)
        elif not outside:
            self._move(self._near(k, k, nest.blocks), again)
        shared = a.block_bytes * nest.block_count - a.nbytes
        if shared > 0 and outside:
            live = footprint((nest,), nest.blocks, (*OUTSIDE, Scope.LOCAL))
            self._move(self.keeping.shared(live), shared)
        self._last[a.tensor] = k
        if a.written:
            self._made.add(a.tensor)

    def _first(self, a: Access) -> float:
        """Bytes that the kernel had not touched in this direction before."""
        before = self._seen.get((a.tensor, a.written), ())
        self._seen[a.tensor, a.written] = (*before, *a.whole)
        new = (union((*before, *a.whole)) - union(before)) * a.item
        if a.written:
            self.written += new
        else:
            self.read += new
        self._move(self.keeping.outer(self.since[a.tensor]), new)
        return new

    def _near(self, first: int, last: int, loops: tuple[object, ...]) -> int:
        """The level that holds what these nests touch in one iteration of the loops."""
        between = self.kernel[first : last + 1]
        kept = [
            m
            for m in self.kernel[last].loops
            if any(m is x for x in loops)
            and m.coordinate in (Coordinate.BLK, Coordinate.SEQ, Coordinate.TIME)
        ]
        live = footprint(between, kept, (*OUTSIDE, Scope.LOCAL))
        return self.keeping.inner(live) if kept else self.keeping.outer(live)

    def _move(self, level: int, nbytes: float) -> None:
        self.levels[level] = self.levels.get(level, 0.0) + nbytes
