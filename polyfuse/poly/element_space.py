"""Computed left sides become plain ones: a tensor is defined over its elements.

    w[i + 1] = z[i]            for i in 0..N        becomes     w[i] = z[i - 1]     for i in 1..N + 1

    y[2*d]     = x[d]          for d in 0..D
    y[2*d + 1] = -x[d]         for d in 0..D        becomes
    y[e0] = x[e0//2] if e0 % 2 == 0 else -x[(e0 - 1)//2]     for e0 in 0..2*D

The proofs about ranges come first: an element has at most one instance that defines it.  Where each
variable moves an axis of its own by steps of 1, a statement stays one.  Else the statements of a tensor
become one, which chooses by isl's reverse of the maps from instances to elements; a reduction keeps its loops
in a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import islpy as isl

from polyfuse.ir.dtypes import DType
from polyfuse.ir.identity import identity
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.intervals import of_dims
from polyfuse.ir.linear import linear, simplify
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Cast,
    Const,
    Expr,
    Index,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    map_expr,
    statement_reads,
)
from polyfuse.poly.ast_build import condition
from polyfuse.poly.legality.pieces import defines_all
from polyfuse.poly.model.dependences import outer_dims
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import NotAffine, from_aff, isl_lock, new_context


def in_element_space(graph: TensorGraph) -> TensorGraph:
    """The graph, its ranges proved, with plain left sides only (see the module docstring).

    What scatters start from is defined everywhere: where pieces leave elements out, these are the identity.
    Statements that are not affine before more sizes are known stay as they are.
    """
    for t in graph.tensors:
        pieces = [s for s in graph.writers(t.name) if not s.accumulate]
        scattered = t.alias is None and len(pieces) < len(graph.writers(t.name))
        if all(map(_is_plain, pieces)) and not (scattered and pieces):
            continue
        try:
            with isl_lock:
                graph = _over_elements(graph, t, pieces, scattered)
        except NotAffine:
            continue
    return graph


def _over_elements(graph: TensorGraph, t: Tensor, pieces: list[Statement], scattered: bool) -> TensorGraph:
    if scattered and not any(defines_all(s, t.shape) for s in pieces):
        elements = _Elements(graph, t, pieces)
        if not elements.complete:
            return elements.whole()
    moved = {s.name: s if _is_plain(s) else _moved(s) for s in pieces}
    if all(moved.values()):
        return replace(graph, statements=tuple(moved.get(s.name) or s for s in graph.statements))
    return _Elements(graph, t, pieces).whole()


def _is_plain(s: Statement) -> bool:
    """Whether the left side is made of distinct variables and of numbers."""
    computed = [i for i in s.write if not isinstance(i, EXPR_TYPES) and variables(i)]
    return all(isinstance(i, IVar) for i in computed) and len({*computed}) == len(computed)


# --- moved -------------------------------------------------------------------------------------------------


def _moved(s: Statement) -> Statement | None:
    """The statement over its elements where each variable moves one axis by steps of 1, or None.

    Variables keep their names: ``w[i + 1] = z[i]`` becomes ``w[i] = z[i - 1]``.
    """
    dims = {d.name: d for d in s.dims if not d.reduce}
    found: dict[str, IndexExpr] = {}
    outer: list[IterDim] = []
    write: list[IndexExpr] = []
    for index in s.write:
        assert not isinstance(index, EXPR_TYPES)
        free = [v for v in variables(index) if v not in found]
        if not variables(index):
            write.append(index)
            continue
        form = linear(index)
        if len(free) != 1 or free[0] in form.hidden or abs(form.factor(IVar(free[0]))) != 1:
            return None
        name, sign = free[0], form.factor(IVar(free[0]))
        if any(v not in found for v in (*variables(dims[name].lower), *variables(dims[name].upper))):
            return None
        rest = substitute(form.without(IVar(name)).expr(), found)
        low, high = (substitute(b, found) for b in (dims[name].lower, dims[name].upper))
        if sign < 0:
            low, high = binary("-", rest, binary("-", high, 1)), binary("+", binary("-", rest, low), 1)
            found[name] = binary("-", rest, IVar(name))
        else:
            low, high = binary("+", low, rest), binary("+", high, rest)
            found[name] = binary("-", IVar(name), rest)
        outer.append(IterDim(name, simplify(low, {}), simplify(high, {})))
        write.append(IVar(name))
    if len(found) < len(dims):
        return None

    def over(i: IndexExpr) -> IndexExpr:
        return simplify(substitute(i, found), {}) if {*variables(i)} & {*found} else i

    inner = (replace(d, lower=over(d.lower), upper=over(d.upper)) for d in s.dims if d.reduce)
    expr, place = map_expr(s.expr, lambda e: e, over), s.place and over(s.place)
    return replace(s, dims=(*outer, *inner), write=tuple(write), expr=expr, place=place)


# --- chosen ------------------------------------------------------------------------------------------------


# What asks for all elements; what asks for those that a statement reads is `1y`, `2y`: no name of a text.
_ALL = "0"

Instance = dict[str, IndexExpr]


@dataclass
class _Elements:
    """A tensor that one statement defines.

    `circle`: the statements that go round where one piece reads elements of another, as in
    ``y[2*i + 1] = (y[2*i] + y[2*i + 2]) / 2``.  Then each piece has a tensor of its own, which they read.
    `made` are tensors of pieces, each with the indices of an instance in it.
    """

    graph: TensorGraph
    tensor: Tensor
    pieces: list[Statement]
    made: dict[str, tuple[Tensor, tuple[IndexExpr, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        free = (n for k in count() if (n := f"e{k}") not in self.graph.sizes)
        self.dims = tuple(IterDim(next(free), IConst(0), n) for n in self.tensor.shape)
        self.dtype = self.tensor.dtype.compute
        self.circle = self._circle()
        asked = [self._asks(s.name, outer_dims(s), s.write) for s in self.pieces]
        asked.append(self._asks(_ALL, self.dims, tuple(IVar(d.name) for d in self.dims)))
        for s in self.circle:
            asked += [self._asks(n, s.dims, indices) for indices, n in self._reads(s).items()]
        self.model = build_model(replace(self.graph, statements=tuple(asked)), new_context())

    def _asks(self, name: str, dims: tuple[IterDim, ...], write: tuple[Index, ...]) -> Statement:
        """A statement of which the map from instances to elements is asked for."""
        return Statement(name, self.tensor.name, dims, write, _zero(self.dtype))

    def _circle(self) -> list[Statement]:
        """The statements that read the tensor and from which it is computed: none where data say what they
        read, or where elements are accumulated."""
        name, needed = self.tensor.name, dict.fromkeys([self.tensor.name])
        left = [name]
        while left:
            read = (r.tensor for s in self.graph.writers(left.pop()) for r in statement_reads(s))
            left += [t for t in dict.fromkeys(read) if t not in needed]
            needed |= dict.fromkeys(left)
        found = [s for s in self.graph.readers(name) if s.target in needed]
        data = any(isinstance(i, EXPR_TYPES) for s in found for indices in self._reads(s) for i in indices)
        return [] if data or any(s.accumulate for s in self.graph.writers(name)) else found

    @property
    def complete(self) -> bool:
        """Whether pieces define every element."""
        places = [self.model.writes[s.name].relation.range() for s in self.pieces]
        left = self.model.writes[_ALL].relation.range()
        for defined in places:
            left = left.subtract(defined)
        return bool(left.is_empty())

    def _reads(self, s: Statement) -> dict[tuple[Index, ...], str]:
        """The elements that a statement reads of the tensor, and the names under which they are asked for."""
        read = dict.fromkeys(r.indices for r in statement_reads(s) if r.tensor == self.tensor.name)
        return {indices: f"{k}{s.name}" for k, indices in enumerate(read, 1)}

    def whole(self) -> TensorGraph:
        """The graph with one statement that chooses in place of the pieces, or after them."""
        chosen, at = self._chosen(), self.pieces[-1]
        read = {s.name: self._without_reads(s) for s in self.circle}
        statements: list[Statement] = []
        for s in self.graph.statements:
            if any(s is p for p in self.pieces):
                statements += [self._statement(s, read.get(s.name, s))] if s.name in self.made else []
            else:
                statements.append(read.get(s.name, s))
            statements += [chosen] if s is at else []
        tensors = (*self.graph.tensors, *(t for t, _ in self.made.values()))
        return replace(self.graph, statements=tuple(statements), tensors=tensors)

    def _chosen(self) -> Statement:
        """The statement that defines all elements."""
        first, tensor = self.pieces[0], self.tensor
        arms = [(test, self._value(s, at)) for test, s, at in self._arms(_ALL, self.dims)]
        value = self._choice(arms, self._other())
        if tensor.dtype is not self.dtype:
            value = Cast(value, tensor.dtype, first.span)
        write = tuple(IVar(d.name) for d in self.dims)
        return Statement(first.name, tensor.name, self.dims, write, value, span=first.span)

    def _choice(self, arms: list[tuple[Expr, Expr]], other: Expr | None) -> Expr:
        """The value of the arm whose test holds; without `other` that of the last where no other holds."""
        value = other or (arms.pop()[1] if arms else _zero(self.dtype))
        for test, element in reversed(arms):
            value = Select(test, element, value, self.dtype, element.span)
        return value

    def _other(self) -> Expr | None:
        """What elements are that no piece defines; None where there are none."""
        scatters = [s for s in self.graph.writers(self.tensor.name) if s.accumulate]
        if self.tensor.alias is not None:
            entry = Read(self.tensor.alias, tuple(IVar(d.name) for d in self.dims), self.tensor.dtype)
            return self._computed(entry)
        if scatters:
            return Const(identity(scatters[0].reduction or "sum", self.dtype), self.dtype)
        return None if self.tensor.role is Role.OUTPUT else _zero(self.dtype)

    def _computed(self, e: Expr) -> Expr:
        """In the type that is computed in."""
        return e if e.dtype is self.dtype else Cast(e, self.dtype, e.span)

    def _arms(self, asked: str, dims: tuple[IterDim, ...]) -> Iterator[tuple[Expr, Statement, Instance]]:
        """Which piece's instance defines the element that instances of a statement ask for, and when."""
        places = self.model.writes[asked].relation
        names, ranges = tuple(d.name for d in dims), of_dims(dims)
        box = _numbered(places.domain())
        for s in self.pieces:
            found: list[tuple[isl.Set, isl.MultiAff]] = []
            instances = places.apply_range(self.model.writes[s.name].relation.reverse())
            isl.PwMultiAff.from_map(instances).coalesce().foreach_piece(lambda *x, out=found: out.append(x))
            for part, affs in found:
                indices = (from_aff(affs.get_at(k), names) for k in range(affs.dim(isl.dim_type.out)))
                simple = (_with_remainders(simplify(i, ranges)) for i in indices)
                at = dict(zip((d.name for d in outer_dims(s)), simple, strict=True))
                yield _test(_numbered(part).gist(box), box, names), s, at

    def _value(self, s: Statement, at: Instance) -> Expr:
        """The right side of a piece for an element."""
        if self.circle or s.reduction is not None:
            return self._computed(self._own(s, at))
        value = map_expr(s.expr, lambda e: e, lambda i: substitute(i, at))
        if isinstance(value, Cast) and value.dtype is self.tensor.dtype and value.arg.dtype is self.dtype:
            return value.arg  # the whole statement rounds
        return self._computed(value)

    def _own(self, s: Statement, at: Instance) -> Read:
        """An element of the tensor that a piece has for itself."""
        tensor, write = self.made.setdefault(s.name, self._apart(s))
        return Read(tensor.name, tuple(substitute(i, at) for i in write), tensor.dtype, s.span)

    def _statement(self, s: Statement, right: Statement) -> Statement:
        """What defines the tensor that a piece has for itself."""
        tensor, write = self.made[s.name]
        mine = replace(right, name=tensor.name, target=tensor.name, write=write)
        return _moved(mine) or mine

    def _without_reads(self, s: Statement) -> Statement:
        """A statement that reads the pieces in place of the tensor."""
        found: dict[tuple[Index, ...], Expr] = {}
        for indices, name in self._reads(s).items():
            arms = [(test, self._own(piece, at)) for test, piece, at in self._arms(name, s.dims)]
            if len(arms) == 1:
                found[indices] = arms[0][1]
            elif arms:
                value = self._choice([(test, self._computed(e)) for test, e in arms], None)
                dtype = self.tensor.dtype
                found[indices] = value if dtype is self.dtype else Cast(value, dtype)

        def on_expr(e: Expr) -> Expr:
            return found.get(e.indices, e) if isinstance(e, Read) and e.tensor == self.tensor.name else e

        write = tuple(map_expr(i, on_expr) if isinstance(i, EXPR_TYPES) else i for i in s.write)
        return replace(s, expr=map_expr(s.expr, on_expr), write=write)

    def _apart(self, s: Statement) -> tuple[Tensor, tuple[IndexExpr, ...]]:
        """A tensor over the variables of a piece, from their least values on, and an instance's indices."""
        outer = outer_dims(s)
        ranges = of_dims(outer)
        lows, shape = list[IndexExpr](), list[IndexExpr]()
        for d in outer:
            if variables(d.lower) or variables(d.upper):
                if d.name not in ranges:
                    raise NotAffine(str(d))
                low, high = ranges[d.name]
                lows.append(IConst(low))
                shape.append(IConst(high - low + 1))
            else:
                lows.append(d.lower)
                extent = simplify(binary("-", d.upper, d.lower), {})
                shape.append(extent if d.lower == IConst(0) else binary("max", 0, extent))
        name = self._free(f"{self.tensor.name}__{s.reduction or 'piece'}")
        write = tuple(binary("-", IVar(d.name), low) for d, low in zip(outer, lows, strict=True))
        return Tensor(name, self.tensor.dtype, tuple(shape), Role.TEMP, s.span), write

    def _free(self, name: str) -> str:
        """A name that no tensor and no statement has."""
        taken = {t.name for t in self.graph.tensors} | {s.name for s in self.graph.statements}
        taken |= {t.name for t, _ in self.made.values()}
        return next(n for k in count() if (n := f"{name}{k or ''}") not in taken)


def _zero(dtype: DType) -> Const:
    return Const(False if dtype.is_bool else 0.0 if dtype.is_float else 0, dtype)


def _with_remainders(e: IndexExpr) -> IndexExpr:
    """``e0 - 4*(e0//4)`` as ``e0 % 4``."""
    form = linear(e)
    for atom, factor in form.terms:
        match atom:
            case IBin("//", IVar() as top, IConst(c)) if factor == -c * form.factor(top):
                times = form.factor(top)
                rest = form.without(atom).without(top).expr()
                return binary("+", binary("*", binary("%", top, c), times), rest)
            case _:
                continue
    return e


def _numbered(part: isl.Set) -> isl.Set:
    """A set of instances as one of parameters v0, v1, ...: what conditions are made of."""
    before, rank = part.dim(isl.dim_type.param), part.dim(isl.dim_type.set)
    part = part.move_dims(isl.dim_type.param, before, isl.dim_type.set, 0, rank)
    for k in range(rank):
        part = part.set_dim_name(isl.dim_type.param, before + k, f"v{k}")
    return part.params()


def _test(part: isl.Set, box: isl.Set, names: tuple[str, ...]) -> Expr:
    """Whether an instance is in a set of them (of parameters), over variables of these names."""
    variable = {f"v{k}": IVar(name) for k, name in enumerate(names)}
    found = condition(isl.AstBuild.from_context(box).expr_from_set(part))
    return map_expr(found, lambda e: e, lambda i: substitute(i, variable))
