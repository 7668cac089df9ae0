"""Contenders as processes that take turns: each answers commands, and is stopped while another one does.

Each has a process of its own: two pools of spinning threads in one process, or two that run at the same time,
slow each other down. Who is not at turn is stopped by SIGSTOP, so that nothing of it spins. Commands and
answers are JSON, one in a line, in pipes of their own: libraries write what they like to the usual ones.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

ROOT = Path(__file__).resolve().parents[1]
OURS = "polyfuse"
PEERS = (OURS, "PyTorch", "compiled", "jax.jit")
NEEDS = {"PyTorch": "torch", "compiled": "torch", "jax.jit": "jax"}
"""The library of each peer."""
TUNABLES = (
    "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:glibc.malloc.hugetlb=1"
)
"""glibc's allocator that keeps freed memory and uses huge pages: for large results often much faster."""
# What a process does in its turn, at least.
TURN_S = 0.03
_PR_SET_PDEATHSIG = 1

Answer = Callable[[dict[str, Any]], Any]


class ContenderError(RuntimeError):
    """A contender could not do what it was asked."""


class Child:
    """A process that runs `serve`, with the numbers of its pipes as last arguments. Stopped, except while it
    answers; `greeting` is what it says first."""

    def __init__(self, label: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.label = label
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command, str(theirs_in), str(theirs_out)],
            cwd=ROOT,
            env=dict(env),
            pass_fds=(theirs_in, theirs_out),
            stdout=sys.stderr,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "w"), os.fdopen(ours_in)
        self.greeting = self._receive()
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **command: Any) -> Any:
        """The answer to one command. Raises ContenderError with the child's message."""
        with self._awake():
            try:
                self._out.write(json.dumps(command) + "\n")
                self._out.flush()
            except BrokenPipeError:
                raise ContenderError(f"{self.label}: the process ended") from None
            return self._receive()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _receive(self) -> Any:
        line = self._in.readline()
        if not line:
            raise ContenderError(f"{self.label}: the process ended")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise ContenderError(f"{self.label}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._out, self._in):
            with suppress(OSError):
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def environment(threads: int, **more: str) -> dict[str, str]:
    """Of a contender's process: every library has so many threads, and finds this package."""
    number = str(threads)
    libraries = ("OMP", "OPENBLAS", "MKL", "POLYFUSE")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
        **{f"{library}_NUM_THREADS": number for library in libraries},
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        **more,
    }


def serve(inbox: int, outbox: int, begin: Callable[[], tuple[Any, Answer]]) -> None:
    """Greet, then answer commands until the pipe is closed; `begin` makes the greeting and what answers."""
    _die_with_parent()
    with os.fdopen(inbox) as commands, os.fdopen(outbox, "w") as answers:
        try:
            greeting, answer = begin()
        except Exception as error:  # the parent goes on without this one
            _say(answers, {"error": f"{type(error).__name__}: {error}"})
            return
        _say(answers, greeting)
        for line in commands:
            try:
                found = answer(json.loads(line))
            except Exception as error:  # a contender that fails loses this command only
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
            _say(answers, found)


def fastest(call: Callable[[], object], seconds: float = TURN_S) -> float:
    """Seconds of the fastest call in a turn."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def turns_of(
    module: str, peers: Sequence[str], cases: int, threads: int, rounds: int
) -> Iterator[dict[str, float]]:
    """For each case the median over rounds of each peer's seconds; NaN where a peer cannot do it.

    `module` answers ``--serve PEER THREADS`` by `serve_cases`.
    """
    with ExitStack() as stack:
        started = [Child(p, [module, "--serve", p, str(threads)], environment(threads)) for p in peers]
        children = [stack.enter_context(child) for child in started]
        for k in range(cases):
            times = [[_turn(child, k) for child in children] for _ in range(rounds)]
            yield dict(zip(peers, map(statistics.median, zip(*times, strict=True)), strict=True))


def _turn(child: Child, case: int) -> float:
    try:
        return float(child.ask(case=case))
    except ContenderError as error:
        print(error, file=sys.stderr)
        return float("nan")


def serve_cases(call_of: Callable[[int], Callable[[], object]], inbox: int, outbox: int) -> None:
    """Answer `turns_of`: seconds of the fastest call in a turn, for each number of a case that comes in."""

    @cache
    def ready(k: int) -> Callable[[], object]:
        call = call_of(k)
        call()
        return call

    serve(inbox, outbox, lambda: ({}, lambda command: fastest(ready(command["case"]))))


def options_of(description: str | None) -> argparse.Namespace:
    """`--threads` and `--rounds` of a benchmark whose contenders take turns."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def limit_cores(threads: int) -> None:
    """Let this process have so many cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))


def _say(answers: TextIO, answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _die_with_parent() -> None:
    """A stopped process would not see that its pipe is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
