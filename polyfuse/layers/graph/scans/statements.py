"""What a reduction over a moving range is rewritten with: names that are free, tensors, statements, terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from polyfuse.ir.dtypes import F32, F64, DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.ops import COMBINES
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IterDim,
    Purpose,
    Read,
    Role,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
)
from polyfuse.layers.graph.domains import pieces_of
from polyfuse.layers.graph.names import fresh_name
from polyfuse.layers.graph.scans.ranges import Moving

# Steps of a sum in single precision, one after the other, that make it long: as in
# `codegen.transforms.wide_accumulators`.
LONG = 512


@dataclass(slots=True)
class Made:
    """What takes the place of a statement; names are free in the graph and among these."""

    graph: TensorGraph
    source: Statement
    tensors: list[Tensor] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def tensor(self, wish: str, dtype: DType, shape: tuple[IndexExpr, ...]) -> str:
        name = fresh_name(self.result(), wish)
        self.tensors.append(Tensor(name, dtype, shape, Role.TEMP, self.source.span))
        return name

    def add(
        self,
        target: str,
        dims: tuple[IterDim, ...],
        write: tuple[Index, ...],
        expr: Expr,
        reduction: str | None = None,
        *,
        purpose: Purpose = Purpose.VALUE,
        name: str = "",
    ) -> None:
        """A statement, if it has instances."""
        if any(d.is_empty for d in dims if not d.reduce):
            return
        free = self._free(name or target, not name)
        s = Statement(free, target, dims, write, expr, reduction, span=self.source.span, purpose=purpose)
        self.statements.append(s)

    def split(self) -> None:
        """The last statement in pieces without conditions, where it can be."""
        first, *more = pieces_of(self.graph, self.statements.pop())
        self.statements.append(first)
        for piece in more:
            self.statements.append(replace(piece, name=self._free(first.name, True)))

    def _free(self, wish: str, other: bool) -> str:
        """A name that no statement has; `other` than that of the statement that goes."""
        taken = {s.name for s in (*self.graph.statements, *self.statements) if s is not self.source}
        while wish in taken or (wish == self.source.name and other):
            wish += "_"
        return wish

    def result(self) -> TensorGraph:
        """The graph with these in place of the statement."""
        at = self.graph.statements.index(self.source)
        statements = (*self.graph.statements[:at], *self.statements, *self.graph.statements[at + 1 :])
        return replace(self.graph, tensors=(*self.graph.tensors, *self.tensors), statements=statements)


@dataclass(slots=True)
class Rewrite:
    """Writes statements in place of a reduction whose range moves."""

    made: Made
    moving: Moving

    @property
    def source(self) -> Statement:
        return self.moving.statement

    @property
    def rows(self) -> tuple[IterDim, ...]:
        """The outer dims but that along which the range grows."""
        return tuple(d for d in self.moving.outer if d != self.moving.over)

    def dims(self, *along: IterDim) -> tuple[IterDim, ...]:
        """The outer dims, with others in the place of that along which the range grows."""
        m = self.moving
        return tuple(x for d in m.outer for x in (along if d == m.over else (d,)))

    def place(self, *along: IndexExpr) -> tuple[IndexExpr, ...]:
        """Where an element is in a tensor of this scan."""
        m = self.moving
        return tuple(x for d in m.outer for x in (along if d == m.over else (IVar(d.name),)))

    def tensor(self, wish: str, dtype: DType, *along: IndexExpr) -> str:
        """A tensor of this scan, with other axes in the place of that along which the range grows."""
        m = self.moving
        shape = tuple(x for d in m.outer for x in (along if d == m.over else (d.upper,)))
        return self.made.tensor(f"{self.source.name}__{wish}", dtype, shape)

    @property
    def reduction(self) -> str:
        assert self.source.reduction is not None
        return self.source.reduction

    @property
    def dtype(self) -> DType:
        return self.source.expr.dtype

    def accumulator(self, steps: int) -> DType:
        """The type of a total that so many steps add to."""
        rounds = self.reduction in ("sum", "prod") and self.dtype is F32
        return F64 if rounds and steps > LONG else self.dtype

    def combined(self, left: Expr, right: Expr) -> Expr:
        return Apply(COMBINES[self.reduction], (left, cast(right, left.dtype)), left.dtype, self.source.span)

    def read(self, tensor: str, *at: IndexExpr) -> Read:
        dtype = next(t.dtype for t in self.made.tensors if t.name == tensor)
        return Read(tensor, self.place(*at), dtype, self.source.span)

    def over_range(self, d: IterDim) -> Expr | None:
        """The reduction over a range of one term, or of none, as an expression."""
        length = linear(d.upper - d.lower)
        if not length.terms and length.constant <= 0:
            return Const(identity(self.reduction, self.dtype), self.dtype, self.source.span)
        dims, expr = self.terms_of(d)
        return None if dims else expr

    def terms_of(self, d: IterDim) -> tuple[tuple[IterDim, ...], Expr]:
        """The dims of a reduction over a range, without those that have one value, and its terms."""
        along = self.moving.along
        left: list[IterDim] = []
        env: dict[str, IndexExpr] = {}
        for x in (d if x == along else x for x in self.source.dims if x.reduce):
            x = with_bounds(x, lambda e: substituted(e, env))
            if linear(x.upper - x.lower) == Linear((), 1):
                env[x.name] = x.lower
            else:
                left.append(x)
        return tuple(left), map_expr(self.source.expr, lambda e: e, lambda i: substituted(i, env))

    def reduced(self, target: str, dims: tuple[IterDim, ...], write: tuple[Index, ...], d: IterDim) -> None:
        """A tensor of reductions over a range."""
        over, terms = self.terms_of(d)
        self.made.add(target, (*dims, *over), write, terms, self.reduction if over else None)

    def finish(self, dims: tuple[IterDim, ...], value: Expr, at: IndexExpr | None = None) -> None:
        """The statement itself, of results that are there; of those at one value of the outer dim."""
        write = self.source.write
        if at is not None:
            env = {self.moving.over.name: at}
            write = tuple(i if isinstance(i, EXPR_TYPES) else substituted(i, env) for i in write)
        self.made.add(self.source.target, dims, write, cast(value, self.dtype), name=self.source.name)


# --- parts ------------------------------------------------------------------------------------------------


def value_of(e: IndexExpr) -> int:
    assert isinstance(e, IConst)
    return e.value


def with_bounds(d: IterDim, change: Callable[[IndexExpr], IndexExpr]) -> IterDim:
    return replace(d, lower=change(d.lower), upper=change(d.upper))


def inside_chunk(number: IndexExpr, chunk: int, count: int) -> IndexExpr:
    """The end of a chunk, counted from where it begins."""
    return IConst(chunk) if count % chunk == 0 else binary("min", chunk, count - number * chunk)


def collected(e: IndexExpr) -> IndexExpr:
    """An equal bound with like terms collected."""
    match e:
        case IBin("min" | "max" as op, left, right):
            return binary(op, collected(left), collected(right))
        case _:
            return linear(e).expr()


def cast(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype is dtype else Cast(e, dtype, e.span)


def substituted(i: IndexExpr, env: dict[str, IndexExpr]) -> IndexExpr:
    return linear(substitute(i, env)).expr() if set(variables(i)) & set(env) else i
