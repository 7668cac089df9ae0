"""One definition: its left side, its variables and their ranges, and the statements it becomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.bounds import (
    end,
    explicit,
    extent_in,
    highest,
    in_order,
    shown_extent_in,
)
from polyfuse.frontend_dsl.semantics.expr_build import BuildError, ExprBuilder
from polyfuse.frontend_dsl.semantics.groups import left_variables
from polyfuse.frontend_dsl.semantics.index_build import AFFINE, NotIndex, is_index_only, to_index
from polyfuse.frontend_dsl.semantics.ranges_infer import (
    Source,
    agree,
    free_variables,
    mentions,
    plain_uses,
    sources_of,
)
from polyfuse.frontend_dsl.semantics.reductions import extract, operand_dtype, place_of, reduction_over
from polyfuse.frontend_dsl.semantics.scope import Context, Scope, TensorInfo
from polyfuse.frontend_dsl.semantics.size_algebra import simplify
from polyfuse.frontend_dsl.semantics.typer import Typer
from polyfuse.frontend_dsl.semantics.weak_types import Ty
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import bounds, walk
from polyfuse.frontend_dsl.syntax.expr_text import expr_text
from polyfuse.ir import tensor_graph as g
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, as_index, binary, variables


@dataclass(eq=False)
class Definition:
    """A `Define` statement in its scope; `dims` maps its variables to dims once ranges are known."""

    stmt: ast.Define
    scope: Scope
    ctx: Context
    variables: tuple[ast.Name, ...] = ()
    typer: Typer = field(init=False)
    dims: dict[str, g.IterDim] | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.variables = tuple(self._variables())
        self.typer = self.new_typer(self.ctx.diags)

    @property
    def info(self) -> TensorInfo:
        """The tensor that is written."""
        return self.scope.writes[self.stmt.target]

    @property
    def is_scatter(self) -> bool:
        return self.stmt.op != "="

    @property
    def base(self) -> str:
        """What names of statements and temps begin with."""
        return self.info.alias or self.info.name

    @property
    def target(self) -> str | None:
        """The name whose reads are self-reads."""
        return None if self.stmt.target in self.scope.inouts else self.stmt.target

    def new_typer(self, diags: Diagnostics) -> Typer:
        typer = Typer(self.scope, self.ctx.library, diags, [v.id for v in self.variables])
        typer.target = self.target
        return typer

    def _variables(self) -> Iterator[ast.Name]:
        """Index variables: those of the left side; for scatters also those of subscripts and ranges."""
        if not self.is_scatter:
            yield from left_variables(self.stmt, self.scope)
            return
        sides = (*(self.stmt.indices or ()), self.stmt.value)
        inside = {r.var for r in self.stmt.ranges}
        inside |= {x.id for i in self.stmt.indices or () for x in walk(i) if isinstance(x, ast.Name)}
        for e in walk(self.stmt.value):
            if isinstance(e, ast.Subscript):
                inside |= {x.id for i in e.indices for x in walk(i) if isinstance(x, ast.Name)}
        seen: set[str] = set()
        for e in sides:
            for name in free_variables(e):
                known = name.id in self.scope.sizes or self.scope.scalar(name.id) is not None
                if name.id in inside and not known and name.id not in seen:
                    seen.add(name.id)
                    yield name
        ranged = ((r.var, r.span) for r in self.stmt.ranges)
        yield from (ast.Name(n, s) for n, s in ranged if n not in seen)

    # --- checks ------------------------------------------------------------------------------------

    def check_left(self) -> None:
        """Left indices are distinct variables, constants or affine; ranges belong to variables."""
        seen: set[str] = set()
        for i in self.stmt.indices or ():
            if self.is_scatter:
                self.typer.index(i)
            elif isinstance(i, ast.Name) and i.id not in self.scope.sizes:
                self._check_variable(i, seen)
            else:
                self._check_computed(i)
        ranged: set[str] = set()
        for r in self.stmt.ranges:
            self._check_range(r, ranged)

    def _error(self, code: str, message: str, e: ast.Expr | ast.VarRange, hint: str | None = None) -> None:
        self.ctx.diags.error(code, message, e.span, hint)
        self.failed = True

    def _check_variable(self, i: ast.Name, seen: set[str]) -> None:
        if i.id in seen:
            other = self._free_letter()
            hint = f"for the diagonal call one '{other}' and write: ... if {i.id} == {other} else 0.0"
            self._error("PF305", f"the variable '{i.id}' stands twice on the left side", i, hint)
        elif self.scope.scalar(i.id) is not None:
            message = f"'{i.id}' is a scalar and cannot be an index variable"
            self._error("PF223", message, i, "choose another name for the variable")
        seen.add(i.id)

    def _check_computed(self, i: ast.Expr) -> None:
        """An index of several parts: quasi-affine in the variables."""
        names = [x for x in walk(i) if isinstance(x, ast.Name)]
        for scalar in (x for x in names if x.id not in self.scope.sizes and self.scope.scalar(x.id)):
            message = f"'{scalar.id}' is a scalar and cannot be an index variable"
            self._error("PF223", message, scalar, "choose another name for the variable")
            return
        if not is_index_only(i, self.typer.lookup):
            data = any(isinstance(x, ast.Subscript | ast.Reduce) for x in walk(i))
            what = f"'{expr_text(i)}', which is no index of variables and sizes"
            hint = "to write where another tensor says, scatter: t[idx[i]] += x[i]" if data else AFFINE
            self._error("PF304", f"the left side holds {what}", i, hint)
        elif {x.id for x in names} - {*self.scope.sizes} and any(isinstance(x, ast.Call) for x in walk(i)):
            message = "the left side holds 'min' or 'max' of a variable"
            self._error("PF304", message, i, "define each part in a statement of its own, with a range")
        else:
            try:
                to_index(i, self.typer.lookup)
            except NotIndex as problem:
                problem.report(self.ctx.diags)
                self.failed = True

    def _free_letter(self) -> str:
        taken = {*self.scope.sizes, *self.scope.reads, *(v.id for v in self.variables)}
        return next(x for x in chain("ijkl", (f"i{n}" for n in count(2))) if x not in taken)

    def _check_range(self, r: ast.VarRange, ranged: set[str]) -> None:
        if r.var in ranged:
            self._error("PF306", f"'{r.var}' has two ranges", r)
        elif r.var not in {v.id for v in self.variables}:
            hint = "a reduction takes its range inside: sum[i in 0..N](...)"
            self._error("PF306", f"'{r.var}' is no index variable of '{self.stmt.target}' here", r, hint)
        ranged.add(r.var)
        for b in bounds((r,)):
            self.typer.bound(b)

    # --- ranges --------------------------------------------------------------------------------------

    def infer_dims(self, diags: Diagnostics) -> dict[str, g.IterDim] | None:
        """Ranges of the variables, None after a report."""
        names = {v.id: self.scope.variable(v.id, self.ctx) for v in self.variables}
        env = {v: IVar(n) for v, n in names.items()}

        def lookup(name: str) -> IndexExpr | None:
            return env[name] if name in env else self.scope.sizes.get(name)

        found: dict[str, tuple[IndexExpr, IndexExpr]] = {}
        written = {r.var: r for r in self.stmt.ranges}
        for v in self.variables:
            try:
                fixed = explicit(written[v.id], lookup) if v.id in written else None
            except NotIndex:
                return None
            upper = fixed[1] if fixed else self._inferred(v, diags)
            if upper is not None:
                found[v.id] = (fixed[0] if fixed else as_index(0), upper)
        if len(found) < len(names):
            return None
        by_graph_name = {names[v]: b for v, b in found.items()}
        order = in_order(names.values(), by_graph_name)
        if order is None:
            diags.error("PF307", "these ranges depend on one another in a circle", self.stmt.ranges[0].span)
            return None
        text = {n: v for v, n in names.items()}
        return {text[n]: g.IterDim(n, *by_graph_name[n]) for n in order}

    def _inferred(self, v: ast.Name, diags: Diagnostics) -> IndexExpr | None:
        mine = {x.id for x in self.variables}
        sides: list[ast.Expr] = [self.stmt.value]
        if self.is_scatter:
            sides += self.stmt.indices or ()
        is_index = lambda name: name in mine or name in self.scope.sizes  # noqa: E731
        uses = [u for e in sides for u in plain_uses(e, is_index)]
        left = []
        if self.info.declared and self.info.shape is not None:
            for i, extent in zip(self.stmt.indices or (), self.info.shape, strict=False):
                if isinstance(i, ast.Name) and i.id == v.id:
                    left.append(Source(extent, i.span, "the left side"))
        found = sources_of(v.id, uses, partial(extent_in, self.scope), self.target, left)
        likely = [*mentions(v.id, sides, partial(shown_extent_in, self.scope), mine - {v.id})]
        if len(self.scope.sizes) == 1 and not any(extent for extent, _ in likely):
            likely += [(self.scope.in_own_sizes(only), 0) for only in self.scope.sizes.values()]
        undeclared = None if self.info.declared or self.is_scatter else self.target
        example = f"for {v.id} in {{}}"
        return agree(v.id, found, likely, self.ctx.facts, diags, v.span, example, undeclared)

    def place(self, i: ast.Expr) -> object:
        """What an index of the left side defines: a range, or an expression and the ranges in it."""
        dims = self.dims or {}
        used = [dims[x.id] for x in walk(i) if isinstance(x, ast.Name) and x.id in dims]
        ranges = tuple((d.lower, d.upper) for d in used)
        return ranges if isinstance(i, ast.Name) and used else (i, ranges)

    def extents(self) -> list[tuple[IndexExpr, bool]] | None:
        """Per axis: the least extent that holds what this defines, and whether the elements are constants."""
        assert self.dims is not None
        by_name = {d.name: d for d in self.dims.values()}
        names = {v: IVar(d.name) for v, d in self.dims.items()}
        result = []
        for i in self.stmt.indices or ():
            alone = self.dims.get(i.id) if isinstance(i, ast.Name) else None
            index = to_index(i, lambda n: names.get(n) or self.scope.sizes.get(n), affine=False)
            beyond = alone.upper if alone else binary("+", index, 1)
            top = highest(beyond, by_name) or (None if alone else end(beyond, by_name))
            if top is None:
                what = "range" if alone else "index"
                message = f"the extent of '{self.stmt.target}' cannot be derived from this {what}"
                self._error("PF311", message, i, f"declare it: let {self.stmt.target}: f32[...]")
                return None
            if alone:
                low = alone.lower
                named = isinstance(low, IConst) and isinstance(top, IConst) and low.value < top.value
                result.append((top, named))
            else:
                result.append((simplify(top), not variables(index)))
        return result

    # --- statements ------------------------------------------------------------------------------------

    def builder(self) -> ExprBuilder:
        assert self.dims is not None
        env = {v: IVar(d.name) for v, d in self.dims.items()}
        dims = {d.name: d for d in self.dims.values()}
        return ExprBuilder(self.ctx, self.scope, self.typer, self.base, extract, env, dims)

    def emit(self, value_type: Ty, into: TensorInfo | None = None) -> None:
        """Append the statement, after those of the reductions inside it."""
        b, info = self.builder(), into or self.info
        place: IndexExpr | None = None
        try:
            write = tuple(b.index(i) for i in self.stmt.indices or ())
            if self.is_scatter:
                reduction: str | None = {"+=": "sum", "max=": "max", "min=": "min"}[self.stmt.op]
                expr, over = b.stored(self.stmt.value, info.dtype), tuple[g.IterDim, ...]()
            else:
                reduction, over, expr, place = self._right_side(b, info, value_type)
        except BuildError:
            info.failed = self.failed = True
            return
        dims = (*b.dims.values(), *over)
        name = self.ctx.statement_names.fresh(self.base, joint="__")
        statement = g.Statement(
            name, info.name, dims, write, expr, reduction, self.is_scatter, self.stmt.span, place=place
        )
        self.ctx.statements.append(statement)

    def _right_side(
        self, b: ExprBuilder, info: TensorInfo, value_type: Ty
    ) -> tuple[str | None, tuple[g.IterDim, ...], g.Expr, IndexExpr | None]:
        """Reduction, its dims, its operand and its place where the right side is one; else the value."""
        e, dtype = self.stmt.value, info.dtype
        whole = isinstance(e, ast.Reduce) and e.op != "mean"
        if whole and dtype.compute is dtype and (value_type.is_weak or value_type.compute is dtype):
            assert isinstance(e, ast.Reduce)
            over = reduction_over(b, e)
            operand = over.operand(b, e, operand_dtype(b, e, dtype))
            return e.op, tuple(over.dims.values()), operand, place_of(b, e)
        return None, (), b.stored(e, dtype), None
