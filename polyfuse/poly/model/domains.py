"""The isl view of a tensor graph: iteration domains and access relations.

Every relation of poly starts here.  Sizes are isl parameters unless `sizes` gives their values;
sizes that make an index non-affine must be given (`fixed_sizes_needed` names them).

A *may* access is one whose element is not known statically (gather, scatter): it covers the whole
range of the unknown index, so every dependence it could have is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import islpy as isl

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, substitute, variables
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    Read,
    Select,
    Statement,
    TensorGraph,
    map_expr,
    map_index,
)
from polyfuse.poly.model.isl_bridge import (
    NotAffine,
    condition_text,
    dim_id,
    index_text,
    new_context,
    params_prefix,
    renew,
    size_id,
    statement_id,
    tensor_id,
)
from polyfuse.source import Span


@dataclass(frozen=True)
class Access:
    """One access of a statement: `relation` maps its instances to tensor elements."""

    statement: str
    tensor: str
    indices: tuple[Index, ...]
    relation: isl.Map
    may: bool
    span: Span


@dataclass(frozen=True)
class PolyModel:
    """Domains and accesses of a graph in one isl context. Not thread-safe; hold `isl_lock`."""

    graph: TensorGraph
    context: isl.Context
    params: tuple[str, ...]
    assumptions: isl.Set
    domains: Mapping[str, isl.Set]
    writes: Mapping[str, Access]
    reads: tuple[Access, ...]
    # Reading the same model again is common; unions are built once.
    _memo: dict[str, isl.UnionMap] = field(default_factory=dict, repr=False)
    # What `tree_convert.value_map` found.
    values: dict[tuple[str, IndexExpr], isl.Map] = field(default_factory=dict, repr=False)

    def union_map(self, maps: Iterable[isl.Map]) -> isl.UnionMap:
        result = isl.UnionMap.read_from_str(self.context, params_prefix(self.params) + "{ }")
        for m in maps:
            result = result.union(isl.UnionMap.from_map(m))
        return result

    def domain(self, statements: Iterable[str] | None = None) -> isl.UnionSet:
        names = self.domains if statements is None else statements
        result = isl.UnionSet.read_from_str(self.context, params_prefix(self.params) + "{ }")
        for name in names:
            result = result.union(isl.UnionSet.from_set(self.domains[name]))
        return result

    def all_writes(self) -> isl.UnionMap:
        if "writes" not in self._memo:
            self._memo["writes"] = self.union_map(a.relation for a in self.writes.values())
        return self._memo["writes"]

    def all_reads(self) -> isl.UnionMap:
        if "reads" not in self._memo:
            self._memo["reads"] = self.union_map(a.relation for a in self.reads)
        return self._memo["reads"]


def specialize(graph: TensorGraph, sizes: Mapping[str, int]) -> TensorGraph:
    """The graph with the given sizes replaced by their values; constraints on them are dropped if true."""
    values: dict[str, IndexExpr] = {n: IConst(v) for n, v in sizes.items()}

    def index(e: IndexExpr) -> IndexExpr:
        return substitute(e, sizes=values)

    def expr(e: Expr) -> Expr:
        return map_expr(e, lambda x: x, index)

    statements = tuple(
        replace(
            s,
            dims=tuple(replace(d, lower=index(d.lower), upper=index(d.upper)) for d in s.dims),
            write=tuple(map_index(i, expr, index) for i in s.write),
            expr=expr(s.expr),
            place=None if s.place is None else index(s.place),
        )
        for s in graph.statements
    )
    return replace(
        graph,
        sizes=tuple(n for n in graph.sizes if n not in sizes),
        tensors=tuple(replace(t, shape=tuple(map(index, t.shape))) for t in graph.tensors),
        statements=statements,
        constraints=tuple(
            c
            for c in (replace(c, left=index(c.left), right=index(c.right)) for c in graph.constraints)
            if sizes_of(c.left) or sizes_of(c.right)
        ),
        size_parameters=tuple(p for p in graph.size_parameters if p.name not in sizes),
    )


_latest: list[PolyModel] = []
"""The model made last: passes ask for that of one graph one after the other. Guarded by `isl_lock`."""


def build_model(graph: TensorGraph, context: isl.Context | None = None) -> PolyModel:
    """Domains and accesses of every statement; each time isl may use as many operations as in a new context.
    Raises NotAffine if a size must be known first."""
    if context is not None:
        return _built(graph, context)
    if not _latest or _latest[0].graph is not graph:
        _latest[:] = [_built(graph, new_context())]
    renew(_latest[0].context)
    return _latest[0]


def _built(graph: TensorGraph, context: isl.Context) -> PolyModel:
    builder = _Builder(graph, context)
    domains = {s.name: builder.domain(s) for s in graph.statements}
    reads = tuple(a for s in graph.statements for a in builder.reads(s, domains[s.name]))
    writes = {s.name: builder.write(s, domains[s.name]) for s in graph.statements}
    return PolyModel(graph, context, graph.sizes, builder.assumptions(), domains, writes, reads)


@dataclass(frozen=True)
class _Builder:
    graph: TensorGraph
    context: isl.Context

    @property
    def prefix(self) -> str:
        return params_prefix(self.graph.sizes)

    def assumptions(self) -> isl.Set:
        """Sizes are not negative, and the operator's constraints hold (those that are affine)."""
        terms = [f"{size_id(n)} >= 0" for n in self.graph.sizes]
        for c in self.graph.constraints:
            try:
                op = "=" if c.op == "==" else c.op
                terms.append(f"{index_text(c.left)} {op} {index_text(c.right)}")
            except NotAffine:
                continue
        return isl.Set.read_from_str(self.context, f"{self.prefix}{{ : {' and '.join(terms) or 'true'} }}")

    def domain(self, s: Statement) -> isl.Set:
        bounds = []
        for d in s.dims:
            bounds += [f"{index_text(e)} <= {dim_id(d.name)}" for e in _arms("max", d.lower)]
            bounds += [f"{dim_id(d.name)} < {index_text(e)}" for e in _arms("min", d.upper)]
        text = f"{self.prefix}{{ {self._tuple(s)} : {' and '.join(bounds) or 'true'} }}"
        return isl.Set.read_from_str(self.context, text)

    def _tuple(self, s: Statement) -> str:
        return f"{statement_id(s.name)}[{', '.join(dim_id(d.name) for d in s.dims)}]"

    def write(self, s: Statement, domain: isl.Set) -> Access:
        return self._access(s, domain, s.target, s.write, [], s.span)

    def reads(self, s: Statement, domain: isl.Set) -> list[Access]:
        found: list[Access] = []

        def go(e: Expr, guards: list[str]) -> None:
            match e:
                case Read(tensor, indices):
                    found.append(self._access(s, domain, tensor, indices, guards, e.span))
                    for i in indices:
                        if isinstance(i, EXPR_TYPES):
                            go(i, guards)
                case Select(cond, then, other):
                    go(cond, guards)
                    yes, no = condition_text(cond), condition_text(cond, positive=False)
                    go(then, guards if yes is None else [*guards, yes])
                    go(other, guards if no is None else [*guards, no])
                case Apply(_, args):
                    for a in args:
                        go(a, guards)
                case Cast(arg):
                    go(arg, guards)
                case Const() | IndexValue():
                    pass

        go(s.expr, [])
        for i in s.write:
            if isinstance(i, EXPR_TYPES):
                go(i, [])
        return found

    def _access(
        self,
        s: Statement,
        domain: isl.Set,
        tensor: str,
        indices: tuple[Index, ...],
        guards: list[str],
        span: Span,
    ) -> Access:
        shape = self.graph.tensor(tensor).shape
        outs, where = [], list(guards)
        for k, i in enumerate(indices):
            if isinstance(i, EXPR_TYPES):
                outs.append(f"o{k}")
                where.append(f"0 <= o{k} < {index_text(shape[k])}")
            else:
                outs.append(index_text(i))
        text = (
            f"{self.prefix}{{ {self._tuple(s)} -> {tensor_id(tensor)}[{', '.join(outs)}]"
            f" : {' and '.join(where) or 'true'} }}"
        )
        relation = isl.Map.read_from_str(self.context, text).intersect_domain(domain)
        may = any(isinstance(i, EXPR_TYPES) for i in indices)
        return Access(s.name, tensor, indices, relation, may, span)


def fixed_sizes_needed(graph: TensorGraph, counts: bool = False) -> tuple[str, ...]:
    """Sizes that must be known for every index to be affine, in order of the graph's sizes.  A float that
    follows from sizes alone, the number of terms of a mean, is no index; with `counts` it counts as one."""
    needed: set[str] = set()

    def look(e: IndexExpr) -> IndexExpr:
        try:
            index_text(e)
        except NotAffine:
            needed.update(sizes_of(e))
        return e

    for t in graph.tensors:
        for e in t.shape:
            look(e)
    for s in graph.statements:
        for d in s.dims:
            look(d.lower)
            look(d.upper)
        for i in s.write:
            if not isinstance(i, EXPR_TYPES):
                look(i)
        map_expr(s.expr if counts else map_expr(s.expr, _without_counts), lambda x: x, look)
    return tuple(n for n in graph.sizes if n in needed)


def _without_counts(e: Expr) -> Expr:
    is_count = isinstance(e, IndexValue) and e.dtype.is_float and not variables(e.index)
    return Const(0.0, e.dtype) if is_count else e


def _arms(op: str, e: IndexExpr) -> list[IndexExpr]:
    """What a maximum or minimum is of: as a bound of its own each, so that the set has one piece and not one
    for each arm, which isl would give loops of its own."""
    match e:
        case IBin(found, left, right) if found == op:
            return [*_arms(op, left), *_arms(op, right)]
        case _:
            return [e]
