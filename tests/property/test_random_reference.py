"""Random programs: valid by construction, proved in range, and the reference right about all of them.

The judge is `slow_eval`, an element-by-element evaluation in the declared types; it must agree with
the float64 reference by the Agreement rule, and a planted error must not.
"""

from __future__ import annotations

import numpy as np
import pytest
from programs import RandomProgram, random_program
from slow_eval import Slow

from polyfuse.diagnostics import Diagnostics
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.reference.evaluate import evaluate

FEW, MANY = range(60), range(60, 1060)


def graph_of(p: RandomProgram) -> TensorGraph:
    return instantiate(parse_text(p.text), p.op)


def check(seed: int) -> None:
    p = random_program(seed)
    g = graph_of(p)
    found = Diagnostics()
    still_open = prove_ranges(g, None, found)
    assert not prove_ranges(g, p.sizes, found, still_open)
    found.raise_if_errors()
    want = evaluate(g, p.sizes, p.inputs)
    slow = Slow(g, p.sizes, p.inputs)
    for name in g.outputs:
        dtype = g.tensor(name).dtype
        got = slow.tensor(name)
        outcome = agrees(got, want[name], dtype)
        assert outcome, f"seed {seed}, {name}: {outcome.message}\n{p.text}"


@pytest.mark.parametrize("seed", FEW)
def test_reference_agrees_with_slow_evaluation(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_reference_agrees_with_slow_evaluation_on_many(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("seed", [3, 11, 42])
def test_equal_seeds_give_equal_programs(seed: int) -> None:
    a, b = random_program(seed), random_program(seed)
    assert a.text == b.text and a.sizes == b.sizes and a.inputs.keys() == b.inputs.keys()
    assert all(
        np.array_equal(a.inputs[n].view(np.uint8), b.inputs[n].view(np.uint8))
        for n in a.inputs
        if a.inputs[n].ndim
    )


def test_programs_are_varied_and_small() -> None:
    texts = [random_program(seed).text for seed in range(200)]
    for feature in (
        "sum[",
        "max[",
        "argm",
        "+=",
        "max=",
        "let ",
        "exp(",
        " // ",
        " % ",
        "bf16",
        "f64",
        " if ",
        " else 0.25]",
        "i32",
    ):
        assert sum(feature in t for t in texts) >= 5, feature
    assert max(len(t.splitlines()) for t in texts) <= 24
    assert len(set(texts)) > 190


def test_programs_mix_floats_of_16_bits_without_casts() -> None:
    texts = [random_program(seed).text for seed in range(1, 200, 2)]
    assert sum(": f16[" in t and ": bf16[" in t for t in texts) >= 5


def test_planted_errors_are_caught() -> None:
    """An error of 0.3 % of the largest element of a float32 or float64 result shows, mostly."""
    caught = tried = 0
    for seed in range(80):
        p = random_program(seed)
        g = graph_of(p)
        want = evaluate(g, p.sizes, p.inputs)
        for name in g.outputs:
            t, w = g.tensor(name), want[name]
            if t.dtype.name not in ("f32", "f64") or not w.value.size or w.undecided.any():
                continue
            got = w.value.astype(t.dtype.numpy)
            at = np.unravel_index(np.abs(np.nan_to_num(w.value)).argmax(), w.value.shape)
            if not np.isfinite(got[at]) or got[at] == 0:
                continue
            got[at] *= 1.003
            tried += 1
            caught += not agrees(got, w, t.dtype)
    assert tried > 60 and caught >= 0.97 * tried
