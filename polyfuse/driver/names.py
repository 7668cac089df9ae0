"""Names of operators in other frameworks: the same in every process, others for other operators."""

from __future__ import annotations

import hashlib

from polyfuse.driver.compiled import Compiled
from polyfuse.frontend_dsl.syntax.formatter import format_program


def digest(function: Compiled, more: object = None) -> str:
    """What tells operators of one name apart, the same in every process: the program, the settings, and more
    that is said of them."""
    text = [p.source.text or format_program(p) for p in function.programs]
    settings = map(repr, function.settings)
    told = "\0".join([*text, str(function.signature), *settings, _told(more)])
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _told(value: object) -> str:
    """A function or an operator in words that do not depend on the process."""
    if isinstance(value, Compiled):
        return digest(value)
    name = getattr(value, "__qualname__", None)
    return f"{getattr(value, '__module__', '')}.{name}" if name else str(value or "")
