"""Sums of integers in small loops, which gcc 12 unrolls into the loop around them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.codegen.math.prelude import WRAPS, prelude
from polyfuse.driver.lowering import schedule
from polyfuse.driver.pipeline import fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.dtypes import I8, I16, I32, I64, U8, DType
from polyfuse.layers.mapping.kernels import form_kernels
from polyfuse.runtime.cpu.executable import CpuExecutable
from polyfuse.runtime.toolchain.compiler import load_shared

DTYPES = (I8, U8, I16, I32, I64)
COLUMNS, ROWS = (2, 4, 8), (4, 8)
# Sums of a few columns, of which some are added to afterwards.
SUMS = """
extern "C" void sums_{n}_{c}_{r}(const {t}* __restrict p, {t}* __restrict v) {{
  for (int l = 0; l < {c}; ++l) v[l] = 0;
  for (long i = 0; i < {r}; ++i)
    for (int l = 0; l < {c}; ++l) v[l] = pf_add_{n}(v[l], p[i * {c} + l]);
  for (int l = 1; l < {c}; ++l) v[l] = pf_add_{n}(v[l], v[l - 1]);
}}
"""


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    forms = [SUMS.format(n=t.name, t=t.c_name, c=c, r=r) for t in DTYPES for c in COLUMNS for r in ROWS]
    source = prelude([f"pf_add_{t.name}" for t in DTYPES]) + "".join(forms)
    return load_shared(source)


def test_only_sources_that_need_it_ask_for_the_flag() -> None:
    assert WRAPS in prelude(["pf_add_i32"]).splitlines() and WRAPS in prelude(["pf_mod_i64"]).splitlines()
    assert WRAPS not in prelude(["pf_add_i32"], "cuda") and WRAPS not in prelude(["pf_exp_f32", "pf_min_i64"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_few_columns(library: ctypes.CDLL, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    info = np.iinfo(dtype.numpy)
    for columns in COLUMNS:
        for rows in ROWS:
            p = rng.integers(info.min, info.max, (rows, columns), dtype.numpy, endpoint=True)
            found = np.zeros(columns, dtype.numpy)
            function = getattr(library, f"sums_{dtype.name}_{columns}_{rows}")
            function(p.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p))
            with np.errstate(over="ignore"):
                want: Any = np.cumsum(p.sum(axis=0, dtype=dtype.numpy), dtype=dtype.numpy)
            assert np.array_equal(found, want), (columns, rows, found, want)


@pytest.mark.parametrize("dtype", [I16, I32, I64], ids=str)
@pytest.mark.parametrize("size", [17, 33, 65])
def test_sums_in_few_lanes(dtype: DType, size: int) -> None:
    text = f"op p(x: {dtype.name}[N]) -> (s: {dtype.name}) {{ s = sum[i](x[i]) }}"
    graph = fixed_graph(instantiate(parse_text(text), "p"), {"N": size})
    kernels, _ = form_kernels(schedule(graph, None), 2)
    code = emit_together([Request(kernels, knobs=CpuKnobs(lane_bytes=16))])[0]
    x = np.random.default_rng(size).integers(-(2**15), 2**15, size).astype(dtype.numpy)
    s = np.zeros((), dtype.numpy)
    CpuExecutable(code, {}).run({"x": x, "s": s})
    assert s == x.sum(dtype=dtype.numpy)
