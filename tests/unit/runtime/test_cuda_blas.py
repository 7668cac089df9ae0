"""Matrix products by cuBLAS: what is asked of the library, and what comes out, on a stand-in for a GPU.

The stand-in's memory is this process's; the library is a fake that computes what its documentation says.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import gpu_stand_ins
import ml_dtypes
import numpy as np
import pytest
from product_programs import FORMS, product_call

import polyfuse as pf
from polyfuse.diagnostics import DeviceError
from polyfuse.ir.contraction import MatrixProduct, Operand
from polyfuse.ir.gemm import Gemm, gemm_of
from polyfuse.layers.packing import blas_products
from polyfuse.runtime.cuda import blas
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

TYPES = {0: np.dtype("f4"), 1: np.dtype("f8"), 2: np.dtype("f2"), 14: np.dtype(ml_dtypes.bfloat16)}


@dataclass
class FakeCublas:
    """The functions that are used, on host memory; `calls` holds what was asked."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refuse: str = ""
    stream: int | None = None

    def _status(self, name: str) -> int:
        return 13 if name == self.refuse else 0

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 4711
        return self._status("create")

    def cublasSetMathMode(self, handle: Any, mode: Any) -> int:
        self.calls.append(("mode", mode.value))
        return self._status("mode")

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert handle.value == 4711
        self.stream = stream.value
        return self._status("stream")

    def cublasGemmStridedBatchedEx(self, handle: Any, *given: Any) -> int:
        ta, tb, m, n, k, alpha, *rest = (getattr(x, "value", x) for x in given)
        a, b, beta, c, (batch, compute, _) = rest[:4], rest[4:8], rest[8], rest[9:13], rest[13:]
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        assert compute == (blas.COMPUTE_F64 if c[1] == 1 else blas.COMPUTE_F32)
        self.calls.append(("gemm", ta, tb, m, n, k, a[2], b[2], c[2], batch))
        assert a[2] >= (k if ta else m) and b[2] >= (n if tb else k) and c[2] >= m, "leading dimensions"
        for p in range(batch):
            left = _matrix(a, p, *((k, m) if ta else (m, k)))
            right = _matrix(b, p, *((n, k) if tb else (k, n)))
            wide = np.float64 if c[1] == 1 else np.float32
            with np.errstate(all="ignore"):
                found = (left.T if ta else left).astype(wide) @ (right.T if tb else right).astype(wide)
            _matrix(c, p, m, n)[...] = found.astype(TYPES[c[1]])
        return self._status("gemm")


def _matrix(x: Any, place: int, rows: int, columns: int) -> np.ndarray[Any, Any]:
    address, kind, leading, step = x
    dtype = TYPES[kind]
    start = address + place * step * dtype.itemsize
    nbytes = ((columns - 1) * leading + rows) * dtype.itemsize if rows * columns else 0
    memory = (ctypes.c_char * nbytes).from_address(start)
    return np.ndarray((rows, columns), dtype, memory, 0, (dtype.itemsize, leading * dtype.itemsize))


@pytest.fixture
def cublas(monkeypatch: pytest.MonkeyPatch) -> FakeCublas:
    fake = FakeCublas()
    gpu_stand_ins.use(monkeypatch)
    monkeypatch.setattr(blas, "load_library", lambda: fake)
    monkeypatch.setattr(blas, "find_cublas", lambda: "libcublas of a test")
    monkeypatch.setattr(blas_products, "FEWEST_PRODUCTS", 1)
    return fake


CALLED = (
    "plain",
    "wide",
    "halves",
    "right turned",
    "left turned",
    "result turned",
    "batched",
    "heads",
    "square",
)


@pytest.mark.parametrize("name", CALLED)
def test_products_are_left_to_the_library(name: str, cublas: FakeCublas) -> None:
    call = product_call(name)
    f = pf.compile(f"op f{FORMS[name]}", target="cuda", options=pf.Options(dump=None))
    found = f(**call.inputs)
    want = evaluate(call.graph, call.sizes, call.inputs)
    (out,) = call.graph.outputs
    outcome = agrees(np.asarray(found), want[out], call.graph.tensor(out).dtype)
    assert outcome, outcome.message
    assert [c for c in cublas.calls if c[0] == "gemm"], f.explain(**call.inputs)
    assert "a matrix product of the library" in f.explain(**call.inputs)


def test_sums_are_never_in_less_than_f32(cublas: FakeCublas) -> None:
    pf.compile(f"op f{FORMS['halves']}", target="cuda")(**product_call("halves").inputs)
    assert cublas.calls[0] == ("mode", blas.FULL_SUMS)


def test_heads_are_one_call_for_each_of_the_shorter_axis(cublas: FakeCublas) -> None:
    call = product_call("heads")
    pf.compile(f"op f{FORMS['heads']}", target="cuda")(**call.inputs)
    made = [c for c in cublas.calls if c[0] == "gemm"]
    m, n, k, p, q = (call.sizes[x] for x in "MNKPQ")
    assert made == [("gemm", 1, 0, n, m, k, q * k, q * k, n, q)] * p


def test_the_next_kernel_has_the_epilogue(cublas: FakeCublas) -> None:
    call = product_call("after")
    f = pf.compile(f"op f{FORMS['after']}", target="cuda")
    y, z = f(**call.inputs)
    want = evaluate(call.graph, call.sizes, call.inputs)
    for name, got in (("y", y), ("z", z)):
        assert agrees(np.asarray(got), want[name], call.graph.tensor(name).dtype)
    assert f.built(**call.inputs).kernels.kernels[0].library is not None


def test_a_second_process_finds_the_plan(cublas: FakeCublas) -> None:
    call = product_call("batched", seed=3)
    first = pf.compile(f"op f{FORMS['batched']}", target="cuda")(**call.inputs)
    again = pf.compile(f"op f{FORMS['batched']}", target="cuda")(**call.inputs)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))


def test_not_a_number_goes_through(cublas: FakeCublas) -> None:
    call = product_call("plain")
    call.inputs["a"][3, 2] = np.nan
    c = np.asarray(pf.compile(f"op f{FORMS['plain']}", target="cuda")(**call.inputs))
    assert np.isnan(c[3]).all() and np.isfinite(np.delete(c, 3, 0)).all()


def test_a_refusal_is_an_error_of_the_device(cublas: FakeCublas) -> None:
    cublas.refuse = "gemm"
    with pytest.raises(DeviceError, match="returned status 13") as e:
        pf.compile(f"op f{FORMS['plain']}", target="cuda")(**product_call("plain").inputs)
    assert e.value.diagnostics[0].code == "PF748"


def test_without_the_library_loops_are_generated(cublas: FakeCublas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "find_cublas", lambda: None)
    call = product_call("right turned")
    f = pf.compile(f"op f{FORMS['right turned']}", target="cuda")
    c = np.asarray(f(**call.inputs))
    np.testing.assert_allclose(c, call.inputs["a"] @ call.inputs["b"].T, rtol=1e-4, atol=1e-4)
    assert not cublas.calls and "cuBLAS was not found" in f.explain(**call.inputs)


def test_it_can_be_left_out(cublas: FakeCublas) -> None:
    f = pf.compile(f"op f{FORMS['plain']}", target="cuda", options=pf.Options(library="never"))
    call = product_call("plain")
    np.testing.assert_allclose(
        np.asarray(f(**call.inputs)), call.inputs["a"] @ call.inputs["b"], rtol=1e-4, atol=1e-4
    )
    assert not cublas.calls


# --- how tensors are matrices ------------------------------------------------------------------------------


def gemm(left: str, right: str, out: str, **sizes: int) -> Gemm | None:
    """Operands by the letters of their axes: p, q batch, m rows, n columns, k over."""

    def operand(name: str, axes: str, outer: str, inner: str) -> Operand:
        groups = [tuple(axes.index(c) for c in group if c in axes) for group in ("pq", outer, inner)]
        return Operand(name, *groups)

    shapes = {n: tuple(sizes[c] for c in axes) for n, axes in (("a", left), ("b", right), ("c", out))}
    made = [operand("a", left, "m", "k"), operand("b", right, "k", "n"), operand("c", out, "m", "n")]
    return gemm_of(MatrixProduct(*made, 0), shapes)


def test_leading_dimensions_and_steps() -> None:
    sizes = {"m": 3, "n": 4, "k": 5, "p": 6, "q": 2}
    g = gemm("pmk", "pkn", "pmn", **sizes)
    assert g is not None and (g.rows, g.columns, g.over, g.batch, g.loops) == (4, 3, 5, 6, ())
    assert [(x.place, x.transposed, x.leading, x.step) for x in (g.first, g.second, g.result)] == [
        (1, False, 4, 20), (0, False, 5, 15), (2, False, 4, 12),
    ]  # fmt: skip
    g = gemm("mpqk", "kpqn", "pqmn", **sizes)
    assert g is not None and (g.batch, g.loops) == (6, (2,))
    assert [(x.leading, x.step, x.steps) for x in (g.first, g.second, g.result)] == [
        (48, 8, (4,)), (60, 10, (5,)), (4, 24, (12,)),
    ]  # fmt: skip
    assert list(g.offsets()) == [(0, 0, 0), (4, 5, 12)]


def test_a_result_with_its_columns_first_is_the_transposed_product() -> None:
    g = gemm("mk", "kn", "nm", m=3, n=4, k=5)
    assert g is not None and (g.first.place, g.first.transposed, g.second.place, g.second.transposed) == (
        0,
        True,
        1,
        True,
    )
    assert (g.rows, g.columns, g.result.leading) == (3, 4, 3)


def test_matrices_without_neighbours_are_not_for_the_library() -> None:
    sizes = {"m": 3, "n": 4, "k": 5, "p": 2}
    assert gemm("mkp", "pkn", "pmn", **sizes) is None
    assert gemm("pmk", "pkn", "mnp", **sizes) is None
    assert gemm("mkp", "pkn", "pmn", **{**sizes, "k": 1}) is not None, "one column is never left"
