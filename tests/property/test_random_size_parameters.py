"""Random windows whose sizes are parameters: the same results as with numbers in their places.

Sizes are given by keyword, by defaults of earlier ones, by a shape, and in calls inside the language.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyfuse as pf

SIZES = ("K", "S", "P", "D")


def drawn(seed: int) -> tuple[str, dict[str, int], np.ndarray[Any, Any]]:
    """An operator with size parameters, values for them, and an argument."""
    rng = np.random.default_rng(seed)
    k, s, p, d = (int(rng.integers(low, high)) for low, high in ((1, 5), (1, 5), (0, 4), (1, 4)))
    span = d * (k - 1) + 1
    n = int(rng.integers(max(0, span - 2 * p), span + 24))
    op, outside = (("max", "-inf"), ("sum", "0.0"), ("prod", "1.0"))[rng.integers(3)]
    weight = "w[a] * " if rng.random() < 0.5 else ""
    if weight:
        op, outside = "sum", "0.0"
    order = [str(x) for x in rng.permutation(SIZES)]
    defaults = {}
    for place, name in enumerate(order):
        if rng.random() < 0.5:
            value = {"K": k, "S": s, "P": p, "D": d}
            earlier = [o for o in order[:place] if value[name] >= value[o]]
            base = f"{earlier[-1]} + {value[name] - value[earlier[-1]]}" if earlier else f"{value[name]}"
            defaults[name] = base
    generics = ", ".join(f"{x}: size" + (f" = {defaults[x]}" if x in defaults else "") for x in order)
    params = f"x: f32[N]{', w: f32[K]' if weight else ''}"
    text = f"""op f[{generics}]({params}) -> (y: f32[(N + 2*P - D*(K - 1) - 1)//S + 1])
    where K >= 1, S >= 1, D >= 1, D*(K - 1) < N + 2*P {{
  y[i] = {op}[a in 0..K]({weight}x[i*S + a*D - P] if 0 <= i*S + a*D - P < N else {outside})
}}
"""
    given = {x: v for x, v in zip(SIZES, (k, s, p, d), strict=True) if x not in defaults}
    if weight and "K" in given and rng.random() < 0.5:
        del given["K"]  # the shape of w tells
    every = {"K": k, "S": s, "P": p, "D": d}
    return text, {**given, **{f"_{x}": v for x, v in every.items()}}, rng.normal(size=n).astype(np.float32)


def with_numbers(text: str, sizes: dict[str, int]) -> str:
    """The operator with numbers in the places of its size parameters."""
    head, _, rest = text.partition("](")
    body = re.sub(r"\b[KSPD]\b", lambda m: str(sizes[m[0]]), rest)
    return re.sub(
        r"where .*\{", "where N >= 0 {", f"{head.partition('[')[0]}({body}".replace("\n    where", " where")
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_parameter_is_the_number_that_it_has(seed: int) -> None:
    text, both, x = drawn(seed)
    given = {n: v for n, v in both.items() if n in SIZES}
    sizes = {n[1:]: v for n, v in both.items() if n[0] == "_"}
    weighted = "w[a]" in text
    arguments = (x, np.arange(1, sizes["K"] + 1, dtype=np.float32)) if weighted else (x,)
    target: Any = "cpu" if seed % 10 == 0 else "interpret"
    want = pf.compile(with_numbers(text, sizes), target=target)(*arguments)
    f = pf.compile(text, target=target)
    np.testing.assert_array_equal(f(*arguments, **given), want)
    keywords = "".join(f", {n}={v}" for n, v in given.items())
    params = "x: f32[N], w: f32[K]" if weighted else "x: f32[N]"
    extent = "(N + 2*{P} - {D}*({K} - 1) - 1)//{S} + 1".format(**sizes)
    where = f"where {sizes['D'] * (sizes['K'] - 1)} < N + {2 * sizes['P']}"
    where += f", K == {sizes['K']}" if weighted else ""
    caller = f"op g({params}) -> (y: f32[{extent}]) {where} {{ y = f(x{', w' * weighted}{keywords}) }}"
    np.testing.assert_array_equal(pf.compile(text + caller, "g", target=target)(*arguments), want)
