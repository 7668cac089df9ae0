"""Compilations that were made before: source, launch plan and decisions, by what they follow from.

The key is everything that a compilation depends on: the tensor graph with its sizes, the options and
passes, the number of workers, the files of polyfuse.  What is kept is text and JSON, never pickled
objects; an entry that cannot be read is thrown away and made anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from polyfuse.codegen.cpu import CpuCode
from polyfuse.decisions import Decision
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import IConst, IndexExpr
from polyfuse.ir.launch_plan import Kind, Launch, LaunchPlan, PlanBuffer
from polyfuse.runtime.cache import Cache, cache_key, package_version
from polyfuse.source import SourceText, Span

FORMAT = "1"


@cache
def fingerprint() -> str:
    """Changes when a file of the package does, so that an edited compiler finds nothing old."""
    root = Path(__file__).resolve().parent.parent
    files = sorted(p for p in root.rglob("*") if p.suffix in (".py", ".h", ".cpp", ".pf"))
    stats = [(str(p.relative_to(root)), (s := p.stat()).st_size, s.st_mtime_ns) for p in files]
    return hashlib.sha256(repr(stats).encode()).hexdigest()


def plan_key(parts: Sequence[tuple[str, str]]) -> str:
    """The key of a compilation with the given named parts."""
    return cache_key(
        [
            ("kind", "plan"),
            ("format", FORMAT),
            ("polyfuse", package_version()),
            ("files", fingerprint()),
            *parts,
        ]
    )


def load_plan(key: str, source: SourceText) -> tuple[CpuCode, tuple[Decision, ...]] | None:
    """What was kept under a key. `source` is the program's text, which checks point into."""
    entry = Cache.open_default().get(key)
    if entry is None:
        return None
    try:
        text = (entry / "kernels.cpp").read_text(encoding="utf-8")
        data = json.loads((entry / "plan.json").read_text(encoding="utf-8"))
        checks = tuple((Span(source, a, b), extent) for a, b, extent in data["checks"])
        decisions = tuple(Decision(**d) for d in data["decisions"])
        return CpuCode(text, _plan(data), checks), decisions
    except (OSError, ValueError, KeyError, TypeError):
        Cache.open_default().remove(key)
        return None


def keep_plan(key: str, code: CpuCode, decisions: tuple[Decision, ...], name: str) -> None:
    """Keep a compilation whose sizes are all known."""
    data = {
        "buffers": [
            {
                "name": b.name,
                "dtype": b.dtype.name,
                "shape": [_value(e) for e in b.shape],
                "kind": b.kind.value,
                "strided": b.strided,
                "alias": b.alias,
            }
            for b in code.plan.buffers
        ],
        "launches": [
            [x.function, x.kernel, _value(x.count), _value(x.instances), x.parallel]
            for x in code.plan.launches
        ],
        "scratch_bytes": code.plan.scratch_bytes,
        "copied": list(code.plan.copied),
        "checks": [[span.start, span.end, extent] for span, extent in code.checks],
        "decisions": [asdict(d) for d in decisions],
    }
    files = {"kernels.cpp": code.source.encode(), "plan.json": json.dumps(data).encode()}
    Cache.open_default().put(key, files, {"kind": "plan", "operator": name})


def _plan(data: dict[str, Any]) -> LaunchPlan:
    buffers = tuple(
        PlanBuffer(
            b["name"],
            BY_NAME[b["dtype"]],
            tuple(IConst(int(n)) for n in b["shape"]),
            Kind(b["kind"]),
            bool(b["strided"]),
            b["alias"],
        )
        for b in data["buffers"]
    )
    launches = tuple(
        Launch(f, k, IConst(int(count)), IConst(int(n)), bool(parallel))
        for f, k, count, n, parallel in data["launches"]
    )
    return LaunchPlan(buffers, launches, int(data["scratch_bytes"]), (), tuple(data["copied"]))


def _value(e: IndexExpr) -> int:
    assert isinstance(e, IConst), "a plan is kept only when all its sizes are known"
    return e.value
