"""Scatters: `agg[dst[e], f] += w[e]`, the values they start from, and `let` values.

    agg[dst[e], f] += w[e]     becomes   agg[i, j] = 0            (or what defines agg otherwise)
                                         agg[dst[e], f] sum= w[e]

Onto f16 and bf16 the sum is made in an f32 temp, which is rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyfuse.frontend_dsl.semantics.definitions import Definition
from polyfuse.frontend_dsl.semantics.expr_build import BuildError, ExprBuilder, identity
from polyfuse.frontend_dsl.semantics.groups import Group
from polyfuse.frontend_dsl.semantics.reductions import extract
from polyfuse.frontend_dsl.semantics.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.typer import Typer
from polyfuse.frontend_dsl.semantics.weak_types import ERROR, WEAK_FLOAT, hard
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import walk
from polyfuse.frontend_dsl.syntax.names import Namer
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.index_expr import IVar, as_index
from polyfuse.source import Span

_REDUCTION = {"+=": "sum", "max=": "max", "min=": "min"}


def check_scatters(ctx: Context, scope: Scope, m: Group) -> None:
    """Scatters go onto declared tensors, all of one kind, and do not read what they write."""
    if not m.scatters:
        return
    info, first = scope.writes[m.name], m.scatters[0]
    if not info.declared:
        hint = f"declare it with its first value: let {m.name}: f32[...] = 0"
        message = f"'{m.name}' is scattered to, but not declared"
        ctx.diags.error("PF226", message, first.target_span, hint)
        info.ty, info.failed = ERROR, True
    elif info.dtype.is_bool:
        ctx.diags.error("PF216", f"'{first.op}' is not defined for bool", first.target_span)
    for s in m.scatters:
        if s.op != first.op:
            ctx.diags.error(
                "PF227",
                f"'{m.name}' has scatters of different kinds: '{first.op}' and '{s.op}'",
                s.target_span,
                "use one tensor for each kind",
                ((first.target_span, "the first scatter"),),
            )
        if m.name in scope.inouts:
            continue
        for top in (*(s.indices or ()), s.value):
            for e in walk(top):
                mine = (isinstance(e, ast.Subscript) and e.name == m.name) or (
                    isinstance(e, ast.Name) and e.id == m.name
                )
                if mine:
                    message = f"this scatter reads its own target '{m.name}'"
                    ctx.diags.error("PF228", message, e.span, "reads see the finished tensor: use another")


def emit_initial(ctx: Context, scope: Scope, m: Group, info: TensorInfo) -> TensorInfo:
    """The statement that gives every element its value before scatters, if there is one to give.

    Returns the tensor that definitions and scatters write: an f32 temp for 16-bit targets.
    """
    into = info
    if m.scatters and info.dtype.compute is not info.dtype:
        name = ctx.tensor_names.fresh(f"{info.alias or info.name}__acc")
        into = ctx.new_info(TensorInfo(name, g.Role.TEMP, hard(info.dtype.compute), info.rank))
        into.shape, into.span, into.inlined, into.declared = info.shape, info.span, True, True
    if m.let is not None and m.let.value is not None:
        value = _let_value(ctx, scope, m.let, into)
    elif not m.scatters or m.defines:
        return into
    elif m.name in scope.inouts:
        value = None
    else:
        value = identity(_REDUCTION[m.scatters[0].op], into.dtype, m.scatters[0].span)
    dims = _all_elements(ctx, into)
    index = tuple(IVar(d.name) for d in dims)
    if value is None:
        if m.name not in scope.inouts:
            return into
        value = _entry_value(scope, m.name, index, into)
    name = ctx.statement_names.fresh(info.alias or info.name, joint="__")
    ctx.statements.append(g.Statement(name, into.name, dims, index, value, span=m.span))
    info.total = True
    return into


def _entry_value(scope: Scope, name: str, index: tuple[IVar, ...], into: TensorInfo) -> g.Expr:
    entry = scope.reads[name]
    read = g.Read(entry.name, index, entry.dtype, entry.span)
    return read if entry.dtype is into.dtype else g.Cast(read, into.dtype, entry.span)


def _let_value(ctx: Context, scope: Scope, let: ast.Let, into: TensorInfo) -> g.Expr | None:
    assert let.value is not None
    typer = Typer(scope, ctx.library, ctx.diags)
    typer.infer(let.value)
    builder = ExprBuilder(ctx, scope, typer, into.name, extract)
    try:
        return builder.stored(let.value, into.dtype)
    except BuildError:
        into.failed = True
        return None


def _all_elements(ctx: Context, info: TensorInfo) -> tuple[g.IterDim, ...]:
    """Generated loop variables over a whole tensor."""
    assert info.shape is not None
    namer = Namer(ctx.size_names)
    return tuple(g.IterDim(namer.fresh(f"i{k}"), as_index(0), e) for k, e in enumerate(info.shape))


def emit_scatters(definitions: Iterable[Definition], into: TensorInfo) -> None:
    for d in definitions:
        if d.is_scatter:
            d.emit(WEAK_FLOAT, into)


def finish_scatter(ctx: Context, m: Group, info: TensorInfo, into: TensorInfo) -> None:
    """Round the f32 sum of a 16-bit target, once."""
    if into is not info and not into.failed:
        emit_copy(ctx, into, info, m.span)


def emit_copy(ctx: Context, source: TensorInfo, target: TensorInfo, span: Span) -> None:
    """`target[...] = dtype(source[...])` for every element."""
    dims = _all_elements(ctx, target)
    index = tuple(IVar(d.name) for d in dims)
    value = g.Cast(g.Read(source.name, index, source.dtype, span), target.dtype, span)
    name = ctx.statement_names.fresh(target.alias or target.name, joint="__")
    ctx.statements.append(g.Statement(name, target.name, dims, index, value, span=span))
    target.total = True
