"""Where and when a measurement was made: it goes into every result.

Results of a kind of machine have a folder of `benchmarks/results`, with the latest complete run of each
command: a new one takes the place of the old one.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from polyfuse.runtime.cpu.pool import available_cores
from polyfuse.runtime.machine.probe import cache_sizes

RESULTS = Path(__file__).resolve().parent / "results"


def surroundings() -> dict[str, Any]:
    """Machine, system, Python and date."""
    caches = cache_sizes()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": available_cores(),
        "caches": {"l1": caches.l1, "l2": caches.l2, "l3": caches.l3},
        "memory": psutil.virtual_memory().total,
        "system": " ".join([platform.system(), *re.findall(r"^\d+\.\d+", platform.release())]),
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """The processor as the system calls it, with its widest vector extension."""
    text = ""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = model[1].strip() if model else platform.processor() or platform.machine()
    wide = next((w for flag, w in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if f" {flag}" in text), "")
    return " ".join(filter(None, (name, wide)))


def slug(text: str) -> str:
    """A name for files."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def machine_kind(about: Mapping[str, Any]) -> str:
    """The folder of a machine's results: its processor, and its L1 by which cores of one name differ."""
    return f"{slug(about['cpu'])}-l1-{about['caches']['l1'] // 1024}k"


def write_json(file: Path, data: Mapping[str, Any]) -> Path:
    """Write a result without spaces: they are a third of such a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, separators=(",", ":"), default=str) + "\n", encoding="utf-8")
    return file


def load_average() -> float:
    """Runnable processes in the last minute (0 where the system does not tell)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
