"""Functions in float64 that NumPy lacks, or has otherwise than kernels do; for numbers and arrays alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[Any]

# `erf` is the method of the FreeBSD/Sun msun library (s_erf.c): rational approximations on four
# intervals, error below 1 ulp.
_ERX = 8.45062911510467529297e-01
_PP = (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
       -5.77027029648944159157e-03, -2.37630166566501626084e-05)  # fmt: skip
_QQ = (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
       1.32494738004321644526e-04, -3.96022827877536812320e-06)  # fmt: skip
_PA = (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01,
       3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02,
       -2.16637559486879084300e-03)  # fmt: skip
_QA = (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
       1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02)  # fmt: skip
_RA = (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01,
       -6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02,
       -8.12874355063065934246e01, -9.81432934416914548592e00)  # fmt: skip
_SA = (1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02,
       6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02,
       6.57024977031928170135e00, -6.04244152148580987438e-02)  # fmt: skip
_RB = (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01,
       -1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03,
       -4.83519191608651397019e02)  # fmt: skip
_SB = (1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03,
       3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02,
       -2.24409524465858183362e01)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        total *= x
        total += c
    return total


def _small(x: Floats) -> Floats:
    z = x * x
    return x + x * (_polynomial(_PP, z) / _polynomial(_QQ, z))


def _middle(a: Floats) -> Floats:
    s = a - 1.0
    return _ERX + _polynomial(_PA, s) / _polynomial(_QA, s)


def _tail(a: Floats, r: tuple[float, ...], q: tuple[float, ...]) -> Floats:
    s = 1.0 / (a * a)
    z = (a.view(np.int64) & ~np.int64(0xFFFFFFFF)).view(np.float64)  # the upper half of the bits
    power = np.exp(-z * z - 0.5625) * np.exp((z - a) * (z + a) + _polynomial(r, s) / _polynomial(q, s))
    return cast(Floats, 1.0 - power / a)


def erf(x: Floats) -> Floats:
    """The error function of a float64 array; NaN stays NaN."""
    x = np.asarray(x, np.float64)
    flat = np.ravel(x)
    a = np.abs(flat)
    out = np.where(np.isnan(a), a, 1.0)
    for low, high, f in (
        (0.84375, 1.25, _middle),
        (1.25, 1.0 / 0.35, lambda v: _tail(v, _RA, _SA)),
        (1.0 / 0.35, 6.0, lambda v: _tail(v, _RB, _SB)),
    ):
        where = np.flatnonzero((a >= low) & (a < high))
        out[where] = f(a[where])
    where = np.flatnonzero(a < 0.84375)
    out[where] = _small(a[where])
    return cast(Floats, np.copysign(out, flat).reshape(x.shape))


def remainder(x: Any, y: Any) -> Any:
    """x % y of floats, with the sign of y, as kernels have it: 0 where the quotient is 2**53 or more, as
    neighbours of x are then further apart than y."""
    with np.errstate(all="ignore"):
        far = np.floor(np.abs(np.asarray(x, np.float64) / np.asarray(y, np.float64))) >= 2.0**53
    far &= np.isfinite(x) & np.not_equal(y, 0)
    return np.where(far, np.copysign(np.zeros_like(y), y), np.mod(x, y))[()]


def power(x: Any, y: Any) -> Any:
    """x ** y, element by element.

    For the number 0.5 NumPy takes a square root, which is NaN for minus infinity and -0.0 for -0.0; for an
    array of it, as C for each element, it gives infinity and 0.0.
    """
    base, exponent = np.broadcast_arrays(x, y)
    return np.power(np.atleast_1d(base), np.array(exponent, ndmin=1)).reshape(base.shape)[()]


# --- functions of gamma ----------------------------------------------------------------------------------

# B(2k) / 2k for k = 1, 2, ...: digamma(x) = log(x) - 1 / (2 x) - the sum of these times x^(-2k).
_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_FAR = 10.0


def _of_c(f: Callable[[float], float]) -> Callable[[Any], Floats]:
    """A function of Python's numbers on arrays, one by one."""
    each = np.frompyfunc(f, 1, 1)
    return lambda x: np.asarray(each(np.asarray(x, np.float64)), np.float64)


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):  # too large, or a pole
        return math.inf


erfc = _of_c(math.erfc)
"""1 - erf(x), with a small relative error also where it is small."""

lgamma = _of_c(_log_gamma)
"""log |gamma(x)|; infinite at 0 and where x is a negative integer."""


def digamma(x: Any) -> Floats:
    """The derivative of `lgamma`: an infinity of the other sign at 0, NaN at the other poles."""
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    y, total = size, np.zeros_like(x)
    with np.errstate(all="ignore"):
        for _ in range(int(_FAR)):
            near = y < _FAR
            total = total - np.where(near, 1.0 / y, 0.0)
            y = np.where(near, y + 1.0, y)
        z = 1.0 / (y * y)
        tail = np.polyval(_SERIES[::-1], z) * z
        right = total + (np.log(y) - 0.5 / y - tail)
        turn = size - np.rint(size)
        left = np.where(turn == 0, np.nan, right + 1.0 / size + np.pi / np.tan(np.pi * turn))
        return np.where(x == 0, -1.0 / x, np.where(x < 0, left, right))


def fmod(x: Any, y: Any) -> Any:
    """x - y trunc(x / y), with the sign of x, as kernels have it: 0 where the quotient is 2**53 or more (see
    `remainder`)."""
    with np.errstate(all="ignore"):
        far = np.floor(np.abs(np.asarray(x, np.float64) / np.asarray(y, np.float64))) >= 2.0**53
        far &= np.isfinite(x) & np.not_equal(y, 0)
        return np.where(far, np.copysign(np.zeros_like(x), x), np.fmod(x, y))[()]


def sign(x: Any) -> Any:
    """1 with the sign of x; a zero and NaN stay as they are."""
    return np.where((x < 0) | (x > 0), np.copysign(np.ones_like(x), x), x)[()]
