"""Calls of one operator at many sizes, against the reference: of kernels with open sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError, DslError
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.bind_sizes import check_constraints
from polyfuse.ir.index_expr import evaluate as value_of
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.runtime.inputs import instances, make_inputs
from polyfuse.runtime.reference.agreement import Agreement, agrees
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


def random_sizes(
    graph: TensorGraph,
    count: int,
    seed: int,
    tries: int = 60,
    drawn: Sequence[int] = DRAWN,
    most: int = MOST_INSTANCES,
) -> Iterator[dict[str, int]]:
    """Sizes at which the operator may be called, some with 0 or 1 among them."""
    rng = random.Random(seed)
    found = 0
    for _ in range(tries):
        sizes = {n: rng.choice(drawn) for n in graph.sizes}
        if found == count:
            return
        if not are_small(graph, sizes, most):
            continue
        try:
            fixed_graph(graph, sizes)
        except (ArgumentError, DslError, ZeroDivisionError):
            continue
        found += 1
        yield sizes


def are_small(graph: TensorGraph, sizes: dict[str, int], most: int = MOST_INSTANCES) -> bool:
    """Do sizes fulfil the operator's constraints, with no more than so much to do?"""
    try:
        check_constraints(graph, sizes)
        shapes = [[value_of(e, sizes) for e in t.shape] for t in graph.tensors]
        few = all(n >= 0 for shape in shapes for n in shape) and max(map(prod, shapes)) <= most
        return few and instances(graph, sizes) <= most
    except (ArgumentError, ZeroDivisionError):
        return False


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
    call = drawn_call(f, graph, sizes, seed)
    if call is None:
        return
    for name, agreement in call.judged(call.made(f, call.arguments(partial(laid_out, how=how)))).items():
        assert agreement, f"{name} at {sizes}: {agreement}\n{f.explain(**call.inputs, **call.given)}"


@dataclass
class DrawnCall:
    """Inputs of an operator at some sizes, and what the reference makes of them."""

    graph: TensorGraph
    sizes: dict[str, int]
    inputs: dict[str, Array]
    given: dict[str, int]
    wanted: Any

    def arguments(
        self, lay: Callable[[Array], Any], copy: Callable[[Array], Any] = np.copy
    ) -> dict[str, Any]:
        """`lay` makes an array that is only read of one, `copy` one that is written."""
        read = {t.name for t in self.graph.tensors if t.role is Role.INPUT}
        return {n: (lay if n in read else copy)(a) if a.shape else a[()] for n, a in self.inputs.items()}

    def made(self, f: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
        """Results and updated arguments of a call."""
        found = f(**arguments, **self.given)
        found = found if isinstance(found, tuple) else (found,)
        made = dict(zip(self.graph.outputs, found, strict=True)) if self.graph.outputs else {}
        return made | {t.name: arguments[t.alias] for t in self.graph.tensors if t.alias}

    def judged(self, made: dict[str, Any]) -> dict[str, Agreement]:
        """How each of them agrees with the reference."""
        wanted, found = self.wanted, {n: np.asarray(a) for n, a in made.items()}
        if any(s.place is not None for s in self.graph.statements):  # there are several right orders
            wanted = evaluate(self.graph, self.sizes, self.inputs, results=found)
        outputs = [t for t in self.graph.tensors if t.role is Role.OUTPUT]
        return {t.name: agrees(found[t.name], wanted[t.name], t.dtype) for t in outputs}


def drawn_call(f: pf.Compiled, graph: TensorGraph, sizes: dict[str, int], seed: int) -> DrawnCall | None:
    """A call at these sizes, with inputs by the seed; None where the inputs are none that may be given."""
    inputs = {n: np.asarray(a) for n, a in make_inputs(graph, sizes, seed).items()}
    try:
        wanted = evaluate(graph, sizes, inputs)
    except ArgumentError as error:
        # An integer that the inputs make 0 divides, or an end of a range from data is outside.
        if error.diagnostics[0].code in ("PF450", "PF452"):
            return None
        raise
    given = {p.name: sizes[p.name] for p in f.signature.size_params if p.name in sizes}
    return DrawnCall(graph, sizes, inputs, given, wanted)


def check_sizes(f: pf.Compiled, graph: TensorGraph, many: Sequence[dict[str, int]], seed: int = 0) -> None:
    """Calls at all these sizes: those with arguments of one layout one after the other."""
    for k, sizes in enumerate(many):
        how = ("", "", "", "turned", "stepped")[(seed + 2 * k // max(1, len(many))) % 5]
        check_call(f, graph, sizes, seed + k, how)
