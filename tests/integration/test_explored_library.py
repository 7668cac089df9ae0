"""The explorer on every operator of the standard library, and on ten wrong programs: what each tab shows.

As a script it prints figures:  python tests/integration/test_explored_library.py [cpu] [cuda]
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest

from polyfuse.explore.child import answer
from polyfuse.explore.programs import VIEWS

SIZES_OF_RUNS = 1 << 12
WRONG = {
    "brace": ("op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i]", "PF106", 1),
    "name": ("op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = z[i]\n}", "PF201", 2),
    "function": ("op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = exq(x[i])\n}", "PF202", 2),
    "indices": ("op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = x[i, i]\n}", "PF204", 2),
    "types": ("op f(x: f32[N], k: i32[N]) -> (y: f32[N]) {\n  y[i] = x[i] + k[i]\n}", "PF205", 2),
    "cycle": ("op f(x: f32[N]) -> (y: f32[N]) {\n  a[i] = b[i]\n  b[i] = a[i]\n  y[i] = a[i]\n}", "PF207", 2),
    "never": ("op f(x: f32[N]) -> (y: f32[N], z: f32[N]) {\n  y[i] = x[i]\n}", "PF208", 1),
    "range": ("op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = x[i + 1]\n}", "PF350", 2),
    "import": ('import "other.pf"\nop f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = x[i]\n}', "PF107", 1),
    "character": ("op f(x: f32[N]) -> (y: f32[N]) {\n  y[i] = x[i] − 1.0\n}", "PF104", 2),
}
"""Programs with the code of their first error and its line."""


def asked(do: str, text: str, **more: Any) -> dict[str, Any]:
    """What the page gets."""
    view = more.pop("view", None)
    request = {"do": do, "view": view, "state": {"text": text, **more}, "name": "page.pf", "folder": ""}
    found: dict[str, Any] = json.loads(answer(json.dumps(request)))
    return found


@cache
def library() -> dict[str, str]:
    return {op["name"]: op["text"] for f in asked("library", "")["library"] for op in f["ops"]}


def looked_through(name: str, target: str) -> dict[str, float]:
    """Seconds of each tab of an operator; what it shows is checked."""
    text, seconds = library()[name], {}
    found = asked("check", text)
    assert not [d for d in found["found"] if d["severity"] == "error"], found["found"]
    assert found["controls"]["op"] == name
    for view in VIEWS:
        start = time.perf_counter()
        more = {"sizes": small(found)} if view == "run" else {}
        shown = asked("view", text, view=view, target=target, **more)
        seconds[view] = time.perf_counter() - start
        assert "parts" in shown, (view, shown)
        check(view, target, shown["parts"])
    return seconds


def small(found: dict[str, Any]) -> dict[str, int]:
    """Sizes that are as small for a run as constraints let them be."""
    return {s["name"]: s["default"] for s in found["controls"]["sizes"] if s["default"] <= 8}


def check(view: str, target: str, parts: list[dict[str, Any]]) -> None:
    kinds = {p["kind"] for p in parts}
    wanted = {"decisions": {"decisions"}, "code": {"code"}, "run": {"note"}, "kernels": {"picture", "table"}}
    assert kinds >= wanted.get(view, {"note"} if view == "domains" else {"picture"}), (view, kinds)
    tones = [p for p in parts if p["kind"] == "note" and p["tone"] == "bad"]
    assert not tones or (view, target) == ("run", "cuda"), tones
    for p in parts:
        if p["kind"] == "picture":
            ElementTree.fromstring(p["svg"])
        if p["kind"] == "code":
            from_text = [line for line, o in zip(p["lines"], p["origins"], strict=True) if o]
            assert from_text and len(p["lines"]) == len(p["origins"])
            assert all(s["label"] for s in p["statements"])
    if (view, target) == ("run", "cpu"):
        verdicts = [row[1] for p in parts if p["kind"] == "table" for row in p["rows"]]
        assert verdicts and all(v == "agrees" or v.startswith("cannot be checked") for v in verdicts), (
            verdicts
        )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", sorted(library()))
def test_every_operator_of_the_library(name: str, target: str) -> None:
    looked_through(name, target)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs(name: str) -> None:
    text, code, line = WRONG[name]
    found = asked("check", text)
    first = min(found["found"], key=lambda d: d["from"])
    assert (first["code"], first["line"], first["placed"]) == (code, line, True), found
    assert "controls" not in found
    for view in VIEWS:
        shown = asked("view", text, view=view)
        assert code in [d["code"] for d in shown["errors"]] and "parts" not in shown, (view, shown)


def main() -> None:
    """All operators for the targets that are named, or for both; and the figures."""
    targets = sys.argv[1:] or ["cpu", "cuda"]
    failed, every = [], dict[str, list[float]]()
    for target in targets:
        for name in sorted(library()):
            try:
                for view, s in looked_through(name, target).items():
                    every.setdefault(f"{view} {target}", []).append(s)
            except AssertionError as error:
                failed.append(f"{name} {target}: {str(error)[:300]}")
                print(failed[-1], flush=True)
    for view, found in every.items():
        print(f"{view:16} median {sorted(found)[len(found) // 2]:6.2f} s   most {max(found):6.2f} s")
    print(f"{len(failed)} of {len(targets) * len(library())} failed")


if __name__ == "__main__":
    sys.exit(main())
