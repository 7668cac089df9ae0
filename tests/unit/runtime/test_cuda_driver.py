"""Ways to a GPU's driver, on a stand-in for NVIDIA's library: prototypes, contexts, errors, order of work."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda_helpers as helpers
import numpy as np
import pytest

from polyfuse.diagnostics import DeviceError, DeviceMemoryError, ToolchainError
from polyfuse.runtime.cuda import driver_api
from polyfuse.runtime.cuda.driver import Cells, Driver, Parameters, require_resident
from polyfuse.runtime.cuda.driver_api import TABLE, CtypesApi
from polyfuse.runtime.cuda.driver_native import NativeDriver
from polyfuse.runtime.cuda.driver_recording import LaunchRecord
from polyfuse.runtime.cuda.memory import CHUNK, DeviceMemory, Pool, Staging, size_class

ROOT = Path(__file__).parents[3]


@pytest.fixture
def stub() -> Iterator[helpers.Stub]:
    control = helpers.Stub()
    control.calls()
    yield control
    control.recover()


@pytest.fixture
def native(stub: helpers.Stub) -> Iterator[NativeDriver]:
    driver = helpers.native_driver()
    yield driver
    driver.close()


@pytest.fixture(params=helpers.drivers())
def driver(request: pytest.FixtureRequest, stub: helpers.Stub) -> Driver:
    return helpers.new_driver(request.param)


def _host(driver: Driver, values: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any]]:
    """Pinned memory with these values."""
    address = driver.allocate_pinned(values.nbytes)
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * values.nbytes).from_address(address))
    view = memory.view(values.dtype)
    view[:] = values
    return address, view


# --- the native way ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not helpers.CUDA_HEADER.exists(), reason="CUDA's header is not installed")
def test_the_stub_has_the_prototypes_of_cudas_header() -> None:
    source = helpers.SOURCES / "libcuda_stub.cpp"
    flags = ["-std=c++17", "-fsyntax-only", "-DPF_WITH_CUDA_H", f"-I{helpers.CUDA_HEADER.parent}"]
    done = subprocess.run(["g++", *flags, str(source)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not helpers.CUDA_HEADER.exists(), reason="CUDA's header is not installed")
def test_numbers_are_those_of_cudas_header() -> None:
    header = helpers.CUDA_HEADER.read_text(errors="replace")
    numbers = {n: int(v) for n, v in re.findall(r"^\s+(CUDA_ERROR_\w+)\s*=\s*(\d+)", header, re.MULTILINE)}
    for status, (name, _) in driver_api._NAMES.items():
        assert numbers[name] == status
    for plain, (symbol, _) in TABLE.items():
        assert re.search(rf"\b{plain}\b", header), plain
        if symbol != plain:
            assert re.search(rf"\b{symbol}\b", header), symbol


def test_every_function_of_the_table_is_in_the_stub(stub: helpers.Stub) -> None:
    api = CtypesApi(str(helpers.stub_path()))
    for name in TABLE:
        api.function(name)


def test_properties(native: NativeDriver) -> None:
    p = native.properties
    assert (p.name, p.arch, p.multiprocessors, p.warp) == ("Stub GPU", "sm_90", 132, 32)
    assert (p.max_grid, p.max_threads_per_block, p.cooperative) == (2**31 - 1, 1024, True)
    assert p.memory_bytes == 80 << 30
    assert "Stub GPU (sm_90" in native.describe()
    assert "13.0 through ctypes" in native.describe()


def test_the_context_comes_with_the_first_use(stub: helpers.Stub, native: NativeDriver) -> None:
    before = stub.library.pf_stub_retained()
    assert "cuDevicePrimaryCtxRetain" not in stub.calls()
    with native.current():
        assert stub.library.pf_stub_depth() == 1
        with native.current():
            assert stub.library.pf_stub_depth() == 1, "it is current already"
        assert stub.library.pf_stub_depth() == 1
    assert stub.library.pf_stub_depth() == 0
    assert stub.calls().count("cuDevicePrimaryCtxRetain") == 1
    native.close()
    assert stub.library.pf_stub_retained() == before


def test_each_thread_has_a_stack_of_contexts(stub: helpers.Stub, native: NativeDriver) -> None:
    depths = []

    def other() -> None:
        depths.append(stub.library.pf_stub_depth())
        with native.current():
            depths.append(stub.library.pf_stub_depth())
        depths.append(stub.library.pf_stub_depth())

    with native.current():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert stub.library.pf_stub_depth() == 1
    assert depths == [0, 1, 0]


def test_a_context_of_others_is_left_as_it_was(stub: helpers.Stub, native: NativeDriver) -> None:
    """torch makes the same context current and keeps it so."""
    with native.current():
        pass
    context = native.functions.cuDevicePrimaryCtxRetain(0)
    native.functions.cuCtxPushCurrent(context)
    stub.calls()
    with native.current():
        pass
    assert not {"cuCtxPushCurrent", "cuCtxPopCurrent"} & set(stub.calls())
    native.functions.cuCtxPopCurrent()
    native.functions.cuDevicePrimaryCtxRelease(0)


def test_parameters_of_every_type() -> None:
    cells = Cells(5)
    parameters = Parameters(cells, (4, 0, 1, 2, 3), "qQfbd")
    cells.put(4, -(2**62))
    cells.put(0, 2**63 + 5)
    cells.put_bytes(1, np.float32(0.1).tobytes())
    cells.put_bytes(2, np.int8(-3).tobytes())
    cells.put_bytes(3, np.float64(0.1).tobytes())
    assert parameters.values() == (-(2**62), 2**63 + 5, float(np.float32(0.1)), -3, 0.1)
    table = (ctypes.c_void_p * 5).from_address(parameters.table)
    assert [ctypes.c_uint64.from_address(a).value for a in table[:2]] == [2**64 - 2**62, 2**63 + 5]
    assert len(parameters.packed()) == 8 + 8 + 4 + 1 + 3 + 8, "the layout of a struct"


def test_launch_copies_and_memset(driver: Driver) -> None:
    x = np.arange(8, dtype=np.float32)
    with driver.current():
        module = driver.load(helpers.image())
        function = driver.function(module, "scale")
        source, target = driver.allocate(32), driver.allocate(32)
        host, view = _host(driver, x)
        stream = driver.create_stream()
        cells = Cells(5)
        for k, value in enumerate((source, target, 0, 7, 1)):
            cells.put(k, value)
        cells.put_bytes(2, np.float32(3).tobytes())
        driver.copy_in(source, host, 32, stream)
        driver.fill(target, 0, 32, stream)
        driver.launch(function, 1, (32, 1), 0, Parameters(cells, range(5), "QQfqq"), stream)
        cells.put(3, 0)  # parameters are copied when the launch is queued
        driver.copy(source, target, 32, stream)
        driver.copy_out(host, source, 32, stream)
        driver.synchronize(stream)
        assert view.tolist() == [0, 3, 6, 9, 12, 15, 18, 0]
        assert driver.device_of(target) == 0
        assert driver.device_of(1 << 60) is None
        driver.unload(module)
        driver.destroy_stream(stream)
        driver.free(source)
        driver.free(target)
        driver.free_pinned(host)


def test_events_tell_order_and_time(driver: Driver) -> None:
    with driver.current():
        memory = driver.allocate(64)
        host, view = _host(driver, np.zeros(64, np.uint8))
        first, then = driver.create_stream(), driver.create_stream()
        start, end = driver.create_event(timing=True), driver.create_event(timing=True)
        driver.record(start, first)
        driver.fill(memory, 5, 64, first)
        driver.record(end, first)
        driver.wait(then, end)
        driver.copy_out(host, memory, 64, then)
        driver.synchronize(then)
        assert view.tolist() == [5] * 64
        driver.wait_here(end)
        assert driver.done(end)
        assert 0 <= driver.seconds(start, end) < 10
        driver.destroy_event(start)
        driver.destroy_event(end)
        driver.free(memory)


def test_the_stub_does_nothing_before_somebody_waits(native: NativeDriver) -> None:
    """What the tests of order stand on."""
    with native.current():
        memory = native.allocate(64)
        host, view = _host(native, np.zeros(64, np.uint8))
        first, then = native.create_stream(), native.create_stream()
        event = native.create_event()
        native.fill(memory, 5, 64, first)
        native.record(event, first)
        native.copy_out(host, memory, 64, then)  # not ordered after the fill
        native.synchronize(then)
        assert not native.done(event)
        assert view.tolist() == [0xA5] * 64


def test_graphs(driver: Driver) -> None:
    with driver.current():
        function = driver.function(driver.load(helpers.image()), "plus_one")
        memory = driver.allocate(4)
        host, view = _host(driver, np.zeros(1, np.float32))
        stream = driver.create_stream()
        cells = Cells(2)
        cells.put(0, memory)
        cells.put(1, 1)
        driver.fill(memory, 0, 4, stream)
        driver.begin_capture(stream)
        driver.launch(function, 1, (32, 1), 0, Parameters(cells, (0, 0, 1), "QQq"), stream)
        graph = driver.end_capture(stream)
        for _ in range(3):
            driver.launch_graph(graph, stream)
        driver.copy_out(host, memory, 4, stream)
        driver.synchronize(stream)
        driver.destroy_graph(graph)
        assert view.tolist() == [3]


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((2, "PF742"), (3, "PF740"), (100, "PF741"), (101, "PF741"), (209, "PF746"), (218, "PF746")),
        *((1, "PF749"), (700, "PF743"), (701, "PF744"), (702, "PF743"), (716, "PF743"), (719, "PF743")),
        *((720, "PF744"), (803, "PF740"), (999, "PF749")),
    ],
)
def test_statuses_become_codes(status: int, code: str) -> None:
    error = driver_api.status_error(status, "cuSomething")
    assert (error.code, error.status) == (code, status)
    assert isinstance(error, ToolchainError)
    assert isinstance(error, MemoryError) == (status == 2)
    assert "cuSomething" in str(error)
    assert ("context" in str(error)) == (code == "PF743")


def test_texts_of_the_driver_are_shown(stub: helpers.Stub, native: NativeDriver) -> None:
    with native.current():
        with pytest.raises(
            DeviceMemoryError, match=r"cuMemAlloc: out of memory \(CUDA_ERROR_OUT_OF_MEMORY\)"
        ):
            native.allocate(1 << 40)
        with pytest.raises(DeviceError, match="PF746") as refused:
            native.load(b"no module\0")
        assert refused.value.status == 200
        stub.fail("cuMemFree", 999)
        with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):  # the stub has no text for it
            native.free(0)


def test_a_lost_context_is_not_used_again(stub: helpers.Stub, native: NativeDriver) -> None:
    with native.current():
        stream = native.create_stream()
        stub.fail("cuStreamSynchronize", 700)
        with pytest.raises(DeviceError, match=r"PF743.*illegal memory access"):
            native.synchronize(stream)
    with pytest.raises(DeviceError, match="start the process again") as lost, native.current():
        pass
    assert lost.value.code == "PF743"


def test_no_library() -> None:
    with pytest.raises(DeviceError, match="nvidia-smi") as missing:
        CtypesApi("/nonexistent/libcuda.so.1")
    assert missing.value.code == "PF740"


def test_no_device(stub: helpers.Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no GPU number 3: 1 found") as none:
        NativeDriver(CtypesApi(str(helpers.stub_path())), 3)
    assert none.value.code == "PF741"
    monkeypatch.setenv("PF_STUB_DEVICES", "0")
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES"):
        helpers.native_driver()


def test_a_forked_child_is_told(native: NativeDriver) -> None:
    with native.current():
        pass
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = b"none"
        try:
            with native.current():
                pass
        except DeviceError as error:
            code = error.code.encode()
        os.write(write, code)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"PF747"


def test_a_grid_barrier_needs_resident_blocks(stub: helpers.Stub, native: NativeDriver) -> None:
    with native.current():
        function = native.function(native.load(helpers.image()), "wait_all")
        require_resident(native, function, 132 * 8, 256, 0)
        with pytest.raises(DeviceError) as refused:
            require_resident(native, function, 132 * 8 + 1, 256, 0)
    assert refused.value.code == "PF745"
    for figure in ("1057 blocks of 256 threads", "only 1056", "8 on each of 132", "40 registers"):
        assert figure in str(refused.value)
    assert "cuLaunchCooperativeKernel" not in stub.calls()


# --- the record -------------------------------------------------------------------------------------------


def test_the_record_has_calls_in_order() -> None:
    driver = helpers.recording_driver()
    with driver.current():
        address = driver.allocate(100)
        driver.fill(address, 0, 100, 0)
        driver.free(address)
    assert driver.calls == [("allocate", 100), ("fill", address, 0, 100, 0), ("free", address)]
    assert not driver.live


def test_the_record_decodes_launches() -> None:
    driver = helpers.RecordingDriver()
    with driver.current():
        function = driver.function(driver.load(b""), "f")
        cells = Cells(2)
        cells.put(0, 77)
        cells.put_bytes(1, np.float32(1.5).tobytes())
        driver.launch(function, 5, (64, 2), 0, Parameters(cells, (1, 0), "fq"), 3, cooperative=True)
    assert driver.launches == [LaunchRecord("f", 5, (64, 2), 0, (1.5, 77), 3, True, "fq")]


def test_failures_are_injected() -> None:
    driver = helpers.recording_driver()
    driver.fail("allocate", after=2)
    with driver.current():
        driver.allocate(1)
        driver.allocate(1)
        with pytest.raises(DeviceMemoryError):
            driver.allocate(1)
        driver.allocate(1)
        driver.fail("synchronize", 719)
        with pytest.raises(DeviceError, match="PF743"):
            driver.synchronize(0)
    with pytest.raises(DeviceError, match="PF743"), driver.current():
        pass


def test_calls_need_the_context() -> None:
    with pytest.raises(AssertionError, match="outside"):
        helpers.recording_driver().allocate(1)


# --- memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 5000, 123_456, 10**9 + 7])
def test_size_classes(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size % 512 == 0
    assert nbytes <= size <= nbytes + max(512, nbytes // 8)
    assert size_class(size) == size


def test_memory_is_used_again_on_its_stream_only() -> None:
    driver = helpers.recording_driver()
    with driver.current():
        pool = Pool(driver)
        block = pool.take(1000, 1)
        address = block.address
        del block
        assert pool.take(900, 2).address != address, "work may be queued on stream 1"
        assert pool.take(900, 1).address == address
        assert pool.allocations == 2


def test_kept_memory_is_returned_when_the_driver_has_none() -> None:
    driver = helpers.recording_driver()
    with driver.current():
        pool = Pool(driver)
        kept = pool.take(5000, 1)
        del kept
        driver.fail("allocate")
        pool.take(10**6, 1)
        assert len(driver.named("free")) == 1
        with pytest.raises(DeviceMemoryError):
            driver.fail("allocate")
            Pool(driver).take(1, 1)


def test_no_more_than_the_share_is_kept() -> None:
    driver = helpers.recording_driver()
    with driver.current():
        pool = Pool(driver, cap=4096)
        blocks = [pool.take(2048, 1) for _ in range(4)]
        blocks.clear()
        pool.take(1 << 16, 1)
        assert pool.free_bytes <= 4096
        assert len(driver.named("free")) == 2


@pytest.mark.parametrize("nbytes", [0, 1, 70_000, CHUNK, 3 * CHUNK + 17, 11 * CHUNK])
def test_staging_there_and_back(driver: Driver, nbytes: int) -> None:
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    want = source.copy()
    with driver.current():
        staging = Staging(driver)
        address = driver.allocate(nbytes + 1)
        stream = driver.create_stream()
        staging.upload(source, address, stream)
        source[:] = 0  # the caller may change it at once
        back = np.empty_like(want)
        staging.download(address, back, stream)
        driver.free(address)
    assert np.array_equal(back, want)


def test_pinned_memory_is_bounded() -> None:
    driver = helpers.recording_driver()
    with driver.current():
        staging = Staging(driver)
        address = driver.allocate(CHUNK)
        for _ in range(100):
            staging.upload(np.zeros(CHUNK, np.uint8), address, 0)
            staging.download(address, np.zeros(100, np.uint8), 0)
    assert len(driver.named("allocate_pinned")) <= 4


def test_streams_are_ordered_by_events(native: NativeDriver) -> None:
    with native.current():
        memory = DeviceMemory(native)
        first, then = native.create_stream(), native.create_stream()
        block = memory.pool.take(64, first)
        native.fill(block.address, 5, 64, first)
        memory.order(first, then)
        native.fill(block.address, 6, 64, then)
        memory.order(then, first)
        back = np.empty(64, np.uint8)
        memory.staging.download(block.address, back, first)
    assert back.tolist() == [6] * 64


def test_threads_have_streams_of_their_own(native: NativeDriver) -> None:
    memory = DeviceMemory(native)
    found = []

    def ask() -> None:
        with native.current():
            found.append((memory.stream(), memory.stream()))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(a == b for a, b in found)
    assert len({a for a, _ in found}) == 8


# --- which way is taken -----------------------------------------------------------------------------------

PROBE = """
    import os, sys
    sys.path[:0] = {path!r}
    hidden = {hidden!r}
    for name in hidden:
        sys.modules[name] = None
    import numpy as np
    import cuda_helpers as helpers
    from polyfuse.runtime.cuda.executable import CudaExecutable
    from polyfuse.runtime.cuda.open import cuda_available, open_driver
    assert cuda_available()
    driver = open_driver()
    assert open_driver() is driver
    if not (child := os.fork()):
        try:
            open_driver()
        except Exception as error:
            os._exit(error.code != "PF747")
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    print(driver.describe())
    x = np.arange(1000, dtype=np.float32)
    for code, name, want in (
        (helpers.scale_code(), "scale", 3 * x),
        (helpers.workspace_code(), "plus_one", x + 2),
    ):
        y = np.zeros_like(x)
        f = CudaExecutable(code, helpers.image(), {{"N": 1000}}, driver)
        arrays = {{"x": x, "y": y, "a": np.float32(3)}}
        f.run(arrays)
        assert np.array_equal(y, want), name
        device = f.device_output(helpers.Y)
        given = f.device_output(helpers.X).set(x)
        f.bind({{"x": given, "y": device, "a": np.float32(3)}}, graph=True)()
        assert np.array_equal(device.get(), want), name
    both = np.zeros(2, np.float32)
    CudaExecutable(helpers.barrier_code(), helpers.image(), {{}}, driver).run({{"p": both, "q": both}})
    assert both.tolist() == [2, 4]
    try:
        driver.current().__enter__()
        driver.allocate(1 << 40)
    except MemoryError as error:
        print(error.code)
    print("done")
"""


def _probe(
    folder: Path, hidden: tuple[str, ...], python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(PROBE).format(path=[str(ROOT), str(ROOT / "tests" / "helpers")], hidden=hidden)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, timeout=100)


def test_the_way_without_packages() -> None:
    done = _probe(helpers.stub_path().parent, ("pycuda", "cuda"))
    assert done.returncode == 0, done.stderr
    assert "through ctypes (libcuda.so.1); without PyCUDA (not installed)" in done.stdout
    assert done.stdout.split()[-2:] == ["PF742", "done"]


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")
def test_the_way_through_nvidias_bindings() -> None:
    pytest.importorskip("cuda.bindings")
    done = _probe(helpers.stub_path().parent, ("pycuda",))
    assert done.returncode == 0, done.stderr
    assert "through cuda-bindings" in done.stdout
    assert done.stdout.split()[-2:] == ["PF742", "done"]


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA is not installed")
def test_the_way_through_pycuda(tmp_path: Path) -> None:
    done = _probe(_stub_for_pycuda(tmp_path), ("cuda",))
    assert done.returncode == 0, done.stderr
    assert "PyCUDA for CUDA" in done.stdout
    assert done.stdout.split()[-2:] == ["PF742", "done"]
    assert "WARNING" not in done.stderr


def _stub_for_pycuda(folder: Path) -> Path:
    """The stub, with the functions besides that PyCUDA's extension names and never calls here."""
    (extension,) = Path(str(importlib.util.find_spec("pycuda").submodule_search_locations[0])).glob(
        "_driver*.so"
    )  # type: ignore[union-attr,index]
    asked = subprocess.run(["nm", "-D", "--undefined-only", str(extension)], capture_output=True, text=True)
    given = subprocess.run(
        ["nm", "-D", "--defined-only", str(helpers.stub_path())], capture_output=True, text=True
    )
    wanted = {line.split()[-1] for line in asked.stdout.splitlines() if line.split()[-1].startswith("cu")}
    missing = wanted - {line.split()[-1] for line in given.stdout.splitlines()}
    source = folder / "stub.cpp"
    rest = "\n".join(f'extern "C" int {name}() {{ return 801; }}' for name in sorted(missing))
    source.write_text(f'#include "{helpers.SOURCES / "libcuda_stub.cpp"}"\n{rest}\n')
    return helpers.build(source, "libcuda.so.1", "-Wl,-soname,libcuda.so.1").parent


def test_no_gpu_here_is_an_answer() -> None:
    code = "from polyfuse.runtime.cuda.open import cuda_available; print(cuda_available())"
    environment = {**os.environ, "LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() in ("False", "True"), done.stderr


def test_importing_polyfuse_loads_none_of_it() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"  # hooks that packages of the machine install
        "import polyfuse; print([m for m in set(sys.modules) - before if 'cuda' in m])"
    )
    known = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
