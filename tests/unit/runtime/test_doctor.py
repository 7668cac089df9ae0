"""The doctor: what it finds, with and without a compiler, and that it never raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from polyfuse.runtime.cuda import compiler as cuda_find
from polyfuse.runtime.cuda import driver_api
from polyfuse.runtime.cuda.compiler import CudaCompiler
from polyfuse.runtime.machine import doctor
from polyfuse.runtime.machine.doctor import Finding


def _by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {f"{f.group}.{f.name}": f for f in findings}


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder))
    return folder


def test_a_good_machine(private_cache: Path) -> None:
    found = _by_name(doctor.examine())
    assert [f.name for f in found.values() if f.state == "missing"] == []
    assert found["Software.numpy"].detail[0].isdigit()
    assert found["Compiler.C++"].state == "ok"
    assert found["Cache.folder"].detail == str(private_cache)
    assert found["Targets.cpu"].state == "ok"
    assert found["Environment.POLYFUSE_CACHE_DIR"].detail == str(private_cache)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    findings = doctor.examine()
    found = _by_name(findings)
    compiler = found["Compiler.C++"]
    assert compiler.state == "missing"
    assert "PF701" in compiler.detail
    assert compiler.remedy is not None and "apt install g++" in compiler.remedy
    assert found["Targets.cpu"].state == "note"
    assert found["Targets.interpret"].state == "ok"
    assert not doctor.can_measure(findings)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no_such_package"))
    found = _by_name(doctor.examine())["Software.no_such_package"]
    assert (found.state, found.remedy) == ("missing", "pip install no-such-package")


def _cuda_is(
    monkeypatch: pytest.MonkeyPatch, nvrtc: bool, nvcc: bool, api: type | None
) -> dict[str, Finding]:
    """The findings on a machine that has these parts of CUDA."""
    of_wheel = CudaCompiler("nvrtc", "/a/libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12 12.9.86")
    monkeypatch.setattr(cuda_find, "find_nvrtc", lambda: of_wheel if nvrtc else None)
    monkeypatch.setattr(
        cuda_find, "find_nvcc", lambda: CudaCompiler("nvcc", "/b/nvcc", "/b/nvcc") if nvcc else None
    )
    monkeypatch.setattr(driver_api, "LIBRARIES", ("libcuda_nowhere.so.1",))
    if api is not None:
        monkeypatch.setattr(driver_api, "CtypesApi", api)
    return _by_name(doctor.examine())


class OneDevice:
    """A driver with one GPU."""

    def function(self, name: str) -> Callable[..., int]:
        return {
            "cuInit": lambda flags: 0,
            "cuDriverGetVersion": lambda: 13000,
            "cuDeviceGetCount": lambda: 1,
            "cuDeviceGet": lambda index: index,
        }[name]

    def device_name(self, device: int) -> str:
        return "NVIDIA H200"


def test_no_cuda_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _cuda_is(monkeypatch, nvrtc=False, nvcc=False, api=None)
    assert "PF740" in found["CUDA.driver"].detail and found["CUDA.driver"].remedy is not None
    assert found["CUDA.NVRTC"].remedy == "pip install '.[cuda-compile]' in a clone of polyfuse (needs no GPU)"
    assert "nothing can compile" in found["CUDA.NVRTC"].detail
    if found["CUDA.pycuda"].state == "info":
        assert found["CUDA.pycuda"].remedy == "pip install '.[cuda]' in a clone of polyfuse"
    assert {f.state for f in found.values() if f.group == "CUDA"} <= {"info", "ok"}
    assert found["Targets.cuda"].state == "info"
    assert doctor.can_measure(list(found.values()))  # a machine without a GPU lacks nothing


def test_cuda_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _cuda_is(monkeypatch, nvrtc=True, nvcc=False, api=None)
    assert found["CUDA.NVRTC"].detail == "nvidia-cuda-nvrtc-cu12 12.9.86: /a/libnvrtc.so.12"
    assert found["CUDA.nvcc"].state == "info"
    assert found["Targets.cuda"].detail.startswith("compiles for any GPU")
    found = _cuda_is(monkeypatch, nvrtc=False, nvcc=True, api=None)
    assert "nvcc compiles kernels instead" in found["CUDA.NVRTC"].detail
    assert found["Targets.cuda"].detail.startswith("compiles for any GPU")


def test_cuda_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _cuda_is(monkeypatch, nvrtc=True, nvcc=True, api=OneDevice)
    assert found["CUDA.driver"].detail == "for CUDA 13.0: NVIDIA H200"
    assert found["Targets.cuda"].state == "ok"
    found = _cuda_is(monkeypatch, nvrtc=False, nvcc=False, api=OneDevice)
    assert found["Targets.cuda"].state == "note"
    assert "needs a compiler (see CUDA)" in found["Targets.cuda"].detail


def test_threads_that_are_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_NUM_THREADS", "many")
    found = _by_name(doctor.examine())["Machine.threads"]
    assert found.state == "missing" and "PF705" in found.detail


def test_a_cache_that_others_can_write(private_cache: Path) -> None:
    private_cache.mkdir()
    private_cache.chmod(0o777)
    found = _by_name(doctor.examine())["Cache.folder"]
    assert found.state == "note" and "others can write to it" in found.detail
    assert found.remedy is not None


def test_json() -> None:
    findings = doctor.examine()
    text = json.dumps(doctor.as_dict(findings, [{"read": 1.0}]))
    back = json.loads(text)
    assert back["software"]["python"]["state"] == "ok"
    assert back["measured"] == [{"read": 1.0}]
    assert "measured" not in doctor.as_dict(findings, [])


@pytest.mark.slow
def test_measurements() -> None:
    rates = doctor.measurements()
    sizes = [r["working_set_bytes"] for r in rates]
    assert sizes == sorted(set(sizes)) and all(r["read"] > 0 for r in rates)
