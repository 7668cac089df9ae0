"""Results of a run, item by item: one JSON, and what is made of it, all whole on disk after each item.

    {"about": {...}, "parts": {"bench": {"total": 40, "items": {"ln_fwd": {"status": "ok", ...}}}}}

A run that was stopped goes on where it stopped, unless the sources or the target have changed since.  With
`keep`, results of earlier sources that were right stay, and say so; the others are made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
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
    """The results in `folder`; `table` makes the page of them, `more` other files of JSON, None for none.
    Used by several threads.

    `identity` is {"sources": ..., "target": ...}: what results are the results of.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, str],
        table: Callable[[Data], str],
        more: Mapping[str, Callable[[Data], Data | None]] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.folder = folder
        self._table, self._more = table, more or {}
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self.data = self._earlier(dict(identity), keep)
        self._planned: dict[str, set[str]] = {}

    def _earlier(self, identity: dict[str, str], keep: bool) -> Data:
        file = self.folder / RESULTS
        if file.is_file():
            data: Data = json.loads(file.read_text(encoding="utf-8"))
            before = data["identity"]
            if before == identity:
                return data
            if keep and before["target"] == identity["target"]:
                for part in data["parts"].values():
                    part["items"] = {
                        n: {"sources": before["sources"], **r}
                        for n, r in part["items"].items()
                        if r["status"] in ("ok", "skipped")
                    }
                return {**data, "identity": identity}
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
        """Say what is to be done of a part; returns what of it has no result yet."""
        with self._lock:
            kept = self.data["parts"].setdefault(part, {"total": 0, "items": {}})
            kept["total"] = len(set(items) | set(kept["items"]))
            self._planned[part] = set(items)
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

    def complete(self, part: str) -> bool:
        """Has everything that was planned of a part in this run a result?"""
        return self._planned.get(part, set()) <= set(self.data["parts"][part]["items"])

    def _write(self) -> None:
        made = {RESULTS: self.data, **{name: make(self.data) for name, make in self._more.items()}}
        texts = {name: json.dumps(data, indent=1) + "\n" for name, data in made.items() if data is not None}
        for name, text in {**texts, TABLE: self._table(self.data)}.items():
            new = self.folder / (name + ".new")
            new.write_text(text, encoding="utf-8")
            os.replace(new, self.folder / name)
