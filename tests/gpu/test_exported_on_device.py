"""Operators exported for a GPU: loaded back, and called from C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf

torch: Any = pytest.importorskip("torch")

NORM = """op norm(x: f32[T, H], g: f32[H], eps: f32 = 1e-5) -> (y: f32[T, H], s: f32[H]) {
  m[t] = sum[h](x[t, h]) / H
  v[t] = sum[h]((x[t, h] - m[t]) ** 2) / H
  y[t, h] = (x[t, h] - m[t]) * rsqrt(v[t] + eps) * g[h]
  s[h] = sum[t](y[t, h])
}"""


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "norm.json"
    pf.export(pf.compile(NORM, target="cuda"), path)
    return path


def wanted(x: Any, g: Any) -> tuple[Any, Any]:
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], g)
    return y, y.sum(0)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1000, 768), (64, 4099), (7, 30_000)])
def test_results_are_those_of_the_function(norm: Path, shape: tuple[int, int]) -> None:
    f = pf.load(norm)
    x, g = torch.randn(*shape, device="cuda"), torch.randn(shape[1], device="cuda")
    for a in (x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, : shape[1]]):
        y, s = f(a, g)
        assert y.device == x.device
        torch.testing.assert_close(y, wanted(x, g)[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(s, wanted(x, g)[1], rtol=1e-2, atol=2e-2)


def test_arrays_of_the_host(norm: Path) -> None:
    x, g = torch.randn(33, 70), torch.randn(70)
    y, _ = pf.load(norm)(x.numpy(), g.numpy())
    assert type(y) is np.ndarray
    np.testing.assert_allclose(y, wanted(x, g)[0].numpy(), rtol=1e-3, atol=1e-3)


def test_a_c_program_launches_it(norm: Path, tmp_path: Path) -> None:
    compiler, nvcc = shutil.which("gcc") or shutil.which("cc"), shutil.which("nvcc")
    nvcc = nvcc or "/usr/local/cuda/bin/nvcc"
    include = Path(nvcc).resolve().parents[1] / "include"
    driver = next(iter(sorted(Path("/").glob("usr/l*/**/libcuda.so.1"))), None)
    if compiler is None or driver is None or not (include / "cuda.h").is_file():
        pytest.skip("no C compiler, no header of CUDA or no driver to link with")
    program = tmp_path / "main"
    source = Path(__file__).with_name("norm_main.c")
    flags = [f"-I{norm.parent}", f"-I{include}", str(driver), "-lm", "-o", str(program)]
    subprocess.run([compiler, "-std=c99", "-Wall", str(source), *flags], check=True)
    done = subprocess.run([program, norm.parent], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
