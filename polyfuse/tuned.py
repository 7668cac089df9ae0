"""What a measurement of variants found: a row for each, and which one is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyfuse.layers.variants import Variant


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: seconds projected and measured (None: not measured, and why)."""

    variant: Variant
    predicted: float
    measured: float | None
    note: str = ""


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
            measured = r.note if r.measured is None else f"{r.measured * 1e6:.1f}"
            table.append((mark, str(r.variant), f"{r.predicted * 1e6:.1f}", measured))
        widths = [max(len(r[c]) for r in table) for c in range(3)]
        lines = [
            f"{m.ljust(widths[0])} {v.ljust(widths[1])}  {p.rjust(widths[2])}  {s}" for m, v, p, s in table
        ]
        return "\n".join([head, *(line.rstrip() for line in lines)])

    def as_json(self) -> dict[str, Any]:
        rows = [[r.variant.changes, r.predicted, r.measured, r.note] for r in self.rows]
        return {
            "operator": self.operator,
            "rows": rows,
            "chosen": self.chosen.changes,
            "seconds": self.seconds,
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Tuning:
        """Raises KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        rows = tuple(
            Row(Variant(tuple(changes)).known(), float(predicted), measured and float(measured), str(note))
            for changes, predicted, measured, note in data["rows"]
        )
        chosen = Variant(tuple(data["chosen"])).known()
        return cls(str(data["operator"]), rows, chosen, "", float(data["seconds"]))
