"""Names of one operator: signature checks, tensors of the body, groups of definitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from polyfuse.frontend_dsl.semantics.expr_build import fit
from polyfuse.frontend_dsl.semantics.groups import Group
from polyfuse.frontend_dsl.semantics.index_build import size_expr
from polyfuse.frontend_dsl.semantics.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.signature import literal_value
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.names import axes, did_you_mean, dtype_meant
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BY_NAME, DType
from polyfuse.ir.index_expr import IConst, IndexExpr
from polyfuse.source import Span


def dtype_of(kind: ast.TensorType, ctx: Context) -> DType | None:
    """The dtype a type names; None after a report."""
    found = BY_NAME.get(kind.dtype)
    if found is None:
        hint = dtype_meant(kind.dtype)
        ctx.diags.error("PF218", f"unknown dtype '{kind.dtype}'", kind.dtype_span, hint)
    return found


def shape_of(kind: ast.TensorType, scope: Scope, ctx: Context) -> tuple[IndexExpr, ...] | None:
    """The extents of a type over the graph's sizes; None after a report."""
    found = [size_expr(e, scope.sizes, ctx.diags, "an extent", scope.owner) for e in kind.extents]
    for e, written in zip(found, kind.extents, strict=True):
        if isinstance(e, IConst) and e.value < 0:
            ctx.diags.error("PF220", f"the extent {e.value} is negative", written.span)
    shape = tuple(e for e in found if e is not None)
    return shape if len(shape) == len(found) else None


def declare_info(info: TensorInfo, kind: ast.TensorType, scope: Scope, ctx: Context) -> TensorInfo:
    info.declare(dtype_of(kind, ctx), shape_of(kind, scope, ctx), len(kind.extents))
    return info


def declare_params(ctx: Context, scope: Scope) -> None:
    """Inputs and inout pairs of the operator that is compiled."""
    written = _written_names(scope.op)
    for p in scope.op.params:
        if p.name in scope.reads:
            continue
        role = g.Role.INOUT if p.inout else g.Role.INPUT
        info = ctx.new_info(TensorInfo(p.name, role, span=p.span, total=True))
        scope.reads[p.name] = declare_info(info, p.type, scope, ctx)
        info.default = _default(p, info, ctx)
    for p in scope.op.params:
        if p.inout and p.name in written:
            declare_inout(p, scope, ctx)


def declare_inout(p: ast.Param, scope: Scope, ctx: Context) -> None:
    """The tensor that holds what an inout parameter becomes."""
    entry = scope.reads[p.name]
    name = ctx.tensor_names.fresh(f"{p.name}__out")
    out = ctx.new_info(TensorInfo(name, g.Role.OUTPUT, span=p.span, alias=entry.name, total=True))
    out.ty, out.rank, out.shape, out.declared = entry.ty, entry.rank, entry.shape, True
    out.failed = entry.failed
    scope.writes[p.name] = out


def declare_results(ctx: Context, scope: Scope) -> None:
    """Results of the operator that is compiled."""
    for r in scope.op.results:
        if r.name not in scope.reads:
            info = declare_info(TensorInfo(r.name, g.Role.OUTPUT, span=r.span), r.type, scope, ctx)
            scope.reads[r.name] = scope.writes[r.name] = ctx.new_info(info)


def _written_names(op: ast.OpDef) -> set[str]:
    found: set[str] = set()
    for s in op.body:
        found |= set(s.targets) if isinstance(s, ast.CallStmt) else set()
        found |= {s.target} if isinstance(s, ast.Define) else set()
    return found


def _default(p: ast.Param, info: TensorInfo, ctx: Context) -> float | int | bool | None:
    if p.default is None:
        return None
    if p.type.extents or p.inout:
        ctx.diags.error("PF222", f"only scalar parameters have defaults; '{p.name}' is none", p.default.span)
        return None
    return default_value(p.default, info, ctx)


def default_value(e: ast.Expr, info: TensorInfo, ctx: Context) -> float | int | bool | None:
    """A literal as a value of the parameter's dtype; None after a report (PF222)."""

    value = literal_value(e)
    if info.failed:
        return None
    fitted = None if value is None else fit(value, info.dtype)
    if fitted is None:
        ctx.diags.error("PF222", f"the default {e.span.text} is no value of dtype {info.dtype}", e.span)
    return fitted


# --- bodies --------------------------------------------------------------------------------------------


@dataclass
class _Collector:
    ctx: Context
    scope: Scope

    def __post_init__(self) -> None:
        self.by_target: dict[str, Group] = {}
        self.groups: list[Group] = []
        self.inputs = {p.name for p in self.scope.op.params if not p.inout}

    def run(self) -> list[Group]:
        numbered, library = list(enumerate(self.scope.op.body)), self.ctx.library
        for order, stmt in numbered:
            if isinstance(stmt, ast.Let):
                self._let(stmt, order)
        for order, stmt in numbered:
            match stmt:
                case ast.Let():
                    pass
                case ast.CallStmt():
                    self._call(stmt, order)
                case ast.Define(target, None | (), "=", ast.Call() as call) if library.is_operator(
                    call.callee, self.scope.home
                ):
                    as_call = ast.CallStmt((target,), call, (stmt.target_span,), stmt.span)
                    if stmt.ranges:
                        message = "a call defines a whole tensor and takes no ranges"
                        self.ctx.diags.error("PF306", message, stmt.ranges[0].span)
                    self._call(as_call, order)
                case ast.Define():
                    self._define(stmt, order)
        return self.groups

    def _group(self, targets: tuple[str, ...], order: int, span: Span) -> Group:
        group = self.by_target.get(targets[0]) if targets else None
        if group is None or len(targets) > 1:
            group = Group(targets, order, span)
            self.groups.append(group)
            self.by_target.update(dict.fromkeys(targets, group))
        return group

    def _let(self, stmt: ast.Let, order: int) -> None:
        before = self.scope.reads.get(stmt.name)
        old = self.by_target.get(stmt.name)
        if stmt.name in self.scope.sizes:
            self.ctx.diags.error("PF210", f"'{stmt.name}' is a size already", stmt.name_span)
            return
        if (before is not None and before.declared) or (old is not None and old.let is not None):
            place = before.span if before is not None else stmt.span
            self._duplicate_name(stmt.name, stmt.name_span, place)
            return
        info = self._new_info(stmt.name, stmt.name_span, before)
        declare_info(info, stmt.type, self.scope, self.ctx)
        group = self._group((stmt.name,), order, stmt.name_span)
        group.let = stmt

    def _duplicate_name(self, name: str, span: Span, place: Span) -> None:
        message = f"'{name}' is declared twice"
        self.ctx.diags.error("PF210", message, span, related=((place, "declared here first"),))

    def _new_info(self, name: str, span: Span, known: TensorInfo | None = None) -> TensorInfo:
        if known is not None:
            return known
        scope, ctx = self.scope, self.ctx
        graph_name = ctx.tensor_names.fresh(scope.prefix + name) if scope.inlined else name
        info = ctx.new_info(TensorInfo(graph_name, g.Role.TEMP, span=span, inlined=scope.inlined))
        scope.reads[name] = scope.writes[name] = info
        return info

    def _writable(self, name: str, span: Span) -> bool:
        """Reports writes to inputs and to sizes, and makes the tensor known."""
        if name in self.inputs:
            hint = f"declare it `inout {name}: ...` to update it in place, or define another tensor"
            self.ctx.diags.error("PF211", f"'{name}' is an input and cannot be written", span, hint)
            return False
        if name in self.scope.sizes:
            self.ctx.diags.error("PF210", f"'{name}' is a size and cannot be defined", span)
            return False
        self._new_info(name, span, self.scope.reads.get(name))
        return True

    def _call(self, stmt: ast.CallStmt, order: int) -> None:
        spans = dict(zip(stmt.targets, stmt.target_spans, strict=False))
        if len(spans) < len(stmt.targets):
            self.ctx.diags.error("PF209", "a tensor occurs twice on the left of a call", stmt.span)
            return
        writable = [self._writable(t, spans.get(t, stmt.span)) for t in stmt.targets]
        if not all(writable):
            self._give_up(stmt)
            return
        lets = []
        for t in stmt.targets:
            old = self.by_target.get(t)
            if old is not None and (old.call or old.defines or old.scatters or (old.let and old.let.value)):
                self._defined_twice(t, spans.get(t, stmt.span), old)
                self._give_up(stmt)
                return
            lets += [old] if old is not None else []
        for old in lets:
            self.groups.remove(old)
            del self.by_target[old.name]
        group = self._group(stmt.targets, order, stmt.span)
        group.call = stmt

    def _give_up(self, stmt: ast.CallStmt) -> None:
        """What a call that was refused would define is not defined."""
        for t in stmt.targets:
            if t in self.scope.writes and t not in self.by_target:
                self.scope.writes[t].failed = True

    def _defined_twice(self, name: str, span: Span, old: Group) -> None:
        self.ctx.diags.error(
            "PF209", f"'{name}' is defined twice", span, related=((old.span, "defined here first"),)
        )

    def _define(self, stmt: ast.Define, order: int) -> None:
        if not self._writable(stmt.target, stmt.target_span):
            return
        old = self.by_target.get(stmt.target)
        initial = old is not None and old.let is not None and old.let.value is not None
        if old is not None and (old.call is not None or (initial and stmt.op == "=")):
            self._defined_twice(stmt.target, stmt.target_span, old)
            return
        if not self._rank_agrees(stmt):
            return
        group = self._group((stmt.target,), order, stmt.target_span)
        (group.defines if stmt.op == "=" else group.scatters).append(stmt)

    def _rank_agrees(self, stmt: ast.Define) -> bool:
        info, mine = self.scope.writes[stmt.target], len(stmt.indices or ())
        if info.rank is None:
            info.rank = mine
        if info.rank == mine:
            return True
        where = "is declared with" if info.declared else "has elsewhere"
        message = f"'{stmt.target}' {where} {axes(info.rank)}, here it has {mine}"
        hint = None
        if not mine:
            letters = ", ".join("ijklmnpq"[k % 8] for k in range(info.rank))
            hint = f"a definition says what each element is: {stmt.target}[{letters}] = ..."
        related = ((info.span, "introduced here"),)
        self.ctx.diags.error("PF204", message, stmt.target_span, hint, related)
        info.failed = True
        return False


def collect_groups(ctx: Context, scope: Scope) -> list[Group]:
    """The groups of a body; declares its tensors. Reports duplicates and writes to inputs."""
    groups = _Collector(ctx, scope).run()
    scope.updated = {t for group in groups for t in group.targets} & scope.inouts
    for group in groups:
        if group.let and not (group.let.value or group.defines or group.scatters or group.call):
            name = group.name
            ctx.diags.error("PF208", f"'{name}' is declared but never defined", group.let.name_span)
            scope.writes[name].failed = True
    targets = dict.fromkeys(t for grp in groups for t in grp.targets)
    for r in scope.op.results:
        info = scope.writes.get(r.name)
        if info is not None and r.name not in targets and not info.failed:
            hint = ctx.diags.looked_up(len(targets), partial(did_you_mean, r.name, targets))
            ctx.diags.error("PF208", f"result '{r.name}' is never defined", r.name_span, hint)
            info.failed = True
    return groups
