"""How far a long compilation is.

Whoever does a part of it that takes long tells the phase, how many pieces of it are done, and how many there
are.  What a `Reporter` then shows is for people who wait: it starts after a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Tell = Callable[[str, int, int], None]
"""Called with a phase, pieces done, and all pieces."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a compilation is: `done` of `total` pieces of a phase, so many seconds after it began."""

    phase: str
    done: int
    total: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.phase}: {self.done} of {self.total}, {self.seconds:.1f} s"
