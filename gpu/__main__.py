"""Set up from the pack, test, compare, benchmark and report: `python -m gpu [--part PART] [--minutes N]`.

Without a GPU it rehearses: the same way to the end, in the emulator, with small sizes and no claims of speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from gpu.bench_report import summary
from gpu.install import InstallError, environment, install
from gpu.job import Job
from gpu.pack import ROOT
from gpu.parts import NAMES, share
from gpu.record import Record, sources_digest
from gpu.report import kept_file, page
from gpu.run import Setting, run_part

RESULTS = ROOT / "build" / "gpu-results"
MOST_WORKERS, BESIDE_WORKERS = 16, 2
PEERS = ("torch eager", "liger", "torch.compile", "torch.compile max-autotune", "jax.jit")
"""As `benchmarks.gpu_contenders` has them, which this process cannot import."""
LATE = 3
"""Exit status of a run that has more to do."""
FACTS_TIMEOUT_S = 120


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parser.add_argument(
        "--part", nargs="+", choices=[*NAMES, "all"], default=["all"], help="in this order; default: all"
    )
    parser.add_argument(
        "--beside", nargs="+", choices=NAMES, default=[], help="parts that run beside the others all the time"
    )
    parser.add_argument("--minutes", type=float, default=8, metavar="N", help="then stop, to go on later (8)")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=PEERS, help="who is timed beside polyfuse (all)"
    )
    parser.add_argument(
        "--only-ours",
        action="store_true",
        help="time polyfuse alone; peers' times are those of an earlier run on such a chip",
    )
    parser.add_argument("--commit", metavar="TEXT", help="what the sources are, where git does not know")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="items with one of these texts")
    parser.add_argument(
        "--keep", action="store_true", help="what was right before the sources changed is not made again"
    )
    parser.add_argument("--rehearse", action="store_true", help="in the emulator, even if there is a GPU")
    parser.add_argument("--target", choices=["cuda", "emulate"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first of random programs (0)")
    parser.add_argument("--rounds", type=int, default=31, metavar="N", help="turns of each contender (31)")
    parser.add_argument("--workers", type=int, default=min(MOST_WORKERS, os.cpu_count() or 1), metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: build/gpu-results")
    return parser.parse_args(arguments)


def machine(search: Sequence[Path]) -> dict[str, Any]:
    """What `gpu.machine` finds, asked in a process of its own: looking must not occupy the device."""
    ended = subprocess.run(
        [sys.executable, "-m", "gpu.machine"],
        cwd=ROOT,
        env=environment(search),
        capture_output=True,
        text=True,
        timeout=FACTS_TIMEOUT_S,
    )
    if ended.returncode:
        return {"device": None, "why": f"the search for a device failed: {ended.stderr.strip()[-300:]}"}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is done and right.  1: something is wrong.  2: cannot start.  3: time is up, run it again."""
    chosen = options(arguments)
    deadline = time.monotonic() + 60 * chosen.minutes
    try:
        search = install()
    except InstallError as error:
        print(error, file=sys.stderr)
        return 2
    facts = machine(search)
    target = chosen.target or ("emulate" if chosen.rehearse or not facts["device"] else "cuda")
    if target != "cuda":
        why = "as asked for" if facts["device"] else facts["why"]
        print(f"REHEARSAL in the emulator, {why}: times mean nothing.", flush=True)
    parts = NAMES if "all" in chosen.part else tuple(dict.fromkeys(chosen.part))
    parts = tuple(p for p in parts if p not in chosen.beside)
    identity = {"sources": sources_digest(ROOT), "target": target}
    kept = {"workloads.json": kept_file if target == "cuda" else lambda data: None}
    record = Record(chosen.out.resolve(), identity, page, kept, keep=chosen.keep)
    record.describe(**facts, target=target, commit=chosen.commit or commit() or sources_digest(ROOT))
    print(f"{facts['device'] or 'no device'}; PyCUDA: {facts.get('pycuda')}", flush=True)
    with TemporaryDirectory(prefix="polyfuse-gpu-") as scratch:
        job = Job(
            target,
            target != "cuda",
            tuple(chosen.only),
            chosen.workers,
            chosen.rounds,
            () if chosen.only_ours else tuple(chosen.peers),
            facts["device"],
            scratch,
            chosen.seed,
        )
        return run(parts, job, Setting(record.folder, search, deadline), record, tuple(chosen.beside))


def commit() -> str | None:
    """What is checked out here, where git knows."""
    try:
        command = ["git", "rev-parse", "--short", "HEAD"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.strip() or None


def run(parts: Sequence[str], job: Job, setting: Setting, record: Record, beside: Sequence[str] = ()) -> int:
    """The parts in order, each with its share of the time; what one leaves, the others have, and what all
    have left, those that are not done. Those `beside` run at the same time."""
    try:
        items = listed([*parts, *beside], job, setting)
    except ItemsError as error:
        print(error, file=sys.stderr)
        return 2
    few = replace(job, workers=min(job.workers, BESIDE_WORKERS))
    others = [Thread(target=run_part, args=(p, items[p], few, setting, record)) for p in beside]
    for t in others:
        t.start()
    _round(parts, items, job, setting, record)
    _round([p for p in parts if not record.complete(p)], items, job, setting, record)
    for t in others:
        t.join()
    parts = [*parts, *beside]
    if job.target == "cuda":
        print("\n".join(summary(kept_file(record.data))))
    for file in sorted(record.folder.glob("*.md")) + sorted(record.folder.glob("*.json")):
        print(f"written: {file}")
    if not all(map(record.complete, parts)):
        print("There is more to do: run the same again.")
        return LATE
    wrong = [s for p in parts for s in record.statuses(p) if s not in ("ok", "skipped")]
    return 1 if wrong else 0


def _round(
    parts: Sequence[str], items: Mapping[str, Sequence[str]], job: Job, setting: Setting, record: Record
) -> None:
    for k, name in enumerate(parts):
        until = time.monotonic() + share(name, parts[k:]) * setting.left
        run_part(name, items[name], job, Setting(setting.folder, setting.search, until), record)


class ItemsError(Exception):
    """A part cannot say what it consists of."""


def listed(parts: Sequence[str], job: Job, setting: Setting) -> dict[str, list[str]]:
    """The items of each part, asked in a process that can import polyfuse."""
    command = [sys.executable, "-m", "gpu.parts", job.as_json(), *parts]
    variables = environment(setting.search)
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if ended.returncode:
        raise ItemsError(ended.stderr.strip()[-600:])
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
