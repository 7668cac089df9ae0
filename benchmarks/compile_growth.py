"""How compile times grow with programs: `python -m benchmarks.compile_growth [--family NAME ...] [--write]`.

For each family of programs (n statements, n layers, n pieces of one tensor ...) the seconds of the processor
from text to loaded kernels, the C++ compiler included, at n, 2n, 4n, 8n and 16n, each in a fresh process with
an empty cache and one job, the least of the repetitions.  What a program of one step takes is taken off, and
the exponent fitted to the rest: 1 is a time that grows as the program does, 2 one that grows as its square.

Exit status 1: an exponent is above the bar, or a thousand statements, or twelve layers of a transformer of 40
operators each, take longer than theirs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.growth_programs import FAMILIES, MODEL, transformer
from benchmarks.pages import write_measured

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "long_compilations.md"
STEPS = (1, 2, 4, 8, 16)
BAR = 1.3
# CPU seconds: of statements, a thousand or more; of twelve layers of a transformer.
STATEMENTS_S, LAYERS_S = 30.0, 10.0
LAYERS = 12
MODEL_NAME = "transformer"
# One compilation takes no longer, in seconds.
LIMIT_S = 600.0


def spent() -> float:
    """Seconds of the processor that this process, and those that it started, took so far."""
    import psutil

    living = [psutil.Process(), *psutil.Process().children(recursive=True)]
    times = [p.cpu_times() for p in living]
    mine = times[0]
    return sum(t.user + t.system for t in times) + mine.children_user + mine.children_system


def compiled(name: str, n: int) -> dict[str, Any]:
    """One compilation in this process: seconds of the processor by part, and how long the source is."""
    import polyfuse as pf
    from polyfuse.diagnostics import DslError
    from polyfuse.driver.pipeline import Compilation, Watch, emitted
    from polyfuse.driver.targets import load
    from polyfuse.layers.fusion.loop_fusion import LoopFusion
    from polyfuse.layers.packing.packing import Packing
    from polyfuse.layers.stitching.stitching import Stitching

    family = FAMILIES.get(name)
    text = transformer(n) if family is None else family.text(n)
    sizes, target = (MODEL, "cpu") if family is None else (family.sizes, family.target)
    start = spent()
    try:
        graph = pf.parse(text).op().graph()
    except DslError:
        if family is None or not family.wrong:
            raise
        return {"front": spent() - start, "layers": 0.0, "c++": 0.0, "chars": len(text)}
    front, options = spent(), pf.Options()
    passes: dict[str, Any] = {"stitching": Stitching(), "packing": Packing()}
    compilation = Compilation(graph, sizes, LoopFusion(), options, target=target, **passes)
    _, code = emitted(Watch(options), compilation)
    own = spent()
    load(code, target, options)
    return {"front": front - start, "layers": own - front, "c++": spent() - own, "chars": len(code.source)}


def child(name: str, n: int) -> dict[str, Any]:
    """`compiled` in a fresh process with an empty cache."""
    with TemporaryDirectory(prefix="polyfuse-bench-") as folder:
        cache = Path(folder) / "cache"
        cache.mkdir(mode=0o700)
        env = {**os.environ, "POLYFUSE_CACHE_DIR": str(cache), "POLYFUSE_JOBS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "benchmarks.compile_growth", "--child", name, str(n)]
        start = time.monotonic()
        try:
            done = subprocess.run(
                command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return {"front": 0.0, "layers": time.monotonic() - start, "c++": 0.0, "chars": 0}
    if done.returncode:
        raise RuntimeError(f"{name}, {n}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def seconds(run: dict[str, Any]) -> float:
    """All of a compilation."""
    return float(run["front"] + run["layers"] + run["c++"])


def best(name: str, n: int, repeat: int) -> dict[str, Any]:
    """The fastest of the repetitions."""
    return min((child(name, n) for _ in range(repeat)), key=seconds)


def exponent(counts: Sequence[int], times: Sequence[float], fixed: float) -> float:
    """Of what steps beyond the first one take: the slope of the logarithms, by least squares."""
    xs = [math.log(n - 1) for n in counts]
    ys = [math.log(max(t - fixed, 1e-3)) for t in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measured(name: str, repeat: int) -> dict[str, Any]:
    """A family at all its sizes."""
    counts = [FAMILIES[name].start * k for k in STEPS]
    found = []
    for n in (1, *counts):
        print(f"{name}, {n} ...", end="", file=sys.stderr, flush=True)
        found.append(best(name, n, repeat))
        print(f" {seconds(found[-1]):.2f} s", file=sys.stderr, flush=True)
    fixed, *times = map(seconds, found)
    return {
        "family": name,
        "counts": counts,
        "fixed": fixed,
        "times": times,
        "runs": found,
        "exponent": exponent(counts, times, fixed),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds and exponents in markdown."""
    lines = [
        "| family | n | one step | n | 2n | 4n | 8n | 16n | exponent |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [f"{t:.2f}" for t in (r["fixed"], *r["times"])]
        lines.append(f"| {r['family']} | {r['counts'][0]} | {' | '.join(cells)} | {r['exponent']:.2f} |")
    return "\n".join(lines)


def failures(rows: Sequence[dict[str, Any]], layers: float | None) -> list[str]:
    """What is above its bar."""
    found = [f"{r['family']}: exponent {r['exponent']:.2f}" for r in rows if r["exponent"] >= BAR]
    for r in rows:
        if r["family"] == "statements" and r["times"][-1] >= STATEMENTS_S:
            found.append(f"{r['counts'][-1]} statements: {r['times'][-1]:.1f} s")
    if layers is not None and layers >= LAYERS_S:
        found.append(f"{LAYERS} layers of a transformer: {layers:.1f} s")
    return found


def machine() -> str:
    """Where and when."""
    from benchmarks.surroundings import load_average, surroundings
    from polyfuse.runtime.toolchain.compiler import find_compiler

    about = surroundings()
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['date'][:10]}, Python {about['python']}, "
        f"{find_compiler().version}, load average {load_average():.1f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and compare with the bars."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_growth",
        description=__doc__,
        epilog="; ".join(f"{name}: {f.about}" for name, f in FAMILIES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*FAMILIES, MODEL_NAME]
    parser.add_argument("--family", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--repeat", type=int, default=2, metavar="N", help="the fastest of N (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all times, by part")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.child:
        print(json.dumps(compiled(chosen.child[0], int(chosen.child[1]))))
        return 0
    head = (
        f"Made by `python -m benchmarks.compile_growth --write` on {machine()}; seconds of the processor, "
        f"the least of {chosen.repeat}, the C++ compiler included; exponents below {BAR} are wanted."
    )
    rows = [measured(name, chosen.repeat) for name in chosen.family if name in FAMILIES]
    text, layers = f"{head}\n\n{table(rows)}", None
    if MODEL_NAME in chosen.family:
        run = best(MODEL_NAME, LAYERS, chosen.repeat)
        layers = seconds(run)
        parts = ", ".join(f"{k} {run[k]:.2f} s" for k in ("front", "layers", "c++"))
        text += f"\n\n{LAYERS} layers of a transformer, 40 operators each: {layers:.2f} s ({parts})."
    print(text)
    if chosen.write:
        write_measured(PAGE, text, "growth")
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), "rows": rows, "layers": layers}, indent=1))
    failed = failures(rows, layers)
    print("\n" + ("\n".join(f"above its bar: {f}" for f in failed) or "all below their bars"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
