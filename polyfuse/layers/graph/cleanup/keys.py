"""When are two expressions, statements or tensors the same?

Keys are numbers given out by one table (hash-consing): a node's key stands for its operation and the keys of
its parts, so two nodes have one key exactly if they are the same expression, which takes one look into a
dictionary for each node.  Constants are told apart by what is written (0.0 is not -0.0), loops by where they
stand, not by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar
from polyfuse.ir.ops import Trait, with_trait
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
)

# Two operands of these may change places and the result is the same to the bit. Minima and maxima of floats
# are not among them: of 0.0 and -0.0 one is chosen by its place.
COMMUTE = frozenset(with_trait(Trait.COMMUTES)) - {"min", "max"}


@dataclass(slots=True)
class Keys:
    """The table. `name` says what a tensor is called that a statement reads: equal tensors the same."""

    name: Callable[[str], object]
    table: dict[object, int] = field(default_factory=dict)

    def of(self, *parts: object) -> int:
        return self.table.setdefault(parts, len(self.table))

    def statement(self, s: Statement) -> int:
        """What a statement says of its target: where, for which loops, which value."""
        loops = {name: k for k, name in enumerate(_loops_in_order(s))}
        write = tuple(self._any(i, loops) for i in s.write)
        dims = sorted(
            (loops[d.name], self.index(d.lower, loops), self.index(d.upper, loops), d.reduce) for d in s.dims
        )
        return self.of("statement", write, tuple(dims), self.expr(s.expr, loops), s.reduction)

    def index(self, i: IndexExpr, loops: Mapping[str, int]) -> int:
        match i:
            case IVar(name):
                return self.of("loop", loops[name])
            case ISize(name):
                return self.of("size", name)
            case IConst(value):
                return self.of("integer", value)
            case IBin(op, left, right):
                return self.of("index", op, self.index(left, loops), self.index(right, loops))

    def expr(self, e: Expr, loops: Mapping[str, int]) -> int:
        match e:
            case Read(tensor, indices):
                return self.of("read", self.name(tensor), *(self._any(i, loops) for i in indices))
            case Apply(op, args):
                parts = [self.expr(a, loops) for a in args]
                return self.of(op, e.dtype.name, *(sorted(parts) if op in COMMUTE else parts))
            case Const(value, dtype):
                return self.of("constant", dtype.name, repr(value))
            case IndexValue(index, dtype):
                return self.of("value", dtype.name, self.index(index, loops))
            case Select(cond, then, other):
                return self.of("select", *(self.expr(x, loops) for x in (cond, then, other)))
            case Cast(arg, dtype):
                return self.of("cast", dtype.name, self.expr(arg, loops))

    def _any(self, i: Index, loops: Mapping[str, int]) -> int:
        return self.expr(i, loops) if isinstance(i, EXPR_TYPES) else self.index(i, loops)


def _loops_in_order(s: Statement) -> list[str]:
    """The loops of a statement by where they stand on the left side; the others as they are listed."""
    left = [i.name for i in s.write if isinstance(i, IVar)]
    return list(dict.fromkeys((*left, *(d.name for d in s.dims))))


def identical(a: Expr, b: Expr) -> bool:
    """Are two expressions of one statement the same? 0.0 and -0.0 are not."""
    if a is b:
        return True
    if type(a) is not type(b) or a.dtype is not b.dtype:
        return False
    match a, b:
        case Const(), Const():
            return repr(a.value) == repr(b.value)
        case IndexValue(), IndexValue():
            return a.index == b.index
        case Read(), Read():
            return a.tensor == b.tensor and all(map(_same_index, a.indices, b.indices))
        case Apply(), Apply():
            return a.op == b.op and all(map(identical, a.args, b.args))
        case Cast(), Cast():
            return identical(a.arg, b.arg)
        case Select(), Select():
            pairs = ((a.cond, b.cond), (a.then, b.then), (a.other, b.other))
            return all(identical(x, y) for x, y in pairs)
        case _:
            return False


def _same_index(a: Index, b: Index) -> bool:
    if isinstance(a, EXPR_TYPES):
        return isinstance(b, EXPR_TYPES) and identical(a, b)
    return a == b
