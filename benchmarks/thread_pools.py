"""polyfuse's thread pool beside PyTorch's in one process: `python -m benchmarks.thread_pools [--write]`.

The same operator, bias and GELU of [1024, 3072], by a bound call of polyfuse and by PyTorch's functions; each
situation in a fresh process, some of them with both libraries, each with a thread for each core.  Spinning
threads of one are in the way of the other: what that costs is the difference to the situation "alone".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pages import write_measured

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "threads.md"
SITUATIONS = {
    "alone": "each in a process of its own",
    "turns": "in one process, one call of each in turn",
    "pauses": "the same, with 10 ms of sleep before each call",
    "both": "in one process, at the same time, each called by a Python thread of its own",
    "forked": "in a child, forked after both had worked; the child uses this library only",
    "one core": "as alone, the process confined to one core, threads as before",
    "twice the threads": "as alone, with two threads for each core",
}
TEXT = """op bias_gelu(x: f32[T, H], b: f32[H]) -> (y: f32[T, H]) {
  z[t, h] = x[t, h] + b[h]
  y[t, h] = 0.5 * z[t, h] * (1.0 + erf(z[t, h] * 0.70710678))
}"""
LIBRARIES = ("polyfuse", "torch")
CALLS = 400
Call = Callable[[], Any]


def prepared(library: str, threads: int) -> Call:
    """A call of the operator on fixed arguments; the first has been made."""
    import numpy as np

    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((1024, 3072), "f4"), rng.standard_normal(3072, "f4")
    if library == "polyfuse":
        import polyfuse as pf
        from polyfuse.runtime.cpu.pool import Pool

        Pool.get().set_threads(threads)
        call: Call = pf.compile(pf.parse(TEXT)).bind(x, b)
    else:
        import torch

        torch.set_num_threads(threads)
        tx, tb = torch.from_numpy(x), torch.from_numpy(b)

        def call() -> Any:
            return torch.nn.functional.gelu(tx + tb)

    call()
    return call


def timed(calls: dict[str, Call], count: int, pause: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each call, in turns."""
    found: dict[str, list[float]] = {n: [] for n in calls}
    for _ in range(count):
        for name, call in calls.items():
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - start)
    return found


def together(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Seconds of calls that different threads make at the same time."""
    found: dict[str, list[float]] = {}

    def go(name: str, call: Call) -> None:
        found[name] = timed({name: call}, CALLS)[name]

    threads = [threading.Thread(target=go, args=item) for item in calls.items()]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return found


def in_child(calls: dict[str, Call], used: str) -> dict[str, list[float]]:
    """Seconds in a forked child."""
    timed(calls, 20)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        found = timed({used: calls[used]}, CALLS)
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def situation(name: str, library: str) -> dict[str, list[float]]:
    """Seconds of calls in this process; `library` is the one of those situations that have one."""
    cores = len(os.sched_getaffinity(0))
    if name == "one core":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    threads = 2 * cores if name == "twice the threads" else cores
    both = name in ("turns", "pauses", "both", "forked")
    calls = {n: prepared(n, threads) for n in (LIBRARIES if both else (library,))}
    match name:
        case "both":
            return together(calls)
        case "forked":
            return in_child(calls, library)
        case "pauses":
            return timed(calls, CALLS // 8, 0.01)
        case _:
            return timed(calls, CALLS)


def measured(name: str) -> dict[str, list[float]]:
    """Both libraries' seconds in a situation. A library that does not come to an end has none."""
    found: dict[str, list[float]] = {}
    for library in LIBRARIES if name not in ("turns", "pauses", "both") else ("",):
        command = [sys.executable, "-m", "benchmarks.thread_pools", "--one", name, library]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        found |= json.loads(done.stdout)
    return found


def cell(seconds: list[float] | None) -> str:
    """Median and quartiles in microseconds."""
    if not seconds:
        return "hangs"
    low, median, high = (1e6 * q for q in statistics.quantiles(seconds, n=4))
    return f"{median:.0f} ({low:.0f}-{high:.0f})"


def table() -> str:
    """The situations as a Markdown table."""
    from benchmarks.surroundings import load_average, surroundings

    where = surroundings()
    lines = [
        f"{where['cpu']}, {where['cores']} cores, {where['date'][:10]}, load average {load_average():.1f}; "
        f"medians of {CALLS} calls in microseconds, quartiles in parentheses.",
        "",
        "| situation | polyfuse | PyTorch |",
        "|---|---|---|",
    ]
    for name, meaning in SITUATIONS.items():
        found = measured(name)
        lines.append(f"| {meaning} | {cell(found.get('polyfuse'))} | {cell(found.get('torch'))} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and with --write put the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="write the table into docs/lab/threads.md")
    parser.add_argument("--one", nargs=2, metavar=("SITUATION", "LIBRARY"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(situation(*chosen.one)))
        return
    found = table()
    print(found)
    if chosen.write:
        write_measured(PAGE, found)


if __name__ == "__main__":
    main()
