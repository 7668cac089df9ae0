"""Ranges of index variables, from the subscripts where they stand alone.

    y[t, h] = x[t, h] * w[h]       t in 0..T, h in 0..H

Sources, in this order; those of one kind must agree as size expressions:

1. the declared left side, and unguarded reads of other tensors than the target;
2. if there are none: reads under index conditions that do not mention the variable.

Everything else (``x[i+1]``, ``x[i] if i >= 1 else 0.0``) is only a proof obligation.  No source is
PF302, sources that disagree are PF301: the range must then be written, ``for i in 1..N``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.size_algebra import Facts, simplify
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import children, free_names, walk
from polyfuse.ir.index_expr import IndexExpr
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class PlainUse:
    """`tensor[..., var, ...]`, with the names that guards around it mention."""

    var: str
    tensor: str
    position: int
    span: Span
    guards: frozenset[str]


def plain_uses(
    e: ast.Expr, is_index: Callable[[str], bool], guards: frozenset[str] = frozenset()
) -> Iterator[PlainUse]:
    """Every subscript that is a name alone. `is_index` tells index variables and sizes from scalars."""
    match e:
        case ast.Subscript(tensor, indices):
            for k, i in enumerate(indices):
                if isinstance(i, ast.Name):
                    yield PlainUse(i.id, tensor, k, e.span, guards)
        case ast.Padded(read, outside):
            for i in read.indices:
                yield from plain_uses(i, is_index, guards)
            beyond = frozenset[str]().union(*(guard_names(i, is_index) for i in read.indices))
            yield from plain_uses(outside, is_index, guards | beyond)
            return
        case ast.Conditional(cond, then, other) | ast.Call("select", (cond, then, other)):
            yield from plain_uses(cond, is_index, guards)
            inner = guards | guard_names(cond, is_index)
            yield from plain_uses(then, is_index, inner)
            yield from plain_uses(other, is_index, inner)
            return
        case ast.Reduce(_, ranges, body):  # bounds say nothing: ptr[n]..ptr[n + 1]
            mine = {r.var for r in ranges}
            inside = plain_uses(body, lambda name: name in mine or is_index(name), guards)
            yield from (u for u in inside if u.var not in mine)
            if e.place is not None:
                yield from plain_uses(e.place, is_index, guards)
            return
        case _:
            pass
    for c in children(e):
        yield from plain_uses(c, is_index, guards)


def guard_names(cond: ast.Expr, is_index: Callable[[str], bool]) -> frozenset[str]:
    """Index variables and sizes that a condition compares (those inside subscripts do not count)."""
    found: set[str] = set()
    stack = [cond]
    while stack:
        e = stack.pop()
        if isinstance(e, ast.Name) and is_index(e.id):
            found.add(e.id)
        elif not isinstance(e, ast.Subscript):
            stack += children(e)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Source:
    """What one subscript says about a variable: its upper bound (the lower is 0)."""

    extent: IndexExpr
    span: Span
    text: str


def sources_of(
    var: str,
    uses: Iterable[PlainUse],
    extent_of: Callable[[str, int], IndexExpr | None],
    target: str | None,
    first: Iterable[Source] = (),
) -> list[Source]:
    """The sources that count, by the rule of the module docstring."""
    strong, weak = list(first), list[Source]()
    for u in uses:
        if u.var != var or u.tensor == target:
            continue
        extent = extent_of(u.tensor, u.position)
        if extent is None:
            continue
        source = Source(extent, u.span, u.span.text or u.tensor)
        if not u.guards:
            strong.append(source)
        elif var not in u.guards:
            weak.append(source)
    return strong or weak


def mentions(
    var: str,
    exprs: Iterable[ast.Expr],
    extent_of: Callable[[str, int], IndexExpr | None],
    beside: Set[str],
) -> Iterator[tuple[IndexExpr | None, int]]:
    """Extents of the axes where `var` stands alone, guarded or not, or shifted, as in ``x[j+k-2]``, with the
    number that is added; None for an extent that is not known.

    No shift by a variable of `beside`, those of the same or an outer scope: ``x[i+r]`` over `i` says
    nothing of `r`.
    """
    for e in exprs:
        sides = (x for c in walk(e) for x in _guarded(c))
        guarded = {id(x) for side in sides for x in walk(side)}
        for s in walk(e):
            if not isinstance(s, ast.Subscript):
                continue
            for k, index in enumerate(s.indices):
                if _is_shifted(index, var, beside):
                    alone = id(s) not in guarded and sum(isinstance(x, ast.Name) for x in walk(index)) == 1
                    yield extent_of(s.name, k), _added(index) if alone else 0


def _guarded(e: ast.Expr) -> tuple[ast.Expr, ...]:
    """The parts of a node that are not always evaluated."""
    match e:
        case ast.Conditional(_, then, other):
            return then, other
        case ast.Padded(read, outside):
            return read, outside
        case _:
            return ()


def _is_shifted(index: ast.Expr, var: str, beside: Set[str]) -> bool:
    parts = list(walk(index))
    names = [x.id for x in parts if isinstance(x, ast.Name)]
    plain = all(
        isinstance(x, ast.Name | ast.Number) or (isinstance(x, ast.Binary) and x.op in ("+", "-"))
        for x in parts
    )
    return plain and names.count(var) == 1 and beside.isdisjoint(names)


def _added(index: ast.Expr) -> int:
    """The number in a shifted index: -1 in ``t-1``; 0 where it is none."""
    match index:
        case ast.Number(int(value)):
            return value
        case ast.Binary("+", left, right):
            return _added(left) + _added(right)
        case ast.Binary("-", left, ast.Number() as right):
            return _added(left) - _added(right)
        case _:
            return 0


def agree(
    var: str,
    sources: list[Source],
    likely: Iterable[tuple[IndexExpr | None, int]],
    facts: Facts,
    diags: Diagnostics,
    span: Span,
    example: str,
    undeclared: str | None = None,
) -> IndexExpr | None:
    """The common upper bound; None after a report.

    `example` is a range with {} for its bounds; `likely`, those of `mentions`, is for the hint where there is
    no source, and `undeclared` is a tensor whose declaration would be one.
    """
    if not sources:
        shown = example.format(likely_range(list(likely), facts))
        _no_source(var, shown, diags, span, undeclared)
        return None
    known = sources[0]
    for other in sources[1:]:
        if not facts.equal(known.extent, other.extent):
            a, b = known.extent, other.extent
            least = b if facts.at_least(a, b) else a
            hint = f"write the range, such as {example.format(f'0..{least}')}"
            if facts.may_be_equal(a, b):
                hint = f"add `where {a} == {b}` if they are equal, or {hint}"
            message = f"the range of '{var}' is ambiguous: {known.text} says 0..{a}, {other.text} says 0..{b}"
            related = ((known.span, f"here '{var}' is in 0..{a}"), (other.span, f"here it is in 0..{b}"))
            diags.error("PF301", message, span, hint, related)
            return None
    return known.extent


def _no_source(var: str, shown: str, diags: Diagnostics, span: Span, undeclared: str | None) -> None:
    """PF302. The variables of a rank variable have no ranges that can be written, and are reported once."""
    group = span.text.endswith("...")
    name = span.text if group else var
    ways = [] if group else [f"write its range, such as: {shown}"]
    if undeclared is not None and (group or "<size>" in shown):
        ways.append(f"declare the tensor: let {undeclared}: <dtype>[<extents>]")
    elif group:
        ways.append(f"read a tensor at [{name}]")
    hint = f"'{name}' stands alone in no unguarded subscript; {', or '.join(ways)}"
    diags.error("PF302", f"nothing gives the range of '{name}'", span, hint)


def likely_range(found: list[tuple[IndexExpr | None, int]], facts: Facts) -> str:
    """What keeps each index in its axis: ``1..T-1`` for ``c[t-1]`` and ``x[t+1]``."""
    extents = [e for e, _ in found if e is not None]
    certain = bool(extents) and all(facts.equal(extents[0], e) for e in extents)
    low, high = max((-n for _, n in found), default=0), max((n for _, n in found), default=0)
    upper = simplify(extents[0] - max(high, 0)) if certain else "<size>"
    return f"{max(low, 0)}..{upper}"


def free_variables(e: ast.Expr) -> Iterator[ast.Name]:
    """Bare names that no reduction binds, left to right."""
    return (x for x in free_names(e) if isinstance(x, ast.Name))
