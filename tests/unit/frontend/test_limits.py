"""What is too much, or no array and no option at all, is a diagnostic; what the limits allow works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.builder import fn
from polyfuse.diagnostics import PolyfuseError

X = np.ones(5, np.float32)
PLAIN = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] }"


def many(text: str, count: int, joint: str = ", ") -> str:
    return joint.join(text.format(q) for q in range(count))


def chain(count: int) -> str:
    return f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = 1.0 if {many('x[i]', count, ' < ')} else 0.0 }}"


def least(count: int) -> str:
    return f"op f(x: f32[N]) -> (y: f32[N]) {{ y[i] = min({many('x[i]', count)}) }}"


def index(count: int) -> str:
    right = f"x[min(i, {many('N - 1 + {}', count)})]"
    return f"op f(x: f32[N]) -> (y: f32[N]) where N >= 1 {{ y[i] = {right} for i in 0..N }}"


def extent(count: int) -> str:
    top = f"max({many('N + {}', count)})"
    return f"op f(x: f32[N]) -> (y: f32[{top}]) where N >= 1 {{ y[i] = x[0] for i in 0..{top} }}"


def condition(count: int) -> str:
    return f"op f(x: f32[N]) -> (y: f32[N]) where {many('N', count, ' <= ')} {{ y[i] = x[i] }}"


def axes(count: int) -> str:
    shape, left = many("1", count - 1), many("a{}", count - 1)
    return f"op f(x: f32[N]) -> (y: f32[{shape}, N]) {{ y[{left}, i] = x[i] }}"


def local(count: int) -> str:
    ranges = many("a{} in 0..1", count - 1)
    return (
        f"op f(x: f32[N]) -> (y: f32[N]) {{ t[{many('a{}', count - 1)}, i] = x[i] for {ranges}, i in 0..N\n"
        f"y[i] = t[{many('0', count - 1)}, i] }}"
    )


def loops(count: int) -> str:
    return f"op f(x: f32[N]) -> (y: f32) {{ y = sum[{many('a{} in 0..1', count - 1)}, i](x[i]) }}"


LIMITS: list[tuple[Any, int, str]] = [
    (chain, 198, "PF103"),
    (least, 200, "PF103"),
    (index, 190, "PF103"),
    (extent, 190, "PF103"),
    (condition, 200, "PF103"),
    (axes, 64, "PF237"),
    (local, 64, "PF237"),
    (loops, 64, "PF237"),
]


@pytest.mark.parametrize(("text", "most", "code"), LIMITS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_beyond_a_limit_is_a_located_error(text: Any, most: int, code: str) -> None:
    for count in (most + 12, 400):
        with pytest.raises(pf.PolyfuseError) as caught:
            pf.compile(text(count), target="interpret")(X)
        (found,) = caught.value.diagnostics
        assert found.code == code and found.span is not None and found.hint


# isl takes long for extremes of very many arms.
WITHIN = [
    (index, 60),
    (extent, 60),
    *(
        pytest.param(text, most, marks=[pytest.mark.slow] * (text in (index, extent)))
        for text, most, _ in LIMITS
    ),
]


@pytest.mark.parametrize(("text", "most"), WITHIN, ids=lambda x: getattr(x, "__name__", str(x)))
def test_within_a_limit_all_is_well(text: Any, most: int) -> None:
    for target in ("interpret", "cpu"):
        assert np.size(pf.compile(text(most), target=target)(X)) > 0


def test_minima_have_any_number_of_arguments_within_it() -> None:
    y = pf.compile(least(17).replace("x[i])", "0.25)"), target="interpret")(X)
    np.testing.assert_array_equal(y, np.full(5, 0.25))


def test_expressions_of_python_have_the_same_limit() -> None:
    f = pf.ProgramBuilder().op("f")
    i, x = f.index("i"), f.param("x", "f32", "N")
    fn.min(*[x[i]] * 150)
    with pytest.raises(PolyfuseError, match="PF103"):
        fn.min(*[x[i]] * 300)


def test_rank_variables_have_the_limit_of_axes() -> None:
    f = pf.parse("op f(x: f32[B..., N]) -> (y: f32[N]) { y[n] = sum[b...](x[b..., n]) }").op()
    assert f.graph(ranks={"B": 63})
    with pytest.raises(PolyfuseError, match="PF237"):
        f.graph(ranks={"B": 100})


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"layers": 5}, "PF413"),
        ({"layers": None}, "PF413"),
        ({"layers": (5,)}, "PF413"),
        ({"fusion": 5}, "PF490"),
        ({"fusion": pf.Stitching()}, "PF490"),
        ({"stitching": 5}, "PF490"),
        ({"packing": True}, "PF490"),
        ({"clustering": 5}, "PF490"),
        ({"options": {"checked": True}}, "PF490"),
        ({"op": 5}, "PF490"),
        ({"op": ""}, "PF411"),
        ({"threads": 10**9}, "PF490"),
    ],
    ids=str,
)
def test_options_of_a_wrong_type_are_refused_by_name(given: dict[str, Any], code: str) -> None:
    with pytest.raises(pf.ArgumentError, match=code) as caught:
        pf.compile(PLAIN, **given)
    assert next(iter(given))[:5] in str(caught.value) or code == "PF411"


@pytest.mark.parametrize("program", [b"op f() {}", None, 5, ["op"]])
def test_programs_are_texts_or_paths(program: Any) -> None:
    with pytest.raises(pf.ArgumentError, match="PF114"):
        pf.parse(program)


class _Interface:
    @property
    def __array_interface__(self) -> object:
        raise RuntimeError("boom")


class _Capsule:
    def __dlpack__(self, **given: object) -> object:
        return 5

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class _Device:
    def __dlpack_device__(self) -> object:
        return None


class _Array:
    def __array__(self, *given: object, **more: object) -> object:
        raise KeyError("boom")


class _Anything:
    def __getattr__(self, name: str) -> object:
        raise ValueError(name)


@pytest.mark.parametrize(
    "value",
    [[[1, 2], [3]], _Interface(), _Capsule(), _Device(), _Array(), _Anything()],
    ids=lambda v: type(v).__name__,
)
def test_what_raises_when_it_is_read_is_named(value: object) -> None:
    f = pf.compile(PLAIN, target="interpret")
    for _ in range(2):  # also where calls like it were made before
        with pytest.raises(pf.ArgumentError, match="argument 'x'") as caught:
            f(value)
        assert caught.value.code in ("PF400", "PF417")
        f(X)
