"""Arguments that are no arrays of the right type: None, lists, int32 indices. Messages say what to do."""

from __future__ import annotations

import array
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from torch_stand_in import HostTensor, HostTorch

import polyfuse as pf

SCALE = pf.compile("op scale(x: f32[N], a: f32 = 2.0) -> (y: f32[N]) { y[i] = a * x[i] }", target="cpu")
BRAIN = pf.compile("op half(x: bf16[N]) -> (y: bf16[N]) { y[i] = x[i] }", target="cpu")
POWER = pf.compile("op power(x: f32[N], k: i64) -> (y: f32[N]) { y[i] = f32(k) * x[i] }", target="cpu")
COUNT = pf.compile("op count(inout c: i64[M]) { c[m] = c[m] + 1 }", target="cpu")
PICK = "op pick(t: f32[V], at: i64[M]) -> (y: f32[M]) { y[m] = t[at[m]] }"
TARGETS = ("cpu", "interpret", "emulate")
X = np.arange(3, dtype=np.float32)


def refused(f: pf.Compiled, *args: object, **named: object) -> pf.ArgumentError:
    with pytest.raises(pf.ArgumentError) as error:
        f(*args, **named)
    (found,) = error.value.diagnostics
    assert found.span is not None
    return error.value


@pytest.mark.parametrize("nothing, what", [(None, "None"), ("2", "a str"), ({}, "a dict"), ({1.0}, "a set")])
def test_what_is_no_array_and_no_number(nothing: object, what: str) -> None:
    error = refused(SCALE, nothing)
    assert error.code == "PF425" and f"'x' is {what}; an array is expected: x: f32[N]" in str(error)
    for error in (refused(SCALE, X, nothing), refused(SCALE, X, a=nothing)):
        assert error.code == "PF425" and f"'a' is {what}; a number is expected" in str(error)
        assert "leave it out: its default is 2.0" in str(error)
    np.testing.assert_array_equal(SCALE(X), 2 * X)


@pytest.mark.parametrize(
    "f, given, made, call",
    [
        (SCALE, [1.0, 2.0], "list, of which NumPy makes float64", "np.array(x, np.float32)"),
        (SCALE, (1, 2), "tuple, of which NumPy makes int64", "np.array(x, np.float32)"),
        (SCALE, [], "list, of which NumPy makes float64", "np.array(x, np.float32)"),
        (BRAIN, [1.0], "list, of which NumPy makes float64", "np.array(x, ml_dtypes.bfloat16)"),
    ],
)
def test_lists_of_numbers(f: pf.Compiled, given: Any, made: str, call: str) -> None:
    error = refused(f, given)
    assert error.code == "PF402" and made in str(error) and call in str(error)
    x = eval(call, {"np": np, "ml_dtypes": ml_dtypes, "x": given})  # the hint, followed
    assert f(x).shape == (len(given),)  # type: ignore[attr-defined]


def test_a_float_for_an_integer() -> None:
    assert "convert it: int(k)" in str(refused(POWER, X, 2.0))
    assert "convert it: int(k)" in str(refused(POWER, X, np.float64(2)))


@pytest.mark.parametrize("given", [1, 0, 2, 1.0, np.int64(1), np.float32(0)])
def test_a_number_for_a_truth_value(given: Any) -> None:
    text = "op choose(x: f32[N], b: bool) -> (y: f32[N]) { y[i] = x[i] if b else 0.0 }"
    f = pf.compile(text, target="cpu")
    error = refused(f, X, given)
    assert error.code == "PF402" and f"of type {type(given).__name__}; the operator takes bool" in str(error)
    assert "convert it: bool(b)" in str(error)
    np.testing.assert_array_equal(f(X, bool(given)), X * bool(given))


@pytest.mark.parametrize("given", [range(3), array.array("d", [1.0, 2.0])], ids=["range", "array"])
def test_what_is_no_array_and_becomes_one(given: Any) -> None:
    error = refused(SCALE, given)
    call = 'np.asarray(x, "float32")'
    assert error.code == "PF402" and call in str(error)
    np.testing.assert_array_equal(SCALE(eval(call, {"np": np, "x": given})), 2 * np.array(given))


def test_integers_that_an_index_does_not_hold() -> None:
    f, at = pf.compile(PICK, target="cpu"), np.array([2, 0], np.uint64)
    error = refused(f, X, at)
    assert error.code == "PF402" and 'np.asarray(at, "int64")' in str(error)
    np.testing.assert_array_equal(f(X, at.astype("int64")), X[[2, 0]])
    assert all("hint" not in str(refused(f, X, other)) for other in (at.astype("M8[s]"), at + 1j))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "dtype", [np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32, ">i4", np.int64]
)
def test_narrower_indices_are_taken(target: Any, dtype: Any) -> None:
    f = pf.compile(PICK, target=target)
    at = np.array([2, 0, 1, 2], dtype)
    for given in (at, at[::-1], at.reshape(2, 2)[:, 0]):
        for _ in range(2):
            np.testing.assert_array_equal(f(X, given), X[given])
    with pytest.raises(pf.ArgumentError, match="PF450"):
        pf.compile(PICK, target=target, checked=True)(X, np.array([3], dtype))


def test_the_short_way_sees_each_index(monkeypatch: pytest.MonkeyPatch) -> None:
    f = pf.compile(PICK, target="cpu")
    for at in ([0, 1], [2, 2], [1, 0]):
        for dtype in (np.int64, np.int32):
            np.testing.assert_array_equal(f(X, np.array(at, dtype)), X[at])


def test_what_loses_or_writes_is_not_taken() -> None:
    f = pf.compile(PICK, target="cpu")
    for at in (np.array([0], np.uint64), np.array([0.0], np.float32), np.array([True])):
        with pytest.raises(pf.ArgumentError) as error:
            f(X, at)
        assert error.value.code == "PF402"
    assert refused(COUNT, np.zeros(3, np.int32)).code == "PF402"
    with pytest.raises(pf.ArgumentError, match="cannot be bound") as error:
        f.bind(X, np.array([0], np.int32))
    assert error.value.code == "PF418"


def test_indices_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = HostTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    at = HostTensor(np.array([2, 0], np.int32))
    result: Any = pf.compile(PICK, target="cpu")(HostTensor(X), at)
    assert result.array.tolist() == [2.0, 0.0]


def test_indices_of_torch_itself() -> None:
    torch = pytest.importorskip("torch")
    result: Any = pf.compile(PICK, target="cpu")(torch.from_numpy(X), torch.tensor([2, 0], dtype=torch.int32))
    assert result.tolist() == [2.0, 0.0]
