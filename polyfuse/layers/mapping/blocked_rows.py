"""Phases of rows, in blocks of rows, that run along the rows instead of in them.

The last ones, where they store across the rows and read none:

    B(i)[B(k)(m); B(c)(y)]  with y[c, i] = m[i] + b[c]     becomes     B(i // 256)[B(i)B(k)(m); B(c, i)(y)]

What the first phases leave for them is an array of a block.  And functions of a row's own numbers, where they
come first:

    B(i // 64, i)[t; B(k)(y)]                 becomes     B(i // 64)[B(i)(t); B(i)B(k)(y)]
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.decisions import Decision
from polyfuse.ir.functions import has_function
from polyfuse.ir.index_expr import IVar, binary, variables
from polyfuse.ir.linear import linear
from polyfuse.ir.schedule_tree import Band, Leaf, Member, Sequence, Tree, sequence, statements
from polyfuse.ir.tensor_graph import EXPR_TYPES, Index, TensorGraph, depends_on, statement_reads
from polyfuse.layers.mapping.loop_order import held
from polyfuse.layers.mapping.nests import has_band, is_free, iterations, stored_across, trip_of

# Rows of a block, the best number first: results are stored in pieces of so many elements.
BLOCKS = (256, 128, 64, 32)


def last_phases_along(
    graph: TensorGraph, phase: Band, threads: int, decisions: list[Decision]
) -> tuple[Band, int] | None:
    """The nest so, and how many of its loops go from block to block; None where there is no such phase."""
    names, around = statements(phase), phase.members
    if not isinstance(phase.child, Sequence) or not all(is_free(graph, m, names) for m in around):
        return None
    children = list(phase.child.children)
    rows = around if phase.permutable else around[-1:]
    row = next((m for m in reversed(rows) if _runs_along(graph, children[-1], m)), None)
    if row is None:
        return None
    last: list[Tree] = []
    while children and _runs_along(graph, children[-1], row):
        last = [_inside(children.pop(), row), *last]
    most = min(trip_of(graph, row) or 0, iterations(graph, around) // (2 * threads))
    size = next((n for n in BLOCKS if n <= most), 0)
    if not size or not has_band(sequence(children)):
        return None
    why = f"results are stored along it, those of {size} iterations together"
    decisions.append(Decision("interchange", row.name, True, why))
    first = sequence(children)
    inside = Band((row.restricted(frozenset(statements(first))),), first, True)
    each = tuple((n, binary("//", e, size)) for n, e in row.exprs)
    block = replace(row, name=f"{row.name}_blk", exprs=each)
    blocks = (*(m for m in around if m != row), block)
    return Band(blocks, sequence([inside, *last]), phase.permutable), len(blocks)


def functions_first(graph: TensorGraph, nest: Band, blocks: int) -> Band:
    """The nest of blocks of rows with such functions in lanes."""
    rows, child = nest.members[blocks:], nest.child
    if not isinstance(child, Sequence) or len(rows) != 1:
        return nest
    count = next((k for k, c in enumerate(child.children) if not isinstance(c, Leaf)), 0)
    first, rest = (sequence(list(part)) for part in (child.children[:count], child.children[count:]))
    if not any(has_function(graph.statement(n).expr) for n in statements(first)):
        return nest
    parts: list[Tree] = [
        Band((rows[0].restricted(frozenset(statements(t))),), t, True) for t in (first, rest)
    ]
    return replace(nest, members=nest.members[:blocks], child=sequence(parts))


def _inside(tree: Tree, row: Member) -> Band:
    assert isinstance(tree, Band)
    own = row.restricted(frozenset(statements(tree)))
    return Band((*tree.members, own), tree.child, True)


def _runs_along(graph: TensorGraph, tree: Tree, row: Member) -> bool:
    """Is it a loop of lanes that results jump in, while nothing jumps along the row?"""
    if not isinstance(tree, Band) or len(tree.members) != 1 or has_band(tree.child):
        return False
    names = statements(tree)
    if not is_free(graph, tree.members[0], names) or not stored_across(graph, tree.members, names):
        return False
    passed = held(graph, names)
    for s in map(graph.statement, names):
        at = row.of(s.name)
        touched = [] if s.target in passed else [s.write]
        touched += [r.indices for r in statement_reads(s) if r.tensor not in passed]
        if s.reduction is not None or not isinstance(at, IVar):
            return False
        if not all(_is_along(indices, at.name) for indices in touched):
            return False
    return True


def _is_along(indices: tuple[Index, ...], row: str) -> bool:
    """Are neighbours along a row side by side, or one?"""
    *leading, last = indices or (None,)
    if row in depends_on(*leading) if leading else False:
        return False
    if last is None or isinstance(last, EXPR_TYPES):
        return last is None or row not in depends_on(last)
    return row not in variables(last) or linear(last).factor(IVar(row)) == 1
