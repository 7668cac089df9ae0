"""Proofs about definitions in pieces: disjoint, complete for results, complete for what is read."""

from __future__ import annotations

import islpy as isl

from polyfuse.ir.index_expr import IConst, IndexExpr, IVar
from polyfuse.ir.tensor_graph import Role, Statement, plain_variables
from polyfuse.poly.legality.obligations import Bad, Example, Obligation, Proofs
from polyfuse.poly.legality.separate import may_meet
from polyfuse.poly.model.dependences import Element, outer_dims, reads_of, write_of


def prove_pieces(proofs: Proofs) -> None:
    """PF352, PF353 and PF354."""
    for t in proofs.graph.tensors:
        pieces = _pieces(proofs, t.name)
        meeting: dict[int, list[int]] = {}
        for later, earlier in may_meet(proofs.text, pieces):
            meeting.setdefault(later, []).append(earlier)
        for k, s in enumerate(pieces):
            _once(proofs, s)
            for earlier in meeting.get(k, ()):
                _apart(proofs, s, pieces[earlier])
    partial = _prove_results_complete(proofs)
    for s in proofs.graph.statements:
        for a in reads_of(s):
            if a.tensor in partial and a.tensor not in proofs.refuted:
                _prove_defined(proofs, s, a)


def _pieces(proofs: Proofs, tensor: str) -> list[Statement]:
    return [s for s in proofs.graph.writers(tensor) if not s.accumulate]


def _outs(rank: int) -> list[str]:
    return [f"o{k}" for k in range(rank)]


def _shown(example: Example, outs: list[str]) -> str:
    return ", ".join(str(example.point[n]) for n in outs)


# --- disjoint ---------------------------------------------------------------------------------------------


def _once(proofs: Proofs, s: Statement) -> None:
    """Two instances of one statement define different elements."""
    plain = {i.name for i in s.write if isinstance(i, IVar)}
    dims = outer_dims(s)
    if all(d.name in plain for d in dims):
        return
    o = Obligation("PF352", s.name, f"each element of {proofs.called(s.target)} is defined once", s.span)
    outs = _outs(len(s.write))

    def find() -> Bad:
        scope, again = proofs.scope(dims), proofs.scope(dims, "w")
        first, second = [*scope.values()], [*again.values()]
        both = [*proofs.text.bounds(dims, scope), *proofs.text.bounds(dims, again)]
        both += proofs.element(write_of(s), outs, scope) + proofs.element(write_of(s), outs, again)
        differ = " or ".join(f"{a} != {b}" for a, b in zip(first, second, strict=True))
        points = proofs.text.set([*first, *second, *outs], [*both, f"({differ})"])
        names = (*(d.name for d in dims), *(f"{d.name}'" for d in dims), *outs)
        return Bad(points, names, say)

    def say(x: Example) -> str:
        element = f"{proofs.called(s.target)}[{_shown(x, outs)}]"
        again = ", ".join(f"{d.name} = {x.point[d.name + chr(39)]}" for d in dims)
        return f"{element} is defined twice: {proofs.place(dims, x)}, and for {again}"

    hint = "use every variable of the right side as an index on the left, or reduce it"
    if {d.name for d in dims} <= plain_variables(s.write):
        hint = "let each value of its variables have an element of its own, as `i + N*j` for i in 0..N does"
    if not proofs.settle(o, find, hint):
        proofs.refuted.add(s.target)


def _apart(proofs: Proofs, s: Statement, other: Statement) -> None:
    """Two statements define different elements of their tensor."""
    o = Obligation("PF352", s.name, f"its elements are not those of {other.name}", s.span)
    outs = _outs(len(s.write))

    def find() -> Bad:
        both = _written(proofs, s, outs).intersect(_written(proofs, other, outs))
        return Bad(both, tuple(outs), say)

    def say(x: Example) -> str:
        where = f" (the other definition is in line {other.span.line})"
        return f"{proofs.called(s.target)}[{_shown(x, outs)}] is defined twice{proofs.given(x)}{where}"

    def hint(bad: Bad, _: Example) -> str:
        apart = "give the definitions ranges that do not meet (`... for i in 1..N`)"
        return f"{apart}, or state `where N >= 2`" if proofs.only_small(bad) else apart

    if not proofs.settle(o, find, hint):
        proofs.refuted.add(s.target)


def _written(proofs: Proofs, s: Statement, outs: list[str]) -> isl.Set:
    """The elements a statement defines, as a set over `outs`."""
    dims = outer_dims(s)
    scope = proofs.scope(dims)
    inside = " and ".join([*proofs.text.bounds(dims, scope), *proofs.element(write_of(s), outs, scope)])
    exists = f"exists {', '.join(scope.values())} : " if scope else ""
    return proofs.text.set(outs, [f"({exists}{inside or 'true'})"])


def _defined_part(proofs: Proofs, tensor: str, outs: list[str]) -> isl.Set:
    total = proofs.text.set(outs, ["false"])
    for s in _pieces(proofs, tensor):
        total = total.union(_written(proofs, s, outs))
    return total


# --- complete ---------------------------------------------------------------------------------------------


def _prove_results_complete(proofs: Proofs) -> set[str]:
    """Check results; returns the tensors that may have undefined elements."""
    partial: set[str] = set()
    for t in proofs.graph.tensors:
        writers = proofs.graph.writers(t.name)
        if (
            not writers
            or t.alias is not None
            or any(s.accumulate or defines_all(s, t.shape) for s in writers)
        ):
            continue
        partial.add(t.name)
        if t.role is Role.OUTPUT and t.name not in proofs.refuted:
            _prove_complete(proofs, t.name, t.shape, writers[0])
    return partial


def defines_all(s: Statement, shape: tuple[IndexExpr, ...]) -> bool:
    """Whether a statement plainly defines every element: ``y[i, j]`` over the extents of y."""
    names = [i.name for i in s.write if isinstance(i, IVar)]
    if len(set(names)) != len(shape):
        return False
    ranges = {d.name: (d.lower, d.upper) for d in s.dims}
    return all(
        name in ranges and ranges[name] == (IConst(0), extent)
        for name, extent in zip(names, shape, strict=True)
    )


def _prove_complete(proofs: Proofs, tensor: str, shape: tuple[IndexExpr, ...], first: Statement) -> None:
    o = Obligation("PF353", first.name, f"every element of {tensor} is defined", first.span)
    outs = _outs(len(shape))

    def find() -> Bad:
        box = [f"0 <= {n} < {proofs.text.index(e, {})}" for n, e in zip(outs, shape, strict=True)]
        missing = proofs.text.set(outs, box).subtract(_defined_part(proofs, tensor, outs))
        return Bad(missing, tuple(outs), say)

    def say(x: Example) -> str:
        return f"no definition covers {tensor}[{_shown(x, outs)}]{proofs.given(x)}"

    if not proofs.settle(o, find, f"define the rest of {tensor}, or widen a range"):
        proofs.refuted.add(tensor)


def _prove_defined(proofs: Proofs, s: Statement, a: Element) -> None:
    """Every element that is read is defined by some piece."""
    o = Obligation("PF354", s.name, f"{a} is defined where it is read", a.span)
    outs = _outs(len(a.indices))

    def find() -> Bad:
        scope = proofs.scope(a.dims)
        inside = [*proofs.inside(a, scope), *proofs.element(a, outs, scope)]
        read = proofs.text.set([*scope.values(), *outs], inside)
        defined = _defined_part(proofs, a.tensor, outs).insert_dims(isl.dim_type.set, 0, len(scope))
        return Bad(read.subtract(defined), (*(d.name for d in a.dims), *outs), say)

    def say(x: Example) -> str:
        place = proofs.place(a.dims, x)
        name, element = proofs.called(a.tensor), f"{proofs.called(a.tensor)}[{_shown(x, outs)}]"
        if a.by_data:  # any element may be meant
            return f"reads {a.named(name)}, which may be {element}, that no definition covers: {place}"
        return f"reads {a.named(name)}, which no definition covers: {place}, that is {element}"

    proofs.settle(o, find, f"define {a.tensor} there, or guard the read", a.dims)
