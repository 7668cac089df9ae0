"""`make gpu-pack` and `make gpu` without a network and without a GPU: what can be said about them here."""

from __future__ import annotations

import json
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import gpu_stand_ins
import numpy as np
import open_calls
import pytest

import polyfuse as pf
from polyfuse.ir.index_expr import evaluate
from polyfuse.runtime.reference.agreement import Agreement

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests" / "gpu"):
    sys.path.insert(0, str(folder))  # none of these is part of the package

from benchmarks import gpu_contenders, gpu_table, gpu_timing  # noqa: E402
from benchmarks.gpu_arrays import POOL, Pool  # noqa: E402
from benchmarks.gpu_cases import cases, compile_case, small_calls  # noqa: E402
from benchmarks.gpu_limits import BARS, by_distance, earlier  # noqa: E402
from benchmarks.gpu_results import saved  # noqa: E402
from gpu import pack, part_plans, part_reference, part_sanitize, part_sizes, part_tests, pycuda_wheel  # noqa: E402
from gpu.__main__ import LATE, main  # noqa: E402
from gpu.__main__ import PEERS as OFFERED  # noqa: E402
from gpu.bench_report import summary  # noqa: E402
from gpu.install import InstallError, chosen, environment, install, missing, verify  # noqa: E402
from gpu.job import Job  # noqa: E402
from gpu.parts import NAMES, share  # noqa: E402
from gpu.record import RESULTS, TABLE, Record  # noqa: E402
from gpu.report import page  # noqa: E402
from gpu.run import Setting, merged, run_part, split  # noqa: E402


@pytest.fixture(autouse=True)
def _quick_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYFUSE_VERIFY", "0")
    monkeypatch.setattr("gpu.run.LOGS", tmp_path / "logs")


# --- the run ------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
def test_a_rehearsal_runs_to_its_end_and_goes_on_where_it_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu.__main__.sources_digest", lambda root: "1")  # somebody may be editing
    base = ["--rehearse", "--out", str(tmp_path), "--workers", "1", "--only", "softmax 5x7 bf16", "random 0"]
    base += ["stdlib gelu", "--beside", "sizes"]
    parts = ["--part", "bench", "reference", "sanitize"]
    assert main([*base, *parts, "--minutes", "0.01"]) == LATE
    assert "There is more to do" in capfd.readouterr().out
    assert main([*base, *parts]) == 0
    printed = capfd.readouterr().out
    assert "REHEARSAL" in printed and "reference: random 0-3: ok" in printed
    data = json.loads((tmp_path / RESULTS).read_text())
    assert data["about"]["target"] == "emulate"
    checked = data["parts"]["reference"]["items"]["random 0-3"]
    assert checked["compared"] == 4 * 6 and checked["wrong"] == 0 and 0 < checked["worst_ratio"] <= 1
    opened = data["parts"]["sizes"]["items"]["stdlib gelu"]
    assert opened["compared"] == 14 and opened["variants"] < 8 and opened["new_sizes_us"] > 0
    bench = data["parts"]["bench"]["items"]
    assert set(bench) == {"softmax 5x7 bf16"}
    for r in bench.values():
        entry = r["entries"]["polyfuse"]
        assert entry["verdict"]["ok"] and entry["by"] == "wall" and entry["launches"] >= 1
        assert "share_of_copy" not in r and r["best_peer"] is None
    table = (tmp_path / TABLE).read_text()
    assert "times mean nothing" in table and "| softmax 5x7 bf16 |" in table
    assert "| random | 1 | 24 | 0 |" in table and "| stdlib gelu | 14 |" in table
    assert main([*base, *parts]) == 0
    assert "bench:" not in capfd.readouterr().out, "done items are done again"


def test_what_is_wrong_leaves_operator_and_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import on_device
    import sizes_on_device

    def differs(*_: Any) -> Agreement:
        return Agreement(False, 3, 7.0, 0.0, "3 of 8 differ")

    monkeypatch.setattr(on_device, "agrees", differs)
    monkeypatch.setattr(open_calls, "agrees", differs)
    monkeypatch.setattr(part_reference, "FAILED", tmp_path)
    job = Job("emulate", quick=True)
    found = part_reference.run("kinds 1-1", job)
    assert (found["status"], found["wrong"], found["worst_ratio"]) == ("failed", 6, 7.0)
    assert "scatters 0 (stitched): t: 3 of 8 differ" in found["message"]
    kept = (tmp_path / "scatters-0-api.cu").read_text()
    assert "// op p(" in kept and "__global__" in kept and "y: 3 of 8 differ" in kept
    monkeypatch.setattr(sizes_on_device, "KIND_CALLS", 2)
    found = part_sizes.run("rows 0", job)
    assert found["status"] == "failed" and "3 of 8 differ" in found["message"]
    kept = max(tmp_path.glob("rows-0-*.cu"), key=lambda f: f.stat().st_size).read_text()
    assert "// op p(" in kept and "__global__" in kept


def _part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> Any:
    """A part "fake" whose worker runs `body`; returns a function that runs items of it."""
    package = tmp_path / "fake" / "gpu"
    package.mkdir(parents=True)
    for file in (ROOT / "gpu").glob("*.py"):
        (package / file.name).write_text(file.read_text())
    (package / "part_bench.py").write_text("import os, time\ndef run(item, job):\n" + body)
    record = Record(tmp_path / "out", {"sources": "1"}, page)

    def run(*items: str) -> dict[str, Any]:
        setting = Setting(tmp_path / "out", [package.parent], time.monotonic() + 60)
        monkeypatch.chdir(package.parent)
        run_part("bench", list(items), Job("cpu", quick=True), setting, record)
        found: dict[str, Any] = record.data["parts"]["bench"]["items"]
        return found

    return run


def test_a_crash_is_one_items_result_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _part(
        monkeypatch,
        tmp_path,
        "    if 'bad' in item: os._exit(7)\n    return {'status': 'ok', 'pid': os.getpid()}\n",
    )
    found = run("a", "b", "bad", "c")
    assert [found[n]["status"] for n in ("a", "b", "bad", "c")] == ["ok", "ok", "crashed", "ok"]
    assert "status 7" in found["bad"]["message"]
    assert found["a"]["pid"] == found["b"]["pid"] != found["c"]["pid"]
    assert json.loads((tmp_path / "out" / RESULTS).read_text())["parts"]["bench"]["items"] == found


def test_a_group_that_crashes_is_made_again_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "    if item in ('g 0-2', 'g 1-1'): os._exit(1)\n    return {'status': 'ok', 'compared': 3}\n"
    found = _part(monkeypatch, tmp_path, body)("g 0-2")["g 0-2"]
    assert (found["status"], found["compared"], found["wrong"]) == ("failed", 6, 1)
    assert found["message"].startswith("g 1-1: crashed")


def test_an_exception_is_a_failure_with_its_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _part(monkeypatch, tmp_path, "    raise ValueError('no such ' + item)\n")("thing")["thing"]
    assert found["status"] == "failed" and "no such thing" in found["message"]


def test_groups() -> None:
    assert split("stdlib 3-5") == ["stdlib 3-3", "stdlib 4-4", "stdlib 5-5"]
    assert split("ln_fwd 5x7 f32") == ["ln_fwd 5x7 f32"]
    assert merged([("a", {"status": "ok", "compared": 2})])["status"] == "ok"


def test_other_sources_begin_again(tmp_path: Path) -> None:
    first = Record(tmp_path, {"sources": "1"}, page)
    assert first.plan("bench", ["a", "b"]) == ["a", "b"]
    first.put("bench", "a", {"status": "ok"})
    assert not first.complete("bench")
    again = Record(tmp_path, {"sources": "1"}, page)
    assert again.plan("bench", ["a", "b"]) == ["b"]
    assert again.plan("bench", ["a"]) == [] and again.complete("bench"), "less was asked for"
    assert Record(tmp_path, {"sources": "2"}, page).plan("bench", ["a", "b"]) == ["a", "b"]
    assert (tmp_path / "results-1.json").is_file()


def test_what_was_right_may_be_kept_when_sources_change(tmp_path: Path) -> None:
    first = Record(tmp_path, {"sources": "1", "target": "cuda"}, page)
    first.plan("tests", ["a", "b"])
    first.put("tests", "a", {"status": "ok"})
    first.put("tests", "b", {"status": "failed"})
    kept = Record(tmp_path, {"sources": "2", "target": "cuda"}, page, keep=True)
    assert kept.plan("tests", ["a", "b"]) == ["b"]
    assert kept.data["parts"]["tests"]["items"]["a"] == {"status": "ok", "sources": "1"}
    assert "1 of these are results of earlier sources" in (tmp_path / TABLE).read_text()
    assert Record(tmp_path, {"sources": "2", "target": "emulate"}, page, keep=True).data["parts"] == {}


def test_what_is_compiled_ahead_is_what_the_first_call_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    case = next(c for c in small_calls() if c.label == "softmax 5x7 bf16")
    compile_case(case, "emulate")
    steps = pf.compile(pf.parse(case.text), case.name, target="emulate").built(**case.inputs()).seconds
    assert list(steps) == ["build"], "all else came from the cache"


def test_contenders_have_the_names_that_are_offered() -> None:
    assert OFFERED == gpu_contenders.PEERS


def test_processes_of_a_run_find_what_this_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/there")
    assert environment([Path("/site"), ROOT])["PYTHONPATH"].split(":") == ["/site", str(ROOT), "/there"]
    monkeypatch.delenv("PYTHONPATH")
    assert environment([ROOT])["PYTHONPATH"] == str(ROOT)


# --- the pack -----------------------------------------------------------------------------------------


def test_what_is_missing_is_taken_from_the_pack_and_nothing_else() -> None:
    versions = {"numpy": "2.5.2", "lark": "1.1.9", "rich": "14.0"}
    assert missing(["numpy>=2.0", "lark>=1.2", "islpy>=2025.1", "rich>=13"], versions.get) == [
        "lark",
        "islpy",
    ]
    names = ("numpy-2.5.5-x.whl", "lark-1.3.1-x.whl", "islpy-2026.2.2-x.whl", "ml_dtypes-0.6.0-x.whl")
    found = chosen([Path(n) for n in names], ["lark", "islpy"], versions.get)
    assert [w.name.split("-")[0] for w in found] == ["lark", "islpy", "ml_dtypes"]


def test_a_pack_is_described_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "wheels" / "thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"x" * 1000)
    manifest = pack.write_manifest(tmp_path, "sdist")
    assert (
        manifest["bytes"] == 1000 and len(manifest["files"][str(wheel.relative_to(tmp_path))]["sha256"]) == 64
    )
    verify(tmp_path)
    wheel.write_bytes(b"y" * 1000)
    with pytest.raises(InstallError, match="damaged"):
        verify(tmp_path)
    monkeypatch.setattr(pack, "LIMIT_MIB", 0.0005)
    with pytest.raises(pack.PackError, match="largest: thing"):
        pack.write_manifest(tmp_path, "sdist")


def test_without_a_pack_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install(tmp_path) == [ROOT], "everything is installed here"
    monkeypatch.setattr("gpu.install.missing", lambda requirements: ["islpy"])
    with pytest.raises(InstallError, match="make gpu-pack"):
        install(tmp_path)


def test_without_headers_the_pack_has_pycudas_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, ...]] = []

    def pip(*arguments: str) -> None:
        fetched.append(arguments)
        if "--no-binary=pycuda" in arguments:
            to = Path(arguments[arguments.index("--dest") + 1])
            (to / "pycuda-2026.1.tar.gz").write_bytes(b"sources")

    def refuse(sources: Path, to: Path) -> None:
        raise pycuda_wheel.WheelError("there are no CUDA headers (cuda.h)")

    monkeypatch.setattr(pack, "pip", pip)
    monkeypatch.setattr(pack, "build_wheel", refuse)
    (tmp_path / "wheels").mkdir()
    assert "no CUDA headers" in pack.gather(tmp_path, None)
    assert (tmp_path / "sdist" / "pycuda-2026.1.tar.gz").is_file()
    assert "mako" in fetched[-1] and any("islpy" in a for a in fetched[0])


def test_a_wheel_that_does_not_load_the_driver_is_told_from_one_that_does(tmp_path: Path) -> None:
    for name, content in (("bad", b"libc.so.6"), ("good", b"libcuda.so.1\0libc.so.6")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("pycuda/_driver.cpython-312-x86_64-linux-gnu.so", content)
    assert not pycuda_wheel.loads_driver(tmp_path / "bad")
    assert pycuda_wheel.loads_driver(tmp_path / "good")


# --- the parts ----------------------------------------------------------------------------------------


def test_a_report_of_tests_is_counted() -> None:
    xml = """<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure message="no"/></testcase>
        <testcase name="c"><skipped message="there is no GPU"/></testcase></testsuite></testsuites>"""
    found = part_tests.counted(xml)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 1, 1)
    assert found["status"] == "failed" and found["message"] == "b: no"


def test_what_a_library_asks_of_the_driver_is_no_error_of_ours() -> None:
    assert part_sanitize.options_of("memcheck")[-2:] == ["--report-api-errors", "no"]
    assert "--report-api-errors" not in part_sanitize.options_of("racecheck")


def test_tests_of_the_cuda_code_are_found() -> None:
    found = part_tests.items(Job("cuda", quick=False))
    assert {"tests/gpu/test_on_device.py", "tests/unit/runtime/test_cuda_driver.py"} <= set(found)
    assert "tests/unit/codegen/test_cuda_golden.py" in found


def test_plans_of_a_case_are_compiled_compared_and_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    gpu_stand_ins.use(monkeypatch)
    job = Job("cuda", quick=True, scratch=str(tmp_path))
    item = "softmax 5x7 bf16"
    units = part_plans.units([item], job)
    assert units[0] == f"{item} | as the model has it" and f"{item} | kernels apart" in units
    few = [units[0], f"{item} | kernels apart", f"{item} | single elements"]
    ahead = job.ahead("plans")
    assert ahead is not None
    ahead.write_text(json.dumps({u: part_plans.compile_item(u, job) for u in few}))
    found = part_plans.run(item, job)
    assert found["status"] == "ok", found
    assert [r["plan"] for r in found["rows"]] == ["as the model has it", "kernels apart"], (
        "others have that code"
    )
    assert all(r["ms"] > 0 and r["projected"] > 0 and r["described"] for r in found["rows"])
    text = page({"about": {"target": "cuda"}, "parts": {"plans": {"total": 1, "items": {item: dict(found)}}}})
    assert f"| {item} | 2 |" in text


def test_what_a_call_takes_of_the_host_is_told() -> None:
    item = {"status": "ok", "us": {"torch": {"plain": 7.94, "bound": 2.5}, "jax": {"plain": 9.0}}}
    text = page({"about": {}, "parts": {"calls": {"total": 1, "items": {"add": item}}}})
    assert "| add | torch | 7.9 | 2.5 |" in text and "| add | jax | 9.0 |  |" in text


def test_a_part_has_its_share_of_what_is_left() -> None:
    assert share("plans", ["plans"]) == 1.0
    assert share("bench", NAMES) < share("bench", ["bench", "calls"]) < 1.0


def test_outputs_of_the_memory_checker() -> None:
    good = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert part_sanitize.judged(0, good)["status"] == "ok"
    bad = "========= Invalid __global__ write of size 4\n========= ERROR SUMMARY: 2 errors\n"
    found = part_sanitize.judged(99, bad)
    assert found["status"] == "failed" and found["errors"] == 2 and "Invalid" in found["message"]
    race = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    assert part_sanitize.judged(99, race)["status"] == "failed"
    assert part_sanitize.judged(1, "========= Error: Device not supported\n")["status"] == "skipped"
    assert part_sanitize.judged(1, "Traceback\nImportError: torch")["status"] == "failed"


def test_cases_have_different_labels_and_the_sizes_that_are_promised() -> None:
    labels = [c.label for c in cases()]
    assert len(set(labels)) == len(labels)
    assert labels.index("adamw 300000000 f32") < labels.index("ln_fwd 65536x768 bf16"), "f32 comes first"
    wanted = ("msoftmax 64x16x512x512 f32", "bn_train_relu 128x64x112x112 f32", "softmax 750000x32 f32")
    assert set(wanted) <= set(labels)
    assert {"softmax 64x30000 bf16", "softmax 8x1048576 f32", "ln_fwd 16384x768 f16"} <= set(labels)


@pytest.mark.parametrize("case", small_calls(), ids=lambda c: c.label)
def test_inputs_have_the_types_of_the_parameters(case: Any) -> None:
    for name, a in case.inputs().items():
        if isinstance(a, np.ndarray):
            assert a.dtype == case.graph.tensor(name).dtype.numpy, name
    again = case.inputs(1)
    arrays = [n for n, a in case.inputs().items() if isinstance(a, np.ndarray)]
    assert any(not np.array_equal(case.inputs()[n], again[n]) for n in arrays)


def test_rows_of_large_cases_are_repeated() -> None:
    for case in cases():
        some, rows = case.enough_rows, case.sizes[case.row]
        assert 0 < some <= rows and all(some % d for d in range(2, min(some, 100)))
        few = case.inputs(rows=2) if case.name in ("ln_bwd", "adamw") else {}
        for name in case.by_rows if few else ():
            full = [evaluate(e, case.sizes) for e in case.graph.tensor(name).shape]
            assert few[name].shape == (2, *full[1:])


def test_large_inputs_repeat_numbers_without_repeating_rows() -> None:
    a = Pool(3).standard_normal((4000, 768), "f4")
    assert a.dtype == np.float32 and len(np.unique(a[:, 0])) > 3000
    assert np.array_equal(a.ravel()[:100], a.ravel()[POOL : POOL + 100])
    assert Pool(3).integers(0, 9, 5).tolist() == Pool(3).integers(0, 9, 5).tolist()


# --- timing -------------------------------------------------------------------------------------------


def test_sets_do_not_fit_the_cache_together() -> None:
    l2 = 50 << 20
    assert gpu_timing.sets_for(1 << 30, l2) == 1
    for nbytes in (20 << 20, 60 << 20, 149 << 20):
        count = gpu_timing.sets_for(nbytes, l2)
        assert (count - 1) * nbytes >= 2 * l2 and count > 1
    assert gpu_timing.sets_for(1000, l2) == gpu_timing.MOST_SETS


def test_spans_of_a_profile_belong_to_calls() -> None:
    found = gpu_timing.per_call([(0, 1), (2, 4), (5, 6), (7, 9)], 2)
    assert found is not None and found.kernels == 2 and found.seconds == pytest.approx((3e-6, 3e-6))
    uneven = gpu_timing.per_call([(0, 1), (2, 4), (5, 6)], 2)
    assert uneven is not None and uneven.kernels == 1.5 and uneven.seconds == pytest.approx((2e-6,))
    assert gpu_timing.per_call([], 2) is None


def test_everyone_has_a_turn_in_every_round() -> None:
    turns: list[str] = []

    def contender(label: str) -> gpu_contenders.Prepared:
        return gpu_contenders.Prepared(label, 0.0, {}, [lambda: turns.append(label)], facts={"launches": 1})

    found = gpu_timing.measure([contender("a"), contender("b")], 5, "emulate", lambda: None)
    assert set(found) == {"a", "b"} and all(m.device.rounds == 5 and m.by == "wall" for m in found.values())
    assert turns.count("a") > 5 and turns.count("b") > 5


def test_the_table_of_a_gpu() -> None:
    def entry(ms: float, by: str = "events", ok: bool = True) -> dict[str, Any]:
        time = {"median": ms, "low": ms * 0.9, "high": ms * 1.1, "least": ms * 0.8, "rounds": 31}
        return {
            "ms": time,
            "by": by,
            "host_ms": 0.004,
            "kernels": 1.0,
            "first_call_s": 0.5,
            "verdict": {"ok": ok, "error": 1e-7, "message": ""},
        }

    ours = {**entry(0.5), "kernels_of_ours": {"pf_k0": {"registers": 40}}, "call_host_ms": 0.02}
    entries = {"polyfuse": ours, "torch.compile": entry(0.6), "jax.jit": entry(0.7, "cupti", ok=False)}
    case = {"sizes": {"T": 4}, "dtype": "f32", "bytes": 8}
    item = {"status": "ok", **case, "entries": entries, "ratio": 1.2, "share_of_copy": 0.9}
    item["failures"] = ["x failed"]
    about = {"device": "NVIDIA X", "target": "cuda", "date": "2026-01-01T00:00:00", "pycuda": "2026.1"}
    text = page({"about": about, "parts": {"bench": {"total": 2, "items": {"ln_fwd": item}}}})
    assert "1 of 2 done: 1 ok" in text and "x failed" in text and "mean nothing" not in text
    short, row = [line for line in text.splitlines() if line.startswith("| ln_fwd")]
    assert short == "| ln_fwd | 0.5 | 0.6 | torch.compile | 1.20 |  |  | 90% |"
    assert (
        "0.5 (0.45-0.55)" in row and "by cupti WRONG" in row and "| 1.20 | 90% |" in row and "| 40 |" in row
    )
    assert "1.20 times the speed of the best peer, 90% of the copy bandwidth" in text


def test_peers_that_were_not_timed_have_their_earlier_times() -> None:
    label = "softmax 64x30000 f32"
    before = earlier("NVIDIA H200")
    known = before["cases"][label]
    time = {"median": 0.0103, "low": 0.01, "high": 0.011}
    ours = {"ms": time, "by": "events", "host_ms": 0.004, "first_call_s": 0.5, "launches": 1}
    ours["verdict"] = {"ok": True, "error": 1e-7, "message": ""}
    item = {"sizes": known["sizes"], "dtype": "f32", "bytes": 8, "entries": {"polyfuse": ours}}
    item["share_of_copy"] = 0.5
    about = {"device": "NVIDIA H200", "commit": "new"}
    kept = saved({"about": about, "parts": {"bench": {"items": {label: item}}}}, before)
    entries = kept["cases"][label]["entries"]
    assert entries["jax.jit"] == {**known["entries"]["jax.jit"], "of": before["commit"]}
    assert entries["polyfuse"]["ms"] == 0.0103 and "of" not in entries["polyfuse"]
    lines = summary(kept)
    best = known["entries"]["jax.jit"]["ms"]
    row = f"| {label} | 0.0103 | {best:.4g} | jax.jit * | {best / 0.0103:.2f} | 0.0103 | 1.00 | 50% |"
    assert lines[2] == row
    assert any(before["commit"] in line for line in lines), "it says of which run they are"
    text = gpu_table.table({**kept, "about": before["about"] | about})
    assert before["commit"] in text and "new" in text


def test_cases_far_from_their_bars_come_first() -> None:
    times = {n: 1.1 * bar for n, bar in BARS.items()}
    times["rope 64x16x2048x64 bf16"] *= 3
    times["ln_bwd 65536x768 f32"] *= 2
    times["ln_bwd 16384x768 f32"] *= 1.5
    before = {"cases": {n: {"entries": {"polyfuse": {"ms": t}}} for n, t in times.items()}}
    order = by_distance([c.label for c in cases()], before)
    assert sorted(order) == sorted(c.label for c in cases())
    assert order[0] == "rope 64x16x2048x64 bf16", "as far as anything was"
    one_of_each = order[: len({(n.split()[0], n.split()[2]) for n in BARS})]
    assert "ln_bwd 65536x768 f32" in one_of_each and "ln_bwd 16384x768 f32" not in one_of_each
    assert order.index("ln_bwd 16384x768 f32") < order.index("bias_gelu 16384x3072 f16")
    other = by_distance(order, earlier("NVIDIA X"))
    assert sorted(other) == sorted(order)
