"""The table of operations: rows have their kernels, what they say is true, and that makes a function."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyfuse.codegen.math.prelude import COMPUTE_FLOATS, INTEGERS, ROW_POWERS, prelude
from polyfuse.frontend_dsl.syntax import names
from polyfuse.frontend_dsl.syntax.names import FLOAT_FUNCTIONS, FUNCTIONS
from polyfuse.ir.dtypes import BOOL, F32, F64, I32, I64, DType
from polyfuse.ir.functions import is_function
from polyfuse.ir.ops import (
    BY_SIGN,
    COMBINES,
    INFIX,
    NEGATED,
    OPS,
    Cost,
    Op,
    Takes,
    Trait,
    of_cost,
    with_trait,
)
from polyfuse.ir.tensor_graph import Apply, Read
from polyfuse.runtime.interpreter import ops
from polyfuse.runtime.machine.op_rates import FUNCTIONS as RATED
from polyfuse.runtime.numpy_text import helpers, numpy_text
from polyfuse.runtime.reference import ops as reference_ops
from polyfuse.runtime.reference.values import Val

ROOT = Path(__file__).resolve().parents[3]
IN_LANGUAGE = [o for o in OPS.values() if o.called or o.sign]
# Written by code generation only, for CPUs and, where they have no instruction for it, in plain C.
WITHIN = "within"  # printed as its operand, or with its check
PACKED = ("word", "dot_words", "half", "dot_bytes", "pair", "dot_pairs")
NUMBERS = [-3.0, -1.5, -0.75, -0.0, 0.0, 0.25, 1.0, 1.75, 2.5, 7.0]


def compute_dtypes(o: Op) -> Iterator[DType]:
    """The dtypes that kernels compute an operation in."""
    return (t for t in (*COMPUTE_FLOATS, *INTEGERS, BOOL) if o.takes.has(t))


@cache
def values_of(t: DType) -> np.ndarray[Any, Any]:
    """Numbers of a dtype, for which no operation is special; pairs of them are all combinations."""
    if t.is_bool:
        return np.array([False, True])
    if t.is_float:
        return np.array(NUMBERS, t.numpy)
    return np.array([0, 1, 2, 3, 7] if np.iinfo(t.numpy).min == 0 else [-7, -2, -1, 0, 1, 2, 3], t.numpy)


def operands(o: Op, t: DType) -> list[np.ndarray[Any, Any]]:
    """Arrays with every combination of such numbers; exponents of integers are not negative."""
    pairs = list(itertools.product(values_of(t), repeat=o.arity))
    if o.name == "pow" and t.is_integer:
        pairs = [p for p in pairs if p[1] >= 0]
    return [np.array(each, t.numpy) for each in zip(*pairs, strict=True)]


def interpreted(o: Op, args: list[np.ndarray[Any, Any]], t: DType) -> np.ndarray[Any, Any]:
    with np.errstate(all="ignore"):
        return np.asarray(ops.apply_op(o.name, args, t))


# --- kernels -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_every_target_has_a_kernel(name: str) -> None:
    o = OPS[name]
    for t in compute_dtypes(o):
        if o.c_sign(t) or (t.is_bool and o.takes is Takes.ANY) or name == WITHIN:
            continue
        function = f"pf_{name}_{t.name}"
        for target in ("cpu",) if name in PACKED else ("cpu", "cuda"):
            assert f" {function}(" in prelude([function], target), (function, target)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OPS)
def test_there_are_the_forms_that_traits_name(name: str) -> None:
    o = OPS[name]
    forms = {
        Trait.SHORT: [f"pf_short_{name}_f32", f"pf_row_short_{name}_f32"],
        Trait.SCALED: [f"pf_scaled_{name}_f32"],
        Trait.ROWS: [f"pf_row_{name}_{t}" for t in COMPUTE_FLOATS],
    }
    for trait, functions in forms.items():
        for function in functions:
            if o.has(trait):
                assert f" {function}(" in prelude([function])
            elif not function.startswith("pf_row_short") and function not in ROW_POWERS:
                with pytest.raises(KeyError):
                    prelude([function])


def test_the_emulator_declares_the_functions_of_cuda() -> None:
    text = (ROOT / "polyfuse" / "runtime" / "emulator" / "emulator.h").read_text(encoding="utf-8")
    for o in OPS.values():
        if o.cuda:
            declared = rf"PF_EMU_MATH_{o.arity}\({o.cuda}\)|^inline float {o.cuda}f\("
            assert re.search(declared, text, re.MULTILINE), o.cuda


@pytest.mark.parametrize("name", OPS)
def test_interpreter_and_reference_have_it(name: str) -> None:
    o = OPS[name]
    for t in compute_dtypes(o):
        wide = t if not t.is_float or o.takes is Takes.F32 else F64
        if o.takes is Takes.F32:
            assert name in ops.FLOAT  # made after the reference has run
            continue
        args = operands(o, wide)
        got = interpreted(o, args, wide)
        held = [Val(a if wide.is_bool or wide.is_float else a.astype(np.int64)) for a in args]
        with np.errstate(all="ignore"):
            want = reference_ops.apply_op(name, tuple(held), wide, o.result(wide))
        assert got.dtype == o.result(wide).numpy
        np.testing.assert_allclose(got.astype(np.float64), want.v.astype(np.float64), rtol=1e-13)


@pytest.mark.parametrize("name", [o.name for o in IN_LANGUAGE])
def test_numpy_writes_it(name: str) -> None:
    o = OPS[name]
    space = helpers()
    for t in (F64, I64, BOOL):
        if not o.takes.has(t):
            continue
        args = operands(o, t)
        if t.is_integer and name in ("floordiv", "mod"):  # by 0 NumPy warns
            keep = args[1] != 0
            args = [a[keep] for a in args]
        text = numpy_text(o).format("x", "y")
        with np.errstate(all="ignore"):
            got = eval(text, space | dict(zip("xy", args, strict=False)))
            np.testing.assert_allclose(
                np.asarray(got, float), interpreted(o, args, t).astype(float), rtol=1e-13
            )


# --- facts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_costs_fit_their_class(name: str) -> None:
    o = OPS[name]
    longer = o.cost in (Cost.DIVIDER, Cost.FLOORED, Cost.FUNCTION)
    assert (o.cpu > 1) == (o.gpu > 1) == o.is_special == longer
    t = next(compute_dtypes(o))
    expr = Apply(name, (Read("x", (), t),) * o.arity, o.result(t))
    assert is_function(expr) == (o.cost is Cost.FUNCTION) and (o.cost is not Cost.FUNCTION or o.cpu >= 10)
    assert (name in RATED) == (longer and o.arity == 1)
    assert name in of_cost(o.cost)


@pytest.mark.parametrize("name", [o.name for o in OPS.values() if o.takes.has(F64)])
def test_traits_are_true(name: str) -> None:
    o = OPS[name]
    args = operands(o, F64)
    value = interpreted(o, args, F64)
    with_nan = [np.where(np.arange(a.size) % o.arity == k, np.nan, a) for k, a in enumerate(args)]
    if o.has(Trait.STRICT):
        assert np.isnan(interpreted(o, with_nan, F64)).all()
    if o.has(Trait.POSITIVE):
        assert not (value < 0)[args[0] != 0].any()  # 1 / sqrt(-0.0) is an infinity
    if o.has(Trait.WHOLE):
        assert (value == np.rint(value)).all()
    if o.arity == 2:
        turned = interpreted(o, args[::-1], F64)
        assert np.array_equal(value, turned, equal_nan=True) == o.has(Trait.COMMUTES)
    if o.has(Trait.FOLDED):
        assert o.exactness in ("exact", "rounded")
    if o.negated:
        other = OPS[o.negated]
        assert other.negated == name
        np.testing.assert_array_equal(value, ~interpreted(other, args, F64))


def test_exactness_follows_from_the_largest_error() -> None:
    assert (OPS["abs"].exactness, OPS["div"].exactness, OPS["erf"].exactness) == (
        "exact",
        "rounded",
        "approximate",
    )
    assert OPS["dot_pairs"].exactness == "approximate"


def test_c_writes_operators_where_they_do_the_same() -> None:
    assert [OPS["add"].c_sign(t) for t in (F32, I32, BOOL)] == ["+", "", "|"]
    assert [OPS["lt"].c_sign(t) for t in (F32, I32)] == ["<", "<"]
    assert [OPS["max"].c_sign(t) for t in (F32, BOOL)] == ["", "|"]


def test_signs_and_reductions_name_operations() -> None:
    assert set(BY_SIGN) == {
        *["+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"],
        *["&", "|", "^", "<<", ">>"],
    }
    assert all(BY_SIGN[sign] == name for name, sign in INFIX.items())
    assert NEGATED["lt"] == "ge" and set(COMBINES.values()) <= set(OPS)
    assert all(OPS[op].has(Trait.COMMUTES) and OPS[op].arity == 2 for op in COMBINES.values())
    assert with_trait(Trait.SCALED) == ("tanh", "erf")


# --- the language and its documentation --------------------------------------------------------------------


def test_the_language_calls_what_the_table_says() -> None:
    called = {o.name for o in OPS.values() if o.called}
    assert set(FUNCTIONS) == called | {"select"}
    assert set(FLOAT_FUNCTIONS) == {n for n in called if OPS[n].takes is Takes.FLOATS}
    assert all(FUNCTIONS[n][0] == OPS[n].arity for n in called)


def test_docs_list_the_functions() -> None:
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Functions: .*?\n\n", text, re.MULTILINE | re.DOTALL)
    of_floats = re.findall(r"`([^`]+)` of a float", listed)[0].split()
    assert set(of_floats) == {n for n in FLOAT_FUNCTIONS if OPS[n].arity == 1}
    assert all(re.search(rf"`{n}\b", listed) or n in of_floats for n in FUNCTIONS)


def test_docs_state_the_largest_errors() -> None:
    page = (ROOT / "docs" / "reference" / "vector_math.md").read_text(encoding="utf-8")
    accuracy = page[page.index("## Accuracy") : page.index("## On a GPU")]
    stated: dict[str, tuple[str, ...]] = {}
    for line in accuracy.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        for name in re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", cells[0]))) if len(cells) > 3 else ():
            stated[name] = tuple("0" if c == "exact" else c.split()[0] for c in cells[1:3])
    for o in IN_LANGUAGE:
        if o.takes in (Takes.FLOATS, Takes.NUMBERS) and not o.c:
            assert o.ulp is not None
            assert tuple(map(float, stated[o.name])) == o.ulp, o.name


def test_names_of_other_libraries_are_no_functions_here() -> None:
    known = {*names._WRITTEN, *names._LINES, *names._NONE}
    assert not known & set(FUNCTIONS)
    for _, text in names._WRITTEN.values():
        called = set(re.findall(r"\b([a-z]\w*)\(", text)) - {"f16", "f32", "f64", "i32", "i64"}
        assert called <= set(FUNCTIONS), text


# --- one entry and its kernels -----------------------------------------------------------------------------

_MADE_UP = """
from polyfuse.ir import ops

# The row.
row = ops.Op("softsign", 1, ops.FLOATS, (1.5, 1.5), ops.DIVIDER, 10, 12, ops.STRICT, called=True)
ops.OPS["softsign"] = row

# The kernels: C++, for CPUs and GPUs alike; one for the interpreter; the reference with its bound.
from polyfuse.codegen.math import headers

TEXT = "\\nPF_INLINE $F pf_softsign_$N($F x) { return x / (1.0$L + pf_abs_$N(x)); }\\n"
read = headers.read
headers.read = lambda name: read(name) + (TEXT if name == "vector_math_float.h" else "")

import numpy as np
from polyfuse.runtime.interpreter import ops as interpreter_ops
from polyfuse.runtime.reference import ops as reference_ops


def softsign(x):
    return np.divide(x, np.add(x.dtype.type(1), np.abs(x)))


def reference(x, t):
    size = 1.0 + np.abs(x.v)
    return reference_ops.rounded(x.v / size, reference_ops._bend(x, size**-2, 1.0, 1.0, 2.0), t, (x.e,))


interpreter_ops.FLOAT["softsign"] = softsign
reference_ops.UNARY_FLOAT["softsign"] = reference

# What follows knows nothing of it.
import polyfuse as pf
from polyfuse.ir.dtypes import F32
from polyfuse.runtime.reference.agreement import agrees
from polyfuse.runtime.numpy_baseline import baseline
from polyfuse.runtime.reference.evaluate import evaluate

SOURCE = '''
op f[F: float](x: F[T, H], b: F[H]) -> (y: F[T, H]) {
  s[t, h] = softsign(x[t, h] + b[h])
  y[t, h] = s[t, h] / sum[k](abs(s[t, k]))
}
'''
rng = np.random.default_rng(1)
x, b = rng.normal(size=(3, 20)).astype("f4"), rng.normal(size=20).astype("f4")
graph = pf.parse(SOURCE).op("f").graph({"F": F32})
sizes = {"T": 3, "H": 20}
want = evaluate(graph, sizes, {"x": x, "b": b})["y"]
s = x.astype("f8") + b
s = s / (1 + np.abs(s))
np.testing.assert_allclose(want.value, s / np.abs(s).sum(1, keepdims=True), rtol=1e-12)
for target in TARGETS:
    f = pf.compile(SOURCE, target=target)
    assert agrees(np.asarray(f(x, b)), want, F32), target
    assert "softsign" in f.built(x, b).code.source if target != "interpret" else True
np.testing.assert_allclose(baseline(graph, sizes)({"x": x, "b": b})["y"], want.value, rtol=1e-5)
try:
    pf.compile("op g(x: f32[N]) -> (y: f32[N]) { y[i] = softsing(x[i]) }")
except pf.DslError as e:
    assert "did you mean 'softsign'?" in str(e), e
from polyfuse.cost.operations import cpu_weight
assert cpu_weight("softsign") == 10
"""


def test_a_row_and_its_kernels_are_a_function() -> None:
    targets = ("interpret", "cpu", "emulate") if shutil.which("g++") else ("interpret",)
    script = _MADE_UP.replace("TARGETS", repr(targets))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
