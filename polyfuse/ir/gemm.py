"""A matrix product as BLAS takes it: column-major matrices by their strides, and many of them side by side.

    C[i, j] = sum[k](A[i, k] * B[k, j])        with element numbers  i + j*ldc,  i + k*lda,  k + j*ldb

Tensors are row-major.  A row-major matrix is its transpose to BLAS, so that operands change places:

    out[m, n] = left[m, k] @ right[k, n]       is       C = out^T, A = right^T, B = left^T

Each matrix needs one axis of neighbours in memory; the other one may have any stride, so that nothing is
copied for transposed operands, parts of merged axes, or heads in the middle of a tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from polyfuse.ir.contraction import MatrixProduct, Operand

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand of the product, by its `place` (left, right, result: 0, 1, 2).

    `transposed`: BLAS must transpose it.  `leading`, `step` and `steps` are elements from a column, from a
    matrix of the batch, and from a point of the loops around to the next.
    """

    place: int
    transposed: bool
    leading: int
    step: int
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products by one call, with one call for each point of `loops`."""

    rows: int
    columns: int
    over: int
    batch: int
    loops: tuple[int, ...]
    first: Matrix
    second: Matrix
    result: Matrix

    def offsets(self) -> Iterator[tuple[int, int, int]]:
        """Where the operands of each call begin, in elements: first, second, result."""
        for place in itertools.product(*map(range, self.loops)):
            a, b, c = (_dot(place, x.steps) for x in (self.first, self.second, self.result))
            yield a, b, c


def _dot(place: tuple[int, ...], steps: tuple[int, ...]) -> int:
    return sum(i * s for i, s in zip(place, steps, strict=True))


def gemm_of(product: MatrixProduct, shapes: Mapping[str, tuple[int, ...]]) -> Gemm | None:
    """How BLAS computes a product of dense tensors, or None where a matrix has no axis of neighbours."""
    operands = (product.left, product.right, product.out)
    left, right, out = (_View.of(k, x, shapes[x.tensor]) for k, x in enumerate(operands))
    if out.inner_step != 1 and out.inner > 1:  # the transposed product
        left, right, out = right.transposed(), left.transposed(), out.transposed()
    first, second = _matrix(right.transposed()), _matrix(left.transposed())
    result = _matrix(out.transposed())
    if first is None or second is None or result is None or result[0]:
        return None
    if max(out.outer, out.inner, left.inner, *(x[1] for x in (first, second, result))) > LARGEST:
        return None
    # One axis of the batch goes into the call: the longest, which need not be the innermost.
    axis = max(range(len(out.batch)), key=lambda k: out.batch[k], default=None)
    made = [
        Matrix(
            x.place,
            found[0],
            found[1],
            0 if axis is None else x.steps[axis],
            tuple(s for k, s in enumerate(x.steps) if k != axis),
        )
        for x, found in ((right, first), (left, second), (out, result))
    ]
    batch = 1 if axis is None else out.batch[axis]
    loops = tuple(n for k, n in enumerate(out.batch) if k != axis)
    return Gemm(out.inner, out.outer, left.inner, batch, loops, *made)


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as [batch..., outer, inner], by extents and strides in elements."""

    place: int
    batch: tuple[int, ...]
    steps: tuple[int, ...]
    outer: int
    outer_step: int
    inner: int
    inner_step: int

    @staticmethod
    def of(place: int, x: Operand, shape: tuple[int, ...]) -> _View:
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        return _View(
            place,
            tuple(shape[k] for k in x.batch),
            tuple(strides[k] for k in x.batch),
            prod(shape[k] for k in x.outer),
            strides[x.outer[-1]],
            prod(shape[k] for k in x.inner),
            strides[x.inner[-1]],
        )

    def transposed(self) -> _View:
        return _View(
            self.place, self.batch, self.steps, self.inner, self.inner_step, self.outer, self.outer_step
        )


def _matrix(x: _View) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of a column-major matrix of `outer` rows; None without neighbours.

    A single row or column has neighbours of any distance.
    """
    if x.outer_step == 1 or x.outer == 1:
        return False, max(x.inner_step if x.inner > 1 else 1, x.outer, 1)
    if x.inner_step == 1 or x.inner == 1:
        return True, max(x.outer_step, x.inner, 1)
    return None
