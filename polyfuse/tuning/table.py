"""Variants of an operator: what each changes, what was found out about them, and the file that keeps it.

    Variant(("kernels apart", "non-temporal stores"), cut=(("m__sum", "m"), ("y",)))

A variant is a plan of fusion and a way to print it: named changes of what layers and code generation do on
their own, and a cut of the graph into clusters.  What draws plans, what searches among them, the table of
times, and the file all have this one value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from polyfuse.decisions import counted
from polyfuse.diagnostics import ArgumentError
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.clustering.cuts import Cut
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching

MODEL = "as the model has it"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a variant can change: the layers, the knobs of code generation, how a GPU is mapped for, and how
    the graph is cut."""

    fusion: LoopFusion | None
    stitching: Stitching | None
    packing: Packing | None
    knobs: CpuKnobs
    mapping: tuple[tuple[str, object], ...] = ()
    clustering: Clustering = field(default_factory=Clustering)


@dataclass(frozen=True, slots=True)
class Variant:
    """Changes by name, all of `EVERY`, and a cut of the graph; none: everything as the model has it."""

    changes: tuple[str, ...] = ()
    cut: Cut | None = None

    def __str__(self) -> str:
        digest = sha256(repr(self.cut).encode()).hexdigest()[:4]
        cut = [f"{counted(len(self.cut), 'cluster')} #{digest}"] if self.cut is not None else []
        return ", ".join([*cut, *self.changes]) or MODEL

    @property
    def is_model(self) -> bool:
        """Is everything as the model has it?"""
        return self == Variant()

    def known(self) -> Variant:
        """Itself. Raises ValueError if a change is none of `EVERY`."""
        for name in self.changes:
            if name not in EVERY:
                raise ValueError(f"there is no change {name!r}")
        return self

    def of(self, base: Choices) -> Choices:
        """The choices with the changes made."""
        for name in self.changes:
            base = EVERY[name](base)
        if self.cut is not None:
            base = _clustering(groups=self.cut)(base)
        return base

    def joined(self, other: Variant) -> Variant | None:
        """Both at once; None where they change the same thing."""
        mine, theirs = (self.of(_NOTHING), other.of(_NOTHING))
        if dict(mine.mapping).keys() & dict(theirs.mapping).keys():
            return None
        for part in ("fusion", "stitching", "packing", "clustering", "knobs"):
            a, b, n = getattr(mine, part), getattr(theirs, part), getattr(_NOTHING, part)
            if part == "knobs":
                if any(getattr(a, f) != getattr(n, f) and getattr(b, f) != getattr(n, f) for f in _FIELDS):
                    return None
            elif a != n and b != n:
                return None
        return Variant((*self.changes, *other.changes), other.cut if self.cut is None else self.cut)

    def as_json(self) -> dict[str, Any]:
        """Itself as a file has it."""
        return {"changes": [*self.changes], **({} if self.cut is None else {"clusters": self.cut})}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Variant:
        """Raises KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        changes, cut = data["changes"], data.get("clusters")
        for names in (changes, *(() if cut is None else cut)):
            if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
                raise ValueError(f"{names!r} are no names")
        return cls(tuple(changes), None if cut is None else tuple(map(tuple, cut))).known()


Change = Callable[[Choices], Choices]


def _fusion(**fields: Any) -> Change:
    return lambda c: replace(c, fusion=c.fusion and replace(c.fusion, **fields))


def _stitching(**fields: Any) -> Change:
    return lambda c: replace(c, stitching=c.stitching and replace(c.stitching, **fields))


def _packing(**fields: Any) -> Change:
    return lambda c: replace(c, packing=c.packing and replace(c.packing, **fields))


def _clustering(**fields: Any) -> Change:
    """What is cut otherwise shall be made so: there is no feedback but of failures."""
    return lambda c: replace(c, clustering=replace(c.clustering, **fields, feedback="failures"))


def _knobs(**fields: Any) -> Change:
    return lambda c: replace(c, knobs=replace(c.knobs, **fields))


def _mapping(**fields: object) -> Change:
    return lambda c: replace(c, mapping=tuple({**dict(c.mapping), **fields}.items()))


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


# Changes that give a single thread no other code.
OF_THREADS = ("1 chunk a thread", "32 chunks a thread", "1 thread")

LIMITS: Mapping[str, int] = {f"clusters of at most {n}": n for n in (2, 3, 4, 6, 10)}

# Other plans of fusion: layers left out or let loose, other limits, another partition.
PLAN_CHANGES: Mapping[str, Change] = {
    "no loop fusion": lambda c: replace(c, fusion=None),
    "packed wherever possible": _packing(always=True),
    "no packs": lambda c: replace(c, packing=None),
    "no feedback": _clustering(),
    "clusters by search": _clustering(whole=0, partition="search"),
    **{name: _clustering(whole=0, most=n) for name, n in LIMITS.items()},
}

# What is tried on a GPU: fields of the plan (`gpu_plan.GpuPlan`), then what the layers do; what brings most
# comes first, as time may be up.
GPU_CHANGES: Mapping[str, Change] = {
    **{f"{n} threads a row": _mapping(row_threads=n) for n in (64, 96, 16, 32, 128, 256, 512)},
    **{f"{n} rows a block": _mapping(block_rows=n) for n in (8, 2, 4, 16)},
    **{f"{n} vectors together": _mapping(unroll=n) for n in (1, 2, 4, 8)},
    "rows in registers": _mapping(keep="registers"),
    "rows in shared memory": _mapping(keep="shared"),
    "rows read again": _mapping(keep="again"),
    "columns by warps": _mapping(columns="warps"),
    "columns by blocks": _mapping(columns="blocks"),
    **{f"{n} chunks a multiprocessor": _mapping(chunks=n) for n in (1, 4, 8)},
    "barriers of the grid": _stitching(barriers=True),
    "no barriers of the grid": _stitching(barriers=False),
    "resident blocks": _mapping(resident=True),
    "streaming stores": _mapping(stores="streaming"),
    **{f"{n} threads a block": _mapping(threads=n) for n in (128, 256, 512)},
    **{f"vectors of {n}": _mapping(vector=n) for n in (4, 2, 8)},
    **{f"{n} threads a row": _mapping(row_threads=n) for n in (4, 8)},
    "threads keep half": _mapping(halvings=1),
    "single elements": _mapping(vector=1),
    **{
        name: CHANGES[name]
        for name in (
            "kernels apart",
            "stitched wherever possible",
            "temporaries stored",
            "reductions in one pass",
            "reductions in two passes",
        )
    },
}
EVERY: Mapping[str, Change] = {**CHANGES, **PLAN_CHANGES, **GPU_CHANGES}

_NOTHING = Choices(LoopFusion(), Stitching(), Packing(), CpuKnobs())
_FIELDS = tuple(CpuKnobs.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: seconds projected and measured (None: not measured, and why); `spread` says how far the
    shortest times of alternate rounds are apart, relative to them."""

    variant: Variant
    predicted: float
    measured: float | None
    note: str = ""
    spread: float = 0.0

    @property
    def shown(self) -> str:
        """``345.8 +- 2%``, or why it was not measured."""
        if self.measured is None:
            return self.note
        return f"{self.measured * 1e6:.1f}" + (f" +- {self.spread:.0%}" if isfinite(self.spread) else "")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Variants of one operator. note: why nothing was measured; seconds: what the search took; problem,
    sizes and target: what was chosen for, in a file of choices; judge: which model told how long each takes;
    machine: what measured.

    `print` shows a table, the one that is taken marked with a star.
    """

    operator: str
    rows: tuple[Row, ...]
    chosen: Variant
    note: str = ""
    seconds: float = 0.0
    problem: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
    judge: str = "projected"
    target: str = "cpu"
    machine: str = ""

    @property
    def timed(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if r.measured is not None)

    def __str__(self) -> str:
        head = f"tuning of {self.operator}: {self.note or f'{len(self.timed)} variants measured'}"
        if not self.rows:
            return head
        table = [("", "variant", f"{self.judge} us", "measured us")]
        for r in self.rows:
            mark = "*" if r.variant == self.chosen else ""
            table.append((mark, str(r.variant), f"{r.predicted * 1e6:.1f}", r.shown))
        widths = [max(len(r[c]) for r in table) for c in range(3)]
        lines = [
            f"{m.ljust(widths[0])} {v.ljust(widths[1])}  {p.rjust(widths[2])}  {s}" for m, v, p, s in table
        ]
        return "\n".join([head, *(line.rstrip() for line in lines)])

    def as_json(self) -> dict[str, Any]:
        rows = [[r.variant.as_json(), r.predicted, r.measured, r.note, r.spread] for r in self.rows]
        return {
            "operator": self.operator,
            "rows": rows,
            "chosen": self.chosen.as_json(),
            "note": self.note,
            "seconds": self.seconds,
            "judge": self.judge,
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Tuning:
        """Raises KeyError, TypeError or ValueError for anything else than `as_json` gave."""
        rows = tuple(
            Row(
                Variant.of_json(variant),
                float(predicted),
                measured and float(measured),
                str(note),
                float(apart),
            )
            for variant, predicted, measured, note, apart in data["rows"]
        )
        chosen = Variant.of_json(data["chosen"])
        note, seconds, judge = str(data["note"]), float(data["seconds"]), str(data["judge"])
        return cls(str(data["operator"]), rows, chosen, note, seconds, judge=judge)


# --- choices as a file ------------------------------------------------------------------------------------

# What was found on one machine, for others and for later versions: variants, by the operator and its sizes.
# The cache has choices by all that they follow from; a file has those that somebody keeps.  Format 1 had no
# clusters.

FORMAT, READ = 2, (1, 2)


def keep_choices(path: Path, tunings: Iterable[Tuning]) -> None:
    """Write choices into a file, beside those that it has of other problems."""
    made = {t.problem: _choice(t) for t in tunings if t.rows and t.problem}
    found = {**_read(path), **made} if path.exists() else made
    text = json.dumps({"format": FORMAT, "choices": found}, indent=1) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise _unusable(path, f"cannot be written: {e}") from None


def choice_in(path: Path, problem: str) -> Variant | None:
    """What a file says of a problem. Raises ArgumentError PF490 for no such file."""
    found = _read(path).get(problem)
    if found is None:
        return None
    try:
        return Variant.of_json(found)
    except (KeyError, TypeError, ValueError) as e:
        raise _unusable(path, f"has a choice that this version cannot take: {e}") from None


def plan_in(path: Path, problem: str, operator: str, sizes: Mapping[str, int]) -> Variant:
    """The same where a file must have it. Raises ArgumentError PF428 where it has not."""
    found = choice_in(path, problem)
    if found is not None:
        return found
    have = [d for d in _read(path).values() if isinstance(d, dict)]
    same = [d.get("sizes") for d in have if d.get("operator") == operator]
    at = f" at {_told(sizes)}" if sizes else ""
    if not same:
        others = ", ".join(dict.fromkeys(str(d.get("operator")) for d in have)) or "nothing"
        raise unfit(path, f"has no plan of {operator}, but of {others}", "take the file of this operator")
    if dict(sizes) in same:
        why = "its text, types, layouts or target are others now"
        raise unfit(path, f"has a plan of {operator}{at} as it was: {why}", "`polyfuse tune` finds a new one")
    others = "; ".join(_told(s) for s in same if isinstance(s, dict))
    hint = "`polyfuse tune FILE --size ...` adds one; tuned= leaves what a file does not have to the model"
    raise unfit(path, f"has no plan of {operator}{at}, but at {others}", hint)


def unfit(path: Path, why: str, hint: str) -> ArgumentError:
    """PF428: a plan is of something else."""
    return ArgumentError(f"{path} {why}", code="PF428", hint=hint)


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n}={v}" for n, v in sizes.items())


def _choice(t: Tuning) -> dict[str, Any]:
    """The variant, and for readers what it is for and what it brought."""
    measured = {str(r.variant): _us(r.measured) for r in t.timed if r.measured is not None}
    told = [r for r in t.rows if isfinite(r.predicted) and (r in t.timed or r.variant == t.chosen)]
    predicted = {str(r.variant): _us(r.predicted) for r in told}
    return {
        "operator": t.operator,
        "sizes": dict(t.sizes),
        "target": t.target,
        "machine": t.machine,
        "model": t.judge,
        **t.chosen.as_json(),
        "microseconds": measured,
        "predicted microseconds": predicted,
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 2)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] in READ:
            return dict(data["choices"])
        known = f"formats {' and '.join(map(str, READ))}"
        raise _unusable(path, f"has format {data['format']!r}; this version reads {known}")
    except OSError as e:
        raise _unusable(path, f"cannot be read: {e}") from None
    except (ValueError, KeyError, TypeError) as e:
        if isinstance(e, ArgumentError):
            raise
    raise _unusable(path, "is no file of choices")


def _unusable(path: Path, why: str) -> ArgumentError:
    hint = "`polyfuse tune FILE --out PLAN` and `Compiled.keep_tuning` write such files"
    return ArgumentError(f"{path} {why}", code="PF490", hint=hint)
