"""A process that does items of one part: `python -m gpu.worker PART JOB`, a line in, a line out.

A kernel that faults spoils its process for every later call, so whoever asks starts a new one when an answer
says `broken`, or when no answer comes.  What is printed by others goes to stderr, which is a log file.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from gpu.job import Job
from gpu.parts import load

LAST_LINES = 12


def answer(part: Any, job: Job, item: str) -> dict[str, Any]:
    """The result of an item; a failure is a result too."""
    start = time.perf_counter()
    try:
        result = dict(part.run(item, job))
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        result = {"status": "failed", "message": "\n".join(lines[-LAST_LINES:])}
    result["seconds"] = round(time.perf_counter() - start, 3)
    if result["status"] != "ok" and not device_answers(job):
        result["broken"] = True
    return result


def device_answers(job: Job) -> bool:
    """Can this process still use the device?"""
    if job.target != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:  # whatever is raised: the context is lost
        return False
    return True


def main(name: str, text: str) -> None:
    """Serve until the input ends."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    job, part = Job.from_json(text), load(name)
    for request in sys.stdin:
        lines.write(json.dumps(answer(part, job, json.loads(request))) + "\n")
        lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:3])
