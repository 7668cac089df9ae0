"""Checks of an operator's head: names, types, generics, sizes that no argument gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from polyfuse.frontend_dsl.semantics.scope import Reports
from polyfuse.frontend_dsl.semantics.signature import size_names
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.frontend_dsl.syntax.names import GENERIC_KINDS, did_you_mean, dtype_meant, is_reserved
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.source import Span


def check_signature(op: ast.OpDef, diags: Reports) -> bool:
    """Report what is wrong with the head; False if the body cannot be looked at."""
    before = diags.errors_seen
    _check_names(op, diags)
    _check_generics(op, diags)
    generics = {x.name: None for x in op.generics}
    for p in op.params + op.results:
        _check_type(generics, p.type, diags)
    for r in op.results:
        if r.inout or r.default is not None:
            diags.error("PF222", f"the result '{r.name}' can have no default and is not inout", r.span)
    usable = diags.errors_seen == before
    if usable:
        _check_sizes(op, diags)
    return usable


def _declared(op: ast.OpDef) -> Iterator[tuple[str, str, Span]]:
    """What the head declares: name, what it is, place."""
    yield from ((x.name, "generic", x.span) for x in op.generics)
    yield from ((p.name, "parameter", p.name_span) for p in op.params)
    yield from ((r.name, "result", r.name_span) for r in op.results)


def _check_names(op: ast.OpDef, diags: Reports) -> None:
    if is_reserved(op.name):
        message = f"'{op.name}' is a built-in function and cannot be the name of an operator"
        diags.error("PF232", message, op.name_span)
    seen: dict[str, tuple[str, Span]] = {}
    for name, what, span in _declared(op):
        if name in seen:
            first = seen[name]
            message = f"'{name}' is declared twice: as {first[0]} and as {what}"
            diags.error("PF210", message, span, related=((first[1], "declared here first"),))
        seen.setdefault(name, (what, span))
    for p in op.params + op.results:
        for e in (x for extent in p.type.extents for x in walk(extent)):
            if isinstance(e, ast.Name | ast.Splat) and e.id in seen:
                what = seen[e.id][0]
                hint = "sizes have names of their own, bound from the shapes of arguments"
                diags.error("PF210", f"'{e.id}' is a {what} and cannot be an extent", e.span, hint)


def _check_generics(op: ast.OpDef, diags: Reports) -> None:
    for x in op.generics:
        if x.kind not in GENERIC_KINDS:
            hint = did_you_mean(x.kind, GENERIC_KINDS) or f"kinds are {', '.join(GENERIC_KINDS)}"
            diags.error("PF218", f"unknown kind '{x.kind}' of the generic '{x.name}'", x.span, hint)
        if x.name in BY_NAME:
            diags.error("PF210", f"'{x.name}' is a dtype and cannot be a generic", x.span)


def _check_type(generics: Collection[str], kind: ast.TensorType, diags: Reports) -> None:
    if kind.dtype not in BY_NAME and kind.dtype not in generics:
        hint = diags.looked_up(len(generics), partial(dtype_meant, kind.dtype, generics))
        diags.error("PF218", f"unknown dtype '{kind.dtype}'", kind.dtype_span, hint)


def _check_sizes(op: ast.OpDef, diags: Reports) -> None:
    """Every size must follow from the extents of parameters, with the help of `where a == b`."""
    _check_generics_used(op, diags)
    equations = [_names(e) for p in op.params for e in p.type.extents]
    for e in op.where:
        if isinstance(e, ast.Compare) and e.ops == ("==",):
            equations.append(_names(e))
    known = _solved(equations)
    places: dict[str, Span] = {}
    for extent in (extent for p in op.params + op.results for extent in p.type.extents):
        for e in walk(extent):
            if isinstance(e, ast.Name):
                places.setdefault(e.id, e.span)
    value = f"{max(known)} // 2" if known else "8"
    for name in size_names(op):
        if name not in known:
            example = f"such as `where {name} == {value}`"
            hint = f"use it alone as an extent of a parameter, or say what it is, {example}"
            diags.error("PF219", f"the size '{name}' does not follow from the arguments", places[name], hint)


def _solved(equations: Sequence[set[str]]) -> set[str]:
    """What follows from equations, where one with a single unknown gives it."""
    left = [len(names) for names in equations]
    having: dict[str, list[int]] = {}
    for k, names in enumerate(equations):
        for name in names:
            having.setdefault(name, []).append(k)
    known: set[str] = set()
    ready = [k for k, count in enumerate(left) if count == 1]
    while ready:
        for name in equations[ready.pop()] - known:
            known.add(name)
            for k in having[name]:
                left[k] -= 1
                if left[k] == 1:
                    ready.append(k)
    return known


def _names(e: ast.Expr) -> set[str]:
    return {x.id for x in walk(e) if isinstance(x, ast.Name)}


def _check_generics_used(op: ast.OpDef, diags: Reports) -> None:
    """Generics and rank variables must follow from parameters, too."""
    given = {p.type.dtype for p in op.params}
    given |= {e.id for p in op.params for e in p.type.extents if isinstance(e, ast.Splat)}
    used = [(x.name, x.span) for x in op.generics]
    used += [(e.id, e.span) for r in op.results for e in r.type.extents if isinstance(e, ast.Splat)]
    for name, span in used:
        if name not in given:
            hint = f"no parameter's type mentions {name}"
            diags.error("PF219", f"'{name}' does not follow from the arguments", span, hint)
