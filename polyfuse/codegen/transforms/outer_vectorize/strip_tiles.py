"""What a strip of steps touches of a run of memory, for all rows: an array of the worker, transposed.

    a[t, row] = x[b + row, t + 1]       for t in u..min(T, u + 32), row in 0..16

A run is what accesses have in common that go along memory from step to step; they may differ by a number in
the last index (`x[b, t]` and `x[b, t - 1]` are one run), and may go backwards (`x[b, T - t]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.codegen.analysis.accesses import plain
from polyfuse.codegen.analysis.row_batch import ROW
from polyfuse.cost.cpu_tables import FITTED
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, binary, variables
from polyfuse.ir.kernel import Buffer
from polyfuse.ir.linear import Linear, linear
from polyfuse.ir.loop_ir import For, TransposedTile
from polyfuse.ir.tensor_graph import Index

_PLACE = "place"


@dataclass(frozen=True, slots=True)
class Run:
    """The last index is `sign` times the step, and `rest`, and a number of the access; `leading` are the
    others, which tell the row."""

    tensor: str
    leading: tuple[IndexExpr, ...]
    sign: int
    rest: tuple[tuple[IndexExpr, int], ...]
    dtype: DType

    def last(self, step: IndexExpr, number: int) -> IndexExpr:
        """The last index of an access in a step."""
        rest = Linear(self.rest, number).expr()
        return step + rest if self.sign > 0 else rest - step


def run_of(
    name: str, indices: tuple[Index, ...], dtype: DType, row: str, step: str
) -> tuple[Run, int] | None:
    """The run that an access belongs to, and its number; None if it goes along none."""
    at = plain(indices)
    if len(at) < max(2, len(indices)):
        return None
    *leading, last = at
    form = linear(last)
    sign = form.factor(IVar(step))
    if abs(sign) != 1 or row in variables(last) or any({row, step} & linear(i).hidden for i in at):
        return None
    if not any(row in variables(i) for i in leading) or any(step in variables(i) for i in leading):
        return None
    rest = form.without(IVar(step))
    return Run(name, tuple(leading), sign, rest.terms, dtype), rest.constant


def line_shift(run: Run, number: int) -> int:
    """Where strips begin, but for a multiple of their length, so that what these accesses to a run touch are
    whole lines."""
    return (-number if run.sign > 0 else number + 1) % FITTED.strip_tiles_steps


@dataclass(frozen=True, slots=True)
class Strip:
    """Steps from `start` on, of a whole strip, of which there are those from `begin` to `end`."""

    start: IndexExpr
    begin: IndexExpr
    end: IndexExpr


def strips_of(loop: For, start: str, shift: int) -> tuple[For, Strip]:
    """The loop over strips, without a body, and a strip of steps."""
    first = binary(
        "+",
        binary("*", binary("//", loop.lower - shift, FITTED.strip_tiles_steps), FITTED.strip_tiles_steps),
        shift,
    )
    strips = For(start, first, loop.upper, FITTED.strip_tiles_steps, ())
    at = IVar(start)
    return strips, Strip(
        at, binary("max", loop.lower, at), binary("min", loop.upper, at + FITTED.strip_tiles_steps)
    )


@dataclass(frozen=True, slots=True)
class StripTile:
    """The elements of a run that a strip touches, by accesses with numbers from `low` to `high`, in an array
    that has those of all rows side by side."""

    run: Run
    low: int
    high: int
    array: Buffer
    strip: Strip

    @staticmethod
    def length(numbers: Sequence[int]) -> int:
        """Elements of a row."""
        return FITTED.strip_tiles_steps + max(numbers) - min(numbers)

    @property
    def _base(self) -> IndexExpr:
        """The least last index that a whole strip touches."""
        start = self.strip.start
        return self.run.last(start if self.run.sign > 0 else start + (FITTED.strip_tiles_steps - 1), self.low)

    def of(self, step: IndexExpr, number: int) -> tuple[str, tuple[Index, ...]]:
        """Where an element of a step is in the array."""
        place = linear(self.run.last(step, number) - self._base).expr()
        return self.array.tensor, (place, IVar(ROW))

    def loaded(self, rows: int) -> TransposedTile:
        """Memory transposed into the array."""
        return self._turned(rows, self._along(self.low, self.high))

    def earlier(self, rows: int, number: int) -> TransposedTile:
        """What steps before the strip stored, as accesses with this number, transposed into the array."""
        begin = self.strip.begin
        if self.run.sign > 0:
            along = For(_PLACE, self.run.last(begin, self.low), self.run.last(begin, number), 1, ())
        else:
            along = For(_PLACE, self.run.last(begin, number) + 1, self.run.last(begin, self.high) + 1, 1, ())
        return self._turned(rows, along)

    def _turned(self, rows: int, along: For) -> TransposedTile:
        to = self.array.tensor, self._array
        dtype, memory = self.run.dtype, self._memory
        return TransposedTile(
            "%tile", dtype, self.run.tensor, memory, along, FITTED.strip_tiles_steps, _all(rows), rows, to
        )

    def stored(self, rows: int, number: int) -> TransposedTile:
        """What accesses with this number stored in the array, transposed into memory."""
        to = self.run.tensor, self._memory
        dtype, along = self.run.dtype, self._along(number, number)
        return TransposedTile(
            "%tile",
            dtype,
            self.array.tensor,
            self._array,
            _all(rows),
            rows,
            along,
            FITTED.strip_tiles_steps,
            to,
        )

    @property
    def _memory(self) -> tuple[IndexExpr, ...]:
        return (*self.run.leading, IVar(_PLACE))

    @property
    def _array(self) -> tuple[IndexExpr, ...]:
        return linear(IVar(_PLACE) - self._base).expr(), IVar(ROW)

    def _along(self, low: int, high: int) -> For:
        """The loop along what accesses with numbers from `low` to `high` touch, without a body."""
        begin, final = self.strip.begin, self.strip.end - 1
        steps = (begin, final) if self.run.sign > 0 else (final, begin)
        first, last = (self.run.last(*x) for x in zip(steps, (low, high), strict=True))
        return For(_PLACE, first, last + 1, 1, ())


def _all(rows: int) -> For:
    return For(ROW, IConst(0), IConst(rows), 1, ())
