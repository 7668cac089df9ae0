"""Totals of several rows at once are those of each row, on machines with vectors of any width."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from avx512 import AVX512

from polyfuse.codegen.math.prelude import prelude
from polyfuse.codegen.math.vector_reduce import DTYPES, OPS, join_name, joins, part_name
from polyfuse.ir.dtypes import F16, F32, I8
from polyfuse.runtime.toolchain.compiler import load_shared

NUMPY = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
ROWS = 16
# The last one is for compilers that have no function for it.
MACHINES = (
    ("-march=native",), ("-march=x86-64-v3",), ("-march=x86-64-v2",), *AVX512,
    ("-U__GNUC__", "-D__GNUC__=11"),
)  # fmt: skip


def source(lanes: int) -> str:
    """Functions that combine the lanes of rows: parts first, then all of them."""
    names = [name(op, t) for op in OPS for t in DTYPES for name in (part_name, join_name)]
    text = [prelude(names)]
    for op in OPS:
        for t in DTYPES:
            c, part, join = t.c_name, part_name(op, t), join_name(op, t)
            text.append(
                f'extern "C" void all_{op}_{t.name}(const {c}* x, {c}* to) {{\n'
                f"  __attribute__((aligned(64))) {c} parts[{ROWS} * (PF_VECTOR / {t.bytes})];\n"
                f"  for (int r = 0; r < {ROWS}; ++r)\n"
                f"    {part}(x + r * {lanes}, {lanes}, parts + r * (PF_VECTOR / {t.bytes}));\n"
                f"  {join}(parts, {ROWS}, to);\n}}\n"
            )
    return "\n".join(text)


# Four lanes are less than a vector on machines with wide ones alone.
@pytest.mark.parametrize(
    ("flags", "lanes"),
    [
        pytest.param(f, n, marks=[pytest.mark.slow] * (n == 4 and f not in AVX512), id=f"{f[-1]}-{n}")
        for f in MACHINES
        for n in (32, 4)
    ],
)
def test_totals_of_all_rows(flags: tuple[str, ...], lanes: int) -> None:
    """Of several vectors, and of a part of one on machines with wide ones."""
    library = load_shared(source(lanes), extra_flags=flags)
    rng = np.random.default_rng(3)
    for op in OPS:
        for t in DTYPES:
            x = rng.integers(1, 5, (ROWS, lanes)).astype(t.numpy) * (-1) ** rng.integers(0, 2, (ROWS, lanes))
            x = x.astype(t.numpy)
            found = np.zeros(ROWS, t.numpy)
            call = getattr(library, f"all_{op}_{t.name}")
            call(x.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p))
            with np.errstate(over="ignore"):
                want = NUMPY[op].reduce(x, axis=1, dtype=t.numpy)
            if t.is_float:
                np.testing.assert_allclose(found, want, rtol=1e-6)
            else:
                np.testing.assert_array_equal(found, want)  # sums wrap


def test_what_has_functions() -> None:
    assert joins("max", F32) and not joins("any", F32)
    assert not joins("sum", F16) and not joins("sum", I8)
