"""isl's expressions as index expressions."""

from __future__ import annotations

import islpy as isl
import pytest

from polyfuse.ir.index_expr import evaluate
from polyfuse.poly.model.isl_bridge import NotAffine, from_ast_expr, isl_lock


def printed(pieces: str) -> isl.AstExpr:
    """What isl's generator prints for a function of c in pieces, in a loop over 0..40."""
    context = isl.Context()
    build = isl.AstBuild.from_context(isl.Set.read_from_str(context, "[c] -> { : 0 <= c < 40 }"))
    return build.expr_from_pw_aff(isl.PwAff.read_from_str(context, f"[c] -> {{ {pieces} }}"))


@pytest.mark.parametrize(
    ("pieces", "border", "values"),
    [
        ("[(0)] : c <= 15; [(1)] : c > 15", 15, (0, 1)),
        ("[(3)] : c >= 16; [(-4)] : c < 16", 15, (-4, 3)),
        ("[(c)] : c <= 7; [(c + 5)] : c > 7", 7, (0, 5)),
    ],
)
def test_choices_between_values_a_known_way_apart(pieces: str, border: int, values: tuple[int, int]) -> None:
    with isl_lock:
        e = printed(pieces)
        assert "?" in e.to_C_str()
        found = from_ast_expr(e)
    for c in range(40):
        plain = c if "c +" in pieces else 0
        assert evaluate(found, {"c": c}) == plain + values[c > border]


def test_other_choices_are_refused() -> None:
    with isl_lock, pytest.raises(NotAffine):
        from_ast_expr(printed("[(2*c)] : c <= 7; [(40 - 3*c)] : 7 < c < 20; [(c)] : c >= 20"))


@pytest.mark.parametrize(
    ("pieces", "at"), [("[(1)] : c = 0; [(2c)] : c > 0", 0), ("[(7)] : c = 39; [(c)] : c < 39", 39)]
)
def test_one_value_may_be_anything(pieces: str, at: int) -> None:
    """Where one value of c alone has its own, the way apart is known there."""
    with isl_lock:
        e = printed(pieces)
        assert "==" in e.to_C_str()
        found = from_ast_expr(e)
    for c in range(40):
        usual = 2 * c if "2c" in pieces else c
        assert evaluate(found, {"c": c}) == ((1 if at == 0 else 7) if c == at else usual)
