"""C++ and CUDA C++ with local names numbered: texts that differ in those alone become the same.

    for (int c0 = 0; c0 < 9; ++c0) b_y[c0] = pf_exp_f32(b_x[c0]);   // b_x, b_y: parameters
    for (int v2 = 0; v2 < 9; ++v2) v1[v2] = pf_exp_f32(v0[v2]);

A name is numbered where it is declared, inside a function or among its parameters, by how many names are
visible there.  What is declared elsewhere stays: functions, macros, types of the prelude.  Comments go, but
for the flags that a source asks for.  What this reader of emitted code does not understand stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<flag>//\ needs\ [^\n]*) | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<directive>\#(?:[^\n\\]|\\.)*)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)
    | (?P<type>pf_\w+<[\w\s,]*>|PF_(?:IN|OUT|INOUT)\([^()]*\))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TYPES = _words("auto bool char const double float int long short signed unsigned void")
_KEYWORDS = _TYPES | _words(
    """asm break case constexpr continue default do else enum extern for goto if inline new operator return
    sizeof static static_assert struct switch template typedef typename using volatile while"""
)
# What declares the names in brackets after it.
_DECLARE = _words("enum PF_SHARED PF_DYNAMIC")
# After these a name is used, not declared.
_NO_TYPES = _words("case else goto new operator return sizeof")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class _Unread(Exception):
    """Something that this reader does not understand."""


def normal(text: str) -> str:
    """The text with local names numbered, without comments, indentation and empty lines."""
    lines = (line.strip() for piece in _pieces(text) for line in _renamed(piece).splitlines())
    return "\n".join(line for line in lines if line)


def _pieces(text: str) -> Iterator[str]:
    """Whole functions: pieces between empty lines, as many together as close what they open."""
    piece = ""
    for part in text.split("\n\n"):
        piece += part + "\n"
        if piece.count("{") == piece.count("}"):
            yield piece
            piece = ""
    yield piece


@lru_cache(maxsize=4096)
def _renamed(piece: str) -> str:
    tokens = [(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(piece)]
    reader = _Reader([(kind, word) for kind, word in tokens if kind != "comment"])
    try:
        reader.read()
    except (_Unread, IndexError):
        return "".join(word for _, word in reader.tokens)
    return "".join(reader.out)


@dataclass(slots=True)
class _Reader:
    """Reads statements, and writes what it reads with numbers for names."""

    tokens: Sequence[tuple[str, str]]
    out: list[str] = field(default_factory=list)
    at: int = 0
    scopes: list[dict[str, str]] = field(default_factory=list)
    # The last two words of the statement.
    last: tuple[str, str] = ("", "")

    def read(self) -> None:
        """All of a piece: functions and what else is at the top level."""
        while self._next() is not None:
            self.scopes.append({})
            if self._simple(top=True):
                self._block()
            self.scopes.pop()

    # --- statements ------------------------------------------------------------------------------------

    def _block(self) -> None:
        self.scopes.append({})
        self._take("{")
        while self._next() != "}":
            self._statement()
        self._take("}")
        self.scopes.pop()

    def _statement(self) -> None:
        match self._next():
            case "{":
                self._block()
            case "for" | "if" | "while" | "switch":
                self.scopes.append({})
                self._headed()
                self.scopes.pop()
            case "else":
                self._take("else")
                self._statement()
            case word if word is not None and (word.startswith("#") or self._is_mark_of_loop(word)):
                self._take()
                if word == "_Pragma":
                    self._group("(")
            case _:
                self._simple()

    def _headed(self) -> None:
        """A loop or a condition: what its head declares is known in its body."""
        self._take()
        if self._next() == "constexpr":
            self._take()
        self._group("(")
        while (word := self._next()) is not None and (word.startswith("#") or self._is_mark_of_loop(word)):
            self._take()
        self._statement()

    @staticmethod
    def _is_mark_of_loop(word: str) -> bool:
        """A macro or pragma before a loop."""
        return word in ("PF_IVDEP", "PF_ROLLED", "PF_UNROLLED", "_Pragma")

    def _simple(self, top: bool = False) -> bool:
        """Up to the end of a statement, or to the body of a function; whether there is one."""
        self.last = ("", "")
        declares = False
        while (word := self._next()) is not None:
            if word == ";":
                self._take()
                return False
            if word == "{" and top and self.last[1] in (")", "const"):
                return True
            if word in _CLOSING:
                self._group(word, members=self.last[1] in _DECLARE)
            elif word in _CLOSING.values():
                raise _Unread
            elif top and word.startswith("#"):
                self._take()
                return False
            else:
                declares |= self._word(not top, declares)
        return False

    def _group(self, opening: str, members: bool = False) -> None:
        """What is between brackets; `members` declares names there."""
        before = self.last
        if opening == "{" and not members:
            self.scopes.append({})
        self._take(opening)
        self.last = ("", ",") if members else ("", "")
        declares, closing = members, _CLOSING[opening]
        while (word := self._next()) != closing:
            if word is None:
                raise _Unread
            if word in _CLOSING:
                self._group(word)
            elif word in _CLOSING.values():
                raise _Unread
            else:
                if word == ";":
                    declares = False
                declares |= self._word(opening != "[", declares)
        self._take(closing)
        if opening == "{" and not members:
            self.scopes.pop()
        if before[1] == "__attribute__":  # it comes between a type and a name, or before the type
            self.last = ("", before[0])
        if before[1] == "__typeof__":
            self.last = ("", "auto")

    # --- words -----------------------------------------------------------------------------------------

    def _next(self) -> str | None:
        """The word that comes; spaces before it are written."""
        while self.at < len(self.tokens) and self.tokens[self.at][0] in ("space", "flag"):
            self.out.append(self.tokens[self.at][1])
            self.at += 1
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    def _take(self, wanted: str | None = None) -> None:
        if wanted is not None and self._next() != wanted:
            raise _Unread
        word = self.tokens[self.at][1]
        self.out.append(word)
        self.last = (self.last[1], word)
        self.at += 1

    def _word(self, local: bool, declares: bool) -> bool:
        """Write a word; whether it is a name that is declared."""
        kind, word = self.tokens[self.at]
        if kind != "name" or word in _KEYWORDS or word.startswith(("pf_", "PF_", "_")):
            self._take()
            return False
        declared = local and (self._after_type() or (declares and self.last[1] == ","))
        if declared:
            self.scopes[-1].setdefault(word, f"v{sum(map(len, self.scopes))}")
        member = self.last[1] == "." or self.last == ("-", ">")
        known = next((scope[word] for scope in reversed(self.scopes) if word in scope and not member), word)
        self.out.append(known)
        self.last = (self.last[1], word)
        self.at += 1
        return declared

    def _after_type(self) -> bool:
        """Does a name come where a type was named?"""
        before, word = self.last
        if word in ("*", "&"):
            return before in _TYPES or before.startswith(("pf_", "PF_IN", "PF_OUT"))
        return bool(re.fullmatch(r"[A-Za-z_]\w*|(pf|PF)_.*[>)]", word)) and word not in _NO_TYPES
