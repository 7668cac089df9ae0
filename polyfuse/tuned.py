"""What a measurement of variants found: a row for each, and which one is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from polyfuse.layers.variants import Variant


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: seconds projected and measured (None: not measured, and why); `spread` says how far the
    shortest times of alternate rounds are apart, relative to them."""

    variant: Variant
    predicted: float
    measured: float | None
    note: str = ""
    spread: float = 0.0

    @property
    def shown(self) -> str:
        """``345.8 +- 2%``, or why it was not measured."""
        if self.measured is None:
            return self.note
        return f"{self.measured * 1e6:.1f}" + (f" +- {self.spread:.0%}" if isfinite(self.spread) else "")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Variants of one operator. note: why nothing was measured; seconds: what the search took.

    `print` shows a table, the one that is taken marked with a star.
    """

    operator: str
    rows: tuple[Row, ...]
    chosen: Variant
    note: str = ""
    seconds: float = 0.0

    @property
    def timed(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if r.measured is not None)

    def __str__(self) -> str:
        head = f"tuning of {self.operator}: {self.note or f'{len(self.timed)} variants measured'}"
        if not self.rows:
            return head
        table = [("", "variant", "projected us", "measured us")]
        for r in self.rows:
            mark = "*" if r.variant == self.chosen else ""
            table.append((mark, str(r.variant), f"{r.predicted * 1e6:.1f}", r.shown))
        widths = [max(len(r[c]) for r in table) for c in range(3)]
        lines = [
            f"{m.ljust(widths[0])} {v.ljust(widths[1])}  {p.rjust(widths[2])}  {s}" for m, v, p, s in table
        ]
        return "\n".join([head, *(line.rstrip() for line in lines)])

    def as_json(self) -> dict[str, Any]:
        rows = [[r.variant.changes, r.predicted, r.measured, r.note, r.spread] for r in self.rows]
        return {
            "operator": self.operator,
            "rows": rows,
            "chosen": self.chosen.changes,
            "note": self.note,
            "seconds": self.seconds,
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Tuning:
        """Raises KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        rows = tuple(
            Row(
                Variant(tuple(changes)).known(),
                float(predicted),
                measured and float(measured),
                str(note),
                float(apart),
            )
            for changes, predicted, measured, note, apart in data["rows"]
        )
        chosen = Variant(tuple(data["chosen"])).known()
        return cls(str(data["operator"]), rows, chosen, str(data["note"]), float(data["seconds"]))
