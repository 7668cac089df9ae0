"""The adjoint of a tensor graph: what each tensor's elements add to, followed from the results back.

    y[b] = sum[h](x[b, h] * w[h])       dx[b, h] = dy[b] * w[h]        dw[h] = sum[b](dy[b] * x[b, h])

A read of an element is a share of its gradient (`Share`).  Indices are solved for the variables of the loops
(`inversion`): the shares of an element are a sum over the instances that read it.  Where indices are data, or
cannot be solved, shares are scattered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from polyfuse.autodiff.algebra import (
    added,
    apply,
    choice,
    converted,
    is_zero,
    multiplied,
    number,
    product,
    terms,
)
from polyfuse.autodiff.algebra import expression as written
from polyfuse.autodiff.extremes import at_extreme, is_stored, running_place
from polyfuse.autodiff.index_facts import IndexFacts
from polyfuse.autodiff.inversion import Unsolved, instances
from polyfuse.autodiff.partials import partial
from polyfuse.autodiff.reuse import Reuse
from polyfuse.autodiff.rows import row_of, with_data
from polyfuse.autodiff.shares import (
    Share,
    Term,
    as_expr,
    as_i64,
    guarded,
    is_at,
    merged,
    moved,
    negated,
    on_indices,
    simplified,
)
from polyfuse.autodiff.structure import groups, live_tensors
from polyfuse.autodiff.vanish import Vanish
from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.semantics.size_algebra import Facts
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, substitute
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
    data_bounds_it,
    depends_on,
    map_index,
    reads,
)


@dataclass
class Adjoint:
    """The backward graph in the making: tensors and statements by the names of the forward graph's tensors.

    `cotangents` are names of the parameters for results, `gradients` of the results for inputs.
    """

    graph: TensorGraph
    cotangents: Mapping[str, str]
    gradients: Mapping[str, str]
    taken: set[str]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.facts = IndexFacts(Facts(self.graph.constraints))
        self.shares: dict[str, list[Share]] = {}
        self.whole: dict[str, tuple[tuple[IterDim, ...], Expr]] = {}
        self.named: dict[str, str] = {}
        self.early: dict[str, list[Expr]] = {}
        self.reuse = Reuse(self.graph)
        self.vanish = Vanish(self.graph, self)

    def derive(self) -> None:
        """Make all statements."""
        live = live_tensors(self.graph, self.cotangents, self.gradients)
        self.live = live
        for group, cyclic in reversed(groups(self.graph, live)):
            if cyclic:
                for name in group:
                    self._name(name)
                    self._before(name)
            else:
                self._finish(group[0], named=False)
            for s in reversed([s for s in self.graph.statements if s.target in group]):
                self._shares_of(s)
            for name in group:
                self._share_of_entry(self.graph.tensor(name))
            if cyclic:
                for name in group:
                    self._finish(name, named=True)
        for name in self.gradients:
            self._gradient(name)

    # --- names ---------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """A name that nothing else has."""
        found = next(n for k in count(1) if (n := name if k == 1 else f"{name}_{k}") not in self.taken)
        self.taken.add(found)
        return found

    def _name(self, tensor: str) -> str:
        """The tensor that holds the gradient of another."""
        if tensor not in self.named:
            t = self.graph.tensor(tensor)
            name = self.gradients.get(tensor) or self.fresh(f"d{tensor}")
            role = Role.OUTPUT if tensor in self.gradients else Role.TEMP
            dtype = t.dtype if role is Role.OUTPUT else t.dtype.compute
            self.tensors[name] = Tensor(name, dtype, t.shape, role)
            self.named[tensor] = name
        return self.named[tensor]

    # --- shares --------------------------------------------------------------------------------------

    def _shares_of(self, s: Statement) -> None:
        """What a statement adds to the gradients of what it reads."""
        seed = self._seed(s.target, s.write)
        if seed is None:
            return
        extreme = next((w for w in self.graph.writers(s.target) if w.reduction in ("max", "min")), None)
        if extreme is not None and (self._shares_of_running(s, seed) or self._shares_of_first(s, seed)):
            return
        if extreme is not None:
            seed = written(product(seed).times(product(self._ties(s.target, s.write)), -1), seed.dtype)
            conditions, term = at_extreme(self.graph, s)
            self._walk(term, seed, conditions, s)
        elif s.reduction == "prod":
            self._shares_of_product(s, seed)
        else:
            self._walk(s.expr, seed, [], s)

    def _seed(self, tensor: str, indices: tuple[Index, ...]) -> Expr | None:
        """The gradient of an element; None where it is 0."""
        if tensor in self.named:
            name = self.named[tensor]
            return Read(name, indices, self.tensors[name].dtype)
        if tensor not in self.whole:
            return None
        dims, value = self.whole[tensor]
        at = {d.name: i for d, i in zip(dims, indices, strict=True)}
        plain = {n: i for n, i in at.items() if not isinstance(i, EXPR_TYPES)}
        if len(plain) == len(at):
            return moved(value, plain)
        if isinstance(value, Read) and all(isinstance(i, IVar) for i in value.indices):
            return replace(value, indices=tuple(at[str(i)] for i in value.indices))
        self._materialise(tensor)
        return self._seed(tensor, indices)

    def _walk(self, e: Expr, seed: Expr, conditions: Sequence[Expr], s: Statement) -> None:
        """Down an expression; `seed` is the gradient of its value where all conditions hold."""
        if is_zero(seed) or not self._is_live(e):
            return
        match e:
            case Read(tensor, indices):
                value = converted(seed, self.graph.tensor(tensor).dtype.compute)
                share = Share(indices, s.dims, tuple(conditions), value, e)
                self.shares.setdefault(tensor, []).append(share)
            case Select(cond, then, other):
                self._walk(then, seed, [*conditions, cond], s)
                self._walk(other, seed, [*conditions, negated(cond)], s)
            case Cast(arg):
                self._walk(arg, converted(seed, arg.dtype.compute), conditions, s)
            case Apply(_, args):
                for k, arg in enumerate(args):
                    if self._is_live(arg):
                        self._through(e, k, seed, conditions, s)

    def _through(self, e: Apply, k: int, seed: Expr, conditions: Sequence[Expr], s: Statement) -> None:
        by = partial(e, k, self._held(e, s))
        if by is None:
            message = f"'{e.op}' has no derivative that the language can write"
            raise DslError(message, code="PF792", span=e.span, hint="leave out of wrt= what goes through it")
        match by:
            case Select(cond, then, other):
                self._walk(e.args[k], multiplied(seed, then), [*conditions, cond], s)
                self._walk(e.args[k], multiplied(seed, other), [*conditions, negated(cond)], s)
            case _:
                self._walk(e.args[k], multiplied(seed, by), conditions, s)

    def _share_of_entry(self, t: Tensor) -> None:
        """Elements of an inout parameter that no statement writes keep their value."""
        if t.alias is None or t.alias not in self.live:
            return
        dims = self._dims(t)
        at = tuple(IVar(d.name) for d in dims)
        seed = self._seed(t.name, at)
        unwritten: list[Expr] = []
        for s in self.graph.writers(t.name):
            if s.accumulate:
                continue
            share = self._free_dims(
                Share(
                    s.write, tuple(d for d in s.dims if not d.reduce), (), s.expr, Read(t.name, at, t.dtype)
                ),
                {d.name for d in dims},
            )
            places = [(i, e) for i, e in zip(share.indices, at, strict=True) if not isinstance(i, EXPR_TYPES)]
            fresh = (self._free(f"r{k or ''}", {d.name for d in (*dims, *share.dims)}) for k in count())
            known = self.facts.with_dims(dims)
            try:
                got = instances(share.dims, places, known, fresh)
            except Unsolved as e:
                raise self._part(s) from e
            if got.left:
                raise self._part(s)
            if not got.conditions:
                return
            written = [as_expr(c, known) for c in got.conditions]
            unwritten.append(negated(functools.reduce(lambda a, b: Apply("and", (a, b), BOOL), written)))
        if seed is not None:
            value = converted(seed, t.dtype.compute)
            share = Share(at, dims, tuple(unwritten), value, Read(t.alias, at, t.dtype))
            self.shares.setdefault(t.alias, []).append(share)

    def _part(self, s: Statement) -> DslError:
        message = f"which elements of '{s.target}' stay as they are cannot be said for its gradient"
        hint = "write all elements, or make the parameter an input and the new value a result"
        return DslError(message, code="PF793", span=s.span, hint=hint)

    def _held(self, e: Expr, s: Statement) -> Expr | None:
        """The element that has the value of an expression: that which the statement defines as it."""
        t = self.graph.tensor(s.target)
        alone = e is s.expr and s.reduction is None and t.dtype is e.dtype
        scattered = any(w.accumulate for w in self.graph.writers(t.name))
        return Read(t.name, s.write, t.dtype) if alone and not scattered else None

    def _is_live(self, e: Expr) -> bool:
        """Does a gradient flow through it?"""
        match e:
            case Read(tensor):
                return tensor in self.live
            case Select(_, then, other):
                return self._is_live(then) or self._is_live(other)
            case Cast(arg):
                return e.dtype.is_float and arg.dtype.is_float and self._is_live(arg)
            case Apply(_, args):
                return e.dtype.is_float and any(map(self._is_live, args))
            case _:
                return False

    def _shares_of_running(self, s: Statement, seed: Expr) -> bool:
        """Those of a running extreme: its place has the gradient. Is it one?"""
        t = self.graph.tensor(s.target)
        if len(self.graph.writers(t.name)) > 1 or t.dtype is not s.expr.dtype:
            return False
        name = self.fresh(f"{t.name}_at")
        place = running_place(s, name)
        if place is None:
            return False
        self.tensors[name] = Tensor(name, I64, t.shape, Role.TEMP)
        self.statements.append(place)
        (d,) = (d for d in s.dims if d.reduce)
        value = with_data(s.expr, d.name, Read(name, s.write, I64))
        outer = tuple(x for x in s.dims if not x.reduce)
        self._walk(value, seed, [], replace(s, dims=outer, expr=value, reduction=None))
        return True

    def _shares_of_first(self, s: Statement, seed: Expr) -> bool:
        """Of terms that are computed the first extreme has the gradient: who computes one again need not get
        the same bits, so that none might be equal. Is it such a statement, with one variable?"""
        conditions, term = at_extreme(self.graph, s)
        reduced = [d for d in s.dims if d.reduce]
        several = len(self.graph.writers(s.target)) > 1 or len(reduced) != 1 or s.accumulate
        if several or is_stored(self.graph, term) or any(data_bounds_it(c) for c in conditions):
            return False
        (d,) = reduced
        name = self.fresh(f"{s.target}_at")
        self.tensors[name] = Tensor(name, I64, self.graph.tensor(s.target).shape, Role.TEMP)
        self.statements.append(replace(s, name=name, target=name, reduction=f"arg{s.reduction}"))
        here = apply("eq", Read(name, s.write, I64), IndexValue(IVar(d.name), I64))
        self._walk(term, seed, [*conditions[:-1], here], s)
        return True

    def _ties(self, tensor: str, write: tuple[Index, ...]) -> Expr:
        """How many terms are the extreme: they share its gradient."""
        key = f"{tensor} ties"
        if key not in self.named:
            t = self.graph.tensor(tensor)
            name = self.named[key] = self.fresh(f"{tensor}_ties")
            self.tensors[name] = Tensor(name, t.dtype.compute, t.shape, Role.TEMP)
            scattered = any(s.accumulate for s in self.graph.writers(tensor))
            for s in self.graph.writers(tensor):
                one = choice(at_extreme(self.graph, s)[0], number(1.0, t.dtype.compute))
                if scattered and not s.accumulate and isinstance(s.expr, Const):
                    one = number(0.0, t.dtype.compute)
                how = "sum" if s.reduction else None
                self.statements.append(
                    Statement(self.fresh(name), name, s.dims, s.write, one, how, s.accumulate)
                )
        name = self.named[key]
        return Read(name, write, self.tensors[name].dtype)

    def _shares_of_product(self, s: Statement, seed: Expr) -> None:
        """The others' product: of those that are not 0, where one alone is 0 and it is this one, or none."""
        dtype = s.expr.dtype
        zero = apply("eq", s.expr, number(0.0, dtype))
        parts = {
            "zeros": ("sum", choice([zero], number(1.0, dtype))),
            "others": ("prod", Select(zero, number(1.0, dtype), s.expr, dtype)),
        }
        zeros, others = (self._beside(s, what, value, how) for what, (how, value) in parts.items())
        whole = multiplied(seed, others)
        none = self._beside(s, "whole", choice([apply("eq", zeros, number(0.0, dtype))], whole))
        one = self._beside(s, "rest", choice([apply("eq", zeros, number(1.0, dtype))], whole))
        self._walk(s.expr, multiplied(apply("div", none, s.expr)), [negated(zero)], s)
        self._walk(s.expr, one, [zero], s)

    def _beside(self, s: Statement, what: str, value: Expr, how: str | None = None) -> Read:
        """An element of a tensor beside what a statement defines."""
        name = self.fresh(f"{s.target}_{what}")
        dims = s.dims if how else tuple(d for d in s.dims if not d.reduce)
        self.tensors[name] = Tensor(name, value.dtype, self.graph.tensor(s.target).shape, Role.TEMP)
        self.statements.append(Statement(name, name, dims, s.write, value, how))
        return Read(name, s.write, value.dtype)

    # --- gradients of tensors ------------------------------------------------------------------------

    def _finish(self, tensor: str, named: bool) -> None:
        """All shares of a tensor's elements are known: they become its gradient."""
        t = self.graph.tensor(tensor)
        dims, gathered, scattered = self._gathered(t)
        gathered += self.early.pop(tensor, [])
        if tensor in self.cotangents:
            given = Read(self.cotangents[tensor], tuple(IVar(d.name) for d in dims), t.dtype)
            gathered.insert(0, converted(given, t.dtype.compute))
        if not gathered and not scattered:
            if not named:
                return
            gathered = [number(0.0, t.dtype.compute)]
        value = self.reuse(added(gathered, t.dtype.compute))
        if self.vanish(value):
            if named:
                value = number(0.0, t.dtype.compute)
            elif not scattered:
                return
        if scattered and named:
            at = scattered[0].at
            message = f"the gradient of '{tensor}' would be scattered within a recurrence"
            hint = "read the elements by indices of loops, or leave out of wrt= what goes through it"
            raise DslError(message, code="PF793", span=at.span, hint=hint)
        self.whole[tensor] = dims, value
        if named or scattered or tensor in self.gradients or self._is_shared(tensor, value):
            self._materialise(tensor)
        for share in scattered:
            self._scatter(tensor, self._name(tensor), share)

    def _before(self, tensor: str) -> None:
        """What comes from outside of a recurrence: scatters are done when it begins."""
        t = self.graph.tensor(tensor)
        dims, gathered, scattered = self._gathered(t)
        if scattered:
            name, at = self.fresh(f"d{tensor}_from"), tuple(IVar(d.name) for d in dims)
            self.tensors[name] = Tensor(name, t.dtype.compute, t.shape, Role.TEMP)
            zero = number(0.0, t.dtype.compute)
            self.statements.append(Statement(name, name, dims, at, zero))
            for share in scattered:
                self._scatter(tensor, name, share)
            gathered.append(Read(name, at, t.dtype.compute))
        self.early[tensor] = gathered

    def _is_shared(self, tensor: str, value: Expr) -> bool:
        """Is it more than a product of few, and asked for more than once?"""
        uses = sum(r.tensor in self.live for s in self.graph.writers(tensor) for r in reads(s.expr))
        return uses > 1 and len(reads(value)) > 1

    def _materialise(self, tensor: str) -> None:
        dims, value = self.whole[tensor]
        name = self._name(tensor)
        t = self.tensors[name]
        write = tuple(IVar(d.name) for d in dims)
        if t.dtype is not value.dtype:
            value = Cast(value, t.dtype)
        self.statements.append(
            Statement(self.fresh(name) if name in self._statements() else name, name, dims, write, value)
        )

    def _statements(self) -> set[str]:
        return {s.name for s in self.statements}

    def _scatter(self, tensor: str, name: str, share: Share) -> None:
        renamed = self._free_dims(share, set())
        value = choice(renamed.conditions, renamed.value)
        indices = tuple(guarded(i, renamed.conditions) for i in renamed.indices)
        self.notes.append(
            (tensor, "scattered: its elements are found by data, or by indices that cannot be solved")
        )
        self.statements.append(
            Statement(self.fresh(f"{name}__add"), name, renamed.dims, indices, value, "sum", True)
        )

    def _gradient(self, name: str) -> None:
        """The result for an input: zeros where nothing flows."""
        if name not in self.named and name in self.whole:
            self._materialise(name)
        elif name not in self.named:
            t = self.graph.tensor(name)
            self.whole[name] = self._dims(t), number(0.0, t.dtype.compute)
            self._materialise(name)

    # --- shares as sums ------------------------------------------------------------------------------

    def _dims(self, t: Tensor) -> tuple[IterDim, ...]:
        """Variables for the elements of a tensor, called as the first statement that has them does."""
        places = [(s.write, s) for s in self.graph.writers(t.name)]
        places += [
            (r.indices, s) for s in self.graph.readers(t.name) for r in reads(s.expr) if r.tensor == t.name
        ]
        found: list[str] = []
        for k in range(len(t.shape)):
            names = (i.name for at, _ in places if isinstance(i := at[k], IVar))
            free = (n for n in names if n not in found)
            found.append(next(free, "") or self._free(f"i{k}", found))
        return tuple(IterDim(n, IConst(0), extent) for n, extent in zip(found, t.shape, strict=True))

    def _free(self, name: str, used: Iterable[str]) -> str:
        """A name for a variable: variables of other statements may have it."""
        used = set(used) | self.taken
        return next(n for k in count() if (n := f"{name}{k or ''}") not in used)

    def _free_dims(self, share: Share, used: set[str]) -> Share:
        """The share with variables that are called like none of `used`."""
        names: dict[str, IndexExpr] = {}
        dims: list[IterDim] = []
        for d in share.dims:
            name = self._free(d.name, used | {x.name for x in dims})
            lower, upper = (substitute(b, names) for b in (d.lower, d.upper))
            dims.append(IterDim(name, lower, upper, d.reduce))
            names[d.name] = IVar(name)
        return replace(
            share,
            dims=tuple(dims),
            indices=tuple(
                map_index(i, lambda e: moved(e, names), lambda i: substitute(i, names)) for i in share.indices
            ),
            conditions=tuple(moved(c, names) for c in share.conditions),
            value=moved(share.value, names),
        )

    def _gathered(self, t: Tensor) -> tuple[tuple[IterDim, ...], list[Expr], list[Share]]:
        """The sum over instances for each share that can be solved, and the other shares."""
        dims = self._dims(t)
        found: list[Term] = []
        scattered: list[Share] = []
        for share in map(self._by_rows, merged(self.shares.pop(t.name, []))):
            try:
                found.append(self._solved(share, dims))
            except Unsolved:
                scattered.append(share)
        parts = [x.value for x in found if not x.left]
        together: dict[tuple[object, ...], list[Term]] = {}
        for x in found:
            if x.left:
                together.setdefault((x.left, x.outside), []).append(x)
        for same in together.values():
            value = self.reuse(added([x.value for x in same], t.dtype.compute))
            parts.append(choice(same[0].outside, self._reduced(t, dims, same[0].left, value)))
        return dims, [p for p in parts if not is_zero(p)], scattered

    def _by_rows(self, share: Share) -> Share:
        """An element of rows that data bound lies in one of them: no other has to be looked at."""
        inside = [c for c in share.conditions if (found := row_of(c, share)) is not None]
        if not inside:
            return share
        found = row_of(inside[0], share)
        assert found is not None
        pointer, n, e = found
        row = Read(self._rows(pointer, e), (IVar(e.name),), I64)
        there = [apply("ge", row, Const(0, I64)), apply("lt", row, IndexValue(n.upper, I64))]
        rest = [c for c in share.conditions if c is not inside[0]]
        return replace(
            share,
            dims=tuple(d for d in share.dims if d is not n),
            conditions=(*there, *(with_data(c, n.name, row) for c in rest)),
            value=with_data(share.value, n.name, row),
        )

    def _rows(self, pointer: Read, e: IterDim) -> str:
        """The tensor of the last row that begins at each element or before, as `row(pointer, e)` is."""
        key = f"{pointer.tensor} rows {e.upper}"
        if key not in self.named:
            name = self.named[key] = self.fresh(f"{pointer.tensor}_row")
            self.tensors[name] = Tensor(name, I64, (e.upper,), Role.TEMP)
            at = IVar(self._free("n", (e.name,)))
            begin = as_i64(Read(pointer.tensor, (at,), pointer.dtype))
            here = apply("le", begin, IndexValue(IVar(e.name), I64))
            value = Select(here, IndexValue(at, I64), Const(-1, I64), I64)
            over = IterDim(at.name, IConst(0), self.graph.tensor(pointer.tensor).shape[0], True)
            dims = (replace(e, reduce=False), over)
            self.statements.append(Statement(name, name, dims, (IVar(e.name),), value, "max"))
        return self.named[key]

    def _solved(self, share: Share, dims: tuple[IterDim, ...]) -> Term:
        """What is summed over which variables."""
        outer = {d.name for d in dims}
        apart = self._free_dims(share, outer)
        fresh = (self._free(f"r{k or ''}", outer | {d.name for d in apart.dims}) for k in count())
        places = list(zip(apart.indices, dims, strict=True))
        equations = [(i, IVar(d.name)) for i, d in places if not isinstance(i, EXPR_TYPES)]
        chosen = [is_at(i, d.name) for i, d in places if isinstance(i, EXPR_TYPES)]
        known = self.facts.with_dims(dims)
        got = instances(apart.dims, equations, known, fresh)
        if chosen and got.left:
            raise Unsolved("data")
        left = got.left
        inner = known.with_dims(left)
        for c in got.conditions:
            if isinstance(c.left, IBin) and c.left.op == "%" and c.op == "==" and c.right == IConst(0):
                inner.divides(c.left.right, c.left.left)
        names: dict[str, IndexExpr] = {}
        original = dict(zip((d.name for d in apart.dims), (d.name for d in share.dims), strict=True))
        for d in left:
            nice = original.get(d.name, d.name)
            if nice not in outer | {str(n) for n in names.values()}:
                names[d.name] = IVar(nice)
        left = tuple(
            IterDim(
                str(names.get(d.name, d.name)), substitute(d.lower, names), substitute(d.upper, names), True
            )
            for d in left
        )
        conditions = [as_expr(c, inner) for c in got.conditions]
        at = {n: inner.simple(v) for n, v in got.values.items()}
        own = [simplified(moved(c, at, inner), inner) for c in (*apart.conditions, *chosen)]
        value = moved(apart.value, at, inner)
        every = [moved(c, names) for c in (*conditions, *own)]
        outside = [c for c in every if left and not depends_on(c) & {d.name for d in left}]
        by_data = [c for c in outside if not on_indices(c)]
        if not by_data:
            outside = []
        # Those on indices stay inside as well: they guard what is read there.
        return Term(left, tuple(outside), choice([c for c in every if c not in by_data], moved(value, names)))

    def _reduced(self, t: Tensor, dims: tuple[IterDim, ...], left: tuple[IterDim, ...], value: Expr) -> Expr:
        """A sum in a tensor of its own, times what does not change in it."""
        if is_zero(value):
            return value
        parts = terms(value)
        kept = [x for x in parts if not self.vanish.sum_of(x, left)] if len(parts) > 1 else parts
        if len(kept) < len(parts):
            return self._reduced(t, dims, left, added(kept, value.dtype))
        inner = {d.name for d in left}
        p = product(value)
        outside = {a: n for a, n in p.factors.items() if not depends_on(a) & inner}
        if len(outside) == len(p.factors) and p.factors:
            outside.pop(next(iter(p.factors)))
        within = {a: n for a, n in p.factors.items() if a not in outside}
        body = written(type(p)(1.0, within), value.dtype)
        used = depends_on(body, *(b for d in left for b in (d.lower, d.upper)))
        outer = tuple(d for d in dims if d.name in used)
        name = self._sum(t, outer, left, body)
        total = Read(name, tuple(IVar(d.name) for d in outer), value.dtype)
        if self.vanish(total):
            return number(0.0, value.dtype)
        return written(type(p)(p.coefficient, {**outside, total: 1}), value.dtype)

    def _sum(self, t: Tensor, outer: tuple[IterDim, ...], left: tuple[IterDim, ...], body: Expr) -> str:
        """The tensor of a sum: one that is there already where it is the same."""
        write = tuple(IVar(d.name) for d in outer)
        for s in self.statements:
            if (s.dims, s.write, s.expr, s.reduction) == ((*outer, *left), write, body, "sum"):
                return s.target
        name = self.fresh(f"d{t.name}_sum")
        self.tensors[name] = Tensor(name, body.dtype, tuple(d.upper for d in outer), Role.TEMP)
        self.statements.append(Statement(name, name, (*outer, *left), write, body, "sum"))
        return name
