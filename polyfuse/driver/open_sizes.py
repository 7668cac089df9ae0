"""Which sizes of an operator its kernels know: variants, and the decision list that a call looks up.

    a variant  = kernels for a region of sizes: some have a value, the others are parameters of the kernels
    a region   = T >= 1, T <= 2**40, H = 768
    a family   = the variants of one choice of types, ranks and layouts, in the order of the decision list

All that a compilation proves (ranges, pieces, schedules, storage) it proves for all sizes of the region; what
a region cannot state, no kernels with open sizes are made for.  By default a size has its value in kernels
until a second one comes; then it is open (`Options.sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from polyfuse.cost.open_gain import OpenGain
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError, Diagnostics, DslError, ScheduleError
from polyfuse.driver.pipeline import Built
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, evaluate, variables
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.intervals import fits
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Constraint,
    IndexValue,
    Statement,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.layers.graph.row_order import sizes_of_orders
from polyfuse.options import Open, Wish
from polyfuse.poly.legality.index_overflow import Sizes, refuse_large, span, spans_of, wrapping
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.poly.model.dependences import guarded_parts
from polyfuse.poly.model.domains import fixed_sizes_needed, specialize
from polyfuse.poly.model.isl_text import never_negative
from polyfuse.runtime.cpu.open_layouts import OpenSizes

# --- regions ----------------------------------------------------------------------------------------------


class NotOpen(Exception):
    """Why there are no kernels for a choice of open sizes."""


@dataclass(frozen=True)
class Region:
    """Sizes that kernels are for: `fixed` ones have a value, `open` ones fulfil the `conditions`."""

    fixed: Mapping[str, int]
    open: tuple[str, ...] = ()
    conditions: tuple[Constraint, ...] = ()

    def has(self, sizes: Mapping[str, int]) -> bool:
        """Are these sizes in it?"""
        return all(sizes[n] == v for n, v in self.fixed.items()) and not self.violated(sizes)

    def violated(self, sizes: Mapping[str, int]) -> tuple[Constraint, ...]:
        """The conditions that these sizes do not fulfil."""
        return tuple(c for c in self.conditions if not holds(c, sizes))

    def __str__(self) -> str:
        told = [f"{n} = {v}" for n, v in self.fixed.items()]
        return ", ".join([*map(str, self.conditions), *told]) or "any sizes"


def holds(c: Constraint, sizes: Mapping[str, int]) -> bool:
    """Does a condition of a region, `left >= right` or `left <= right`, hold?"""
    try:
        left, right = evaluate(c.left, sizes), evaluate(c.right, sizes)
    except ZeroDivisionError:
        return False
    return left >= right if c.op == ">=" else left <= right


_MOST = (2**40, 2**31 - 1, 2**24, 2**15 - 1)
"""What they are at most: the first for which index arithmetic is exact."""


ROWS = (4096,)
"""Rows of so many elements or fewer have kernels of their own: a row stays in an array of its worker."""


def region(graph: TensorGraph, fixed: Mapping[str, int], at: Mapping[str, int] | None = None) -> Region:
    """The region of a graph with some sizes fixed, in which every access is proved to be in range; that of
    short or long rows where it is `at` sizes.

    Raises NotOpen where there is none.
    """
    if needed := _needed(specialize(graph, fixed)):
        raise NotOpen(not_open(graph, needed))
    names = tuple(n for n in graph.sizes if n not in fixed)
    most, rows = _most(graph, fixed, names), row_sizes(graph) if at else set()
    conditions: list[Constraint] = []
    for n in names:
        low, high = _row_class(at[n]) if at and n in rows else (1, most)
        conditions += [
            Constraint(">=", ISize(n), IConst(low)),
            Constraint("<=", ISize(n), IConst(min(high, most))),
        ]
    found = Region(dict(fixed), names, (*conditions, *_stated(graph, fixed)))
    if why := _unproved(within(graph, found), fixed):
        raise NotOpen(why)
    return found


def affine(
    graph: TensorGraph, names: tuple[str, ...], sizes: Mapping[str, int], counts: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """As many of these sizes as leave every index affine, and those that are fixed for it: those that most
    others wait for.  With `counts`, numbers of terms as well: dims of known and open lengths that are reduced
    together become one, and those of open lengths do not."""
    fixed: list[str] = []

    def needed(open: tuple[str, ...]) -> tuple[str, ...]:
        return _needed(specialize(graph, _without(sizes, open)), counts)

    while found := needed(names):
        worst = min(found, key=lambda n: len(needed(_less(names, n))))
        names = _less(names, worst)
        fixed.append(worst)
    return names, tuple(fixed)


def _needed(graph: TensorGraph, counts: bool = False) -> tuple[str, ...]:
    """Sizes that cannot be open."""
    needed = {*fixed_sizes_needed(graph, counts), *sizes_of_orders(graph)}
    return tuple(n for n in graph.sizes if n in needed)


def not_open(graph: TensorGraph, needed: Sequence[str]) -> str:
    """Why such sizes cannot be open."""
    ordered = set(needed) <= set(sizes_of_orders(graph))
    why = "an order has no known length" if ordered else "an index is not affine"
    return f"{why} while {', '.join(needed)} is open"


def _row_class(length: int) -> tuple[int, int]:
    """The shortest and the longest row of kernels for rows of this length."""
    borders = (0, *ROWS, _MOST[0])
    return next((low + 1, high) for low, high in pairwise(borders) if length <= high or high == _MOST[0])


def row_sizes(graph: TensorGraph) -> set[str]:
    """Sizes that say how long rows are: those of the last axes of tensors that have more than one, but for
    those of other axes of tensors that have even more, where nothing is reduced along them."""
    last: dict[str, int] = {}
    other: dict[str, int] = {}
    for t in graph.tensors:
        for k, e in enumerate(t.shape, 1):
            found, rank = (last if k == len(t.shape) else other), len(t.shape)
            found |= {n: max(rank, found.get(n, 0)) for n in sizes_of(e)}
    reduced = {n for s in graph.statements for d in s.dims if d.reduce for n in sizes_of(d.upper)}
    return {n for n, rank in last.items() if rank > 1 and (rank >= other.get(n, 0) or n in reduced)}


def within(graph: TensorGraph, region: Region) -> TensorGraph:
    """The graph, whose proofs may assume the region."""
    return replace(graph, constraints=(*graph.constraints, *region.conditions))


def _unproved(graph: TensorGraph, fixed: Mapping[str, int]) -> str:
    """What is not proved for all sizes of the region; "" if all is."""
    found = Diagnostics()
    left = [o for o in prove_ranges(graph, fixed, found) if o.code != "PF360"]  # extents: looked at by calls
    if found.errors:
        return found.errors[0].message
    return f"no proof for all sizes that {min(o.what for o in left)}" if left else ""


def _most(graph: TensorGraph, fixed: Mapping[str, int], names: Sequence[str]) -> int:
    """The largest bound of open sizes with which numbers and indices are what they are for small sizes."""
    usual = wrapping(graph, fixed, casts=False)
    for most in _MOST:
        sizes: Sizes = {**fixed, **dict.fromkeys(names, (1, most))}
        large = refuse_large(graph, sizes, Diagnostics())
        same = not large and wrapping(graph, sizes, casts=False) == usual
        if same and all(_fit(s, sizes) for s in graph.statements):
            return most
    raise NotOpen("an index or a number may have no room for large sizes")


def _fit(s: Statement, sizes: Sizes) -> bool:
    """Are indices that are numbers values of their types?"""
    spans = spans_of(s.dims, sizes)
    for e, _ in guarded_parts(s):
        if isinstance(e, IndexValue) and e.dtype.is_integer:
            values = span(e.index, spans)
            if values is None or not fits(values, e.dtype):
                return False
    return True


def _stated(graph: TensorGraph, fixed: Mapping[str, int]) -> Iterator[Constraint]:
    """What kernels take for granted beside ranges: extents are not negative, an axis that data index has
    elements, nothing is divided by 0."""
    at = specialize(graph, fixed)
    least: dict[IndexExpr, int] = {}
    for e in (e for t in at.tensors for e in t.shape):
        if sizes_of(e) and not never_negative(e):
            least[e] = 0
    for s in at.statements:
        for tensor, indices in ((s.target, s.write), *((r.tensor, r.indices) for r in statement_reads(s))):
            by_data = zip(indices, at.tensor(tensor).shape, strict=True)
            least |= {e: 1 for i, e in by_data if isinstance(i, EXPR_TYPES) and sizes_of(e)}
        least |= dict.fromkeys(_divisors(s), 1)
    for e, value in least.items():
        if variables(e):
            raise NotOpen(f"it is divided by {e}, which may be 0")
        if not (isinstance(e, ISize) and value <= 1):
            yield Constraint(">=", e, IConst(value))


def _divisors(s: Statement) -> list[IndexExpr]:
    """What a statement's indices are divided by, where that depends on sizes."""
    found: list[IndexExpr] = []

    def look(e: IndexExpr) -> IndexExpr:
        if isinstance(e, IBin):
            if e.op in ("//", "%") and sizes_of(e.right):
                found.append(e.right)
            look(e.left)
            look(e.right)
        return e

    for d in s.dims:
        look(d.lower)
        look(d.upper)
    for i in s.write:
        if isinstance(i, EXPR_TYPES):
            map_expr(i, lambda x: x, look)
        else:
            look(i)
    map_expr(s.expr, lambda x: x, look)
    return found


# --- variants ---------------------------------------------------------------------------------------------


MOST_OPEN = 4
"""Variants with open sizes of one family; after that as many again that are for rows of any length, and then
kernels for each choice of sizes."""
MOST_GAINS = 64
"""Choices of sizes of which a family knows what kernels of their own would gain."""
MOST_CHOICES = 2
"""Choices of open sizes that follow from those that have had a second value; after that all are open that can
be, so that sizes that vary one after the other cost no compilation each."""


@dataclass(frozen=True)
class Variant:
    """What was compiled for a region of sizes."""

    region: Region
    built: Built = field(repr=False)
    why: str = field(default="", repr=False)
    """Why it was made beside one with open sizes: what is gained."""

    @property
    def fixed(self) -> Mapping[str, int]:
        """The sizes that its kernels know."""
        return self.region.fixed

    @property
    def open(self) -> tuple[str, ...]:
        """The sizes that are parameters of its kernels."""
        return self.region.open

    def at(self, sizes: Mapping[str, int]) -> Built:
        """What was compiled, for calls with these sizes of the region."""
        built = self.built
        if not self.open or built.at == sizes:
            return built
        return replace(built, at=dict(sizes), executable=built.executable.at(sizes))

    def __str__(self) -> str:
        return str(self.region)


Make = Callable[[TensorGraph, Mapping[str, int], Mapping[str, int]], Built]
"""A compilation of a graph with some sizes fixed, loaded at all sizes."""


@dataclass
class Family:
    """The variants of one choice of types, ranks and layouts. For one thread at a time."""

    graph: TensorGraph
    wish: Wish
    usual: str
    mend: str = "leave it out of sizes=, or sizes={{'{name}': pf.open}}"
    """What a caller is told to do who has fixed a size at another value."""
    variants: list[Variant] = field(default_factory=list)
    refused: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Sizes that could not be open together, and why."""
    gains: dict[tuple[tuple[str, int], ...], OpenGain] = field(default_factory=dict)
    """What kernels of their own would gain at sizes that are called often."""
    _first: dict[str, int] = field(default_factory=dict)
    _varied: set[str] = field(default_factory=set)

    def found(self, sizes: Mapping[str, int]) -> Variant | None:
        """The variant that calls with these sizes take.

        Raises ArgumentError PF515 for sizes that the caller has fixed at other values.
        """
        self._require_wish(sizes)
        return next((v for v in self.variants if v.region.has(sizes)), None)

    def built(self, sizes: Mapping[str, int], make: Make, own: bool = False) -> Built:
        """What is compiled for these sizes, by `make` where no variant has them; with `own`, none that knows
        all of them. Raises ArgumentError PF515."""
        found = self.found(sizes)
        if found is None or (own and found.open):
            found = self._of_its_own(sizes, make) if own else self._made(sizes, make)
            self.variants = sorted([*self.variants, found], key=lambda v: len(v.open))
        return found.at(sizes)

    def _of_its_own(self, sizes: Mapping[str, int], make: Make) -> Variant:
        gain = self.gains.get(tuple(sizes.items()))
        why = "it is called often" if gain is None else str(gain)
        return Variant(
            Region(dict(sizes)), make(self.graph, sizes, sizes), why if self._has_open(sizes) else ""
        )

    def _has_open(self, sizes: Mapping[str, int]) -> bool:
        return any(v.open and v.region.has(sizes) for v in self.variants)

    def gain(self, sizes: Mapping[str, int], find: Callable[[], OpenGain]) -> OpenGain:
        """What kernels of their own would gain at these sizes: found once, and kept of the sizes looked at
        last."""
        key = tuple(sizes.items())
        found = self.gains[key] = self.gains.get(key) or find()
        if len(self.gains) > MOST_GAINS:
            del self.gains[next(iter(self.gains))]
        return found

    def forget(self, sizes: Mapping[str, int]) -> None:
        """Leave out what was compiled for these sizes alone."""
        self.variants = [v for v in self.variants if v.open or v.fixed != sizes]

    def told(self, sizes: Mapping[str, int]) -> tuple[Decision, ...]:
        """The decision list, with the variant that has these sizes, and what could not be open."""
        if not self.refused and not any(v.open for v in self.variants):
            return ()
        chosen = next((v for v in self.variants if v.region.has(sizes)), None)
        lines = [
            Decision("variant", str(k), v is chosen, f"{v}{': sizes are parameters' if v.open else ''}")
            for k, v in enumerate(self.variants)
        ]
        if (gain := self.gains.get(tuple(sizes.items()))) is not None:
            own = chosen is not None and not chosen.open
            lines.append(Decision("specialise", str(Region(dict(sizes))), own, str(gain)))
        for names, why in self.refused.items():
            lines.append(Decision("open", ", ".join(names), False, why))
        return tuple(lines)

    def _require_wish(self, sizes: Mapping[str, int]) -> None:
        for n, value in self.wish.items():
            if n in sizes and not isinstance(value, Open) and sizes[n] != value:
                message = f"size {n} of {self.graph.name} is fixed at {value} and cannot be {sizes[n]}"
                hint = self.mend.format(name=n, size=sizes[n])
                raise ArgumentError(message, code="PF515", hint=hint)

    def _made(self, sizes: Mapping[str, int], make: Make) -> Variant:
        """A new variant for these sizes: with as many open as are to be and can be."""
        names = self._affine(self._to_be_open(sizes), sizes)
        while names and names not in self.refused:
            fixed = _without(sizes, names)
            try:
                found = region(self.graph, fixed, sizes if self._count_open() < MOST_OPEN else None)
                outside = _names_in(found.violated(sizes))
                if not outside:
                    return Variant(found, make(within(self.graph, found), fixed, sizes))
                names = tuple(n for n in names if n not in outside)
            except NotOpen as error:
                self.refused[names] = str(error)
            except (DslError, ScheduleError) as error:
                self.refused[names] = error.diagnostics[0].message
        return self._of_its_own(sizes, make)

    def _affine(self, names: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...]:
        """As many of these sizes as leave every index affine, and at first numbers of terms as well."""
        first = not self._count_open()
        found, fixed = affine(self.graph, names, sizes, counts=first)
        if fixed and not (first and affine(self.graph, names, sizes)[0] == names):
            self.refused[names] = not_open(self.graph, fixed)
        return found

    def _to_be_open(self, sizes: Mapping[str, int]) -> tuple[str, ...]:
        """Sizes that kernels for this call should not know."""
        if not self._first:
            self._first = dict(sizes)
        self._varied |= {n for n, v in sizes.items() if v != self._first[n]}
        if self._count_open() >= 2 * MOST_OPEN:
            return ()
        return tuple(n for n, v in sizes.items() if v and self._wanted_open(n))

    def _count_open(self) -> int:
        return sum(bool(v.open) for v in self.variants)

    def _wanted_open(self, name: str) -> bool:
        wish = self.wish.get(name)
        if wish is not None:
            return isinstance(wish, Open)
        choices = {v.open for v in self.variants if v.open}
        varied = name in self._varied or len(choices) >= MOST_CHOICES
        return self.usual == "open" or (self.usual == "auto" and varied)


def _without(sizes: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    return {n: v for n, v in sizes.items() if n not in names}


def _less(names: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(n for n in names if n != name)


def _names_in(conditions: Iterable[Constraint]) -> set[str]:
    return {n for c in conditions for n in (*sizes_of(c.left), *sizes_of(c.right))}


def open_sizes(built: Built, given: Mapping[str, int]) -> OpenSizes:
    """What calls of kernels with open sizes have to fulfil; `given`: sizes that callers give by name."""
    graph = specialize(built.compilation.graph, built.compilation.sizes)
    shapes = {t.name: t.shape for t in graph.tensors}
    mine = {n: v for n, v in given.items() if n in graph.sizes}
    return OpenSizes(shapes, graph.constraints, mine, len(graph.sizes))
