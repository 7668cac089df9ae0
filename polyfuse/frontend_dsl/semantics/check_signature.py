"""Checks of an operator's head: names, types, generics, sizes that no argument gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from functools import partial
from keyword import iskeyword

from polyfuse.frontend_dsl.semantics.scope import Reports
from polyfuse.frontend_dsl.semantics.signature import size_names
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.frontend_dsl.syntax.names import GENERIC_KINDS, did_you_mean, dtype_meant, is_reserved
from polyfuse.ir.dtypes import BY_NAME, QUARTERS
from polyfuse.source import Span

_QUARTERS = tuple(t.name for t in QUARTERS)
TAKEN = frozenset({"out", "self", "dtypes", "ranks"})
"""Names that calls from Python, and `specialize`, take for themselves."""


def check_signature(op: ast.OpDef, diags: Reports) -> bool:
    """Report what is wrong with the head; False if the body cannot be looked at."""
    before = diags.errors_seen
    _check_names(op, diags)
    _check_generics(op, diags)
    generics = {x.name: None for x in op.dtype_generics}
    for p in op.params + op.results:
        _check_type(generics, p.type, diags)
        if p.type.dtype in _QUARTERS and not p.type.extents:
            message = f"the scalar '{p.name}' is {p.type.dtype}, which only elements of tensors are"
            diags.error("PF268", message, p.type.dtype_span, "write f32")
    for r in op.results:
        if r.inout or r.default is not None:
            diags.error("PF222", f"the result '{r.name}' can have no default and is not inout", r.span)
    for p in op.params:
        if p.optional and (p.inout or p.default is not None or not p.type.extents):
            what = "is inout" if p.inout else "has a default" if p.default is not None else "is a scalar"
            hint = "only tensors that are read may be absent" + (
                "" if p.type.extents else "; a scalar has a default"
            )
            diags.error("PF250", f"'{p.name}' {what} and cannot be optional", p.span, hint)
    usable = diags.errors_seen == before
    if usable:
        _check_sizes(op, diags)
    return usable


def _declared(op: ast.OpDef) -> Iterator[tuple[str, str, Span]]:
    """What the head declares: name, what it is, place."""
    for x in op.generics:
        yield x.name, "size" if x.kind == ast.SIZE else "generic", x.span
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
            if isinstance(e, ast.Name | ast.Splat) and e.id in seen and not _is_size(op, e):
                what = seen[e.id][0]
                hint = "sizes have names of their own, bound from the shapes of arguments"
                diags.error("PF210", f"'{e.id}' is a {what} and cannot be an extent", e.span, hint)


def _is_size(op: ast.OpDef, e: ast.Name | ast.Splat) -> bool:
    return isinstance(e, ast.Name) and any(x.name == e.id for x in op.size_parameters)


def _check_generics(op: ast.OpDef, diags: Reports) -> None:
    kinds = (*GENERIC_KINDS, ast.SIZE)
    for x in op.generics:
        if x.kind not in kinds:
            hint = did_you_mean(x.kind, kinds) or f"kinds are {', '.join(kinds)}"
            diags.error("PF218", f"unknown kind '{x.kind}' of the generic '{x.name}'", x.span, hint)
        elif x.kind != ast.SIZE and x.default is not None:
            message = f"'{x.name}' stands for a dtype and has no default"
            diags.error("PF242", message, x.default.span, "the arguments decide")
        if x.name in BY_NAME:
            diags.error("PF210", f"'{x.name}' is a dtype and cannot be a generic", x.span)
        elif x.kind == ast.SIZE and (x.name in TAKEN or iskeyword(x.name)):
            what = "a keyword of Python" if iskeyword(x.name) else "an argument of every call"
            message = f"'{x.name}' cannot be the name of a size parameter: it is {what}"
            diags.error("PF240", message, x.name_span, "give it another name")


def _check_type(generics: Collection[str], kind: ast.TensorType, diags: Reports) -> None:
    if kind.dtype not in BY_NAME and kind.dtype not in generics:
        hint = diags.looked_up(len(generics), partial(dtype_meant, kind.dtype, generics))
        diags.error("PF218", f"unknown dtype '{kind.dtype}'", kind.dtype_span, hint)


def _check_sizes(op: ast.OpDef, diags: Reports) -> None:
    """Every size must follow from the extents of parameters, with the help of `where a == b`, or be given."""
    _check_generics_used(op, diags)
    equations = [_names(e) for p in op.params for e in p.type.extents]
    for e in op.where:
        if isinstance(e, ast.Compare) and e.ops == ("==",):
            equations.append(_names(e))
    _check_defaults(op, equations, diags)
    known = _solved(equations, {x.name for x in op.size_parameters})
    places: dict[str, Span] = {}
    for extent in (extent for p in op.params + op.results for extent in p.type.extents):
        for e in walk(extent):
            if isinstance(e, ast.Name):
                places.setdefault(e.id, e.span)
    value = f"{max(known)} // 2" if known else "8"
    for name in size_names(op):
        if name not in known:
            given = f"let callers give it: op {op.name}[{name}: size](...)"
            stated = f"say what it is, such as `where {name} == {value}`"
            hint = f"use it alone as an extent of a parameter, {stated}, or {given}"
            if not op.params or not any(p.type.extents for p in op.params):
                hint = given
            diags.error("PF219", f"the size '{name}' does not follow from the arguments", places[name], hint)


def _check_defaults(op: ast.OpDef, equations: Sequence[set[str]], diags: Reports) -> None:
    """PF241: defaults are made of earlier size parameters, and of what they and the arguments give."""
    mine = [x.name for x in op.size_parameters]
    for k, x in enumerate(op.size_parameters):
        if x.default is None:
            continue
        earlier = set(mine[:k])
        known = (_solved(equations, earlier) - set(mine[k:])) | earlier
        for e in walk(x.default):
            if not isinstance(e, ast.Name) or e.id in known:
                continue
            what = "comes later" if e.id in mine[k + 1 :] else "is not known before it"
            what = "is itself" if e.id == x.name else what
            hint = did_you_mean(e.id, known) or "a default is made of sizes of arguments and earlier sizes"
            diags.error("PF241", f"the default of '{x.name}' needs '{e.id}', which {what}", e.span, hint)


def _solved(equations: Sequence[set[str]], given: Set[str] = frozenset()) -> set[str]:
    """What follows from equations and from what is given, where one with a single unknown gives it."""
    equations = [names - given for names in equations]
    left = [len(names) for names in equations]
    having: dict[str, list[int]] = {}
    for k, names in enumerate(equations):
        for name in names:
            having.setdefault(name, []).append(k)
    known: set[str] = set(given)
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
    used = [(x.name, x.span) for x in op.dtype_generics]
    used += [(e.id, e.span) for r in op.results for e in r.type.extents if isinstance(e, ast.Splat)]
    for name, span in used:
        if name not in given:
            hint = f"no parameter's type mentions {name}"
            diags.error("PF219", f"'{name}' does not follow from the arguments", span, hint)
