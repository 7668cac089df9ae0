"""Whether a result agrees with the reference: the one rule of every comparison in this project.

An element agrees if it is within `Evaluated.bound` of the reference (see `reference_values` for how
the bound comes about), plus the smallest normal number of its type.  NaN, infinities, integers and
bools must be the same; an undecided element agrees with anything, but fewer than 1 % may be undecided
(for arrays of at least 100 elements).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfuse.ir.dtypes import DType
from polyfuse.runtime.reference.evaluate import Evaluated
from polyfuse.runtime.reference.values import tiny

MOST_UNDECIDED = 0.01
FEW_ELEMENTS = 100


@dataclass(frozen=True, slots=True)
class Agreement:
    """The outcome of a comparison; true if it agrees.

    `worst_ratio` is the largest |difference| / bound over decided, finite elements: at most 1 where
    all agree (infinite where an exact element is off); `message` says what is wrong, "" if nothing.
    `sharpness` is the typical bound over the typical size of an element: a comparison of floats means
    little where it comes near 1, as it may after long chaotic recurrences.
    """

    ok: bool
    mismatches: int
    worst_ratio: float
    undecided_fraction: float
    message: str
    sharpness: float = 0.0

    def __bool__(self) -> bool:
        return self.ok


def agrees(got: npt.NDArray[Any], want: Evaluated, dtype: DType) -> Agreement:
    """Compare `got`, an array of the NumPy type of `dtype`, with the reference."""
    if got.shape != want.value.shape:
        return _failed(f"shape {got.shape}, expected {want.value.shape}")
    if got.dtype != dtype.numpy:
        return _failed(f"dtype {got.dtype}, expected {dtype.numpy}")
    fraction = float(want.undecided.mean()) if got.size else 0.0
    if dtype.is_float:
        right, ratio = _compare_floats(got.astype(np.float64), want, dtype)
    else:
        right = got == want.value
        ratio = 0.0 if bool((right | want.undecided).all()) else np.inf
    wrong = ~(right | want.undecided)
    mismatches = int(wrong.sum())
    too_vague = got.size >= FEW_ELEMENTS and fraction >= MOST_UNDECIDED
    message = _first_mismatch(got, want, wrong, mismatches) if mismatches else ""
    if too_vague and not message:
        message = f"{fraction:.1%} of the elements are undecided, more than {MOST_UNDECIDED:.0%}"
    return Agreement(
        not message, mismatches, ratio, fraction, message, _sharpness(want) if dtype.is_float else 0.0
    )


def _compare_floats(v: npt.NDArray[Any], want: Evaluated, dtype: DType) -> tuple[npt.NDArray[Any], float]:
    """Which elements agree, and the worst ratio of difference to bound."""
    with np.errstate(all="ignore"):
        same = (v == want.value) | (np.isnan(v) & np.isnan(want.value))
        finite = np.isfinite(v) & np.isfinite(want.value) & ~want.undecided
        ratio = np.where(finite, np.abs(v - want.value) / (want.bound + tiny(dtype)), 0.0)
        return same | (finite & (ratio <= 1.0)), float(ratio.max(initial=0.0))


def _sharpness(want: Evaluated) -> float:
    """Median bound over median size, of the finite, decided elements."""
    usual = np.isfinite(want.value) & ~want.undecided
    if not usual.any():
        return 0.0
    bound, size = float(np.median(want.bound[usual])), float(np.median(np.abs(want.value[usual])))
    return bound / size if size else (np.inf if bound > 1e-30 else 0.0)


def unchecked(want: Evaluated, inputs: Mapping[str, npt.NDArray[Any]]) -> float:
    """The share of elements about which a comparison says nothing.

    They are undecided, NaN in the reference, or their bound is larger than every value of the result, as
    after a chaotic recurrence.  What is left of large inputs that cancel may be smaller than its bound as
    well, so the bound is also no small part of the inputs.
    """
    if not want.value.size:
        return 0.0
    unknown = want.undecided
    if want.value.dtype.kind == "f":
        part = MOST_UNDECIDED * max(map(_largest, inputs.values()), default=0.0)
        unknown = unknown | np.isnan(want.value) | (want.bound > max(_largest(want.value), part))
    return float(unknown.mean())


def _largest(values: npt.NDArray[Any]) -> float:
    """The size of the largest finite number, 0 for what is not float."""
    if not np.issubdtype(values.dtype, np.floating) and values.dtype.kind != "V":
        return 0.0
    sizes = np.abs(values.astype(np.float64))
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))


def _failed(message: str) -> Agreement:
    return Agreement(False, 0, np.inf, 0.0, message)


def _first_mismatch(got: npt.NDArray[Any], want: Evaluated, wrong: npt.NDArray[Any], count: int) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{count} of {got.size} elements differ; first at [{', '.join(map(str, at))}]: "
        f"got {got[at]!s}, expected {want.value[at]!s} within {want.bound[at]:.3g}"
    )
