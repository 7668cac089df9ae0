"""A scope's definitions to statements of the graph: component by component, dependences first.

For each component: calls are inlined; otherwise types are inferred (to a fixed point where tensors
define one another), then ranges and extents, then statements are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.bounds import greatest
from polyfuse.frontend_dsl.semantics.declare import collect_groups
from polyfuse.frontend_dsl.semantics.definitions import Definition
from polyfuse.frontend_dsl.semantics.groups import Group, is_plain, ordered_groups, statement_names
from polyfuse.frontend_dsl.semantics.scatter import (
    check_scatters,
    emit_initial,
    emit_scatters,
    finish_scatter,
)
from polyfuse.frontend_dsl.semantics.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.typer import Typer
from polyfuse.frontend_dsl.semantics.weak_types import BOTTOM, ERROR, Ty, assignable, computed, join
from polyfuse.frontend_dsl.syntax import ast

Inline = Callable[[Context, Scope, Group], None]


def elaborate(ctx: Context, scope: Scope, inline: Inline) -> list[Group]:
    """Append the statements of a scope to the graph; problems go to `ctx.diags`."""
    groups = collect_groups(ctx, scope)
    for members in ordered_groups(groups, ctx, scope):
        if len(members) == 1 and members[0].call is not None:
            inline(ctx, scope, members[0])
        elif all(m.call is None for m in members):
            _Component(ctx, scope, members).run()
        else:
            fail(scope, members)
    return groups


def fail(scope: Scope, members: list[Group]) -> None:
    """Errors about what these groups define were reported: later ones about them would only repeat."""
    for m in members:
        for t in m.targets:
            if t in scope.writes:
                scope.writes[t].failed = True


@dataclass(eq=False)
class _Component:
    ctx: Context
    scope: Scope
    members: list[Group]

    def __post_init__(self) -> None:
        self.definitions = {
            m.name: [Definition(s, self.scope, self.ctx) for s in (*m.defines, *m.scatters)]
            for m in self.members
        }
        self.all = [d for ds in self.definitions.values() for d in ds]
        self.value_types: dict[int, Ty] = {}

    @property
    def recursive(self) -> bool:
        targets = {t for m in self.members for t in m.targets}
        return any(not targets.isdisjoint(m.reads) for m in self.members)

    def run(self) -> None:
        before = self.ctx.diags.errors_seen
        for d in self.all:
            d.check_left()
        self._types()
        failed = any(self.scope.writes[m.name].failed for m in self.members) or self._reads_failed()
        if self.ctx.diags.errors_seen > before or failed:
            fail(self.scope, self.members)
            return
        self._ranges()
        if self.ctx.diags.errors_seen > before:
            fail(self.scope, self.members)
            return
        for m in self.members:
            self._emit(m)
        if self.ctx.diags.errors_seen > before:
            fail(self.scope, self.members)

    def _reads_failed(self) -> bool:
        """Does a definition read what an error was reported about? What is missing here follows from that."""
        names = {n for d in self.all for n in statement_names(d.stmt, self.scope)}
        reads = self.scope.reads
        return any(reads[n].failed for n in names if n in reads)

    # --- types -------------------------------------------------------------------------------------

    def _types(self) -> None:
        open_ = {id(d.info): d.info for d in self.all if not d.info.declared}
        if open_ and self.recursive:
            self._fixed_point()
        for m in self.members:
            info = self.scope.writes[m.name]
            self._let_value(m, info)
            for d in self.definitions[m.name]:
                t = d.typer.infer(d.stmt.value)
                self.value_types[id(d)] = t
                if info.declared:
                    self._check_assignable(d, t, info)
                else:
                    self._check_joint(d, t, info)
            check_scatters(self.ctx, self.scope, m)
        for d in self.all:
            if d.info.ty is BOTTOM:
                message = f"nothing but '{d.stmt.target}' itself defines '{d.stmt.target}'"
                hint = "a recurrence starts somewhere, as c[0] = x[0] does"
                self.ctx.diags.error("PF207", message, d.stmt.value.span, hint)
        for info in open_.values():
            info.settle()

    def _fixed_point(self) -> None:
        changed = True
        while changed:
            changed = False
            for d in self.all:
                if d.info.declared:
                    continue
                met = join(d.info.ty, computed(d.new_typer(Diagnostics()).infer(d.stmt.value)))
                if met is not None and met is not ERROR and met != d.info.ty:
                    d.info.ty = met
                    changed = True

    def _check_joint(self, d: Definition, t: Ty, info: TensorInfo) -> None:
        met = join(info.ty, computed(t))
        if met is None:
            message = f"the definitions of '{d.stmt.target}' have dtypes {info.ty} and {t}"
            self.ctx.diags.error("PF205", message, d.stmt.value.span, "cast one of them")
        else:
            info.ty = met

    def _check_assignable(self, d: Definition, t: Ty, info: TensorInfo) -> None:
        check_assignable(self.ctx, d.stmt.target, d.stmt.value, t, info)

    def _let_value(self, m: Group, info: TensorInfo) -> None:
        if m.let is not None and m.let.value is not None:
            typer = Typer(self.scope, self.ctx.library, self.ctx.diags)
            t = typer.infer(m.let.value)
            check_assignable(self.ctx, m.name, m.let.value, t, info)

    # --- ranges --------------------------------------------------------------------------------------

    def _ranges(self) -> None:
        """Quietly until nothing more follows, then once aloud with every extent known."""
        waiting = list(self.all)
        of_tensor: dict[int, list[Definition]] = {}
        for d in waiting:
            of_tensor.setdefault(id(d.info), []).append(d)
        left = {tensor: len(mine) for tensor, mine in of_tensor.items()}
        progress = True
        while waiting and progress:
            before, waiting = waiting, []
            for d in before:
                d.dims = d.infer_dims(Diagnostics())
                if d.dims is None:
                    waiting.append(d)
                    continue
                left[id(d.info)] -= 1
                if not left[id(d.info)]:
                    self._shape(d.info, of_tensor[id(d.info)])
            progress = len(waiting) < len(before)
        for d in self.all:
            d.dims = d.infer_dims(self.ctx.diags)
            d.failed |= d.dims is None

    def _shape(self, info: TensorInfo, mine: Sequence[Definition]) -> None:
        """What follows from all definitions of a tensor."""
        if info.declared:
            return
        per_definition = [d.extents() for d in mine]
        known = [e for e in per_definition if e is not None]
        if len(known) == len(mine):
            shape = (greatest(uppers, self.ctx) for uppers in zip(*known, strict=True))
            info.shape = tuple(shape)

    # --- statements ------------------------------------------------------------------------------------

    def _emit(self, m: Group) -> None:
        info = self.scope.writes[m.name]
        self._check_repeated(m)
        into = emit_initial(self.ctx, self.scope, m, info)
        for d in self.definitions[m.name]:
            if not d.is_scatter:
                d.emit(self.value_types[id(d)], into)
        emit_scatters(self.definitions[m.name], into)
        finish_scatter(self.ctx, m, info, into)
        whole = len(m.defines) == 1 and not m.defines[0].ranges and not self.recursive
        plain = all(is_plain(d.stmt, self.scope) for d in self.definitions[m.name])
        info.total = info.total or (m.let is not None and m.let.value is not None) or (whole and plain)

    def _check_repeated(self, m: Group) -> None:
        """Two definitions of the very same elements (other overlaps are found by isl)."""
        seen: dict[object, Definition] = {}
        for d in self.definitions[m.name]:
            if d.is_scatter or d.dims is None:
                continue
            key = tuple(map(d.place, d.stmt.indices or ()))
            if key in seen:
                first = seen[key].stmt
                self.ctx.diags.error(
                    "PF209",
                    f"'{m.name}' is defined twice for the same elements",
                    d.stmt.target_span,
                    "order does not matter in this language: give the second one another name or range",
                    ((first.target_span, "defined here first"),),
                )
            seen.setdefault(key, d)


def check_assignable(ctx: Context, name: str, value: ast.Expr, t: Ty, info: TensorInfo) -> None:
    """PF205 unless a value of type `t` may be stored in the declared tensor `info`."""
    if info.failed or t in (ERROR, BOTTOM) or assignable(t, info.dtype):
        return
    message = f"'{name}' is {info.dtype}, its definition is {t}"
    ctx.diags.error("PF205", message, value.span, f"cast it: {info.dtype}(...)")
