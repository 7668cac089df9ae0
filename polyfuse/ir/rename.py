"""Graphs, trees and kernels with other names for their tensors and statements.

What differs in names only is compiled once: `canonical` gives the names away, so that two of the same form
are equal.  Names of loops stay, they mean nothing outside of a statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyfuse.ir.contraction import MatrixProduct
from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, Phase, Stage
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Const,
    Expr,
    Index,
    Read,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    walk,
)
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class Names:
    """New names by old ones; a name that is not in it stays. `spans`: new places in the text by old ones."""

    tensors: Mapping[str, str]
    statements: Mapping[str, str]
    compared: bool = False  # the result is for comparing: 0.0 and -0.0 must differ
    spans: Mapping[Span, Span] = field(default_factory=dict)

    def tensor(self, name: str) -> str:
        return self.tensors.get(name, name)

    def statement(self, name: str) -> str:
        return self.statements.get(name, name)

    def graph(self, g: TensorGraph) -> TensorGraph:
        return replace(
            g,
            tensors=tuple(map(self._tensor, g.tensors)),
            statements=tuple(map(self._statement, g.statements)),
            inputs=tuple(map(self.tensor, g.inputs)),
            outputs=tuple(map(self.tensor, g.outputs)),
        )

    def tree(self, t: Tree) -> Tree:
        match t:
            case Leaf(name):
                return Leaf(self.statement(name))
            case Sequence(children):
                return Sequence(tuple(map(self.tree, children)))
            case Band(members, child, permutable):
                return Band(tuple(map(self.member, members)), self.tree(child), permutable)

    def member(self, m: Member) -> Member:
        return replace(m, exprs=tuple(sorted((self.statement(n), e) for n, e in m.exprs)))

    def kernel(self, k: Kernel) -> Kernel:
        return replace(
            k,
            graph=self.graph(k.graph),
            stages=tuple(map(self._stage, k.stages)),
            buffers=tuple(map(self._buffer, k.buffers)),
            atomic=frozenset(map(self.statement, k.atomic)),
            parts=tuple(map(self.kernel, k.parts)),
            packed=tuple(map(self.kernel, k.packed)),
            library=k.library and self._product(k.library),
            owners=k.owners and replace(k.owners, tensor=self.tensor(k.owners.tensor)),
        )

    def kernels(self, g: KernelGraph) -> KernelGraph:
        return KernelGraph(self.graph(g.graph), tuple(map(self.kernel, g.kernels)))

    def _product(self, p: MatrixProduct) -> MatrixProduct:
        left, right, out = (replace(x, tensor=self.tensor(x.tensor)) for x in (p.left, p.right, p.out))
        return MatrixProduct(left, right, out, p.products)

    # --- parts --------------------------------------------------------------------------------------------

    def _tensor(self, t: Tensor) -> Tensor:
        alias = t.alias and self.tensor(t.alias)
        return replace(t, name=self.tensor(t.name), alias=alias, span=self.spans.get(t.span, t.span))

    def _statement(self, s: Statement) -> Statement:
        return replace(
            s,
            name=self.statement(s.name),
            target=self.tensor(s.target),
            write=tuple(map(self._index, s.write)),
            expr=self._expr(s.expr),
            span=self.spans.get(s.span, s.span),
        )

    def _index(self, i: Index) -> Index:
        return self._expr(i) if isinstance(i, EXPR_TYPES) else i

    def _expr(self, e: Expr) -> Expr:
        return map_expr(e, self._read)

    def _read(self, e: Expr) -> Expr:
        if e.span in self.spans:
            e = replace(e, span=self.spans[e.span])
        if isinstance(e, Read):
            return replace(e, tensor=self.tensor(e.tensor))
        if self.compared and isinstance(e, Const) and isinstance(e.value, float):
            return replace(e, value=e.value.hex())  # type: ignore[arg-type]
        return e

    def _stage(self, s: Stage) -> Stage:
        return Stage(tuple(map(self.member, s.band)), tuple(Phase(self.tree(p.tree)) for p in s.phases))

    def _buffer(self, b: Buffer) -> Buffer:
        return replace(b, tensor=self.tensor(b.tensor))


def spans_between(old: TensorGraph, new: TensorGraph) -> dict[Span, Span]:
    """New places in the text by those of a graph that differs in names only. Old ones that have several new
    ones are left out."""
    found: dict[Span, Span] = {}
    unclear: set[Span] = set()
    pairs = [(a.span, b.span) for a, b in zip(old.tensors, new.tensors, strict=True)]
    for s, t in zip(old.statements, new.statements, strict=True):
        pairs += [(s.span, t.span), *_expr_spans(s.expr, t.expr)]
        for i, j in zip(s.write, t.write, strict=True):
            pairs += _expr_spans(i, j) if isinstance(i, EXPR_TYPES) and isinstance(j, EXPR_TYPES) else ()
    for a, b in pairs:
        if found.setdefault(a, b) != b:
            unclear.add(a)
    return {a: b for a, b in found.items() if a not in unclear and a.source.text}


def _expr_spans(a: Expr, b: Expr) -> Iterator[tuple[Span, Span]]:
    return ((x.span, y.span) for x, y in zip(walk(a), walk(b), strict=True))


def canonical(graph: TensorGraph) -> TensorGraph:
    """The graph with names by position, loops included: graphs that differ in names only are equal in this
    form. It is for comparing; no name of it is meant to be printed."""
    names = Names(
        {t.name: f"%{k}" for k, t in enumerate(graph.tensors)},
        {s.name: f"%{k}" for k, s in enumerate(graph.statements)},
        compared=True,
    )
    renamed = names.graph(graph)
    return replace(renamed, statements=tuple(map(_loops_by_position, renamed.statements)))


def kernel_form(kernel: Kernel) -> Kernel:
    """A kernel with names by position: kernels that differ in names only are equal in this form."""
    names = Names(
        {b.tensor: f"%{k}" for k, b in enumerate(kernel.buffers)},
        {s.name: f"%{k}" for k, s in enumerate(kernel.graph.statements)},
        compared=True,
    )
    form = names.kernel(replace(kernel, name="", parts=(), packed=()))
    held = {b.tensor for b in form.buffers}
    tensors = tuple(t for t in form.graph.tensors if t.name in held)
    return replace(
        form,
        graph=replace(form.graph, name="", tensors=tensors, inputs=(), outputs=()),
        parts=tuple(map(kernel_form, kernel.parts)),
        packed=tuple(map(kernel_form, kernel.packed)),
    )


def _loops_by_position(s: Statement) -> Statement:
    new: dict[str, IndexExpr] = {d.name: IVar(f"%{k}") for k, d in enumerate(s.dims)}

    def index(e: IndexExpr) -> IndexExpr:
        return substitute(e, new)

    dims = tuple(
        replace(d, name=f"%{k}", lower=index(d.lower), upper=index(d.upper)) for k, d in enumerate(s.dims)
    )
    expr = map_expr(s.expr, lambda e: e, index)
    write = tuple(map_expr(i, lambda e: e, index) if isinstance(i, EXPR_TYPES) else index(i) for i in s.write)
    return replace(s, dims=dims, expr=expr, write=write)
