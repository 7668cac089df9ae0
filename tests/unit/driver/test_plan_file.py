"""Plans as files: written, pinned, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_tuner import NORM, compilation, quick  # noqa: F401

import polyfuse as pf
from polyfuse.driver.pipeline import Compilation, Watch, emitted
from polyfuse.layers.clustering.clusters import cuts_of
from polyfuse.tuning import tuner
from polyfuse.tuning.candidates import compilation_of
from polyfuse.tuning.table import CHANGES, EVERY, PLAN_CHANGES, Row, Tuning, Variant, choice_in, keep_choices

SIZES = {"T": 37, "H": 131}


def pinned_cut(base: Compilation) -> tuple[tuple[str, ...], ...]:
    """The last statement of the graph that is cut, apart."""
    graph = base.prepared(Watch(base.options), [])
    *first, last = (s.name for s in graph.statements)
    return cuts_of(graph).checked((tuple(first), (last,)))


def plan(file: Path, *changes: str, cut: Any = "last", **more: object) -> Variant:
    """A file with a plan of NORM at SIZES; `more` replaces fields of its entry."""
    base = compilation(**SIZES)
    variant = Variant(changes, pinned_cut(base) if cut == "last" else cut)
    rows = (Row(Variant(), 2e-6, 3e-6), Row(variant, 1e-6, 2e-6))
    keep_choices(file, [tuner.about(Tuning("norm", rows, variant, judge="learned"), base)])
    if more:
        data = json.loads(file.read_text())
        for entry in data["choices"].values():
            entry |= more
        file.write_text(json.dumps(data))
    return variant


def arguments() -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((SIZES["T"], SIZES["H"])).astype("f4")
    return x, np.ones(SIZES["H"], "f4")


def pinned(file: Path | str, text: str = NORM, **more: Any) -> pf.Compiled:
    settings = {"target": "interpret", "verify": False, "dump": None, "progress": False, **more}
    return pf.compile(text, plan=file, **settings)


def test_a_plan_goes_into_a_file_and_back(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    variant = plan(file, "kernels apart", "non-temporal stores")
    assert choice_in(file, tuner.problem(compilation(**SIZES))) == variant
    (entry,) = json.loads(file.read_text())["choices"].values()
    assert entry["operator"] == "norm" and entry["sizes"] == SIZES and entry["target"] == "cpu"
    assert entry["machine"] and entry["model"] == "learned" and len(entry["clusters"]) == 2
    assert entry["predicted microseconds"][str(variant)] == 1.0 and entry["microseconds"][str(variant)] == 2.0


@pytest.mark.machine("zen5")
def test_a_pinned_plan_has_the_code_of_its_variant(tmp_path: Path) -> None:
    variant = plan(file := tmp_path / "plan.json", "temporaries stored")
    found = emitted(Watch(compilation().options), compilation_of(compilation(**SIZES), variant))[1]
    usual = emitted(Watch(compilation().options), compilation(**SIZES))[1]
    f = pinned(str(file), target="cpu", threads=2)
    assert f.built(*arguments()).code.source == found.source != usual.source


def test_it_computes_the_same_and_says_where_it_is_from(tmp_path: Path) -> None:
    plan(file := tmp_path / "plan.json")
    x, g = arguments()
    f = pinned(file)
    m, v = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    np.testing.assert_allclose(f(x, g), (x - m) / np.sqrt(v + 1e-5), rtol=1e-4, atol=1e-4)
    told = f.explain(x, g)
    assert f"pinned by {file}" in told and "2 clusters, as given" in told


def test_files_of_the_first_format_are_read(tmp_path: Path) -> None:
    file, key = tmp_path / "old.json", tuner.problem(compilation(**SIZES))
    file.write_text(json.dumps({"format": 1, "choices": {key: {"changes": ["kernels apart"]}}}))
    assert choice_in(file, key) == Variant(("kernels apart",))
    assert "kernels apart: pinned by" in pinned(file).explain(*arguments()).replace("tune ", "")
    file.write_text(json.dumps({"format": 3, "choices": {}}))
    with pytest.raises(pf.ArgumentError, match="has format 3"):
        choice_in(file, key)


@pytest.mark.parametrize(
    ("text", "rows", "told", "hint"),
    [
        (NORM.replace("norm(", "other("), 37, "no plan of other, but of norm", "take the file of this"),
        (NORM, 36, "no plan of norm at T=36, H=131, but at T=37, H=131", "--size"),
        (NORM.replace("1e-5", "1e-6"), 37, "as it was", "polyfuse tune"),
    ],
)
def test_a_plan_of_something_else_is_refused(
    tmp_path: Path, text: str, rows: int, told: str, hint: str
) -> None:
    plan(file := tmp_path / "plan.json")
    x, g = arguments()
    with pytest.raises(pf.ArgumentError, match=told) as refused:
        pinned(file, text)(x[:rows], g)
    assert refused.value.code == "PF428" and hint in (refused.value.diagnostics[0].hint or "")
    lenient = pf.compile(text, target="interpret", tuned=file, verify=False, dump=None, progress=False)
    assert "has no choice for it" in lenient.explain(x[:rows], g)


def test_clusters_of_another_version_are_refused(tmp_path: Path) -> None:
    plan(file := tmp_path / "plan.json", clusters=[["m__sum"], ["gone"]])
    with pytest.raises(pf.ArgumentError, match="no statement 'gone'") as refused:
        pinned(file)(*arguments())
    assert refused.value.code == "PF428" and str(file) in str(refused.value)


@pytest.mark.parametrize("bad", [{"changes": ["faster"]}, {"changes": 3}, {"clusters": ["m"]}])
def test_what_this_version_cannot_take_is_refused(tmp_path: Path, bad: dict[str, object]) -> None:
    plan(file := tmp_path / "plan.json", **bad)
    with pytest.raises(pf.ArgumentError, match="cannot take") as refused:
        pinned(file)(*arguments())
    assert refused.value.code == "PF490"


def test_other_values_of_the_option_are_refused(tmp_path: Path) -> None:
    for wrong in (3, {"row_threads": 4}):
        with pytest.raises(pf.ArgumentError, match="the path of a file, a GpuPlan, or None") as refused:
            pf.compile(NORM, plan=wrong)
        assert refused.value.code == "PF490"
    with pytest.raises(pf.ArgumentError, match="cannot be read"):
        pinned(tmp_path / "nowhere.json")(*arguments())
    plan(file := tmp_path / "plan.json")
    with pytest.raises(pf.ArgumentError, match="some open") as refused:
        pf.compile(NORM, plan=file, sizes={"T": pf.open})
    assert refused.value.code == "PF428"
    with pytest.raises(pf.ArgumentError, match="the schedule is one"):
        pf.schedule(NORM, **SIZES).compile(target="cpu", options=pf.Options(plan=file))
    with pytest.raises(pf.ArgumentError, match="exported"):
        pf.export(pf.compile(NORM, target="cpu", plan=file), tmp_path / "norm.so")


def test_changes_of_plans_change_something() -> None:
    from polyfuse.tuning.candidates import choices_of

    base = choices_of(compilation())
    assert all(Variant((n,)).of(base) != base for n in PLAN_CHANGES)
    assert len(EVERY) >= len(CHANGES) + len(PLAN_CHANGES)
    cut = Variant((), (("a",),))
    assert cut.joined(Variant(("clusters by search",))) is None, "both cut the graph"
    assert cut.joined(Variant(("no packs",))) == Variant(("no packs",), (("a",),))
