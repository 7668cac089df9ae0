"""Compile times of the standard library: `python -m benchmarks.compile_time [--write]`.

cold   from text to loaded kernels with an empty cache, in one process per repetition; the compiler's probe
       and the thread pool, which are made once per machine, are made before and told apart
own    the same without the C++ compiler
warm   the same with what a cold run left in the cache, each operator in a fresh process, after the import
       and the construction of the parser
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "compile_time.md"
TRIVIAL = "op warm(x: f32[N]) -> (y: f32[N]) { y[n] = 2.0 * x[n] }"
BARS = {"cold": 1.0, "own": 0.3, "warm": 0.02}
Times = dict[str, float]


def measured(name: str) -> Times:
    """Seconds of each step of one operator in this process, from its text to loaded kernels."""
    import polyfuse as pf
    from benchmarks import stdlib_sizes
    from polyfuse.runtime.toolchain import compiler as toolchain

    operator = pf.stdlib.op(name)
    text = re.sub(r"\bop \w+", "op timed", operator.op.span.text, count=1)
    sizes = stdlib_sizes.table()[name]
    given = stdlib_sizes.arguments(operator.signature, sizes) | stdlib_sizes.given(operator.signature, sizes)
    compilers: list[float] = []
    plain = toolchain.build_shared

    def timed(*args: Any, **kwargs: Any) -> bytes:
        start = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            compilers.append(time.perf_counter() - start)

    toolchain.build_shared = timed
    start = time.perf_counter()
    program = pf.parse(text)
    parsed = time.perf_counter()
    built = pf.compile(program, "timed").built(**given)
    end = time.perf_counter()
    toolchain.build_shared = plain
    total, steps = end - start, dict(built.seconds)
    compiler = sum(compilers)
    steps["load"] = max(0.0, steps.pop("build", 0.0) - compiler)
    front = end - parsed - sum(steps.values()) - compiler
    return {"total": total, "own": total - compiler, "parse": parsed - start, "instantiate": front,
            **steps, "c++": compiler}  # fmt: skip


def prepare() -> float:
    """Everything that is made once per machine or process; the seconds it took."""
    import numpy as np

    import polyfuse as pf

    start = time.perf_counter()
    _ = pf.stdlib.ops
    pf.compile(pf.parse(TRIVIAL))(np.ones(1 << 20, np.float32))
    return time.perf_counter() - start


def child(names: Sequence[str], cache: Path) -> dict[str, Any]:
    """Measure operators in a fresh process."""
    env = {**os.environ, "POLYFUSE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", *names]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(names: Sequence[str], repeat: int) -> dict[str, Any]:
    """Medians over the repetitions: {"once": s, "cold": {op: Times}, "warm": {op: Times}}."""
    cold: dict[str, list[Times]] = {n: [] for n in names}
    warm: dict[str, list[Times]] = {n: [] for n in names}
    once: list[float] = []
    for _ in range(repeat):
        with TemporaryDirectory(prefix="polyfuse-bench-") as folder:
            cache = Path(folder) / "cache"
            cache.mkdir(mode=0o700)
            found = child(names, cache)
            once.append(found["once"])
            for n in names:
                cold[n].append(found["times"][n])
                warm[n].append(child([n], cache)["times"][n])
    return {
        "once": statistics.median(once),
        "cold": {n: _middle(t) for n, t in cold.items()},
        "warm": {n: _middle(t) for n, t in warm.items()},
    }


def _middle(times: Sequence[Times]) -> Times:
    keys = list(dict.fromkeys(k for t in times for k in t))
    return {k: statistics.median(t.get(k, 0.0) for t in times) for k in keys}


# --- the page ---------------------------------------------------------------------------------------


def figures(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, 90th percentile, maximum."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))], ordered[-1]


def page(found: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """docs/lab/compile_time.md."""
    cold, warm = found["cold"], found["warm"]
    series = {
        "cold": [t["total"] for t in cold.values()],
        "own": [t["own"] for t in cold.values()],
        "warm": [t["total"] for t in warm.values()],
    }
    steps = [k for k in next(iter(cold.values())) if k not in ("total", "own")]
    lines = [
        "<!-- Made by benchmarks/compile_time.py. -->",
        "# Compile time",
        "",
        f"Made by `python -m benchmarks.compile_time --write` on {about['cpu']}, {about['cores']} cores, "
        f"{about['date'][:10]}, Python {about['python']}, {about['compiler']}; medians of {about['repeat']} "
        f"repetitions, load average {about['load'][0]:.1f} to {about['load'][1]:.1f}.",
        "",
        f"All {len(cold)} operators of the standard library at one usual size each, milliseconds:",
        "",
        "| | median | 90th percentile | maximum | wanted: median below |",
        "|---|---|---|---|---|",
    ]
    meaning = {"cold": "cold: text to loaded kernels, empty cache", "own": "of that without the C++ compiler",
               "warm": "warm: from the cache, fresh process"}  # fmt: skip
    lines += [f"| {meaning[k]} | {_cells(figures(v))} | {1e3 * BARS[k]:.0f} |" for k, v in series.items()]
    lines += [
        "",
        f"Once per machine (probe of the compiler, thread pool) and process (standard library): "
        f"{found['once']:.1f} s.",
        "",
        "## By step, cold",
        "",
        "| step | median | 90th percentile | maximum | slowest operator | share of all time |",
        "|---|---|---|---|---|---|",
    ]
    whole = sum(series["cold"])
    for step in steps:
        times = {n: t.get(step, 0.0) for n, t in cold.items()}
        slowest = max(times, key=lambda n: times[n])
        share = sum(times.values()) / whole
        lines.append(f"| {step} | {_cells(figures(times.values()))} | {slowest} | {share:.0%} |")
    lines += ["", "## By operator", "", "| operator | cold | own | warm |", "|---|---|---|---|"]
    for n in sorted(cold, key=lambda n: -cold[n]["total"]):
        a = (cold[n]["total"], cold[n]["own"], warm[n]["total"])
        lines.append(f"| {n} | {_cells(a)} |")
    return "\n".join(lines) + "\n"


def _cells(seconds: Sequence[float]) -> str:
    return " | ".join(f"{1e3 * s:.0f}" if s >= 0.01 else f"{1e3 * s:.1f}" for s in seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; with --write also the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="OPERATOR")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--child", nargs="+", default=[], help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        once = prepare() if len(chosen.child) > 1 else _imported()
        print(json.dumps({"once": once, "times": {n: measured(n) for n in chosen.child}}))
        return 0
    from benchmarks.stdlib_sizes import table
    from benchmarks.surroundings import load_average, surroundings
    from polyfuse.runtime.toolchain.compiler import find_compiler

    before = load_average()
    found = measure(chosen.only or list(table()), chosen.repeat)
    compiler = find_compiler().version
    about = {
        **surroundings(),
        "repeat": chosen.repeat,
        "compiler": compiler,
        "load": (before, load_average()),
    }
    text = page(found, about)
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, **found}, indent=1) + "\n", encoding="utf-8")
    if chosen.write:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def _imported() -> float:
    """Import and the construction of the parser, and nothing else; the seconds it took."""
    start = time.perf_counter()
    import polyfuse as pf

    pf.parse(TRIVIAL)
    _ = pf.stdlib.ops
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
