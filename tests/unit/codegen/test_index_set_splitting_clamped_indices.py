"""Loops are cut where indices change their arms and guarded loads their choice, and compute the same."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from equivalence import cpu_source
from targets import Call, check_everywhere
from thinned import thinned

import polyfuse as pf
from polyfuse.codegen.analysis import index_ranges
from polyfuse.codegen.analysis.index_ranges import cuts
from polyfuse.codegen.transforms.index_set_splitting.clamped_indices import (
    split_clamped_indices,
)
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BOOL, F32, I64
from polyfuse.ir.index_expr import IndexExpr, IVar, as_index, binary, evaluate
from polyfuse.ir.loop_ir import For, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Const, IndexValue, Read, Select, walk

C, T = IVar("i"), IVar("t")


def copied(at: IndexExpr, low: IndexExpr, high: IndexExpr, coordinate: Coordinate = Coordinate.VECTOR) -> For:
    return For("i", low, high, 1, (Store("y", (C,), Read("x", (at,), F32)),), coordinate)


def extreme(op: str, *arms: IndexExpr) -> IndexExpr:
    first, *rest = arms
    for a in rest:
        first = binary(op, first, a)
    return first


def indices(loop: For) -> IndexExpr:
    (store,) = loop.body
    assert isinstance(store, Store) and isinstance(store.value, Read)
    (at,) = store.value.indices
    assert not isinstance(at, EXPR_TYPES)
    return at


def test_a_border_of_reflections_is_cut_in_three() -> None:
    at = extreme("min", extreme("max", C - 1, 1 - C), 111 - C)
    made = split_clamped_indices((copied(at, as_index(0), as_index(58)),))
    assert [(str(x.lower), str(x.upper), x.coordinate.name) for x in made if isinstance(x, For)] == [
        ("0", "1", "SEQ"),
        ("1", "56", "VECTOR"),
        ("56", "58", "SEQ"),
    ]


def test_many_cuts_leave_the_longest_piece() -> None:
    """Eight neighbours on a ring: each crosses its end somewhere else."""
    value = Read("x", (C,), F32)
    terms = [Read("x", (binary("%", C + k, 100),), F32) for k in range(8)]
    for t in terms:
        value = Apply("add", (value, t), F32)  # type: ignore[assignment]
    made = split_clamped_indices(
        (For("i", as_index(0), as_index(100), 1, (Store("y", (C,), value),), Coordinate.VECTOR),)
    )
    assert [(str(x.lower), str(x.upper), x.coordinate.name) for x in made if isinstance(x, For)] == [
        ("0", "93", "VECTOR"),
        ("93", "100", "SEQ"),
    ]


def test_an_arm_of_all_iterations_is_the_index() -> None:
    (loop,) = _loops(copied(extreme("max", C, as_index(0)), as_index(0), as_index(58)))
    assert indices(loop) == C
    at = extreme("min", extreme("max", C, as_index(0)), as_index(50))
    assert [str(indices(x)) for x in _loops(copied(at, as_index(0), as_index(58)))] == ["i", "50"]


@pytest.mark.parametrize(
    "at",
    [
        binary("//", C * 1080, 1920),
        binary("%", C * 37, 8),
        extreme("min", binary("//", C, 2), as_index(50_000)),
        extreme("max", binary("%", C, 3), binary("//", C * 7, 5)),
    ],
    ids=str,
)
def test_a_loop_of_many_pieces_stays(at: IndexExpr, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are not made to be thrown away: a long loop asks for no more cuts than a short one."""
    asked = []
    monkeypatch.setattr(index_ranges, "cuts", lambda *args: asked.append(0) or cuts(*args))
    loop = copied(at, as_index(0), as_index(100_000))
    assert split_clamped_indices((loop,)) == (loop,)
    assert 0 < len(asked) < 300


@pytest.mark.parametrize("first", [0, 1, 12, 20, 23])
def test_the_longest_of_many_pieces_is_found(first: int) -> None:
    """Two hundred short pieces, some before and the others behind one of three quarters."""
    start, end = first * 1000, first * 1000 + 76_000
    ramp = extreme("max", extreme("min", C - start, as_index(0)), C - end)
    made = split_clamped_indices((copied(binary("//", ramp, 100), as_index(0), as_index(100_000)),))
    assert ("VECTOR", start, end + 100) in [
        (x.coordinate.name, evaluate(x.lower, {}), evaluate(x.upper, {})) for x in made if isinstance(x, For)
    ]
    assert len(made) == (2 if first == 0 else 3)


def _loops(loop: For) -> list[For]:
    return [x for x in split_clamped_indices((loop,)) if isinstance(x, For)]


@pytest.mark.parametrize(("a", "c"), [*itertools.product((-3, -1, 0, 1, 2), (-40, -7, 0, 5, 61))])
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("low", [0, 3])
def test_every_iteration_keeps_its_index(a: int, c: int, op: str, low: int) -> None:
    at = extreme(op, binary("+", binary("*", C, a), c), C - 2, as_index(17))
    made = split_clamped_indices((copied(at, as_index(low), as_index(low + 50)),))
    seen = []
    for loop in made:
        assert isinstance(loop, For)
        for i in range(evaluate(loop.lower, {}), evaluate(loop.upper, {})):
            assert evaluate(indices(loop), {"i": i}) == evaluate(at, {"i": i})
            seen.append(i)
    assert seen == [*range(low, low + 50)] and len(made) <= FITTED.clamped_indices_most_pieces


@pytest.mark.parametrize(
    "loop",
    [
        copied(extreme("max", C, T), as_index(0), as_index(99)),
        copied(extreme("max", C, as_index(5)), T, T + 99),
        copied(
            extreme("max", C, as_index(5)), as_index(0), as_index(FITTED.clamped_indices_fewest_trips - 1)
        ),
        copied(extreme("max", C, as_index(5)), as_index(0), as_index(99), Coordinate.SEQ),
        copied(extreme("max", T, T + 1), as_index(0), as_index(99)),
        copied(C + 1, as_index(0), as_index(99)),
    ],
    ids=["unknown arm", "unknown bounds", "short", "in order", "no variable", "no extreme"],
)
def test_other_loops_stay(loop: For) -> None:
    assert split_clamped_indices((loop,)) == (loop,)


def test_a_border_of_zeros_is_cut_in_three() -> None:
    made = split_clamped_indices(
        (For("i", as_index(0), as_index(58), 1, (Store("y", (C,), NEIGHBOURS),), VECTOR),)
    )
    values = [x.body[0].value for x in made if isinstance(x, For) and isinstance(x.body[0], Store)]
    assert [sum(isinstance(e, Select) for e in walk(v)) for v in values] == [0, 0, 0]
    assert [sum(isinstance(e, Read) for e in walk(v)) for v in values] == [1, 2, 1]
    assert [str(x.upper) for x in made if isinstance(x, For)] == ["1", "57", "58"]


def test_conditions_on_other_loops_are_left() -> None:
    """What the loop decides of a conjunction goes, what is the same for all its iterations stays."""
    inner = Apply("and", (at_least(T, 2), at_least(C, 5)), BOOL)
    value = Select(inner, Read("x", (C - 5,), F32), Const(0.0, F32), F32)
    first, second = _loops(For("i", as_index(0), as_index(58), 1, (Store("y", (C,), value),), VECTOR))
    assert isinstance(first.body[0], Store) and first.body[0].value == Const(0.0, F32)
    assert isinstance(second.body[0], Store) and second.body[0].value == replace(value, cond=at_least(T, 2))


def test_a_period_is_cut_where_it_begins_again() -> None:
    at = binary("%", C + 55, 58)
    made = _loops(copied(at, as_index(0), as_index(58)))
    assert [(str(x.lower), str(x.upper), str(indices(x))) for x in made] == [
        ("0", "3", "i + 55"),
        ("3", "58", "i - 3"),
    ]


def test_short_periods_stay() -> None:
    for size in (4, 9):
        loop = copied(binary("%", C + 3, size), as_index(0), as_index(99))
        assert split_clamped_indices((loop,)) == (loop,)
    loop = copied(binary("//", binary("*", C, 1000), 300), as_index(0), as_index(99))
    assert split_clamped_indices((loop,)) == (loop,)


@pytest.mark.parametrize(("a", "c"), [*itertools.product((-2, -1, 1, 3), (-70, -1, 0, 7, 49))])
@pytest.mark.parametrize("op", ["//", "%"])
def test_every_iteration_keeps_its_digits(a: int, c: int, op: str) -> None:
    at = binary(op, binary("+", binary("*", C, a), c), 50)
    made = _loops(copied(at, as_index(2), as_index(60)))
    seen = [
        (i, evaluate(indices(x), {"i": i})) for x in made for i in range(int(str(x.lower)), int(str(x.upper)))
    ]
    assert seen == [(i, evaluate(at, {"i": i})) for i in range(2, 60)]


def test_choices_without_loads_are_vectors_as_they_are() -> None:
    value = Select(at_least(C, 5), Const(1.0, F32), Const(0.0, F32), F32)
    loop = For("i", as_index(0), as_index(58), 1, (Store("y", (C,), value),), VECTOR)
    assert split_clamped_indices((loop,)) == (loop,)


def at_least(i: IndexExpr, low: int) -> Apply:
    return Apply("ge", (IndexValue(i, I64), IndexValue(as_index(low), I64)), BOOL)


def either(cond: Apply, i: IndexExpr) -> Select:
    return Select(cond, Read("x", (i,), F32), Const(0.0, F32), F32)


NEIGHBOURS = Apply("add", (either(at_least(C, 1), C - 1), either(at_least(56 - C, 0), C + 1)), F32)
VECTOR = Coordinate.VECTOR


BORDERS = {
    "reflected": "x[a, min(max(i - 3, 3 - i), 2*M + 1 - i)] for a in 0..N, i in 0..M + 6",
    "repeated": "x[a, min(max(i - 3, 0), M - 1)] for a in 0..N, i in 0..M + 6",
    "of both": "x[min(max(a - 1, 0), N - 1), min(max(i - 3, 0), M - 1)] * w[min(i, M - 1)] "
    "for a in 0..N, i in 0..M + 6",
    "periodic": "x[a, (i + M - 3) % M] for a in 0..N, i in 0..M + 6",
    "periodic both ways": "x[(a + 1) % N, (M + 9 - i) % M] - x[a, (i + 2) % M] for a in 0..N, i in 0..M + 6",
    "of zeros": "(x[a, i - 3] if 3 <= i < M + 3 else 0.0) + (x[a, i - 2] if 2 <= i < M + 2 else 0.0) * 2.0 "
    "for a in 0..N, i in 0..M + 6",
    "of zeros all around": "(x[a - 1, i - 3] if a >= 1 and 3 <= i < M + 3 else 0.0) - "
    "(x[a, i - 2] if a + 1 < N and not (i < 2 or i >= M + 2) else 1.0) for a in 0..N, i in 0..M + 6",
    "nearest": "x[a, (i * M) // (M + 6)] for a in 0..N, i in 0..M + 6",
    "strides of a ring": "x[a, (i * 37) % 4] for a in 0..N, i in 0..M + 6",
    "as numbers": "x[a, min(i, M - 1)] * f32(max(i - 20, 7)) for a in 0..N, i in 0..M + 6",
}


def whole(body: str) -> str:
    return f"op f(x: f32[N, M], w: f32[M]) -> (y: f32[N, M + 6]) where M >= 4 {{ y[a, i] = {body} }}"


@pytest.mark.parametrize("dtype", thinned(["f32", "f64", "bf16", "f16"], 2))
@pytest.mark.parametrize(("n", "m"), thinned([(3, 37), (0, 4), (2, 200), (1, 4)], 2, several=True))
def test_borders_compute_the_same(n: int, m: int, dtype: str) -> None:
    rng = np.random.default_rng(m)
    calls = []
    for name, body in BORDERS.items():
        text = whole(body).replace("f32", dtype)
        graph = instantiate(parse_text(text), "f")
        x, w = (rng.standard_normal(s).astype(graph.tensor("x").dtype.numpy) for s in ((n, m), (m,)))
        x.flat[::9] = np.nan
        calls.append(Call(name, text, graph, {"N": n, "M": m}, {"x": x, "w": w}))
    check_everywhere(calls)


def test_what_is_read_along_memory_has_no_arms() -> None:
    text = whole(BORDERS["reflected"])
    assert "pf_min_i64" not in cpu_source(text, N=5, M=60).split("pf_k0_0_body")[1]
    x, w = np.random.default_rng(0).standard_normal((5, 120)).astype("f4"), np.ones(60, "f4")
    f = pf.compile(text)
    np.testing.assert_array_equal(f(x[:, ::2], w), np.pad(x[:, ::2], ((0, 0), (3, 3)), mode="reflect"))


@pytest.mark.parametrize(("size", "result"), [(1080, 1920), (1920, 1080), (720, 1280), (224, 4000)])
def test_images_of_any_size_are_resized(size: int, result: int) -> None:
    """Nearest and linear: a quotient that changes thousands of times."""
    at = f"(i * {size}) // {result}"
    text = f"""op f(x: f32[C, {size}]) -> (y: f32[C, {result}], z: f32[C, {result}]) {{
      y[c, i] = x[c, {at}] for c in 0..C, i in 0..{result}
      t[i] = f32((i * {size}) % {result}) / {result}.0 for i in 0..{result}
      z[c, i] = x[c, {at}] * (1.0 - t[i]) + x[c, min({at} + 1, {size - 1})] * t[i]
        for c in 0..C, i in 0..{result}
    }}"""
    x = np.random.default_rng(0).standard_normal((3, size)).astype("f4")
    i = np.arange(result)
    near, part = i * size // result, (i * size % result / result).astype("f4")
    y, z = pf.compile(text)(x)
    np.testing.assert_array_equal(y, x[:, near])
    linear = x[:, near] * (1 - part) + x[:, np.minimum(near + 1, size - 1)] * part
    np.testing.assert_allclose(z, linear, rtol=0, atol=1e-6)
