"""The parts of a run: which there are, in which order, and how long their items may take.

A part is a module with `items(job)`, names in the order they are done, and `run(item, job)`, a result: a
dict with "status" ("ok", "failed" or "skipped") and whatever else is worth keeping.  With `compile_item(item,
job)` the items are compiled before (`gpu.ahead`), or the smaller `units(items, job)` of them.

`python -m gpu.parts JOB PART ...` prints the items of each part.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from gpu.job import Job


@dataclass(frozen=True)
class Limits:
    """usual_s: an item is begun only with so much time left.  most_s: then it is stopped.  weight: what the
    part gets of the time, beside those that come after it.  parallel: may several items run at a time?
    ahead: what compiling the items before may take of the part's time."""

    usual_s: float
    most_s: float
    weight: float
    parallel: bool = False
    ahead: float = 0.0


_LIMITS = {
    "bench": Limits(4, 150, 5, ahead=0.35),
    "calls": Limits(5, 60, 0.5),
    "tests": Limits(10, 240, 2, parallel=True),
    "reference": Limits(10, 120, 3, parallel=True),
    "sizes": Limits(10, 120, 1.5, parallel=True),
    "plans": Limits(4, 60, 4, ahead=0.5),
    "sanitize": Limits(20, 180, 2),
}
NAMES = tuple(_LIMITS)
"""What says most comes first."""


def share(name: str, rest: Sequence[str]) -> float:
    """Of the time that is left, what a part may take; `rest` begins with it."""
    return limits(name).weight / sum(limits(n).weight for n in rest)


def limits(name: str) -> Limits:
    """Of a part."""
    return _LIMITS[name]


def load(name: str) -> ModuleType:
    """The module of a part."""
    return importlib.import_module(f"gpu.part_{name}")


if __name__ == "__main__":
    print(json.dumps({name: load(name).items(Job.from_json(sys.argv[1])) for name in sys.argv[2:]}))
