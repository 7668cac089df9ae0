"""Calls of one operator at many sizes, against the reference: of kernels with open sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.bind_sizes import check_constraints
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.runtime.inputs import instances, make_inputs
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

DRAWN = (0, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 67)
MOST_INSTANCES = 40_000
Array = np.ndarray[Any, np.dtype[Any]]


def drawn_choice(graph: TensorGraph, seed: int) -> dict[str, Any]:
    """What `compile` is told of sizes: an option for all, or of each whether it is open."""
    rng = random.Random(f"choice {seed}")
    usual = rng.choice(["open", "open", "auto", "each"])
    if usual != "each":
        return {"sizes": usual}
    return {"sizes": {n: pf.open for n in graph.sizes if rng.random() < 0.6}}


def random_sizes(graph: TensorGraph, count: int, seed: int, tries: int = 60) -> Iterator[dict[str, int]]:
    """Sizes at which the operator may be called, some with 0 or 1 among them."""
    rng = random.Random(seed)
    found = 0
    for _ in range(tries):
        sizes = {n: rng.choice(DRAWN) for n in graph.sizes}
        if found == count:
            return
        try:
            check_constraints(graph, sizes)
            if any(value_of(e, sizes) < 0 for t in graph.tensors for e in t.shape):
                continue
            if instances(graph, sizes) > MOST_INSTANCES:
                continue
            fixed_graph(graph, sizes)
        except (ArgumentError, DslError, ZeroDivisionError):
            continue
        found += 1
        yield sizes


def laid_out(a: Array, how: str) -> Array:
    """The same elements in memory of another layout."""
    if how == "turned":
        return np.ascontiguousarray(a.T).T
    if how == "stepped":
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype)
        wide[..., 1::2] = a
        return wide[..., 1::2]
    return np.ascontiguousarray(a)


def check_call(f: pf.Compiled, graph: TensorGraph, sizes: dict[str, int], seed: int, how: str = "") -> None:
    """A call at these sizes, with inputs by the seed; `how` those lie that are only read."""
    inputs = {n: np.asarray(a) for n, a in make_inputs(graph, sizes, seed).items()}
    try:
        wanted = evaluate(graph, sizes, inputs)
    except ArgumentError as error:
        # An integer that the inputs make 0 divides, or an end of a range from data is outside.
        if error.diagnostics[0].code in ("PF450", "PF452"):
            return
        raise
    given = {n: a.copy() if a.shape else a[()] for n, a in inputs.items()}
    for n, a in given.items():
        if np.ndim(a) and graph.tensor(n).role is Role.INPUT:
            given[n] = laid_out(a, how)
    mine = {p.name: sizes[p.name] for p in f.signature.size_params if p.name in sizes}
    made: Any = f(**given, **mine)
    made = made if isinstance(made, tuple) else (made,)
    results = dict(zip(graph.outputs, made, strict=True)) if graph.outputs else {}
    for t in graph.tensors:
        if t.role is Role.OUTPUT:
            got = given[t.alias] if t.alias else results[t.name]
            agreement = agrees(np.asarray(got), wanted[t.name], t.dtype)
            assert agreement, f"{t.name} at {sizes}: {agreement}\n{f.explain(**given, **mine)}"


def check_sizes(f: pf.Compiled, graph: TensorGraph, many: Sequence[dict[str, int]], seed: int = 0) -> None:
    """Calls at all these sizes: those with arguments of one layout one after the other."""
    for k, sizes in enumerate(many):
        how = ("", "", "", "turned", "stepped")[(seed + 2 * k // max(1, len(many))) % 5]
        check_call(f, graph, sizes, seed + k, how)
