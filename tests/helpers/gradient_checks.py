"""Gradients against finite differences of the operator, both in float64 on the reference."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import with_defaults
from polyfuse.ir.index_expr import evaluate as at_sizes
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.runtime.reference.evaluate import evaluate

Array = NDArray[Any]
_HOLDS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
STEP = 1e-6


def pair_of(op: Any, **wishes: Any) -> Any:
    """The gradients of an operator whose generic floats are f64."""
    kinds = ("float", "number")
    dtypes = {x.name: "f64" for x in op.op.generics if x.kind in kinds}
    return pf.grad(op, dtypes=dtypes, **wishes), op.graph(dtypes)


def sizes_for(graph: TensorGraph, rng: np.random.Generator, given: Mapping[str, int]) -> dict[str, int]:
    """Small sizes that the constraints allow."""
    defaults = {p.name for p in graph.size_parameters if p.default is not None}
    for _ in range(500):
        values = {
            n: given.get(n, int(rng.integers(2, 5))) for n in graph.sizes if n not in defaults or n in given
        }
        values = with_defaults(graph, values)
        if all(_HOLDS[c.op](at_sizes(c.left, values), at_sizes(c.right, values)) for c in graph.constraints):
            return values
    raise AssertionError("no sizes fit the constraints")


def shape_of(t: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(at_sizes(e, sizes) for e in t.shape)


def inputs_for(graph: TensorGraph, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, Array]:
    """Positive numbers, indices that every axis has; pointers rise from 0 to the number of elements."""
    found: dict[str, Array] = {}
    for n in graph.inputs:
        t = graph.tensor(n)
        shape = shape_of(t, sizes)
        if t.dtype.is_float:
            plain = (
                rng.uniform(0.3, 1.2, shape) if shape else np.asarray(0.7 if t.default is None else t.default)
            )
            found[n] = plain.astype(t.dtype.numpy)
        elif t.dtype.is_bool:
            found[n] = rng.integers(0, 2, shape).astype(bool)
        elif n in ("start", "ptr"):
            rows = np.sort(rng.integers(0, sizes["E"] + 1, shape))
            rows[0], rows[-1] = 0, sizes["E"]
            found[n] = rows.astype(t.dtype.numpy)
        else:
            found[n] = (rng.integers(0, 2, shape) if shape else np.asarray(3)).astype(t.dtype.numpy)
    return found


def values(graph: TensorGraph, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the reference computes; results of inout parameters by the parameter's name."""
    known = {n: sizes[n] for n in graph.sizes}
    found = {n: np.asarray(e.value) for n, e in evaluate(graph, known, inputs).items()}
    return {t.alias or t.name: found[t.name] for t in graph.tensors if t.role is Role.OUTPUT}


def gradients(
    pair: Any, sizes: Mapping[str, int], inputs: Mapping[str, Array], cotangents: Mapping[str, Array]
) -> dict[str, Array]:
    """By the pair: the forward operator, then the backward one."""
    forward = values(pair.forward.graph(), sizes, inputs)
    places = {"cotangent": cotangents, "argument": inputs, "result": forward, "kept": forward}
    backward = pair.backward.graph()
    made = values(backward, sizes, {s.parameter: places[s.kind][s.name] for s in pair.sources})
    return dict(zip(pair.wrt, (made[n] for n in backward.outputs), strict=True))


def error(op: Any, given: Mapping[str, int] | None = None, seed: int = 0, **wishes: Any) -> float:
    """By how much the gradients differ from finite differences along random directions, relative."""
    rng = np.random.default_rng(seed)
    pair, graph = pair_of(op, **wishes)
    sizes = sizes_for(graph, rng, given or {})
    inputs = inputs_for(graph, sizes, rng)
    return error_of(pair, graph, sizes, inputs, rng)


def error_of(
    pair: Any,
    graph: TensorGraph,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    rng: np.random.Generator,
) -> float:
    """The same for inputs that are there."""
    results = values(graph, sizes, inputs)
    cotangents = {n: rng.uniform(-1, 1, results[n].shape) for n in pair.of}
    found = gradients(pair, sizes, inputs, cotangents)
    worst = 0.0
    for name in pair.wrt:
        assert found[name].shape == inputs[name].shape
        along = rng.uniform(-1, 1, inputs[name].shape)
        ends = [
            _total(graph, sizes, {**inputs, name: inputs[name] + s * STEP * along}, cotangents)
            for s in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        got = float((found[name] * along).sum())
        scale = 1.0 + float(np.abs(found[name] * along).sum())
        worst = max(worst, abs(slope - got) / scale)
    return worst


def _total(
    graph: TensorGraph, sizes: Mapping[str, int], inputs: Mapping[str, Array], cotangents: Mapping[str, Array]
) -> float:
    found = values(graph, sizes, inputs)
    return sum(float((found[n] * c).sum()) for n, c in cotangents.items())


def operators(text: str) -> Sequence[Any]:
    """The operators of a program."""
    program = pf.parse(text)
    return [program.op(n) for n in program.ops]


def backward_arguments(
    pair: Any,
    graph: TensorGraph,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    rng: np.random.Generator,
) -> dict[str, Array]:
    """Arguments of the backward operator, as a training step has them."""
    forward = values(pair.forward.graph(), sizes, inputs)
    cotangents = {n: rng.uniform(-1, 1, forward[n].shape).astype(forward[n].dtype) for n in pair.of}
    places = {"cotangent": cotangents, "argument": inputs, "result": forward, "kept": forward}
    backward = pair.backward.graph()
    made = {s.parameter: np.asarray(places[s.kind][s.name]) for s in pair.sources}
    return {n: a.astype(backward.tensor(n).dtype.numpy) for n, a in made.items()}
