"""Long compilations by one process and by several: `python -m benchmarks.compile_jobs [--write]`.

Graphs like those of models and random ones, of 50 to 1000 statements; each compilation in a fresh process
with an empty cache, one and several jobs in turn, the fastest of the repetitions counts.  Times are seconds
of the processor of the busiest process, which is what a compilation takes where each has a core: so they
say something on a machine under load as well.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.pages import write_measured

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "long_compilations.md"
GRAPHS = (
    ("layers", 50),
    ("random", 50),
    ("layers", 200),
    ("random", 200),
    ("layers", 1000),
    ("random", 1000),
)
SIZES = {"T": 512, "H": 256}


def layers_text(statements: int) -> str:
    """Blocks of a matrix product with elementwise statements and a row sum, all different in a constant."""
    lines, before = ["op f(x: f32[T, H], w: f32[H, H]) -> (y: f32[T, H]) {"], "x"
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


def random_text(statements: int, seed: int = 1, far: float = 0.0) -> str:
    """Elementwise statements, row sums and broadcasts that read any of the last eight before them, the part
    `far` of them any at all."""
    dice = random.Random(seed)
    lines, full, rows = ["op f(x: f32[T, H], v: f32[T]) -> (y: f32[T, H]) {"], ["x"], ["v"]
    for k in range(statements - 1):
        near = full if far and dice.random() < far else full[-8:]
        a, b, r, kind = dice.choice(near), dice.choice(near), dice.choice(rows[-8:]), dice.random()
        if kind < 0.15:
            lines.append(f"r{k}[t] = sum[h]({a}[t, h])")
            rows.append(f"r{k}")
            continue
        lines.append(
            f"e{k}[t, h] = {a}[t, h] - {r}[t]"
            if kind < 0.35
            else f"e{k}[t, h] = {a}[t, h] * 0.5 + tanh({b}[t, h])"
        )
        full.append(f"e{k}")
    return "\n".join([*lines, f"y[t, h] = {full[-1]}[t, h]", "}"])


def measured(kind: str, statements: int) -> dict[str, Any]:
    """One compilation in this process: seconds to the source and of the C++ compiler, and memory."""
    import polyfuse as pf
    from polyfuse.driver.parallel import peak_bytes
    from polyfuse.driver.pipeline import Compilation, Watch, emitted
    from polyfuse.frontend_dsl.semantics.build_graph import instantiate
    from polyfuse.frontend_dsl.syntax.parse import parse_text
    from polyfuse.layers.fusion.loop_fusion import LoopFusion
    from polyfuse.layers.packing.packing import Packing
    from polyfuse.layers.stitching.stitching import Stitching

    text = layers_text(statements) if kind == "layers" else random_text(statements)
    graph = instantiate(parse_text(text), "f")
    compilation = Compilation(
        graph, SIZES, LoopFusion(), pf.Options(), stitching=Stitching(), packing=Packing()
    )
    start = time.process_time()
    _, code = emitted(Watch(compilation.options), compilation)
    own = time.process_time() - start
    return {
        "own": own,
        "c++": compiler_seconds(code.source),
        "chars": len(code.source),
        "peak": peak_bytes() / 2**20,
    }


def compiler_seconds(source: str) -> float:
    """Of the part of a source that takes the compiler longest, and of the linker."""
    from polyfuse.codegen.cpu.units import units_of
    from polyfuse.runtime.toolchain.compiler import UNIT_CHARS, build_shared, find_compiler
    from polyfuse.support.processes import jobs

    compiler, units = find_compiler(), units_of(source, min(jobs(), len(source) // UNIT_CHARS))

    def seconds(parts: Sequence[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        build_shared(compiler.command, compiler.flags, parts, 600.0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return max(seconds([unit]) for unit in units)


def child(kind: str, statements: int, jobs: int) -> dict[str, Any]:
    """`measured` in a fresh process with an empty cache."""
    with TemporaryDirectory(prefix="polyfuse-bench-") as folder:
        cache = Path(folder) / "cache"
        cache.mkdir(mode=0o700)
        env = {**os.environ, "POLYFUSE_CACHE_DIR": str(cache), "POLYFUSE_JOBS": str(jobs)}
        env["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, "-m", "benchmarks.compile_jobs", "--child", kind, str(statements)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(graphs: Sequence[tuple[str, int]], jobs: int, repeat: int) -> list[dict[str, Any]]:
    """The fastest of the repetitions for each graph, by one job and by several in turn."""
    rows = []
    for kind, statements in graphs:
        found: dict[int, list[dict[str, Any]]] = {1: [], jobs: []}
        for _ in range(repeat):
            for count, runs in found.items():
                runs.append(child(kind, statements, count))
        best = {n: {k: min(r[k] for r in runs) for k in ("own", "c++", "peak")} for n, runs in found.items()}
        row = {
            "graph": f"{kind}, {statements}",
            "chars": found[1][0]["chars"],
            "one": best[1],
            "all": best[jobs],
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def table(rows: Sequence[Mapping[str, Any]], jobs: int) -> list[str]:
    """The figures, a row for each graph."""
    lines = [
        f"| graph, statements | own, 1 job | own, {jobs} jobs | C++ | C++, 1 job | C++, {jobs} jobs | "
        f"peak memory, 1 job | {jobs} jobs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        one, more = r["one"], r["all"]
        cells = [
            *(f"{x['own']:.2f} s" for x in (one, more)),
            f"{r['chars'] / 1000:.0f} kB",
            *(f"{x['c++']:.2f} s" for x in (one, more)),
            *(f"{x['peak']:.0f} MiB" for x in (one, more)),
        ]
        lines.append(f"| {r['graph']} | {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; with --write also into the page, after its mark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        print(json.dumps(measured(chosen.child[0], int(chosen.child[1]))))
        return 0
    from benchmarks.surroundings import load_average, surroundings
    from polyfuse.runtime.toolchain.compiler import find_compiler

    before, about = load_average(), surroundings()
    rows = measure(GRAPHS, chosen.jobs, chosen.repeat)
    head = (
        f"Made by `python -m benchmarks.compile_jobs --write` on {about['cpu']}, {about['cores']} cores, "
        f"{about['date'][:10]}, Python {about['python']}, {find_compiler().version}; the fastest of "
        f"{chosen.repeat} alternated repetitions, seconds of the processor of the busiest process, "
        f"load average {before:.1f} to {load_average():.1f}."
    )
    text = "\n".join([head, "", *table(rows, chosen.jobs)]) + "\n"
    print(text)
    if chosen.write:
        write_measured(PAGE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
