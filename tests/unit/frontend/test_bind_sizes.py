"""Sizes from shapes."""

from __future__ import annotations

import re

import pytest

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.signature import Signature, signature
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph

Shapes = dict[str, tuple[int, ...]]


def both(head: str) -> tuple[TensorGraph, Signature]:
    """A graph and a signature with this head; the result is a scalar unless the head says more."""
    result = "" if "->" in head else " -> (y: f32)"
    body = re.search(r"y: f32\[([^\]]*)\]", head)
    left = f"y[{', '.join('ij'[: body[1].count(',') + 1])}]" if body else "y"
    head, where = head.split(" where ") if " where " in head else (head, "")
    where = f" where {where}" if where else ""
    close = "" if "->" in head else ")"
    text = f"op f({head}{close}{result}{where} {{ {left} = 1.0 }}"
    program = parse_text(text, "t.pf")
    return instantiate(program, "f"), signature(program.ops[0])


GOOD: list[tuple[str, Shapes, dict[str, int]]] = [
    ("x: f32[T, H], w: f32[H]", {"x": (4, 3), "w": (3,)}, {"T": 4, "H": 3}),
    ("x: f32[T, 3*H]", {"x": (4, 12)}, {"T": 4, "H": 4}),
    ("x: f32[2*N + 1]", {"x": (7,)}, {"N": 3}),
    ("x: f32[N, G*K], w: f32[G]", {"x": (2, 12), "w": (3,)}, {"N": 2, "G": 3, "K": 4}),
    ("x: f32[N - K + 1], w: f32[K]", {"x": (5,), "w": (3,)}, {"N": 7, "K": 3}),
    ("x: f32[N], w: f32[G] where N == G*K", {"x": (12,), "w": (3,)}, {"N": 12, "G": 3}),
    ("x: f32[N]) -> (y: f32[M]) where M == 2*N", {"x": (4,)}, {"N": 4, "M": 8}),
    ("x: f32[N], s: f32", {"x": (0,)}, {"N": 0}),
    ("x: f32[N], s: f32", {"x": (5,), "s": ()}, {"N": 5}),
    ("x: f32[N // 2], w: f32[N]", {"x": (3,), "w": (7,)}, {"N": 7}),
    ("x: f32[4]", {"x": (4,)}, {}),
]


@pytest.mark.parametrize("row", GOOD, ids=[r[0] for r in GOOD])
def test_solved(row: tuple[str, Shapes, dict[str, int]]) -> None:
    head, shapes, expected = row
    if "N == G*K" in head:
        head = head.replace("w: f32[G]", "w: f32[G], v: f32[K]")
        shapes, expected = {**shapes, "v": (4,)}, {**expected, "K": 4}
    for what in both(head):
        assert bind_sizes(what, shapes) == expected


BAD: list[tuple[str, Shapes, str, str]] = [
    ("x: f32[T, H], w: f32[H]", {"x": (4, 3), "w": (5,)}, "PF405",
     "'w' has shape (5,), axis 0 is H = 3; H = 3 because 'x' has shape (4, 3) (axis 1)"),
    ("x: f32[T, 3*H], w: f32[H]", {"x": (4, 10), "w": (3,)}, "PF405",
     "'x' has shape (4, 10), axis 1 is 3*H = 9; H = 3 because 'w' has shape (3,) (axis 0)"),
    ("x: f32[4]", {"x": (5,)}, "PF405", "'x' has shape (5,), axis 0 is 4 and must have extent 4"),
    ("x: f32[N]) -> (y: f32[M]) where M == 2*N, N == 3", {"x": (4,)}, "PF407", "f needs N == 3, but N = 4"),
    ("x: f32[3*H]", {"x": (10,)}, "PF406", "no value of H fits the arguments of f: 'x' has shape (10,)"),
    ("x: f32[N + 4]", {"x": (3,)}, "PF406", "axis 0 is N + 4"),
    ("x: f32[N]) -> (y: f32[M]) where 2*M == N", {"x": (5,)}, "PF406", "it needs 2*M == N, but N = 5"),
    ("x: f32[N] where N % 4 == 0, N >= 8", {"x": (6,)}, "PF407", "N%4 == 0, but N = 6 (axis 0 of 'x')"),
    ("x: f32[N, G] where N % G == 0", {"x": (6, 0)}, "PF407", "N%G == 0, but N = 6"),
    ("x: f32[N], w: f32[K]) -> (y: f32[N - K + 1])", {"x": (2,), "w": (5,)}, "PF409",
     "axis 0 of the result 'y' of f would have extent N - K + 1 = -2 for N = 2, K = 5"),
    ("x: f32[N], w: f32[K]", {"x": (2,)}, "PF408", "f also needs 'w'"),
    ("x: f32[N]", {"x": (2,), "xx": (3,)}, "PF408", "did you mean 'x'?"),
    ("x: f32[N, M]", {"x": (2,)}, "PF401", "'x' of f has"),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD, ids=[f"{r[2]} {r[0]}" for r in BAD])
def test_refused(row: tuple[str, Shapes, str, str]) -> None:
    head, shapes, code, words = row
    for what in both(head):
        with pytest.raises(ArgumentError) as caught:
            bind_sizes(what, shapes)
        assert code in [d.code for d in caught.value.diagnostics], caught.value
        assert words in str(caught.value)


def test_ranks_of_a_signature_come_from_shapes() -> None:
    text = "op f[F: float](x: F[B..., H], m: F[B...]) -> (y: F[B..., H]) { y[b..., h] = x[b..., h] }"
    what = signature(parse_text(text, "t.pf").ops[0])
    assert bind_sizes(what, {"x": (2, 3, 4), "m": (2, 3)}) == {"B_0": 2, "B_1": 3, "H": 4}
    with pytest.raises(ArgumentError, match="PF405") as caught:
        bind_sizes(what, {"x": (2, 3, 4), "m": (2, 5)})
    assert "'m' has shape (2, 5), axis 1 is B_1 = 3" in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "hint"),
    [
        ({"x": (4, 8), "w": (8, 16), "b": (16,)}, "w.T fits: two axes are the other way round"),
        ({"x": (8, 4), "w": (16, 8), "b": (16,)}, "x.T fits: two axes are the other way round"),
        ({"x": (4, 8), "w": (8, 16), "b": (7,)}, None),  # more is wrong
        ({"x": (8, 4), "w": (8, 8), "b": (8,)}, "x.T fits: two axes are the other way round"),
        ({"x": (4, 8), "w": (8, 4), "b": (4,)}, "w.T fits: two axes are the other way round"),
        ({"x": (3, 2), "w": (3, 5), "b": (7,)}, None),
    ],
)
def test_an_argument_that_fits_transposed_is_named(
    shapes: dict[str, tuple[int, ...]], hint: str | None
) -> None:
    """Of a dense layer, whose weights are often the other way round elsewhere."""
    what, _ = both("x: f32[N, K], w: f32[M, K], b: f32[M]")
    with pytest.raises(ArgumentError) as caught:
        bind_sizes(what, shapes)
    assert [d.hint for d in caught.value.diagnostics if d.hint] == ([hint] if hint else [])


def test_axes_of_a_batch_are_swapped_behind_it() -> None:
    what, _ = both("x: f32[B, N, K], w: f32[B, M, K]")
    with pytest.raises(ArgumentError) as caught:
        bind_sizes(what, {"x": (2, 4, 8), "w": (2, 8, 16)})
    assert str(caught.value.diagnostics[0].hint).startswith("w.swapaxes(-1, -2) fits")


def test_every_problem_is_reported() -> None:
    what, _ = both("x: f32[N, H], w: f32[H], v: f32[N]")
    with pytest.raises(ArgumentError) as caught:
        bind_sizes(what, {"x": (2, 3), "w": (4,), "v": (5,)})
    assert [d.code for d in caught.value.diagnostics] == ["PF405", "PF405"]
