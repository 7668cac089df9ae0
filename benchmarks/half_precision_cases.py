"""The row workloads in f16 and bf16, as cases of `benchmarks.operator_peers --half`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.half_precision import IN_L2, sizes_of
from benchmarks.operators.case import Array, Case, Draw, half
from benchmarks.workload import Workload, load

Library = Callable[..., Any]


def case_of(w: Workload, name: str, sizes: Mapping[str, int], dtype: str) -> Case:
    """A workload of some sizes, with another word for f32."""

    def inputs(draw: Draw) -> tuple[Array, ...]:
        given = w.inputs(sizes).values()
        return tuple(a.astype(half(dtype)) if a.dtype == np.float32 else a for a in given)

    def with_torch(library: str) -> Library:
        f = w.function(library)
        return lambda torch, functional, *args: f(torch, *args)

    jax_function = w.function("jax")
    return Case(
        f"{name} {dtype}",
        re.sub(rf"\bop {w.name}\b", "op f", w.text.replace("f32", dtype)),
        inputs,
        with_torch("torch"),
        lambda jax, jnp, *args: jax_function(jax, *args),
        eager=with_torch("torch_library") if w.has("torch_library") else None,
    )


CASES: tuple[Case, ...] = tuple(
    case_of(w, name, sizes, dtype)
    for w in map(load, IN_L2)
    for name, sizes in sizes_of(w).items()
    for dtype in ("f16", "bf16")
)
