"""Proof obligations: settled by showing that the set of counterexamples is empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import islpy as isl

from polyfuse.diagnostics import Diagnostics
from polyfuse.ir.index_expr import IConst, IndexExpr, evaluate, substitute
from polyfuse.ir.intervals import of_dtype, of_tree
from polyfuse.ir.tensor_graph import EXPR_TYPES, Expr, IterDim, TensorGraph, map_expr
from polyfuse.poly.legality.index_overflow import spans_of
from polyfuse.poly.model.dependences import Element, Guard
from polyfuse.poly.model.isl_bridge import NotAffine
from polyfuse.poly.model.isl_text import DivisionByZero, IslText
from polyfuse.source import Span

OPERATIONS = 2_000_000
_SIZES_OF_EXAMPLES = (4, 1, 0)  # the first of these lower bounds that leaves a counterexample
_LARGE = 64  # sizes from here on are not small: see `only_small`


@dataclass(frozen=True, slots=True)
class Obligation:
    """Something that has to hold: a code, the statement or tensor it is about, and what, in words."""

    code: str
    subject: str
    what: str
    span: Span = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.code} {self.subject}: {self.what}"


@dataclass(frozen=True, slots=True)
class Example:
    """A counterexample: values of the loop variables (or axes) and of the symbolic sizes."""

    point: Mapping[str, int]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bad:
    """Counterexamples: a set whose dims are the variables `names`; `say` puts one into words."""

    points: isl.Set
    names: tuple[str, ...]
    say: Callable[[Example], str]


@dataclass
class Proofs:
    """One run of proofs on a graph: context, texts, findings, and what was left open."""

    graph: TensorGraph
    sizes: Mapping[str, int]
    diagnostics: Diagnostics
    only: frozenset[Obligation] | None
    context: isl.Context = field(default_factory=isl.Context)
    open: set[Obligation] = field(default_factory=set)
    refuted: set[str] = field(default_factory=set)  # tensors about which something is wrong already

    def __post_init__(self) -> None:
        self.context.set_max_operations(OPERATIONS)
        self.text = IslText(self.graph, self.sizes, self.context)

    @property
    def symbolic(self) -> bool:
        """Whether some size is unknown, so that a proof may be left open."""
        return bool(self.text.unknown)

    def wanted(self, o: Obligation) -> bool:
        return self.only is None or o in self.only

    def called(self, tensor: str) -> str:
        """A tensor's name in the program: that of its parameter for what is written in place."""
        return self.graph.tensor(tensor).alias or tensor

    def settle(
        self,
        o: Obligation,
        find: Callable[[], Bad],
        hint: str | Callable[[Bad, Example], str] | None = None,
        dims: tuple[IterDim, ...] = (),
    ) -> bool:
        """Prove that `find` gives no counterexample; an error and False if it gives one.

        A `hint` may depend on the counterexamples and the one shown. `dims` are the loops around:
        where they never run, a division by zero is none.
        """
        if not self.wanted(o):
            return True
        example: Example | None = None
        bad: list[Bad] = []

        def attempt() -> bool:
            nonlocal example
            bad.append(find())
            if bad[0].points.is_empty():
                return True
            if self.symbolic and (self.text.vague or self._with_sizes_from(bad[0].points, 1).is_empty()):
                self.open.add(o)
                return True
            example = self._example(bad[0])
            return False

        proved = self.attempt(o, attempt, dims)
        if example is not None:
            advice = hint(bad[0], example) if callable(hint) else hint
            self.diagnostics.error(o.code, bad[0].say(example), o.span, advice)
        return proved

    def attempt(self, o: Obligation, proof: Callable[[], bool], dims: tuple[IterDim, ...] = ()) -> bool:
        """Run a proof; what cannot be decided with symbolic sizes is left open, else it is an error."""
        self.text.vague = False
        self.context.reset_operations()
        try:
            return proof()
        except NotAffine as e:
            why = ("PF357", f"{e} is not an affine index", "use + and -, and * // % with constants or sizes")
        except DivisionByZero as e:
            if self.never_runs(dims):
                return True
            why = ("PF356", f"division by zero in the index {e}{self.given()}", "use a divisor that is not 0")
            self.diagnostics.error(why[0], why[1], o.span, why[2])
            return False
        except isl.Error:
            what = f"no proof within {OPERATIONS} operations that {o.what}{self.given()}"
            why = ("PF358", what, "simplify the indices and guards of this statement")
        if self.symbolic:
            self.open.add(o)
            return True
        self.diagnostics.error(why[0], why[1], o.span, why[2])
        return False

    def never_runs(self, dims: tuple[IterDim, ...]) -> bool:
        """Whether the loops are empty whatever the sizes are."""
        try:
            scope = self.scope(dims)
            return bool(dims) and self.text.set([*scope.values()], self.text.bounds(dims, scope)).is_empty()
        except (NotAffine, DivisionByZero):
            return False

    # --- counterexamples ---

    def _with_sizes_from(self, points: isl.Set, least: int) -> isl.Set:
        for p in self.text.size_names():
            at = points.find_dim_by_name(isl.dim_type.param, p)
            if at >= 0:
                points = points.lower_bound_val(
                    isl.dim_type.param, at, isl.Val.int_from_si(self.context, least)
                )
        return points

    def only_small(self, bad: Bad) -> bool:
        """Whether only small sizes have counterexamples, so that a constraint `N >= ...` excludes them."""
        return self.symbolic and self._with_sizes_from(bad.points, _LARGE).is_empty()

    def _example(self, bad: Bad) -> Example:
        points = bad.points
        for least in _SIZES_OF_EXAMPLES:
            points = self._with_sizes_from(bad.points, least)
            if not points.is_empty():
                break
        count = points.dim(isl.dim_type.param)
        params = [points.get_dim_name(isl.dim_type.param, k) or "" for k in range(count)]
        point = points.move_dims(isl.dim_type.set, 0, isl.dim_type.param, 0, count).lexmin().sample_point()
        values = [
            int(point.get_coordinate_val(isl.dim_type.set, k).to_python())
            for k in range(count + len(bad.names))
        ]
        names = self.text.size_names()
        sizes = {names[p]: v for p, v in zip(params, values, strict=False) if p in names}
        return Example(dict(zip(bad.names, values[count:], strict=True)), sizes)

    def given(self, example: Example | None = None) -> str:
        """`` (N = 8)``: the sizes, those of the example included; "" if there are none."""
        known = {**self.sizes, **(example.sizes if example else {})}
        shown = ", ".join(f"{n} = {known[n]}" for n in self.graph.sizes if n in known)
        return f" ({shown})" if shown else ""

    def place(self, dims: tuple[IterDim, ...], example: Example) -> str:
        """``for i = 7 (N = 8)``."""
        point = ", ".join(f"{d.name} = {example.point[d.name]}" for d in dims)
        given = self.given(example)
        return f"for {point}{given}" if point else f"for{given or ' any size'}"

    def value(self, e: IndexExpr, example: Example) -> int:
        return evaluate(e, {**self.sizes, **example.sizes, **example.point})

    # --- constraints ---

    def scope(self, dims: tuple[IterDim, ...], prefix: str = "v") -> dict[str, str]:
        """isl names of the loop variables."""
        return {d.name: f"{prefix}{k}" for k, d in enumerate(dims)}

    def inside(self, a: Element, scope: Mapping[str, str]) -> list[str]:
        """Where an access happens: the iteration domain and the guards that say something."""
        return self.where(a.dims, a.guards, scope)

    def where(
        self, dims: tuple[IterDim, ...], guards: tuple[Guard, ...], scope: Mapping[str, str]
    ) -> list[str]:
        """The iterations in which guards hold, as far as they say something."""
        spans = spans_of(dims, self.sizes)
        texts = (self.text.condition(g.cond, scope, spans, g.positive) for g in guards)
        return [*self.text.bounds(dims, scope), *(t for t in texts if t is not None)]

    def element(self, a: Element, outs: list[str], scope: Mapping[str, str]) -> list[str]:
        """Constraints that make `outs` the element accessed; a data index may be anything in range that its
        operations leave (`min(max(k[i], 1), 3)`)."""
        found = []
        for n, i, extent in zip(outs, a.indices, self.graph.tensor(a.tensor).shape, strict=True):
            if isinstance(i, EXPR_TYPES):
                end = self.text.index(extent, {})
                low, high = of_tree(self._at_sizes(i), spans_of(a.dims, self.sizes))
                found.append(f"0 <= {n} < {end}")
                found += [f"{n} >= min({low}, {end} - 1)"] * (low > 0)
                found += [f"{n} <= {max(high, 0)}"] * (high < of_dtype(i.dtype)[1])
            else:
                found.append(f"{n} = {self.text.index(i, scope)}")
        return found

    def _at_sizes(self, e: Expr) -> Expr:
        known: dict[str, IndexExpr] = {n: IConst(v) for n, v in self.sizes.items()}
        return map_expr(e, lambda x: x, lambda i: substitute(i, sizes=known))
