"""A program that fails made smaller: as few statements and results, and as plain a way, as still fail.

    print(reduced(failure, lambda call, way: first_failure([(call, way)])))

Lines and results of the text are left out one by one, and right sides become a number.  What is no program
any more, and what fails in another manner, does not count.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from drawn_ways import DrawnWay
from targets import Call
from ways import CompiledWay, Failure

from polyfuse.diagnostics import PolyfuseError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text

Judge = Callable[[Call, CompiledWay], Failure | None]
NUMBERS = ("0.25", "3")
_RIGHT = re.compile(r"(\s*\w+\[.*?\] = )(.*?)( for .*)")
_OPTIONAL = re.compile(r"(\w+): \w+\[[^\]]*\]\?")
_RESULTS = re.compile(r"-> \((.*)\)")


def reduced(failure: Failure, judge: Judge, seconds: float = 90.0) -> Failure:
    """The smallest failure of the same kind that is found in so many seconds."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        for call, way in _simpler(failure):
            if time.monotonic() > last:
                break
            if (found := _judged(judge, call, way)) and found.kind == failure.kind:
                failure = found
                break
        else:
            return failure
    return failure


def _judged(judge: Judge, call: Call, way: CompiledWay) -> Failure | None:
    try:
        return judge(call, way)
    except Exception:  # what the reference cannot evaluate is no program to report
        return None


def _simpler(failure: Failure) -> Iterator[tuple[Call, CompiledWay]]:
    """Programs and ways with one thing less."""
    call, way = failure.call, failure.way
    for text in shorter_texts(call.text):
        try:
            absent = [name for name in _OPTIONAL.findall(text) if name not in call.inputs]
            op = next(iter(re.findall(r"op (\w+)", text)))
            graph = instantiate(parse_text(text), op, absent=absent)
        except PolyfuseError:
            continue
        used = {n: a for n, a in call.inputs.items() if n in graph.inputs or n in graph.outputs}
        sizes = {n: v for n, v in call.sizes.items() if n in graph.sizes}
        yield replace(call, text=text, graph=graph, inputs=used, sizes=sizes), way
    if isinstance(way, DrawnWay):
        yield from ((call, plain) for plain in way.plainer())


def shorter_texts(text: str) -> Iterator[str]:
    """The text of one operator without one result (and what defines it), without one line, or with a number
    on the right of one."""
    head, body = text.split("{\n", 1)
    lines = body.rstrip("}\n").split("\n")
    found = _RESULTS.search(head)
    results = re.split(r", (?=\w+: )", found[1]) if found else []
    for k, result in enumerate(results if len(results) > 1 else ()):
        fewer = head.replace(f"({', '.join(results)})", f"({', '.join(results[:k] + results[k + 1 :])})")
        name = result.split(":")[0]
        yield _joined(fewer, [x for x in lines if not re.match(rf"\s*(let )?{name}\b", x)])
        yield _joined(fewer, lines)
    for k in range(len(lines)):
        yield _joined(head, lines[:k] + lines[k + 1 :])
    for k, line in enumerate(lines):
        if (found := _RIGHT.fullmatch(line)) and found[2] not in NUMBERS:
            for number in NUMBERS:
                yield _joined(head, [*lines[:k], found[1] + number + found[3], *lines[k + 1 :]])


def _joined(head: str, lines: list[str]) -> str:
    return head + "{\n" + "\n".join(lines) + "\n}\n"
