"""From a program to the tensor graph of one operator at one choice of generics.

    ast.Program --monomorphise--> ast.OpDef --declare, elaborate (calls inlined)--> TensorGraph

Everything wrong with the operator is collected and raised together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.calls import inline
from polyfuse.frontend_dsl.semantics.check_signature import check_signature
from polyfuse.frontend_dsl.semantics.declare import declare_params, declare_results
from polyfuse.frontend_dsl.semantics.elaborate import elaborate
from polyfuse.frontend_dsl.semantics.functions import expanded
from polyfuse.frontend_dsl.semantics.groups import Group
from polyfuse.frontend_dsl.semantics.index_build import constraints_of, size_expr
from polyfuse.frontend_dsl.semantics.monomorphise import monomorphise, rank_variables
from polyfuse.frontend_dsl.semantics.optionals import chosen
from polyfuse.frontend_dsl.semantics.rows import with_rows
from polyfuse.frontend_dsl.semantics.scope import Context, Reports, Scope, TensorInfo, top_scope
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import identifiers
from polyfuse.frontend_dsl.syntax.names import GENERIC_KINDS, MAX_AXES, Library, Namer, did_you_mean
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import DType
from polyfuse.ir.verify_graph import verify_graph


def instantiate(
    programs: ast.Program | Sequence[ast.Program],
    op_name: str,
    *,
    dtypes: Mapping[str, DType] | None = None,
    ranks: Mapping[str, int] | None = None,
    absent: Collection[str] = (),
) -> g.TensorGraph:
    """The graph of an operator; calls are looked up in all programs.

    Args:
        programs: the program that holds the operator, then those it may call (imports, library).
        dtypes: generic -> dtype. ranks: rank variable -> number of axes.
        absent: the optional tensors that are not there.

    Raises:
        DslError: everything that is wrong with the operator and those it calls.
        ArgumentError: no such operator (PF411), or generics missing or of the wrong kind (PF410).
    """
    every = (programs,) if isinstance(programs, ast.Program) else tuple(programs)
    library = Library(every)
    found = library.find(op_name, every[0]) if every else None
    if found is None:
        hint = did_you_mean(op_name, library.names())
        raise ArgumentError(f"there is no operator '{op_name}'", code="PF411", hint=hint)
    op, home = found
    _check_generics(op, dtypes or {}, ranks or {})
    diags = Reports()
    graph, _ = build(op, home, library, diags, dtypes or {}, ranks or {}, absent)
    diags.raise_if_errors()
    assert graph is not None
    verify_graph(graph)
    return graph


def _check_generics(op: ast.OpDef, dtypes: Mapping[str, DType], ranks: Mapping[str, int]) -> None:
    kinds = {x.name: x.kind for x in op.dtype_generics}
    names = rank_variables(op)
    problems = [f"{n} is not given" for n in (*kinds, *names) if n not in dtypes and n not in ranks]
    problems += [f"there is no {n}" for n in (*dtypes, *ranks) if n not in kinds and n not in names]
    for n, t in dtypes.items():
        if n in kinds and kinds[n] in GENERIC_KINDS and t not in GENERIC_KINDS[kinds[n]]:
            problems.append(f"{n}: {kinds[n]} cannot be {t}")
    problems += [f"{n}... cannot stand for {k} axes" for n, k in ranks.items() if k < 0]
    if problems:
        raise ArgumentError(f"generics of '{op.name}': {'; '.join(problems)}", code="PF410")


def build(
    op: ast.OpDef,
    home: ast.Program,
    library: Library,
    diags: Reports,
    dtypes: Mapping[str, DType],
    ranks: Mapping[str, int],
    absent: Collection[str] = (),
) -> tuple[g.TensorGraph | None, list[Group]]:
    """The graph (None if there are errors) and the groups of its definitions, for warnings."""
    if not check_signature(op, diags):
        return None, []
    before = diags.errors_seen
    here = chosen(op, absent, diags)
    if diags.errors_seen > before:
        return None, []
    mono = expanded(monomorphise(here, dtypes, ranks, diags), home, library, diags)
    mono = with_rows(mono, home, library, diags)
    scope = top_scope(mono, op, home)
    ctx = Context(library, diags, Namer(identifiers(mono)))
    ctx.size_names = dict.fromkeys(scope.sizes, op.name_span)
    scope.inouts = frozenset(p.name for p in mono.params if p.inout)
    _assume(ctx, scope)
    _size_parameters(ctx, scope)
    declare_params(ctx, scope)
    declare_results(ctx, scope)
    groups = elaborate(ctx, scope, inline)
    if diags.errors_seen == before:
        _check_axes(ctx)
    if diags.errors_seen > before:
        return None, groups
    for p in mono.params:
        if p.inout and p.name not in scope.writes:
            diags.warning("PF291", f"inout parameter '{p.name}' is never written", p.name_span)
    return _graph(ctx, scope), groups


def _check_axes(ctx: Context) -> None:
    """Arrays of NumPy have no more axes, nor has what is computed by them more loops (PF237)."""
    for info in ctx.infos:
        if info.rank is not None and info.rank > MAX_AXES:
            message = f"'{info.name}' has {info.rank} axes, the limit is {MAX_AXES}"
            ctx.diags.error("PF237", message, info.span, _FEWER)
    for s in ctx.statements:
        if len(s.dims) > MAX_AXES >= len(s.write):
            message = f"this has {len(s.dims)} index variables, the limit is {MAX_AXES}"
            ctx.diags.error("PF237", message, s.span, _FEWER)


_FEWER = "join some into one: x[i // M, i % M]"


def _assume(ctx: Context, scope: Scope) -> None:
    """The operator's own constraints, all of them kept in the graph."""
    for e in scope.op.where:
        for c in constraints_of(e, scope.sizes, ctx.diags, scope.owner):
            if not ctx.assume(c):
                ctx.diags.error("PF221", f"this constraint never holds: {c}", e.span)


def _graph(ctx: Context, scope: Scope) -> g.TensorGraph:
    statements = _live(ctx)
    written = {s.target for s in statements}
    by_role: dict[str, list[TensorInfo]] = {"in": [], "out": [], "temp": []}
    for info in ctx.infos:
        if info.role in (g.Role.INPUT, g.Role.INOUT):
            by_role["in"].append(info)
        elif info.name in written:
            by_role["out" if info.role is g.Role.OUTPUT else "temp"].append(info)
    tensors = tuple(i.to_tensor() for part in by_role.values() for i in part)
    return g.TensorGraph(
        scope.op.name,
        tuple(scope.sizes),
        tuple(ctx.constraints),
        tensors,
        statements,
        tuple(p.name for p in scope.op.params),
        tuple(r.name for r in scope.op.results),
        scope.op.span,
        _size_parameters(ctx, scope),
    )


def _size_parameters(ctx: Context, scope: Scope) -> tuple[g.SizeParameter, ...]:
    """The sizes that callers may give, with their defaults."""
    found = []
    for x in scope.op.size_parameters:
        default = None
        if x.default is not None:
            default = size_expr(x.default, scope.sizes, ctx.diags, f"the default of '{x.name}'", scope.owner)
        found.append(g.SizeParameter(x.name, default))
    return tuple(found)


def _live(ctx: Context) -> tuple[g.Statement, ...]:
    """Statements without those that only inlining made and nothing needs."""
    inlined = {i.name for i in ctx.infos if i.inlined and i.role is g.Role.TEMP}
    needed = {s.target for s in ctx.statements if s.target not in inlined}
    writers: dict[str, list[g.Statement]] = {}
    for s in ctx.statements:
        writers.setdefault(s.target, []).append(s)
    work = sorted(needed)
    while work:
        for s in writers.get(work.pop(), ()):
            for r in g.statement_reads(s):
                if r.tensor not in needed:
                    needed.add(r.tensor)
                    work.append(r.tensor)
    return tuple(s for s in ctx.statements if s.target in needed)
