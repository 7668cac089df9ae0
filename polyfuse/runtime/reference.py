"""The oracle: a tensor graph evaluated in float64, with a bound on what a kernel may differ by.

It knows no schedules: statements run in an order of their dependences, each over its whole domain
with NumPy; recurrences are stepped along an axis of their tensors, found here, or, where there is
none, in rounds of what has become ready (`reference_order`).  Declared types round nothing: a value
is the float64 result, except that integers wrap, constants and inputs hold the nearest number of
their type, and numbers beyond the range of their type are infinities.  How far a kernel may be from
the value is the bound that `reference_values` defines and `agreement.agrees` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.runtime.reference_block import Store
from polyfuse.runtime.reference_order import run_in_order
from polyfuse.runtime.reference_run import Runner
from polyfuse.runtime.reference_values import Array, from_numpy, is_exact, undecided


@dataclass(frozen=True)
class Evaluated:
    """A tensor of the reference run.

    `value` is float64, int64 or bool; `bound` (float64, same shape) is how far a kernel's element may
    be from it, 0 where it must be exact; `undecided` marks elements about which nothing can be said.
    """

    value: Array
    bound: Array
    undecided: Array


def evaluate(
    graph: TensorGraph, sizes: Mapping[str, int], inputs: Mapping[str, Array], *, checked: bool = True
) -> dict[str, Evaluated]:
    """All tensors that `graph` computes: results, `p__out` of inout parameters, and temps.

    `inputs` holds an array for every input; scalars with a default may be left out. With `checked`,
    gathers and scatters out of range, integer division by zero and negative integer exponents raise
    `ArgumentError` (PF450, PF452, PF453); else indices are clamped and the results are 0.

    >>> evaluate(graph, {"N": 3}, {"x": x})["y"].value        # doctest: +SKIP
    """
    stores: dict[str, Store] = {}
    for t in graph.tensors:
        shape = tuple(evaluate_index(extent, sizes) for extent in t.shape)
        if t.role in (Role.INPUT, Role.INOUT):
            stores[t.name] = _input(t, shape, inputs)
    for t in graph.tensors:
        if t.name not in stores:
            shape = tuple(max(0, evaluate_index(extent, sizes)) for extent in t.shape)
            stores[t.name] = _empty(t, shape, stores)
    with np.errstate(all="ignore"):
        runner = Runner(graph, dict(sizes), stores, checked)
        run_in_order(runner)
    written = [t for t in graph.tensors if t.role in (Role.OUTPUT, Role.TEMP)]
    return {t.name: _evaluated(t, stores[t.name]) for t in written}


def _input(t: Tensor, shape: tuple[int, ...], inputs: Mapping[str, Array]) -> Store:
    given = inputs.get(t.name, t.default)
    if given is None:
        raise ArgumentError(f"no value for {t.name}: {t.dtype}", code="PF454", span=t.span)
    a = np.asarray(given)
    a = a.astype(t.dtype.numpy) if a.dtype != t.dtype.numpy else a
    if a.shape != shape:
        raise ArgumentError(f"{t.name} has shape {a.shape}, expected {shape}", code="PF454", span=t.span)
    val = from_numpy(a, t.dtype)
    return Store(t.dtype, val.v, val.e)


def _empty(t: Tensor, shape: tuple[int, ...], stores: Mapping[str, Store]) -> Store:
    if t.alias is not None:
        entry = stores[t.alias]
        bound = entry.e if is_exact(entry.e) else np.array(entry.e)
        return Store(t.dtype, entry.v.copy(), bound, np.zeros(shape, bool))
    dtype = np.float64 if t.dtype.is_float else np.bool_ if t.dtype.is_bool else np.int64
    return Store(t.dtype, np.zeros(shape, dtype), 0.0, np.zeros(shape, bool), True)


def _evaluated(t: Tensor, store: Store) -> Evaluated:
    """An element that nothing defines keeps the entry value (inout), else is undecided."""
    bound = np.array(np.broadcast_to(np.asarray(store.e, np.float64), store.shape))
    if store.defined is not None and t.alias is None:
        bound[~store.defined] = np.inf
    return Evaluated(store.v, bound, undecided(bound))
