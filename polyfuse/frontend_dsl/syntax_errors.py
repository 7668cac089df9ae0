"""Says in words what the parser expected: PF101.

`accepted` asks the LALR table which tokens could stand where the parser stumbled; `explain` turns
that, the token before and the token found into a sentence and a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lark.parsers.lalr_analysis import Shift

from polyfuse.diagnostics import Diagnostic
from polyfuse.frontend_dsl.build_ast import SourceToken
from polyfuse.frontend_dsl.lexical import BadToken
from polyfuse.source import Span

_OPERATORS = frozenset(("PLUS", "MINUS", "TIMES", "POWER", "COMPARE", "AND", "OR", "IF"))
_EXPRESSION = frozenset(("NAME", "INT", "LPAR", "REDUCTION"))
_ASSIGNMENTS = frozenset(("ASSIGN", "SCATTER"))

# Tokens in the order in which a message names them.
_WORDS = {
    "OP": "'op'",
    "IMPORT": "'import'",
    "STRING": 'a file name in double quotes, as in "norms.pf"',
    "COLON": "':'",
    "_COMMA": "','",
    "RANGE": "'..'",
    "IN": "'in'",
    "ELSE": "'else' and a value",
    "RPAR": "')'",
    "RSQB": "']'",
    "LPAR": "'('",
    "LSQB": "'['",
    "ARROW": "'->'",
    "WHERE": "'where'",
    "LBRACE": "'{'",
    "ASSIGN": "'='",
    "SCATTER": "'+='",
    "INT": "a number",
    "TRUE": "'true'",
    "FALSE": "'false'",
    "FOR": "'for'",
    "END": "the end of the line",
    "RBRACE": "'}'",
}

# What a NAME would be, by the token before it.
_NAME_AFTER = {
    "OP": "the operator's name",
    "COLON": "a dtype such as f32",
    "FOR": "an index variable",
    "LET": "the name of a tensor",
    "INOUT": "the name of a parameter",
}
_FOUND = {"END": "the end of the line", "$END": "the end of the file"}

_CONDITIONAL_HINT = "a condition is written 'value if condition else other', all on one line or in '()'"
_LINE_HINT = (
    "a newline ends a statement: let the line before end in an operator, or put the expression in '( )'"
)
_KEYWORD_STARTS = {
    "IF": _CONDITIONAL_HINT,
    "ELSE": _LINE_HINT,
    "AND": _LINE_HINT,
    "OR": _LINE_HINT,
    "TIMES": _LINE_HINT,
    "POWER": _LINE_HINT,
    "PLUS": _LINE_HINT,
    "COMPARE": _LINE_HINT,
    "MINUS": _LINE_HINT,
    "FOR": "ranges follow their definition on the same line: t[i] = e for i in 0..N",
    "REDUCTION": "a reduction is part of a definition: s = sum[i](x[i])",
}


def accepted(state_stack: list[Any], states: dict[Any, dict[str, tuple[Any, Any]]]) -> set[str]:
    """The terminals that the parser could take in this state."""
    return {t for t in states[state_stack[-1]] if t.isupper() and _takes(state_stack, states, t)}


def _takes(state_stack: list[Any], states: dict[Any, dict[str, tuple[Any, Any]]], terminal: str) -> bool:
    """Runs the reductions that `terminal` would cause, on the states alone."""
    top: list[Any] = []
    below = len(state_stack)
    while True:
        state = top[-1] if top else state_stack[below - 1]
        action, target = states[state].get(terminal, (None, None))
        if action is None:
            return False
        if action is Shift:
            return True
        size = len(target.expansion)
        below -= max(0, size - len(top))
        del top[max(0, len(top) - size) :]
        state = top[-1] if top else state_stack[below - 1]
        top.append(states[state][target.origin.name][1])


def explain(previous: SourceToken | None, found: SourceToken, expected: set[str]) -> Diagnostic:
    """The error for `found` after `previous`, where one of `expected` could have stood."""
    if isinstance(found, BadToken):
        return found.diagnostic
    before = f" after {_quoted(previous)}" if previous is not None and previous.type != "END" else ""
    message = f"expected {_phrase(previous, expected)}{before}, found {_quoted(found)}"
    return Diagnostic("PF101", message, _place(previous, found), _hint(previous, found, expected))


def _place(previous: SourceToken | None, found: SourceToken) -> Span:
    """Where to point: a missing end of a line is shown right after the last token on it."""
    if found.type == "$END" and previous is not None:
        return Span(previous.source, previous.end_pos - 1, previous.end_pos)
    return found.span


def _quoted(token: SourceToken) -> str:
    if token.type in _FOUND and token != ";":
        return _FOUND[token.type]
    text = str(token)
    return f"'{text if len(text) <= 40 else text[:37] + '...'}'"


def _phrase(previous: SourceToken | None, expected: set[str]) -> str:
    """What was expected, most telling first, at most four things."""
    last = previous.type if previous is not None else "END"
    if "BROKEN_STATEMENT" in expected:
        return "a statement (a definition, 'let' or a call)" + (" or '}'" if "RBRACE" in expected else "")
    if expected >= _EXPRESSION:
        return _expression_after(last, expected)
    if expected >= _OPERATORS:
        return _after_operand(expected)
    if expected >= _OPERATORS - {"COMPARE", "AND", "OR", "IF"}:
        return _or([*_words(expected - _OPERATORS - {"LPAR", "LSQB"}), "an operator"])
    if expected >= _ASSIGNMENTS:
        return _or([*_words(expected - _ASSIGNMENTS), "'='"])
    if "BROKEN_ITEM" in expected:
        return "an operator definition ('op') or 'import'"
    if "INT" in expected:
        return "a number, true or false"
    names = [_NAME_AFTER.get(last, "a name")] if "NAME" in expected else []
    return _or([*names, *_words(expected - {"INOUT"})])


def _expression_after(last: str, expected: set[str]) -> str:
    closer = [f"'{c}'" for t, c in (("RPAR", ")"), ("RSQB", "]"), ("RBRACE", "}")) if t in expected]
    if last == "LSQB":
        return _or(["an index", *closer])
    return _or(["an expression", *closer])


def _after_operand(expected: set[str]) -> str:
    """An expression is complete: what may follow it."""
    if "ELSE" in expected and "END" not in expected:
        return "'else' and a value"
    closing = expected - _OPERATORS - {"LPAR", "LSQB", "FOR", "RBRACE", "ASSIGN", "IN", "ELLIPSIS"}
    return _or(["an operator", *_words(closing)])


def _words(expected: Iterable[str]) -> list[str]:
    wanted = set(expected)
    return [word for kind, word in _WORDS.items() if kind in wanted][:4]


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0] if words else "less"


def _hint(previous: SourceToken | None, found: SourceToken, expected: set[str]) -> str | None:
    """What to do about common slips."""
    last = previous.type if previous is not None else "END"
    if "BROKEN_STATEMENT" in expected:
        return _KEYWORD_STARTS.get(found.type)
    if "BROKEN_ITEM" in expected:
        return "statements stand inside 'op name(...) -> (...) { ... }'" if found.type == "NAME" else None
    match last, found.type:
        case _, "ASSIGN" if "COMPARE" in expected:
            return "compare with '=='"
        case _, "COMPARE" if "ASSIGN" in expected and found == "==":
            return "define with '='"
        case ("NAME", "NAME") if str(previous) in ("max", "min"):
            return None
        case (("NAME" | "RSQB"), "NAME") if found in ("max", "min") and "SCATTER" in expected:
            return f"'{found}=' is written without a blank"
        case _, ("END" | "RBRACE") if "ELSE" in expected and "END" not in expected:
            return _CONDITIONAL_HINT
        case _, "ELSE":
            return _CONDITIONAL_HINT
        case "LSQB", "RSQB":
            return "a tensor of rank 0 is written without brackets"
        case _, "STRING":
            return "strings are only used with import"
        case (("INT" | "FLOAT" | "RPAR" | "RSQB" | "NAME"), ("NAME" | "INT" | "FLOAT" | "LPAR")) if (
            expected >= _OPERATORS
        ):
            return "a product is written with '*'"
        case _, "IF":
            return _CONDITIONAL_HINT
        case _, "MINUS" | "PLUS" if found == "+" and expected >= _EXPRESSION:
            return "there is no unary '+'"
    return None
