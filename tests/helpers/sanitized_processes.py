"""Python processes with sanitizers, for tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.toolchain import run_sanitized


def in_sanitized(*words: str, seconds: float = 200, **more: str) -> subprocess.CompletedProcess[str]:
    """What a Python process of these words and variables of the environment says."""
    try:
        run_sanitized.environment()
    except ToolchainError as e:
        pytest.skip(str(e))
    command = [sys.executable, "-m", "polyfuse.runtime.toolchain.run_sanitized", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env={**os.environ, **more}
    )
