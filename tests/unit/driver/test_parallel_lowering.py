"""Clusters lowered by several processes: the same code as by one, whatever happens to the helpers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from polyfuse.codegen.cpu.emit import emit
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver import parallel
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.parallel import GREETING, pack, unpack
from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.dtypes import F32
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options
from polyfuse.poly.scheduling import isl_worker
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.support.processes import Child, jobs, peak_memory

ROOT = Path(__file__).parents[3]
# Contractions with different constants: each is a cluster of its own, and of its own form.
BLOCK = """  m{k}[i, j] = sum[l]({a}[i, l] * w[l, j]) + {k}.0
  s{k}[i] = sum[j](m{k}[i, j])
  c{k}[i, j] = tanh(m{k}[i, j] - s{k}[i] * 0.001)"""
LIMIT = 0.3
# isl's helper, which hangs where it is asked for both statements of the recurrence.
HANGS = """
import os, time
from polyfuse.poly.scheduling import isl_worker as worker
real = worker.compute
def compute(job, *limit):
    if "S_u0[" in job.domain and "S_u0__2[" in job.domain:
        open(os.environ["HUNG"], "a").write("x")
        time.sleep(60)
    return real(job, *limit)
worker.compute = compute
worker.main()
"""
# A helper whose isl hangs there.
HELPED = f"""
import sys
from polyfuse.poly.scheduling import isl_worker as worker
worker._helper = worker.Helper(command=(sys.executable, "-c", {HANGS!r}))
worker.PATIENCE_S = {LIMIT}
from polyfuse.driver.parallel_helper import main
main()
"""


def blocks(count: int) -> str:
    lines = ["op f(x: f32[N, M], w: f32[M, M]) -> (y: f32[N, M]) {"]
    for k in range(count):
        lines.append(BLOCK.format(k=k, a=f"c{k - 1}" if k else "x"))
    return "\n".join([*lines, f"  y[i, j] = c{count - 1}[i, j]", "}"])


def recurrences(count: int) -> str:
    """Recurrences of one form between matrix products."""
    lines = ["op f(x: f32[N, M], w: f32[M, M]) -> (y: f32[N, M]) {"]
    for k in range(count):
        lines += [
            f"  m{k}[i, j] = sum[l]({f'u{k - 1}' if k else 'x'}[i, l] * w[l, j])",
            f"  u{k}[0, j] = m{k}[0, j] * 0.25",
            f"  u{k}[i, j] = u{k}[i-1, j] * 0.5 + m{k}[i, j] for i in 1..N, j in 0..M",
        ]
    return "\n".join([*lines, f"  y[i, j] = sum[l](u{count - 1}[i, l] * w[l, j])", "}"])


def compilation(text: str, fusion: LoopFusion | None = None) -> Compilation:
    graph: TensorGraph = instantiate(parse_text(text), "f")
    return Compilation(
        graph,
        {"N": 33, "M": 17},
        fusion or LoopFusion(),
        Options(checked=True),
        stitching=Stitching(),
        packing=Packing(),
        clustering=Clustering(whole=2, library="never"),
    )


def source(low: Lowered) -> str:
    return emit(low.kernels, copied=low.copied).source


def lowered(text: str, fusion: LoopFusion | None = None) -> Lowered:
    return compilation(text, fusion).lowered(Watch(Options()))


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    """Two helpers are called in at once."""
    helpers: list[Child] = []
    monkeypatch.setenv("POLYFUSE_JOBS", "3")
    monkeypatch.setattr(parallel, "START_PAYS_S", 0.0)
    monkeypatch.setattr(parallel, "_helpers", helpers)
    yield helpers
    for h in helpers:
        h.kill()


def run(low: Lowered) -> list[float]:
    """The result for some input."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(33, 17)).astype("f4"), "w": rng.normal(size=(17, 17)).astype("f4") * 0.2}
    arrays["y"] = np.empty((33, 17), "f4")
    InterpretedKernels(low.kernels, checked=True, copied=low.copied).run(arrays)
    return [float(v) for v in arrays["y"].ravel()]


def by_one(text: str) -> Lowered:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYFUSE_JOBS", "1")
        return lowered(text)


def replaced(helpers: list[Child], script: str) -> None:
    """Helpers that greet properly and then run a script."""
    program = f"import os, sys, time\nprint({GREETING!r}, flush=True)\n{script}"
    helpers += [Child("", GREETING, (sys.executable, "-c", program)) for _ in range(2)]


def test_the_code_is_that_of_one_process(helped: list[Child]) -> None:
    text = blocks(12)
    want = by_one(text)
    assert not helped
    low = lowered(text)
    assert [h.starts for h in helped] == [1, 1]
    assert source(low) == source(want)
    assert [str(d) for d in low.decisions] == [str(d) for d in want.decisions]
    again = lowered(text)
    assert [h.starts for h in helped] == [1, 1] and source(again) == source(want)
    assert parallel.peak_bytes() > peak_memory() + (10 << 20)


@pytest.mark.parametrize(
    "script",
    [
        "sys.stdin.readline(); os._exit(3)",
        "import signal; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGSEGV)",
        "for line in sys.stdin: print('nonsense', flush=True)",
        "for line in sys.stdin: print('', flush=True)",
        "sys.stdin.close(); os.close(0); time.sleep(60)",
        "time.sleep(60)",
        "os._exit(0)",
    ],
)
def test_helpers_that_fail_change_nothing(
    script: str, helped: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "LIMIT_S", 1.0)
    text = blocks(6)
    replaced(helped, script)
    start = time.monotonic()
    low = lowered(text)
    assert time.monotonic() - start < 40
    assert source(low) == source(by_one(text))
    assert not any(h.process for h in helped)


def test_a_helper_that_dies_halfway(helped: list[Child]) -> None:
    program = (
        "import os\nfrom polyfuse.driver import parallel_helper as h\n"
        "real, made = h.pieces_of, []\n"
        "def dying(*a):\n"
        "    made.append(1)\n"
        "    return real(*a) if len(made) < 3 else os._exit(9)\n"
        "h.pieces_of = dying\nh.main()"
    )
    helped += [Child("", GREETING, (sys.executable, "-c", program)) for _ in range(2)]
    text = blocks(12)
    assert source(lowered(text)) == source(by_one(text))


def test_errors_are_those_of_one_process(helped: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from polyfuse.driver import parallel_helper as h\n"
        "def fail(*a): raise ValueError('only here')\nh.pieces_of = fail\nh.main()"
    )
    helped += [Child("", GREETING, (sys.executable, "-c", program)) for _ in range(2)]
    text = blocks(6)
    assert source(lowered(text)) == source(by_one(text))


def test_no_helper_for_small_graphs(helped: list[Child], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "START_PAYS_S", 60.0)
    lowered(blocks(6))
    assert not any(h.starts for h in helped)


def test_a_hang_of_isl_is_waited_for_once(
    helped: list[Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """isl is asked for every cluster, and hangs on a form that occurs six times: it is asked for that once,
    and all other clusters are what they are without the hang."""
    text = recurrences(6)
    fusion = LoopFusion(scheduler="isl", late="raise")
    want = lowered(text, fusion)
    for h in helped:
        h.kill()
    helped.clear()
    monkeypatch.setenv("HUNG", str(tmp_path / "hung"))
    hanging = (sys.executable, "-c", HANGS)
    helped += [Child("", GREETING, (sys.executable, "-c", HELPED)) for _ in range(2)]
    monkeypatch.setattr(isl_worker, "_helper", isl_worker.Helper(command=hanging))
    monkeypatch.setattr(isl_worker, "_given_up", {})
    monkeypatch.setattr(isl_worker, "PATIENCE_S", LIMIT)
    start = time.monotonic()
    low = lowered(text, fusion)
    seconds = time.monotonic() - start
    isl_worker.helper().kill()
    assert seconds > isl_worker.STANDS_STILL * LIMIT and (tmp_path / "hung").read_text() == "x"
    late = [d.subject for d in low.decisions if d.kind == "feedback"]
    assert late == ["u0, u0__2"]
    assert [d for d in low.decisions if d.kind == "same"] == [d for d in want.decisions if d.kind == "same"]
    by_isl = [sum("by isl scheduling" in d.reason for d in x.decisions) for x in (low, want)]
    assert by_isl[0] >= by_isl[1] - 1 > 0
    assert run(low) == pytest.approx(run(want), rel=1e-5)


def test_dtypes_and_sources_stay_what_they_are() -> None:
    graph = compilation(blocks(2)).graph
    again = unpack(pack(graph))
    assert again == graph and again.tensor("x").dtype is F32
    assert again.span.source is unpack(pack(graph)).span.source


def test_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_JOBS", "5")
    assert jobs() == 5
    monkeypatch.setenv("POLYFUSE_JOBS", " ")
    assert jobs() >= 1
    for text in ("0", "-1", "many", "1025"):
        monkeypatch.setenv("POLYFUSE_JOBS", text)
        with pytest.raises(ToolchainError) as refused:
            jobs()
        assert refused.value.code == "PF705"


# --- an interrupt ------------------------------------------------------------------------------------

INTERRUPTED = """
import sys
from test_parallel_lowering import blocks, compilation
from polyfuse.driver import parallel as lowering_pool
from polyfuse.options import Options
from polyfuse.driver.pipeline import Watch
lowering_pool.START_PAYS_S = 0.0
told = lowering_pool._Work._put
def put(self, k, made):
    told(self, k, made)
    print("going", *[h.process.pid for h in lowering_pool._helpers if h.process], flush=True)
lowering_pool._Work._put = put
compilation(blocks(80)).lowered(Watch(Options()))
"""


def alive(pids: set[int]) -> set[int]:
    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return {p for p in pids if runs(p)}


def eventually(done: Callable[[], bool]) -> bool:
    for _ in range(100):
        if done():
            return True
        time.sleep(0.05)
    return done()


def test_an_interrupt_leaves_no_process_behind() -> None:
    env = {**os.environ, "POLYFUSE_JOBS": "3"}
    env["PYTHONPATH"] = os.pathsep.join(
        map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "helpers", Path(__file__).parent))
    )
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    pids: set[int] = set()
    while len(pids) < 2:
        line = process.stdout.readline()
        assert line.startswith("going"), process.stderr.read()
        pids |= {int(word) for word in line.split()[1:]}
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    assert eventually(lambda: not alive(pids)), alive(pids)
