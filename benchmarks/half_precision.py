"""Operators on rows in half precision, beside f32.

`python -m benchmarks.half_precision [--only OPERATOR ...]`.  Half of the bytes should take half of
the time where they come from memory, and not much longer where they lie in a cache and conversions are
what is left.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

import polyfuse as pf

OPERATORS = ("softmax", "layer_norm", "rms_norm", "residual_layer_norm", "gelu", "silu")
SHAPES = ((1024, 768), (4096, 768), (16384, 768), (2048, 128), (65536, 128))
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
SECONDS = 0.3


def microseconds(operator: str, shape: tuple[int, int], dtype: Any, seconds: float) -> float:
    """The fastest call at random rows; parameters of the operator that are no rows are ones."""
    rng = np.random.default_rng(0)
    needed = [p for p in pf.stdlib.op(operator).signature.params if not p.has_default]
    rows = len(needed[0].extents)
    given = [
        (rng.standard_normal(shape) if len(p.extents) == rows else np.ones(shape[-1])).astype(dtype)
        for p in needed
    ]
    f = pf.compile(pf.stdlib, operator)
    f(*given)
    times: list[float] = []
    start = time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        f(*given)
        times.append(time.perf_counter() - begin)
    return 1e6 * min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.half_precision", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--only", nargs="+", default=OPERATORS, metavar="OPERATOR")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help="for each figure (0.3)")
    chosen = parser.parse_args(arguments)
    shown = Table("operator", "rows", "f32, us", "f16 / f32", "bf16 / f32")
    for operator in chosen.only:
        for shape in SHAPES:
            found = {n: microseconds(operator, shape, d, chosen.seconds) for n, d in DTYPES.items()}
            ratios = (f"{found[n] / found['f32']:.2f}" for n in ("f16", "bf16"))
            shown.add_row(operator, "x".join(map(str, shape)), f"{found['f32']:.0f}", *ratios)
    Console().print(shown)


if __name__ == "__main__":
    main()
