"""Graphs of 50, 200 and 1,000 statements: from text to C++ (not through the compiler), in time.

The bars are those of the project: 2, 8 and 60 seconds, here of the processor, so that a machine under load
does not fail them; helpers work beside this process, which works all the time. Memory is that of all.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from polyfuse.codegen.cpu import Request, emit_together
from polyfuse.frontend_dsl.build_graph import instantiate
from polyfuse.frontend_dsl.parse import parse_text
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clusters import Clustering
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.packing import Packing
from polyfuse.layers.stitching import Stitching
from polyfuse.lowering_pool import peak_bytes
from polyfuse.options import Options
from polyfuse.pipeline import Compilation, Watch, fixed_graph

BARS = {50: 2.0, 200: 8.0, 1000: 60.0}
# Peak memory of the process, or a compiler, and of the helpers together, in MiB: islpy, NumPy and the test
# runner take about 250 of them.
MEMORY = 1500


def layers_text(statements: int) -> str:
    """Blocks like those of a model: scale, row sum, activation, residual."""
    lines = ["op f(x: f32[T, H], w: f32[H, H]) -> (y: f32[T, H]) {"]
    before = "x"
    for k in range(statements // 5):
        lines += [
            f"a{k}[t, h] = {before}[t, h] * 0.5 + {k}.0",
            f"s{k}[t] = sum[h](a{k}[t, h])",
            f"b{k}[t, h] = tanh(a{k}[t, h] - s{k}[t] * 0.001)",
            f"m{k}[t, h] = sum[j](b{k}[t, j] * w[j, h])",
            f"c{k}[t, h] = m{k}[t, h] + {before}[t, h]",
        ]
        before = f"c{k}"
    return "\n".join([*lines, f"y[t, h] = {before}[t, h]", "}"])


def random_text(statements: int, seed: int) -> str:
    """Elementwise statements, row sums and broadcasts that read any of those before them."""
    dice = random.Random(seed)
    lines = ["op f(x: f32[T, H], v: f32[T]) -> (y: f32[T, H]) {"]
    full, rows = ["x"], ["v"]
    for k in range(statements - 1):
        # Most reads are of recent values, as in programs that people write.
        near = full[-8:] if dice.random() < 0.9 else full
        a, b, r = dice.choice(near), dice.choice(near), dice.choice(rows[-8:])
        kind = dice.random()
        if kind < 0.15:
            lines.append(f"r{k}[t] = {dice.choice(('sum', 'max'))}[h]({a}[t, h])")
            rows.append(f"r{k}")
        elif kind < 0.35:
            lines.append(f"e{k}[t, h] = {a}[t, h] - {r}[t]")
            full.append(f"e{k}")
        else:
            lines.append(f"e{k}[t, h] = {a}[t, h] * 0.5 + tanh({b}[t, h])")
            full.append(f"e{k}")
    return "\n".join([*lines, f"y[t, h] = {full[-1]}[t, h]", "}"])


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
    text = layers_text(statements) if kind == "layers" else random_text(statements, 1)
    start = time.process_time()
    graph = instantiate(parse_text(text), "f")
    seconds = time.process_time() - start
    assert statements - 1 <= len(graph.statements) <= statements + 1
    return seconds + compiled(graph)[0], peak_bytes()


@pytest.mark.parametrize("statements", BARS)
@pytest.mark.parametrize("kind", ["layers", "random"])
def test_compile_time(statements: int, kind: str, record_property: Callable[[str, object], None]) -> None:
    # A process of its own: the memory of this one is that of all tests before.
    command = [sys.executable, __file__, kind, str(statements)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
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
        graph = fixed_graph(instantiate(parse_text(random_text(statements, 2)), "f"), {"T": 64, "H": 64})
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            clusters = Clustering().clusters(graph, [])
            best = min(best, time.perf_counter() - start)
        assert sum(map(len, clusters)) == len(graph.statements)
        seconds.append(best)
    assert seconds[1] < 30 * seconds[0]


def test_searching_grows_hardly_faster_than_the_graph() -> None:
    """A thousand statements in less than ten seconds of the processor; four times the statements, less than
    twelve times the time (n log n: five, the rest for noise)."""
    search = Clustering(partition="search")
    seconds = []
    for statements in (250, 1000):
        graph = fixed_graph(instantiate(parse_text(random_text(statements, 2)), "f"), {"T": 64, "H": 64})
        start = time.process_time()
        clusters = search.clusters(graph, [])
        seconds.append(time.process_time() - start)
        assert sum(map(len, clusters)) == len(graph.statements)
    assert seconds[1] < 10
    assert seconds[1] < 12 * seconds[0]


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
