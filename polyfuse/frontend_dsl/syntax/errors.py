"""Says in words what the parser expected: PF101.

`accepted` asks the LALR table which tokens could stand where the parser stumbled; `explain` turns
that, the token before and the token found into a sentence and a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lark.parsers.lalr_analysis import Shift

from polyfuse.diagnostics import Diagnostic
from polyfuse.frontend_dsl.syntax.build_ast import SourceToken
from polyfuse.frontend_dsl.syntax.lexical import BadToken
from polyfuse.source import Span

_OPERATORS = frozenset(("PLUS", "MINUS", "TIMES", "POWER", "COMPARE", "AND", "OR", "IF"))
_EXPRESSION = frozenset(("NAME", "INT", "LPAR", "REDUCTION"))
_ASSIGNMENTS = frozenset(("ASSIGN", "SCATTER"))

# Tokens in the order in which a message names them.
_WORDS = {
    "OP": "'op'",
    "FN": "'fn'",
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
    "FN": "the function's name",
    "COLON": "a dtype such as f32",
    "FOR": "an index variable",
    "LET": "the name of a tensor",
    "INOUT": "the name of a parameter",
}
_FOUND = {"END": "the end of the line", "$END": "the end of the file"}

_CONDITIONAL_HINT = "a condition is written 'value if condition else other'"
_RANGE_HINT = "a range is written '0..N', without its end, and there are no slices"
_OPERAND_HINT = "an operator stands between two operands, and no statement begins with one"
_COMMENT_HINT = "comments begin with '#'"
_STATEMENT_HINTS = {
    "IF": _CONDITIONAL_HINT,
    **dict.fromkeys(("ELSE", "AND", "OR", "TIMES", "POWER", "PLUS", "MINUS", "COMPARE"), _OPERAND_HINT),
    **dict.fromkeys(("BIT_AND", "BIT_OR", "BIT_XOR", "SHIFT", "TILDE"), _OPERAND_HINT),
    "FOR": "ranges follow their definition: t[i] = e for i in 0..N",
    "REDUCTION": "a reduction is part of a definition: s = sum[i](x[i])",
}
_EXPRESSION_HINTS = {
    "PLUS": "there is no unary '+'",
    "STRING": "strings are only used with import",
    "IF": _CONDITIONAL_HINT,
    "ELSE": _CONDITIONAL_HINT,
    "ASSIGN": "compare with '=='",
    "COMPARE": "one comparison stands between two operands",
    "COLON": "there are no slices: name an index variable, as in y[i, j] = x[i, j]",
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
    return Diagnostic("PF101", message, _place(previous, found, expected), _hint(previous, found, expected))


def _place(previous: SourceToken | None, found: SourceToken, expected: set[str]) -> Span:
    """Where to point: a value missing at the end of a line is missing there, not on the next line."""
    if previous is None or found.type == "END":
        return found.span
    end = previous.end_pos
    if found.type == "$END":
        return Span(previous.source, end - 1, end)
    inside = not expected & {"BROKEN_STATEMENT", "BROKEN_ITEM", "PLUS"}
    if inside and "\n" in found.source.text[end : found.start_pos]:
        return Span(previous.source, end, end)
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
    if _needs_else(expected):
        return "'else' and a value"
    closing = expected - _OPERATORS - {"LPAR", "LSQB", "FOR", "RBRACE", "ASSIGN", "IN", "ELLIPSIS", "ELSE"}
    return _or(["an operator", *_words(closing)])


def _needs_else(expected: set[str]) -> bool:
    """After ``a if b``: what else could take an 'else', a subscript, could end here as well."""
    return "ELSE" in expected and not expected & {"END", "RSQB"}


def _words(expected: Iterable[str]) -> list[str]:
    wanted = set(expected)
    return [word for kind, word in _WORDS.items() if kind in wanted][:4]


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0] if words else "less"


def _hint(previous: SourceToken | None, found: SourceToken, expected: set[str]) -> str | None:
    """What to do about common slips."""
    if found == "//" and not expected & _OPERATORS:
        return _COMMENT_HINT
    if "BROKEN_STATEMENT" in expected:
        return _STATEMENT_HINTS.get(found.type)
    if "BROKEN_ITEM" in expected:
        return "statements stand inside 'op name(...) -> (...) { ... }'" if found.type == "NAME" else None
    if previous is None:
        return None
    if _needs_else(expected):
        return _CONDITIONAL_HINT
    if expected >= _ASSIGNMENTS:
        return _hint_for_target(previous, found)
    if "RANGE" in expected and found.type in ("RBRACE", "COLON", "FOR", "RPAR"):
        return _RANGE_HINT
    if expected >= _OPERATORS:
        return _hint_after_operand(previous, found)
    if expected >= _EXPRESSION and found.type in _EXPRESSION_HINTS:
        return _EXPRESSION_HINTS[found.type]
    match previous.type, found.type:
        case "LSQB", "RSQB":
            return "a tensor of rank 0 is written without brackets"
        case "RPAR", "ASSIGN" if not expected & _OPERATORS:
            return "a tensor's indices stand in brackets: y[i] = ..."
        case "ASSIGN", _ if expected == {"NAME"}:
            return "only a call of an operator gives several tensors: (y, m) = f(x)"
        case _, "END" if "RANGE" in expected:
            return "a range has both ends: for i in 0..N"
        case _, _ if "RANGE" in expected:
            return _RANGE_HINT
        case "ARROW", "NAME":
            return f"results stand in parentheses: -> ({found}: f32[N])"
        case "NAME", "LSQB" if expected == {"COLON"}:
            return f"a dtype comes before the extents: {previous}: f32[N]"
        case "NAME", "ASSIGN" if expected == {"COLON"}:
            return f"'let' declares a type; a definition needs none: {previous} = ..."
        case "NAME", "COLON" if _line_before(found).lstrip().startswith("fn "):
            return "parameters of functions have no types: fn f(x, y) = ..."
        case "LPAR", "RPAR" if expected == {"NAME"}:
            return "leave out '-> ()' where nothing is returned"
    return None


def _line_before(found: SourceToken) -> str:
    text, begin = found.source.text, found.start_pos
    return text[text.rfind("\n", 0, begin) + 1 : begin]


def _hint_for_target(previous: SourceToken, found: SourceToken) -> str | None:
    """After ``name`` or ``name[...]`` at the start of a statement."""
    match found.type:
        case "COMPARE" if found == "==":
            return "define with '='"
        case "MINUS" | "TIMES":
            return "scatters are '+=', 'max=' and 'min='"
        case "NAME" if found in ("max", "min"):
            return f"'{found}=' is written without a blank"
        case "NAME" if previous == "return":
            return "nothing is returned: a result is defined by its name, as in y[i] = ..."
        case "NAME" if previous in ("fn", "op"):
            return "functions and operators stand beside one another, not inside an operator"
        case "STRING" if previous == "import":
            return "imports stand before the first operator"
        case "COLON" if found.source.text[found.end_pos : found.end_pos + 1] == "=":
            return "define with '='"
        case "COLON" if previous.type == "NAME":
            return f"a local tensor is declared with 'let {previous}: f32[...]'"
        case "_COMMA":
            return "several results are written in parentheses: (y, m) = f(x)"
        case "LSQB":
            return "all indices stand in one pair of brackets: t[i, j]"
    return None


def _hint_after_operand(previous: SourceToken, found: SourceToken) -> str | None:
    """Inside an expression, after a complete operand."""
    before = _line_before(found)
    match found.type:
        case "LSQB" if previous.type == "RSQB":
            return "all indices stand in one pair of brackets: t[i, j]"
        case "LSQB" if previous.type == "RPAR":
            return "only names have indices: define t[i, j] = ... or t = f(x) first, then read t[i, j]"
        case "COLON":
            return _RANGE_HINT
        case "NAME" if "//" in before:
            return f"'//' divides; {_COMMENT_HINT}"
        case "ASSIGN" | "SCATTER" if "=" not in before and "if" not in before:
            return "the line before ends in an operator or a comma, so that this one belongs to it"
        case "ASSIGN":
            return "compare with '=='"
        case "ELSE":
            return _CONDITIONAL_HINT
        case "NAME" | "INT" | "FLOAT" | "LPAR" | "REDUCTION":
            return "a product is written with '*'"
    return None
