"""Generics and rank variables away: `op f[F: float](x: F[B..., H])` at F = f16 and two leading axes.

    y[b..., h] = sum[b...](x[b..., h])   becomes   y[b_0, b_1, h] = sum[b_0, b_1](x[b_0, b_1, h])

A splat of index variables takes its length from the tensor it subscripts: by position where the
tensor is declared, by counting where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.ast_walk import identifiers, rewrite, rewrite_ranges, statement_exprs, walk
from polyfuse.frontend_dsl.syntax.names import FROM_BITS, POSITION, Namer, did_you_mean
from polyfuse.ir.dtypes import DType
from polyfuse.ir.ops import ARG_REDUCTIONS
from polyfuse.source import Span

Pattern = tuple[str | None, ...]
"""Of a declared type: the rank variable of each splat, None for an ordinary extent."""


def rank_variables(op: ast.OpDef) -> tuple[str, ...]:
    """Rank variables in order of first occurrence in parameters and results."""
    every = [e for p in op.params + op.results for e in p.type.extents if isinstance(e, ast.Splat)]
    return tuple(dict.fromkeys(s.id for s in every))


def monomorphise(
    op: ast.OpDef, dtypes: Mapping[str, DType], ranks: Mapping[str, int], diags: Diagnostics
) -> ast.OpDef:
    """The operator with every generic and splat replaced. Problems are PF224."""
    return _Monomorphiser(op, dtypes, ranks, diags).run()


@dataclass
class _Monomorphiser:
    op: ast.OpDef
    dtypes: Mapping[str, DType]
    ranks: Mapping[str, int]
    diags: Diagnostics
    patterns: dict[str, Pattern] = field(default_factory=dict)
    known_ranks: dict[str, int] = field(default_factory=dict)
    expanded: dict[tuple[str, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.namer = Namer(identifiers(self.op))

    def run(self) -> ast.OpDef:
        for p in (*self.op.params, *self.op.results):
            self._declare(p.name, p.type)
        for s in self.op.body:
            if isinstance(s, ast.Let):
                self._declare(s.name, s.type)
        return replace(
            self.op,
            generics=self.op.size_parameters,
            params=tuple(replace(p, type=self._type(p.type)) for p in self.op.params),
            results=tuple(replace(p, type=self._type(p.type)) for p in self.op.results),
            body=self._body(),
        )

    def _declare(self, name: str, kind: ast.TensorType) -> None:
        self.patterns.setdefault(
            name, tuple(e.id if isinstance(e, ast.Splat) else None for e in kind.extents)
        )

    def _part(self, name: str, k: int) -> str:
        if (name, k) not in self.expanded:
            self.expanded[name, k] = self.namer.fresh(f"{name}_{k}")
        return self.expanded[name, k]

    def _names(self, splat: str, count: int, span: Span) -> list[ast.Expr]:
        return [ast.Name(self._part(splat, k), span) for k in range(count)]

    def _type(self, kind: ast.TensorType) -> ast.TensorType:
        extents: list[ast.Expr] = []
        for e in kind.extents:
            if isinstance(e, ast.Splat):
                extents += self._names(e.id, self.ranks.get(e.id, 0), e.span)
                if e.id not in self.ranks:
                    hint = did_you_mean(e.id, self.ranks) or "rank variables are declared by parameters"
                    self.diags.error("PF224", f"unknown rank variable '{e.id}...'", e.span, hint)
            else:
                extents.append(e)
        return replace(kind, dtype=self._dtype(kind.dtype), extents=tuple(extents))

    def _dtype(self, name: str) -> str:
        return self.dtypes[name].name if name in self.dtypes else name

    # --- statements ----------------------------------------------------------------------------------

    def _body(self) -> tuple[ast.Stmt, ...]:
        done: dict[int, ast.Stmt] = {}
        waiting = dict(enumerate(self.op.body))
        forced = False
        while waiting:
            ready = {n: c for n, s in waiting.items() if (c := self._counts(s, forced)) is not None}
            for n, counts in ready.items():
                done[n] = self._statement(waiting.pop(n), counts)
            forced = not ready
        return tuple(done[n] for n in sorted(done))

    def _counts(self, stmt: ast.Stmt, forced: bool) -> dict[str, int] | None:
        """The length of every index splat of a statement, None while one is not known yet."""
        splats = {x.id: x.span for x in _splats(stmt)}
        counts: dict[str, int] = {}
        for name, indices in _subscripts(stmt):
            self._match(name, indices, counts)
        missing = [s for s in splats if s not in counts]
        if missing and not forced:
            return None
        for s in missing:
            if len(self.ranks) == 1:
                counts[s] = next(iter(self.ranks.values()))
            else:
                counts[s] = 0
                hint = "use it in a subscript of a declared tensor, in the place of its rank variable"
                self.diags.error(
                    "PF224", f"how many indices '{s}...' stands for is not known", splats[s], hint
                )
        return counts

    def _match(self, name: str, indices: tuple[ast.Expr, ...], counts: dict[str, int]) -> None:
        here = _pattern(indices)
        pattern = self.patterns.get(name)
        if pattern is not None:
            if [x is None for x in here] == [x is None for x in pattern]:
                for mine, theirs in zip(here, pattern, strict=True):
                    if mine is not None and theirs is not None:
                        counts.setdefault(mine, self.ranks.get(theirs, 0))
                return
            rank = sum(1 if p is None else self.ranks.get(p, 0) for p in pattern)
        elif name in self.known_ranks:
            rank = self.known_ranks[name]
        else:
            return
        open_ = [s for s in here if s is not None and s not in counts]
        if len(open_) == 1:
            fixed = sum(1 if s is None else counts.get(s, 0) for s in here)
            counts[open_[0]] = max(0, rank - fixed)

    def _statement(self, stmt: ast.Stmt, counts: dict[str, int]) -> ast.Stmt:
        def on_expr(e: ast.Expr) -> ast.Expr:
            match e:
                case ast.Subscript(_, indices):
                    return replace(e, indices=self._indices(indices, counts))
                case ast.Reduce(op, ranges, body):
                    over = self._vars(ranges, counts)
                    # Over no axes at all, every reduction but these is its only element.
                    return replace(e, vars=over) if over or op in ARG_REDUCTIONS else body
                case ast.Call(callee) if callee in self.dtypes:
                    return replace(e, callee=self._dtype(callee))
                case ast.Call(callee, args) if callee == POSITION:
                    return replace(e, args=self._indices(args, counts))
                case ast.Call(callee, (ast.Name(name) as first, other)) if callee == FROM_BITS:
                    return replace(e, args=(replace(first, id=self._dtype(name)), other))
                case _:
                    return e

        match stmt:
            case ast.Define(target, indices, _, value, ranges):
                new = None if indices is None else tuple(rewrite(i, on_expr) for i in indices)
                new = None if new is None else self._indices(new, counts)
                if new is not None and target not in self.patterns:
                    self.known_ranks.setdefault(target, len(new))
                value, ranges = rewrite(value, on_expr), rewrite_ranges(ranges, on_expr)
                return replace(stmt, indices=new, value=value, ranges=ranges)
            case ast.Let(_, kind, value_or_none):
                started = None if value_or_none is None else rewrite(value_or_none, on_expr)
                return replace(stmt, type=self._type(kind), value=started)
            case ast.CallStmt(_, call):
                called = rewrite(call, on_expr)
                assert isinstance(called, ast.Call)
                return replace(stmt, call=called)

    def _indices(self, indices: tuple[ast.Expr, ...], counts: dict[str, int]) -> tuple[ast.Expr, ...]:
        result: list[ast.Expr] = []
        for e in indices:
            result += self._names(e.id, counts.get(e.id, 0), e.span) if isinstance(e, ast.Splat) else [e]
        return tuple(result)

    def _vars(self, ranges: tuple[ast.VarRange, ...], counts: dict[str, int]) -> tuple[ast.VarRange, ...]:
        result: list[ast.VarRange] = []
        for r in ranges:
            count = counts.get(r.var, 0)
            if r.splat:
                parts = [self._part(r.var, k) for k in range(count)]
                result += [ast.VarRange(part, None, None, False, r.span) for part in parts]
            else:
                result.append(r)
        return tuple(result)


def _pattern(parts: tuple[ast.Expr, ...]) -> Pattern:
    return tuple(e.id if isinstance(e, ast.Splat) else None for e in parts)


def _splats(stmt: ast.Stmt) -> Iterator[ast.Splat]:
    """Index splats of a statement: in subscripts and as reduction variables."""
    for top in _tops(stmt):
        for e in walk(top):
            if isinstance(e, ast.Splat):
                yield e
            elif isinstance(e, ast.Reduce):
                yield from (ast.Splat(r.var, r.span) for r in e.vars if r.splat)


def _subscripts(stmt: ast.Stmt) -> Iterator[tuple[str, tuple[ast.Expr, ...]]]:
    if isinstance(stmt, ast.Define) and stmt.indices is not None:
        yield stmt.target, stmt.indices
    for top in _tops(stmt):
        for e in walk(top):
            if isinstance(e, ast.Subscript):
                yield e.name, e.indices


def _tops(stmt: ast.Stmt) -> Iterator[ast.Expr]:
    """Expressions outside of types: a type's splats are rank variables."""
    if isinstance(stmt, ast.Let):
        yield from () if stmt.value is None else (stmt.value,)
    else:
        yield from statement_exprs(stmt)
