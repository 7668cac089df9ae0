"""Ordinary operators that are no workloads, by kinds: what `benchmarks.operator_peers` times."""

from __future__ import annotations

from benchmarks.operators import (
    borders,
    columns,
    contractions,
    functions,
    gradients,
    graphs,
    images,
    indices,
    losses,
    movement,
    optimizers,
    points,
    rows,
    science,
    sequences,
    serving,
    training,
)
from benchmarks.operators.case import Case as Case

CASES: tuple[Case, ...] = (
    *functions.CASES,
    *rows.CASES,
    *columns.CASES,
    *movement.CASES,
    *losses.CASES,
    *images.CASES,
    *borders.CASES,
    *sequences.CASES,
    *optimizers.CASES,
    *indices.CASES,
    *gradients.CASES,
    *contractions.CASES,
    *science.CASES,
    *points.CASES,
    *graphs.CASES,
    *serving.CASES,
    *training.CASES,
)
