"""Fast-math where it is exact: extremes need not look for NaN if all that depends on them is NaN anyway.

    m[r] = max[k](u[r, k])              a NaN among the u[r, k] is one among the e[r, k], so d[r] is NaN,
    e[r, k] = exp(u[r, k] - m[r])       and y[r, k] for all k, whatever m[r] is: the comparison and the
    d[r] = sum[k](e[r, k])              choice for each element that keep a NaN in m[r] change no result
    y[r, k] = e[r, k] / d[r]

Two sets of tensors grow from the extreme on, in the order of statements.  *Stained* are those that may be
something else than they should be where a row has a NaN; they have to be temporaries of the kernel.
*Certain* are sums over a whole row of terms that a NaN of the row makes NaN: they are right.  A statement
that reads something stained is right all the same if it surely is NaN where something certain of its row is.
No other extreme may read what is stained: it may be spared itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from polyfuse.ir.functions import FORMS
from polyfuse.ir.index_expr import IndexExpr, IVar, substitute
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.loop_ir import Block, Node, Update, map_nodes
from polyfuse.ir.ops import Trait, with_trait
from polyfuse.ir.tensor_graph import Apply, Cast, Expr, Read, Role, Statement, map_expr, statement_reads

# What is NaN if an operand is.
_STRICT = (*with_trait(Trait.STRICT), *FORMS)
Names = tuple[str, ...]


def nan_free_extremes(kernel: Kernel, block: Block) -> Block:
    """The updates of such extremes do without NaN."""
    spared = {s.target for s in kernel.graph.statements if _is_spared(kernel, s)}

    def plain(n: Node) -> Node:
        return replace(n, nan=False) if isinstance(n, Update) and n.buffer in spared else n

    return map_nodes(block, plain) if spared else block


def _is_spared(kernel: Kernel, s: Statement) -> bool:
    if s.reduction not in ("max", "min") or not s.expr.dtype.is_float or not s.accumulate:
        return False
    rows = _names(s.write)
    if rows is None or not _is_own(kernel, s.target, 2):
        return False
    return _Proof(kernel, s, rows).holds()


def _is_own(kernel: Kernel, tensor: str, writers: int) -> bool:
    """Is it a temporary that nothing outside of the kernel sees, with so many statements that write it?"""
    graph = kernel.graph
    if graph.tensor(tensor).role is not Role.TEMP or len(graph.writers(tensor)) != writers:
        return False
    return kernel.buffer(tensor).scope in (Scope.REGISTER, Scope.LOCAL)


@dataclass(slots=True)
class _Proof:
    """For the extreme of one statement.

    stained, certain  tensors with the positions of their indices that tell the row
    terms             stained ones that are NaN where a term is, with the positions that tell which term
    seen              the row of each statement that reads something stained
    """

    kernel: Kernel
    extreme: Statement
    rows: Names
    stained: dict[str, tuple[int, ...]] = field(default_factory=dict)
    certain: dict[str, tuple[int, ...]] = field(default_factory=dict)
    terms: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seen: dict[str, Names] = field(default_factory=dict)

    def holds(self) -> bool:
        self.stained[self.extreme.target] = tuple(range(len(self.rows)))
        others = [s for s in self.kernel.graph.statements if s.name != self.extreme.name]
        for s in others:
            keys = self._keys(s)
            if keys:
                row = keys.pop()
                if keys or row is None or not self._step(s, row):
                    return False
                self.seen[s.name] = row
        # What was stained later than it was read is read as well.
        return all(self._keys(s) <= {self.seen.get(s.name)} - {None} for s in (self.extreme, *others))

    def _keys(self, s: Statement) -> set[Names | None]:
        """The rows of stained tensors that a statement reads."""
        return {self._row(r, self.stained) for r in statement_reads(s) if r.tensor in self.stained}

    def _step(self, s: Statement, row: Names) -> bool:
        """Is a statement that reads something stained of a row right, or stained in a way that is known?"""
        if s.reduction in ("max", "min"):
            return False
        surely = list(_strict(s.expr))
        if any(isinstance(r, Read) and self._row(r, self.certain) == row for r in surely):
            return True
        write = _names(s.write)
        if write is None or not set(row) <= set(write):
            return False
        at = tuple(write.index(v) for v in row)
        over = tuple(d.name for d in s.dims if d.name not in row)
        terms = self._spans(s, over) and any(self._is_term(e, row, over) for e in surely)
        if s.reduction is not None:
            if s.reduction != "sum" or not terms or len(write) > len(row) or not s.accumulate:
                return False
            if len(self.kernel.graph.writers(s.target)) != 2:  # itself, and where it begins
                return False
            self.certain[s.target] = at
            return True
        if not _is_own(self.kernel, s.target, 1):
            return False
        self.stained[s.target] = at
        if terms and set(over) <= set(write):
            self.terms[s.target] = tuple(write.index(v) for v in over)
        return True

    def _spans(self, s: Statement, over: Names) -> bool:
        """Do dims run over what the extreme is taken of?"""
        mine = [(d.lower, d.upper) for d in self.extreme.dims if d.name not in self.rows]
        return mine == [(d.lower, d.upper) for d in s.dims if d.name in over]

    def _is_term(self, e: Expr, row: Names, over: Names) -> bool:
        """Is an expression what the extreme is taken of, or something stained that is NaN where that is?"""
        if isinstance(e, Read) and e.tensor in self.terms:
            found = _names(tuple(e.indices[k] for k in self.terms[e.tensor]))
            return found == over and self._row(e, self.stained) == row
        elements = [d.name for d in self.extreme.dims if d.name not in self.rows]
        env: dict[str, IndexExpr] = {
            old: IVar(new) for old, new in zip((*self.rows, *elements), (*row, *over), strict=True)
        }
        return e == map_expr(self.extreme.expr, lambda x: x, lambda i: substitute(i, env))

    def _row(self, r: Read, places: dict[str, tuple[int, ...]]) -> Names | None:
        """The row of an element, by the variables that tell it; None if they are not plain."""
        at = places.get(r.tensor)
        return None if at is None else _names(tuple(r.indices[k] for k in at))


def _names(indices: tuple[object, ...]) -> Names | None:
    """The variables that indices are, all of them different."""
    names = tuple(i.name for i in indices if isinstance(i, IVar))
    return names if len(set(names)) == len(indices) else None


def _strict(e: Expr) -> Iterator[Expr]:
    """What makes an expression NaN by being NaN."""
    yield e
    match e:
        case Apply(op, args) if op in _STRICT and e.dtype.is_float:
            for a in args:
                yield from _strict(a)
        case Cast(arg) if e.dtype.is_float and arg.dtype.is_float:
            yield from _strict(arg)
        case _:
            pass
