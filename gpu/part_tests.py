"""Part "tests": the tests that need a device, and those of the CUDA code; an item is a file."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu.job import Job
from gpu.pack import ROOT

PATTERNS = (
    "tests/gpu/test_*.py",
    "tests/unit/*/test_cuda*.py",
    "tests/unit/*/test_gpu*.py",
    "tests/unit/*/test_device*.py",
    "tests/integration/test_cuda*.py",
)
TIMEOUT_S = 230
MOST_MESSAGES = 5


def items(job: Job) -> list[str]:
    """Files below the checkout."""
    found = [f for p in PATTERNS for f in sorted(ROOT.glob(p))]
    return job.selected([str(f.relative_to(ROOT)) for f in found])


def run(item: str, job: Job) -> Mapping[str, Any]:
    """Run a file with pytest."""
    with TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", item, "-q", "--tb=short", "-p", "no:cacheprovider"]
        extra = [f"--junitxml={report}", "--timeout=120"]
        try:
            ended = subprocess.run(
                [*command, *extra],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                env={**os.environ, "POLYFUSE_VERIFY": "0"},
            )
        except subprocess.TimeoutExpired:
            return {"status": "timeout", "message": f"longer than {TIMEOUT_S} s"}
        if not report.is_file():
            return {"status": "failed", "message": (ended.stdout + ended.stderr)[-1500:]}
        return counted(report.read_text(encoding="utf-8"))


def counted(xml: str) -> dict[str, Any]:
    """Numbers of a JUnit report, and the first failures."""
    cases = list(ET.fromstring(xml).iter("testcase"))
    bad = [(c, f) for c in cases for f in (*c.findall("failure"), *c.findall("error"))]
    skipped = [c for c in cases if c.find("skipped") is not None]
    messages = [f"{c.get('name')}: {(f.get('message') or f.text or '')[:300]}" for c, f in bad]
    status = "failed" if bad else "skipped" if len(skipped) == len(cases) else "ok"
    why = sorted({s.get("message", "") for c in skipped for s in c.findall("skipped")})
    return {
        "status": status,
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": len(bad),
        "skipped": len(skipped),
        "message": "\n".join(messages[:MOST_MESSAGES] or why[:1]),
    }
