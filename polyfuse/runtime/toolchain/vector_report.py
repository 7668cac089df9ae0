"""Which innermost loops of a source the compiler did not vectorise, from its own report.

    kernel.cpp:81:34: missed: couldn't vectorize loop
    kernel.cpp:85:15: missed: not vectorized: unsupported use in stmt.

gcc writes such lines (`-fopt-info-vec`) beside the code that it makes; what they say of the loops of kernels
is kept with that code, so that what comes from the cache has it as well.  Loops in functions of the prelude,
which end up in many kernels, and loops around others are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from polyfuse.decisions import Decision

# The file of an entry of the cache.
REPORT = "vectors.json"
_LINE = re.compile(r"^[^:\n]+:(\d+):\d+: (missed|optimized): (.*)$", re.MULTILINE)
_HEAD_END = re.compile(r"^#define PF_EXPORT .*$", re.MULTILINE)
_FUNCTION = re.compile(r"^static [^\n]* void (?:pf_)?(\w+?)(?:_body)?\(")
_LOOP = re.compile(r"\bfor \((?:(?:const )?\w+ (\w+)|; (\w+))")
_WRITTEN = re.compile(r"^\s*b_(\w+)\[.*?\] = ")
_WHY = "not vectorized: "


@dataclass(frozen=True, slots=True)
class Missed:
    """A loop over `var` in a function, which writes these tensors, and what the compiler says of it."""

    function: str
    var: str
    writes: tuple[str, ...]
    why: str


def flag(report: str) -> str:
    """What has gcc write its report to a file."""
    return f"-fopt-info-vec-optimized-missed={report}"


def missed(unit: str, report: str) -> list[Missed]:
    """The innermost loops of a translation unit's kernels that a report says were not vectorised."""
    done: set[int] = set()
    why: dict[int, str] = {}
    last = 0
    for line, kind, text in ((int(m[1]), m[2], m[3]) for m in _LINE.finditer(report)):
        if kind == "optimized" and "loop vectorized" in text:
            done.add(line)
        elif text == "couldn't vectorize loop":
            last = line
            why.setdefault(line, "")
        elif text.startswith(_WHY) and last:
            why[last] = why[last] or text.removeprefix(_WHY).rstrip(". ")
            last = 0
    head = _HEAD_END.search(unit)
    lines = unit.splitlines()
    first = unit[: head.end()].count("\n") + 1 if head else len(lines)
    places = sorted(n for n in why.keys() - done if first < n <= len(lines))
    found = [_found(lines, n - 1, why[n] or "it gives no reason") for n in places]
    return [x for x in dict.fromkeys(found) if x is not None]


def _found(lines: Sequence[str], at: int, why: str) -> Missed | None:
    """The loop of a line; None where it is no innermost one."""
    loop = _LOOP.search(lines[at])
    if loop is None:
        return None
    margin = len(lines[at]) - len(lines[at].lstrip())
    body: list[str] = []
    for line in lines[at + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            break
        body.append(line)
    if any(_LOOP.search(line) or "while (" in line for line in body):
        return None
    writes = (m[1] for line in body if (m := _WRITTEN.match(line)))
    above = (m[1] for line in reversed(lines[:at]) if (m := _FUNCTION.match(line)))
    return Missed(next(above, ""), loop[1] or loop[2], tuple(dict.fromkeys(writes)), why)


def to_json(found: Iterable[Missed]) -> bytes:
    return json.dumps([asdict(x) for x in found]).encode()


def not_vectorised(folder: Path) -> tuple[Decision, ...]:
    """What the entry of the cache with a shared object says, as lines of `explain()`; nothing where the
    compiler reports nothing."""
    try:
        found = json.loads((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return ()
    return tuple(
        Decision(
            "vectorise",
            x["function"],
            False,
            f"the loop over {x['var']}{_writing(x['writes'])} is no vector loop; gcc: {x['why']}",
        )
        for x in found
    )


def _writing(tensors: Sequence[str]) -> str:
    return f" that writes {', '.join(tensors)}" if tensors else ""
