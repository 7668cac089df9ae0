"""Loops have the bounds that data gives.

    for n in 0..N:                                           for n in 0..N:
      for e in 0..E:                                           begin, end = ptr[n], ptr[n + 1]   # in 0..E
        acc sum= w[e] if ptr[n] <= e < ptr[n + 1] else 0  ->   for e in begin..end:
                                                                 acc sum= w[e]

A loop that does nothing but update totals, all of them under the same tests of its variable against numbers
that it does not change, runs over the iterations that pass them: in others totals take what never wins.
Tests of a program's text become bounds as those of `sum[e in ptr[n]..ptr[n + 1]]` do.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from polyfuse.codegen.analysis.invariants import aliases, written
from polyfuse.ir.data_ranges import Test, conjuncts, test_of, tests_of
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IVar, binary
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.loop_ir import (
    Block,
    Declare,
    For,
    If,
    LocalRole,
    Node,
    Update,
    map_nodes,
    map_outermost,
    nodes_of,
)
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Apply, Expr, IndexValue, Select, depends_on, reads

# Loops of which each iteration is run by who runs what is around.
_NARROWED = (Coordinate.SEQ, Coordinate.VECTOR)


def data_ranges(kernel: Kernel, block: Block, numbers: itertools.count[int]) -> Block:
    """See the module docstring."""
    alias = aliases(kernel)

    def change(loop: For) -> list[Node] | None:
        if loop.coordinate not in _NARROWED or loop.step != 1:
            return None
        tests = _tests(loop, written((loop,), alias), alias)
        if not tests:
            return None
        declared, lower, upper = list[Node](), loop.lower, loop.upper
        for t in tests:
            ends = IndexValue(loop.lower, I64), IndexValue(loop.upper, I64)
            kept = Apply("min", (Apply("max", (t.data, ends[0]), I64), ends[1]), I64)
            name = Declare(f"%d{next(numbers)}", I64, kept, role=LocalRole.INDEX)
            declared.append(name)
            if t.lower:
                lower = binary("max", lower, IVar(name.name))
            else:
                upper = binary("min", upper, IVar(name.name))
        body = map_nodes(loop.body, lambda n: _without(n, loop.var, tests))
        inner = data_ranges(kernel, body, numbers)
        return [*declared, replace(loop, lower=lower, upper=upper, body=inner, of_data=True)]

    return map_outermost(block, change)


def _tests(loop: For, changed: set[str], alias: dict[str, str]) -> list[Test]:
    """What all updates in a loop ask of its variable; nothing where it does something else."""
    found: list[Test] | None = None
    for n in nodes_of(loop.body):
        match n:
            case Update(_, _, op, value):
                mine = [t for t in tests_of(op, value, loop.var) if _kept(t.data, changed, alias)]
                found = mine if found is None else [t for t in found if t in mine]
            case For() | If():
                pass
            case _:
                return []
    return found or []


def _kept(data: Expr, changed: set[str], alias: dict[str, str]) -> bool:
    """Does a loop leave a number as it is?"""
    if depends_on(data) & changed:
        return False
    return not any(alias.get(r.tensor, r.tensor) in changed for r in reads(data))


def _without(n: Node, var: str, tests: list[Test]) -> Node:
    """An update without tests that the loop's bounds have."""
    if not (isinstance(n, Update) and isinstance(n.value, Select)):
        return n
    left = [c for c in conjuncts(n.value.cond) if test_of(c, var) not in tests]
    if not left:
        return replace(n, value=n.value.then)
    cond = left[0]
    for c in left[1:]:
        cond = Apply("and", (cond, c), cond.dtype)
    return replace(n, value=replace(n.value, cond=cond))
