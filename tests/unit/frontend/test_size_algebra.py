"""What is known about sizes: questions about minima and maxima that constraints have as well."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.size_algebra import Bounds, Facts, Monomial, Poly
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import IConst, IndexExpr, ISize, as_index, binary
from polyfuse.ir.tensor_graph import Constraint

M = ISize("M")
INNER = binary("max", M - 2, 4)
OUTER = binary("max", INNER, M)


@pytest.mark.parametrize("least", [INNER, OUTER], ids=str)
def test_no_proof_rests_on_itself(least: object) -> None:
    """Is the inner one negative? A constraint is asked that has the outer one, which has the inner one."""
    facts = Facts([Constraint(">=", M, as_index(5)), Constraint(">=", least, as_index(2))])  # type: ignore[arg-type]
    assert facts.at_least(INNER, as_index(0))
    assert facts.at_least(OUTER, as_index(0))
    assert not facts.at_least(INNER, OUTER)
    assert not facts.at_least(M, as_index(6))
    assert facts.at_least(M, as_index(5))


def test_extremes_of_many_operands_keep_those_that_count() -> None:
    facts = Facts([Constraint(">=", M, as_index(5))])
    for op, want in (("max", M), ("min", binary("min", M - 2, as_index(4)))):
        inside = M - 2
        for k in range(60):
            inside = binary(op, inside, (as_index(4), M, M - 2)[k % 3])
        assert facts.equal(inside, want)


def test_questions_about_nested_extremes_come_to_an_end() -> None:
    """Each is about others, by way of two constraints: without what was found before, they multiply."""
    n, m = ISize("N"), M
    for k in range(5):
        n, m = (binary("max", as_index(k), binary("min", a, b + k)) for a, b in ((n, M), (m, ISize("N"))))
    facts = Facts([Constraint(">=", n, as_index(3)), Constraint(">=", m, as_index(2))])
    assert facts.at_least(n, as_index(0)) and facts.equal(n, n + 0)
    assert not facts.at_least(n, m)


@pytest.mark.parametrize("rows", [3, 12])
def test_many_pieces_are_taken_in_a_moment(rows: int) -> None:
    """The columns end at the greatest of three bounds for each block of rows. They fit together for M = 5."""
    cuts = [*map(str, range(rows)), "N"]
    pieces = [
        f"a[i, j] = x[i, j] * {k}.0 for i in {low}..{high}, j in {columns}"
        for k, (low, high) in enumerate(pairwise(cuts))
        for columns in ("0..M - 2", "M - 2..4", "4..M")
    ]
    text = "\n".join(pieces)
    head = f"op p(x: f32[N, M]) -> (t: f32[N, M]) where N >= {rows}, M >= 5"
    rest = "m[i] = max[j](a[i, j])\nt[i, j] = a[i, j] / sum[k](a[i, k]) if j < M - 2 else m[i]"
    graph = instantiate(parse_text(f"{head} {{\n{text}\n{rest}\n}}"), "p")
    assert graph.tensor("a").shape == (ISize("N"), ISize("M"))


def test_pieces_whose_ends_pass_each_other() -> None:
    """Columns M - 2 .. 4 are there only for M = 5."""
    text = """op p(x: f32[N, M]) -> (t: f32[N, M], s: f32[N]) where N >= 6, M >= 5 {
      a[i, j] = x[N - 1 - i, j] for i in 0..4, j in 0..M - 2
      a[i, j] = x[i, j] * 2.0 for i in 0..4, j in M - 2..4
      a[i, j] = x[i, j] * 3.0 for i in 0..4, j in 4..M
      a[i, j] = sum[k in 0..min(i + 1, M)](x[i, k]) for i in 4..N, j in 0..2
      a[i, j] = x[i, j] for i in 4..N, j in 2..M - 2
      a[i, j] = x[i, j] * 4.0 for i in 4..N, j in M - 2..4
      a[i, j] = x[i, j] * 5.0 for i in 4..N, j in 4..M
      t[i, j] = a[i, j] for i in 0..N, j in 0..M
      s[i] = max[j](a[i, j])
    }"""
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    t, s = pf.compile(text)(x)
    want = np.empty_like(x)
    want[:4, :3], want[:4, 3], want[:4, 4] = x[:2:-1, :3], 2 * x[:4, 3], 3 * x[:4, 4]
    want[4:, :2] = np.cumsum(x[4:], 1)[:, -1:]
    want[4:, 2], want[4:, 3], want[4:, 4] = x[4:, 2], 4 * x[4:, 3], 5 * x[4:, 4]
    np.testing.assert_array_equal(t, want)
    np.testing.assert_array_equal(s, want.max(1))


def _drawn(rng: random.Random, depth: int = 2) -> IndexExpr:
    """An expression of sizes."""
    if depth == 0 or rng.random() < 0.35:
        return ISize(rng.choice("ABCDE")) if rng.random() < 0.75 else IConst(rng.randint(0, 7))
    op = rng.choice(("+", "+", "-", "-", "*", "//", "min", "max", "%"))
    left = _drawn(rng, depth - 1)
    return binary(op, left, IConst(rng.randint(1, 4)) if op in ("//", "%") else _drawn(rng, depth - 1))


def test_bounds_that_are_passed_by_would_not_have_helped() -> None:
    """What is known is looked at by what it has; to look at all of it shows no more."""

    class All(Bounds):
        def taking(self, away: Collection[Monomial]) -> Iterator[Poly]:
            return (self._poly(form) for form in self._constant)

        within = taking

    shown = 0
    for seed in range(150):
        rng = random.Random(seed)
        ops = [rng.choice((">=", ">=", ">", "<=", "==")) for _ in range(rng.randint(0, 6))]
        constraints = [Constraint(op, _drawn(rng), _drawn(rng)) for op in ops]
        some, every = Facts(), Facts()
        every._nonneg = All()
        for c in constraints:
            some.learn(c)
            every.learn(c)
        for _ in range(8):
            a, b = _drawn(rng), _drawn(rng)
            assert some.at_least(a, b) == every.at_least(a, b), (constraints, a, b)
            shown += some.at_least(a, b)
    assert shown > 70
