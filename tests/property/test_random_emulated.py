"""Random programs as CUDA in the emulator: three devices, three orders of threads, no race, the reference's
numbers.

10 programs for each test in a run; `make test-all` runs many more.
"""

from __future__ import annotations

import pytest
from targets import check_emulated
from test_random_programs import MORE_GROUPS, TOGETHER, call_of
from thinned import thinned

GROUPS = range(10)


def check_group(group: int) -> None:
    check_emulated([call_of(group * TOGETHER + k) for k in range(TOGETHER)])


@pytest.mark.parametrize("group", thinned(GROUPS, 10))
def test_emulated_kernels_agree(group: int) -> None:
    check_group(group)


@pytest.mark.slow
@pytest.mark.parametrize("group", MORE_GROUPS)
def test_emulated_kernels_agree_on_many(group: int) -> None:
    check_group(group)


@pytest.mark.parametrize("first", thinned(range(400, 440, 5), 8))
def test_joined_kernels_agree(first: int) -> None:
    """Layers I and II with barriers of the grid wherever they can be."""
    calls = [call_of(seed) for seed in range(first, first + 5)]
    check_emulated(calls, stitched=(True,), barriers=True, orders=("random",))


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_unfused_kernels_agree(group: int) -> None:
    check_emulated([call_of(group * TOGETHER + k) for k in range(TOGETHER)], fused=(False,))
