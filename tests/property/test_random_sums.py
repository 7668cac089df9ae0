"""Random sums of products of two or three factors, of any layout, at sizes for which tiles, panels and the
library are chosen, beside NumPy in float64."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest

import polyfuse as pf

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 13, 16, 31, 33, 64, 65, 100, 128, 200, 300)
MOST_PRODUCTS = 3e7
NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
# Of one rounding, and how many of them a sum may have lost.
EPS = {"f32": 1.2e-7, "f64": 2.3e-16, "f16": 1.2e-7}
ROUNDINGS = 200


@dataclass(frozen=True)
class Sum:
    """Letters of the dims of factors and of the result; `after` follows each element."""

    factors: tuple[str, ...]
    result: str
    after: bool
    dtype: str
    extents: dict[str, int]

    @property
    def text(self) -> str:
        names = "abc"[: len(self.factors)]
        kinds = [f"{self.dtype}{_list(f.upper())}" for f in self.factors]
        widened = "f32({})" if self.dtype == "f16" else "{}"
        factors = [widened.format(n + _list(f)) for n, f in zip(names, self.factors, strict=True)]
        over = sorted(set("".join(self.factors)) - set(self.result))
        total = f"sum{_list(''.join(over))}({' * '.join(factors)})"
        out = "f64" if self.dtype == "f64" else "f32"
        arguments = ", ".join(f"{n}: {k}" for n, k in zip(names, kinds, strict=True))
        place = _list(self.result)
        follows = f"max(t{place}, 0.25)" if self.after else f"t{place}"
        result = f"{out}{_list(self.result.upper())}"
        return f"op f({arguments}) -> (y: {result}) {{\n  t{place} = {total}\n  y{place} = {follows}\n}}"

    def check(self, seed: int, **options: object) -> None:
        rng = np.random.default_rng(seed)
        shapes = [[self.extents[d] for d in f] for f in self.factors]
        arrays = [rng.standard_normal(s).astype(NUMPY[self.dtype]) for s in shapes]
        found = pf.compile(self.text, target="cpu", options=pf.Options(**options))(*arrays)  # type: ignore[arg-type]
        subscripts = f"{','.join(self.factors)}->{self.result}"
        wide = [a.astype("f8") for a in arrays]
        expected = np.einsum(subscripts, *wide, optimize=True)
        size = np.einsum(subscripts, *map(np.abs, wide), optimize=True)
        expected = np.maximum(expected, 0.25) if self.after else expected
        assert np.all(np.abs(found - expected) <= ROUNDINGS * EPS[self.dtype] * size + 1e-30), self


def _list(dims: str) -> str:
    return f"[{', '.join(dims)}]" if dims else ""


def drawn(seed: int) -> Sum | None:
    """None where nothing is summed."""
    draw = random.Random(seed)
    dims = "ijklmn"[: draw.randint(2, 6)]
    extents = {d: draw.choice(EXTENTS) for d in dims}
    factors = tuple(
        "".join(draw.sample(dims, draw.randint(1, min(4, len(dims))))) for _ in range(draw.choice((2, 3, 3)))
    )
    used = sorted(set("".join(factors)))
    while prod(extents[d] for d in used) > MOST_PRODUCTS:
        longest = max(used, key=lambda d: extents[d])
        extents[longest] //= 3
    result = [d for d in used if draw.random() < 0.6]
    draw.shuffle(result)
    dtype = draw.choice(("f32", "f32", "f32", "f64", "f16"))
    found = Sum(factors, "".join(result), draw.random() < 0.4, dtype, extents)
    return found if len(result) < len(used) else None


def check(seeds: range) -> None:
    for seed in seeds:
        found = drawn(seed)
        if found is not None:
            library = ("auto", "never")[seed % 2]
            found.check(seed, library=library, threads=1 + seed % 3)


@pytest.mark.parametrize("first", range(0, 18, 6))
def test_some_sums_agree_with_numpy(first: int) -> None:
    check(range(first, first + 6))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 700, 50))
def test_many_sums_agree_with_numpy(first: int) -> None:
    check(range(first, first + 50))


@pytest.mark.parametrize(
    ("factors", "result", "extents"),
    [
        (("mk", "kl", "ln"), "mn", {"m": 60, "k": 64, "l": 64, "n": 60}),  # panels share a factor
        (("njik", "kmj"), "jkm", {"n": 8, "j": 3, "i": 13, "k": 33, "m": 100}),  # computed around the sum
        (("mli", "jlmk"), "", {"m": 200, "l": 5, "i": 8, "j": 7, "k": 13}),  # lanes are summed as well
    ],
)
def test_sums_that_ended_in_an_error(factors: tuple[str, ...], result: str, extents: dict[str, int]) -> None:
    Sum(factors, result, False, "f32", extents).check(1)
