"""What one iteration keeps in a register is read by statements that have this iteration alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyfuse as pf
from polyfuse.codegen.transforms.index_set_splitting.last_iteration import (
    peel_first_iterations,
    peel_last_iterations,
)
from polyfuse.ir.dtypes import BOOL, F32
from polyfuse.ir.index_expr import IConst, IVar
from polyfuse.ir.loop_ir import For, If, Store
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Const, Read

TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 1e-5, "f16": 4e-3, "bf16": 2e-2}
# Where a result is `s`, and where it is something else.
PLACES = {
    "last column": ("t in 0..T, h in H-1..H", ["t in 0..T, h in 0..H-1"]),
    "last columns": ("t in 0..T, h in H-2..H", ["t in 0..T, h in 0..H-2"]),
    "first column": ("t in 0..T, h in 0..1", ["t in 0..T, h in 1..H"]),
    "last row": ("t in T-1..T, h in 0..H", ["t in 0..T-1, h in 0..H"]),
    "first row": ("t in 0..1, h in 0..H", ["t in 1..T, h in 0..H"]),
    "last element": ("t in T-1..T, h in H-1..H", ["t in 0..T-1, h in 0..H", "t in T-1..T, h in 0..H-1"]),
}


def text(dtype: str, place: str) -> str:
    here, elsewhere = PLACES[place]
    found = f"""op f(z: {dtype}[T, H], x: {dtype}[T, H], c: {dtype}[T]) -> (y: {dtype}[T, H])
      where T >= 2, H >= 2 {{
      s[t, h] = min(exp(f32(z[t, h])), f32(x[t, h])) for t in 0..T, h in 0..H
      y[t, h] = {dtype}(tanh(s[t, h])) for {here}
    """
    found += "\n".join(f"y[t, h] = {dtype}(f32(c[t]) + 4.0) for {e}" for e in elsewhere) + "}"
    return found.replace("f32(", "(") if dtype == "f32" else found


def expected(place: str, z: Any, x: Any, c: Any) -> Any:
    z, x, c = (a.astype("f8") for a in (z, x, c))
    y = np.broadcast_to(c[:, None] + 4, z.shape).copy()
    rows = (
        slice(-1, None) if place in ("last row", "last element") else slice(0, 1 if "row" in place else None)
    )
    first = {"last column": -1, "last columns": -2, "last element": -1}.get(place, 0)
    columns = slice(first, 1 if place == "first column" else None)
    y[rows, columns] = np.tanh(np.minimum(np.exp(z), x))[rows, columns]
    return y


def check(dtype: str, place: str, t: int, h: int, target: str) -> None:
    rng = np.random.default_rng(h)
    z, x = np.abs(rng.standard_normal((2, t, h))).astype(TYPES[dtype])
    c = rng.standard_normal(t).astype(TYPES[dtype])
    found = np.asarray(pf.compile(text(dtype, place), target=target)(z, x, c)).astype("f8")
    np.testing.assert_allclose(found, expected(place, z, x, c), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.thin(2)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("place", PLACES)
def test_lanes(place: str, dtype: str) -> None:
    for t, h in ((3, 2), (3, 17), (2000, 33)):
        check(dtype, place, t, h, "cpu")


@pytest.mark.parametrize("place", PLACES)
def test_threads(place: str) -> None:
    for t, h in ((3, 17), (40, 200)):
        check("f32", place, t, h, "emulate")


@pytest.mark.parametrize("dtype", TYPES)
def test_beside_a_total(dtype: str) -> None:
    """The last iteration adds to the total of the lanes, too."""
    text = f"""op f(x: {dtype}[T, H]) -> (m: f32[T], y: {dtype}[T, H]) where H >= 1 {{
      s[t, h] = sqrt(f32(x[t, h]))
      m[t] = sum[h](s[t, h])
      y[t, h] = {dtype}(s[t, h] * 2.0) for t in 0..T, h in H-1..H
      y[t, h] = x[t, h] for t in 0..T, h in 0..H-1
    }}"""
    text = text.replace("f32(", "(") if dtype == "f32" else text
    for t, h in ((3, 17), (500, 33), (40, 700)):
        x = np.random.default_rng(h).uniform(0.5, 2, (t, h)).astype(TYPES[dtype])
        m, y = pf.compile(text, target="cpu")(x)
        root = np.sqrt(x.astype("f8"))
        np.testing.assert_allclose(m, root.sum(1), rtol=1e-5)
        np.testing.assert_allclose(y[:, -1].astype("f8"), 2 * root[:, -1], rtol=TOLERANCE[dtype])
        np.testing.assert_array_equal(y[:, :-1].view("u1"), x[:, :-1].view("u1"))


def test_only_what_is_left_is_apart() -> None:
    c = IVar("c")
    kept = Store("z", (c,), Read("%s", (), F32))
    loop = For(
        "c", IConst(0), IConst(17), 1, (Store("%s", (), Read("x", (c,), F32)), kept), Coordinate.VECTOR
    )
    after = Store("y", (IConst(16),), Read("%s", (), F32))
    main, last, behind = peel_last_iterations((loop, after))
    assert isinstance(main, For) and (main.upper, main.body) == (IConst(16), loop.body)
    assert isinstance(last, For) and last.coordinate is Coordinate.SEQ and last.lower == IConst(16)
    assert behind == after
    alone = peel_last_iterations(
        (For("c", IConst(0), IConst(17), 1, loop.body[:1], Coordinate.VECTOR), after)
    )
    assert len(alone) == 2, "nobody else reads it"
    main, last, _ = peel_last_iterations((replace(loop, step=3, lower=IConst(1), lanes=("%t",)), after))
    assert isinstance(last, For) and (last.lower, last.step, last.lanes) == (IConst(16), 3, ())
    assert isinstance(main, For) and main.upper == IConst(16) and main.lanes == ("%t",)
    overwritten = Store("%s", (), Read("x", (IConst(3),), F32))
    assert peel_last_iterations((loop, overwritten, after)) == (loop, overwritten, after)


def test_what_is_found_by_the_first_iteration_is_apart() -> None:
    c = IVar("c")
    before = Store("%s", (), Const(0.25, F32))
    some = If(Read("m", (c,), BOOL), (Store("%s", (), Read("x", (c,), F32)),))
    kept = Store("z", (c,), Read("%s", (), F32))
    loop = For("c", IConst(0), IConst(17), 1, (some, kept), Coordinate.VECTOR, lanes=("%t",))
    front, first, rest = peel_first_iterations((before, loop))
    assert front == before and rest == replace(loop, lower=IConst(1))
    assert first == replace(loop, upper=IConst(1), coordinate=Coordinate.SEQ, lanes=())
    inside = For("t", IConst(0), IConst(3), 1, (loop,), Coordinate.SEQ)
    assert peel_first_iterations((before, inside)) == (before, replace(inside, body=(first, rest)))
    assert peel_first_iterations((loop, loop)) == (loop, loop), "lanes have their own"
    own = replace(loop, body=(before, some, kept))
    assert peel_first_iterations((before, own)) == (before, own), "each iteration sets it"
