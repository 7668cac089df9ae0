"""The operators that are timed beside peers: their texts have a meaning, and their arrays fit it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks.golden_programs import Zeros, of_case  # noqa: E402
from benchmarks.operator_contenders import cases_of, ours  # noqa: E402
from benchmarks.operator_peers import Row, chosen, disagreements, main, table  # noqa: E402
from benchmarks.operators import CASES, Case  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_arrays_fit_the_text(case: Case) -> None:
    of_case(case)
    inout = [k for k, p in enumerate(case.program().op(case.operator).signature.params) if p.inout]
    assert tuple(inout) == case.updated
    assert sum(a.nbytes for a in case.inputs(Zeros(case.name))) < 33e6


def test_each_case_is_another() -> None:
    assert len({c.name for c in CASES}) == len(CASES) >= 100
    assert all(np.array_equal(*pair) for pair in zip(CASES[0].arguments(), CASES[0].arguments(), strict=True))


def test_arrays_begin_at_cache_lines() -> None:
    case = CASES[chosen(["means of bags"])[0]]
    assert all(a.ctypes.data % 64 == 0 and a.flags.c_contiguous for a in case.arguments())


STEP = Case(
    "step",
    "op f(inout p: f32[N], g: f32[N]) -> (n: f32) {\n p[i] = p[i] - 0.5 * g[i]\n n = sum[i](g[i] ** 2)\n}",
    lambda d: (d(33), d(33)),
    lambda t, f, p, g: None,
    lambda j, n, p, g: None,
    updated=(0,),
)


def test_results_come_before_what_is_updated() -> None:
    p, g = (a.copy() for a in STEP.arguments())
    given = STEP.arguments()
    call, arrays = ours(STEP, given, 1)
    norm, after = arrays(call())
    np.testing.assert_allclose(norm, (g**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(after, p - 0.5 * g, rtol=1e-5)


def test_who_is_wrong_is_named() -> None:
    right = [np.float32([1, 2, -np.inf]), np.int64([3, 4])]
    near = [np.float32([1, 2.00001, -np.inf]), np.int32([3, 4])]
    assert not disagreements(STEP, {"a": right, "b": near, "c": right})
    for value in (2.1, np.nan, np.inf):
        wrong = [np.float32([1, value, -np.inf]), np.int64([3, 4])]
        (found,) = disagreements(STEP, {"a": right, "b": wrong, "c": near})
        assert found.startswith("result 0: b is off by ")
    (found,) = disagreements(STEP, {"a": right, "b": right, "c": [right[0], np.int64([3, 5])]})
    assert found.startswith("result 1: c is off by 1")
    assert "numbers of results differ" in disagreements(STEP, {"a": right, "b": right[:1]})[0]
    assert "shapes of result 0 differ" in disagreements(STEP, {"a": right[:1], "b": [right[0][:2]]})[0]


def test_the_slowest_beside_a_peer_is_first() -> None:
    fast = Row(CASES[0], {"polyfuse": 1e-3, "PyTorch": 3e-3, "jax.jit": 2e-3})
    slow = Row(CASES[1], {"polyfuse": 1e-3, "PyTorch": 5e-4})
    alone = Row(CASES[2], {"polyfuse": 1e-3}, ["jax.jit: no"])
    lines = table([fast, alone, slow]).splitlines()
    assert lines[0] == "| operator | polyfuse | PyTorch | jax.jit | fastest peer / ours |"
    assert lines[2:5] == [
        f"| {CASES[1].name} | 1 | 0.5 |  | 0.50 |",
        f"| {CASES[0].name} | 1 | 3 | 2 | 2.00 |",
        f"| {CASES[2].name} | 1 |  |  |  |",
    ]
    assert "2 operators: geometric mean 1.00, 1 below 1." in lines
    assert lines[-1] == f"- {CASES[2].name}: jax.jit: no"


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "layer norm", "Lion"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "Lion" in listed and "layer norm, odd" in listed and "softplus" not in listed
    assert main(["--only", "no such thing"]) == 2
    said = capsys.readouterr().err
    assert "no operator has 'no such thing' in its name" in said and "softplus" in said


def test_row_workloads_in_16_bits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--half", "--list", "--only", "ln_fwd T=64"]) == 0
    assert capsys.readouterr().out.splitlines() == ["ln_fwd T=64 H=768 f16", "ln_fwd T=64 H=768 bf16"]
    cases = cases_of("half")
    for case in cases:
        signature = case.program().op("f").signature
        assert "f32" not in str(signature), case.name
    for k in chosen(["ln_fwd T=64"], "half"):
        x, gamma, beta = (a.astype("f8") for a in cases[k].arguments())
        call, arrays = ours(cases[k], cases[k].arguments(), 1)
        (found,) = arrays(call())
        assert found.dtype == cases[k].arguments()[0].dtype
        expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
        np.testing.assert_allclose(found.astype("f8"), expected, atol=0.04)
