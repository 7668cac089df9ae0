"""Dominants and schemes of finished kernels, on both targets."""

from __future__ import annotations

import pytest

import polyfuse as pf

# AStitch's Figure 7.
FIGURE_7 = """
op f(x: f32[T, H], y: f32[T, H]) -> (z: f32[T, H]) {
  r1[t] = sum[h](x[t, h] * x[t, h])
  p[t] = (0.01 * r1[t] + 1.0) ** 1.3
  c[t, h] = p[t] + y[t, h]
  r2[t] = sum[h](c[t, h] * c[t, h])
  z[t, h] = c[t, h] * (r2[t] + 1e-6) ** -0.5
}
"""
each_target = pytest.mark.parametrize("target", ("cpu", "cuda"))
each_layer_one = pytest.mark.parametrize("fused", (True, False), ids=("layer I", "no layer I"))


def stitched(text: str, target: str, fused: bool = False, **sizes: int) -> pf.Kernels:
    scheduled = pf.parse(text).op().specialize(**sizes).schedule()
    if fused:
        scheduled = scheduled.apply(pf.LoopFusion())
    return scheduled.lower(target=target).apply(pf.Stitching())  # type: ignore[arg-type]


@each_target
@each_layer_one
def test_dominants_of_figure_7(target: str, fused: bool) -> None:
    """The reductions dominate; the power and the last multiplication follow them."""
    kernels = stitched(FIGURE_7, target, fused, T=4096, H=768)
    assert kernels.launches == 1
    found = kernels.dominants()
    assert [(d.name, d.sub_dominants) for d in found] == [("r1", ("p",)), ("r2", ("z",))]
    assert "+ dominant r1: its loops run p (sub-dominant) as well" in kernels.explain()


@pytest.mark.parametrize(
    "text,names",
    [
        ("op f(x: f32[N]) -> (y: f32[N]) { a[i] = x[i] + 1.0\n y[i] = a[i] * 2.0 }", ["y"]),
        # e is expensive, but only one element reads each of it
        ("op f(x: f32[N]) -> (y: f32[N]) { e[i] = exp(x[i])\n y[i] = e[i] * 2.0 }", ["y"]),
        # reductions of one temporary: the first one leads
        (
            "op f(x: f32[N, M]) -> (s: f32[N], m: f32[N]) { u[i, j] = x[i, j] * 2.0\n"
            " s[i] = sum[j](u[i, j])\n m[i] = max[j](u[i, j]) }",
            ["s"],
        ),
        # a broadcast keeps them apart; without a reduction the larger one leads
        (
            "op f(x: f32[N], z: f32[N, M]) -> (y: f32[N, M]) { e[i] = exp(x[i])\n y[i, j] = e[i] * z[i, j] }",
            ["e", "y"],
        ),
    ],
)
def test_dominants(text: str, names: list[str]) -> None:
    sizes = {"N": 64, "M": 32} if "M" in text else {"N": 64}
    kernels = stitched(text, "cuda", **sizes)
    assert [d.name for d in kernels.dominants()] == names


SCHEMES = """
op f(x: f32[T, H]) -> (y: f32[T, H], c: f32[H]) {
  e[t, h] = exp(x[t, h])
  s[t] = sum[h](e[t, h])
  y[t, h] = e[t, H - 1 - h] / s[t]
  c[h] = sum[t](y[t, h])
}
"""


def test_schemes_on_a_gpu() -> None:
    kernels = stitched(SCHEMES, "cuda", T=4096, H=768)
    found = kernels.schemes()
    assert found.of("e", "s") == found.of("s", "y") == "Local"
    assert found.of("e", "y") == "Regional"
    parts = [e for e in found.edges if e.consumer.startswith("c") and e.producer.startswith("c")]
    assert any(e.scheme == "Global" for e in parts), "sums of columns are put together by other blocks"
    assert {e.storage.value for e in found.edges if e.scheme == "Regional"} == {"shared"}
    assert "+ scheme e -> y: Regional, shared: the same block, other threads" in kernels.explain()


def test_schemes_on_a_cpu() -> None:
    kernels = stitched(SCHEMES, "cpu", T=4096, H=768)
    found = kernels.schemes()
    assert found.of("e", "y") == "Regional" and found.of("s", "y") == "Local"
    assert {e.storage.value for e in found.edges if e.producer == "e"} == {"local"}


@each_target
def test_schemes_over_kernels_and_inputs(target: str) -> None:
    """Kernels of layer I alone hand everything on through memory; two that read one row are Independent."""
    text = "op f(x: f32[T, H]) -> (y: f32[T, H]) { s[t] = sum[h](x[t, h])\n y[t, h] = x[t, h] / s[t] }"
    scheduled = pf.parse(text).op().specialize(T=512, H=512).schedule()
    apart = scheduled.lower(target=target).schemes()  # type: ignore[arg-type]
    (edge,) = [e for e in apart.edges if e.consumer == "y"]
    assert edge.scheme == "Global" and edge.why == "made in k0, a launch before"
    pair = "op f(x: f32[T, H]) -> (a: f32[T], b: f32[T]) { a[t] = min[h](x[t, h])\n b[t] = max[h](x[t, h]) }"
    together = stitched(pair, target, T=512, H=512)
    assert together.launches == 1 and together.schemes().of("a", "b") == "Independent"
