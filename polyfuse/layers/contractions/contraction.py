"""Contractions among phases: which statements they are, and what runs before, with and after them.

    c[o, m, n] = sum[k](left[o, m, k] * right[o, k, n])

Every element of each factor serves many elements of the result, so that what limits such a statement is not
memory but how often registers are filled.  It is computed in tiles of rows m and columns n
(`layers.contractions.cpu_tiles`), which no other loop order comes near; so phases are cut around it:

before       what does not depend on it, in the loops that it had
the tile     the contraction, and statements that only need finished elements of it, one for one
after        the rest, in the loops that it had

Found by what is read and written: factors are any expressions, as long as one of them does not depend on
the columns and the other not on the rows; the square of their difference may stand in place of the product
(distances); `over` may be several dims (convolutions), `outer` dims are those of a batch, and further rows
and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import permutations
from math import prod
from typing import TypeAlias

from polyfuse.ir.contraction import factors_of, is_difference, joined
from polyfuse.ir.cpu_core import Core
from polyfuse.ir.dtypes import F32, F64, I32
from polyfuse.ir.index_expr import IConst, IVar, binary, substitute
from polyfuse.ir.intervals import is_half
from polyfuse.ir.schedule_tree import Tree, restrict, statements
from polyfuse.ir.tensor_graph import EXPR_TYPES, Statement, TensorGraph, depends_on, map_expr, statement_reads
from polyfuse.layers.contractions.factors import (
    Contraction,
    EpilogueStep,
    along,
    at_usual_sizes,
    contiguous,
    extents_of,
    lies_along,
    widens,
)
from polyfuse.layers.contractions.loop_roles import best_way
from polyfuse.layers.graph.names import depending
from polyfuse.layers.mapping.nests import address, stride

# A tile of fewer multiplications, rows, columns or steps is not worth its beginning and end; of fewer rows
# than `FEWEST_TURNED`, not where both factors lie along a dim that is summed and shorter than `FEWEST_ALONG`:
# to turn one around takes longer, and so do sums of a few rows together.
FEWEST_PRODUCTS = 64 * 1024
FEWEST_ROWS, FEWEST_TURNED = 2, 4
FEWEST_ALONG = 32
FEWEST_COLUMNS = 8
FEWEST_OVER = 8
# Of fewer steps tiles are worth it on a CPU where both factors lie along them: else lanes read across one.
FEWEST_ACROSS = 4
# Of fewer distances loops share out what is summed among workers, tiles do not; and for fewer rows of them,
# which are not summed together, no factor is transposed.
FEWEST_DISTANCES, FEWEST_DISTANT = 1024, 8
# Of fewer rows or columns of short integers compilers sum products as fast, by instructions for pairs: where
# tiles have no such instructions, and where they turn both factors around.
FEWEST_WIDENED, FEWEST_WIDENED_TURNED = 8, 12
# So many columns are most of a vector of 64 bytes, or of two of 32.
FULL_COLUMNS = 12

# Names of contractions, each with those of the statements that may follow its elements.
Followed: TypeAlias = dict[str, tuple[str, ...]]


def around_contractions(
    graph: TensorGraph,
    phases: Sequence[Tree],
    wanted: Callable[[TensorGraph, Contraction], bool],
    core: Core | None = None,
) -> list[Tree | Contraction]:
    """Phases as parts that run one after the other, cut around the contractions that are wanted; the phases
    themselves where there are none."""
    names = {n for phase in phases for n in statements(phase)}
    inside = [s for s in graph.statements if s.name in names]
    for s in inside:
        found = contraction_of(graph, s, core)
        if found is None or not wanted(graph, found):
            continue
        later = depending(graph, s, names)
        if s.name in later:
            continue  # a recurrence
        found = replace(found, followers=_followers(graph, inside, found, later))
        after = later - {f.statement for f in found.followers}
        return [
            *around_contractions(graph, _restricted(phases, names - later - {s.name}), wanted, core),
            found,
            *around_contractions(graph, _restricted(phases, after), wanted, core),
        ]
    return list(phases)


def with_epilogue(graph: TensorGraph, p: Contraction) -> Contraction:
    """A contraction with what follows each element, among all statements."""
    inside = list(graph.statements)
    later = depending(graph, graph.statement(p.statement))
    return replace(p, followers=() if p.statement in later else _followers(graph, inside, p, later))


def followed(graph: TensorGraph, besides: Set[str]) -> Followed:
    """All contractions besides some, each with the statements that may follow its elements."""
    found = {s.name: contraction_of(graph, s) for s in graph.statements if s.name not in besides}
    tiles = {name: with_epilogue(graph, p) for name, p in found.items() if p is not None}
    return {name: tuple(f.statement for f in p.followers) for name, p in tiles.items()}


def from_zero(graph: TensorGraph, p: Contraction) -> tuple[TensorGraph, Contraction]:
    """The graph and the contraction with sums from 0 on, where copies of factors begin, and panels count."""
    s = graph.statement(p.statement)
    starts = {d.name: d.lower for d in s.dims if d.name in p.over and d.lower != IConst(0)}
    if not starts:
        return graph, p
    moved = {n: binary("+", IVar(n), lower) for n, lower in starts.items()}
    left, right = (map_expr(e, lambda x: x, lambda i: substitute(i, moved)) for e in (p.left, p.right))
    dims = [
        replace(d, lower=IConst(0), upper=binary("-", d.upper, d.lower)) if d.name in starts else d
        for d in s.dims
    ]
    counted = replace(s, dims=tuple(dims), expr=joined(s.expr, left, right))
    graph = replace(graph, statements=tuple(counted if x is s else x for x in graph.statements))
    return graph, replace(p, left=left, right=right)


def _restricted(phases: Sequence[Tree], keep: Set[str]) -> list[Tree]:
    parts = [restrict(phase, frozenset(keep)) for phase in phases]
    return [p for p in parts if p is not None]


def contraction_of(graph: TensorGraph, s: Statement, core: Core | None = None) -> Contraction | None:
    """A statement as a contraction large enough for tiles, or None. Sizes are known, or on a core have usual
    values.

    On a core rows and columns are those of the way that takes the fewest cycles
    (`layers.contractions.loop_roles`)."""
    e = s.expr
    if s.reduction != "sum" or s.accumulate or factors_of(e) is None:
        return None
    if graph.sizes and core is not None:
        return _at_open_sizes(graph, s, core)
    if e.dtype not in (F32, F64, I32) or len(graph.writers(s.target)) > 1:
        return None
    extents = extents_of(s)
    free = tuple(d.name for d in s.dims if not d.reduce)
    if not all(extents.values()) or any(isinstance(i, EXPR_TYPES) for i in s.write):
        return None
    if sorted(i.name for i in s.write if isinstance(i, IVar)) != sorted(free) or len(s.write) != len(free):
        return None
    over = s.reduction_dims
    steps = prod(extents[d] for d in over)
    fewest_over = FEWEST_OVER if core is None else min(FEWEST_OVER, FEWEST_ACROSS)
    if prod(extents.values()) < FEWEST_PRODUCTS or steps < fewest_over:
        return None
    if is_difference(e) and prod(extents[d] for d in free) < FEWEST_DISTANCES:
        return None
    starts = {d.name for d in s.dims if d.lower == IConst(0)}
    found = [x for x in _ways(s, free, over) if {x.row, x.column} <= starts]
    found = [x for x in found if extents[x.row] >= FEWEST_ROWS and extents[x.column] >= FEWEST_COLUMNS]
    found = [x for x in found if steps >= FEWEST_OVER or along(graph, x) is not None]
    fewest = FEWEST_DISTANT if is_difference(e) else FEWEST_TURNED
    found = [x for x in found if extents[x.row] >= fewest or _read_in_place(graph, x, extents)]
    found = [x for x in found if min(extents[x.row], extents[x.column]) >= _fewest_widened(graph, x)]
    if core is not None:
        return best_way(graph, s, found, core)
    return max(found, key=lambda x: _rank(graph, s, x, extents), default=None)


def _at_open_sizes(graph: TensorGraph, s: Statement, core: Core) -> Contraction | None:
    """A statement as the contraction that it usually is."""
    found = contraction_of(*at_usual_sizes(graph, s), core)
    if found is None or len(graph.writers(s.target)) > 1:
        return None
    ways = _ways(s, (found.row, found.column, *found.outer), found.over)
    return next(x for x in ways if (x.row, x.column) == (found.row, found.column))


def _ways(s: Statement, free: tuple[str, ...], over: tuple[str, ...]) -> Iterator[Contraction]:
    """Rows and columns that the factors allow."""
    factors = factors_of(s.expr)
    assert factors is not None  # `contraction_of` asked
    for left, right in (factors, factors[::-1]):
        rows, columns = depends_on(left), depends_on(right)
        for m, n in permutations(free, 2):
            if m in rows - columns and n in columns - rows:
                outer = tuple(d for d in free if d not in (m, n))
                yield Contraction(s.name, m, n, outer, over, left, right)


def _rank(graph: TensorGraph, s: Statement, x: Contraction, extents: dict[str, int]) -> tuple[int, ...]:
    """Columns that fill a vector and lie side by side in the result and in what is read; then the longest."""
    written = stride(address(graph, s.target, s.write), x.column) == 1
    return (
        extents[x.column] >= FULL_COLUMNS,
        written + contiguous(graph, x.right, x.column),
        extents[x.row],
        extents[x.column],
    )


def _read_in_place(graph: TensorGraph, x: Contraction, extents: dict[str, int]) -> bool:
    """Do factors that lie along what is summed do so for many steps of products?"""
    dim = along(graph, x)
    difference = is_difference(graph.statement(x.statement).expr)
    return dim is None or (extents[dim] >= FEWEST_ALONG and not difference)


def _fewest_widened(graph: TensorGraph, x: Contraction) -> int:
    """Rows and columns that tiles have at least, of integers that become larger."""
    if not widens(x):
        return 0
    factors = (x.left, x.right)
    if any(all(lies_along(graph, e, d) for e in factors) for d in x.over):
        return FEWEST_WIDENED_TURNED
    return 0 if all(map(is_half, factors)) else FEWEST_WIDENED


def _followers(
    graph: TensorGraph, inside: list[Statement], found: Contraction, later: frozenset[str]
) -> tuple[EpilogueStep, ...]:
    """Statements that need, of what depends on the contraction, elements of their own place only."""
    s = graph.statement(found.statement)
    places: dict[str, tuple[str, ...]] = {s.target: tuple(i.name for i in s.write if isinstance(i, IVar))}
    bounds = {d.name: (d.lower, d.upper) for d in s.dims}
    made = {t.target for t in inside if t.name in later}
    followers: list[EpilogueStep] = []
    waiting = [t for t in inside if t.name in later]
    while True:
        for t in waiting:
            dims = _aligned(graph, t, places, made, bounds)
            if dims is None:
                continue
            followers.append(EpilogueStep(t.name, tuple(dims.items())))
            back = {mine: its for its, mine in dims.items()}
            places[t.target] = tuple(back[i.name] for i in t.write if isinstance(i, IVar))
            waiting.remove(t)
            break
        else:
            return tuple(followers)


def _aligned(
    graph: TensorGraph,
    t: Statement,
    places: dict[str, tuple[str, ...]],
    made: set[str],
    bounds: Mapping[str, tuple[object, object]],
) -> dict[str, str] | None:
    """Dim of the contraction -> dim of a statement that may follow each of its elements, or None."""
    if t.reduction is not None or len(graph.writers(t.target)) > 1:
        return None
    if not all(isinstance(i, IVar) for i in t.write) or len(set(t.write)) != len(t.dims):
        return None
    own = {d.name: (d.lower, d.upper) for d in t.dims}
    found: dict[str, str] | None = None
    for r in statement_reads(t):
        if r.tensor not in places:
            if r.tensor in made:
                return None
            continue
        if not all(isinstance(i, IVar) for i in r.indices):
            return None
        mine = {
            its: i.name for its, i in zip(places[r.tensor], r.indices, strict=True) if isinstance(i, IVar)
        }
        if len(set(mine.values())) < len(own) or (found is not None and mine != found):
            return None
        if any(own[v] != bounds[k] for k, v in mine.items()):
            return None
        found = mine
    return found
