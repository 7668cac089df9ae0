"""Random programs whose results lie across the loops that compute them: the same bits as NumPy's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import polyfuse as pf

DIMS = "bik"
TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32}


def drawn(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A program of exact operations, its arguments and its results."""
    dice, rng = random.Random(f"across {seed}"), np.random.default_rng(seed)
    kind = dice.choice([*TYPES])
    sizes = {"b": dice.choice([1, 2, 5, 40]), "i": dice.choice([4, 16, 33, 64, 130]), "k": 0}
    sizes["k"] = dice.choice([n for n in (3, 8, 31, 64, 200, 515) if n * sizes["i"] * sizes["b"] < 300_000])
    shape = ", ".join(str(sizes[d]) for d in DIMS)
    x, z = (rng.integers(-99, 99, [sizes[d] for d in DIMS]).astype(TYPES[kind]) for _ in "xz")
    lines, value = [], np.maximum(x, z)
    text = "max(x[b, i, k], z[b, i, k])"
    if dice.random() < 0.6:
        lines.append("m[b, i] = max[k](x[b, i, k])")
        text, value = f"{text} - m[b, i]", value - x.max(2, keepdims=True)
    if dice.random() < 0.4:
        last = sizes["k"] - 1
        text += f" + x[b, i, min(k + 1, {last})]"
        value = value + x[:, :, np.minimum(np.arange(last + 1) + 1, last)]
    wanted, results = {}, []
    for n in range(dice.randint(1, 3)):
        order = dice.sample(DIMS, 3) if n else [*dice.choice(["bki", "kbi", "kib"])]
        ranges = ", ".join(f"{d} in 0..{sizes[d]}" for d in DIMS)
        more = "" if not n else f" + {n}" if kind[0] == "i" else f" + {n}.0"
        lines.append(f"y{n}[{', '.join(order)}] = {text}{more} for {ranges}")
        results.append(f"y{n}: {kind}[{', '.join(str(sizes[d]) for d in order)}]")
        wanted[f"y{n}"] = (value + TYPES[kind](n)).transpose([DIMS.index(d) for d in order])
    head = f"op f(x: {kind}[{shape}], z: {kind}[{shape}]) -> ({', '.join(results)})"
    return f"{head} {{\n  " + "\n  ".join(lines) + "\n}", {"x": x, "z": z}, wanted


@pytest.mark.parametrize("group", range(4))
def test_results_are_those_of_numpy(group: int) -> None:
    for seed in range(6 * group, 6 * group + 6):
        text, given, wanted = drawn(seed)
        found = pf.compile(text, target="cpu", options=pf.Options(threads=1 + seed % 2))(**given)
        for y, (name, value) in zip([found] if len(wanted) == 1 else found, wanted.items(), strict=True):
            np.testing.assert_array_equal(y, value, f"{name} of {text}")
