"""Shapes of results without data, as torch's tracers ask for them: extents may be symbols, and stay so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.ir.index_expr import IBin, IndexExpr, ISize, evaluate, sizes
from polyfuse.ir.tensor_graph import TensorGraph

Shape = tuple[Any, ...]
Values = Mapping[str, Any]


def result_shapes(graph: TensorGraph, shapes: Mapping[str, Shape], given: Values) -> list[Shape]:
    """The shapes of all results for these of arguments, and for the size parameters that are given.

    Raises ArgumentError as a call would, where all extents are numbers; symbols are required to agree.
    """
    found = sizes_of(graph, shapes, given)
    return [tuple(evaluate(e, found) for e in graph.tensor(n).shape) for n in graph.outputs]


def sizes_of(graph: TensorGraph, shapes: Mapping[str, Shape], given: Values) -> Values:
    """The value of every size. Raises ArgumentError where shapes do not fit."""
    every = [*(n for s in shapes.values() for n in s), *given.values()]
    if any(isinstance(n, torch.SymInt) for n in every):
        return _symbolic_sizes(graph, shapes, given)
    return bind_sizes(graph, shapes, given)


def _symbolic_sizes(graph: TensorGraph, shapes: Mapping[str, Shape], given: Values) -> Values:
    equations = list(_equations(graph, shapes))
    found: dict[str, Any] = dict(given)
    while missing := [n for n in graph.sizes if n not in found]:
        solution = _solved(equations, missing, found) or _default(graph, found)
        if solution is None:
            message = f"the size {missing[0]} of {graph.name} does not follow from symbolic shapes"
            raise ArgumentError(message, code="PF406", hint="trace the model with numbers: dynamic=False")
        found[solution[0]] = solution[1]
    for e, value in equations:
        torch._check(evaluate(e, found) == value)
    return found


def _equations(graph: TensorGraph, shapes: Mapping[str, Shape]) -> Iterator[tuple[IndexExpr, Any]]:
    """Extents and what they are, and what constraints say."""
    for name in graph.inputs:
        if graph.tensor(name).shape:
            yield from zip(graph.tensor(name).shape, shapes[name], strict=True)
    yield from ((c.left - c.right, 0) for c in graph.constraints if c.op == "==")


def _solved(
    equations: list[tuple[IndexExpr, Any]], missing: list[str], found: Values
) -> tuple[str, Any] | None:
    """A size that follows: first one that is an extent itself, then one in which an extent is linear."""
    for e, value in equations:
        if isinstance(e, ISize) and e.name in missing:
            return e.name, value
    for e, value in equations:
        unknown = set(missing).intersection(sizes(e))
        if len(unknown) == 1:
            (name,) = unknown
            slope, offset = _linear(e, name, found)
            if slope is not None and not (isinstance(slope, int) and slope == 0):
                return name, (value - offset) // slope
    return None


def _default(graph: TensorGraph, found: Values) -> tuple[str, Any] | None:
    for p in graph.size_parameters:
        if p.name not in found and p.default is not None and found.keys() >= set(sizes(p.default)):
            return p.name, evaluate(p.default, found)
    return None


def _linear(e: IndexExpr, name: str, found: Values) -> tuple[Any, Any]:
    """(slope, offset) of an expression in one size, (None, None) where it is not linear in it."""
    if name not in sizes(e):
        return 0, evaluate(e, found)
    if isinstance(e, ISize):
        return 1, 0
    assert isinstance(e, IBin)
    (a, b), (c, d) = _linear(e.left, name, found), _linear(e.right, name, found)
    if a is None or c is None:
        return None, None
    if e.op in "+-":
        return (a + c, b + d) if e.op == "+" else (a - c, b - d)
    if e.op == "*" and name not in sizes(e.right):
        return a * d, b * d
    if e.op == "*" and name not in sizes(e.left):
        return b * c, b * d
    return None, None
