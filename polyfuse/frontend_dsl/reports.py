"""Diagnostics that also count what was reported again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.diagnostics import Diagnostic, Diagnostics, Severity


@dataclass(slots=True)
class Reports(Diagnostics):
    """`errors_seen` counts every error, also one that is found already.

    An operator that is inlined twice reports its errors once, whatever each hint says; that there were some
    must show each time.
    """

    errors_seen: int = 0

    def _add(self, finding: Diagnostic) -> None:
        if finding.severity is Severity.ERROR:
            self.errors_seen += 1
        if all(replace(d, hint=finding.hint) != finding for d in self.found):
            self.found.append(finding)
