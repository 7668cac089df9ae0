"""Diagnostics that also count what was reported again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from polyfuse.diagnostics import Diagnostic, Diagnostics, Severity

MOST_COMPARED = 20_000
"""Names that are compared with unknown ones before hints of further errors are given up: about a second."""


@dataclass(slots=True)
class Reports(Diagnostics):
    """`errors_seen` counts every error, also one that is found already.

    An operator that is inlined twice reports its errors once, whatever each hint says; that there were some
    must show each time.
    """

    errors_seen: int = 0
    failed_names: set[tuple[str, str]] = field(default_factory=set)
    compared: int = 0

    def is_first(self, name: str, owner: str) -> bool:
        """A name that failed once is silent after that, but each use of it is an error that shows."""
        if (name, owner) in self.failed_names:
            self.errors_seen += 1
            return False
        self.failed_names.add((name, owner))
        return True

    def looked_up(self, names: int, hint: Callable[[], str | None]) -> str | None:
        """None where many were compared before: hints of hundreds of errors take longer than all else."""
        if self.compared > MOST_COMPARED:
            return None
        self.compared += names
        return hint()

    def _add(self, finding: Diagnostic) -> None:
        if finding.severity is Severity.ERROR:
            self.errors_seen += 1
        self._add_once(replace(finding, hint=None), finding)
