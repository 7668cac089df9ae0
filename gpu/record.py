"""Results of a run, item by item: one JSON, one table, both whole on disk after each item.

    {"about": {...}, "parts": {"bench": {"total": 40, "items": {"ln_fwd": {"status": "ok", ...}}}}}

A run that was stopped goes on where it stopped, unless the sources or the target have changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS, TABLE = "results.json", "table.md"
SOURCES = ("polyfuse", "gpu", "benchmarks", "tests", "grammars")
SUFFIXES = (".py", ".pf", ".h", ".cpp", ".lark")

Data = dict[str, Any]


def sources_digest(root: Path) -> str:
    """One hash of everything that results depend on."""
    state = hashlib.sha256()
    for folder in SOURCES:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in SUFFIXES:
                state.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return state.hexdigest()[:16]


class Record:
    """The results in `folder`; `table` makes the page of them. Used by several threads."""

    def __init__(self, folder: Path, identity: Mapping[str, str], table: Callable[[Data], str]) -> None:
        self.folder = folder
        self._table = table
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.data = self._earlier(dict(identity))

    def _earlier(self, identity: dict[str, str]) -> Data:
        file = self.folder / RESULTS
        if file.is_file():
            data: Data = json.loads(file.read_text(encoding="utf-8"))
            if data.get("identity") == identity:
                return data
            number = 1
            while (aside := self.folder / f"results-{number}.json").exists():
                number += 1
            file.rename(aside)
        return {"identity": identity, "about": {}, "parts": {}}

    def describe(self, **facts: Any) -> None:
        """Add facts about the machine and the run."""
        with self._lock:
            self.data["about"].update(facts)
            self._write()

    def plan(self, part: str, items: Sequence[str]) -> list[str]:
        """Say what a part consists of; returns what has no result yet."""
        with self._lock:
            kept = self.data["parts"].setdefault(part, {"total": 0, "items": {}})
            kept["total"] = len(items)
            self._write()
            return [name for name in items if name not in kept["items"]]

    def put(self, part: str, item: str, result: Mapping[str, Any]) -> None:
        """Keep the result of an item."""
        with self._lock:
            self.data["parts"][part]["items"][item] = dict(result)
            self._write()

    def statuses(self, part: str) -> list[str]:
        """Of the items that have a result."""
        return [r["status"] for r in self.data["parts"].get(part, {"items": {}})["items"].values()]

    def complete(self, parts: Iterable[str]) -> bool:
        """Has every item of these parts a result?"""
        known = [self.data["parts"].get(p) for p in parts]
        return all(k is not None and len(k["items"]) >= k["total"] for k in known)

    def _write(self) -> None:
        for name, text in (
            (RESULTS, json.dumps(self.data, indent=1) + "\n"),
            (TABLE, self._table(self.data)),
        ):
            new = self.folder / (name + ".new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, self.folder / name)
