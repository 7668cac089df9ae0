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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.install import InstallError, install
from gpu.job import Job
from gpu.pack import ROOT
from gpu.parts import NAMES, limits
from gpu.record import Record, sources_digest
from gpu.report import page
from gpu.run import Setting, run_part

RESULTS = ROOT / "build" / "gpu-results"
MOST_WORKERS = 8
LATE = 3
"""Exit status of a run that has more to do."""
FACTS_TIMEOUT_S = 120


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=[*NAMES, "all"], default=["all"], help="default: all")
    parser.add_argument("--minutes", type=float, default=8, metavar="N", help="then stop, to go on later (8)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="items with one of these texts")
    parser.add_argument(
        "--keep", action="store_true", help="what was right before the sources changed is not made again"
    )
    parser.add_argument("--rehearse", action="store_true", help="in the emulator, even if there is a GPU")
    parser.add_argument("--target", choices=["cuda", "emulate"], help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=31, metavar="N", help="turns of each contender (31)")
    parser.add_argument("--workers", type=int, default=min(MOST_WORKERS, os.cpu_count() or 1), metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: build/gpu-results")
    return parser.parse_args(arguments)


def machine(search: Sequence[Path]) -> dict[str, Any]:
    """What `gpu.machine` finds, asked in a process of its own: looking must not occupy the device."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search))}
    ended = subprocess.run(
        [sys.executable, "-m", "gpu.machine"],
        cwd=ROOT,
        env=variables,
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
    job = Job(target, target != "cuda", tuple(chosen.only), chosen.workers, chosen.rounds)
    parts = NAMES if "all" in chosen.part else tuple(p for p in NAMES if p in chosen.part)
    identity = {"sources": sources_digest(ROOT), "target": target}
    record = Record(chosen.out.resolve(), identity, page, keep=chosen.keep)
    record.describe(**facts, target=target)
    print(f"{facts['device'] or 'no device'}; PyCUDA: {facts.get('pycuda')}", flush=True)
    return run(parts, job, Setting(record.folder, search, deadline), record)


def run(parts: Sequence[str], job: Job, setting: Setting, record: Record) -> int:
    """The parts in order, each with its share of the time."""
    try:
        items = listed(parts, job, setting)
    except ItemsError as error:
        print(error, file=sys.stderr)
        return 2
    for name in parts:
        share = limits(name).share if len(parts) > 1 else 1.0
        own = Setting(setting.folder, setting.search, time.monotonic() + share * setting.left)
        run_part(name, items[name], job, own, record)
    for file in ("table.md", "results.json"):
        print(f"written: {record.folder / file}")
    if not record.complete():
        print("There is more to do: run the same again.")
        return LATE
    wrong = [s for p in parts for s in record.statuses(p) if s not in ("ok", "skipped")]
    return 1 if wrong else 0


class ItemsError(Exception):
    """A part cannot say what it consists of."""


def listed(parts: Sequence[str], job: Job, setting: Setting) -> dict[str, list[str]]:
    """The items of each part, asked in a process that can import polyfuse."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, setting.search))}
    command = [sys.executable, "-m", "gpu.parts", job.as_json(), *parts]
    ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    if ended.returncode:
        raise ItemsError(ended.stderr.strip()[-600:])
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
