"""What the page asks of the compiler: a program with its settings, its stages, its findings.

    asked = Asked.of({"text": ..., "op": "softmax", "sizes": {"H": 1024}, "layers": ["loop"]})
    stages = Stages(asked, Place("norms.pf", Path("operators")))
    stages.kernels

Each stage is made when it is asked for first, so that tabs of one program share what they need.  Places in
texts count UTF-16 units, as editors in browsers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from polyfuse.api import Kernels, LoopFusion, Operator, Program, Scheduled, Specialized
from polyfuse.checking import Checked, check_loaded, check_programs
from polyfuse.diagnostics import ArgumentError, Diagnostic, DslError
from polyfuse.driver.partitions import kernels_by
from polyfuse.fixes import fix_of
from polyfuse.frontend_dsl.semantics.signature import signature
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.imports import load_text
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.library import source_of, standard_programs
from polyfuse.options import LAYERS, Options, TargetName
from polyfuse.runtime.inputs import default_sizes, fits
from polyfuse.source import CalledSpan, Span

VIEWS = ("graph", "tree", "domains", "decisions", "kernels", "code", "cost", "run")
TARGETS = ("cpu", "cuda")
MOST_INSTANCES = 1 << 20
"""Statement instances at the sizes that are chosen: results are checked against the slow reference."""
FEW_POINTS, MOST_POINTS = 120, 400
"""Statement instances of pictures in which each is a point: as many as are easily read, as can be drawn."""
MOST_SIZE = 1 << 40


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text is from: a name, and the folder that it may import from; None: it imports nothing."""

    name: str
    folder: Path | None

    @property
    def path(self) -> str:
        """What findings call the text, as those of its imports call these."""
        return self.name if self.folder is None else str(self.folder / self.name)


Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A program with the settings of the page."""

    text: str
    op: str | None = None
    sizes: Pairs = ()
    dtypes: Pairs = ()
    ranks: Pairs = ()
    layers: tuple[str, ...] = LAYERS
    target: str = "cpu"

    @classmethod
    def of(cls, state: object) -> Asked:
        """What the page sends. Raises ArgumentError PF822 for what it never sends."""
        if not isinstance(state, Mapping) or not isinstance(state.get("text"), str):
            raise _unknown("there is no text")
        op, target, layers = state.get("op"), state.get("target", "cpu"), state.get("layers", list(LAYERS))
        if not (op is None or isinstance(op, str)):
            raise _unknown(f"an operator is a name, not {op!r}")
        if target not in TARGETS:
            raise _unknown(f"a target is one of {', '.join(TARGETS)}, not {target!r}")
        if not isinstance(layers, list) or any(x not in LAYERS for x in layers):
            raise _unknown(f"layers are some of {', '.join(LAYERS)}, not {layers!r}")
        return cls(
            state["text"],
            op or None,
            _pairs(state, "sizes", lambda v: type(v) is int and 0 <= v <= MOST_SIZE),
            _pairs(state, "dtypes", BY_NAME.__contains__),
            _pairs(state, "ranks", lambda v: type(v) is int and 0 <= v <= 6),
            tuple(x for x in LAYERS if x in layers),
            str(target),
        )


def _pairs(state: Mapping[str, object], field: str, fits: Callable[[Any], bool]) -> Pairs:
    given = state.get(field) or {}
    if not isinstance(given, Mapping):
        raise _unknown(f"{field} are pairs of names and values")
    for name, value in given.items():
        if not (isinstance(value, str | int) and fits(value)):
            raise _unknown(f"{name} of {field} cannot be {value!r}")
    return tuple(sorted(given.items()))


def _unknown(what: str) -> ArgumentError:
    hint = "take the link from the page's button, or begin anew without what follows #"
    return ArgumentError(f"the explorer cannot read this state: {what}", code="PF822", hint=hint)


# --- stages ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stages:
    """The stages of what is asked."""

    asked: Asked
    place: Place

    @cached_property
    def program(self) -> Program:
        """The program. Raises DslError with all its errors."""
        checked = check_loaded(load_text(self.asked.text, self.place.path, self.place.folder).programs)
        checked.found.raise_if_errors()
        return Program((*checked.programs, *(p for p in standard_programs() if p not in checked.programs)))

    @cached_property
    def operator(self) -> Operator:
        """The operator asked for, or the last one of the text."""
        if not self.program.ops:
            raise ArgumentError("the text has no operator", code="PF411", hint="write one, or load one")
        own = self.program.ops
        return self.program.op(self.asked.op if self.asked.op in own else None)

    @cached_property
    def open_graph(self) -> TensorGraph:
        """The operator's graph at its generics, sizes open. Values for names that it lacks are left out."""
        generics = {n for n, _ in self.operator.signature.generics}
        ranks = self.operator.signature.rank_variables
        return self.operator.graph(
            {n: v for n, v in self.asked.dtypes if n in generics},
            {n: v for n, v in self.asked.ranks if n in ranks},
        )

    def _at(self, sizes: Mapping[str, int]) -> Specialized:
        generics = {n for n, _ in self.operator.signature.generics}
        ranks = self.operator.signature.rank_variables
        return self.operator.specialize(
            {n: v for n, v in self.asked.dtypes if n in generics},
            {n: v for n, v in self.asked.ranks if n in ranks},
            **sizes,
        )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Every size: as asked for, or one that keeps the work small."""
        given = {n: v for n, v in self.asked.sizes if n in self.open_graph.sizes}
        return _sizes(self.open_graph, given, MOST_INSTANCES)

    @cached_property
    def small_sizes(self) -> dict[str, int]:
        """Sizes for pictures in which each instance is a point."""
        for most in (FEW_POINTS, MOST_POINTS, MOST_INSTANCES):
            found = _sizes(self.open_graph, {}, most)
            # A picture of dims with one value each says nothing.
            if fits(self.open_graph, found) and (not found or max(found.values()) > 1):
                break
        return found

    @cached_property
    def specialized(self) -> Specialized:
        return self._at(self.sizes)

    @cached_property
    def unfused(self) -> Scheduled:
        return self.specialized.schedule()

    @cached_property
    def fused(self) -> Scheduled:
        """After layer I, if it is on."""
        return self.unfused.apply(LoopFusion()) if "loop" in self.asked.layers else self.unfused

    @cached_property
    def small(self) -> tuple[Scheduled, Scheduled]:
        """Before and after layer I, at small sizes."""
        before = self._at(self.small_sizes).schedule()
        return before, before.apply(LoopFusion()) if "loop" in self.asked.layers else before

    def kernels_with(self, layers: tuple[str, ...], target: str = "", small: bool = False) -> Kernels:
        """The kernels as `compile` makes them with these layers."""
        at = self._at(self.small_sizes) if small else self.specialized
        made_for = cast(TargetName, target or self.asked.target)
        return kernels_by(at, "connect", layers, Options(progress=False), made_for)

    @cached_property
    def kernels(self) -> Kernels:
        return self.kernels_with(self.asked.layers)


def _sizes(graph: TensorGraph, given: Mapping[str, int], most: int) -> dict[str, int]:
    """All sizes, with at most so many instances of statements and, where sizes are free, elements: of a large
    picture little may be read."""
    found, instances = default_sizes(graph, given, most), most
    while instances > 1 and _elements(graph, found) > most:
        instances //= 4
        smaller = default_sizes(graph, given, instances)
        if not fits(graph, smaller):
            break
        found = smaller
    return found


def _elements(graph: TensorGraph, sizes: Mapping[str, int]) -> int:
    """Of the largest tensor."""
    return max((evaluate(product(t.shape), sizes) for t in graph.tensors), default=0)


# --- findings ----------------------------------------------------------------------------------------------


class Units:
    """Places of a text in UTF-16 units."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._wide = [k for k, c in enumerate(text) if ord(c) > 0xFFFF] if not text.isascii() else []

    def __call__(self, offset: int) -> int:
        """Of an offset in characters."""
        offset = max(0, min(offset, len(self.text)))
        return offset + sum(k < offset for k in self._wide)

    def back(self, offset: int) -> int:
        """The offset in characters of one in units."""
        for k in self._wide:
            if k < offset:
                offset -= 1
        return max(0, min(offset, len(self.text)))


def findings(asked: Asked, place: Place) -> tuple[Checked | None, Sequence[Diagnostic]]:
    """Everything found in a text while somebody writes it."""
    try:
        loaded = load_text(asked.text, place.path, place.folder)
        checked = check_programs(loaded.programs)
    except DslError as error:
        return None, error.diagnostics
    return checked, checked.found.found


def told(
    found: Iterable[Diagnostic], place: Place, text: str, program: ast.Program | None = None
) -> list[Any]:
    """Findings as the page shows them."""
    units = Units(text)
    return [_told(d, place, units, program) for d in found]


def _told(d: Diagnostic, place: Place, units: Units, program: ast.Program | None) -> dict[str, Any]:
    span = own_span(d.span, place)
    first, last = (units(span.start), units(span.end)) if span else (0, 0)
    fix = fix_of(d, program) if span is not None else None
    here = fix is not None and all(e.span.source.name == place.path for e in fix.edits)
    edits = [(units(e.span.start), units(e.span.end), e.text) for e in fix.edits] if fix and here else []
    return {
        "code": d.code,
        "severity": d.severity.value,
        "message": d.message if span is not None or d.span is None else f"{short(d.span)}: {d.message}",
        "hint": d.hint or "",
        "placed": span is not None,
        "from": first,
        "to": last,
        "line": span.line if span else 0,
        "column": span.column if span else 0,
        "related": [f"{short(s)}: {remark}" for s, remark in d.related],
        "fix": {"title": fix.title, "edits": edits} if fix and edits else None,
    }


def own_span(span: Span | None, place: Place) -> Span | None:
    """A place in the text: its own, or that of the call which leads to another text."""
    while span is not None and span.source.name != place.path:
        span = span.call if isinstance(span, CalledSpan) else None
    return span


def short(span: Span) -> str:
    """A place without its folder."""
    return f"{Path(span.source.name).name}:{span.line}:{span.column}"


# --- what may be chosen ------------------------------------------------------------------------------------


def controls(stages: Stages) -> dict[str, Any]:
    """The operators of the text, and what may be chosen for the one asked for."""
    operator, graph = stages.operator, stages.open_graph
    signed, asked = operator.signature, stages.asked
    dtypes, ranks = dict(asked.dtypes), dict(asked.ranks)
    chosen = _sizes(graph, {}, MOST_INSTANCES)
    axes = sorted(signed.rank_variables)
    return {
        "ops": list(stages.program.ops),
        "op": operator.name,
        "signature": str(signed),
        "sizes": [{"name": n, "default": chosen[n]} for n in graph.sizes],
        "dtypes": [
            {"name": n, "kind": kind, "value": dtypes.get(n, _usual(graph, operator, n))}
            for n, kind in signed.generics
            if kind != "size"
        ],
        "ranks": [{"name": n, "value": ranks.get(n, 1)} for n in axes],
    }


def _usual(graph: TensorGraph, operator: Operator, generic: str) -> str:
    """The type that a generic has where none is chosen: that of a parameter of it."""
    names = [p.name for p in operator.signature.params if p.dtype == generic]
    return next((str(graph.tensor(n).dtype) for n in names if n in graph.inputs), "f32")


def library() -> list[dict[str, Any]]:
    """The operators of the standard library, each as a text of its own with the comment above it."""
    return [
        {"family": Path(p.source.name).stem.replace("_", " "), "ops": list(map(_loadable, p.ops))}
        for p in standard_programs()
        if p.ops
    ]


def _loadable(op: ast.OpDef) -> dict[str, str]:
    return {"name": op.name, "signature": str(signature(op)), "text": source_of(op) + "\n"}
