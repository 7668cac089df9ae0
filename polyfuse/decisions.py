"""What the compiler decided and why: the lines that `explain()` prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a pass; as text, a line of what `explain()` prints.

    Attributes
    ----------
    kind
        The transformation: "rematerialise", "contract", "fuse" and so on.
    subject
        What it is about.
    taken
        Whether it was done.
    reason
        One sentence.
    witness
        A concrete counter-example, where there is one.
    saved_bytes
        The memory traffic that it saves; None where unknown.

    Examples
    --------
    >>> print(pf.Decision("fuse", "a, y", True, "the same rows", saved_bytes=8000))
    + fuse a, y: the same rows [saves 8 kB]
    """

    kind: str
    subject: str
    taken: bool
    reason: str
    witness: str | None = None
    saved_bytes: int | None = None

    def __str__(self) -> str:
        mark = "+" if self.taken else "-"
        text = f"{mark} {self.kind} {self.subject}: {self.reason}"
        if self.witness:
            text += f" (for example {self.witness})"
        if self.saved_bytes:
            text += f" [saves {format_bytes(self.saved_bytes)}]"
        return text


def counted(number: int, what: str) -> str:
    """`1 element`, `4 elements`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def format_bytes(count: float) -> str:
    """`12.6 MB`, with decimal units as bandwidths have them."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} EB"
