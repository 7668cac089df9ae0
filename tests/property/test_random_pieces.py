"""Pieces that are told apart by ranges have no element in common, whatever the sizes are."""

from __future__ import annotations

import itertools
import random

import islpy as isl
import pytest

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, binary, evaluate
from polyfuse.ir.tensor_graph import Const, IterDim, Role, Statement, Tensor, TensorGraph
from polyfuse.poly.legality import pieces as proofs
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.poly.legality.separate import may_meet
from polyfuse.poly.model.isl_text import IslText

SIZES = ("M", "N")


def bound(dice: random.Random, outer: list[str]) -> IndexExpr:
    """A number, a multiple of a size, a sum, or something that is not linear."""
    e: IndexExpr = IConst(dice.randint(0, 3))
    if dice.random() < 0.6:
        e = binary("+", e, binary("*", ISize(dice.choice(SIZES)), dice.randint(0, 3)))
    if dice.random() < 0.15:
        e = binary(dice.choice(("min", "max")), e, ISize(dice.choice(SIZES)))
    if outer and dice.random() < 0.2:
        e = binary("+", e, IVar(dice.choice(outer)))
    return e


def piece(dice: random.Random, k: int) -> Statement:
    dims: list[IterDim] = []
    for name in ("i", "j"):
        low = bound(dice, [d.name for d in dims])
        dims.append(IterDim(name, low, binary("+", low, bound(dice, []))))
    write = []
    for d in dims:
        e: IndexExpr = binary("*", IVar(d.name), dice.choice((1, 1, 1, 2, -1)))
        if dice.random() < 0.3:
            e = binary("+", e, bound(dice, []))
        if dice.random() < 0.1:
            e = IBin(dice.choice(("//", "%")), e, IConst(2))
        write.append(e if dice.random() < 0.8 else IConst(dice.randint(0, 4)))
    return Statement(f"s{k}", "y", tuple(dims), tuple(write), Const(0.0, F32))


def elements(s: Statement, sizes: dict[str, int]) -> set[tuple[int, ...]]:
    found = set()

    def go(k: int, env: dict[str, int]) -> None:
        if k == len(s.dims):
            found.add(tuple(evaluate(i, env) for i in s.write))  # type: ignore[arg-type]
            return
        d = s.dims[k]
        for v in range(evaluate(d.lower, env), evaluate(d.upper, env)):
            go(k + 1, {**env, d.name: v})

    go(0, dict(sizes))
    return found


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_pieces_that_are_told_apart_do_not_meet(seed: int, known: bool) -> None:
    dice = random.Random(seed)
    chosen = tuple(piece(dice, k) for k in range(dice.randint(2, 7)))
    tensor = Tensor("y", F32, (ISize("M"), ISize("N")), Role.OUTPUT)
    graph = TensorGraph("f", SIZES, (), (tensor,), chosen, (), ("y",))
    for m, n in itertools.product((0, 1, 3, 4), repeat=2):
        sizes = {"M": m, "N": n}
        pairs = set(may_meet(IslText(graph, sizes if known else {}, isl.Context()), chosen))
        every = [elements(s, sizes) for s in chosen]
        for b, a in itertools.combinations(reversed(range(len(chosen))), 2):
            assert (b, a) in pairs or not every[a] & every[b], (chosen[a], chosen[b], sizes)


def concatenation(count: int, shift: int = 0) -> str:
    """Pieces of M elements each, in an order of no meaning; `shift` moves the last one down."""
    order = [(7 * k) % count for k in range(count)]
    lines = [
        f"y[i] = x[i] * {k}.0 for i in {k} * M - {shift if k == count - 1 else 0}..{k + 1} * M" for k in order
    ]
    return "\n".join([f"op f(x: f32[{count} * M]) -> (y: f32[{count} * M]) {{", *lines, "}"])


def grid(count: int) -> str:
    """Tiles of a matrix, in both directions."""
    lines = [
        f"y[i, j] = x[i, j] * {a}.{b} for i in {a} * M..{a + 1} * M, j in {b} * N..{b + 1} * N"
        for a in range(count)
        for b in range(count)
    ]
    shape = f"f32[{count} * M, {count} * N]"
    return "\n".join([f"op f(x: {shape}) -> (y: {shape}) {{", *lines, "}"])


@pytest.mark.parametrize("text", [concatenation(41), grid(6)], ids=["concatenation", "grid"])
@pytest.mark.parametrize("sizes", [None, {"M": 3, "N": 5}], ids=["open", "known"])
def test_no_pair_of_pieces_in_order_is_asked_of_isl(
    text: str, sizes: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(proofs, "_apart", lambda *pair: asked.append(pair))
    graph = instantiate(parse_text(text), "f")
    own = None if sizes is None else {n: sizes[n] for n in graph.sizes}
    found = Diagnostics()
    prove_ranges(graph, own, found)
    assert not found.errors
    assert not asked


def test_pieces_that_meet_are_found_among_many() -> None:
    graph = instantiate(parse_text(concatenation(41, shift=1)), "f")
    found = Diagnostics()
    prove_ranges(graph, {"M": 3}, found)
    assert {d.code for d in found.errors} == {"PF352"}
    assert "y[119] is defined twice" in str(found.errors[0])
