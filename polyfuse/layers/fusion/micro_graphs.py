"""Micro-graphs by rules: which operators layer I may put into one nest.

    statements with kinds (`poly.model.primitive_types`)    ->    groups, none of them around another

Rules are tried in order, each on all pairs of a producer and its consumer, again and again until none
applies.  Nothing follows a reduction: what reads its result starts a group of its own, and whether the two
share a kernel is for layer II.

Source: Apollo (MLSys'22) section 3, table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.tensor_graph import TensorGraph, statement_reads
from polyfuse.layers.clustering.quotient import Quotient
from polyfuse.poly.model.domains import build_model
from polyfuse.poly.model.isl_bridge import isl_lock
from polyfuse.poly.model.primitive_types import Primitive, primitive_types
from polyfuse.poly.scheduling.axis_planner import strongly_connected


@dataclass(frozen=True, slots=True)
class Rule:
    """A producer and a consumer of these kinds make a group of a kind."""

    producer: Primitive
    consumer: Primitive
    result: Primitive


_EW, _BC, _RED = Primitive.ELEMENTWISE, Primitive.BROADCAST, Primitive.REDUCTION
_TR, _MM = Primitive.TRANSPOSE, Primitive.CONTRACTION

RULES = (
    Rule(_EW, _EW, _EW),
    Rule(_BC, _EW, _BC),
    Rule(_EW, _BC, _BC),
    Rule(_BC, _BC, _BC),
    Rule(_EW, _RED, _RED),
    Rule(_BC, _RED, _RED),
    Rule(_EW, _TR, _TR),
    Rule(_BC, _TR, _TR),
    Rule(_MM, _EW, _MM),
    Rule(_EW, _MM, _MM),
)
"""Apollo's table, in order of priority; convolutions are contractions."""


def micro_graphs(graph: TensorGraph, rules: tuple[Rule, ...] = RULES) -> list[tuple[str, ...]]:
    """Groups of statements in an order that dependences agree with."""
    with isl_lock:
        kinds = primitive_types(build_model(graph))
    edges = _edges(graph)
    parts = bound_together(graph)
    of = {name: k for k, part in enumerate(parts) for name in part}
    pairs = list(dict.fromkeys((of[a], of[b]) for a, b in edges if of[a] != of[b]))
    groups = Quotient(len(parts), pairs)
    kind = {k: Primitive.OPAQUE if len(p) > 1 else kinds[p[0]] for k, p in enumerate(parts)}
    while any(_applied(rule, groups, pairs, kind) for rule in rules):
        pass
    return [tuple(n for k in members for n in parts[k]) for members in groups.ordered()]


def bound_together(graph: TensorGraph) -> list[tuple[str, ...]]:
    """Statements that no cut may separate, in an order that dependences agree with: those of a recurrence,
    and the pieces of one tensor."""
    successors: dict[str, list[str]] = {s.name: [] for s in graph.statements}
    for a, b in _edges(graph):
        successors[a].append(b)
    return [tuple(p) for p in strongly_connected(tuple(successors), successors)]


def _edges(graph: TensorGraph) -> list[tuple[str, str]]:
    writers: dict[str, list[str]] = {}
    for s in graph.statements:
        writers.setdefault(s.target, []).append(s.name)
    flow = [
        (w, s.name) for s in graph.statements for r in statement_reads(s) for w in writers.get(r.tensor, ())
    ]
    pieces = [(a, b) for names in writers.values() for a in names for b in names if a != b]
    return list(dict.fromkeys((*flow, *pieces)))


def _applied(rule: Rule, groups: Quotient, pairs: list[tuple[int, int]], kind: dict[int, Primitive]) -> bool:
    """Merge every pair that the rule is for; whether there was one."""
    any_merged = False
    for a, b in pairs:
        x, y = groups.group(a), groups.group(b)
        if x != y and (kind[x], kind[y]) == (rule.producer, rule.consumer) and groups.can_merge(x, y):
            kind[groups.merge(x, y)] = rule.result
            any_merged = True
    return any_merged
