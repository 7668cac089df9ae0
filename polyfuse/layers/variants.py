"""Variants of an operator's CPU code: the choices of passes and code generation, taken one way or another.

A variant is a set of named changes to what the passes would do on their own:

    Variant(("non-temporal stores", "prefetch 2 rows ahead"))

`proposals` lists those that can matter for a graph, the likeliest first; whether one changes the code at all
shows when it is printed (`polyfuse.tuning` measures equal code once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.index_expr import IConst, binary, variables
from polyfuse.ir.tensor_graph import EXPR_TYPES, Role, Statement, TensorGraph, depends_on, statement_reads
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.packing import Packing
from polyfuse.layers.rematerialise import tensor_bytes
from polyfuse.layers.stitching import Stitching

MODEL = "as the model has it"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a variant can change: the layers and the knobs of code generation."""

    fusion: LoopFusion | None
    stitching: Stitching | None
    packing: Packing | None
    knobs: CpuKnobs


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes by name, all of `CHANGES`; none: everything as the model has it."""

    changes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.changes) or MODEL

    def known(self) -> Variant:
        """Itself. Raises ValueError if a change is none of `CHANGES`."""
        for name in self.changes:
            if name not in CHANGES:
                raise ValueError(f"there is no change {name!r}")
        return self

    def of(self, base: Choices) -> Choices:
        """The choices with the changes made."""
        for name in self.changes:
            base = CHANGES[name](base)
        return base

    def joined(self, other: Variant) -> Variant | None:
        """Both at once; None where they change the same thing."""
        mine, theirs = (self.of(_NOTHING), other.of(_NOTHING))
        for part in ("fusion", "stitching", "packing", "knobs"):
            a, b, n = getattr(mine, part), getattr(theirs, part), getattr(_NOTHING, part)
            if part == "knobs":
                if any(getattr(a, f) != getattr(n, f) and getattr(b, f) != getattr(n, f) for f in _FIELDS):
                    return None
            elif a != n and b != n:
                return None
        return Variant((*self.changes, *other.changes))


# Longer rows are not tried several at a time: what they keep would not stay in registers and L1.
LONGEST_TOGETHER = 512
# Sums across rows below this share of L1 are not worth it either.
SHARE_OF_L1 = 4

Change = Callable[[Choices], Choices]


def _fusion(**fields: Any) -> Change:
    return lambda c: replace(c, fusion=c.fusion and replace(c.fusion, **fields))


def _stitching(**fields: Any) -> Change:
    return lambda c: replace(c, stitching=c.stitching and replace(c.stitching, **fields))


def _knobs(**fields: Any) -> Change:
    return lambda c: replace(c, knobs=replace(c.knobs, **fields))


CHANGES: Mapping[str, Change] = {
    "non-temporal stores": _knobs(stream=True),
    "plain stores": _knobs(stream=False),
    "no prefetch of rows": _knobs(ahead=0),
    "prefetch 1 row ahead": _knobs(ahead=1),
    "prefetch 2 rows ahead": _knobs(ahead=2),
    "prefetch 4 rows ahead": _knobs(ahead=4),
    "rows one by one": _knobs(rows=1),
    "unroll-and-jam of 2 rows": _knobs(rows=2),
    "unroll-and-jam of 4 rows": _knobs(rows=4),
    "unroll-and-jam of 16 rows": _knobs(jointly=True),
    "no unroll-and-jam of 16 rows": _knobs(jointly=False),
    "software pipelining": _knobs(skew=True),
    "no software pipelining": _knobs(skew=False),
    "128 bytes of accumulators": _knobs(lane_bytes=128),
    "512 bytes of accumulators": _knobs(lane_bytes=512),
    "1 chunk a thread": _knobs(chunks=1),
    "32 chunks a thread": _knobs(chunks=32),
    "1 thread": _knobs(threads=1),
    "kernels apart": lambda c: replace(c, stitching=None),
    "stitched wherever possible": _stitching(rows=1),
    "temporaries stored": _fusion(rematerialise=False),
    "reductions in one pass": _stitching(online=True),
    "reductions in two passes": _stitching(online=False),
    "micro-graphs": _fusion(partition="rules"),
    "blocks of 512": _knobs(strip=512),
    "blocks of 8192": _knobs(strip=8192),
    "64 columns a block": _knobs(sunk_strip=64),
    "1024 columns a block": _knobs(sunk_strip=1024),
    "1 partial result a thread": _knobs(partials=1),
    "16 partial results a thread": _knobs(partials=16),
    "16 kB of a worker's arrays": _knobs(local_bytes=16 << 10),
    "1 MB of a worker's arrays": _knobs(local_bytes=1 << 20),
}
"""Every change by name, the likeliest to gain first."""

_NOTHING = Choices(LoopFusion(), Stitching(), Packing(), CpuKnobs())
_FIELDS = tuple(CpuKnobs.__dataclass_fields__)


def proposals(graph: TensorGraph, base: Choices, machine: CpuDevice) -> Iterator[Variant]:
    """The model's choice, then all that differ from it in one change that can matter for the graph."""
    yield Variant()
    outside = [t for t in graph.tensors if t.role is not Role.TEMP]
    total = sum(tensor_bytes(graph, t.name) for t in outside)
    results = sum(tensor_bytes(graph, t.name) for t in outside if t.role is Role.OUTPUT)
    reduces = any(s.reduction is not None for s in graph.statements)
    one_pass = 1 if len(graph.statements) > 1 else 0
    near = machine.levels[1].capacity * machine.threads
    short = any(_terms(s) <= LONGEST_TOGETHER for s in graph.statements if s.reduction is not None)
    room = machine.levels[0].capacity / SHARE_OF_L1
    long = any(tensor_bytes(graph, s.target) >= room for s in graph.statements if _adds_rows(s))
    for name, change in CHANGES.items():
        made = change(base)
        if made == base:
            continue
        small = total <= near
        if (name.endswith(" stores") and results <= near) or (name == "1 thread" and not small):
            continue
        if "prefetch" in name and "rows" in name and (small or not one_pass):
            continue
        if "pipelining" in name and not (reduces and one_pass):
            continue
        if "unroll-and-jam" in name and not (short and one_pass) and not long:
            continue
        if ("accumulators" in name or "partial" in name or "reductions" in name) and not reduces:
            continue
        yield Variant((name,))


def _adds_rows(s: Statement) -> bool:
    """Does a reduction add rows of memory, element by element?"""
    if s.reduction is None or not s.write or isinstance(s.write[-1], EXPR_TYPES):
        return False
    over, last = {*s.reduction_dims}, s.write[-1:]
    return any(r.indices[-1:] == last and depends_on(*r.indices[:-1]) & over for r in statement_reads(s))


def _terms(s: Statement) -> int:
    """How many terms a reduction has for each element; many, where that is not known."""
    own = {v for i in s.write if not isinstance(i, EXPR_TYPES) for v in variables(i)}
    extents = [binary("-", d.upper, d.lower) for d in s.dims if d.name not in own]
    return prod(e.value if isinstance(e, IConst) else 1 << 20 for e in extents)
