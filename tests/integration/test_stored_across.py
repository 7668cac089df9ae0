"""Results that lanes store across memory: right to the bit at every size, type and place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf

TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "i8": np.int8,
}
SHAPES = ((64, 64), (65, 63), (130, 5), (257, 131), (33, 700), (4, 300), (300, 3), (1, 9), (0, 4), (512, 96))
RNG = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], kind: str = "f32") -> Any:
    if kind[0] == "i":
        return RNG.integers(-100, 100, shape).astype(TYPES[kind])
    return RNG.standard_normal(shape).astype(TYPES[kind])


def compiled(text: str, threads: int = 2) -> Any:
    return pf.compile(text, target="cpu", options=pf.Options(threads=threads))


def same(found: Any, wanted: Any, what: object = "") -> None:
    assert found.dtype == wanted.dtype
    bits = (np.ascontiguousarray(a).view("u1") for a in (found, wanted))
    np.testing.assert_array_equal(*bits, str(what))


LARGEST = "op f(x: {0}[I, K], z: {0}[I, K]) -> (y: {0}[K, I]) {{ y[k, i] = max(x[i, k], z[i, k]) }}"


@pytest.mark.parametrize("kind", TYPES)
def test_free_loops(kind: str) -> None:
    f = compiled(LARGEST.format(kind))
    for shape in SHAPES if kind in ("f32", "i8") else SHAPES[1:4]:
        x, z = numbers(shape, kind), numbers(shape, kind)
        same(f(x, z), np.maximum(x, z).T, shape)


ROWS = """op f(x: {0}[I, K]) -> (y: {0}[K, I]) {{
  m[i] = max[k](x[i, k])
  y[k, i] = min(x[i, k] - m[i], x[i, k])
}}"""


@pytest.mark.parametrize("kind", TYPES)
def test_whole_rows(kind: str) -> None:
    f = compiled(ROWS.format(kind))
    for shape in SHAPES if kind in ("f32", "i8") else SHAPES[1:4]:
        if shape[1]:
            x = numbers(shape, kind)
            wanted = np.minimum(x - x.max(1, keepdims=True, initial=-(2**7)), x)
            same(f(x), wanted.T, shape)


PIECES = """op f(x: f32[I, K], z: f32[I, K]) -> (y: f32[K, I]) {
  y[k, i] = max(max(x[i, max(k - 1, 0)], x[i, min(k + 1, K - 1)]), z[i, k])
}"""


@pytest.mark.parametrize("shape", [(64, 512), (300, 65), (33, 33), (100, 2), (200, 18), (129, 1000)])
def test_pieces_of_a_loop_fill_one_tile(shape: tuple[int, int]) -> None:
    x, z = numbers(shape), numbers(shape)
    around = np.pad(x, ((0, 0), (1, 1)), mode="edge")
    wanted = np.maximum(np.maximum(around[:, :-2], around[:, 2:]), z)
    same(compiled(PIECES)(x, z), wanted.T)


# Where results are stored, and what NumPy makes of the values [B, I, K].
PLACES = {
    "y: f32[B, K, I]) { y[b, k, i]": lambda v: v.transpose(0, 2, 1),
    "y: f32[K, B, I]) { y[k, b, i]": lambda v: v.transpose(2, 0, 1),
    "y: f32[K, I, B]) { y[k, i, b]": lambda v: v.transpose(2, 1, 0),
    "y: f32[I, K, B]) { y[i, k, b]": lambda v: v.transpose(1, 2, 0),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(3, 70, 90), (2, 128, 64), (40, 5, 33), (17, 64, 16)])
def test_places_of_three_dims(place: str, shape: tuple[int, ...]) -> None:
    x, z = numbers(shape), numbers(shape)
    where = " for b in 0..B, i in 0..I, k in 0..K"
    f = compiled(
        f"op f(x: f32[B, I, K], z: f32[B, I, K]) -> ({place} = max(x[b, i, k], z[b, i, k]){where} }}"
    )
    same(f(x, z), PLACES[place](np.maximum(x, z)))
    text = f"""op f(x: f32[B, I, K]) -> ({place.replace("{", "{ m[b, i] = max[k](x[b, i, k]);")} ="""
    g = compiled(f"{text} x[b, i, k] - m[b, i]{where} }}")
    same(g(x), PLACES[place](x - x.max(2, keepdims=True)))


def test_several_results_in_parts() -> None:
    f = compiled("""op f(x: f32[I, K], z: f32[I, K])
    -> (y: f32[K, 2, I], w: f16[K, I], v: f32[I, K], u: f32[K, I]) {
  m[i] = max[k](x[i, k])
  y[k, 0, i] = x[i, k] - m[i]
  y[k, 1, i] = z[i, k] * 2.0
  w[k, i] = f16(max(x[i, k], z[i, k]))
  v[i, k] = min(x[i, k], z[i, k])
  u[0, i] = m[i]
  u[k, i] = x[i, k - 1] - m[i] for k in 1..K
}""")
    for shape in ((128, 64), (77, 50), (300, 9)):
        x, z = numbers(shape), numbers(shape)
        y, w, v, u = f(x, z)
        m = x.max(1, keepdims=True)
        same(y[:, 0], (x - m).T)
        same(y[:, 1], (z * 2).T)
        same(w, np.maximum(x, z).T.astype("f2"))
        same(v, np.minimum(x, z))
        same(u, np.hstack([m, (x - m)[:, :-1]]).T)


def test_a_result_that_later_phases_read() -> None:
    f = compiled("""op f(x: f32[I, K]) -> (y: f32[K, I], s: f32[I]) {
  m[i] = max[k](x[i, k])
  y[k, i] = x[i, k] - m[i]
  s[i] = min[k](y[k, i])
}""")
    for shape in ((128, 64), (77, 50), (300, 9)):
        x = numbers(shape)
        y, s = f(x)
        v = x - x.max(1, keepdims=True)
        same(y, v.T)
        same(s, v.min(1))


def test_guarded_and_added_results() -> None:
    f = compiled(
        """op f(x: f32[I, K], j: i64[I]) -> (y: f32[K, I], z: f32[K, I], t: f32[K, J]) {
  m[i] = max[k](x[i, k])
  y[k, i] = x[i, k] - m[i] if k > i % 3 else m[i]
  z[k, i] = x[i, max(k - 1, 0)] if k > 0 else 0.0
  t[k, j[i]] max= x[i, k]
}""".replace("t: f32[K, J]", "t: f32[K, 8]")
    )
    for shape in ((128, 64), (77, 50)):
        x, j = numbers(shape), RNG.integers(0, 8, shape[0])
        y, z, t = f(x, j)
        m = x.max(1, keepdims=True)
        inside = np.arange(shape[1])[None] > np.arange(shape[0])[:, None] % 3
        same(y, np.where(inside, x - m, m).T)
        same(z, np.where(np.arange(shape[1]) > 0, np.roll(x, 1, axis=1), np.float32(0)).T)
        for k in range(8):
            same(t[:, k], x[j == k].max(0))


def test_strided_results() -> None:
    f = compiled(ROWS.format("f32"))
    x = numbers((130, 70))
    wanted = np.minimum(x - x.max(1, keepdims=True), x).T
    for step in ((1, 2), (2, 1), (1, -1), (-1, 1)):
        room = np.zeros((140, 260), np.float32)
        out = room[:: step[0], :: step[1]][:70, :130]
        f(x, out=out)
        same(np.ascontiguousarray(out), wanted, step)
        assert np.count_nonzero(room) == np.count_nonzero(wanted)


def test_last_phases_along_the_rows() -> None:
    f = compiled("""op f(x: f32[I, K], b: f32[C]) -> (y: f32[C, I], z: f32[I]) {
  m[i] = min[k](x[i, k])
  z[i] = m[i] * 2.0
  y[c, i] = max(z[i], b[c])
}""")
    for shape, n in (((1024, 64), 70), ((1030, 33), 5), ((130, 9), 100), ((7, 9), 3)):
        x, b = numbers(shape), numbers((n,))
        y, z = f(x, b)
        same(z, x.min(1) * 2)
        same(y, np.maximum(x.min(1)[None] * 2, b[:, None]))
