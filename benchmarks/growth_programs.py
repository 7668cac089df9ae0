"""Programs that grow: n steps of one kind, for `benchmarks.compile_growth` and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Family:
    """`text` of n is the operator `f`; `start` the least n of a measurement."""

    text: Callable[[int], str]
    sizes: Sizes
    start: int
    about: str
    wrong: bool = False  # is it a file of errors?
    target: str = "cpu"


def _op(params: str, results: str, lines: Iterable[str]) -> str:
    return "\n".join([f"op f({params}) -> ({results}) {{", *lines, "}"])


def _chain(params: str, result: str, n: int, step: Callable[[int, str], list[str]], last: str) -> str:
    """Steps of which each takes what the one before gives: `step(k, before)`, whose result is `a<k>`."""
    lines, before = list[str](), "x"
    for k in range(n):
        lines += step(k, before)
        before = f"a{k}"
    return _op(params, result, [*lines, last.format(before)])


def stencils(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [f"a{k}[i] = ({a}[max(i - 1, 0)] + {a}[i] + {a}[min(i + 1, N - 1)]) * 0.3"]

    return _chain("x: f32[N]", "y: f32[N]", n, step, "y[i] = {}[i]")


def sums(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [f"a{k} = sum[i](x[i] - {a if k else '0.5'})"]

    return _chain("x: f32[N]", "y: f32", n, step, "y = {}")


def row_sums(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [f"a{k}[r] = sum[i](x[r, i] - {a + '[r]' if k else '0.5'})"]

    return _chain("x: f32[R, N]", "y: f32[R]", n, step, "y[r] = {}[r]")


def layer_norms(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [
            f"m{k}[r] = sum[i]({a}[r, i]) / N",
            f"v{k}[r] = sum[i](({a}[r, i] - m{k}[r]) ** 2) / N",
            f"a{k}[r, i] = ({a}[r, i] - m{k}[r]) * rsqrt(v{k}[r] + 1e-5)",
        ]

    return _chain("x: f32[R, N]", "y: f32[R, N]", n, step, "y[r, i] = {}[r, i]")


def matvecs(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [f"a{k}[i] = sum[j](w[i, j] * {a}[j])"]

    return _chain("x: f32[N], w: f32[N, N]", "y: f32[N]", n, step, "y[i] = {}[i]")


def statements(n: int) -> str:
    def step(k: int, a: str) -> list[str]:
        return [f"a{k}[i] = {a}[i] * 0.5 + {k}.0"]

    return _chain("x: f32[N]", "y: f32[N]", n, step, "y[i] = {}[i]")


def perceptron(n: int) -> str:
    """Layers of a matrix product, a bias and a rectifier."""

    def step(k: int, a: str) -> list[str]:
        return [
            f"m{k}[i, j] = sum[h]({a}[i, h] * w{k}[h, j])",
            f"a{k}[i, j] = max(m{k}[i, j] + b{k}[j], 0.0)",
        ]

    weights = [f"w{k}: f32[N, N], b{k}: f32[N]" for k in range(n)]
    return _chain(", ".join(["x: f32[R, N]", *weights]), "y: f32[R, N]", n, step, "y[i, j] = {}[i, j]")


def pieces(n: int) -> str:
    """The concatenation of n tensors."""
    params = ", ".join(f"x{k}: f32[N]" for k in range(n))
    lines = (f"y[i] = x{k}[i - {k} * N] for i in {k} * N..{k + 1} * N" for k in range(n))
    return _op(params, f"y: f32[{n} * N]", lines)


def pieces_of_rows(n: int) -> str:
    """The concatenation of n tensors along their rows."""
    params = ", ".join(f"x{k}: f32[R, N]" for k in range(n))
    lines = (f"y[r, i] = x{k}[r, i - {k} * N] for i in {k} * N..{k + 1} * N" for k in range(n))
    return _op(params, f"y: f32[R, {n} * N]", lines)


def scatters(n: int) -> str:
    lines = (f"y[at[i]] += x[i] * {k}.5" for k in range(n))
    params = "x: f32[N], at: i32[N], z: f32[M]"
    return _op(params, "y: f32[M]", ["y[j] = z[j] * 2.0", *lines])


def results(n: int) -> str:
    """n results, and the sums of each."""
    named = ", ".join(f"y{k}: f32[R, N], s{k}: f32[R]" for k in range(n))
    lines = (f"y{k}[r, i] = x[r, i] * {k}.5\ns{k}[r] = sum[i](y{k}[r, i])" for k in range(n))
    return _op("x: f32[R, N]", named, lines)


def arms(n: int) -> str:
    """An index that is a maximum of n numbers, within an extent that is one of n sizes."""
    numbers = ", ".join(["i", *(f"N0 - {k} - {k * k} * i" for k in range(1, n))])
    extents = ", ".join(f"N{k}" for k in range(n))
    params = ", ".join(f"x{k}: f32[N{k}]" for k in range(n))
    high, extent = (f"max({x})" if n > 1 else x for x in (numbers, extents))
    return _op(params, f"y: f32[{extent}]", [f"y[i] = x0[min({high}, N0 - 1)] for i in 0..{extent}"])


def tiles(n: int) -> str:
    """A matrix of n tiles."""
    wide = 4
    lines = (
        f"y[i, j] = x[i, j] * {k}.5 for i in {k // wide} * M..{k // wide + 1} * M, "
        f"j in {k % wide} * M..{k % wide + 1} * M"
        for k in range(wide * -(-n // wide))
    )
    shape = f"f32[{-(-n // wide)} * M, {wide} * M]"
    return _op(f"x: {shape}", f"y: {shape}", lines)


def errors(n: int) -> str:
    """A name that is not known in each line."""
    return _op("x: f32[N]", "y: f32[N]", [*(f"a{k}[i] = b{k}[i]" for k in range(n)), "y[i] = x[i]"])


ROWS = {"R": 256, "N": 256}
FAMILIES: Mapping[str, Family] = {
    "stencils": Family(stencils, {"N": 100}, 4, "steps of a clamped stencil"),
    "sums": Family(sums, {"N": 1000}, 8, "sums that each need the one before"),
    "row sums": Family(row_sums, ROWS, 8, "sums of rows that each need the one before"),
    "layer norms": Family(layer_norms, ROWS, 4, "normalised rows, again and again"),
    "matvecs": Family(matvecs, {"N": 256}, 8, "products of a matrix and a vector"),
    "pieces": Family(pieces, {"N": 64}, 16, "pieces of one tensor"),
    "pieces of rows": Family(pieces_of_rows, {"R": 128, "N": 64}, 16, "pieces of rows of one tensor"),
    "scatters": Family(scatters, {"N": 1000, "M": 100}, 8, "scatters onto one tensor"),
    "tiles": Family(tiles, {"M": 16}, 16, "tiles of a matrix"),
    "arms": Family(arms, {f"N{k}": 100 + k for k in range(256)}, 12, "arms of an index and of an extent"),
    "results": Family(results, {"R": 64, "N": 64}, 16, "results, and sums of them"),
    "statements": Family(statements, {"N": 6400}, 64, "elementwise statements"),
    "layers on a GPU": Family(perceptron, {"R": 32, "N": 64}, 4, "layers of a perceptron", target="emulate"),
    "errors": Family(errors, {}, 64, "errors in a file", wrong=True),
}

# --- a transformer ------------------------------------------------------------------------------------------

MODEL = {"T": 128, "D": 256, "H": 4, "E": 64, "F": 1024}
_WEIGHTS = (
    "g1: f32[D], c1: f32[D], wq: f32[D, H, E], bq: f32[H, E], wk: f32[D, H, E], bk: f32[H, E], "
    "wv: f32[D, H, E], bv: f32[H, E], wo: f32[H, E, D], bo: f32[D], g2: f32[D], c2: f32[D], "
    "wg: f32[D, F], wu: f32[D, F], bu: f32[F], wd: f32[F, D], bd: f32[D]"
)
# One layer of 40 operators; a name that ends in _ has the number of its layer behind it.
_LAYER = """
m1_[t] = sum[d](IN[t, d]) / D
v1_[t] = sum[d]((IN[t, d] - m1_[t]) ** 2) / D
r1_[t] = rsqrt(v1_[t] + 1e-5)
n1_[t, d] = (IN[t, d] - m1_[t]) * r1_[t]
x1_[t, d] = n1_[t, d] * g1_[d] + c1_[d]
q0_[h, t, e] = sum[d](x1_[t, d] * wq_[d, h, e])
q1_[h, t, e] = q0_[h, t, e] + bq_[h, e]
q2_[h, t, e] = q1_[h, t, e] * cosines[t, e]
q3_[h, t, e] = q1_[h, t, E - 1 - e] * sines[t, e]
q4_[h, t, e] = (q2_[h, t, e] + q3_[h, t, e]) * 0.125
k0_[h, t, e] = sum[d](x1_[t, d] * wk_[d, h, e])
k1_[h, t, e] = k0_[h, t, e] + bk_[h, e]
k2_[h, t, e] = k1_[h, t, e] * cosines[t, e]
k3_[h, t, e] = k1_[h, t, E - 1 - e] * sines[t, e]
k4_[h, t, e] = k2_[h, t, e] + k3_[h, t, e]
w0_[h, t, e] = sum[d](x1_[t, d] * wv_[d, h, e])
w1_[h, t, e] = w0_[h, t, e] + bv_[h, e]
s0_[h, t, u] = sum[e](q4_[h, t, e] * k4_[h, u, e])
s1_[h, t, u] = s0_[h, t, u] if u <= t else -1e9 for t in 0..T, u in 0..T
s2_[h, t] = max[u](s1_[h, t, u])
s3_[h, t, u] = exp(s1_[h, t, u] - s2_[h, t])
s4_[h, t] = sum[u](s3_[h, t, u])
s5_[h, t, u] = s3_[h, t, u] / s4_[h, t]
o0_[t, h, e] = sum[u](s5_[h, t, u] * w1_[h, u, e])
o1_[t, d] = sum[h, e](o0_[t, h, e] * wo_[h, e, d])
o2_[t, d] = o1_[t, d] + bo_[d]
y0_[t, d] = IN[t, d] + o2_[t, d]
m2_[t] = sum[d](y0_[t, d]) / D
v2_[t] = sum[d]((y0_[t, d] - m2_[t]) ** 2) / D
r2_[t] = rsqrt(v2_[t] + 1e-5)
n2_[t, d] = (y0_[t, d] - m2_[t]) * r2_[t]
x2_[t, d] = n2_[t, d] * g2_[d] + c2_[d]
f0_[t, f] = sum[d](x2_[t, d] * wg_[d, f])
f1_[t, f] = f0_[t, f] * sigmoid(f0_[t, f])
f2_[t, f] = sum[d](x2_[t, d] * wu_[d, f])
f3_[t, f] = f2_[t, f] + bu_[f]
f4_[t, f] = f1_[t, f] * f3_[t, f]
f5_[t, d] = sum[f](f4_[t, f] * wd_[f, d])
f6_[t, d] = f5_[t, d] + bd_[d]
out_[t, d] = y0_[t, d] + f6_[t, d]
"""


def transformer(layers: int) -> str:
    """A decoder: layers of 40 operators each, each with weights of its own, and positions by rotation."""
    params, lines, before = ["x: f32[T, D], cosines: f32[T, E], sines: f32[T, E]"], list[str](), "x"
    for k in range(layers):
        params.append(_WEIGHTS.replace(":", f"_{k}:"))
        lines += _LAYER.strip().replace("IN", before).replace("_[", f"_{k}[").splitlines()
        before = f"out_{k}"
    lines.append(f"y[t, d] = {before}[t, d]")
    return _op(", ".join(params), "y: f32[T, D]", lines)
