"""Regions of sizes, and the decision list of a family: which sizes are open when, what kernels are for."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, cast

import pytest

import polyfuse as pf
from polyfuse.driver.open_sizes import MOST_OPEN, Family, NotOpen, Region, region
from polyfuse.driver.pipeline import Built
from polyfuse.ir.tensor_graph import TensorGraph

SCALE = "op f(x: f32[T, H]) -> (y: f32[T, H]) { y[t, h] = 2.0 * x[t, h] }"


def graph_of(text: str) -> TensorGraph:
    return pf.parse(text).op("f").graph()


# --- regions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fixed", "told"),
    [
        (SCALE, {}, "T >= 1, T <= 1099511627776, H >= 1, H <= 1099511627776"),
        (SCALE, {"H": 8}, "T >= 1, T <= 1099511627776, H = 8"),
        # The last element is there from T = 1 on; what the operator states itself is not told again.
        ("op f(x: f32[T]) -> (y: f32) { y = x[T-1] }", {}, "T >= 1, T <= 1099511627776"),
        ("op f(x: f32[T]) -> (y: f32) where T >= 2 { y = x[T-2] }", {}, "T >= 1, T <= 1099511627776"),
        # An extent may be 0 but not negative.
        (
            "op f(x: f32[T], w: f32[R]) -> (y: f32[T-R+1]) { y[t] = sum[r](w[r] * x[t+r]) }",
            {"R": 3},
            "T >= 1, T <= 1099511627776, T - 2 >= 0, R = 3",
        ),
        # Data index an axis with elements.
        (
            "op f(x: f32[V-1], i: i32[T]) -> (y: f32[T]) { y[t] = x[i[t]] }",
            {},
            "V >= 1, V <= 1099511627776, T >= 1, T <= 1099511627776, V - 1 >= 1",
        ),
        # A position is a number of the type: i32 has no more.
        ("op f(x: i32[T]) -> (y: i32[T]) { y[t] = x[t] + t }", {}, "T >= 1, T <= 2147483647"),
        ("op f(x: i16[T]) -> (y: i16[T]) { y[t] = x[t] + t }", {}, "T >= 1, T <= 32767"),
        # One that is cast has room: the cast wraps, or does nothing.
        ("op f(x: u64[T]) -> (y: u64[T]) { y[t] = x[t] + u64(t) }", {}, "T >= 1, T <= 1099511627776"),
        ("op f(x: u8[T]) -> (y: u8[T]) { y[t] = x[t] >> 4*u8(t % 2) }", {}, "T >= 1, T <= 1099511627776"),
        (
            "op f(x: f32[T, H], seed: u64) -> (y: f32[T, H]) { y[t, h] = uniform(seed, 0, position(t, h)) }",
            {"H": 8},
            "T >= 1, T <= 1099511627776, H = 8",
        ),
    ],
)
def test_regions_say_what_is_proved(text: str, fixed: dict[str, int], told: str) -> None:
    found = region(graph_of(text), fixed)
    assert str(found) == told
    assert found.open == tuple(n for n in graph_of(text).sizes if n not in fixed)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (1, "H >= 1, H <= 4096"),
        (4096, "H >= 1, H <= 4096"),
        (4097, "H >= 4097, H <= 1099511627776"),
    ],
)
def test_short_and_long_rows_have_regions_of_their_own(row: int, told: str) -> None:
    found = region(graph_of(SCALE), {}, {"T": 10**6, "H": row})
    assert str(found) == f"T >= 1, T <= 1099511627776, {told}"


def test_what_no_region_has_is_told() -> None:
    text = "op f(x: f32[B*S], w: f32[S]) -> (y: f32[B]) { y[b] = sum[s](w[s] * x[b*S+s]) }"
    with pytest.raises(NotOpen, match="an index is not affine while B, S is open"):
        region(graph_of(text), {})


def test_sizes_on_the_border_are_in_the_region() -> None:
    text = "op f(x: f32[T], w: f32[R]) -> (y: f32[T-R+1]) { y[t] = sum[r](w[r] * x[t+r]) }"
    found = region(graph_of(text), {"R": 3})
    assert [found.has({"T": t, "R": 3}) for t in (0, 1, 2, 3, 2**40, 2**40 + 1)] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    assert not found.has({"T": 5, "R": 2})
    assert [str(c) for c in found.violated({"T": 1, "R": 3})] == ["T - 2 >= 0"]


# --- families ---------------------------------------------------------------------------------------------


class Maker:
    """Compilations that are only noted."""

    def __init__(self, refuse: tuple[str, ...] = ()) -> None:
        self.made: list[dict[str, int]] = []
        self.refuse = refuse

    def __call__(self, graph: TensorGraph, fixed: Mapping[str, int], at: Mapping[str, int]) -> Built:
        if any(n not in fixed for n in self.refuse):
            raise pf.ScheduleError("no kernels", code="PF513")
        self.made.append(dict(fixed))
        return cast(Built, _Stub(dict(at)))


class _Stub:
    def __init__(self, at: dict[str, int]) -> None:
        self.at = at


def calls(family: Family, maker: Maker, *sizes: tuple[int, int]) -> list[dict[str, int]]:
    """What is compiled for calls at these T and H."""
    before = len(maker.made)
    for t, h in sizes:
        at = {"T": t, "H": h}
        if not any(v.region.has(at) for v in family.variants):
            family.built(at, maker)
    return maker.made[before:]


def family_of(usual: str, text: str = SCALE, **wish: Any) -> Family:
    return Family(graph_of(text), wish, usual)


def test_a_size_is_fixed_until_a_second_value_comes() -> None:
    family, maker = family_of("auto"), Maker()
    assert calls(family, maker, (4, 8)) == [{"T": 4, "H": 8}]
    assert calls(family, maker, (5, 8)) == [{"H": 8}]
    assert calls(family, maker, (6, 8), (1, 8), (4, 8)) == []
    assert calls(family, maker, (4, 9)) == [{}]
    assert calls(family, maker, (7, 3), (1, 1), (10**6, 8)) == []
    assert calls(family, maker, (7, 300), (1, 4096), (10**6, 200), (1, 5000), (9, 10**6)) == [{}]
    assert [v.open for v in family.variants] == [(), ("T",), *[("T", "H")] * 2]


def test_sizes_that_vary_one_after_the_other_cost_no_compilation_each() -> None:
    text = "op f(x: f32[A, B, C, H]) -> (y: f32[A, B, C, H]) { y[a, b, c, h] = 2.0 * x[a, b, c, h] }"
    family, maker = family_of("auto", text), Maker()
    first = {"A": 2, "B": 3, "C": 4, "H": 5}
    changes = (
        {},
        {"A": 9},
        {"B": 9},
        {"C": 9},
        {"H": 9},
        {"A": 7, "C": 1},
        {"H": 4096},
        {"H": 5000},
        {"H": 9999},
    )
    for at in ({**first, **changed} for changed in changes):
        if not any(v.region.has(at) for v in family.variants):
            family.built(at, maker)
    assert maker.made == [first, {"B": 3, "C": 4, "H": 5}, {"C": 4, "H": 5}, {}, {}]


def test_a_size_of_zero_has_kernels_of_its_own() -> None:
    family, maker = family_of("open"), Maker()
    assert calls(family, maker, (4, 8), (0, 8), (0, 5), (1, 1)) == [{}, {"T": 0}]
    assert calls(family, maker, (0, 0)) == [{"T": 0, "H": 0}]


def test_fixed_and_open_are_as_told() -> None:
    family, maker = family_of("fixed"), Maker()
    assert calls(family, maker, (4, 8), (5, 8)) == [{"T": 4, "H": 8}, {"T": 5, "H": 8}]
    family, maker = family_of("fixed", T=pf.open), Maker()
    assert calls(family, maker, (4, 8), (5, 8), (5, 9)) == [{"H": 8}, {"H": 9}]
    family, maker = family_of("open", H=8), Maker()
    assert calls(family, maker, (4, 8), (5, 8)) == [{"H": 8}]
    with pytest.raises(pf.ArgumentError, match="PF515: size H of f is fixed at 8 and cannot be 9") as refused:
        family.built({"T": 4, "H": 9}, maker)
    assert "sizes={'H': pf.open}" in str(refused.value)


def test_what_cannot_be_open_is_fixed_and_told() -> None:
    text = """op f(x: f32[T*H], w: f32[H]) -> (y: f32[T]) {
      y[t] = sum[h](w[h] * x[t*H+h])
    }"""
    family, maker = family_of("open", text), Maker()
    assert calls(family, maker, (4, 8), (5, 8), (5, 9)) == [{"H": 8}, {"H": 9}]
    lines = list(map(str, family.told({"T": 4, "H": 8})))
    assert lines[2:] == ["- open T, H: an index is not affine while H is open"]


def test_a_refusal_of_the_compiler_is_remembered() -> None:
    family, maker = family_of("open"), Maker(refuse=("T",))
    assert calls(family, maker, (4, 8)) == [{"T": 4, "H": 8}]
    assert list(family.refused) == [("T", "H")]
    assert calls(family, maker, (5, 8)) == [{"T": 5, "H": 8}]


def test_sizes_of_what_is_put_in_order_are_fixed() -> None:
    text = """op f(x: f32[T, H], w: f32[N]) -> (y: i64[T], z: f32[N]) where H > 1 {
      y[t] = arglargest[h](x[t, h], 1)
      z[n] = 2.0 * w[n]
    }"""
    graph = graph_of(text)
    family, maker = Family(graph, {}, "open"), Maker()
    family.built({"T": 2, "H": 3, "N": 4}, maker)
    assert maker.made == [{"H": 3}]


def test_open_variants_are_few() -> None:
    """A size that cannot be open has a variant for each value, up to a number; then all is fixed."""
    text = """op f(x: f32[T*H], w: f32[H]) -> (y: f32[T]) {
      y[t] = sum[h](w[h] * x[t*H+h])
    }"""
    family, maker = family_of("open", text), Maker()
    for h in range(1, 2 * MOST_OPEN + 1):
        assert calls(family, maker, (4, h)) == [{"H": h}]
    assert calls(family, maker, (4, 100), (5, 100)) == [{"T": 4, "H": 100}, {"T": 5, "H": 100}]


def test_many_kinds_of_rows_end_in_kernels_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.driver.open_sizes.MOST_OPEN", 2)
    text = "op f(x: f32[A, T], y: f32[B, H]) -> (z: f32) { z = sum[a, t](x[a, t]) + sum[b, h](y[b, h]) }"
    family, maker = family_of("open", text), Maker()
    rows = (5, 500, 5000)
    for t, h in ((t, h) for t in rows for h in rows):
        family.built({"A": 2, "T": t, "B": 3, "H": h}, maker) if not any(
            v.region.has({"A": 2, "T": t, "B": 3, "H": h}) for v in family.variants
        ) else None
    assert len(maker.made) == 3 and "T <= 1099511627776" in str(family.variants[-1])


def test_what_a_function_forgets_its_family_forgets() -> None:
    family, maker = family_of("auto"), Maker()
    calls(family, maker, (4, 8), (5, 8))
    family.forget({"T": 5, "H": 8})  # kernels for more than these sizes stay
    assert len(family.variants) == 2
    family.forget({"T": 4, "H": 8})
    assert [v.fixed for v in family.variants] == [{"H": 8}]


def test_the_decision_list_says_which_variant_a_call_takes() -> None:
    family, maker = family_of("auto"), Maker()
    calls(family, maker, (4, 8))
    assert family.told({"T": 4, "H": 8}) == ()  # nothing is open
    calls(family, maker, (5, 8))
    first, second = family.told({"T": 5, "H": 8})
    assert not first.taken and second.taken
    assert "T = 4, H = 8" in str(first)
    assert "T >= 1, T <= 1099511627776, H = 8: sizes are parameters" in str(second)


def test_open_is_one_object() -> None:
    assert pickle.loads(pickle.dumps(pf.open)) is pf.open and repr(pf.open) == "open"
    assert str(Region({})) == "any sizes"
