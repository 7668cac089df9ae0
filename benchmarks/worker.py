"""The process of one contender: commands come in as JSON lines, answers go back.

{"do": "prepare", "workload", "case", "folder"}   -> first_call_s, modes, facts; results in the folder
{"do": "turn", "mode", "warm", "calls"}           -> seconds of each timed call
{"do": "rate", "name", "nbytes", "runs"}          -> a rate of the machine in this process
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Contender, Prepared, make
from benchmarks.turns import Answer, limit_cores, serve
from benchmarks.workload import load


def main(name: str, threads: int, inbox: int, outbox: int) -> None:
    """Answer commands until the pipe is closed."""

    def begin() -> tuple[dict[str, Any], Answer]:
        limit_cores(threads)
        contender = make(name, threads)
        return {"versions": contender.versions()}, _Answers(contender).to

    serve(inbox, outbox, begin)


class _Answers:
    """What a contender has prepared, and does with it."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._prepared: Prepared | None = None

    def to(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "prepare":
                self._prepared = None  # frees the last one's memory first
                self._prepared, answer = _prepare(self._contender, command)
                return answer
            case "turn":
                assert self._prepared is not None
                return _turn(self._prepared, command)
        return _rate(command)


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
    from polyfuse.runtime.machine.probe import rate_now

    return {"rate": rate_now(command["name"], command["nbytes"], runs=command["runs"])}


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
