"""isl texts for proofs about a graph: flat, with numbered names, sizes symbolic or known.

Loop variables are ``v0, v1, ...``, sizes ``n0, n1, ...``, so that no user name reaches isl.  Index
expressions become sums of integer multiples of atoms; an atom is a name, a ``floor(... / c)``, or a
``min``/``max``.  A non-affine expression of unknown sizes only (``G*K``, ``N // G``) becomes a parameter
``m0, m1, ...`` of which only the sign is known.  What is so lost, or dropped from a guard or a
constraint, is recorded: a proof that fails then says nothing yet, and is tried again when the sizes
are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import islpy as isl

from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, variables
from polyfuse.ir.index_expr import sizes as sizes_of
from polyfuse.ir.linear import index_operand
from polyfuse.ir.ops import INDEX, NEGATED
from polyfuse.ir.tensor_graph import Apply, Const, Constraint, Expr, IndexValue, IterDim, Role, TensorGraph
from polyfuse.poly.legality.index_overflow import Spans, is_exact
from polyfuse.poly.model.isl_bridge import COMPARE, NotAffine

Linear: TypeAlias = tuple[dict[str, int], int]

_LONGEST = 20_000
_DEEPEST = 300
_MOST_DIVISIONS = 24
_SYMBOL = {"==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class DivisionByZero(Exception):
    """An index divides by zero; the text is the division."""


@dataclass
class IslText:
    """Texts of sets over the loop variables of one graph, in one context."""

    graph: TensorGraph
    sizes: Mapping[str, int]
    context: isl.Context
    vague: bool = False  # whether anything was lost since the flag was last cleared
    _params: dict[IndexExpr, str] = field(default_factory=dict)
    _assumed: list[str] = field(default_factory=list)
    _lost_sizes: set[str] = field(default_factory=set)
    _sizes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in self.graph.sizes:
            if name not in self.sizes:
                self._params[ISize(name)] = f"n{len(self._params)}"
        self._sizes = frozenset(self._params.values())
        self._assumed = [f"{p} >= 0" for p in self._params.values()]
        for c in self.graph.constraints:
            self._assume(c)
        for t in self.graph.tensors:
            for extent in t.shape if t.role is not Role.TEMP else ():
                if not isinstance(extent, (IConst, ISize)):
                    self._assume(Constraint(">=", extent, IConst(0)))

    @property
    def unknown(self) -> tuple[str, ...]:
        """The sizes that are parameters."""
        return tuple(n for n in self.graph.sizes if n not in self.sizes)

    def _assume(self, c: Constraint) -> None:
        before, self.vague = self.vague, False
        try:
            text = self.compared(c.left, _SYMBOL[c.op], c.right, {})
            plain = c.op == ">=" and c.right == IConst(0) and never_negative(c.left)
            self._assumed += [] if plain else [text]
        except (NotAffine, DivisionByZero):
            self.vague = True
        if self.vague:
            self._lost_sizes.update((*sizes_of(c.left), *sizes_of(c.right)))
        self.vague = before

    # --- index expressions ---

    def index(self, e: IndexExpr, scope: Mapping[str, str]) -> str:
        """isl text of an index; `scope` gives the names of loop variables. Raises NotAffine."""
        return self.show(self.linear(e, scope))

    def show(self, linear: Linear) -> str:
        terms = [f"{c}*{atom}" if c != 1 else atom for atom, c in linear[0].items()]
        text = " + ".join([*terms, str(linear[1])] if linear[1] or not terms else terms)
        if len(text) > _LONGEST or text.count("floor") > _MOST_DIVISIONS:
            raise NotAffine("an index with this many terms")
        return f"({text})" if len(terms) + bool(linear[1]) > 1 or linear[1] < 0 else text

    def linear(self, e: IndexExpr, scope: Mapping[str, str], depth: int = 0) -> Linear:
        """The expression as coefficients of atoms and a constant."""
        if depth > _DEEPEST:
            raise NotAffine("an index of this depth")
        match e:
            case IConst(value):
                return {}, value
            case ISize(name):
                self.vague |= name in self._lost_sizes
                return ({}, self.sizes[name]) if name in self.sizes else ({self._params[e]: 1}, 0)
            case IVar(name):
                return {scope[name]: 1}, 0
            case IBin(op, left, right):
                a = self.linear(left, scope, depth + 1)
                b = self.linear(right, scope, depth + 1)
                return self._binary(op, a, b, e)

    def _binary(self, op: str, a: Linear, b: Linear, e: IndexExpr) -> Linear:
        match op:
            case "+" | "-":
                sign = 1 if op == "+" else -1
                total = dict(a[0])
                for atom, c in b[0].items():
                    total[atom] = total.get(atom, 0) + sign * c
                return {x: c for x, c in total.items() if c}, a[1] + sign * b[1]
            case "*" if not a[0] or not b[0]:
                (terms, constant), c = (b, a[1]) if not a[0] else (a, b[1])
                return {x: k * c for x, k in terms.items() if k * c}, constant * c
            case "//" if not b[0]:
                return self._floor(a, b[1], e)
            case "%" if not b[0]:
                whole = self._floor(a, b[1], e)
                return self._binary("-", a, ({x: k * b[1] for x, k in whole[0].items()}, whole[1] * b[1]), e)
            case "min" | "max" if not a[0] and not b[0]:
                return {}, (min if op == "min" else max)(a[1], b[1])
            case "min" | "max":
                return {f"{op}({self.show(a)}, {self.show(b)})": 1}, 0
        return self._opaque(e)

    def _floor(self, a: Linear, divisor: int, e: IndexExpr) -> Linear:
        if divisor == 0:
            raise DivisionByZero(str(e))
        if divisor < 0:
            a, divisor = ({x: -k for x, k in a[0].items()}, -a[1]), -divisor
        whole = {x: k // divisor for x, k in a[0].items() if k % divisor == 0}
        rest = {x: k for x, k in a[0].items() if k % divisor}
        if not rest:
            return whole, a[1] // divisor
        constant, inside = divmod(a[1], divisor)
        atom = f"floor({self.show((rest, inside))}/{divisor})"  # which may be a term of the whole, too
        return self._binary("+", (whole, constant), ({atom: 1}, 0), e)

    def _opaque(self, e: IndexExpr) -> Linear:
        """A non-affine expression of sizes as a parameter of its own."""
        if variables(e) or not any(n not in self.sizes for n in sizes_of(e)):
            raise NotAffine(str(e))
        self.vague = True
        if e not in self._params:
            self._params[e] = f"m{len(self._params)}"
            if never_negative(e):
                self._assumed.append(f"{self._params[e]} >= 0")
        return {self._params[e]: 1}, 0

    # --- conditions ---

    def bounds(self, dims: tuple[IterDim, ...], scope: Mapping[str, str]) -> list[str]:
        """Constraints of an iteration domain."""
        found = []
        for d in dims:
            v = IVar(d.name)
            found += [self.compared(d.lower, "<=", v, scope), self.compared(v, "<", d.upper, scope)]
        return found

    def compared(self, left: IndexExpr, op: str, right: IndexExpr, scope: Mapping[str, str]) -> str:
        """isl text of a comparison (< <= > >= = !=). Raises NotAffine.

        A maximum is below something if all its arms are, and above if one is: isl gets each arm by itself,
        as it makes a cube of the arms of one expression.
        """
        turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        for e, own, other in ((left, op, right), (right, turned.get(op, op), left)):
            if isinstance(e, IBin) and e.op in ("min", "max") and own in turned:
                every = (e.op == "max") == (own in ("<", "<="))
                parts = (self.compared(x, own, other, scope) for x in _arms(e.op, e))
                return f"({(' and ' if every else ' or ').join(dict.fromkeys(parts))})"
        return f"{self.index(left, scope)} {op} {self.index(right, scope)}"

    def condition(
        self, cond: Expr, scope: Mapping[str, str], spans: Spans, positive: bool = True
    ) -> str | None:
        """isl text that a guard (or its negation) implies, or None if it says nothing about indices.

        Of a conjunction the affine parts remain: a wider set is safe to prove things on.  What may wrap or
        be divided by 0, as far as `spans` tell, is no index.
        """
        match cond:
            case Const(bool() as value):
                return "true" if value == positive else "false"
            case Apply("not", (arg,)):
                return self.condition(arg, scope, spans, not positive)
            case Apply("and" | "or" as op, (left, right)):
                first = self.condition(left, scope, spans, positive)
                second = self.condition(right, scope, spans, positive)
                if (op == "and") == positive:
                    return " and ".join(f"({t})" for t in (first, second) if t is not None) or None
                return None if first is None or second is None else f"(({first}) or ({second}))"
            case Apply(op, (left, right)) if op in COMPARE:
                return self._comparison(op if positive else NEGATED[op], (left, right), scope, spans)
        return None

    def _comparison(
        self, op: str, sides: tuple[Expr, Expr], scope: Mapping[str, str], spans: Spans
    ) -> str | None:
        a, b = map(as_index_expr, sides)
        if a is None or b is None or not (is_exact(a, spans) and is_exact(b, spans)):
            return None
        try:
            return self.compared(a, COMPARE[op], b, scope)
        except NotAffine:
            self.vague = True
            return None

    # --- sets ---

    def set(self, dims: list[str], *alternatives: list[str]) -> isl.Set:
        """``{ [dims] : (a and b) or (c and d) or ... }`` under the assumptions on sizes."""
        return isl.Set.read_from_str(self.context, self._text(f"[{', '.join(dims)}]", alternatives))

    def map(self, source: str, target: str, conditions: list[str]) -> isl.Map:
        """``{ source -> target : conditions }``; both are tuples such as ``S0[v0, v1]``."""
        return isl.Map.read_from_str(self.context, self._text(f"{source} -> {target}", (conditions,)))

    def _text(self, space: str, alternatives: tuple[list[str], ...]) -> str:
        choices = " or ".join(f"({' and '.join(c) or 'true'})" for c in alternatives)
        params = ", ".join(self._params.values())
        where = " and ".join([*self._assumed, f"({choices})"])
        return f"[{params}] -> {{ {space} : {where} }}"

    def is_size(self, atom: str) -> bool:
        """Is an atom a size, which is never negative?"""
        return atom in self._sizes

    def size_names(self) -> dict[str, str]:
        """isl parameter -> size, of the sizes themselves."""
        return {p: e.name for e, p in self._params.items() if isinstance(e, ISize)}


def _arms(op: str, e: IndexExpr) -> list[IndexExpr]:
    """The operands of nested minima, or maxima."""
    if isinstance(e, IBin) and e.op == op:
        return [*_arms(op, e.left), *_arms(op, e.right)]
    return [e]


def never_negative(e: IndexExpr) -> bool:
    """Surely not negative: sizes, their products and quotients, and constants."""
    match e:
        case IConst(value):
            return value >= 0
        case ISize():
            return True
        case IBin("+" | "*" | "//" | "%" | "min" | "max", left, right):
            return never_negative(left) and never_negative(right)
    return False


def as_index_expr(e: Expr) -> IndexExpr | None:
    """An expression of indices, sizes and constants as an index expression; shorter integers wrap."""
    if e.dtype is not I64:
        return None
    match e:
        case IndexValue() | Const():
            return index_operand(e)
        case Apply("neg", (arg,)):
            inner = as_index_expr(arg)
            return None if inner is None else binary("-", 0, inner)
        case Apply(op, (left, right)) if op in INDEX:
            a, b = as_index_expr(left), as_index_expr(right)
            return None if a is None or b is None else binary(INDEX[op], a, b)
    return None
