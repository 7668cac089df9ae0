"""Kernels of other compilers for a model, from what they generate; nothing of it is run.

Also checks, at small sizes in float64, that what they are given computes what the model does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.array_libraries import library
from benchmarks.generated_kernels import count_inductor, count_xla
from benchmarks.model_cases import STEP, ModelCase
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.runtime.reference.evaluate import evaluate

# In float64, of the largest of 1 and what is wanted: constants and scalars of models are f32 numbers.
TOLERANCE = 2e-6
HALF_TOLERANCE = 1e-3
PEERS = ("torch", "jax")


def count_peer(peer: str, case: ModelCase) -> dict[str, Any]:
    """Counts, the library's version, and the largest error at small sizes."""
    error = largest_error(peer, case)
    if peer == "torch":
        import torch

        counts = asdict(count_inductor(inductor_source(case)))
        return {**counts, "error": error, "version": torch.__version__}
    import jax

    return {**asdict(count_xla(xla_text(case))), "error": error, "version": jax.__version__}


def _shapes(case: ModelCase) -> dict[str, tuple[tuple[int, ...], str]]:
    """Name -> shape and NumPy's name of the dtype."""
    return {
        t.name: (tuple(evaluate_index(e, case.sizes) for e in t.shape), np.dtype(t.dtype.numpy).name)
        for t in case.parameters(case.graph)
    }


def _function(peer: str, case: ModelCase) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """The model on arguments by name; the step of an optimizer is a constant."""
    lib, fixed = library(peer), {"step": STEP} if "step" in case.graph.inputs else {}
    return lambda a: case.function(lib, {**a, **fixed})


class _Written(Exception):
    """Inductor is done; what it wrote is not compiled."""


def inductor_source(case: ModelCase) -> str:
    """The module that torch.compile writes for a CPU."""
    import torch
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    written: list[str] = []

    class NoCode:
        @staticmethod
        def call(*_: Any) -> None:
            raise _Written

    def instead(graph: Any) -> Any:
        written.append(graph.codegen()[0].value)
        return NoCode

    given = {n: torch.empty(s, dtype=getattr(torch, kind)) for n, (s, kind) in _shapes(case).items()}
    torch._dynamo.reset()
    compiled = torch.compile(_function("torch", case), dynamic=False, fullgraph=True)
    with (
        torch.no_grad(),
        config.patch(force_disable_caches=True),
        mock.patch.object(GraphLowering, "compile_to_module", instead),
        suppress(_Written),
    ):
        compiled(given)
    return "\n".join(written)


def xla_text(case: ModelCase) -> str:
    """The optimised HLO of jax.jit on a CPU."""
    import jax

    given = {n: jax.ShapeDtypeStruct(s, kind) for n, (s, kind) in _shapes(case).items()}
    text: str = jax.jit(_function("jax", case)).lower(given).compile().as_text()
    return text


def largest_error(peer: str, case: ModelCase) -> float:
    """At small sizes, relative to the float64 reference or, below 1, absolute."""
    graph, given = case.small_graph, case.small_inputs()
    step = {"step": np.int64(STEP)} if "step" in graph.inputs else {}
    wanted = evaluate(graph, case.small, {**given, **step})
    wide = {n: a.astype("f8") if a.dtype.kind == "f" else a for n, a in given.items()}
    if peer == "torch":
        import torch

        found = _function(peer, case)({n: torch.from_numpy(a) for n, a in wide.items()})
    else:
        import jax

        with jax.enable_x64(True):
            found = jax.jit(_function(peer, case))(wide)
    worst = 0.0
    for name, value in zip(case.outcomes(graph), found, strict=True):
        want, got = wanted[name].value, np.asarray(value)
        if want.shape != got.shape or np.isnan(got).any():
            return float("inf")
        worst = max(worst, float(np.max(np.abs(got - want) / np.maximum(1, np.abs(want)), initial=0.0)))
    return worst


def tolerance(case: ModelCase) -> float:
    """Of errors."""
    return HALF_TOLERANCE if case.name == "casts" else TOLERANCE
