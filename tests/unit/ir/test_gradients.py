"""Derivatives in the table of operations: expressions of the language, which differences agree with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyfuse as pf
from polyfuse.ir.dtypes import F64
from polyfuse.ir.ops import OPS, Op
from polyfuse.runtime.interpreter import ops

RNG = np.random.default_rng(5)
# Where a function is defined and smooth; else everywhere.
RANGES = {
    "log": (0.2, 9.0), "sqrt": (0.2, 9.0), "rsqrt": (0.2, 9.0), "log1p": (-0.8, 9.0), "log2": (0.2, 9.0),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "acosh": (1.2, 9.0), "atanh": (-0.9, 0.9), "pow": (0.3, 3.0),
    "lgamma": (0.2, 9.0), "tan": (-1.4, 1.4),
}  # fmt: skip
WITH = [o.name for o in OPS.values() if o.gradient]
# Numbers of no smooth function, and `digamma`, whose derivative the language has not.
WITHOUT = {o.name for o in OPS.values() if o.gives_bool or o.gives or o.takes.value in ("i32", "integers")}
WITHOUT |= {"digamma", "pair", "dot_pairs", "within"}


def test_every_function_has_one() -> None:
    assert set(WITH) == set(OPS) - WITHOUT
    assert all(len(OPS[n].gradient) == OPS[n].arity for n in WITH)


def value(o: Op, *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(ops.apply_op(o.name, [np.asarray(a) for a in args], F64))


def operands(o: Op) -> list[Any]:
    """Numbers that are not near to what a step goes over: integers, and 0."""
    low, high = RANGES.get(o.name, (-3.0, 3.0))
    x = RNG.uniform(low, high, 400)
    x = x[np.abs(x - np.rint(x)) > 0.01]
    args = [x, RNG.permutation(x)][: o.arity]
    if o.arity == 2:
        ratio = args[0] / args[1]
        near = (np.abs(ratio - np.rint(ratio)) < 0.01) | (np.abs(args[1]) < 0.1)
        args = [a[~near & (np.abs(args[0] - args[1]) > 0.01)] for a in args]
    assert args[0].size > 50
    return args


def formula(text: str, args: list[Any], f: Any) -> Any:
    """The expression, as a program of its own."""
    names = dict(zip("xy", args, strict=False)) | {"f": f}
    params = ", ".join(f"{n}: f64[N]" for n in names)
    body = text
    for n in names:
        body = "".join(f"{c}[i]" if c == n and _alone(body, k) else c for k, c in enumerate(body))
    op = pf.compile(f"op g({params}) -> (d: f64[N]) {{ d[i] = {body} }}", target="interpret")
    return op(**names)


def _alone(text: str, k: int) -> bool:
    """Is a letter a name of its own?"""
    return not any(0 <= j < len(text) and (text[j].isalnum() or text[j] == "_") for j in (k - 1, k + 1))


@pytest.mark.parametrize("name", WITH)
def test_derivatives_are_those_of_differences(name: str) -> None:
    o = OPS[name]
    args = operands(o)
    for k, text in enumerate(o.gradient):
        got = formula(text, args, value(o, *args))
        step = 1e-5 * np.maximum(np.abs(args[k]), 0.1)
        up, down = ([a + s * (j == k) for j, a in enumerate(args)] for s in (step, -step))
        want = (value(o, *up) - value(o, *down)) / (2 * step)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-7, err_msg=text)
