"""Exported libraries, called from C and loaded back, compute what the functions do that they are from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfuse as pf

Array = np.ndarray[Any, np.dtype[Any]]
EXAMPLES = Path(__file__).parents[2] / "examples" / "exported"


def grid(*shape: int, dtype: Any = np.float32) -> Array:
    return (((np.arange(np.prod(shape, dtype=int)) * 7) % 31 - 15) / 4).astype(dtype).reshape(shape)


def exported(tmp_path: Path, program: str, **more: Any) -> Any:
    pf.export(pf.compile(program, target="cpu", **more), tmp_path / "f.so")
    return pf.load(tmp_path / "f.so")


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "softmax.so"
    assert pf.export("stdlib:softmax", path) == path.with_suffix(".h")
    return path


def test_a_c_program_calls_it(softmax: Path, tmp_path: Path) -> None:
    cc = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if cc is None:
        pytest.skip("there is no C compiler")
    program = tmp_path / "softmax"
    command = [cc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{softmax.parent}"]
    command += [str(EXAMPLES / "softmax.c"), str(softmax), "-lm", "-lpthread", "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    needed = subprocess.run(["ldd", str(softmax)], capture_output=True, text=True).stdout
    assert "python" not in needed and "torch" not in needed


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (5, 7), (64, 128), (3, 129), (2, 5003)])
def test_results_are_those_of_the_function(softmax: Path, shape: tuple[int, int]) -> None:
    f, g = pf.compile("stdlib:softmax", target="cpu"), pf.load(softmax)
    x = grid(*shape)
    for a in (x, x[::-1], np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        np.testing.assert_allclose(g(a), f(x) if a is x else f(np.ascontiguousarray(a)), rtol=2e-6)


def test_another_process_needs_no_compiler(softmax: Path) -> None:
    text = (
        "import sys, numpy as np, polyfuse as pf\n"
        "y = pf.load(sys.argv[1])(np.zeros((3, 4), np.float32))\n"
        "assert (y == 0.25).all(), y\n"
    )
    environment = {"PATH": "", "POLYFUSE_CACHE_DIR": "/nonexistent"}
    subprocess.run([sys.executable, "-c", text, str(softmax)], env=environment, check=True)


def test_sizes_that_the_operator_refuses(softmax: Path) -> None:
    with pytest.raises(pf.ArgumentError, match="PF407"):
        pf.load(softmax)(np.zeros((3, 0), np.float32))


def test_scalars_inout_and_results_of_rank_0(tmp_path: Path) -> None:
    g = exported(
        tmp_path,
        "op f(inout p: f32[N], x: i8[N], a: f64, flag: bool, k: i16 = -3) -> (s: f32) {"
        " p[i] = p[i] * f32(a) + f32(x[i]) + f32(k); s = sum[i](p[i] if flag else 1.0) }",
    )
    p, x = grid(100), grid(100, dtype=np.int8)
    old = p.copy()
    s = g(p, x, 0.5, True)
    np.testing.assert_allclose(p, old * 0.5 + x - 3, rtol=1e-6)
    assert s == old.sum()  # values at entry
    assert g(p, x, 0.5, False, k=7) == 100


def test_values_that_are_overwritten_too_early_are_copied(tmp_path: Path) -> None:
    g = exported(tmp_path, "op f(inout p: f32[N]) { p[i] = p[N - 1 - i] + sum[k](p[k]) }")
    p = grid(50)
    want = p[::-1] + p.sum()
    assert g(p) is None
    np.testing.assert_allclose(p, want, rtol=1e-5)


def test_a_size_of_0_where_there_are_results(tmp_path: Path) -> None:
    g = exported(tmp_path, "op f(x: f32[T, H]) -> (y: f32[T]) { y[t] = sum[h](x[t, h]) + 1.0 }")
    np.testing.assert_array_equal(g(np.zeros((3, 0), np.float32)), [1, 1, 1])
    assert g(np.zeros((0, 3), np.float32)).shape == (0,)


def test_two_sizes_of_0(tmp_path: Path) -> None:
    g = exported(
        tmp_path,
        "op f(x: f32[T, H], w: f32[K]) -> (y: f32[T], z: f32) { y[t] = sum[h](x[t, h]) + sum[k](w[k])\n"
        " z = 3.0 }",
    )
    for t, h, k in ((2, 3, 4), (2, 0, 0), (0, 3, 0), (0, 0, 4), (2, 0, 4)):
        y, z = g(grid(t, h), grid(k))
        np.testing.assert_array_equal(y, grid(t, h).sum(1) + grid(k).sum())
        assert z == 3
    with pytest.raises(pf.ArgumentError, match="PF767"):
        g(grid(0, 0), grid(0))


def test_products_are_computed_without_a_library(tmp_path: Path) -> None:
    g = exported(
        tmp_path,
        "op f(a: f32[M, K], b: f32[K, N]) -> (c: f32[M, N]) { c[i, j] = sum[k](a[i, k] * b[k, j]) }",
        sizes={"K": 40},
    )
    for m, n in ((1, 1), (33, 65), (128, 16)):
        a, b = grid(m, 40), grid(40, n)
        np.testing.assert_allclose(g(a, b), a @ b, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(g(a, np.asfortranarray(b)), a @ b, rtol=1e-4, atol=1e-4)
    with pytest.raises(pf.ArgumentError, match="PF767") as caught:
        g(grid(3, 41), grid(41, 3))
    assert "K = 40" in str(caught.value)


def test_sizes_that_must_be_known(tmp_path: Path) -> None:
    program = "op f[K: size = 2, S: size = K](x: f32[N]) -> (y: f32[(N - K) // S + 1]) {" \
        " y[i] = max[k in 0..K](x[i*S + k]) }"  # fmt: skip
    f = pf.compile(program, target="cpu")
    with pytest.raises(pf.ArgumentError, match="PF766") as caught:
        pf.export(f, tmp_path / "f.so")
    assert "sizes={'S': " in str(caught.value)
    assert not list(tmp_path.iterdir())
    pf.export(f, tmp_path / "f.so", sizes={"S": 3})
    g, x = pf.load(tmp_path / "f.so"), grid(31)
    for k in (1, 3, 4):
        np.testing.assert_array_equal(g(x, S=3, K=k), f(x, S=3, K=k))
    np.testing.assert_array_equal(g(x, K=3), f(x, K=3))
    with pytest.raises(pf.ArgumentError, match="PF767"):
        g(x)


def test_numbers_without_room_for_any_size(tmp_path: Path) -> None:
    program = (
        "op f(x: f32[N, M], seed: u64) -> (y: f32[N, M]) {"
        " y[n, m] = x[n, m] + f32(philox4x32(seed, m, position(n, m), 0) >> 16) }"
    )
    f = pf.compile(program, target="cpu")
    with pytest.raises(pf.ArgumentError, match="PF766"):
        pf.export(f, tmp_path / "f.so")
    pf.export(f, tmp_path / "f.so", sizes={"N": 3, "M": 5})
    np.testing.assert_array_equal(pf.load(tmp_path / "f.so")(grid(3, 5), 7), f(grid(3, 5), 7))


def test_a_library_that_is_written_anew(tmp_path: Path) -> None:
    program = "op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {} * x[i] }}"
    old, new = (exported(tmp_path, program.format(n)) for n in (2, 3))
    np.testing.assert_array_equal(old(grid(4)), 2 * grid(4))
    np.testing.assert_array_equal(new(grid(4)), 3 * grid(4))


@pytest.mark.parametrize(("dtype", "value"), [("f16", 1.5), ("bf16", -2.5), ("u8", 200), ("i64", -(2**40))])
def test_scalars(tmp_path: Path, dtype: str, value: float) -> None:
    g = exported(tmp_path, f"op f(a: {dtype}, n: i32[N]) -> (y: {dtype}[N]) {{ y[i] = a }}")
    assert g(value, np.zeros(3, np.int32)).astype(float).tolist() == [value] * 3


def test_temporaries_and_steps(tmp_path: Path) -> None:
    """Kernels that no layer joins: matrices between them, in memory of the call."""
    program = (
        "op f(x: f32[T, H]) -> (y: f32[T, H]) { m[h] = max[t](x[t, h]); z[t, h] = exp(x[t, h] - m[h]);"
        " s[h] = sum[t](z[t, h]); y[t, h] = z[t, h] / s[h] }"
    )
    g = exported(tmp_path, program, layers=())
    for shape in ((1, 1), (700, 130), (33, 4100)):
        x = grid(*shape)
        z = np.exp(x - x.max(0, keepdims=True))
        for threads in (1, 3):
            assert g.set_threads(threads) == threads
            np.testing.assert_allclose(g(x), z / z.sum(0, keepdims=True), rtol=1e-4)


def test_generics_and_ranks(tmp_path: Path) -> None:
    path, ranks = tmp_path / "deep" / "gelu.so", dict.fromkeys(pf.stdlib.gelu.signature.rank_variables, 3)
    header = pf.export("stdlib:gelu", path, dtypes={"F": "f16"}, ranks=ranks)
    assert "const uint16_t* x" in header.read_text()
    x = grid(3, 4, 5, dtype=np.float16)
    f = pf.compile("stdlib:gelu", target="cpu")
    np.testing.assert_allclose(pf.load(path)(x), f(x), rtol=1e-3)


def test_names_of_c_and_libraries_are_no_trouble(tmp_path: Path) -> None:
    program = "op strlen(double: f32[int], a: f32[int], a_strides: f32) -> (run: f32[int]) {" \
        " run[i] = double[i] * a[i] + a_strides }"  # fmt: skip
    g = exported(tmp_path, program)
    x = grid(9)
    np.testing.assert_array_equal(g(x, x, 1.0), x * x + 1)
    source = tmp_path / "use.c"
    source.write_text('#include "f.h"\nint main(void) { return polyfuse_strlen_set_threads(1) != 1; }\n')
    cc = shutil.which("cc")
    if cc:
        subprocess.run([cc, "-Wall", "-Werror", "-c", str(source), "-o", str(tmp_path / "use.o")], check=True)


def test_checked_indices(tmp_path: Path) -> None:
    program = "op f(x: f32[N], k: i32[M]) -> (y: f32[M]) { y[m] = x[k[m]] }"
    g = exported(tmp_path, program, checked=True)
    assert g(grid(4), np.array([3, 0], np.int32)).tolist() == [grid(4)[3], grid(4)[0]]
    with pytest.raises(pf.ArgumentError, match="PF450"):
        g(grid(4), np.array([4], np.int32))


def test_what_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "f.so"
    for make in (lambda: None, lambda: path.write_text("nothing")):
        make()
        with pytest.raises(pf.ToolchainError, match="PF765"):
            pf.load(path)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    program = "op f(x: f32[N], b: f32[N]?) -> (y: f32[N]) { y[i] = x[i] + b[i] if given(b) else x[i] }"
    elsewhere = pf.compile("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }", target="emulate")
    for f in (elsewhere, pf.compile(program, target="cpu")):
        with pytest.raises(pf.ArgumentError, match="PF766"):
            pf.export(f, tmp_path / "f.so")
    with pytest.raises(pf.ArgumentError, match="PF412"):
        pf.export("stdlib:softmax", tmp_path / "f.so", sizes={"Z": 3})
    pf.export(pf.parse(program).f.without("b"), tmp_path / "f.so")
    assert pf.load(tmp_path / "f.so")(grid(4)).tolist() == grid(4).tolist()
    (tmp_path / "file").write_text("")
    with pytest.raises(pf.ToolchainError, match="PF769"):
        pf.export("stdlib:relu", tmp_path / "file" / "f.so", strides=False)


def test_paths_of_folders_and_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    f = pf.compile("op f(x: f32[4]) -> (y: f32[4]) { y[i] = x[i] }", target="cpu")
    assert pf.export(f, "new/", strides=False) == Path("new/f.h")
    assert sorted(p.name for p in Path("new").iterdir()) == ["f.h", "f.so"]
    Path("there").mkdir()
    assert pf.export(f, Path("there"), strides=False) == Path("there/f.h")
    assert pf.load("there/f.so")(grid(4)).tolist() == grid(4).tolist()
    for wrong, hint in (("", 'as in "f.so"'), ("out/f.h", 'as in "out/f.so"')):
        with pytest.raises(pf.ToolchainError, match="PF769") as caught:
            pf.export(f, wrong, strides=False)
        assert caught.value.diagnostics[0].hint == hint
    assert not Path("out").exists()


def test_the_command_leaves_products_to_the_caller(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyfuse", "build", "stdlib:matmul", "-r", "B=0", "-o", str(tmp_path)]
    command += ["-s", "M=512,N=512,K=512", "--blas"]
    done = subprocess.run([*command, "caller"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "polyfuse_matmul_use_blas" in (tmp_path / "matmul.h").read_text()
    for more, told in (
        (["us"], "nobody computes products so"),
        (["caller", "-t", "cuda"], "is for --target cpu"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        assert done.returncode == 2 and told in " ".join(done.stderr.split())


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "polyfuse", "build", "stdlib:relu", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "relu.h").is_file()
    x = grid(5, 6)
    np.testing.assert_array_equal(pf.load(tmp_path / "relu.so")(x.ravel()).ravel(), np.maximum(x, 0).ravel())


# --- matrix products of the caller --------------------------------------------------------------------------

LINEAR = """op linear[F: float](x: F[T, K], w: F[N, K], b: F[N]) -> (y: F[T, N], z: F[2, T, T]) {
  y[t, n] = sum[k](x[t, k] * w[n, k])
  u[i, t, n] = y[t, n] + F(i) * b[n] for i in 0..2
  z[i, s, t] = sum[n](u[i, s, n] * u[i, t, n])
}"""
BLAS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include "linear.h"

static int calls;
static void single(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                   const float* b, int ldb, float beta, float* c, int ldc) {
  ++calls;
  if (order != 102 || alpha != 1.0f || beta != 0.0f) exit(3);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int l = 0; l < k; ++l)
        sum += (double)a[ta == 111 ? i + l * lda : l + i * lda] * b[tb == 111 ? l + j * ldb : j + l * ldb];
      c[i + j * ldc] = (float)sum;
    }
}
static void wide(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc) {
  (void)order, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda, (void)b;
  (void)ldb, (void)beta, (void)c, (void)ldc;
  exit(4);
}

int main(void) {
  enum { T = 40, K = 50, N = 60 };
  static float x[T * K], w[N * K], b[N], y[T * N], z[2 * T * T];
  for (int k = 0; k < T * K; ++k) x[k] = (float)(k * 7 % 31 - 15);
  for (int k = 0; k < N * K; ++k) w[k] = (float)(k * 5 % 23 - 11);
  for (int k = 0; k < N; ++k) b[k] = (float)(k % 3);
  if (polyfuse_linear(T, K, N, x, NULL, w, NULL, b, NULL, y, z) != POLYFUSE_NO_BLAS) return 1;
  polyfuse_linear_use_blas(single, wide);
  if (polyfuse_linear(T, K, N, x, NULL, w, NULL, b, NULL, y, z) != POLYFUSE_DONE) return 2;
  for (int t = 0; t < T; ++t)
    for (int n = 0; n < N; ++n) {
      double want = 0;
      for (int k = 0; k < K; ++k) want += (double)x[t * K + k] * w[n * K + k];
      if (fabs(y[t * N + n] - want) > 1e-3) return 5;
    }
  printf("%d calls\n", calls);
  return calls == 0;
}
"""


def test_a_c_program_gives_its_matrix_product(tmp_path: Path) -> None:
    cc = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if cc is None:
        pytest.skip("there is no C compiler")
    f, path = pf.compile(LINEAR, target="cpu"), tmp_path / "linear.so"
    header = pf.export(f, path, sizes={"T": 40, "K": 50, "N": 60}, blas="caller")
    assert "Large matrix products of known sizes are computed by what" in header.read_text()
    (tmp_path / "main.c").write_text(BLAS)
    command = [
        cc,
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path}",
        str(tmp_path / "main.c"),
        str(path),
    ]
    subprocess.run([*command, "-lm", "-lpthread", "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stdout)
    pf.export(f, tmp_path / "own.so")
    assert "computed by kernels of the library itself" in (tmp_path / "own.h").read_text()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_a_loaded_library_are_those_of_numpy(tmp_path: Path, dtype: Any) -> None:
    sizes = {"T": 40, "K": 50, "N": 60}
    f, name = pf.compile(LINEAR, target="cpu"), {np.float32: "f32", np.float64: "f64"}[dtype]
    pf.export(f, tmp_path / "f.so", sizes=sizes, dtypes={"F": name}, blas="caller")
    x, w, b = grid(40, 50, dtype=dtype), grid(60, 50, dtype=dtype), grid(60, dtype=dtype)
    y, z = pf.load(tmp_path / "f.so")(x, w, b)
    np.testing.assert_allclose(y, x @ w.T, rtol=1e-5, atol=1e-4)
    u = np.stack([y, y + b])
    np.testing.assert_allclose(z, u @ u.swapaxes(1, 2), rtol=1e-4, atol=1e-2)
    with pytest.raises(pf.ArgumentError, match="PF782"):
        pf.export(f, tmp_path / "f.so", blas="mkl")  # type: ignore[arg-type]
