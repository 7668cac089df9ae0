"""What to say about a character that cannot be part of a program.

Outside comments and strings a program is printable ASCII, tabs and newlines.  Control characters,
half surrogates, line separators and characters that turn the writing direction are refused everywhere:
they would make a text look different from what it says.
"""

from __future__ import annotations

import unicodedata

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
    "&": "write 'and' between bools; of an integer, k % 2 is the lowest bit and k // 2 all others",
    "|": "write 'or' between bools; numbers without common bits are added",
    "!": "write 'not', or '!=' to compare",
    "^": "write '**' for a power",
    "~": "write 'not' of a bool, -1 - k of an integer",
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
