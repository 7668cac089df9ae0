"""A long C++ source as several translation units, so that compilers work on it side by side.

    head        the prelude and macros: in every unit
    functions   each starts at the margin, as `codegen.cpu.emit` prints it
                  static ... void f_body(...)   stays with all that call it
                  PF_EXPORT void f(...)         is declared in units that call it and do not have it

Units are about equally long; what follows from the source alone is the same everywhere.  A source of any
other form is one unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEAD_END = re.compile(r"^#define PF_EXPORT .*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^(static __attribute__\(\(noinline\)\)|PF_EXPORT) void (\w+)\(", re.MULTILINE)
# Constants of the prelude that a compiler may not look into: units agree on one of them.
_LIMIT = re.compile(r"^#define PF_LIMIT .*$", re.MULTILINE)
_SHARED_LIMIT = '#define PF_LIMIT __attribute__((visibility("hidden"), weak))'
_WORD = re.compile(r"\w+")
_PARAMETERS = "(char* const* buf, const pf_i64* num, char* scratch, pf_i64 begin, pf_i64 end)"


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    exported: bool
    text: str

    @property
    def words(self) -> set[str]:
        return set(_WORD.findall(self.text))


def units_of(source: str, count: int) -> list[str]:
    """At most `count` translation units that make the same library as the source."""
    end = _HEAD_END.search(source)
    if end is None or count < 2:
        return [source]
    head, functions = source[: end.end()], _functions(source[end.end() :])
    if functions is None or len(functions) < 2:
        return [source]
    head = _LIMIT.sub(_SHARED_LIMIT, head)
    shares = _shares(_groups(functions), count)
    return [_unit(head, share, functions) for share in shares] if len(shares) > 1 else [source]


def _functions(text: str) -> list[_Function] | None:
    """The functions of a text that consists of such; None where it does not."""
    starts = list(_FUNCTION.finditer(text))
    if not starts or text[: starts[0].start()].strip():
        return None
    ends = [*(m.start() for m in starts[1:]), len(text)]
    found = [
        _Function(m[2], m[1] == "PF_EXPORT", text[m.start() : e]) for m, e in zip(starts, ends, strict=True)
    ]
    # Anything else at the margin is no part of a function.
    plain = all(f.text.rstrip().endswith("\n}") and f.text.count("\n}") == 1 for f in found)
    return found if plain else None


def _groups(functions: Sequence[_Function]) -> list[list[_Function]]:
    """Functions that must be in one unit: those of this unit only, with all that call them."""
    first: dict[str, int] = {f.name: k for k, f in enumerate(functions) if not f.exported}
    leader = list(range(len(functions)))

    def find(k: int) -> int:
        while leader[k] != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    for k, f in enumerate(functions):
        for other in f.words & first.keys():
            a, b = find(k), find(first[other])
            leader[max(a, b)] = min(a, b)
    groups: dict[int, list[_Function]] = {}
    for k, f in enumerate(functions):
        groups.setdefault(find(k), []).append(f)
    return list(groups.values())


def _shares(groups: Sequence[list[_Function]], count: int) -> list[list[_Function]]:
    """The longest group first, each to the share with the least text."""
    count = min(count, len(groups))
    shares: list[list[_Function]] = [[] for _ in range(count)]
    sizes = [0] * count
    for group in sorted(groups, key=lambda g: -_length(g)):
        least = sizes.index(min(sizes))
        shares[least] += group
        sizes[least] += _length(group)
    return shares


def _length(group: Sequence[_Function]) -> int:
    return sum(len(f.text) for f in group)


def _unit(head: str, share: Sequence[_Function], functions: Sequence[_Function]) -> str:
    own = {f.name for f in share}
    needed = {w for f in share for w in f.words} - own
    declared = [f"PF_EXPORT void {f.name}{_PARAMETERS};" for f in functions if f.name in needed]
    ordered = [f.text for f in functions if f.name in own]
    return "\n".join([head, *declared, "", *ordered])
