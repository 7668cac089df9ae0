"""Functions that came later do not break a file that has an operator of their name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.diagnostics import DslError
from polyfuse.frontend_dsl.syntax.names import FUNCTIONS, is_reserved
from polyfuse.ir.ops import OPS

X = np.array([-2.0, 0.5, 3.0], np.float32)
YIELDING = [n for n in FUNCTIONS if not is_reserved(n)]
OWN = "op {0}(x: f32[N]) -> (y: f32[N]) {{ y[i] = x[i] + 100.0 }}\n"
CALLED = "op main(x: f32[N]) -> (z: f32[N]) {{ y = {0}(x)\n z[i] = 2.0 * y[i] }}"


def run(text: str, *args: object, op: str = "main") -> np.ndarray:
    return np.asarray(pf.compile(text, op=op, target="interpret")(*args))


def test_those_that_were_there_are_reserved() -> None:
    assert set(YIELDING) == {o.name for o in OPS.values() if o.called and o.yields}
    assert {"exp", "erf", "max", "isnan", "select"} <= set(FUNCTIONS) - set(YIELDING)


@pytest.mark.parametrize("name", YIELDING)
def test_an_operator_may_have_the_name(name: str) -> None:
    text = OWN.format(name) + CALLED.format(name)
    np.testing.assert_array_equal(run(text, X), 2 * (X + 100))
    np.testing.assert_array_equal(run(text, X, op=name), X + 100)


def test_that_of_an_import_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "own.pf").write_text(OWN.format("sign"))
    (tmp_path / "main.pf").write_text('import "own.pf"\n' + CALLED.format("sign"))
    f = pf.compile(tmp_path / "main.pf", op="main", target="interpret")
    np.testing.assert_array_equal(f(X), 2 * (X + 100))


def test_without_one_it_is_the_function() -> None:
    text = "op main(x: f32[N], a: f32, b: f32) -> (z: f32[N]) { r = hypot(a, b)\n z[i] = sign(x[i]) * r }"
    np.testing.assert_array_equal(run(text, X, 3.0, 4.0), [-5, 5, 5])


def test_an_operator_of_the_name_stands_in_no_expression() -> None:
    text = OWN.format("sign") + "op main(x: f32[N]) -> (z: f32[N]) { z[i] = 2.0 * sign(x[i]) }"
    with pytest.raises(DslError) as caught:
        pf.parse(text)
    assert [d.code for d in caught.value.diagnostics] == ["PF213"]


@pytest.mark.parametrize("name", ["exp", "isnan", "max"])
def test_other_names_are_taken(name: str) -> None:
    with pytest.raises(DslError) as caught:
        pf.parse(OWN.format(name))
    assert [d.code for d in caught.value.diagnostics] == ["PF232"]


def test_tensors_sizes_and_indices_may_have_the_name() -> None:
    text = "op main(sign: f32[trunc], atan: f32) -> (z: f32[trunc]) { z[tan] = sign(sign[tan]) * atan }"
    np.testing.assert_array_equal(run(text, X, 2.0), [-2, 2, 2])


def test_operands() -> None:
    """`sign` takes integers; other functions of the table floats, also of sizes and index variables."""
    text = "op main(k: i32[N]) -> (z: i32[N], v: f32[N]) { z[i] = sign(k[i]); v[i] = log2(i + 1) }"
    z, v = pf.compile(text, target="interpret")(np.array([-7, 0, 9], np.int32))
    np.testing.assert_array_equal(z, [-1, 0, 1])
    np.testing.assert_allclose(v, np.log2([1, 2, 3]), rtol=1e-6)
    for bad, hint in (("log2(k[i])", "log2(f32(...))"), ("fmod(k[i], k[i])", "fmod(f32(...))")):
        with pytest.raises(DslError, match="takes floats") as caught:
            pf.parse(f"op f(k: i32[N]) -> (y: f32[N]) {{ y[i] = {bad} }}")
        assert hint in (caught.value.diagnostics[0].hint or "")
