"""Writes the table of identities in docs/explanation/cleanup.md from the rules of the clean-up.

python docs/build_identities.py            writes it
python docs/build_identities.py --check    fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

from polyfuse.layers.graph.cleanup.identities import RULES

TARGET = Path(__file__).parent / "explanation" / "cleanup.md"
BEGIN, END = "<!-- identities -->\n", "<!-- end -->\n"
KINDS = {"numbers": "floats, integers", "signed": "floats, signed integers", "any": "all"}


def table() -> str:
    """A row for the rules that hold for one kind of numbers, and for one reason."""
    rows: dict[tuple[str, str], list[str]] = {}
    for rule in RULES:
        rows.setdefault((rule.kind, rule.why), []).append(f"`{rule}`")
    lines = []
    for (kind, why), rules in rows.items():
        lines.append(f"| {', '.join(rules)} | {KINDS.get(kind, kind)} | {why} |")
    return "\n".join(["| rule | for | why it is exact |", "|---|---|---|", *lines]) + "\n"


def build() -> str:
    """The page with the table of today."""
    before, _, rest = TARGET.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))
