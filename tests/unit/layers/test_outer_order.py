"""The outer loops of a copy go along what most of its accesses lie along."""

from __future__ import annotations

import numpy as np
import pytest
from equivalence import assert_computes, fixed_graph_of

import polyfuse as pf
from polyfuse.ir.kernel import KernelGraph, tree
from polyfuse.ir.schedule_tree import Member, path
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.mapping.kernels import form_kernels

HEADS = "op f(x: f32[N, S, H, D]) -> (q: f32[N, H, S, D]) { q[n, h, s, d] = 2.0 * x[n, s, h, d] }"
THREE = """op f(x: f32[N, S, 3, H, D]) -> (q: f32[N, H, S, D], k: f32[N, H, S, D], v: f32[N, H, S, D]) {
  q[n, h, s, d] = 0.125 * x[n, s, 0, h, d]
  k[n, h, s, d] = x[n, s, 1, h, d]
  v[n, h, s, d] = x[n, s, 2, h, d]
}"""
TWO_READ = """op f(x: f32[N, S, H, D], z: f32[N, S, H, D]) -> (q: f32[N, H, S, D]) {
  q[n, h, s, d] = x[n, s, h, d] + z[n, s, h, d]
}"""
ALIKE = "op f(x: f32[N, S, H, D], b: f32[H]) -> (y: f32[N, S, H, D]) { y[n, s, h, d] = x[n, s, h, d] + b[h] }"


def kernels_of(text: str, **sizes: int) -> KernelGraph:
    return form_kernels(LoopFusion().schedule(fixed_graph_of(text, **sizes)), 2)[0]


def order(text: str, **sizes: int) -> list[str]:
    """Loops of the first kernel, the outermost first."""
    kernel = kernels_of(text, **sizes).kernels[0]
    loops = path(tree(kernel), next(iter(kernel.statements)))
    return [m.name for m in loops if isinstance(m, Member)]


SIZES = {"N": 4, "S": 64, "H": 12, "D": 64}


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        (HEADS, SIZES, ["n", "h", "s", "d"]),
        (THREE, SIZES, ["n", "h", "s", "d"]),
        (THREE, SIZES | {"D": 512}, ["n", "s", "h", "d"]),  # long pieces
    ],
    ids=["one", "three", "long"],
)
def test_which_loop_is_outer(text: str, sizes: dict[str, int], expected: list[str]) -> None:
    assert order(text, **sizes) == expected


def test_what_lies_alike_is_one_loop_or_stays() -> None:
    assert order(ALIKE, **SIZES)[-1] == "d"


@pytest.mark.parametrize("text", [HEADS, THREE, TWO_READ, ALIKE], ids=["one", "three", "two", "alike"])
@pytest.mark.parametrize(
    "sizes", [(4, 64, 12, 64), (1, 5, 3, 7), (3, 1, 17, 16), (2, 9, 1, 33), (0, 4, 4, 8)]
)
def test_values(text: str, sizes: tuple[int, int, int, int]) -> None:
    of = dict(zip("NSHD", sizes, strict=True))
    assert_computes(fixed_graph_of(text, **of), kernels_of(text, **of), target="cpu")


def test_strided_arguments() -> None:
    x = np.arange(4 * 64 * 12 * 64, dtype="f4").reshape(4, 12, 64, 64).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(pf.compile(HEADS)(x), 2 * x.transpose(0, 2, 1, 3))
