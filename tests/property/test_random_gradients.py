"""Gradients of random programs, against finite differences in float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gradient_checks import error_of
from programs import random_program

import polyfuse as pf
from polyfuse.diagnostics import PolyfuseError

# No gradient flows, or none can be written.
REFUSED = ("PF791", "PF792", "PF793")


def check(seed: int) -> bool:
    """Is there a gradient, and it is right?"""
    program = random_program(seed)
    text = re.sub(r"\b(f16|bf16|f32)\b", "f64", program.text)
    inputs = {n: a.astype(np.float64) if a.dtype.kind in "fV" else a for n, a in program.inputs.items()}
    try:
        op = pf.parse(text).op()
        pair = pf.grad(op)
    except PolyfuseError as e:
        assert {d.code for d in e.diagnostics} <= {*REFUSED, "PF201", "PF205", "PF231"}, f"{text}\n{e}"
        return False
    error = error_of(pair, op.graph(), program.sizes, inputs, np.random.default_rng(seed))
    assert error < 1e-5, f"{error}\n{text}\n{pair}"
    return True


@pytest.mark.parametrize("seeds", [range(4), range(4, 8)], ids=str)
def test_gradients_of_random_programs(seeds: range) -> None:
    assert sum(map(check, seeds)) > len(seeds) // 2


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 300, 20))
def test_gradients_of_more_random_programs(start: int) -> None:
    assert sum(map(check, range(start, start + 20))) > 10
