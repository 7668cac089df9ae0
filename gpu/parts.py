"""The parts of a run: which there are, in which order, and how long their items may take.

A part is a module with `items(job)`, names in the order they are done, and `run(item, job)`, a result: a
dict with "status" ("ok", "failed" or "skipped") and whatever else is worth keeping.

`python -m gpu.parts JOB PART ...` prints the items of each part.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from types import ModuleType

from gpu.job import Job


@dataclass(frozen=True)
class Limits:
    """usual_s: an item is begun only with so much time left.  most_s: then it is stopped.  share: of the
    time that is left when the part begins.  parallel: may several items run at a time?"""

    usual_s: float
    most_s: float
    share: float
    parallel: bool = False


_LIMITS = {
    "tests": Limits(15, 240, 0.3),
    "reference": Limits(10, 120, 0.4, parallel=True),
    "sanitize": Limits(20, 180, 0.25),
    "bench": Limits(25, 150, 1.0),
}
NAMES = tuple(_LIMITS)


def limits(name: str) -> Limits:
    """Of a part."""
    return _LIMITS[name]


def load(name: str) -> ModuleType:
    """The module of a part."""
    return importlib.import_module(f"gpu.part_{name}")


if __name__ == "__main__":
    print(json.dumps({name: load(name).items(Job.from_json(sys.argv[1])) for name in sys.argv[2:]}))
