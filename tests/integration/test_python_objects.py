"""Compiled functions as Python objects: copies, pickles, signatures; the library by name; passes."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.driver.kernel_stages import Kernels

X = np.arange(4, dtype=np.float32)
TEXT = "op f(x: f32[N], a: f32 = 2.0) -> (y: f32[N]) { y[i] = a * x[i] }"


@pf.op
def scale(x: Any, a: Any) -> Any:
    """op scale(x: f32[N], a: f32 = 2.0) -> (y: f32[N]) { y[i] = a * x[i] }"""


def unpickled(f: Any) -> Any:
    return pickle.loads(pickle.dumps(f))


COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, unpickled]


@pytest.mark.parametrize("made", COPIES)
@pytest.mark.parametrize("used", [False, True])
def test_copies_and_pickles(made: Callable[[Any], Any], used: bool) -> None:
    f = pf.compile(TEXT, target="cpu", layers=("loop",), checked=True)
    for _ in range(3 * used):
        f(X)
    g = made(f)
    np.testing.assert_array_equal(g(X, 3.0), 3 * X)
    assert repr(g) == repr(f) and g.options == f.options and g is not f
    assert g.built(X).compilation.stitching is None


@pytest.mark.parametrize("made", COPIES)
@pytest.mark.parametrize("nested", [1, 90])
def test_what_a_copy_is_made_of(made: Callable[[Any], Any], nested: int) -> None:
    value = "x[i]"
    for _ in range(nested):
        value = f"abs({value} + 1.0)"
    program = pf.parse(f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = {value} }}")
    np.testing.assert_array_equal(made(pf.compile(program, target="interpret"))(X), X + nested)
    assert made(program).op("f").name == "f" and made(program.op("f")).name == "f"


def test_a_pickle_in_another_process() -> None:
    code = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f.__name__, f.target)"
    given = pickle.dumps(pf.compile("stdlib:gelu", target="interpret"))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=True)
    assert done.stdout.split() == [b"gelu", b"interpret"]


@pytest.mark.parametrize("made", [lambda f: f, *COPIES])
def test_a_decorated_function_keeps_its_name_and_docstring(made: Callable[[Any], Any]) -> None:
    f = made(scale)
    assert (f.__name__, f.__qualname__, f.__module__) == ("scale", "scale", __name__)
    assert f.__doc__ is not None and f.__doc__.startswith("op scale(")
    assert inspect.getdoc(f) == f.__doc__
    assert str(inspect.signature(f)) == "(x: 'f32[N]', a: 'f32' = 2.0) -> 'f32[N]'"


def test_signatures() -> None:
    def shown(text: str) -> str:
        return str(inspect.signature(pf.compile(text)))

    assert str(inspect.signature(pf.compile("stdlib:softmax"))) == "(x: 'F[B..., H]') -> 'F[B..., H]'"
    two = "op f(x: f32[N]) -> (y: f32[N], s: f32) { y[i] = x[i]; s = sum[i](x[i]) }"
    assert shown(two) == "(x: 'f32[N]') -> '(y: f32[N], s: f32)'"
    assert shown("op f(inout p: f32[N]) { p[i] = 2.0 * p[i] }") == "(p: 'inout f32[N]') -> None"
    reserved = "op f(inout class: f32[N], a: f32 = 1.0, b: f32) { class[i] = a + b }"
    assert shown(reserved) == "(class: 'inout f32[N]', /, a: 'f32' = 1.0, b: 'f32') -> None"
    bound = inspect.signature(pf.compile(TEXT)).bind(X, a=3.0)
    assert list(bound.arguments) == ["x", "a"]


def test_the_library_by_name() -> None:
    want = pf.compile(pf.stdlib, "gelu")(X)
    for f in (pf.compile("stdlib:gelu"), pf.stdlib.gelu, pf.compile(pf.stdlib.gelu)):
        np.testing.assert_array_equal(f(X), want)
    assert pf.stdlib.gelu is pf.stdlib.gelu and "gelu" in dir(pf.stdlib)
    assert pf.compile("stdlib:gelu", "gelu", target="interpret").target == "interpret"
    np.testing.assert_array_equal(pf.parse(TEXT).f(X, a=3.0), 3 * X)
    assert pf.stdlib.softmax.specialize(B_0=2, H=3).graph.name == "softmax"


@pytest.mark.parametrize(
    "name, op, said",
    [("stdlib:gelo", None, "gelu"), ("stdlib:", None, "missing"), ("stdlib:gelu", "relu", "not 'relu'")],
)
def test_names_that_the_library_does_not_have(name: str, op: str | None, said: str) -> None:
    with pytest.raises(pf.ArgumentError, match=said) as error:
        pf.compile(name, op)
    assert error.value.code == "PF411"


def test_attributes_that_a_program_does_not_have() -> None:
    with pytest.raises(AttributeError, match="did you mean 'gelu'"):
        _ = pf.stdlib.gelo
    assert not hasattr(pf.stdlib, "__wrapped__") and getattr(pf.parse(TEXT), "g", None) is None


# --- stages -------------------------------------------------------------------------------------------------


class Fused:
    """A pass that is no class of ours."""

    def apply(self, stage: Any) -> Any:
        return stage.apply(pf.LoopFusion() if isinstance(stage, pf.Scheduled) else pf.Stitching())


class Wrong:
    def apply(self, stage: Any) -> Any:
        return None


def test_a_plain_class_with_apply_is_a_pass() -> None:
    start = pf.stdlib.softmax.specialize(B_0=4, H=8).schedule()
    scheduled = start.apply(Fused())
    assert scheduled.shape == start.apply(pf.LoopFusion()).shape
    kernels = scheduled.lower(target="cpu")
    assert str(kernels.apply(Fused())) == str(kernels.apply(pf.Stitching()))
    for stage in (start, kernels):
        for bad, said in (
            (object(), "method apply"),
            (5, "method apply"),
            (Fused, "is a class"),
            (Wrong(), "gave NoneType"),
        ):
            with pytest.raises(pf.ArgumentError, match=said) as error:
                stage.apply(bad)
            assert error.value.code == "PF413"


@pytest.mark.parametrize("target", ["cpu", "interpret", "emulate"])
def test_kernels_of_a_built_function_are_the_documented_type(target: Any) -> None:
    f = pf.compile("stdlib:softmax", target=target)
    x = np.ones((4, 8), np.float32)
    built = f.built(x)
    assert isinstance(built.kernels, Kernels) and built is f.built(x)
    assert built.kernels.launches == len(built.kernels.kernels) == 1
    assert built.kernels.global_bytes == 2 * x.nbytes and built.kernels.target == target
    assert "<svg" in built.kernels.picture().svg and str(built.kernels) == str(built.lowered.kernels)
    assert built.kernels.graph.name == "softmax" and "softmax" in repr(built.kernels)
