"""A reduction over a window that moves has two scans for each block: three operations for a result.

    y[t] = max[s in max(t - W + 1, 0)..t + 1](x[s])         for t in 0..T
becomes, where e(q, r) is the element at W*q + r - W + 1, or the neutral element outside of 0..T,
    y__suffix[q, r] = max(y__suffix[q, r + 1], e(q, r)), from the last of a block on
    y__prefix[q, r] = max(y__prefix[q, r - 1], e(q + 1, r - 1)), from the neutral element on
    y[W*q + r] = max(y__suffix[q, r], y__prefix[q, r])

The window of a result is the end of one block and the begin of the next: nothing but its own elements is
combined, so that infinities and NaN are those of the reduction, and nothing cancels.

On a CPU, where results lie along memory, a tile of results has windows of two terms, of four, and so on in
place of blocks: more operations, but lanes make sixteen of each at once.

    y__terms[q, j] = e(q, j)             from some elements before: vectors begin as those of results do
    y__of2[q, j] = max(y__terms[q, j], y__terms[q, j + 1])
    y__of4[q, j] = max(y__of2[q, j], y__of2[q, j + 2]), and so on
    y[R*q + j] = max(y__of4[q, j], y__of4[q, j + 1])                a window of 5
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.functions import has_function
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Range, arms, interval, linear
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, IterDim, Purpose, Select
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.ranges import Moving, ranges_of
from polyfuse.layers.graph.scans.statements import Rewrite, cast, collected, inside_chunk, value_of

# Results of a tile of windows of twice as many terms, at least; terms of a window, at most.
SHORTEST_TILE = 1024
LONGEST_DOUBLED = 2048
# Elements of the longest vectors.
VECTOR = 16


@dataclass(frozen=True, slots=True)
class Window:
    """Of `length` terms at most, the first of which is at `begin` for the first result, and `step` further on
    for the next; terms before any of `lows`, or from any of `highs` on, are not there."""

    moving: Moving
    length: int
    begin: IndexExpr
    lows: tuple[IndexExpr, ...]
    highs: tuple[IndexExpr, ...]

    @property
    def step(self) -> int:
        return abs(self.moving.low)

    @property
    def sign(self) -> int:
        return 1 if self.moving.low > 0 else -1

    @property
    def first(self) -> int:
        """The outer dim at the first result, as windows move on."""
        over = self.moving.over
        return value_of(over.lower) if self.sign > 0 else value_of(over.upper) - 1

    @property
    def blocks(self) -> int:
        return self.step * (self.count - 1) // self.length + 1

    @property
    def count(self) -> int:
        return value_of(self.moving.over.upper) - value_of(self.moving.over.lower)

    @property
    def terms(self) -> int:
        """From the first of the first window to the last of the last one."""
        return self.step * (self.count - 1) + self.length


def window_of(m: Moving) -> Window | None:
    """The window of a range both ends of which move, if it has a length."""
    if not m.low or m.low != m.high:
        return None
    t = m.over.name
    lows, highs = arms("max", m.along.lower), arms("min", m.along.upper)
    (low,), (high,) = ([a for a in found if t in variables(a)] for found in (lows, highs))
    length = linear(high - low)
    if length.terms or length.constant < 1:
        return None
    first = value_of(m.over.lower) if m.low > 0 else value_of(m.over.upper) - 1
    begin = collected(substitute(low, {t: IConst(first)}))
    return Window(
        m,
        length.constant,
        begin,
        tuple(a for a in lows if a is not low),
        tuple(a for a in highs if a is not high),
    )


@dataclass(slots=True)
class _Elements(Rewrite):
    """What a window reduces. `terms` is the tensor of it, if it is kept."""

    window: Window
    terms: str = ""

    def element(self, place: IndexExpr, *dims: IterDim) -> Expr:
        """What is reduced so far from the first term, for some dims; the neutral element where nothing is."""
        place, ranges = collected(place), ranges_of((*self.rows, *dims))
        if not self.moving.others and not has_function(self.source.expr):
            s = collected(self.window.begin + place)
            _, term = self.terms_of(replace(self.moving.along, lower=s, upper=collected(s + 1)))
            return self._guarded(term, place, ranges)
        if not self.terms:
            self._keep()
        there = [place, collected(self.window.terms - 1 - place)]
        return self._if(self.read(self.terms, place), there, ranges)

    def _keep(self) -> None:
        j = IterDim(fresh_name(self.made.graph, "j"), IConst(0), IConst(self.window.terms))
        self.terms = self.tensor("terms", self.dtype, j.upper)
        s = collected(self.window.begin + IVar(j.name))
        over, term = self.terms_of(replace(self.moving.along, lower=s, upper=collected(s + 1)))
        term = self._guarded(term, IVar(j.name), ranges_of((*self.rows, j)))
        place = self.place(IVar(j.name))
        self.made.add(self.terms, (*self.dims(j), *over), place, term, self.reduction if over else None)

    def _guarded(self, term: Expr, place: IndexExpr, ranges: dict[str, Range]) -> Expr:
        s = self.window.begin + place
        tests = [collected(self.window.terms - 1 - place)]
        if not any(constant_of(low - self.window.begin) >= 0 for low in self.window.lows):
            tests.append(place)
        tests += [collected(s - low) for low in self.window.lows]
        tests += [collected(high - 1 - s) for high in self.window.highs]
        return self._if(term, tests, ranges)

    def _if(self, term: Expr, tests: list[IndexExpr], ranges: dict[str, Range]) -> Expr:
        """A term where none of those numbers is negative, else the neutral element."""
        cond: Expr | None = None
        for e in tests:
            known = interval(e, ranges)
            if known is not None and known[0] >= 0:
                continue
            test = Apply("ge", (IndexValue(e, I64), IndexValue(IConst(0), I64)), BOOL, self.source.span)
            cond = test if cond is None else Apply("and", (cond, test), BOOL, self.source.span)
        if cond is None:
            return term
        other = Const(identity(self.reduction, term.dtype), term.dtype, self.source.span)
        return Select(cond, term, other, term.dtype, self.source.span)


@dataclass(slots=True)
class Blocks(_Elements):
    """The statements of a window as two scans for each block."""

    def write(self) -> None:
        """Scans of the blocks from both ends, and the results."""
        w, dtype = self.window, self.accumulator(self.window.length)
        q, r = (IVar(fresh_name(self.made.graph, n)) for n in ("q", "r"))
        every, inside = (
            IterDim(q.name, IConst(0), IConst(w.blocks)),
            IterDim(r.name, IConst(0), IConst(w.length)),
        )
        last = IConst(w.length - 1)

        suffix = self.tensor("suffix", dtype, IConst(w.blocks), IConst(w.length))
        self.made.add(
            suffix,
            self.dims(every),
            self.place(q, last),
            cast(self.element(q * w.length + last, every), dtype),
        )
        before = replace(inside, upper=last)
        step = self.combined(self.read(suffix, q, r + 1), self.element(q * w.length + r, every, before))
        self.made.add(suffix, self.dims(every, before), self.place(q, r), step, purpose=Purpose.SCAN)

        prefix = self.tensor("prefix", dtype, IConst(w.blocks), IConst(w.length))
        nothing = Const(identity(self.reduction, dtype), dtype, self.source.span)
        self.made.add(prefix, self.dims(every), self.place(q, IConst(0)), nothing)
        later = replace(inside, lower=IConst(1))
        step = self.combined(
            self.read(prefix, q, r - 1), self.element((q + 1) * w.length + r - 1, every, later)
        )
        self.made.add(prefix, self.dims(every, later), self.place(q, r), step, purpose=Purpose.SCAN)
        self._results(q, r, suffix, prefix)

    def _results(self, q: IVar, r: IVar, suffix: str, prefix: str) -> None:
        w = self.window
        if w.step > 1:
            at = collected(w.step * w.sign * (IVar(w.moving.over.name) - w.first))
            there = (binary("//", at, w.length), binary("%", at, w.length))
            self.finish(
                self.moving.outer, self.combined(self.read(suffix, *there), self.read(prefix, *there))
            )
            return
        end = IConst(w.length) if w.count % w.length == 0 else binary("min", w.length, w.count - q * w.length)
        dims = self.dims(IterDim(q.name, IConst(0), IConst(w.blocks)), IterDim(r.name, IConst(0), end))
        both = self.combined(self.read(suffix, q, r), self.read(prefix, q, r))
        self.finish(dims, both, collected(w.first + w.sign * (q * w.length + r)))


@dataclass(slots=True)
class Doubling(_Elements):
    """The statements of a window as windows of one, two, four terms, and so on, tile by tile."""

    def write(self) -> None:
        """Windows up to the length, and the results."""
        w, q, j = self.window, *(IVar(fresh_name(self.made.graph, n)) for n in ("q", "j"))
        tile, before = tile_of(w), -(w.length - 1) % VECTOR
        tiles = -(-w.count // tile)
        every = IterDim(q.name, IConst(0), IConst(tiles))

        def along(terms: int) -> IterDim:
            """The windows of so many terms that a tile needs."""
            return IterDim(j.name, IConst(0), IConst(before + tile + w.length - terms))

        levels = [self.tensor("terms", self.dtype, every.upper, along(1).upper)]
        first = self.element(q * tile + j - before, every, along(1))
        self.made.add(levels[0], self.dims(every, along(1)), self.place(q, j), first)
        self.made.split()  # lanes load without conditions
        while 2 ** len(levels) < w.length:
            terms = 2 ** len(levels)
            level = self.tensor(f"of{terms}", self.dtype, every.upper, along(terms).upper)
            halves = (self.read(levels[-1], q, collected(j + at)) for at in (0, terms // 2))
            value = self.combined(*halves)
            dims = self.dims(every, along(terms))
            self.made.add(level, dims, self.place(q, j), value, purpose=Purpose.PART)
            levels.append(level)
        total: Expr | None = None
        for level, at in self._parts(levels):
            part = self.read(level, q, collected(j + (before + at)))
            total = part if total is None else self.combined(total, part)
        assert total is not None
        inside = IterDim(j.name, IConst(0), inside_chunk(q, tile, w.count))
        self.finish(self.dims(every, inside), total, collected(w.first + w.sign * (q * tile + j)))

    def _parts(self, levels: list[str]) -> Iterator[tuple[str, int]]:
        """Windows that are the whole one together, and where they begin. Those of extremes overlap."""
        length, longest = self.window.length, 2 ** (len(levels) - 1)
        if self.reduction != "sum" or length == 2 * longest:
            yield from ((levels[-1], 0), (levels[-1], length - longest))
            return
        at = 0
        for k, level in reversed(list(enumerate(levels))):
            if length & 2**k:
                yield level, at
                at += 2**k


def tile_of(w: Window) -> int:
    """Results of a tile: many for each one that two tiles compute, few enough for L1 (measured on Zen 5)."""
    return min(max(SHORTEST_TILE, 4 * w.length), w.count)


def constant_of(e: IndexExpr) -> int:
    """The value of an expression that is a number; -1 of another."""
    found = linear(e)
    return -1 if found.terms else found.constant


def may_double(w: Window, lanes: bool) -> bool:
    """Are a few operations of lanes for each result faster than three in order? They are where results lie
    along memory; products of parts may overflow where that of the window does not."""
    along = w.moving.statement.write[-1] == IVar(w.moving.over.name)
    return (
        lanes
        and along
        and w.step == 1
        and w.length <= LONGEST_DOUBLED
        and w.moving.statement.reduction != "prod"
    )
