"""Memory of a GPU kernel's arrays, planned by lifetimes: arrays that are never needed at once share a place.

    B(t)[B(h)(a, m: max a); B(h)(b, s: sum b of a); B(h)(c of b); B(h)(y of c)]     a: 0-1, b: 1-2, c: 2-3
    places: a and c, b

The steps of a kernel are what its block loops enclose, loop nest by loop nest.  An array is alive from the
first step that touches it to the last; a loop carries all that it touches around, so it is one step.
Barriers between two arrays of one place are the matter of `poly.barrier_insertion`, which knows of places.

Arrays that a thread keeps its part of a row in, in registers, are touched at one element by an iteration: the
statement that reads one for the last time may write the other.

Source: AStitch (ASPLOS'22) section 4.4; largest first, as Pisarchyk and Lee, "Efficient memory management for
deep neural net inference" (2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.kernel import Buffer, Kernel, Scope
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, path, statements
from polyfuse.ir.schedule_tree import Sequence as Steps
from polyfuse.ir.shared_memory import aligned, homes, nbytes

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
