"""What a run is asked to do, in a form that goes from process to process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """target: "cuda", or "emulate" (a rehearsal without a device; "cpu" tries the script itself).

    quick: few items at small sizes.  only: items whose name contains one of these.  workers: processes that
    compare with the reference at a time.  rounds: turns of each contender in a benchmark.
    """

    target: str
    quick: bool
    only: tuple[str, ...] = ()
    workers: int = 1
    rounds: int = 31

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `as_json`."""
        found = json.loads(text)
        return cls(**{**found, "only": tuple(found["only"])})

    def selected(self, items: list[str]) -> list[str]:
        """The items that `only` lets pass."""
        return [i for i in items if not self.only or any(o in i for o in self.only)]
