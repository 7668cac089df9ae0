"""Part "sanitize": compute-sanitizer over small calls, where it works; an item is a tool and a group."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu.job import Job
from gpu.pack import ROOT

GROUPS = {
    "memcheck": ("workloads 0-7", "workloads 8-15", "random 0-9", "stdlib 0-9", "stdlib 60-69"),
    "racecheck": ("workloads 0-7", "workloads 8-15", "random 0-9", "stdlib 60-69"),
    "synccheck": ("workloads 0-7", "workloads 8-15"),
    "initcheck": ("workloads 0-7", "workloads 8-15", "random 0-9"),
}
TIMEOUT_S = 170
FOUND = 99
"""Exit status that the checker is told to end with when it found something."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
_REFUSED = re.compile(
    r"Device not supported|unsupported device|not supported on this|insufficient driver", re.I
)


def find() -> str | None:
    """The checker: on the PATH, or with CUDA."""
    if found := shutil.which("compute-sanitizer"):
        return found
    places = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")), *sorted(Path("/opt/nvidia").glob("*"))]
    for place in places:
        for name in ("bin/compute-sanitizer", "compute-sanitizer/compute-sanitizer", "compute-sanitizer"):
            if (place / name).is_file():
                return str(place / name)
    return None


def items(job: Job) -> list[str]:
    """Each tool over its groups; memory errors first."""
    most = 1 if job.quick else None
    return job.selected([f"{tool}: {g}" for tool, groups in GROUPS.items() for g in groups[:most]])


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Run the tool over the group, in a process of its own."""
    tool, _, group = item.partition(": ")
    if job.target != "cuda":
        return {"status": "skipped", "message": "there is no device; the emulator checks memory itself"}
    checker = find()
    if checker is None:
        return {"status": "skipped", "message": "there is no compute-sanitizer"}
    command = [checker, *options_of(tool)]
    try:
        ended = subprocess.run(
            [*command, sys.executable, "-m", "gpu.exercise", group],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "message": f"longer than {TIMEOUT_S} s"}
    return judged(ended.returncode, ended.stdout + ended.stderr)


def options_of(tool: str) -> list[str]:
    """Of the checker. A library that asks the driver for what it may not have is no error of ours."""
    found = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "5"]
    return [*found, "--report-api-errors", "no"] if tool == "memcheck" else found


def judged(status: int, output: str) -> dict[str, Any]:
    """What an output of the checker means."""
    lines = [line for line in output.splitlines() if line.strip()]
    if _REFUSED.search(output):
        return {
            "status": "skipped",
            "message": "the checker does not work on this machine: " + lines[-1][:200],
        }
    summary = _SUMMARY.search(output)
    if summary is None:
        return {"status": "failed", "message": f"status {status}: " + "\n".join(lines[-6:])}
    errors = int(summary[1])
    shown = [line for line in lines if line.startswith("=========")][:20]
    message = "\n".join(shown) if errors or status else ""
    return {"status": "failed" if errors or status else "ok", "errors": errors, "message": message[:2500]}
