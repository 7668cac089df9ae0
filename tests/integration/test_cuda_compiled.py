"""Compiled functions for the target "cuda": arrays on every side, in and out; a stand-in is the GPU."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_stand_ins import EmulatingDriver, Tensor, Torch, on_device, tensor, use

import polyfuse as pf
from polyfuse.cost.device import DEFAULT
from polyfuse.diagnostics import DeviceError, ToolchainError
from polyfuse.driver import targets
from polyfuse.ir.target import GpuTarget
from polyfuse.options import Options
from polyfuse.runtime.cuda import compiler, open
from polyfuse.runtime.cuda.results import DeviceArray
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

Array = np.ndarray[Any, np.dtype[Any]]

DOUBLE = "op double(x: f32[N, M]) -> (y: f32[N, M]) { y[n, m] = x[n, m] * 2.0 }"
AXPY = "op axpy(x: f32[N], y: f32[N], a: f32 = 2.0) -> (z: f32[N]) { z[i] = a * x[i] + y[i] }"
STEP = "op step(inout p: f32[N, M], g: f32[N, M]) { p[n, m] = p[n, m] - g[n, m] }"
SWAP = "op swap(inout p: f32[N], inout q: f32[N]) { p[i] = old(q[i]); q[i] = old(p[i]) }"
TOTAL = "op total(x: f32[N]) -> (s: f32) { s = sum[i](x[i]) }"
SPLIT = "op split(x: f32[N]) -> (lo: f32[N], hi: f32[N]) { lo[i] = x[i] - 1.0; hi[i] = x[i] + 1.0 }"
PICK = "op pick(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[m] = x[at[m]] }"
SCALE = "op scale[F: float](x: F[N], a: F) -> (y: F[N]) { y[i] = a * x[i] }"


def grid(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def compiled(text: str, **options: Any) -> pf.Compiled:
    return pf.compile(text, target="cuda", **options)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> EmulatingDriver:
    return use(monkeypatch)


@pytest.fixture
def torch(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def copies(driver: EmulatingDriver) -> int:
    return len(driver.named("copy", "copy_in", "copy_out"))


# --- in and out ---------------------------------------------------------------------------------------------


def test_numpy_in_and_out(driver: EmulatingDriver) -> None:
    f = compiled(DOUBLE)
    for x in (grid(4, 6), grid(4, 12)[:, ::2], grid(6, 4).T, grid(4, 6).astype(">f4")):
        y = f(x)
        assert type(y) is np.ndarray and y.dtype == np.float32
        np.testing.assert_array_equal(y, 2 * np.asarray(x, np.float32))
    assert len({id(f.built(x)) for x in (grid(4, 6), grid(4, 6)[::-1])}) <= 2
    total = compiled(TOTAL)(grid(100))
    assert isinstance(total, np.float32) and total == 4950


def test_tensors_in_and_out(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(4, 6))
    f(x)
    driver.calls.clear()
    y = f(x)
    assert isinstance(y, Tensor) and y.device.type == "cuda" and y.dtype == "torch.float32"
    np.testing.assert_array_equal(y.elements, 2 * grid(4, 6))
    assert torch.made == 2 and copies(driver) == 0 and len(driver.launches) == 1
    total = compiled(TOTAL)(tensor(driver, grid(100)))
    assert isinstance(total, Tensor) and total.shape == () and total.elements == 4950


def test_the_stream_of_torch_is_used(driver: EmulatingDriver, torch: Torch) -> None:
    with driver.current():
        torch.stream = driver.create_stream()
    compiled(DOUBLE)(tensor(driver, grid(2, 2)))
    assert [r.stream for r in driver.launches] == [torch.stream]


def test_tensors_with_strides(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(8, 12))
    for view in (x[:, 1:5], x[::2], x.t(), x[1:, ::3], x[0:1]):
        driver.calls.clear()
        np.testing.assert_array_equal(f(view).elements, 2 * view.elements)  # type: ignore[attr-defined]
        assert copies(driver) == 0
    f(grid(5, 10)[:, ::2])  # dense when it is there
    driver.calls.clear()
    f(tensor(driver, grid(5, 10))[:, ::2])
    assert not driver.named("copy", "copy_out")


def test_sixteen_bit_tensors(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled(SCALE)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        y = f(tensor(driver, grid(9).astype(dtype)), 0.5)
        assert isinstance(y, Tensor) and y.elements.dtype == dtype
        np.testing.assert_array_equal(y.elements.astype(np.float32), grid(9) / 2)


def test_tensors_on_the_host_come_back_there(driver: EmulatingDriver, torch: Torch) -> None:
    for dtype in (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)):
        y = compiled(SCALE)(torch.from_numpy(grid(6).astype(dtype)), 3.0)
        assert isinstance(y, Tensor) and y.device.type == "cpu" and y.elements.dtype == dtype
        np.testing.assert_array_equal(y.elements.astype(np.float32), 3 * grid(6))
    mixed = compiled(AXPY)(torch.from_numpy(grid(6)), tensor(driver, grid(6)))
    assert isinstance(mixed, Tensor) and mixed.device.type == "cpu"
    np.testing.assert_array_equal(mixed.elements, 3 * grid(6))


def test_arrays_of_our_own(driver: EmulatingDriver) -> None:
    f, x = compiled(AXPY), on_device(driver, grid(7))
    z = f(x, x, 4.0)
    assert isinstance(z, DeviceArray) and z.stream == x.stream
    np.testing.assert_array_equal(z.get(), 5 * grid(7))
    again = f(z, x)
    np.testing.assert_array_equal(again.get(), 11 * grid(7))  # type: ignore[attr-defined]


def test_results_have_the_shape_of_the_operator(driver: EmulatingDriver) -> None:
    """Kernels may go through two dims as one."""
    y = compiled(DOUBLE)(on_device(driver, grid(3, 5)))
    assert isinstance(y, DeviceArray) and y.shape == (3, 5)
    np.testing.assert_array_equal(y.get(), 2 * grid(3, 5))


class Exchanged:
    """Only DLPack."""

    def __init__(self, array: DeviceArray) -> None:
        self.array, self.shape = array, array.shape
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


class Interfaced:
    """Only the array interface."""

    def __init__(self, array: DeviceArray) -> None:
        self.array, self.shape = array, array.shape
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("kind", [Exchanged, Interfaced])
def test_arrays_of_others(driver: EmulatingDriver, kind: Any) -> None:
    x = kind(on_device(driver, grid(3, 5)))
    y = compiled(DOUBLE)(x)
    assert isinstance(y, DeviceArray)
    np.testing.assert_array_equal(y.get(), 2 * grid(3, 5))
    p = kind(on_device(driver, grid(3, 5)))
    compiled(STEP)(p, x)
    assert not p.array.get().any()


def test_cupy_in_and_out(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cupy(Interfaced):
        pass

    @contextlib.contextmanager
    def device(index: int) -> Any:
        assert index == 0
        yield

    module: Any = ModuleType("cupy")
    module.ndarray, module.cuda = Cupy, SimpleNamespace(Device=device)
    module.empty = lambda shape, dtype: Cupy(on_device(driver, np.zeros(shape, dtype)))
    monkeypatch.setitem(sys.modules, "cupy", module)
    y = compiled(DOUBLE)(Cupy(on_device(driver, grid(3, 5))))
    assert isinstance(y, Cupy)
    np.testing.assert_array_equal(y.array.get(), 2 * grid(3, 5))
    rounded = compiled("op shorten(x: f32[N]) -> (y: bf16[N]) { y[i] = bf16(x[i]) }")
    y = rounded(Cupy(on_device(driver, grid(5))))
    assert isinstance(y, DeviceArray) and y.dtype == ml_dtypes.bfloat16


def test_stages_take_arrays_on_the_device(driver: EmulatingDriver, torch: Torch) -> None:
    specialized = pf.parse(DOUBLE).op().specialize(N=3, M=5)
    built = specialized.schedule().lower(target="cuda").build()
    x, y = tensor(driver, grid(3, 5)), on_device(driver, grid(3, 5))
    built.run({"x": x, "y": y})
    np.testing.assert_array_equal(y.get(), 2 * grid(3, 5))
    host = np.empty((3, 5), np.float32)
    built.run({"x": x, "y": host})
    np.testing.assert_array_equal(host, 2 * grid(3, 5))
    specialized.schedule().lower(target="emulate").build("cuda").run({"x": x, "y": host})
    with pytest.raises(pf.ArgumentError, match="PF405"):
        built.run({"x": tensor(driver, grid(3, 6)), "y": host})
    with pytest.raises(pf.ArgumentError, match="PF417"):
        specialized.schedule().lower(target="cpu").build().run({"x": x, "y": host})


def test_arrays_on_both_sides(driver: EmulatingDriver, torch: Torch) -> None:
    f = compiled(AXPY)
    z = f(tensor(driver, grid(5)), grid(5))
    assert type(z) is np.ndarray
    np.testing.assert_array_equal(z, 3 * grid(5))
    z = f(tensor(driver, grid(5)), on_device(driver, grid(5)))
    assert isinstance(z, DeviceArray)
    np.testing.assert_array_equal(z.get(), 3 * grid(5))


def test_scalars_of_every_kind(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(AXPY), tensor(driver, grid(5))
    for a in (3.0, 3, np.float32(3), np.array(3, np.float32), torch.from_numpy(np.array(3, np.float32))):
        z = f(x, x, a)
        assert isinstance(z, Tensor) and z.device.type == "cuda"
        np.testing.assert_array_equal(z.elements, 4 * grid(5))
    z = f(x, x, tensor(driver, np.float32(3)))
    np.testing.assert_array_equal(z.elements, 4 * grid(5))  # type: ignore[attr-defined]
    assert f.built(x, x, 1.0) is f.built(x, x, 2.0)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1)], ids=str)
def test_sizes_of_none_and_one(driver: EmulatingDriver, torch: Torch, shape: tuple[int, int]) -> None:
    for x in (tensor(driver, grid(*shape)), on_device(driver, grid(*shape)), grid(*shape)):
        assert compiled(DOUBLE)(x).shape == shape  # type: ignore[attr-defined]
        assert compiled(STEP)(x, x) is None


CALLS = (
    [("random", k) for k in range(8)]
    + [("workloads", k) for k in (0, 3, 20)]
    + [("stdlib", k) for k in (5, 60)]
)


@pytest.mark.parametrize(("kind", "number"), CALLS, ids=str)
def test_programs_called_with_tensors(
    driver: EmulatingDriver, torch: Torch, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """The calls that a run on a GPU compares with the reference."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "gpu"))
    from on_device import by_api, call_of, compiled_for

    c = call_of(kind, number)
    inputs = {n: a for n, a in c.call.memory().items() if n in c.call.graph.inputs}
    want, got = (
        evaluate(c.call.graph, c.call.sizes, inputs),
        by_api(c, compiled_for(c, "cuda"), inputs, "cuda"),
    )
    assert got and driver.launches
    for name, array in got.items():
        outcome = agrees(array, want[name], c.call.graph.tensor(name).dtype)
        assert outcome, outcome.message


# --- out= and inout --------------------------------------------------------------------------------------


def test_out_is_written_and_returned(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(DOUBLE), tensor(driver, grid(4, 6))
    own, device, host = tensor(driver, grid(4, 6)), on_device(driver, grid(4, 6)), grid(4, 6)
    for out in (own, device, host):
        assert f(x, out=out) is out
    for got in (own.elements, device.get(), host):
        np.testing.assert_array_equal(got, 2 * grid(4, 6))
    assert torch.made == 0
    assert f(grid(4, 6), out=own) is own


def test_out_of_several_results(driver: EmulatingDriver, torch: Torch) -> None:
    f, x, only = compiled(SPLIT), tensor(driver, grid(5)), tensor(driver, grid(5))
    lo, hi = f(x, out={"hi": only})  # type: ignore[misc]
    assert hi is only and isinstance(lo, Tensor)
    np.testing.assert_array_equal(hi.elements - lo.elements, np.full(5, 2))


def test_out_over_an_input_and_with_strides(driver: EmulatingDriver, torch: Torch) -> None:
    x = tensor(driver, grid(4, 6))
    assert compiled(DOUBLE)(x, out=x) is x
    np.testing.assert_array_equal(x.elements, 2 * grid(4, 6))
    whole = tensor(driver, np.full((4, 12), 7, np.float32))
    compiled(DOUBLE)(tensor(driver, grid(4, 6)), out=whole[:, ::2])
    np.testing.assert_array_equal(whole.elements[:, ::2], 2 * grid(4, 6))
    assert (whole.elements[:, 1::2] == 7).all()


@pytest.mark.parametrize("wrong", [np.zeros((6, 4), np.float32), np.zeros((4, 6))])
def test_out_that_does_not_fit(driver: EmulatingDriver, torch: Torch, wrong: Array) -> None:
    messages = []
    for target, out in (("cpu", wrong), ("cuda", wrong), ("cuda", tensor(driver, wrong))):
        with pytest.raises(pf.ArgumentError) as refused:
            pf.compile(DOUBLE, target=target)(grid(4, 6), out=out)  # type: ignore[arg-type]
        messages.append(str(refused.value))
    assert refused.value.code == "PF418" and len(set(messages)) == 1


def test_parameters_are_updated_in_place(driver: EmulatingDriver, torch: Torch) -> None:
    f, g = compiled(STEP), grid(4, 6) / 2
    p = tensor(driver, grid(4, 6))
    assert f(p, tensor(driver, g)) is None
    np.testing.assert_array_equal(p.elements, g)
    wide = tensor(driver, grid(4, 12))
    f(wide[:, ::2], tensor(driver, g))
    np.testing.assert_array_equal(wide.elements[:, ::2], grid(4, 12)[:, ::2] - g)
    np.testing.assert_array_equal(wide.elements[:, 1::2], grid(4, 12)[:, 1::2])
    for host in (grid(4, 6), grid(4, 12)[:, ::2], grid(4, 6).astype(">f4")):
        want = host - g
        f(host, tensor(driver, g))
        np.testing.assert_array_equal(host, want)


def test_torch_is_told_what_is_written(driver: EmulatingDriver, torch: Torch) -> None:
    p, g, y = (tensor(driver, grid(4, 6)) for _ in range(3))
    compiled(STEP)(p, g)
    compiled(DOUBLE)(g, out=y)
    assert (p.version, g.version, y.version) == (1, 0, 1)
    step = compiled(STEP).bind(p, g)
    step()
    step()
    assert (p.version, g.version) == (3, 0)
    p.requires_grad = True
    for call in (step, lambda: compiled(STEP)(p, g), lambda: compiled(DOUBLE)(g, out=p)):
        with pytest.raises(pf.ArgumentError, match="requires grad") as refused:
            call()
        assert refused.value.code == "PF420"
    torch.grad_mode = False
    step()
    assert p.version == 4


def test_parameters_beside_one_another(driver: EmulatingDriver, torch: Torch) -> None:
    f, both = compiled(SWAP), tensor(driver, grid(12))
    f(both[::2], both[1::2])
    np.testing.assert_array_equal(both.elements, grid(12).reshape(6, 2)[:, ::-1].ravel())
    with pytest.raises(pf.ArgumentError, match="share memory") as refused:
        f(both[:6], both[5:11])
    assert refused.value.code == "PF418"


def test_parameters_that_cannot_be_written(driver: EmulatingDriver, torch: Torch) -> None:
    f, row = compiled(STEP), tensor(driver, grid(4))
    spread = Tensor(np.broadcast_to(row.elements, (3, 4)), row.base)
    with pytest.raises(pf.ArgumentError, match="elements of the inout argument 'p' share memory"):
        f(spread, grid(3, 4))
    locked = Interfaced(on_device(driver, grid(3, 4)))
    interface = locked.__cuda_array_interface__
    locked.__cuda_array_interface__ = {**interface, "data": (interface["data"][0], True)}
    with pytest.raises(pf.ArgumentError, match="'p' is inout: it must be a writable array"):
        f(locked, grid(3, 4))


# --- bind --------------------------------------------------------------------------------------------------


def test_a_bound_call_only_launches(driver: EmulatingDriver, torch: Torch) -> None:
    x = tensor(driver, grid(3, 4))
    bound = compiled(DOUBLE).bind(x)
    first = bound()
    x.elements[...] = 9
    driver.calls.clear()
    assert bound() is first
    assert [c[0] for c in driver.calls] == ["launch"]
    assert (first.elements == 18).all()  # type: ignore[attr-defined]


def test_bound_calls_on_the_host_and_in_place(driver: EmulatingDriver) -> None:
    x, out = grid(3, 4), np.empty((3, 4), np.float32)
    bound = compiled(DOUBLE).bind(x, out=out)
    for k in range(3):
        x[...] = k
        assert bound() is out and (out == 2 * k).all()
    p = on_device(driver, grid(3, 4))
    step = compiled(STEP).bind(p, on_device(driver, np.ones((3, 4), np.float32)))
    assert step() is None and step() is None
    np.testing.assert_array_equal(p.get(), grid(3, 4) - 2)
    y = np.ones(5, np.float32)
    total = compiled(TOTAL).bind(y)
    assert total() == 5
    y[0] = 3
    assert total() == 7
    with pytest.raises(pf.ArgumentError, match="PF418"):
        compiled(DOUBLE).bind(grid(3, 4).astype(">f4"))


# --- errors ------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, tuple[Array, ...]]] = {
    "dtype": (AXPY, (grid(3), np.ones(3))),
    "generic dtype": (SCALE, (grid(3), np.zeros((), np.float64))),
    "rank": (DOUBLE, (grid(3),)),
    "sizes": (AXPY, (grid(3), grid(4))),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_as_on_the_cpu(driver: EmulatingDriver, torch: Torch, name: str) -> None:
    text, given = WRONG[name]
    with pytest.raises(pf.ArgumentError) as known:
        pf.compile(text, target="cpu")(*given)
    for make in (np.asarray, lambda a: tensor(driver, a), lambda a: on_device(driver, a)):
        with pytest.raises(pf.ArgumentError) as found:
            compiled(text)(*map(make, given))
        assert str(found.value) == str(known.value)


def test_dtypes_that_the_language_lacks(driver: EmulatingDriver, torch: Torch) -> None:
    x = tensor(driver, grid(2, 2))
    x.dtype = "torch.complex64"
    with pytest.raises(pf.ArgumentError, match="PF402"):
        compiled(DOUBLE)(x)


def test_a_checked_build_names_the_index(driver: EmulatingDriver, torch: Torch) -> None:
    f, x = compiled(PICK, checked=True), tensor(driver, grid(4))
    y = f(x, tensor(driver, np.array([3, 0])))
    np.testing.assert_array_equal(y.elements, [3, 0])  # type: ignore[attr-defined]
    with pytest.raises(pf.ArgumentError, match="out of range") as refused:
        f(x, tensor(driver, np.array([3, 4])))
    assert refused.value.code == "PF450"


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
def test_other_targets_refuse_what_is_on_the_gpu(driver: EmulatingDriver, torch: Torch, target: Any) -> None:
    f = pf.compile(DOUBLE, target=target)
    base = on_device(driver, grid(2, 2))
    for x in (tensor(driver, grid(2, 2)), base, Exchanged(base), Interfaced(base)):
        with pytest.raises(pf.ArgumentError, match=r"(?s)'x' lives on .*target=.cuda.") as refused:
            f(x)
        assert refused.value.code == "PF417"
        with pytest.raises(pf.ArgumentError, match="PF417"):
            f(grid(2, 2), out=x)


# --- which target, which device ----------------------------------------------------------------------------


def test_auto_takes_the_gpu(driver: EmulatingDriver) -> None:
    f = pf.compile(DOUBLE)
    assert not driver.calls
    assert (f(grid(2, 2)) == 2 * grid(2, 2)).all() and driver.launches  # type: ignore[union-attr]
    assert f.target == "cuda" and "for cuda" in repr(f)


def test_auto_without_a_gpu(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open, "cuda_available", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = pf.compile(DOUBLE)
        assert (f(grid(2, 2)) == 2 * grid(2, 2)).all() and f.target == "cpu"  # type: ignore[union-attr]


NO_COMPILER = ToolchainError("no compiler for CUDA found", code="PF720", hint="pip install one")
BUSY = DeviceError("the device is taken", code="PF743", hint="wait for it")


@pytest.mark.parametrize("lacks", [NO_COMPILER, BUSY], ids=["compiler", "device"])
def test_auto_with_a_gpu_that_cannot_be_used(
    driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch, lacks: pf.PolyfuseError
) -> None:
    def refuse(*_: object) -> Any:
        raise lacks

    where, name = (compiler, "find_cuda_compiler") if lacks is NO_COMPILER else (open, "open_driver")
    monkeypatch.setattr(where, name, refuse)
    found = lacks.diagnostics[0]
    with pytest.warns(pf.PolyfuseWarning, match=f"CPU.*{found.message}.*{found.hint}"):
        assert (pf.compile(DOUBLE)(grid(2, 2)) == 2 * grid(2, 2)).all()  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pf.compile(DOUBLE).target == "cpu"
        with pytest.raises(type(lacks)):
            compiled(DOUBLE)(grid(2, 2)) if lacks is BUSY else refuse()


def test_kernels_are_mapped_for_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, multiprocessors=3, max_threads_per_multiprocessor=1536)
    mapped = targets.mapped_for("cuda", Options())
    assert isinstance(mapped, GpuTarget)
    assert (mapped.sms, mapped.resident_threads, mapped.shared_bytes) == (3, 1536, 227 << 10)
    other = targets.mapped_for("cuda", Options(device="A100", library="never"))
    assert other == targets.mapped_for("emulate", Options(device="A100"))
    other = targets.mapped_for("emulate", Options())
    assert isinstance(other, GpuTarget) and other.sms == DEFAULT.sms


@pytest.mark.parametrize(
    ("name", "capability", "stands"),
    [
        ("NVIDIA H200", (9, 0), "H200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "H100"),
        ("NVIDIA GH200 480GB", (9, 0), "H200"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "A100"),
        ("NVIDIA L40S", (8, 9), "L4"),
        ("NVIDIA GeForce RTX 4090", (8, 9), "RTX 4090"),
        ("Tesla T4", (7, 5), "V100"),
        ("NVIDIA A10", (8, 6), "A100"),
        ("NVIDIA GeForce RTX 5090", (12, 0), "B200"),
    ],
)
def test_a_gpu_that_the_table_lacks(
    monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int], stands: str
) -> None:
    driver = use(monkeypatch, name=name, capability=capability, multiprocessors=46)
    found = targets.chip(Options(), "cuda")
    assert (found.name, found.arch, found.sms) == (name, driver.properties.arch, 46)
    assert found.memory_bandwidth == targets.device(stands).memory_bandwidth
    assert targets.chip(Options()) is DEFAULT
