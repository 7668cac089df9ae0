"""The process of one contender: commands come in as JSON lines, answers go back.

{"do": "prepare", "workload", "case", "folder"}   -> first_call_s, modes, facts; results in the folder
{"do": "turn", "mode", "warm", "calls"}           -> seconds of each timed call
{"do": "rate", "name", "nbytes", "runs"}          -> a rate of the machine in this process
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.contenders import Contender, Prepared, make
from benchmarks.workload import load

_PR_SET_PDEATHSIG = 1


def main(name: str, threads: int, inbox: int, outbox: int) -> None:
    """Answer commands until the pipe is closed."""
    _die_with_parent()
    _limit_cores(threads)
    with os.fdopen(inbox) as commands, os.fdopen(outbox, "w") as answers:
        try:
            contender = make(name, threads)
        except Exception as error:  # the parent goes on without this one
            _say(answers, {"error": f"{type(error).__name__}: {error}"})
            return
        _say(answers, {"versions": contender.versions()})
        _serve(contender, commands, answers)


def _serve(contender: Contender, commands: TextIO, answers: TextIO) -> None:
    prepared: Prepared | None = None
    for line in commands:
        command = json.loads(line)
        try:
            match command["do"]:
                case "prepare":
                    prepared = None  # frees the last one's memory first
                    prepared, answer = _prepare(contender, command)
                case "turn":
                    assert prepared is not None
                    answer = _turn(prepared, command)
                case _:
                    answer = _rate(command)
        except Exception as error:  # a contender that fails loses this workload only
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        _say(answers, answer)


def _prepare(contender: Contender, command: dict[str, Any]) -> tuple[Prepared, dict[str, Any]]:
    workload = load(command["workload"])
    sizes = command["sizes"]
    prepared = contender.prepare(workload, sizes)
    for name, array in zip(workload.outcomes, prepared.results, strict=True):
        np.save(Path(command["folder"]) / f"{name}.npy", array)
    prepared.results.clear()
    answer = {"first_call_s": prepared.first_call_s, "modes": list(prepared.calls), **prepared.facts}
    return prepared, answer


def _turn(prepared: Prepared, command: dict[str, Any]) -> dict[str, Any]:
    call, clock = prepared.calls[command["mode"]], time.perf_counter
    for _ in range(command["warm"]):
        call()
    seconds = []
    for _ in range(command["calls"]):
        start = clock()
        call()
        seconds.append(clock() - start)
    return {"seconds": seconds}


def _rate(command: dict[str, Any]) -> dict[str, Any]:
    from polyfuse.runtime.machine import rate_now

    return {"rate": rate_now(command["name"], command["nbytes"], runs=command["runs"])}


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _die_with_parent() -> None:
    """A stopped process would not see that its pipe is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_cores(threads: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
