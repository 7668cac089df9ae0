"""Experiments of the learned cost model, and the page that is made of what they found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from test_model import random_model
from timed_samples import made_up

from benchmarks import learned, learned_page
from polyfuse.learn.model import Design


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    samples = made_up(24, 4)
    model = random_model(Design(width=8, head=(4,)), samples.graphs, members=2)
    shipped = learned.judged(samples, model)
    made = {}
    for e in (learned.Experiment(learned.USUAL, part=p, seed=s) for p in (0.5, 1.0) for s in (0, 1)):
        made[e.name] = {"kind": e.kind, "split": e.split, "part": e.part, "test": shipped["figures"]}
    about = dict.fromkeys(("date", "threads", "made", "timed", "noisy", "failed", "programs", "graphs"), 1)
    about |= {"cores": learned.by_core(samples)}
    return {"samples": len(samples), "about": about, "wins": True, "shipped": shipped, "experiments": made}


def test_samples_are_counted_by_core() -> None:
    samples = made_up(3, 2)
    named = replace(samples, programs=["a @ x", "a @ y", "b @ y"])
    assert learned.by_core(named) == {"x": 2, "y": 4}


def test_experiments_are_told_apart() -> None:
    names = [e.name for e in learned.experiments()]
    assert len(names) == len({*names}) == len(learned.SEEDS) * (len(learned.KINDS) + 9)


def test_a_part_of_the_data_is_whole_programs() -> None:
    samples = made_up(20, 3)
    every = np.arange(len(samples))
    some = learned.some_of(samples, every, 0.25, 0)
    chosen = {*samples.program[some]}
    assert len(chosen) == 5 and len(some) == np.isin(samples.program, [*chosen]).sum()
    assert (learned.some_of(samples, every, 1.0, 0) == every).all()


def test_tables_have_a_row_for_each(found: dict[str, Any]) -> None:
    text = learned_page.held_out(found)
    for name in (
        "a repeat of the measurement",
        "the compiler's own choice",
        "projected model",
        learned.USUAL,
    ):
        assert f"| {name} |" in text
    widths = {line.count("|") for line in text.splitlines()}
    assert len(widths) == 1 and "nan" not in text
    assert learned_page.ablations(found).count("(4 seeds)") == 0
    assert f"{learned.USUAL} (2 seeds)" in learned_page.ablations(found)
    assert [part for part, _ in learned_page.curve(found)] == [0.5, 1.0]


def test_the_page_says_who_wins(found: dict[str, Any]) -> None:
    assert learned_page.verdict(found).startswith("The learned model wins")
    assert "the projected one stays" in learned_page.verdict({**found, "wins": False})


def test_plots_are_pictures(found: dict[str, Any]) -> None:
    shipped = found["shipped"]
    pictures = (
        learned_page.scatter(shipped["points"]),
        learned_page.curves(found),
        learned_page.kinds_plot(found),
        learned_page.bars(shipped["importance"]),
    )
    for picture in pictures:
        assert ElementTree.fromstring(picture).tag.endswith("svg") and "prefers-color-scheme" in picture


def test_text_between_marks_is_written() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end -->\nb"
    assert learned_page.written(page, "x", "new") == "a\n<!-- x -->\nnew\n<!-- end -->\nb"
    with pytest.raises(SystemExit):
        learned_page.written(page, "y", "new")


def test_who_wins() -> None:
    good = {"variants": {"mape": 0.1, "right": 9, "first": 0.0, "five": 0.0}}
    bad = {"variants": {"mape": 0.2, "right": 8, "first": 0.1, "five": 0.0}}
    assert learned.wins(good, bad, 0.99) and not learned.wins(good, bad, 0.9)
    assert not learned.wins(bad, good, 1.0) and not learned.wins(good, good, 1.0)
