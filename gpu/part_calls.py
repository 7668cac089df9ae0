"""Part "calls": how long calls keep their caller; an item is a kind of call of `benchmarks.calls`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpu.job import Job

MODULE = "benchmarks.calls"


def items(job: Job) -> list[str]:
    """One: all kinds of calls are measured in turns."""
    return job.selected(["host time of calls"])


def run(item: str, job: Job) -> Mapping[str, Any]:
    """What `benchmarks.calls.measure` finds on this machine."""
    if find_spec(MODULE) is None:
        return {"status": "skipped", "message": f"there is no {MODULE}"}
    return {"status": "ok", "message": "", "found": plain(import_module(MODULE).measure())}


def plain(found: Any) -> Any:
    """As JSON has it."""
    if isinstance(found, Mapping):
        return {str(name): plain(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(value) for value in found]
    return found if isinstance(found, (str, int, float, bool, type(None))) else str(found)
