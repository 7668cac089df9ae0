"""The backward graph without what nothing reads, with what is read once where it is read.

ds[b] = sum[h](a[b, h])
dm[b] = ds[b]                becomes      dm[b] = sum[h](a[b, h])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from polyfuse.autodiff.algebra import factored
from polyfuse.ir.index_expr import IVar, substitute
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Cast,
    Expr,
    Read,
    Role,
    Statement,
    Tensor,
    map_expr,
    statement_reads,
)

Tensors = dict[str, Tensor]


def tidied(
    statements: Iterable[Statement], tensors: Tensors, reuse: Callable[[Expr], Expr]
) -> tuple[list[Statement], Tensors]:
    """The statements that results need, and their tensors."""
    found = _alive(list(statements), tensors)
    while (changed := _inlined(found, tensors, reuse)) is not None:
        found = _alive(changed, tensors)
    found = _direct(found, tensors)
    used = {s.target for s in found}
    return found, {n: t for n, t in tensors.items() if n in used}


def _alive(statements: list[Statement], tensors: Tensors) -> list[Statement]:
    needed = {n for n, t in tensors.items() if t.role is Role.OUTPUT}
    left = list(needed)
    writers: dict[str, list[Statement]] = {}
    for s in statements:
        writers.setdefault(s.target, []).append(s)
    while left:
        for s in writers.get(left.pop(), ()):
            for r in statement_reads(s):
                if r.tensor not in needed:
                    needed.add(r.tensor)
                    left.append(r.tensor)
    return [s for s in statements if s.target in needed]


def _inlined(
    statements: list[Statement], tensors: Tensors, reuse: Callable[[Expr], Expr]
) -> list[Statement] | None:
    """One definition that is read in one place, put there; None where there is none."""
    places: dict[str, list[tuple[Statement, Read]]] = {}
    for s in statements:
        for r in statement_reads(s):
            places.setdefault(r.tensor, []).append((s, r))
    writers: dict[str, int] = {}
    for s in statements:
        writers[s.target] = writers.get(s.target, 0) + 1
    for s in statements:
        found = places.get(s.target, [])
        plain = s.reduction is None and tensors[s.target].role is Role.TEMP and writers[s.target] == 1
        if not plain or len(found) != 1 or found[0][0] is s or _repeats(*found[0]):
            continue
        into, read = found[0]
        if any(isinstance(i, EXPR_TYPES) for i in read.indices):
            continue
        at = {i.name: j for i, j in zip(s.write, read.indices, strict=True) if isinstance(i, IVar)}
        value = map_expr(s.expr, lambda e: e, lambda i, at=at: substitute(i, at))  # type: ignore[misc]

        def put(e: Expr, read: Read = read, value: Expr = value) -> Expr:
            return value if e == read else e

        made = replace(into, expr=_again(map_expr(into.expr, put), reuse))
        return [made if x is into else x for x in statements if x is not s]
    return None


def _repeats(into: Statement, read: Read) -> bool:
    """Would it be computed more often there than where it stands?"""
    used = {v.name for v in read.indices if isinstance(v, IVar)}
    return {d.name for d in into.dims} - used != set() or any(read in statement_reads(into) and
        isinstance(i, EXPR_TYPES) for i in into.write)  # fmt: skip


def _again(e: Expr, reuse: Callable[[Expr], Expr]) -> Expr:
    if isinstance(e, Cast):
        return replace(e, arg=_again(e.arg, reuse))
    return reuse(factored(e)) if e.dtype.is_float and e.dtype.compute is e.dtype else e


def _direct(statements: list[Statement], tensors: Tensors) -> list[Statement]:
    """Sums of which a tensor is a copy are sums of that tensor."""
    done = list(statements)
    for s in statements:
        value = s.expr.arg if isinstance(s.expr, Cast) else s.expr
        if s.reduction or s.accumulate or not isinstance(value, Read) or value.indices != s.write:
            continue
        readers = sum(r.tensor == value.tensor for x in done for r in statement_reads(x))
        writers = [x for x in done if x.target == value.tensor]
        same = [x for x in done if x.target == s.target]
        if readers != 1 or len(writers) != 1 or len(same) != 1 or tensors[value.tensor].role is not Role.TEMP:
            continue
        (total,) = writers
        outer = tuple(d for d in total.dims if not d.reduce)
        if total.reduction != "sum" or total.accumulate or outer != s.dims or total.write != s.write:
            continue
        if isinstance(s.expr, Cast):
            continue
        done = [replace(total, name=s.name, target=s.target) if x is total else x for x in done if x is not s]
    return done
