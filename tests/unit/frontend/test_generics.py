"""Signatures, and generics from actual arguments."""

from __future__ import annotations

import pytest

from polyfuse.diagnostics import ArgumentError
from polyfuse.frontend_dsl.semantics.signature import Generics, Signature, infer_generics, signature
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import BF16, F16, F32, F64, I32, I64, DType


def sig(head: str) -> Signature:
    return signature(parse_text(f"op {head} {{ y = 1 }}", "t.pf").ops[0])


NORM = sig("norm[F: float, I: int](x: F[B..., H], w: F[H], k: I[B...], eps: F = 1e-5) -> (y: F[B..., H])")
PAIR = sig("pair(a: f32[A..., K], b: f32[A..., B..., K]) -> (y: f32[A..., B...])")


def test_signature() -> None:
    assert str(NORM) == (
        "norm[F: float, I: int](x: F[B..., H], w: F[H], k: I[B...], eps: F = 1e-05) -> (y: F[B..., H])"
    )
    assert NORM.sizes == ("H",)
    assert NORM.rank_variables == ("B",)
    eps = NORM.param("eps")
    assert eps.is_scalar and eps.has_default and eps.default == 1e-5
    assert not NORM.param("x").is_scalar


def test_defaults_have_the_type_of_the_parameter() -> None:
    params = sig("f(a: f32 = 1, b: i32 = -2, c: bool = true, d: f32) -> (y: f32)").params
    assert [p.default for p in params] == [1.0, -2, True, None]
    assert isinstance(params[0].default, float)
    assert [p.has_default for p in params] == [True, True, True, False]


def test_sizes_in_order_of_first_occurrence() -> None:
    assert sig("f(x: f32[T, 3*H], w: f32[K, T]) -> (y: f32[M]) where M == T").sizes == ("T", "H", "K", "M")


def test_from_arguments() -> None:
    got = infer_generics(NORM, {"x": BF16, "w": BF16, "k": I64}, {"x": 3, "w": 1, "k": 2})
    assert got == Generics({"F": BF16, "I": I64}, {"B": 2})


def test_python_numbers_fix_nothing() -> None:
    got = infer_generics(NORM, {"x": F64, "w": F64, "k": I32}, {"x": 1, "w": 1, "k": 0, "eps": 0})
    assert got == Generics({"F": F64, "I": I32}, {"B": 0})
    only_numbers = sig("f[F: float](a: F) -> (y: F)")
    assert infer_generics(only_numbers, {}, {"a": 0}).dtypes == {"F": F32}


def test_several_rank_variables() -> None:
    assert infer_generics(PAIR, {"a": F32, "b": F32}, {"a": 2, "b": 4}).ranks == {"A": 1, "B": 2}
    repeated = sig("f(a: f32[A..., A...]) -> (y: f32)")
    assert infer_generics(repeated, {}, {"a": 4}).ranks == {"A": 2}


BAD: list[tuple[Signature, dict[str, DType], dict[str, int], str, str]] = [
    (NORM, {"x": F16, "w": F32}, {"x": 2, "w": 1}, "PF403", "'x' and 'w' of one dtype (F), got f16 and f32"),
    (NORM, {"x": I32}, {"x": 2}, "PF402", "'x' of norm has dtype i32; F is one of f64, f32, f16, bf16"),
    (NORM, {"k": F32}, {}, "PF402", "I is one of i64, i32, i16, i8, u64, u32, u16, u8"),
    (PAIR, {"a": F64}, {}, "PF402", "argument 'a' of pair has dtype f64, expected f32"),
    (NORM, {}, {"x": 0}, "PF401", "argument 'x' of norm has 0 axes, expected at least 1 axis: F[B..., H]"),
    (NORM, {}, {"w": 2}, "PF401", "argument 'w' of norm has 2 axes, expected 1 axis: F[H]"),
    (NORM, {}, {"x": 3, "k": 1}, "PF404", "because 'x' has 3 axes; then 'k': I[B...] has 2, not 1"),
    (PAIR, {}, {"a": 3, "b": 2}, "PF401", "argument 'b' of pair has 2 axes"),
    (PAIR, {}, {"b": 2}, "PF401", "of the axes of A... and B... only the sum follows"),
]  # fmt: skip


@pytest.mark.parametrize("row", BAD, ids=[f"{r[3]} {r[4][:30]}" for r in BAD])
def test_conflicts(row: tuple[Signature, dict[str, DType], dict[str, int], str, str]) -> None:
    what, dtypes, ranks, code, words = row
    with pytest.raises(ArgumentError) as caught:
        infer_generics(what, dtypes, ranks)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_all_conflicts_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        infer_generics(NORM, {"x": F16, "w": F32, "k": F32}, {"x": 2, "w": 3})
    assert [d.code for d in caught.value.diagnostics] == ["PF403", "PF401", "PF402"]
