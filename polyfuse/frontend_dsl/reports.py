"""Diagnostics that also count what was reported again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from polyfuse.diagnostics import Diagnostic, Diagnostics, Severity


@dataclass(slots=True)
class Reports(Diagnostics):
    """`errors_seen` counts every error, also one that is found already.

    An operator that is inlined twice reports its errors once, whatever each hint says; that there were some
    must show each time.
    """

    errors_seen: int = 0
    failed_names: set[tuple[str, str]] = field(default_factory=set)

    def is_first(self, name: str, owner: str) -> bool:
        """A name that failed once is silent after that, but each use of it is an error that shows."""
        if (name, owner) in self.failed_names:
            self.errors_seen += 1
            return False
        self.failed_names.add((name, owner))
        return True

    def _add(self, finding: Diagnostic) -> None:
        if finding.severity is Severity.ERROR:
            self.errors_seen += 1
        if all(replace(d, hint=finding.hint) != finding for d in self.found):
            self.found.append(finding)
