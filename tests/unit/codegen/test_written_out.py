"""Short loops with functions are written out, whatever their size: vectors are those of the loop around."""

from __future__ import annotations

import pytest
from equivalence import assert_compiled, cpu_source

TEXT = "op f(x: f32[N, C], z: f32[N, 8]) -> (y: f32[N, C]) {{ y[n, c] = {} + 0.1 * z[n, 2 * c] }}"
FUNCTIONS = TEXT.format("exp(-abs(exp(-abs(x[n, c]))))")
PLAIN = TEXT.format("max(x[n, c], 0.2)")


def marked(text: str, **sizes: int) -> bool:
    return "PF_IVDEP PF_WRITTEN\n" in cpu_source(text, **sizes)


@pytest.mark.machine("zen5")
@pytest.mark.parametrize(("columns", "found"), [(2, True), (3, True), (4, True)])
def test_loops_of_a_few_iterations(columns: int, found: bool) -> None:
    assert marked(FUNCTIONS, N=5000, C=columns) == found
    assert not marked(PLAIN, N=5000, C=columns)


@pytest.mark.machine("zen5")
def test_longer_loops_fill_vectors() -> None:
    text = FUNCTIONS.replace("f32[N, 8]", "f32[N, 32]")
    assert not marked(text, N=5000, C=5)
    assert not marked(text, N=5000, C=16)


@pytest.mark.machine("zen5")
def test_the_mark_is_explained_where_it_is_used() -> None:
    assert "#define PF_WRITTEN" in cpu_source(FUNCTIONS, N=5000, C=4)
    assert "PF_WRITTEN" not in cpu_source(PLAIN, N=5000, C=4)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_values(columns: int) -> None:
    assert_compiled(FUNCTIONS, N=77, C=columns)
