"""Vector math functions: all lanes at once, which no compiler finds in the text for one element.

    for l in 0..64:                          for l in 0..64:  row0[l] = x[c + l] - m
      e = exp(x[c + l] - m)           ->     pf_row_exp_f32(row0, 64)
      y[c + l] = e                           for l in 0..64:  e[l] = row0[l];  y[c + l] = e[l]
      s[l] += e

Powers with one exponent for all lanes are such functions as well (`pf_row_pow_f32(row0, 64, g)`): what is
special about an exponent is decided once for so many lanes.

The loop is cut at each of these functions.  Arrays carry what goes from one part to the next; where lanes
are unrolled they become registers.  Lanes are iterations of a vector loop, which do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from polyfuse.codegen.analysis.renaming import scalar_name
from polyfuse.codegen.c_printer import Printer, guarded_load, guards_index
from polyfuse.codegen.math.conversions import ROWS, row_name
from polyfuse.codegen.transforms.precision import is_normal
from polyfuse.ir.dtypes import BF16, F32, F64, HALVES, DType
from polyfuse.ir.functions import SHORT
from polyfuse.ir.loop_ir import Block, Declare, Node, Store, Update
from polyfuse.ir.powers import exponent
from polyfuse.ir.tensor_graph import (
    EXPR_TYPES,
    Apply,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    Select,
    depends_on,
    reads,
    walk,
)

_DTYPES = (F32, F64)

Element = Callable[[Printer, str, tuple[Index, ...]], str]


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes of a loop over lanes; behind it `function`, if there is one, is applied to the array `array`, and
    takes what is the same for all lanes."""

    body: Block
    function: str = ""
    array: str = ""
    same: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Parts:
    """Loops over lanes one after the other, and the arrays that they share."""

    arrays: tuple[tuple[str, DType], ...]
    parts: tuple[Part, ...]

    def element(self, outer: Element) -> Element:
        """How the parts address what they share."""
        shared = {name for name, _ in self.arrays}

        def lane(printer: Printer, buffer: str, indices: tuple[Index, ...]) -> str:
            return f"{scalar_name(buffer)}[l]" if buffer in shared else outer(printer, buffer, indices)

        return lane


def calls_rows(body: Block, var: str = "") -> bool:
    """Is there such a function in the body of a loop over `var`, and may the loop be cut?"""
    plain = all(isinstance(n, (Declare, Store, Update)) for n in body)
    if not plain or any(isinstance(n, Declare) and n.count for n in body) or guarded_load(body):
        return False
    own = _set_by(body)
    return any(_function(x, own, var) for e in _values(body) for x in _unguarded(e))


def in_parts(
    body: Block, scalar: Callable[[Store], bool], normal: frozenset[str] | None = None, var: str = ""
) -> Parts:
    """A body that `calls_rows`, cut at the functions of rows; `scalar` tells stores to scalars, which every
    lane sets before it reads them, `normal` which of them are no denormals
    (`codegen.transforms.precision`)."""
    outer = {n.buffer: n.value.dtype for n in body if isinstance(n, Store) and scalar(n)}
    cut = _Cut(outer, _set_by(body), var, normal)
    for node in body:
        cut.node(node)
    return cut.made()


def _values(body: Iterable[Node]) -> Iterator[Expr]:
    for n in body:
        if isinstance(n, (Declare, Store, Update)) and n.value is not None:
            yield n.value


def _set_by(body: Iterable[Node]) -> frozenset[str]:
    """What a body sets, by name."""
    return frozenset(
        n.name if isinstance(n, Declare) else n.buffer
        for n in body
        if isinstance(n, (Declare, Store, Update))
    )


def _same_for_all(e: Expr, own: frozenset[str], var: str) -> bool:
    """Is an expression the same for all lanes, those over `var` in a body that sets its `own`? Without a
    variable, lanes may begin with what differs between them."""
    if any(r.tensor in own or (r.indices and not var) for r in reads(e)):
        return False
    return var not in depends_on(e) if var else not depends_on(e)


def _function(e: Expr, own: frozenset[str], var: str) -> str | None:
    """The function of rows that computes an expression from its first operand."""
    match e:
        case Apply("pow", (_, y)) if e.dtype in _DTYPES and exponent(e) is None:
            alike = not isinstance(y, Const) and _same_for_all(y, own, var)
            return row_name("pow", e.dtype) if alike else None
        case Apply(op) if e.dtype in _DTYPES and (op in ROWS or op in SHORT.values()):
            return row_name(op, e.dtype)
        case Cast(Cast(arg, half), dtype) if arg.dtype == dtype == F32 and half in HALVES:
            return row_name("round", half)
        case _:
            return None


def _unguarded(e: Expr) -> Iterator[Expr]:
    """What is computed in every lane: nothing that a condition on indices keeps from being read."""
    yield e
    match e:
        case Apply(_, args):
            for a in args:
                yield from _unguarded(a)
        case Cast(arg):
            yield from _unguarded(arg)
        case Select(cond, then, other) if not guards_index(cond):
            for a in (cond, then, other):
                yield from _unguarded(a)
        case _:
            pass


@dataclass(slots=True)
class _Cut:
    """A body over `var` on the way; `own` is what it sets, `outer` what of it are scalars that are declared
    around it, `scalars` those that it declares, `rows` the arrays of the functions."""

    outer: dict[str, DType]
    own: frozenset[str] = frozenset()
    var: str = ""
    normal: frozenset[str] | None = None
    scalars: dict[str, DType] = field(default_factory=dict)
    rows: list[tuple[str, DType]] = field(default_factory=list)
    done: list[Part] = field(default_factory=list)
    body: list[Node] = field(default_factory=list)

    def node(self, node: Node) -> None:
        match node:
            case Declare(name, dtype, value):
                self.scalars[name] = dtype
                if value is not None:
                    self.body.append(Store(name, (), self._expr(value)))
            case Store() | Update():
                self.body.append(replace(node, value=self._expr(node.value)))
            case _:
                raise AssertionError(f"not a plain body: {node}")

    def made(self) -> Parts:
        parts = [*self.done, Part(tuple(self.body))]
        touched = [_touched(p.body) for p in parts]
        known = self.outer | self.scalars
        shared = {n for n in known if sum(n in names for names in touched) > 1}
        own = [
            replace(
                p, body=(*(Declare(n, t) for n, t in self.scalars.items() if n in names - shared), *p.body)
            )
            for p, names in zip(parts, touched, strict=True)
        ]
        arrays = [*self.rows, *((n, t) for n, t in known.items() if n in shared)]
        return Parts(tuple(arrays), tuple(own))

    def _expr(self, e: Expr) -> Expr:
        """The expression with calls of rows replaced by their results, innermost first."""
        match e:
            case Apply(_, args):
                function = _function(e, self.own, self.var)
                if function and len(args) > 1:
                    return self._called(function, self._expr(args[0]), e.dtype, args[1:])
                made = replace(e, args=tuple(self._expr(a) for a in args))
                return self._called(function, made.args[0], e.dtype) if function else made
            case Cast(Cast(arg, half), dtype) if function := _function(e, self.own, self.var):
                if half == BF16 and is_normal(arg, self.normal):
                    function = row_name("round_normal", half)
                return self._called(function, self._expr(arg), dtype)
            case Cast(arg):
                return replace(e, arg=self._expr(arg))
            case Select(cond, then, other) if not guards_index(cond):
                return replace(e, cond=self._expr(cond), then=self._expr(then), other=self._expr(other))
            case _:
                return e

    def _called(self, function: str, operand: Expr, dtype: DType, same: tuple[Expr, ...] = ()) -> Read:
        name = f"%row{len(self.rows)}"
        self.rows.append((name, dtype))
        self.done.append(Part((*self.body, Store(name, (), operand)), function, scalar_name(name), same))
        self.body.clear()
        return Read(name, (), dtype)


def _touched(body: Block) -> set[str]:
    """What a body reads and stores to, by name."""
    found: set[str] = set()
    for n in body:
        if isinstance(n, (Store, Update)):
            found.add(n.buffer)
            every = [n.value, *(i for i in n.indices if isinstance(i, EXPR_TYPES))]
            found |= {x.tensor for e in every for x in walk(e) if isinstance(x, Read)}
    return found
