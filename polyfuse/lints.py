"""Lints: what is legal and often not meant. `polyfuse check` and the language server report them.

    PF295   a size that nothing depends on
    PF296   a division by a size that may be 0, where the result is seen
    PF297   a sum in f32 of more elements than f32 can count
    PF298   an index from data that nothing keeps in range: it is clamped

A comment ``# pf: ignore[PF298]`` behind a statement, or on the line above it, silences codes of warnings
there; PF299 is one that silences nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product as combinations

from polyfuse.diagnostics import Diagnostic, Edit, Fix, Severity
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import statement_exprs, walk
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, evaluate, product, variables
from polyfuse.ir.index_expr import sizes as sizes_in
from polyfuse.ir.intervals import of_tree
from polyfuse.ir.tensor_graph import (
    ARG_REDUCTIONS,
    EXPR_TYPES,
    Apply,
    Cast,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    TensorGraph,
)
from polyfuse.ir.tensor_graph import walk as parts_of
from polyfuse.poly.model.dependences import Guard, guarded_parts
from polyfuse.source import Span

MOST_COUNTED = 2**24
"""f32 counts no further: 2^24 + 1 is rounded to 2^24."""

# Sizes at which constraints are tried; the divisor is 0, all others are alike.
_OTHERS = (1, 2, 3, 4, 8, 64)


def lints(op: ast.OpDef, graph: TensorGraph) -> list[Diagnostic]:
    """The lints of an operator without errors; `graph` is one instance of it."""
    found = [*_unused_sizes(op), *_zero_divisions(op, graph), *_large_sums(graph), *_clamped_gathers(graph)]
    return list({(d.code, d.span and d.span.start): d for d in found}.values())


def _warn(code: str, message: str, span: Span, hint: str, fix: Fix | None = None) -> Diagnostic:
    return Diagnostic(code, message, span, hint, Severity.WARNING, fix=fix)


# --- sizes ------------------------------------------------------------------------------------------------


def _unused_sizes(op: ast.OpDef) -> Iterator[Diagnostic]:
    """PF295: sizes of parameters that nothing reads, which no result and no constraint has either."""
    body = [x for s in op.body for e in statement_exprs(s) for x in walk(e)]
    body += [x for s in op.body if isinstance(s, ast.Let) for e in s.type.extents for x in walk(e)]
    mentioned = {x.id for x in body if isinstance(x, ast.Name)}
    mentioned |= {x.name for x in body if isinstance(x, ast.Subscript)}
    needed = [e for p in (*op.params, *op.results) if _is_needed(p, op, mentioned) for e in p.type.extents]
    needed += [g.default for g in op.size_parameters if g.default is not None]
    used = mentioned | {x.id for e in (*needed, *op.where) for x in walk(e) if isinstance(x, ast.Name)}
    for g in op.size_parameters:
        if g.name not in used and not g.name.startswith("_"):
            yield _warn("PF295", f"nothing depends on the size '{g.name}'", g.name_span, "take it out")
    seen = {g.name for g in op.size_parameters}
    for p in op.params:
        for x in (x for e in p.type.extents for x in walk(e)):
            if isinstance(x, ast.Name) and x.id not in used | seen:
                seen.add(x.id)
                hint = f"read '{p.name}', or take it out"
                yield _warn("PF295", f"nothing depends on the size '{x.id}'", x.span, hint)


def _is_needed(p: ast.Param, op: ast.OpDef, mentioned: set[str]) -> bool:
    return p.inout or p.name in mentioned or p.name.startswith("_") or p in op.results


# --- divisions by sizes -----------------------------------------------------------------------------------


def _zero_divisions(op: ast.OpDef, graph: TensorGraph) -> Iterator[Diagnostic]:
    """PF296: `s / H` where H may be 0 while an element that it goes into exists."""
    for s in graph.statements:
        for e in parts_of(s.expr):
            divisor = _size_divisor(e)
            if divisor is None or e.span.text.startswith("mean["):
                continue
            for name in sizes_in(divisor):
                at = _sizes_with_zero(graph, name)
                if at is not None and evaluate(divisor, at) == 0 and _is_seen(graph, s, at):
                    message = f"this divides by 0 where {name} is 0"
                    hint = f"say that it is not: `where {name} >= 1`"
                    yield _warn("PF296", message, e.span, hint, _with_constraint(op, f"{name} >= 1"))


def _size_divisor(e: Expr) -> IndexExpr | None:
    """The divisor of a division of floats, if sizes alone tell it."""
    if not (isinstance(e, Apply) and e.op == "div" and e.dtype.is_float):
        return None
    divisor = _uncast(e.args[1])
    known = isinstance(divisor, IndexValue) and sizes_in(divisor.index) and not variables(divisor.index)
    return divisor.index if known and isinstance(divisor, IndexValue) else None


def _uncast(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e


def _sizes_with_zero(graph: TensorGraph, name: str) -> dict[str, int] | None:
    """Sizes that the constraints allow, one of them 0 and the others alike."""
    for value in _OTHERS:
        at = {n: 0 if n == name else value for n in graph.sizes}
        if all(_holds(c.op, evaluate(c.left, at), evaluate(c.right, at)) for c in graph.constraints):
            return at
    return None


def _holds(op: str, left: int, right: int) -> bool:
    return {
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[op]


def _is_seen(graph: TensorGraph, s: Statement, at: Mapping[str, int]) -> bool:
    """Whether a value of the statement comes into an element of a result at these sizes."""
    waiting, done = [s], set[str]()
    while waiting:
        now = waiting.pop()
        if now.name in done or not _runs(now.dims, at):
            continue
        done.add(now.name)
        if graph.tensor(now.target).role is not Role.TEMP:
            return True
        waiting += graph.readers(now.target)
    return False


def _runs(dims: Sequence[IterDim], at: Mapping[str, int]) -> bool:
    """Whether the loops have iterations, as far as sizes alone tell."""
    fixed = [d for d in dims if not variables(d.lower) and not variables(d.upper)]
    return all(evaluate(d.lower, at) < evaluate(d.upper, at) for d in fixed)


def _with_constraint(op: ast.OpDef, constraint: str) -> Fix:
    """Adds a constraint to an operator: calls that it forbids are errors then."""
    if op.where:
        last = op.where[-1].span
        return Fix(f"add the constraint {constraint}", (Edit(_behind(last), f", {constraint}"),), False)
    text, start = op.span.source.text, op.name_span.end
    brace = next(m.start() for m in re.compile(r"#[^\n]*|\{").finditer(text, start) if m[0] == "{")
    blank = "" if text[brace - 1].isspace() else " "
    edit = Edit(Span(op.span.source, brace, brace), f"{blank}where {constraint} ")
    return Fix(f"add `where {constraint}`", (edit,), False)


def _behind(span: Span) -> Span:
    return Span(span.source, span.end, span.end)


# --- sums -------------------------------------------------------------------------------------------------


def _large_sums(graph: TensorGraph) -> Iterator[Diagnostic]:
    """PF297: sums over ranges of constants that are longer than f32 can count."""
    for s in graph.statements:
        if s.reduction != "sum" or s.accumulate or s.expr.dtype.compute is not F32:
            continue
        lengths = [_length(d) for d in s.dims if d.reduce]
        count = 1
        for n in lengths:
            count *= n
        if count > MOST_COUNTED:
            message = f"a sum of {count} elements in f32, which counts to {MOST_COUNTED}"
            hint = "sum in f64, f64(x[i]), or in parts: a sum of sums"
            yield _warn("PF297", message, s.span, hint)


def _length(d: IterDim) -> int:
    """The iterations of a loop between constants; else at least none, which counts as one."""
    if isinstance(d.lower, IConst) and isinstance(d.upper, IConst):
        return max(d.upper.value - d.lower.value, 0)
    return 1


# --- indices from data ------------------------------------------------------------------------------------


def _clamped_gathers(graph: TensorGraph) -> Iterator[Diagnostic]:
    """PF298: reads at an index from data that nothing in the program keeps in range."""
    for s in graph.statements:
        for e, guards in guarded_parts(s):
            if not isinstance(e, Read):
                continue
            shape = graph.tensor(e.tensor).shape
            for index, extent in zip(e.indices, shape, strict=True):
                if isinstance(index, EXPR_TYPES) and not _is_inside(graph, index, extent, guards):
                    name = graph.tensor(e.tensor).alias or e.tensor
                    message = f"an index of '{name}' may be out of 0..{extent}; it is clamped"
                    hint = "bring it in range or guard the read; with checked=True a call refuses it"
                    yield _warn("PF298", message, e.span, hint)


def _is_inside(graph: TensorGraph, index: Expr, extent: IndexExpr, guards: tuple[Guard, ...]) -> bool:
    """Whether the program says something of the range: a guard, bounds, or argmax."""
    bare = _uncast(index)
    if any(_uncast(part) == bare for g in guards for part in parts_of(g.cond)):
        return True
    return _holds_positions(graph, index, extent, {})


def _holds_positions(graph: TensorGraph, e: Expr, extent: IndexExpr, seen: dict[str, IndexExpr]) -> bool:
    """Whether all values lie in the range: by bounds, in tensors that hold only such values, or what argmax
    and argmin of the range gave. `seen` are tensors that are being asked, and of which range: a recurrence
    adds no values."""
    bare = _uncast(e)
    low, high = of_tree(e)
    above = isinstance(extent, IConst) and high < extent.value
    if (low >= 0 or _is_bounded(bare, "max")) and (above or _is_bounded(bare, "min")):
        return True
    match bare:
        case Select(_, then, other):
            return all(_holds_positions(graph, x, extent, seen) for x in (then, other))
        case Apply("floordiv", (whole, divisor)) if isinstance(by := _uncast(divisor), IndexValue):
            return _holds_positions(graph, whole, product((extent, by.index)), seen)
        case Read(name) if name in seen:
            return seen[name] == extent
        case Read(name):
            seen[name] = extent
            writers = graph.writers(name)
            return bool(writers) and all(_gives_positions(graph, s, extent, seen) for s in writers)
        case _:
            return False


def _gives_positions(graph: TensorGraph, s: Statement, extent: IndexExpr, seen: dict[str, IndexExpr]) -> bool:
    if s.reduction in ARG_REDUCTIONS:
        return all(d.upper == extent for d in s.dims if d.reduce)
    if _is_row(s, extent):
        return True
    extreme = s.reduction in ("max", "min") and not s.accumulate
    return (s.reduction is None or extreme) and _holds_positions(graph, s.expr, extent, seen)


def _is_row(s: Statement, extent: IndexExpr) -> bool:
    """Whether it is `row(ptr, e)`, of pointers to so many rows: where these begin is theirs to say."""
    over = {d.name: d.upper for d in s.dims if d.reduce}
    match s.expr:
        case Select(_, then, other) if s.reduction == "max" and of_tree(other) == (-1, -1):
            n = _uncast(then)
            place = n.index if isinstance(n, IndexValue) else None
            return isinstance(place, IVar) and over == {place.name: binary("+", extent, 1)}
        case _:
            return False


def _is_bounded(e: Expr, op: str) -> bool:
    """`min(max(e, 0), N - 1)`, `e % N`."""
    match e:
        case Apply("mod", (_, divisor)):
            return isinstance(_uncast(divisor), IndexValue)
        case Apply(name, args) if name in ("min", "max"):
            return name == op or any(_is_bounded(_uncast(a), op) for a in args)
        case _:
            return False


# --- comments that silence --------------------------------------------------------------------------------

_IGNORE = re.compile(r"#\s*pf:\s*ignore\[([A-Z0-9,\s]*)\]")


def audible(program: ast.Program, found: Sequence[Diagnostic]) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """The findings that no comment silences, and PF299 for comments that silence none."""
    loud, used = list(found), set[tuple[int, str]]()
    comments = [(c, m) for c in program.comments if (m := _IGNORE.search(c.text))]
    silent: dict[tuple[int, str], ast.Comment] = {}
    for c, m in comments:
        codes = [code.strip() for code in m[1].split(",")]
        silent |= dict.fromkeys(combinations(_lines_of(program, c), codes), c)
    for d in found:
        key = (d.span.line if d.span else 0, d.code)
        if d.severity is Severity.WARNING and key in silent and d.span and d.span.source is program.source:
            loud.remove(d)
            used.add((silent[key].span.start, d.code))
    idle = {(c.span.start, code): c for (_, code), c in silent.items()}
    return loud, [
        _warn("PF299", f"this silences no {code}", c.span, "take it out")
        for (start, code), c in idle.items()
        if (start, code) not in used
    ]


def _lines_of(program: ast.Program, c: ast.Comment) -> range:
    """The lines that a comment speaks of: its statement, or the next one if it stands alone."""
    line = c.span.line
    nodes = [n.span for op in program.ops for n in (*op.params, *op.results, *op.body)]
    if c.own_line:
        line = min((n.line for n in nodes if n.line > line), default=line)
    around = [(n.line, n.source.line_column(n.end)[0]) for n in nodes]
    held = [(a, b) for a, b in around if a <= line <= b]
    return range(min((a for a, _ in held), default=line), max((b for _, b in held), default=line) + 1)
