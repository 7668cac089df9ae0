"""What is known about sizes: questions about minima and maxima that constraints have as well."""

from __future__ import annotations

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.frontend_dsl.size_algebra import Facts
from polyfuse.ir.index_expr import ISize, as_index, binary
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
