"""Errors with a code, a place, carets, a hint and the command that shows their page.

Codes: PF1xx text and syntax, PF2xx names and types, PF3xx ranges, pieces and indices,
PF4xx calls from Python (arguments, sizes), PF5xx scheduling and legality,
PF6xx kernels and code generation, PF7xx compiler and run time, PF8xx cache, files, other frameworks,
PF90x internal, PF91x pictures.  Every code has a page in ``docs/errors.d`` (tested), which `polyfuse explain`
shows.
Semantic errors of a file are collected in a `Diagnostics` and raised together.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from polyfuse.source import CalledSpan, Span


class Severity(Enum):
    """Errors stop the compilation, warnings do not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Edit:
    """What is written in place of a span; an empty span inserts."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A hint as data: edits that mend a finding, all or none.

    Those that keep the meaning are carried out by `polyfuse check --fix`, others need `--unsafe`.
    """

    title: str
    edits: tuple[Edit, ...]
    keeps_meaning: bool


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `related` are further places with a remark each, `fix` the hint as edits."""

    code: str
    message: str
    span: Span | None = None
    hint: str | None = None
    severity: Severity = Severity.ERROR
    related: tuple[tuple[Span, str], ...] = ()
    fix: Fix | None = None

    def render(self) -> str:
        where = f"{self.span}: " if self.span else ""
        lines = [f"{where}{self.severity.value} {self.code}: {self.message}"]
        if self.span:
            lines.append(self.span.caret_lines())
        for span, remark in self.related:
            lines += [f"  {span}: {remark}", span.caret_lines()]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        lines.append(f"  more: polyfuse explain {self.code}")
        return "\n".join(lines)


class PolyfuseError(Exception):
    """Base of every error that polyfuse raises on purpose.

    Attributes
    ----------
    diagnostics
        The findings, at least one: each with code, message, place and hint.

    Examples
    --------
    >>> try:
    ...     pf.stdlib.op("sofmax")
    ... except pf.PolyfuseError as error:
    ...     print(error.code, error.diagnostics[0].hint)
    PF411 did you mean 'softmax'?
    """

    default_code = "PF900"

    def __init__(
        self,
        message: str | Sequence[Diagnostic],
        *,
        code: str | None = None,
        span: Span | None = None,
        hint: str | None = None,
    ) -> None:
        if isinstance(message, str):
            found: tuple[Diagnostic, ...] = (Diagnostic(code or self.default_code, message, span, hint),)
        else:
            found = tuple(message)
        self.diagnostics = found
        super().__init__("\n\n".join(d.render() for d in found))

    @property
    def code(self) -> str:
        """The code of the first finding."""
        return self.diagnostics[0].code

    def __reduce__(self) -> tuple[type[PolyfuseError], tuple[tuple[Diagnostic, ...]]]:
        return type(self), (self.diagnostics,)


class DslError(PolyfuseError):
    """The program text is wrong (PF1xx-PF3xx)."""

    default_code = "PF100"


class ArgumentError(PolyfuseError, ValueError):
    """A call from Python does not fit the operator: shapes, dtypes, sizes, options (PF4xx)."""

    default_code = "PF400"


class ScheduleError(PolyfuseError):
    """A schedule is illegal or could not be computed (PF5xx)."""

    default_code = "PF500"


class CodegenError(PolyfuseError):
    """A kernel cannot be built for a target (PF6xx)."""

    default_code = "PF600"


class HostMemoryError(ArgumentError, MemoryError):
    """The memory of the machine does not suffice for a call (PF423)."""

    default_code = "PF423"


class ToolchainError(PolyfuseError):
    """The C++ compiler or the run time failed or is missing (PF7xx)."""

    default_code = "PF700"


class DeviceError(ToolchainError):
    """A GPU or its driver failed, or is missing (PF74x).

    `status` is the number of CUDA's driver API, 0 where the error is found before the driver is asked.
    """

    default_code = "PF749"
    status = 0


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a GPU does not suffice (PF742)."""

    default_code = "PF742"


class EmulationError(PolyfuseError):
    """Emulated kernels do what no GPU defines: races, accesses out of bounds, barriers that hang (PF73x)."""

    default_code = "PF730"


class PolyfuseWarning(UserWarning):
    """A finding that does not stop compilation."""


class CacheError(PolyfuseError):
    """The on-disk cache cannot be used (PF8xx)."""

    default_code = "PF800"


class InternalError(PolyfuseError):
    """A bug in polyfuse: a verifier found an inconsistent intermediate form (PF9xx)."""

    default_code = "PF900"


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that is spelled most like another; None where none is spelled alike."""
    found = difflib.get_close_matches(str(word), sorted(set(known)), n=1)
    return found[0] if found else None


def install(extra: str) -> str:
    """The hint that installs an extra of pyproject.toml; no index of packages has polyfuse."""
    return f"pip install '.[{extra}]' in a clone of polyfuse"


def _with_calls(finding: Diagnostic) -> Diagnostic:
    """With the calls of functions that lead to its place."""
    related, place = finding.related, finding.span
    while isinstance(place, CalledSpan):
        place = place.call
        related = (*related, (place, "called here"))
    return finding if related is finding.related else replace(finding, related=related)


@dataclass(slots=True)
class Diagnostics:
    """Collects findings; `raise_if_errors` raises them all at once."""

    found: list[Diagnostic] = field(default_factory=list)
    _keys: set[object] = field(default_factory=set, repr=False, compare=False)

    def error(
        self,
        code: str,
        message: str,
        span: Span | None,
        hint: str | None = None,
        related: tuple[tuple[Span, str], ...] = (),
    ) -> None:
        self._add(Diagnostic(code, message, span, hint, Severity.ERROR, related))

    def warning(
        self,
        code: str,
        message: str,
        span: Span | None,
        hint: str | None = None,
        related: tuple[tuple[Span, str], ...] = (),
    ) -> None:
        self._add(Diagnostic(code, message, span, hint, Severity.WARNING, related))

    def is_first(self, name: str, owner: str) -> bool:
        """Is this the first error about a name of an operator? Later ones would only repeat it."""
        return True

    def looked_up(self, names: int, hint: Callable[[], str | None]) -> str | None:
        """A hint that is looked for among so many names."""
        return hint()

    def _add(self, finding: Diagnostic) -> None:
        self._add_once(finding, finding)

    def _add_once(self, key: object, finding: Diagnostic) -> None:
        """Add a finding, unless there is one of the same key."""
        if key not in self._keys:
            self._keys.add(key)
            self.found.append(_with_calls(finding))

    @property
    def errors(self) -> list[Diagnostic]:
        return [d for d in self.found if d.severity is Severity.ERROR]

    @property
    def warnings(self) -> list[Diagnostic]:
        return [d for d in self.found if d.severity is Severity.WARNING]

    def raise_if_errors(self, kind: type[PolyfuseError] = DslError) -> None:
        errors = sorted(self.errors, key=lambda d: (d.span.source.name, d.span.start) if d.span else ("", -1))
        if errors:
            raise kind(errors)
