"""When kernels that know the sizes of a shape repay their compilation."""

from __future__ import annotations

from math import inf

import pytest

from polyfuse.cost.open_gain import COMPILATION_S, KERNEL_S, LEAST, WORTH, OpenGain, open_gain
from polyfuse.decisions import Decision


def taken(*kinds: str) -> list[Decision]:
    return [Decision(k, "y", True, "so it is") for k in kinds]


def test_as_many_calls_as_gain_what_the_compilation_takes() -> None:
    assert OpenGain(3e-6, 1e-6, 0.5).calls == 250_000
    assert OpenGain(1.5e-3, 1e-3, 0.25).calls == 500
    assert str(OpenGain(1.5e-3, 1e-3, 0.25, ("stream",))) == (
        "1.5e+03 us a call with open sizes, 1e+03 us without (stream): 0.25 s of compilation pay from 500 "
        "calls on"
    )


@pytest.mark.parametrize("open_s", [0.5e-3, 1e-3, 1e-3 * (LEAST - 0.001)])
def test_where_nothing_is_gained_no_number_of_calls_repays_it(open_s: float) -> None:
    found = OpenGain(open_s, 1e-3, 0.25)
    assert found.calls == inf and str(found).endswith("nothing to gain")


def test_what_open_kernels_leave_counts_once() -> None:
    fixed = [*taken("stream", "stream", "online", "fuse"), Decision("rfactor", "y", False, "no")]
    found = open_gain((2e-3, 1e-3), (taken("online", "fuse"), fixed), 3)
    assert found.left == ("stream",)
    assert found.open_s == 2e-3 * WORTH["stream"] and found.fixed_s == 1e-3
    assert found.compile_s == pytest.approx(COMPILATION_S + 3 * KERNEL_S)
    assert open_gain((1e-3, 1e-3), (fixed, taken("fuse")), 1).calls == inf
