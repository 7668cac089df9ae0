"""The benchmark of memory transactions: what is drawn, what is counted, what the table says."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks are not part of the package

from benchmarks.never_more_transactions import Row, measure, profile, report
from benchmarks.never_slower import PLANS
from benchmarks.random_programs import Drawn, Parameter, draw
from polyfuse.runtime.emulator.report import Sectors


def test_other_limits_draw_the_same_statements_over_fewer_elements() -> None:
    usual, small = [list(islice(p, 40)) for p in (draw(39), draw(39, 2**8, 2**9))]
    assert [p.kinds for p in usual] == [p.kinds for p in small]
    largest = [max(int(np.prod(q.shape)) for q in p.parameters) for p in small]
    assert max(largest) <= 2**13 < min(max(int(np.prod(q.shape)) for q in p.parameters) for p in usual)


def test_every_plan_is_counted() -> None:
    text = """op f(x: f32[64, 96]) -> (y: f32[64, 96]) {
      t[a, b] = tanh(x[a, b]) for a in 0..64, b in 0..96
      y[a, b] = t[a, b] * 0.5 for a in 0..64, b in 0..96
    }"""
    row = measure(Drawn(0, ("map",), text, (Parameter("x", "f32", (64, 96)),)))
    once = 64 * 96 * 4 // 32
    totals = {p: row.total(p) for p in PLANS}
    assert totals["default"] == totals["loop"] == 2 * once
    assert totals["none"] == 4 * once
    assert (row.ratio, row.over_unfused) == (1, 0.5)
    assert f"x: {once} loads ({once} fetched), 0 stores" in profile(row)


def test_the_table_names_what_is_above_the_bound() -> None:
    def row(number: int, default: int) -> Row:
        totals = {p: default if p == "default" else 100 for p in PLANS}
        return Row(number, ("map",), "", {p: (Sectors(0, "k", "x", n, 0, 50),) for p, n in totals.items()})

    text = report([row(0, 100), row(1, 300), row(2, 130)], 2)
    assert "| all | 3 | 1.57 | 1.57 | 2 | 1 | 0 |" in text
    assert [line.split(" | ")[0] for line in text.splitlines()[-2:]] == ["| 1", "| 2"]
