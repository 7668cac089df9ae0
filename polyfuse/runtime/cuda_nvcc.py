"""nvcc, for machines that have the toolkit and no NVRTC: the same options, in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as memoised
from pathlib import Path
from typing import Any

from polyfuse.runtime.work_folders import BUILDS, work_folder

VERSION_LIMIT_S = 30.0


def compile_with_nvcc(nvcc: str, source: str, options: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """The answer of NVRTC's helper, from nvcc. Raises TimeoutError after killing it, or OSError."""
    with work_folder(prefix=BUILDS) as folder:
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        command = [nvcc, "-cubin", "kernel.cu", "-o", "kernel.cubin", "--keep", *options]
        status, log = _run(command, folder, timeout_s)
        answer: dict[str, Any] = {"status": status, "log": log, "version": nvcc_version(nvcc)}
        if status == 0:
            answer["cubin"] = (folder / "kernel.cubin").read_bytes()
            answer["ptx"] = (folder / "kernel.ptx").read_text(encoding="utf-8")
        return answer


@memoised
def nvcc_version(nvcc: str) -> str:
    """As ``13.0.88``; "unknown" if it does not say."""
    with suppress(OSError, TimeoutError):
        _, text = _run([nvcc, "--version"], Path(tempfile.gettempdir()), VERSION_LIMIT_S)
        _, _, after = text.partition(", V")
        return after.split()[0] if after else "unknown"
    return "unknown"


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit status and output.  A file takes the output: a pipe could be held open by what nvcc started."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # its own process group, so that all of it can be killed
        )
        try:
            status = process.wait(timeout=timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError from None
            raise
        output.seek(0)
        return status, output.read().decode("utf-8", "replace")
