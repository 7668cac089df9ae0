"""Operators exported for a GPU: loaded back they compute what the functions do, and the C of their headers
launches the same. A stand-in is the GPU; its machine code is the source, which the emulator runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda_helpers
import numpy as np
import pytest
from gpu_stand_ins import EmulatingDriver, Torch, tensor, use

import polyfuse as pf
from polyfuse.codegen.cuda import multi_kernel
from polyfuse.diagnostics import DeviceError
from polyfuse.driver import export, loaded
from polyfuse.runtime.cuda.compiler import Cubin

Array = np.ndarray[Any, np.dtype[Any]]

CHAIN = """op chain(x: f32[T, H], a: f32 = 2.0) -> (y: f32[H, T], z: f32) {
  b[t, h] = x[t, h] + a
  c[h] = sum[t](b[t, h])
  y[h, t] = b[t, h] - c[h]
  z = sum[h](c[h])
}"""
UPDATE = """op update(inout p: f32[N], x: i8[N], flag: bool) {
  p[i] = p[i] + p[N - 1 - i] + (f32(x[i]) if flag else 0.0)
}"""


def whole(*shape: int, dtype: Any = np.float32) -> Array:
    return ((np.arange(np.prod(shape)) * 7) % 31 - 15).astype(dtype).reshape(shape)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> EmulatingDriver:
    found = use(monkeypatch)
    monkeypatch.setattr(
        export, "compile_cuda", lambda source, *_, **__: Cubin(source.encode(), "", {}, "", "none")
    )
    monkeypatch.setattr(loaded, "open_driver", lambda: found)
    return found


@pytest.fixture
def torch(driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch) -> Torch:
    module = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def exported(tmp_path: Path, program: Any, op: str | None = None, **more: Any) -> Any:
    function = pf.compile(program, op, target="cuda", **more)
    header = pf.export(function, tmp_path / "f.json")
    assert header == tmp_path / "f.h" and (tmp_path / "f.0.cubin").is_file()
    return pf.load(tmp_path / "f.json")


def test_it_computes_what_the_function_does(tmp_path: Path, driver: EmulatingDriver, torch: Torch) -> None:
    g = exported(tmp_path, CHAIN, layers=())
    for t, h in ((3, 5), (1, 1), (70, 30), (2, 200), (0, 4)):
        x = whole(t, h)
        b = x + 3
        for a in (tensor(driver, x), x, tensor(driver, x.T.copy()).t()):
            y, z = g(a, 3.0)
            assert type(y) is (np.ndarray if a is x else type(a))
            np.testing.assert_array_equal(getattr(y, "elements", y), (b - b.sum(0)).T)
            assert getattr(z, "elements", z) == b.sum()
    assert "chain" in repr(g) and g.set_threads(3) == 1 and any("any strides" in v for v in g.variants)


def test_parameters_are_updated(tmp_path: Path, driver: EmulatingDriver, torch: Torch) -> None:
    g = exported(tmp_path, UPDATE)
    for n in (1, 9, 100):
        x = whole(n, dtype=np.int8)
        for flag in (True, False):
            p = tensor(driver, whole(n))
            assert g(p, tensor(driver, x), flag) is None
            np.testing.assert_array_equal(p.elements, whole(n) + whole(n)[::-1] + x * flag)
    with pytest.raises(pf.ArgumentError, match="PF405"):
        g(tensor(driver, whole(4)), tensor(driver, whole(5, dtype=np.int8)), True)


def test_sizes_without_kernels(tmp_path: Path, driver: EmulatingDriver, torch: Torch) -> None:
    g = exported(tmp_path, "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] }", sizes={"H": 4})
    np.testing.assert_array_equal(g(tensor(driver, whole(9, 4))).elements, 2 * whole(9, 4))
    with pytest.raises(pf.ArgumentError, match="PF767") as caught:
        g(tensor(driver, whole(9, 5)))
    assert "H = 4" in str(caught.value)
    pf.export(pf.compile(pf.stdlib, "softmax", target="cuda"), tmp_path / "s.json")
    with pytest.raises(pf.ArgumentError, match="PF407"):
        pf.load(tmp_path / "s.json")(tensor(driver, whole(3, 0)))


def test_results_into_memory_of_the_caller(tmp_path: Path, driver: EmulatingDriver, torch: Torch) -> None:
    g = exported(tmp_path, "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1.0 }")
    y = tensor(driver, whole(9))
    assert g(tensor(driver, whole(9)), out=y) is y
    np.testing.assert_array_equal(y.elements, whole(9) + 1)


def test_what_cannot_be_exported_so(
    tmp_path: Path, driver: EmulatingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = "op pick(x: f32[N], at: i64[M]) -> (y: f32[M]) { y[m] = x[at[m]] }"
    with pytest.raises(pf.ArgumentError, match="checked=True"):
        pf.export(pf.compile(pick, target="cuda", checked=True), tmp_path / "f.json")
    monkeypatch.setattr(multi_kernel, "MOST_PASSED", 8)
    params = ", ".join(f"inout p{k}: f32[N{k}], g{k}: f32[N{k}]" for k in range(6))
    body = "\n".join(f"p{k}[i] = p{k}[i] - g{k}[i]" for k in range(6))
    with pytest.raises(pf.ArgumentError, match="more arguments"):
        many = pf.compile(f"op many({params}) {{ {body} }}", target="cuda")
        pf.export(many, tmp_path / "f.json", sizes={f"N{k}": 9 for k in range(6)})


def test_files_that_are_none(tmp_path: Path, driver: EmulatingDriver) -> None:
    file = tmp_path / "f.json"
    for text in ("", "{}", "[]", '{"variants": [{"cubin": "none"}]}', '{"variants": []}'):
        file.write_text(text)
        with pytest.raises(pf.ToolchainError, match="PF765"):
            pf.load(file)
    exported(tmp_path, CHAIN)
    about = json.loads(file.read_text())
    for arch in ("sm_80", "sm_100", "sm_95"):
        file.write_text(json.dumps({**about, "arch": arch}))
        with pytest.raises(DeviceError, match="PF781"):
            pf.load(file)


# --- the header ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiler() -> str:
    found = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if found is None or not cuda_helpers.CUDA_HEADER.is_file():
        pytest.skip("there is no C compiler, or no header of CUDA")
    return found


def test_c_launches_the_same(tmp_path: Path, driver: EmulatingDriver, torch: Torch, compiler: str) -> None:
    g = exported(tmp_path, CHAIN, layers=())
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    flags += [f"-I{folder}" for folder in (tmp_path, cuda_helpers.CUDA_HEADER.parent)]
    program = tmp_path / "main"
    source = cuda_helpers.SOURCES / "chain_main.c"
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    for t, h, turned in ((3, 5, False), (70, 30, False), (2, 5000, False), (6, 40, True)):
        x = tensor(driver, whole(h, t)).t() if turned else tensor(driver, whole(t, h))
        before = len(driver.launches)
        g(x, 3.0)
        launched = driver.launches[before:]
        wanted = [
            (r.function, r.grid, *r.block, r.shared, int(r.cooperative), *r.values[:2]) for r in launched
        ]
        arguments = [str(tmp_path), str(t), str(h), *(["turned"] if turned else [])]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "loaded 0" in done.stdout and "done 0" in done.stdout, done.stdout
        lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("launch")]
        assert [(name, *map(int, numbers)) for name, *numbers in lines] == wanted
        assert "without 6" in done.stdout, "workspace is needed"


def test_the_header_is_c_for_many_operators(tmp_path: Path, driver: EmulatingDriver, compiler: str) -> None:
    for k, op in enumerate(("layer_norm_backward", "adamw", "cross_entropy", "segment_softmax")):
        header = pf.export(pf.compile(pf.stdlib, op, target="cuda"), tmp_path / f"f{k}.json")
        command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-x", "c"]
        command += [f"-I{cuda_helpers.CUDA_HEADER.parent}", "-fsyntax-only", str(header)]
        subprocess.run(command, check=True)


def test_the_command_writes_it(tmp_path: Path) -> None:
    """With the compiler that is here, for a GPU that is not."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    command = [
        sys.executable,
        "-m",
        "polyfuse",
        "build",
        "stdlib:relu",
        "--target",
        "cuda",
        "--device",
        "sm_90",
    ]
    done = subprocess.run([*command, "-o", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "relu.json" in done.stdout, done.stdout + done.stderr
    about = json.loads((tmp_path / "relu.json").read_text())
    assert about["arch"] == "sm_90" and about["variants"][0]["cubin"] == "relu.0.cubin"
    assert (tmp_path / "relu.0.cubin").read_bytes().startswith(b"\x7fELF")
    command[6] = "emulate"
    refused = subprocess.run([*command, "-o", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2 and "not for emulate" in refused.stderr
