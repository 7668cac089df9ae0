"""Runs of the C++ compiler: a shared object from one source or from several parts, made side by side.

Each run has a limit, a folder and a process group of its own; when one fails, is late or is interrupted, all
are ended with what they started.  The limit is seconds of the processor, for each process: what compiles does
not depend on what else the machine does.  The clock ends only what waits for something.
"""

from __future__ import annotations

import errno
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from polyfuse.diagnostics import ToolchainError
from polyfuse.progress import tell
from polyfuse.runtime.sanitizers import compiler_environment
from polyfuse.runtime.vector_report import Missed, flag, missed
from polyfuse.runtime.work_folders import BUILDS, work_folder

PHASE = "C++ parts compiled"
PROBE_TIMEOUT_S = 10.0
# Seconds of the clock for each of the processor's, before a run counts as one that hangs.
PATIENCE = 10
# The limit is set in the new process, before it starts others.  A lower one of the user's stays.
_LIMITED = ("/bin/sh", "-c", 'ulimit -S -t "$0" 2>/dev/null; exec "$@"')
_OUTPUT_LIMIT = 6000
_TOO_LONG = "time limit exceeded"  # how systems call the signal SIGXCPU
INSTALL_HINT = (
    "install one: `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora, RHEL), "
    "`xcode-select --install` or `brew install gcc` (macOS), or point $CXX at one; "
    "`--target interpret` works without a compiler"
)


class OutOfTime(ToolchainError):
    """The compiler was busy all the time that it had."""


def ask(command: Sequence[str]) -> str:
    """What a command prints."""
    return _run_all([command], Path(tempfile.gettempdir()), PROBE_TIMEOUT_S)[0]


def of_parts(flags: Sequence[str]) -> list[str]:
    """The flags without those of the linker."""
    return [f for f in flags if f != "-shared" and not f.startswith(("-Wl,", "-l", "-L"))]


def build_shared(
    command: Sequence[str],
    flags: Sequence[str],
    units: Sequence[str],
    timeout_s: float,
    reports: list[Missed] | None = None,
) -> bytes:
    """Compile in a folder of its own, which goes away whatever happens. What gcc says of loops that are no
    vector loops goes into `reports`, if there is such a list."""
    names = ["kernel"] if len(units) == 1 else [f"kernel_{k}" for k in range(len(units))]
    with work_folder(prefix=BUILDS) as folder:
        for name, unit in zip(names, units, strict=True):
            Path(folder, f"{name}.cpp").write_text(unit, encoding="utf-8")
        inputs = [f"{names[0]}.cpp"]
        told = {n: [flag(f"{n}.vec")] if reports is not None else [] for n in names}
        if len(units) > 1:
            parts = [[*command, "-c", f"{n}.cpp", *of_parts(flags), *told[n], "-o", f"{n}.o"] for n in names]
            _run_all(parts, Path(folder), timeout_s)
            inputs = [f"{n}.o" for n in names]
        # The source comes first: a `-l` among the flags must follow what needs it under --as-needed.
        alone = told[names[0]] if len(units) == 1 else []
        whole = [*command, *inputs, *flags, *alone, "-o", "kernel.so"]
        _run_all([whole], Path(folder), timeout_s)
        made = Path(folder, "kernel.so")
        if not made.is_file():
            raise _failed(whole, 0, "")
        for name, unit in zip(names, units, strict=True):
            report = Path(folder, f"{name}.vec")
            if reports is not None and report.is_file():
                reports += missed(unit, report.read_text(encoding="utf-8", errors="replace"))
        return made.read_bytes()


def _run_all(commands: Sequence[Sequence[str]], folder: Path, timeout_s: float) -> list[str]:
    """Run all side by side; their output. Raises ToolchainError for one that fails; then none runs on."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    found: list[str] = []
    with ExitStack() as stack:
        running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for command in commands:
            # A file takes the output: a pipe could be held open by grandchildren.
            output: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            running.append((_start(command, folder, output, timeout_s), output))
            stack.callback(_end, running[-1][0])
        for command, (process, output) in zip(commands, running, strict=True):
            text = shlex.join(command)
            try:
                code = _status(process, max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise ToolchainError(
                    f"the compiler still ran after {PATIENCE * timeout_s:g} s and was killed: {text}",
                    code="PF703",
                    hint="it seems to wait for something: run the command by hand",
                ) from None
            output.seek(0)
            found.append(output.read().decode("utf-8", "replace"))
            if _was_too_long(code, found[-1]):
                raise OutOfTime(
                    f"the compiler used {timeout_s:g} s of the processor and was ended: {text}",
                    code="PF703",
                    hint="a smaller kernel compiles faster",
                )
            if code != 0:
                raise _failed(command, code, found[-1])
            if len(commands) > 1:
                tell(PHASE, len(found), len(commands))
    return found


def _start(
    command: Sequence[str], folder: Path, output: IO[bytes], limit_s: float
) -> subprocess.Popen[bytes]:
    try:
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return subprocess.Popen(
            [*_LIMITED, str(math.ceil(limit_s)), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # What the compiler leaves when it is killed goes with the folder.
            env={**compiler_environment(), "LC_ALL": "C", "TMPDIR": str(folder)},
            start_new_session=True,  # its own process group, so that all of it can be killed
        )
    except OSError as e:
        raise ToolchainError(
            f"cannot run {command[0]}: {e.strerror or e}", code="PF701", hint=INSTALL_HINT
        ) from e


def _was_too_long(code: int, text: str) -> bool:
    """Did a process, or one that it started and tells of, end because its seconds were used up?"""
    return code in (-signal.SIGXCPU, 128 + signal.SIGXCPU) or (code != 0 and _TOO_LONG in text.lower())


def _status(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """What a process ends with. Raises subprocess.TimeoutExpired.

    `wait` with a limit looks from time to time, soon only every 50 ms; a small kernel takes 200 to compile.
    So the system is asked to tell at once, where it can.
    """
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an old kernel, or no descriptor left
            ended = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(ended, select.POLLIN)
                if not poll.poll(limit_s * 1000):
                    limit_s = 0.0
            finally:
                os.close(ended)
    return process.wait(limit_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, with all that it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failed(command: Sequence[str], code: int, text: str) -> ToolchainError:
    how = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
    hint = "out of memory?" if code == -signal.SIGKILL else f"the command was: {shlex.join(command)}"
    return ToolchainError(f"the C++ compiler {how}:\n{_shortened(text)}", code="PF702", hint=hint)


def _shortened(text: str) -> str:
    """The beginning, where the first error is, and the end."""
    text = text.strip() or "(no output)"
    if len(text) <= _OUTPUT_LIMIT:
        return text
    head, tail = text[: _OUTPUT_LIMIT * 3 // 4], text[-_OUTPUT_LIMIT // 4 :]
    return f"{head}\n... ({len(text) - _OUTPUT_LIMIT} more characters) ...\n{tail}"
