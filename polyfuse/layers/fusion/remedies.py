"""What makes a refused change of a schedule legal, for the hint of its error.

Each remedy is tried before it is told: what the hint says is legal.

    fuse           share fewer loops, or let the second one run some iterations later
    interchange    let the inner loops start later in each iteration of the outer one (skew); tile alike
    shift          by less
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many

from polyfuse.diagnostics import ScheduleError
from polyfuse.ir.schedule_tree import Tree
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.schedules import check_schedule
from polyfuse.poly.model.dependences import ordering
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.scheduling import tree_edit
from polyfuse.poly.scheduling.tree_convert import lag, length

# A text in terms of the primitives, and the tree that they give.
Remedy = tuple[str, Callable[[], Tree]]

# A shift by more iterations keeps so many rows alive, and a skew by more empties the corners of a nest.
MOST_SHIFT, MOST_SKEW = 8, 3


def remedy(graph: TensorGraph, remedies: Iterable[Remedy]) -> str | None:
    """The first one that gives a legal schedule."""
    for text, make in remedies:
        try:
            tree = make()
        except ScheduleError:
            continue
        with isl_lock:
            if check_schedule(build_model(graph), tree):
                return text
    return None


def of_fuse(graph: TensorGraph, tree: Tree, first: str, second: str, at: str | None) -> Iterator[Remedy]:
    """Shifts of the second nest along loops that it is to share, then fewer common loops."""
    fused = tree_edit.fuse(tree, first, second, at)
    both = [m for m in tree_edit.loops(fused) if {first, second} <= dict(m.exprs).keys()]
    before = {id(m) for m in tree_edit.loops(tree)}
    shared = [m for m in both if id(m) not in before]
    with isl_lock:
        model = build_model(graph)
        a, b = (_nest_of(tree, first, second), _nest_of(tree, second, first))
        pairs = ordering(model).intersect_domain(model.domain(a)).intersect_range(model.domain(b))
        lags = [lag(model, pairs, m) for m in shared]
        lengths = [length(model, m) for m in shared]
    shifts = [(s, m.name, k) for m, k in zip(shared, lags, strict=True) for s in b if k is not None and k > 0]
    most = [min(MOST_SHIFT, n // 4) if n is not None else MOST_SHIFT for n in lengths]
    if shifts and all(k is not None and k <= n for k, n in zip(lags, most, strict=True)):

        def shifted() -> Tree:
            moved = tree
            for s, name, k in shifts:
                moved = tree_edit.shift(moved, f"{s}.{name}", s, k)
            return tree_edit.fuse(moved, first, second, at)

        steps = "".join(f".shift({s!r}, {name!r}, {k})" for s, name, k in shifts)
        yield f"s{steps}.{call('fuse', first, second, at=at)}", shifted
    for m in reversed(shared[:-1]):
        text = f"share the loops down to {m.name} only: s.{call('fuse', first, second, at=m.name)}"
        yield text, lambda name=m.name: tree_edit.fuse(tree, first, second, name)  # type: ignore[misc]


def _nest_of(tree: Tree, statement: str, other: str) -> list[str]:
    """The statements that are with one where it parts from another."""
    return sorted(tree_edit.apart(tree, statement, other))


def of_nest(tree: Tree, nest: Many[str], edit: Callable[[Tree], Tree], text: str) -> Iterator[Remedy]:
    """Skews of the inner loops of a nest by its outermost one, before a change of the nest. `nest` has the
    addresses of the loops."""
    outer, *inner = nest
    outer = tree_edit.loop_name(outer)
    for factor in range(1, MOST_SKEW + 1):

        def skewed(factor: int = factor) -> Tree:
            made = tree
            for name in inner:
                made = tree_edit.skew(made, name, outer, factor)
            return edit(made)

        steps = "".join(f".{call('skew', name, outer, factor)}" for name in inner)
        yield f"s{steps}.{text}", skewed


def of_shift(tree: Tree, statement: str, at: str, by: int) -> Iterator[Remedy]:
    """Shifts by less."""
    step = 1 if by > 0 else -1
    for less in list(range(by - step, 0, -step))[:MOST_SHIFT]:
        text = f"by {less} it is legal: s.{call('shift', statement, at, less)}"
        yield text, lambda n=less: tree_edit.shift(tree, f"{statement}.{at}", statement, n)  # type: ignore[misc]


def call(name: str, *args: object, **keywords: object) -> str:
    """A step as it is written; keywords that are None are left out."""
    given = [*map(repr, args), *(f"{k}={v!r}" for k, v in keywords.items() if v is not None)]
    return f"{name}({', '.join(given)})"
