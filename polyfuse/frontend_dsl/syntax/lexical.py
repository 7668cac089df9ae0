"""From characters to tokens: one linear scan that refuses what is hopeless, then a lazy tokenizer.

`prescan` looks at every character once, before anything else happens: size, illegal characters,
unterminated strings, brackets (matched, at most `MAX_BRACKETS` deep), comments.
`tokens` then cuts the text by the patterns of the grammar and settles what needs a look around:
which newlines end a statement, which names are reductions, which soft keywords are keywords.
Tokens that cannot be right carry their own `Diagnostic` (`BadToken`); the parser stumbles over them
and reports that.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from lark.lexer import PatternStr, TerminalDef

from polyfuse.diagnostics import Diagnostic, Diagnostics, DslError
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.build_ast import SourceToken
from polyfuse.frontend_dsl.syntax.names import REDUCTIONS, reduction_hint
from polyfuse.source import SourceText, Span

# --- characters -------------------------------------------------------------------------------------------

# What to say about a character that cannot be part of a program.
#
# Outside comments and strings a program is printable ASCII, tabs and newlines.  Control characters,
# half surrogates, line separators and characters that turn the writing direction are refused everywhere:
# they would make a text look different from what it says.


# What a person meant who typed (or pasted) one of these.
_MEANT = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{HYPHEN}": "-",
    "\N{NON-BREAKING HYPHEN}": "-",
    "\N{MULTIPLICATION SIGN}": "*",
    "\N{MIDDLE DOT}": "*",
    "\N{DOT OPERATOR}": "*",
    "\N{ASTERISK OPERATOR}": "*",
    "\N{DIVISION SIGN}": "/",
    "\N{DIVISION SLASH}": "/",
    "\N{FRACTION SLASH}": "/",
    "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{GREATER-THAN OR EQUAL TO}": ">=",
    "\N{NOT EQUAL TO}": "!=",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
    "\N{LEFT SINGLE QUOTATION MARK}": '"',
    "\N{RIGHT SINGLE QUOTATION MARK}": '"',
    "\N{LOGICAL AND}": "and",
    "\N{LOGICAL OR}": "or",
    "\N{NOT SIGN}": "not",
    "\N{GREEK QUESTION MARK}": ";",
    "\N{ARABIC COMMA}": ",",
    "\N{RATIO}": ":",
    "\N{N-ARY SUMMATION}": "sum",
    "\N{SUPERSCRIPT TWO}": "** 2",
    "\N{SUPERSCRIPT THREE}": "** 3",
}
# Letters of other scripts drawn like ASCII ones.
_CYRILLIC = dict(zip("АВЕЅІЈКМНОРСТХаеоросухѕіјһԁԛԝ", "ABESIJKMHOPCTXaeopocyxsijhdqw", strict=True))
_GREEK = dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧονρ", "ABEZHIKMNOPTYXovp", strict=True))
_MEANT |= {c: a for c, a in {**_CYRILLIC, **_GREEK}.items() if not c.isascii()}

# ASCII characters of other languages that mean nothing here.
_ASCII_HINTS = {
    "&": "write 'and' between bools, '&' between bits",
    "|": "write 'or' between bools, '|' between bits",
    "!": "write 'not', or '!=' to compare",
    "?": "write 'a if condition else b'",
    "@": "write a product of matrices as sum[k](a[i, k] * b[k, j])",
    "'": 'strings stand in double quotes, as in import "file.pf"',
    "\\": "a line goes on inside '(' or '[', and after an operator or a comma",
    ".": "there are no attributes; a range is written '0..N', a splat 'b...'",
}

_REFUSED_EVERYWHERE = frozenset(("Cc", "Cs", "Zl", "Zp"))
_DIRECTION = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def refused_everywhere(char: str) -> bool:
    """True for a character that not even a comment may hold (tabs and newlines are fine)."""
    if char in "\t\n\r":
        return False
    return char in _DIRECTION or unicodedata.category(char) in _REFUSED_EVERYWHERE


def lookalike(char: str) -> str | None:
    """The ASCII text that this character was probably meant to be."""
    meant = _MEANT.get(char) or unicodedata.normalize("NFKC", char)
    printable = meant.isascii() and meant.isprintable() and meant != char
    return meant if printable else None


def describe(char: str) -> str:
    """The character for a message: itself where it can be shown, its code point and its name."""
    if "\udc80" <= char <= "\udcff":
        return f"byte 0x{ord(char) - 0xDC00:02x}, which is not UTF-8"
    code = f"U+{ord(char):04X}"
    name = unicodedata.name(char, "")
    if "\ud800" <= char <= "\udfff":
        name = "half of a surrogate pair"
    elif unicodedata.category(char) == "Cc":
        name = "NUL" if char == "\0" else "a control character"
    shown = f"'{char}' " if char.isprintable() and not char.isspace() else ""
    return f"{shown}({code}{', ' + name.lower() if name and name != 'NUL' else ', NUL' if name else ''})"


def explain(char: str) -> tuple[str, str | None]:
    """The message and the hint for a character where it may not stand."""
    if char.isascii() and char.isprintable():
        return f"'{char}' is not part of the language", _ASCII_HINTS.get(char)
    if "\udc80" <= char <= "\udcff":
        return f"illegal {describe(char)}", "save the file as UTF-8"
    if char == "\r":
        return "carriage return without a newline", "end lines with a newline (or CR and newline)"
    message = f"illegal character {describe(char)}"
    meant = lookalike(char)
    if meant == " ":
        return message, "write an ordinary space"
    if meant is not None:
        return message, f"it looks like ASCII '{meant}'; write that"
    if unicodedata.category(char) in ("Cf", "Mn", "Zs", "Cc"):
        return message, "it cannot be seen; delete it"
    if char.isalpha():
        return message, "names are made of ASCII letters, digits and '_'"
    return message, None


# --- limits, and tokens that settle what is around --------------------------------------------------------

MAX_SOURCE_BYTES = 1_048_576
MAX_BRACKETS = 200
MAX_ERRORS = 20
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

CLOSER_OF = {"(": ")", "[": "]", "{": "}"}
ALTERNATIVE_SPELLINGS = {"True": "TRUE", "False": "FALSE"}

# After one of these an operand is complete: an operator may follow, a name may not.
OPERAND_END = frozenset(("NAME", "INT", "FLOAT", "TRUE", "FALSE", "RPAR", "RSQB", "ELLIPSIS"))
# After one of these a newline is a blank; END and LBRACE so that empty statements vanish.
_OPERATORS = ("PLUS", "MINUS", "TIMES", "POWER", "COMPARE", "ASSIGN", "SCATTER", "ARROW", "RANGE", "COLON")
_BITS = ("BIT_AND", "BIT_OR", "BIT_XOR", "SHIFT", "TILDE")
_WORDS = ("AND", "OR", "NOT", "IF", "ELSE", "FOR", "IN")
CONTINUES = frozenset((*_OPERATORS, *_BITS, *_WORDS, "_COMMA", "END", "LBRACE"))
SOFT_KEYWORDS = frozenset(("OP", "FN", "IMPORT", "WHERE", "LET", "INOUT", "IN"))

# Strings with nothing to complain of are scanned together.  The group is not possessive: before Python
# 3.11.5 a possessive group whose last repetition fails keeps what that repetition read (cpython 106052).
_FINE_STRINGS = r"""(?P<fine>(?:"[\t !#-~]*+"[ \t\n]*+){1,1000})"""
_INTERESTING = re.compile(_FINE_STRINGS + r'|#[^\n]*|"[^"\n]*"?|[()\[\]{}]|[^\t\n\r\x20-\x7e]|\r(?!\n)')
_PLAIN = re.compile(r"[\t\x20-\x7e]*\r?")
_SKIP = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)++")
_NAME_FOLLOWS = re.compile(r"[ \t\r\n]*(?!(?:max|min)=(?!=)|(?:and|or|if|else|for)\b)[A-Za-z_]")
_CONTINUATION = re.compile(r"[-+*/%<>=!&|^]|(?:and|or|if|else|for)\b")
_DEFAULT_FOLLOWS = re.compile(" *=")
_BRACKET_FOLLOWS = re.compile(r"[ \t]*\[")
_CALL_FOLLOWS = re.compile(r"[ \t]*\(")
_NUMBER_TAIL = re.compile(r"[A-Za-z0-9_]+(?:\.(?!\.)[A-Za-z0-9_]*)*|(?:\.(?!\.)[A-Za-z0-9_]*)+")


class BadToken(SourceToken):
    """A token that no rule takes, and why it is wrong."""

    __slots__ = ("diagnostic",)

    diagnostic: Diagnostic


@dataclass(slots=True)
class Scanned:
    """What the scan of a text found: the partner of each opening bracket, and the comments."""

    source: SourceText
    partner: dict[int, int] = field(default_factory=dict)
    comments: list[ast.Comment] = field(default_factory=list)


# --- the scan ------------------------------------------------------------------------------------------


def check_size(name: str, text: str) -> None:
    """PF102 for a text over `MAX_SOURCE_BYTES` (as UTF-8)."""
    size = len(text)
    if size <= MAX_SOURCE_BYTES and not text.isascii():
        size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        end = min(len(text), MAX_SOURCE_BYTES)
        source = SourceText(name, text[: end + 100])
        raise DslError(
            f"the source is too long: more than {MAX_SOURCE_BYTES:,} bytes",
            code="PF102",
            span=Span(source, end - 1, end),
            hint="split it into files and use import",
        )


def prescan(source: SourceText) -> Scanned:
    """Checks brackets, characters and strings in one pass; collects comments; raises what it found."""
    scanned = Scanned(source)
    found = Diagnostics()
    stack: list[int] = []
    for match in _INTERESTING.finditer(source.text):
        head, start = source.text[match.start()], match.start()
        if match["fine"]:
            continue
        if head in "([{":
            _open_bracket(source, stack, start)
        elif head in ")]}":
            _close_bracket(scanned, stack, start)
        elif head == "#":
            scanned.comments.append(_comment(source, match))
            _check_inside(source, match, found)
        elif head == '"':
            _check_inside(source, match, found)
            _check_string(source, match, found)
        else:
            _illegal(source, start, found)
        if len(found.found) >= MAX_ERRORS:
            break
    else:
        if stack and not found.errors:
            opener = source.text[stack[-1]]
            found.error(
                "PF106",
                f"'{opener}' is never closed",
                Span(source, stack[-1], stack[-1] + 1),
                f"add the missing '{CLOSER_OF[opener]}'",
                ((_end_of(source), "the text ends here"),),
            )
    found.raise_if_errors()
    return scanned


def _end_of(source: SourceText) -> Span:
    end = len(source.text.rstrip())
    return Span(source, max(0, end - 1), end)


def _open_bracket(source: SourceText, stack: list[int], start: int) -> None:
    stack.append(start)
    if len(stack) > MAX_BRACKETS:
        raise DslError(
            f"nested too deep: more than {MAX_BRACKETS} brackets are open",
            code="PF103",
            span=Span(source, start, start + 1),
            hint="give a part of the expression a name in a statement of its own",
        )


def _close_bracket(scanned: Scanned, stack: list[int], start: int) -> None:
    source = scanned.source
    closer = source.text[start]
    if not stack:
        raise DslError(
            f"'{closer}' closes nothing",
            code="PF106",
            span=Span(source, start, start + 1),
            hint="delete it, or add the bracket that it should close",
        )
    opened = stack.pop()
    opener = source.text[opened]
    if CLOSER_OF[opener] != closer:
        related = ((Span(source, opened, opened + 1), f"'{opener}' is opened here"),)
        message = f"'{closer}' cannot close '{opener}': expected '{CLOSER_OF[opener]}' first"
        hint = f"add the missing '{CLOSER_OF[opener]}' before it"
        place = Span(source, start, start + 1)
        raise DslError([Diagnostic("PF106", message, place, hint, related=related)])
    scanned.partner[opened] = start


def _comment(source: SourceText, match: re.Match[str]) -> ast.Comment:
    start = match.start()
    text = match.group().rstrip()
    line_start = source.text.rfind("\n", 0, start) + 1
    own_line = not source.text[line_start:start].strip(" \t")
    return ast.Comment(text, own_line, Span(source, start, start + len(text)))


def _check_inside(source: SourceText, match: re.Match[str], found: Diagnostics) -> None:
    """Control characters and the like inside a comment or a string."""
    if _PLAIN.fullmatch(match.group()):
        return
    text = match.group()
    for i, char in enumerate(text):
        lone_return = char == "\r" and source.text[match.start() + i + 1 : match.start() + i + 2] != "\n"
        if lone_return or refused_everywhere(char):
            _illegal(source, match.start() + i, found)
            if len(found.found) >= MAX_ERRORS:
                return


def _check_string(source: SourceText, match: re.Match[str], found: Diagnostics) -> None:
    text = match.group().rstrip("\r")
    if len(text) < 2 or not text.endswith('"'):
        span = Span(source, match.start(), match.start() + len(text))
        found.error("PF111", "this string has no end", span, "close it with '\"' on the same line")


def _illegal(source: SourceText, start: int, found: Diagnostics) -> None:
    message, hint = explain(source.text[start])
    found.error("PF104", message, Span(source, start, start + 1), hint)


# --- tokens --------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _pattern(terminals: tuple[TerminalDef, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """One pattern with a group per terminal (longest first), and the keywords by spelling."""
    keywords = {t.pattern.value: t.name for t in terminals if t.pattern.value.isalpha()}
    others = [t for t in terminals if t.name not in keywords.values()]
    others.sort(key=lambda t: (-t.priority, isinstance(t.pattern, PatternStr), -t.pattern.max_width, t.name))
    return re.compile("|".join(f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in others)), keywords


class Tokenizer:
    """Cuts a scanned text into tokens. `terminals` are those of the grammar."""

    def __init__(self, scanned: Scanned, terminals: tuple[TerminalDef, ...]) -> None:
        self._scanned = scanned
        self._source = scanned.source
        self._text = scanned.source.text
        self._match = _pattern(terminals)[0].match
        self._keywords = _pattern(terminals)[1]
        self._open: list[str] = []
        self._previous: SourceToken | None = None

    def __iter__(self) -> Iterator[SourceToken]:
        text, position = self._text, 0
        while True:
            skip = _SKIP.match(text, position)
            if skip:
                if "\n" in skip.group() and self._ends_statement(skip.end()):
                    yield self._emit("END", position, position)
                position = skip.end()
            if position >= len(text):
                return
            token = self._next(position)
            position = token.end_pos
            if token.type != "END" or self._previous is None or self._previous.type not in ("END", "LBRACE"):
                self._previous = token
                yield token

    def _ends_statement(self, following: int) -> bool:
        """Whether a newline ends a statement after the last token and before what stands at `following`."""
        directly_in_body = bool(self._open) and self._open[-1] == "{"
        if not directly_in_body or self._previous is None or self._previous.type in CONTINUES:
            return False
        return _CONTINUATION.match(self._text, following) is None

    def _emit(self, type_: str, start: int, end: int) -> SourceToken:
        token = self._token(type_, start, end)
        self._previous = token
        return token

    def _token(self, type_: str, start: int, end: int) -> SourceToken:
        token = SourceToken(type_, self._text[start:end], start, end_pos=end)
        token.source = self._source
        token.depth = len(self._open)
        return token

    def _bad(self, code: str, message: str, start: int, end: int, hint: str | None) -> BadToken:
        token = BadToken("BAD", self._text[start:end], start, end_pos=end)
        token.source = self._source
        token.depth = len(self._open)
        token.diagnostic = Diagnostic(code, message, Span(self._source, start, end), hint)
        return token

    def _next(self, start: int) -> SourceToken:
        match = self._match(self._text, start)
        if match is None or match.lastgroup is None:
            return self._no_token(start)
        kind, end = match.lastgroup, match.end()
        match kind:
            case "NAME":
                return self._word(start, end)
            case "INT" | "FLOAT":
                return self._number(kind, start, end)
            case "SCATTER" if self._text[start] != "+" and not self._after_operand():
                return self._word(start, end - 1)
            case "BIT_AND" | "BIT_OR" if self._text[end : end + 1] == self._text[start]:
                return self._no_token(start)
            case "LPAR" | "LSQB" | "LBRACE":
                self._open.append(self._text[start])
            case "RPAR" | "RSQB" | "RBRACE":
                self._open.pop()
        return self._token(kind, start, end)

    def _no_token(self, start: int) -> SourceToken:
        char = self._text[start]
        if char == ";":
            return self._token("END", start, start + 1)
        if char == "." and self._text[start + 1 : start + 2].isdigit():
            tail = _NUMBER_TAIL.match(self._text, start)
            return self._bad_number(start, tail.end() if tail else start + 1)
        message, hint = explain(char)
        end = start + 1
        if char in "&|" and self._text[end : end + 1] == char:
            end += 1
            message = f"'{char * 2}' is not part of the language"
        if char == "?" and _DEFAULT_FOLLOWS.match(self._text, end):
            hint = "an optional parameter has no default: it may be left out"
        return self._bad("PF104", message, start, end, hint)

    # --- numbers

    def _number(self, kind: str, start: int, end: int) -> SourceToken:
        tail = _NUMBER_TAIL.match(self._text, end)
        if tail:
            return self._bad_number(start, tail.end())
        digits = self._text[start:end]
        hexadecimal = digits[:2].lower() == "0x"
        if kind == "INT" and len(digits) > 1 and digits[0] == "0" and not hexadecimal:
            hint = f"write {digits.lstrip('0_') or '0'}"
            return self._bad("PF110", "a number may not begin with 0", start, end, hint)
        if (
            digits.endswith("_")
            or digits[1:3] in ("x_", "X_")
            or "__" in digits
            or "_." in digits
            or "._" in digits
            or ("_e" in digits.lower() and not hexadecimal)
        ):
            hint = "'_' may only stand between two digits"
            return self._bad("PF110", "this number is not well formed", start, end, hint)
        if kind == "INT" and (len(digits) > 40 or int(digits, 0 if hexadecimal else 10) > UINT64_MAX):
            message = "this integer is too large: literals go up to 2**64 - 1"
            return self._bad("PF105", message, start, end, "write it as a float, as in 1e20")
        if kind == "FLOAT" and float(digits) == float("inf"):
            return self._bad("PF105", "this number is too large for f64", start, end, None)
        return self._token(kind, start, end)

    def _bad_number(self, start: int, end: int) -> SourceToken:
        text = self._text[start:end]
        if re.fullmatch(r"[0-9_]*\.|\.[0-9_]+(?:[eE][0-9]*)?", text):
            message, hint = "a float has digits on both sides of its point", "write 1.0 or 0.5"
        elif suffixed := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)[fF]", text):
            number = suffixed[1] if "." in suffixed[1] else f"{suffixed[1]}.0"
            message, hint = "a number has no suffix: it takes the type that it meets", f"write {number}"
        elif re.match(r"[0-9_]+[A-Za-z]", text):
            message, hint = (
                f"'{text[:40]}' is neither a number nor a name",
                "names begin with a letter or '_'",
            )
        else:
            message, hint = "this number is not well formed", None
        return self._bad("PF110", message, start, end, hint)

    # --- words

    def _after_operand(self) -> bool:
        return self._previous is not None and self._previous.type in OPERAND_END

    def _word(self, start: int, end: int) -> SourceToken:
        word = self._text[start:end]
        kind = self._keywords.get(word) or ALTERNATIVE_SPELLINGS.get(word)
        if kind is not None and (kind not in SOFT_KEYWORDS or self._is_keyword(kind, end)):
            return self._token(kind, start, end)
        if self._heads_reduction(end):
            if word in REDUCTIONS:
                return self._token("REDUCTION", start, end)
            hint = reduction_hint(word) or f"reductions are {', '.join(REDUCTIONS)}"
            message = f"'{word}' is not a reduction, and a subscripted tensor cannot be called"
            return self._bad("PF109", message, start, end, hint)
        return self._token("NAME", start, end)

    def _heads_reduction(self, end: int) -> bool:
        """Whether ``[...]`` follows at once and ``(`` after it on the same line."""
        bracket = _BRACKET_FOLLOWS.match(self._text, end)
        if bracket is None or (self._previous is not None and self._previous.type in ("OP", "COLON")):
            return False
        close = self._scanned.partner[bracket.end() - 1]
        return _CALL_FOLLOWS.match(self._text, close + 1) is not None

    def _is_keyword(self, kind: str, end: int) -> bool:
        """Whether a soft keyword is one here; a name stands where an operand is expected."""
        previous = self._previous.type if self._previous is not None else "END"
        match kind:
            case "OP" | "FN" | "IMPORT" | "WHERE":
                waits = previous in CONTINUES | {"OP", "FN", "WHERE"}
                return not self._open and (not waits or (previous == "END" and kind != "WHERE"))
            case "LET":
                at_start = previous in ("END", "LBRACE") and self._open[-1:] == ["{"]
                return at_start and _NAME_FOLLOWS.match(self._text, end) is not None
            case "INOUT":
                in_list = previous in ("LPAR", "_COMMA") and self._open == ["("]
                return in_list and _NAME_FOLLOWS.match(self._text, end) is not None
            case _:
                return previous == "NAME"
