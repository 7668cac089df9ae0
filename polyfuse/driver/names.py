"""Names of operators in other frameworks: the same in every process, others for other operators."""

from __future__ import annotations

import hashlib
from types import CodeType

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
    function = value if isinstance(value, Compiled) else getattr(value, "function", None)
    if isinstance(function, Compiled):
        return digest(function, getattr(value, "backward", None))
    name = getattr(value, "__qualname__", None)
    if not name:
        return str(value or "")
    code = getattr(value, "__code__", None)
    return f"{getattr(value, '__module__', '')}.{name}{_text_of(code) if code else ''}"


def _text_of(code: CodeType) -> str:
    """What a function of Python does: functions may have one name."""

    def told(constant: object) -> str:
        if isinstance(constant, CodeType):
            return _text_of(constant)
        return str(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)

    constants = map(told, code.co_consts)
    return f" {code.co_code.hex()} {code.co_names} [{', '.join(constants)}]"
