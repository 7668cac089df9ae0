"""A region of an ATen graph as a tensor graph.

    relu(x @ w + b).sum(1)     mm is a parameter p0, b is p1
        t0[i0] = sum[r1](max(p0[i0, r1] + p1[r1], 0))

A node's value is an expression of indices; it becomes a statement where it is read several times, where it
is a result, and where it would be long.  Views compose indices and make nothing.  What each operator is
stands in the table (`lowerings.table`); here is what all of them share: loops, tensors, statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, I64, DType
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.ir.verify_graph import verify_graph
from polyfuse.torch.dynamo.index_maps import Index, groups, ravel, variable
from polyfuse.torch.dynamo.lowerings.table import TABLE, bound, rule_of, tensor_of, val
from polyfuse.torch.dynamo.sizes import (
    Extent,
    Unsupported,
    dense_order,
    extent_of,
    is_number,
    may_be_negative,
    product,
    symbols,
    to_ir,
    whole,
)
from polyfuse.torch.dynamo.terms import converted, rounded, stored, weight
from polyfuse.torch.dynamo.values import (
    Element,
    Indices,
    Shape,
    Splits,
    Storage,
    Value,
    dtype_of,
    fine,
    note_split,
)

Node: TypeAlias = Any
Result: TypeAlias = Value | list[Value]

HEAVY = 48
"""An expression of more nodes becomes a statement."""


@dataclass(frozen=True)
class Lowered:
    """A region as a graph: `inputs` are the nodes of its tensors p0, p1, ..., `outputs` those of o0, o1, ...

    mutated: inputs that it writes, with the `copy_` that does.  copied: inputs that have gaps in memory, and
    are made dense first.  symbols: torch's sizes, in the order of the graph's."""

    graph: TensorGraph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    mutated: Mapping[Node, Node]
    copied: frozenset[Node]
    symbols: tuple[Any, ...]


def lower(nodes: Sequence[Node], outputs: Sequence[Node], precision: str = "eager") -> Lowered:
    """The graph of a region. Raises Unsupported, with the `node` where that is known."""
    lowering = Lowering(tuple(nodes), tuple(outputs), precision, on_gpu="cuda" in device_of(nodes))
    try:
        return lowering.run()
    except Unsupported as problem:
        problem.node = lowering.current  # type: ignore[attr-defined]
        raise


def device_of(nodes: Iterable[Node]) -> str:
    """Where the tensors of nodes are: those of a region are on one device."""
    found = (val(n) for n in nodes)
    tensors = (t for v in found for t in (v if isinstance(v, list | tuple) else [v]) if hasattr(t, "stride"))
    return str(next((t.device for t in tensors), "cpu"))


@dataclass
class Lowering:
    """What is known while a region is lowered; see the module docstring."""

    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    precision: str
    values: dict[Node, Result] = field(default_factory=dict)
    inputs: dict[Node, Storage] = field(default_factory=dict)
    mutated: dict[Node, Node] = field(default_factory=dict)
    copied: set[Node] = field(default_factory=set)
    tensors: dict[str, g.Tensor] = field(default_factory=dict)
    statements: list[g.Statement] = field(default_factory=list)
    splits: Splits = field(default_factory=dict)
    canonical: dict[Any, Any] = field(default_factory=dict)
    on_gpu: bool = False
    current: Node = None
    written: set[Node] = field(default_factory=set)
    uses: dict[Node, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    # --- the whole -----------------------------------------------------------------------------------------

    def run(self) -> Lowered:
        """Lower all nodes in order."""
        self._count_uses()
        self._note_splits()
        for node in self.nodes:
            self.current = node
            found = self._getitem(node) if node.target not in TABLE else self._lower(node)
            self.values[node] = found if isinstance(found, list) else self._finished(node, found)
        graph = self._graph()
        verify_graph(graph)
        return Lowered(
            graph,
            tuple(self.inputs),
            self.outputs,
            self.mutated,
            frozenset(self.copied),
            tuple(self.canonical),
        )

    def _lower(self, node: Node) -> Result:
        found = rule_of(node).lower(self, node, bound(node))
        if isinstance(found, list):
            dtypes = [None if t is None else dtype_of(t.dtype) for t in val(node)]
            return [v if d is None else self.of_dtype(v, d) for v, d in zip(found, dtypes, strict=True)]
        return found if node in self.mutated.values() else self.of_dtype(found, self.dtype(node))

    def _getitem(self, node: Node) -> Value:
        source, k = node.args
        many = self.values[source]
        assert isinstance(many, list)
        found: Value = many[k]
        return found

    def _finished(self, node: Node, v: Value) -> Value:
        """The value, in a tensor of its own where it must be or had better be."""
        if node in self.written:
            return v
        if node in self.outputs:
            made = self._output(node)
            self.define(made, v.at)
            return made.value
        many = self.uses.get(node, 0) > 1
        return self.realised(v) if self._is_long(v, 4 if many else HEAVY) else v

    def _is_long(self, v: Value, most: int) -> bool:
        return not v.stored and v.number is None and weight(v.at(self.loops(v.shape)[0])) > most

    def _graph(self) -> TensorGraph:
        order = {Role.INPUT: 0, Role.INOUT: 0, Role.OUTPUT: 1, Role.TEMP: 2}
        self._drop_unread()
        written = {s.target for s in self.statements}
        kept = [t for t in self.tensors.values() if order[t.role] == 0 or t.name in written]
        tensors = sorted(kept, key=lambda t: order[t.role])
        inputs = tuple(s.name for s in self.inputs.values())
        outputs = tuple(f"o{k}" for k in range(len(self.outputs)))
        sizes = tuple(s.name for s in self.canonical.values())
        return TensorGraph("region", sizes, (), tuple(tensors), tuple(self.statements), inputs, outputs)

    def _drop_unread(self) -> None:
        """Leave out what only results compute that nobody reads."""
        needed = {n for n, t in self.tensors.items() if t.role is Role.OUTPUT}
        kept: list[g.Statement] = []
        for s in reversed(self.statements):
            if s.target in needed:
                kept.append(s)
                needed |= {r.tensor for r in g.statement_reads(s)}
        self.statements = kept[::-1]

    def _count_uses(self) -> None:
        """How often each node is read, views of it included."""
        for node in self.nodes:
            for a in node.all_input_nodes:
                self.uses[a] = self.uses.get(a, 0) + 1
        seen: set[Node] = set()
        for node in self.nodes:
            for a in node.all_input_nodes:
                while is_view(a) and a not in seen:
                    seen.add(a)
                    base = a.args[0]
                    self.uses[base] = self.uses.get(base, 0) + self.uses.get(a, 1)
                    a = base

    def _note_splits(self) -> None:
        """What views cut axes into; axes along which something runs stay whole."""
        for node in self.nodes:
            for a in node.all_input_nodes:
                while is_view(a):
                    self._note_view(a)
                    a = a.args[0]
        for node in self.nodes:
            if node.target in TABLE and (name := rule_of(node).whole):
                for t in (node, *node.all_input_nodes):
                    for n in self._along(t, bound(node).get(name)):
                        self.splits.pop(n, None)

    def _note_view(self, view: Node) -> None:
        base = view.args[0]
        if not is_item(view) and rule_of(view).reshapes:
            for old, new in groups(self.shape(base), self.shape(view)):
                note_split(self.splits, old, new)
                note_split(self.splits, new, old)

    def _along(self, node: Node, axis: Any) -> Iterable[Extent]:
        shape = self.shape(node) if tensor_of(node) is not None else ()
        axes = axis if isinstance(axis, list | tuple) else [0 if axis is None else axis]
        return [shape[d] for d in axes if isinstance(d, int) and -len(shape) <= d < len(shape)]

    # --- what rules ask of nodes ---------------------------------------------------------------------------

    def extent(self, x: Any) -> Extent:
        """A size of the graph: a number, or made of the region's own symbols, s0, s1, ..."""
        size = val(x) if hasattr(x, "meta") else x
        e = extent_of(size)
        if is_number(e):
            return e
        import sympy

        for s in symbols(e):
            if s not in self.canonical:
                if may_be_negative(s, size):
                    raise Unsupported("a number that may be negative")
                name = f"s{len(self.canonical)}"
                self.canonical[s] = sympy.Symbol(name, integer=True, positive=True)
        return whole(e.xreplace(self.canonical))

    def shape(self, node: Node) -> Shape:
        """The shape of a node's tensor."""
        return tuple(self.extent(n) for n in tensor_of(node).shape)

    def shapes(self, node: Node) -> list[Shape]:
        """The shapes of a node's several tensors."""
        return [tuple(self.extent(n) for n in t.shape) for t in val(node)]

    def dtype(self, node: Node) -> DType:
        """The dtype of a node's tensor."""
        found = dtype_of(tensor_of(node).dtype)
        if found is None:
            raise Unsupported(f"a tensor of {tensor_of(node).dtype}")
        return found

    def axes(self, given: Any, rank: int) -> tuple[int, ...]:
        """Axes as an operator is given them, in order; all for None and for []."""
        if given is None or (isinstance(given, list | tuple) and not given):
            return tuple(range(rank))
        every = given if isinstance(given, list | tuple) else [given]
        return tuple(sorted({d % rank for d in every})) if rank else ()

    def value(self, node: Node) -> Value:
        """The value of an argument."""
        if node not in self.values:
            if is_item(node) and is_view(node):
                self.values[node] = self.value_of_item(node)
            elif is_view(node):
                self.values[node] = rule_of(node).lower(self, node, bound(node))
            else:
                self.values[node] = self._input(node).value
        found = self.values[node]
        assert isinstance(found, Value)
        return found

    def value_of_item(self, node: Node) -> Value:
        """One of the views that an operator makes."""
        source, k = node.args
        if source not in self.values:
            self.values[source] = rule_of(source).lower(self, source, bound(source))
        many = self.values[source]
        assert isinstance(many, list)
        found: Value = many[k]
        return found

    def stored_value(self, node: Node) -> Value:
        """The value of an argument that is read several times."""
        found = self.values[node] = self.realised(self.value(node))
        return found

    def of_dtype(self, v: Value, dtype: DType) -> Value:
        """The value as one of a dtype, rounded as `precision` says."""
        eager = self.precision == "eager"
        if v.dtype is dtype and (v.stored or not eager or dtype.compute is dtype):
            return v
        at = v.at

        def element(idx: Indices) -> g.Expr:
            e = converted(at(idx), dtype)
            return rounded(e, dtype) if eager else e

        return replace(v, dtype=dtype, at=element)

    # --- tensors and statements ----------------------------------------------------------------------------

    def _input(self, node: Node) -> Storage:
        if node not in self.inputs:
            tensor, shape = tensor_of(node), self.shape(node)
            strides = tuple(self.extent(s) for s in tensor.stride())
            order = dense_order(shape, strides)
            if order is None:
                self.copied.add(node)
            made = self._tensor(f"p{len(self.inputs)}", shape, self.dtype(node), Role.INPUT, order)
            self.inputs[node] = made
        return self.inputs[node]

    def _output(self, node: Node) -> Storage:
        tensor, shape = tensor_of(node), self.shape(node)
        order = dense_order(shape, tuple(self.extent(s) for s in tensor.stride()))
        if order is None:
            raise Unsupported("a result has gaps in memory")
        self.written.add(node)
        return self._tensor(f"o{self.outputs.index(node)}", shape, self.dtype(node), Role.OUTPUT, order)

    def _tensor(
        self, name: str, shape: Shape, dtype: DType, role: Role, order: tuple[int, ...] | None = None
    ) -> Storage:
        in_memory = self.on_gpu and role is not Role.TEMP
        made = Storage(name, shape, dtype, order or tuple(range(len(shape))), self.splits, in_memory)
        self.tensors[name] = g.Tensor(name, dtype, made.extents, role)
        return made

    def fresh(self, letter: str) -> str:
        """A name that nothing has."""
        number = self.numbers[letter] = self.numbers.get(letter, -1) + 1
        return f"{letter}{number}"

    def temporary(self, shape: Shape, dtype: DType) -> Storage:
        """A tensor for a value in between; of 16 bits where eager would round it."""
        kept = dtype if self.precision == "eager" else dtype.compute
        return self._tensor(self.fresh("t"), shape, kept, Role.TEMP)

    def target(self, shape: Shape, dtype: DType, final: bool) -> Storage:
        """Where a statement writes; the result itself for the `final` one of a node that is one."""
        node = self.current
        if final and node in self.outputs:
            tensor = tensor_of(node)
            if tensor is not None and self.dtype(node) is dtype and self.shape(node) == shape:
                return self._output(node)
        return self.temporary(shape, dtype)

    def loops(self, shape: Shape, letter: str = "i") -> tuple[list[Index], tuple[g.IterDim, ...]]:
        """Loops over all elements of a shape, and the index of each axis."""
        indices: list[Index] = []
        dims: list[g.IterDim] = []
        for axis, n in enumerate(shape):
            index, own = self.loop(f"{letter}{axis}", n)
            indices.append(index)
            dims += own
        return indices, tuple(dims)

    def loop(
        self, name: str, extent: Extent, *, reduce: bool = False, cut: bool = True
    ) -> tuple[Index, tuple[g.IterDim, ...]]:
        """Loops over an axis: one, or those of its factors."""
        if is_number(extent) and extent == 1:
            return Index(), ()
        factors = fine(extent, self.splits) if cut else (extent,)
        names = [name] if len(factors) == 1 else [f"{name}_{k}" for k in range(len(factors))]
        zero = to_ir(0)
        dims = tuple(g.IterDim(n, zero, to_ir(f), reduce) for n, f in zip(names, factors, strict=True))
        return ravel([variable(n, f) for n, f in zip(names, factors, strict=True)], factors), dims

    def define(self, target: Storage, at: Element) -> None:
        """``target[i] = at(i)`` for all elements."""
        indices, dims = self.loops(target.shape)
        self.statement(target, dims, indices, stored(at(indices), target.dtype))

    def statement(
        self,
        target: Storage,
        dims: tuple[g.IterDim, ...],
        write: Indices,
        expr: g.Expr,
        reduction: str | None = None,
        accumulate: bool = False,
    ) -> None:
        """Add a statement that writes the element of `target` at `write`."""
        where = tuple(i.ir() for i in target.subscripts(write))
        name = self.fresh("q")
        self.statements.append(g.Statement(name, target.name, dims, where, expr, reduction, accumulate))

    def realised(self, v: Value) -> Value:
        """The value, in a tensor of its own unless it is in one."""
        if v.stored or v.number is not None:
            return v
        made = self.temporary(v.shape, v.dtype)
        self.define(made, v.at)
        return made.value

    def reduce(
        self,
        kind: str,
        shape: Shape,
        axes: Sequence[int],
        body: Element,
        dtype: DType,
        *,
        keepdim: bool = False,
        final: bool = False,
    ) -> Value:
        """A reduction over axes of an array of `shape`, whose elements `body` gives in the dtype of the
        result (arg reductions: in any)."""
        kept = tuple(1 if d in axes else n for d, n in enumerate(shape))
        short = tuple(n for d, n in enumerate(shape) if d not in axes)
        target = self.target(kept if keepdim else short, dtype.compute, final)
        indices: list[Index] = []
        outer: list[g.IterDim] = []
        inner: list[g.IterDim] = []
        cut = not kind.startswith("arg")
        for d, n in enumerate(shape):
            over = d in axes
            index, dims = self.loop(f"{'r' if over else 'i'}{d}", n, reduce=over, cut=cut or not over)
            indices.append(index)
            (inner if over else outer).extend(dims)
        write = [Index() if d in axes else i for d, i in enumerate(indices) if keepdim or d not in axes]
        expr = body(indices)
        if not inner:
            expr = g.Const(0, I64) if kind.startswith("arg") else expr
            self.statement(target, tuple(outer), write, stored(expr, target.dtype))
        else:
            self.statement(target, (*outer, *inner), write, expr, kind)
        return target.value

    def mutate(self, node: Node, source: Value) -> Value:
        """``copy_`` into an argument of the region, which is `inout` from now on."""
        target = node.args[0]
        own = self._input(target)
        name = f"{own.name}__out"
        self.tensors[own.name] = replace(self.tensors[own.name], role=Role.INOUT)
        self.tensors[name] = g.Tensor(name, own.dtype, own.extents, Role.OUTPUT, alias=own.name)
        made = replace(own, name=name)
        self.define(made, lambda idx: converted(source.broadcast(idx), own.dtype))
        self.mutated[target] = node
        return made.value


def is_item(node: Node) -> bool:
    """Does it take one of several results?"""
    return bool(node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem")


def is_view(node: Node) -> bool:
    """Is it a view that regions read through?"""
    if node.op != "call_function":
        return False
    if is_item(node):
        return is_view(node.args[0])
    return node.target in TABLE and rule_of(node).is_view and not node.meta.get(WITH_ATEN)


WITH_ATEN = "polyfuse_with_aten"
"""The mark in `meta` of views that regions do not read through."""


def elements(shape: Shape) -> Extent:
    """How many there are."""
    return product(shape)


Condition: TypeAlias = Callable[[Indices], g.Expr | None]


def both(a: g.Expr | None, b: g.Expr | None) -> g.Expr | None:
    """Both conditions, None for one that always holds."""
    if a is None or b is None:
        return b if a is None else a
    return g.Apply("and", (a, b), BOOL)
