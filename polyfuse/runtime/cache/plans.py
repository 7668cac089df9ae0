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

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.decisions import Decision
from polyfuse.ir.contraction import MatrixProduct, Operand
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, ISize, IVar, as_index
from polyfuse.ir.launch_plan import (
    Argument,
    GridLaunch,
    GridPlan,
    Kind,
    Launch,
    LaunchPlan,
    Passing,
    PlanBuffer,
)
from polyfuse.runtime.cache.disk import Cache, cache_key, package_version, read_file, read_text
from polyfuse.source import SourceText, Span

FORMAT = "3"


@cache
def fingerprint() -> str:
    """Changes when a file of the package does, so that an edited compiler finds nothing old."""
    root = Path(__file__).resolve().parents[2]
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


def load_plan(key: str, source: SourceText) -> tuple[CpuCode | CudaCode, tuple[Decision, ...]] | None:
    """What was kept under a key. `source` is the program's text, which checks point into."""
    entry = Cache.open_default().get(key)
    if entry is None:
        return None
    try:
        text = read_text(entry / "kernels.cpp")
        data = json.loads(read_file(entry / "plan.json"))
        checks = tuple((Span(source, a, b), extent) for a, b, extent in data["checks"])
        decisions = tuple(Decision(**d) for d in data["decisions"])
        if "alignment" in data:
            return CudaCode(text, _grid_plan(data), checks), decisions
        return CpuCode(text, _plan(data), checks), decisions
    except (OSError, ValueError, KeyError, TypeError):
        Cache.open_default().remove(key)
        return None


def keep_plan(key: str, code: CpuCode | CudaCode, decisions: tuple[Decision, ...], name: str) -> None:
    """Keep a compilation; expressions of open sizes are kept as lists."""
    data = {
        "buffers": [
            {
                "name": b.name,
                "dtype": b.dtype.name,
                "shape": [_value(e) for e in b.shape],
                "kind": b.kind.value,
                "strided": b.strided,
                "alias": b.alias,
                "live": b.live and list(b.live),
            }
            for b in code.plan.buffers
        ],
        "copied": list(code.plan.copied),
        "sizes": list(code.plan.sizes),
        "checks": [[span.start, span.end, known] for span, known in code.checks],
        "decisions": [asdict(d) for d in decisions],
        **(_grid_data(code.plan) if isinstance(code, CudaCode) else _cpu_data(code.plan)),
    }
    files = {"kernels.cpp": code.source.encode(), "plan.json": json.dumps(data).encode()}
    Cache.open_default().put(key, files, {"kind": "plan", "operator": name})


def _cpu_data(plan: LaunchPlan) -> dict[str, Any]:
    launches = [
        [
            x.function,
            x.kernel,
            [_value(e) for e in (x.count, x.instances, x.work)],
            x.parallel,
            x.library and asdict(x.library),
            x.together,
            x.series,
            x.rounds,
            x.least,
        ]
        for x in plan.launches
    ]
    run = {"chunks": plan.chunks, "threads": plan.threads}
    return {"launches": launches, "scratch_bytes": plan.scratch_bytes, **run}


def _grid_data(plan: GridPlan) -> dict[str, Any]:
    launches = [
        {
            "function": x.function,
            "kernel": x.kernel,
            "blocks": _value(x.blocks),
            "threads": list(x.threads),
            "shared_bytes": x.shared_bytes,
            "arguments": [[a.passing.value, a.name, a.dim] for a in x.arguments],
            "cooperative": x.cooperative,
            "dynamic_bytes": x.dynamic_bytes,
            "table": [[a.passing.value, a.name, a.dim] for a in x.table],
            "library": x.library and asdict(x.library),
        }
        for x in plan.launches
    ]
    return {"launches": launches, "alignment": [list(pair) for pair in plan.alignment]}


def _buffers(data: dict[str, Any]) -> tuple[PlanBuffer, ...]:
    return tuple(
        PlanBuffer(
            b["name"],
            BY_NAME[b["dtype"]],
            tuple(map(_expression, b["shape"])),
            Kind(b["kind"]),
            bool(b["strided"]),
            b["alias"],
            (int(b["live"][0]), int(b["live"][1])) if b["live"] else None,
        )
        for b in data["buffers"]
    )


def _grid_plan(data: dict[str, Any]) -> GridPlan:
    launches = tuple(
        GridLaunch(
            x["function"],
            x["kernel"],
            _expression(x["blocks"]),
            (int(x["threads"][0]), int(x["threads"][1])),
            int(x["shared_bytes"]),
            tuple(Argument(Passing(how), name, int(dim)) for how, name, dim in x["arguments"]),
            bool(x["cooperative"]),
            int(x["dynamic_bytes"]),
            tuple(Argument(Passing(how), name, int(dim)) for how, name, dim in x["table"]),
            x["library"] and _product(x["library"]),
        )
        for x in data["launches"]
    )
    alignment = tuple((name, int(nbytes)) for name, nbytes in data["alignment"])
    return GridPlan(_buffers(data), launches, alignment, tuple(data["sizes"]), tuple(data["copied"]))


def _plan(data: dict[str, Any]) -> LaunchPlan:
    launches = tuple(
        Launch(
            f,
            k,
            _expression(c),
            _expression(n),
            _expression(w),
            p,
            lib and _product(lib),
            tuple(together),
            *more,
        )
        for f, k, (c, n, w), p, lib, together, *more in data["launches"]
    )
    return LaunchPlan(
        _buffers(data),
        launches,
        int(data["scratch_bytes"]),
        tuple(data["sizes"]),
        tuple(data["copied"]),
        data["chunks"],
        data["threads"],
    )


def _product(data: dict[str, Any]) -> MatrixProduct:
    left, right, out = (
        Operand(x["tensor"], *(tuple(map(int, x[group])) for group in ("batch", "outer", "inner")))
        for x in (data["left"], data["right"], data["out"])
    )
    return MatrixProduct(left, right, out, int(data["products"]))


def _value(e: IndexExpr) -> int | str | list[Any]:
    """A number, the name of a size, or an operation with its operands."""
    match e:
        case IConst(value):
            return value
        case ISize(name):
            return name
        case IBin(op, left, right):
            return [op, _value(left), _value(right)]
        case IVar():
            raise AssertionError("a plan has no loop variables")


def _expression(value: int | str | list[Any]) -> IndexExpr:
    """What `_value` made a value of."""
    if isinstance(value, list):
        op, left, right = value
        return IBin(str(op), _expression(left), _expression(right))
    return ISize(value) if isinstance(value, str) else as_index(value)


# --- what failed before -----------------------------------------------------------------------------------

# What failed in earlier compilations and what was done about it, in the cache on disk.
#
# One small file for each form of a cluster that failed; `polyfuse.driver.feedback` says what is in it.


_FILE = "lesson.txt"


class KeptLessons:
    """Lessons of this version of polyfuse, by the form of a cluster."""

    def recall(self, key: str) -> str | None:
        """What to do with a cluster that failed before, or None."""
        entry = Cache.open_default().get(plan_key([("lesson", key)]))
        if entry is None:
            return None
        try:
            return read_text(entry / _FILE)
        except OSError:
            return None

    def keep(self, key: str, lesson: str) -> None:
        """Remember what to do."""
        Cache.open_default().put(plan_key([("lesson", key)]), {_FILE: lesson.encode()}, {"kind": "lesson"})
