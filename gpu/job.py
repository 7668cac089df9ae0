"""What a run is asked to do, in a form that goes from process to process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """target: "cuda", or "emulate" (a rehearsal without a device; "cpu" tries the script itself).

    quick: few items at small sizes.  only: items whose name contains one of these.  workers: processes that
    compare with the reference, or compile, at a time.  rounds: turns of each contender in a benchmark.
    peers: whom polyfuse is timed beside.  device: its name.  scratch: a folder of this run, with caches that
    nobody filled before, and what was compiled ahead of the items.  seed: that random programs begin with.
    """

    target: str
    quick: bool
    only: tuple[str, ...] = ()
    workers: int = 1
    rounds: int = 31
    peers: tuple[str, ...] = ()
    device: str | None = None
    scratch: str | None = None
    seed: int = 0

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `as_json`."""
        found = json.loads(text)
        return cls(**{**found, "only": tuple(found["only"]), "peers": tuple(found["peers"])})

    def selected(self, items: list[str]) -> list[str]:
        """The items that `only` lets pass."""
        return [i for i in items if not self.only or any(o in i for o in self.only)]

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment: on a device all caches are the run's own, so that first calls compile."""
        if self.scratch is None or self.target != "cuda":
            return {}
        names = {"POLYFUSE_CACHE_DIR": "polyfuse", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        names["TRITON_CACHE_DIR"] = "triton"
        return {variable: str(Path(self.scratch) / folder) for variable, folder in names.items()}

    def compiled(self, part: str) -> dict[str, Any]:
        """Item -> seconds that compiling it ahead took; a text for one that failed."""
        file = self.ahead(part)
        if file is None or not file.is_file():
            return {}
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def ahead(self, part: str) -> Path | None:
        """The file of `compiled`."""
        return Path(self.scratch) / f"ahead-{part}.json" if self.scratch else None
