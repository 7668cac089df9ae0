"""Compile items of a part before they are timed, in as many processes as there are cores.

    python -m gpu.ahead PART JOB < items     a line of JSON for each: [name, what there is to tell]

One after the other, compilations would take most of a short run.  An item that is not ready when its time is
up is compiled when it is run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpu.job import Job
from gpu.pack import ROOT
from gpu.parts import load


def compile_ahead(
    part: str, items: Sequence[str], job: Job, variables: Mapping[str, str], log: Path, limit_s: float
) -> dict[str, Any]:
    """Item -> seconds, or what there is to tell; of those that were ready in time (`Job.compiled`)."""
    command = [sys.executable, "-m", "gpu.ahead", part, job.as_json()]
    found: dict[str, Any] = {}
    with log.open("a", encoding="utf-8") as words:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=dict(variables),
            start_new_session=True,
            text=True,
        )
        clock = threading.Timer(max(0.0, limit_s), _end, [process])
        clock.start()
        try:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps(list(items)))
            process.stdin.close()
            for line in process.stdout:
                item, result = json.loads(line)
                found[item] = result
        finally:
            clock.cancel()
            process.wait()
    file = job.ahead(part)
    if file is not None:
        file.write_text(json.dumps(found), encoding="utf-8")
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """With all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _one(part: str, text: str, item: str) -> Any:
    """Seconds, or what the part has to tell instead; a text if it failed."""
    start = time.perf_counter()
    try:
        told = load(part).compile_item(item, Job.from_json(text))
        if told is not None:
            return told
    except Exception as error:  # it fails once more when it is run, and is told there
        return f"{type(error).__name__}: {error}"[:300]
    return round(time.perf_counter() - start, 3)


def _begin(part: str, text: str) -> None:
    """In each process: what no item should pay for."""
    from benchmarks.gpu_cases import begin_compiling  # whoever asks cannot import the compiler

    os.dup2(2, 1)
    job = Job.from_json(text)
    load(part).items(job)
    begin_compiling(job.target)


def main(part: str, text: str) -> None:
    """Compile what the standard input lists."""
    items = json.loads(sys.stdin.read())
    units = getattr(load(part), "units", None)
    items = units(items, Job.from_json(text)) if units else items
    count = min(Job.from_json(text).workers, len(items))
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin, initargs=(part, text)) as pool:
        asked = {pool.submit(_one, part, text, item): item for item in items}
        for done in as_completed(asked):
            print(json.dumps([asked[done], done.result()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
