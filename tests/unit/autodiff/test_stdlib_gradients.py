"""Gradients of all operators of the standard library, against finite differences."""

from __future__ import annotations

import pytest
from gradient_checks import error

import polyfuse as pf

# What has no gradient: results are integers, or no float that depends on a tensor of floats.
WITHOUT = ("one_hot", "histogram", "argsort")
NAMES = [n for n in pf.stdlib.ops if n not in WITHOUT]


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_differences(name: str) -> None:
    assert error(pf.stdlib.op(name)) < 1e-6


@pytest.mark.parametrize("name", WITHOUT)
def test_without_floats_there_is_no_gradient(name: str) -> None:
    with pytest.raises(pf.ArgumentError) as e:
        pf.grad(pf.stdlib.op(name))
    assert e.value.diagnostics[0].code == "PF791"
