"""The benchmarks themselves: workloads compute what their operators say, the harness and its reports work."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from polyfuse import stdlib
from polyfuse.runtime.reference.evaluate import evaluate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of the package

from benchmarks import (  # noqa: E402
    compile_time,
    half_precision,
    performance_page,
    stdlib_sizes,
    stdlib_times,
)
from benchmarks.__main__ import folder_of, main, options  # noqa: E402
from benchmarks.check import Truth, numpy_truth  # noqa: E402
from benchmarks.floor import compulsory  # noqa: E402
from benchmarks.measure import Timing  # noqa: E402
from benchmarks.quiet import Meter, quiet_rounds  # noqa: E402
from benchmarks.random_shapes import RANGES, draw  # noqa: E402
from benchmarks.report import geometric_mean  # noqa: E402
from benchmarks.surroundings import RESULTS, machine_kind, slug  # noqa: E402
from benchmarks.workload import PLACES, load, names, select  # noqa: E402


@pytest.mark.parametrize("name", names())
def test_numpy_functions_agree_with_the_reference(name: str) -> None:
    workload = load(name)
    sizes = workload.module.SMALL
    given = workload.inputs(sizes)
    found = evaluate(workload.graph, sizes, given)
    for outcome, want in numpy_truth(workload, given).items():
        got = found[outcome]
        assert got.value.shape == want.shape and not got.undecided.any(), outcome
        np.testing.assert_allclose(got.value, want, rtol=2e-5, atol=2e-6, err_msg=outcome)


@pytest.mark.parametrize("name", names())
def test_workloads_are_complete(name: str) -> None:
    workload = load(name)
    assert all(workload.has(library) for library in ("numpy", "torch", "jax"))
    sizes = set(workload.graph.sizes)
    assert sizes == set(workload.module.SMALL)
    assert workload.cases and all(set(s) == sizes for s in workload.cases.values())
    assert all(set(workload.sizes(case)) == sizes for case in workload.other_cases)
    required = {n for n in workload.graph.inputs if workload.graph.tensor(n).default is None}
    given = workload.inputs(workload.module.SMALL)
    assert required <= set(given) <= set(workload.graph.inputs)
    again = workload.inputs(workload.module.SMALL)
    assert all(np.array_equal(given[n], again[n]) for n in given), "inputs differ from call to call"


def test_arrays_begin_at_cache_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load("rope")
    placed = {n: a for n, a in workload.inputs(workload.module.SMALL).items() if isinstance(a, np.ndarray)}
    assert placed and all(a.ctypes.data % 64 == 0 and a.flags.c_contiguous for a in placed.values())
    monkeypatch.setenv(PLACES, "numpy")
    plain = workload.inputs(workload.module.SMALL)
    assert all(np.array_equal(a, plain[n]) and a.dtype == plain[n].dtype for n, a in placed.items())
    assert all(plain[n].base is None or plain[n].base.dtype != np.uint8 for n in placed)


def test_names_of_cases_are_unique() -> None:
    cases = [case for _, case in select([])]
    assert len(set(cases)) == len(cases)
    assert {w.name for w, _ in select(["bias_gelu_1024", "rope"])} == {"bias_gelu", "rope"}
    with pytest.raises(KeyError, match="there is no workload 'nothing'"):
        select(["nothing"])


def test_shapes_are_drawn_by_their_seed() -> None:
    drawn = draw(2 * len(RANGES), 5, [])
    cases = [case for _, case in drawn]
    assert sorted({w.name for w, _ in drawn}) == sorted(RANGES)
    assert cases == [case for _, case in draw(2 * len(RANGES), 5, [])]
    assert cases != [case for _, case in draw(2 * len(RANGES), 6, [])]
    for workload, case in drawn:
        sizes = workload.sizes(case)
        assert set(sizes) == set(workload.graph.sizes)
        assert all(low <= sizes[n] <= high for n, (low, high) in RANGES[workload.name].items())
    assert {w.name for w, _ in draw(3, 0, ["rope"])} == {"rope"}
    with pytest.raises(KeyError, match="there is no workload 'nothing' to draw"):
        draw(1, 0, ["nothing"])


@pytest.mark.timeout(60)
def test_a_run_without_torch_and_jax(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One process each for polyfuse and NumPy; a table, JSON, Markdown."""
    out = tmp_path / "results"
    basics = ["--no-torch", "--no-jax", "--repeat", "3", "--patience", "0"]
    assert main(["--only", "lstm_cell", *basics, "--out", str(out)]) == 0
    printed = capfd.readouterr().out
    assert "lstm_cell" in printed and "geometric means over 1 workloads" in printed
    data = json.loads((out / "workloads.json").read_text())
    assert {"cpu", "date", "cores", "versions", "load", "threads", "rounds"} <= set(data)
    (workload,) = data["workloads"]
    assert [e["label"] for e in workload["entries"]] == ["polyfuse", "polyfuse, bound", "numpy"]
    for e in workload["entries"]:
        assert 0 < e["timing"]["least"] <= e["timing"]["low"] <= e["timing"]["median"] <= e["timing"]["high"]
        assert e["timing"]["rounds"] == 3 and e["first_call_s"] > 0 and e["verdict"]["ok"]
    assert workload["best_peer"] == "numpy" and workload["ratio"] > 0 and workload["floor_ms"] > 0
    table = (out / "workloads.md").read_text().splitlines()
    cells = [line.count("|") for line in table if line.startswith("|")]
    assert len(cells) == 3 and len(set(cells)) == 1


def test_wrong_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--random", "1"]):
        assert main(["--only", "nothing", *arguments]) == 2
        assert "there is no workload 'nothing'" in capsys.readouterr().out


def test_the_judge_tells_wrong_from_right(tmp_path: Path) -> None:
    workload = load("ln_bwd")
    truth = Truth(workload, workload.module.SMALL)
    for name, want in numpy_truth(workload, workload.inputs(workload.module.SMALL)).items():
        np.save(tmp_path / f"{name}.npy", want.astype(np.float32))
    assert truth.judge(tmp_path, strict=True).ok
    wrong = np.load(tmp_path / "dgamma.npy")
    wrong[0] += 1e-2
    np.save(tmp_path / "dgamma.npy", wrong)
    verdict = truth.judge(tmp_path, strict=False)
    assert not verdict.ok and "dgamma" in verdict.message


def test_compulsory_traffic() -> None:
    n = 1000
    need = compulsory(load("adamw").graph, {"N": n})
    scalars = 8 + 5 * 4
    assert (need.read, need.written) == (4 * 4 * n + scalars, 3 * 4 * n)
    assert need.working_set == 4 * 4 * n + scalars, "what is updated in place lies there once"
    rates = {"read": 10.0, "fill": 5.0, "fill_nt": 8.0, "copy": 4.0, "map": 4.0, "map_nt": 4.0}
    memory = (need.read / 10 + need.written / 8) * 1e-9
    assert need.seconds({**rates, "fma_gflops": 1e9}) == pytest.approx(memory)
    assert need.seconds({**rates, "fma_gflops": 1.0}) == pytest.approx(2 * need.operations * 1e-9)


def test_products_are_one_operation_with_their_sum() -> None:
    need = compulsory(load("mm_bias_gelu").graph, {"T": 3, "K": 5, "H": 7})
    less = compulsory(load("mm_bias_gelu").graph, {"T": 3, "K": 4, "H": 7})
    assert need.operations - less.operations == 3 * 7


def test_a_floor_has_no_more_arithmetic_than_is_needed() -> None:
    """Squares are products, and the root of a row is computed once for it."""
    t, h = 10, 1000
    need = compulsory(load("ln_fwd").graph, {"T": t, "H": h})
    assert 2 * t * h < need.operations < 5 * t * h
    powers = compulsory(load("astitch_768").graph, {"T": t, "H": h})
    assert powers.operations < 4 * t * h


def test_half_precision_beside_f32(capsys: pytest.CaptureFixture[str]) -> None:
    half_precision.main(["--only", "rope", "--seconds", "0"])
    shown = capsys.readouterr().out
    assert shown.count("| rope") == 3 and "Beyond their bar" in shown


def test_statistics() -> None:
    t = Timing.of([0.003, 0.001, 0.002, 0.005, 0.004])
    assert (t.least, t.low, t.median, t.high, t.rounds) == pytest.approx((1.0, 2.0, 3.0, 4.0, 5))
    assert Timing.of([0.002]).high == 2.0
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) == 0.0


class _Noise(Meter):
    """Others are busy in the rounds whose numbers are given."""

    def __init__(self, shares: list[float]) -> None:
        self.shares = iter(shares)

    def start(self) -> None: ...

    def others(self) -> float:
        return next(self.shares)

    def wait(self, deadline: float) -> None: ...


def test_disturbed_rounds_are_made_again_until_patience_ends() -> None:
    values: list[int] = []
    noise = _Noise([0.0, 0.5, 0.0, 0.9, 0.0])
    assert quiet_rounds(values.append, values.pop, 3, noise, math.inf) == (2, 0)  # type: ignore[arg-type]
    assert values == [0, 1, 2]
    values.clear()
    assert quiet_rounds(values.append, values.pop, 2, _Noise([0.5, 0.5]), 0) == (0, 2)  # type: ignore[arg-type]


# --- compile time -----------------------------------------------------------------------------------


def test_every_operator_of_the_library_has_a_size() -> None:
    table = stdlib_sizes.table()
    assert set(table) == set(stdlib.ops)
    for name in ("adamw", "swiglu", "segment_sum"):
        sig = stdlib.op(name).signature
        given = stdlib_sizes.arguments(sig, table[name])
        assert [p.name for p in sig.params if not p.has_default] == list(given)
    assert given["start"].shape == (20001,) and given["start"].dtype == np.int64


def test_compile_times_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(cache))
    cold, warm = compile_time.measured("relu"), compile_time.measured("relu")
    assert cold["c++"] > 0 and warm["c++"] == 0
    for t in (cold, warm):
        assert t["total"] == pytest.approx(t["own"] + t["c++"])
        parts = sum(v for k, v in t.items() if k not in ("total", "own"))
        assert parts == pytest.approx(t["total"], rel=1e-6)
    about = {"cpu": "c", "cores": 2, "date": "2000-01-01", "python": "3", "compiler": "g++", "repeat": 1}
    found = {"once": 1.0, "cold": {"relu": cold}, "warm": {"relu": warm}}
    text = compile_time.page(found, {**about, "load": (0.0, 0.0)})
    assert "| relu | " in text and "| c++ | " in text
    assert math.isclose(compile_time.figures([1.0, 3.0, 2.0])[0], 2.0)


def test_the_page_of_performance_is_that_of_its_run() -> None:
    """Every kind of machine with results has its table there, and no other has one."""
    text = performance_page.PAGE.read_text(encoding="utf-8")
    found = dict(re.findall(r"<!-- measured: (\S+) -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL))
    assert found == performance_page.parts()


def test_results_are_the_latest_of_each_kind_of_machine() -> None:
    """A folder for each kind, named as its files say; no second run; small enough to be committed."""
    files = [f for f in RESULTS.rglob("*") if f.is_file()]
    assert {f.parent.parent for f in files} <= {RESULTS, RESULTS.parent}
    assert sum(f.stat().st_size for f in files) < 1.5e6
    for file in files:
        if file.suffix == ".json" and file.parent != RESULTS:  # those of no kind of machine lie beside
            data = json.loads(file.read_text(encoding="utf-8"))
            about = data.get("about", data)
            kind = slug(about["device"]) if "device" in about else machine_kind(about)
            assert file.parent.name == kind


def test_only_complete_runs_take_the_place_of_the_last_one(tmp_path: Path) -> None:
    """One of some workloads is written where it is told."""
    about = {"cpu": "AMD EPYC AVX2", "caches": {"l1": 32768}}
    latest = RESULTS / "amd-epyc-avx2-l1-32k"
    assert folder_of(options([]), about) == folder_of(options(["--others"]), about) == latest
    for some in (["--quick"], ["--only", "rope"], ["--random", "3"]):
        assert folder_of(options(some), about) is None
        assert folder_of(options([*some, "--out", str(tmp_path)]), about) == tmp_path


def test_times_of_the_standard_library(capsys: pytest.CaptureFixture[str]) -> None:
    stdlib_times.main(["--only", "segment_sum", "lstm_cell"])
    shown = capsys.readouterr().out
    assert "segment_sum" in shown and "lstm_cell" in shown and "ms / floor" in shown


@pytest.mark.parametrize("name", stdlib_sizes.table())
def test_inputs_of_the_standard_library_are_in_range(name: str) -> None:
    given = stdlib_times.inputs(name)
    indices = [a for a in given.values() if isinstance(a, np.ndarray) and a.dtype.kind == "i"]
    sizes = [n for axes in stdlib_sizes.table()[name].values() for n in axes]
    assert all(a.min() >= 0 and a.max() <= max(sizes) for a in indices if a.size)
