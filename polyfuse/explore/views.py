"""What each tab shows of a program: a list of parts that the page knows how to draw.

    view("cost", stages)  ->  [{"kind": "facts", ...}, {"kind": "picture", "svg": ...}]

A part has a kind: note, facts, text, table, picture, decisions, code.  All texts are plain: the page escapes
them, and pictures come from `polyfuse.visualize`, which does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polyfuse.api import Compiled, compile
from polyfuse.cost.figures import Estimate
from polyfuse.decisions import format_bytes
from polyfuse.diagnostics import ArgumentError
from polyfuse.explore.programs import Stages, Units, own_span, short
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.tensor_graph import Purpose
from polyfuse.options import Options
from polyfuse.poly.legality.schedules import Legal
from polyfuse.runtime.distributions import suitable
from polyfuse.runtime.inputs import instances, make_inputs
from polyfuse.runtime.machine.room import require_room, wanted_by
from polyfuse.runtime.reference.agreement import MOST_UNDECIDED, agrees, unchecked
from polyfuse.runtime.reference.evaluate import evaluate
from polyfuse.source import Span
from polyfuse.visualize import (
    Picture,
    accesses,
    dependences,
    domain,
    graph,
    placement,
    plan,
    roofline,
    schedule_order,
    timeline,
    traffic,
    tree,
)

Part = dict[str, Any]
MOST_CHECKED = 1 << 23
"""Statement instances of a run that is compared with the reference, which takes a second for so many."""
MOST_PICTURES = 8
"""Statements, or edges of a kernel, that have a picture of their own."""
RUNS_S, MOST_RUNS = 0.5, 200


def view(name: str, stages: Stages) -> list[Part]:
    """The parts of a tab."""
    return list(_VIEWS[name](stages))


# --- parts -------------------------------------------------------------------------------------------------


def note(text: str, tone: str = "plain") -> Part:
    return {"kind": "note", "text": text, "tone": tone}


def facts(*items: tuple[str, object]) -> Part:
    return {"kind": "facts", "items": [[name, str(value)] for name, value in items]}


def texts(title: str, text: str) -> Part:
    return {"kind": "text", "title": title, "text": text}


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Part:
    """The first `left` columns hold words, the others numbers."""
    return {
        "kind": "table",
        "title": title,
        "head": list(head),
        "rows": [list(r) for r in rows],
        "left": left,
    }


def picture(title: str, draw: Callable[[], Picture], about: str = "") -> Part:
    """A picture, or why there is none."""
    try:
        return {"kind": "picture", "title": title, "svg": draw().svg, "about": about}
    except ArgumentError as error:
        found = error.diagnostics[0]
        hint = f" ({found.hint})" if found.hint else ""
        return note(f"{title}: {found.message}{hint}.", "faint")


# --- graph, tree, domains ----------------------------------------------------------------------------------


def _graph(stages: Stages) -> Iterator[Part]:
    specialized = stages.specialized
    yield facts(*_sizes(stages.sizes), ("statements", len(specialized.graph.statements)))
    yield picture("Statements, and what each reads", lambda: graph(specialized))
    cleaned = specialized.clean()
    if cleaned.decisions:
        yield {"kind": "decisions", "title": "What clean-up changes", "items": _decisions(cleaned.decisions)}
    yield texts("The tensor graph", str(specialized))


_LEGAL = "Proved legal: by isl's dataflow analysis every instance runs after those that it needs."


def _sizes(sizes: Mapping[str, int]) -> list[tuple[str, object]]:
    return [("sizes", ", ".join(f"{n} = {v}" for n, v in sizes.items()))] if sizes else []


def _tree(stages: Stages) -> Iterator[Part]:
    before, after = stages.unfused, stages.fused
    if "loop" not in stages.asked.layers:
        yield note("Layer I is off: the schedule is that of the program.", "faint")
    yield facts(("before", before.shape), ("after layer I", after.shape))
    yield picture("Before and after layer I", lambda: tree(after, before=before))
    verdict = after.legality()
    words = _LEGAL if isinstance(verdict, Legal) else f"Illegal ({verdict.code}): {verdict.message}"
    yield note(words, "good" if verdict else "bad")
    final = stages.kernels.scheduled
    if final.shape != after.shape:
        yield facts(("with all rewrites of the graph", final.shape))
        yield picture("What kernels are made of", lambda: tree(final))
    yield texts("The schedule as text", str(after))


def _domains(stages: Stages) -> Iterator[Part]:
    before, after = stages.small
    at = ", ".join(f"{n} = {v}" for n, v in stages.small_sizes.items())
    yield note(f"Points are drawn at small sizes: {at}." if at else "There are no sizes.", "faint")
    yield picture("Iteration domains", lambda: domain(before.specialized))
    yield picture(
        "Dependences under the schedule",
        lambda: dependences(after, schedule=after),
        "An arrow leads from what is computed to what needs it. One that goes back in time would be red.",
    )
    yield picture("Order of execution, without fusion", lambda: schedule_order(before))
    if "loop" in stages.asked.layers:
        yield picture("Order of execution after layer I", lambda: schedule_order(after))
    yield picture("What may run at once", lambda: schedule_order(after, parallel=True))
    targets = dict.fromkeys(s.target for s in after.graph.statements if s.purpose is not Purpose.INIT)
    for name in list(targets)[:MOST_PICTURES]:
        yield picture(f"Accesses of {name}", _accesses(before.specialized, name))
    if len(targets) > MOST_PICTURES:
        yield note(f"{len(targets) - MOST_PICTURES} more statements have no picture of accesses.", "faint")


def _accesses(given: object, name: str) -> Callable[[], Picture]:
    return lambda: accesses(given, name)


# --- decisions, kernels ------------------------------------------------------------------------------------


def _decisions(found: Sequence[Any]) -> list[Part]:
    return [
        {
            "name": d.kind,
            "subject": d.subject,
            "taken": d.taken,
            "reason": d.reason,
            "witness": d.witness or "",
            "saves": format_bytes(d.saved_bytes) if d.saved_bytes else "",
        }
        for d in found
    ]


def _all_decisions(stages: Stages) -> Iterator[Part]:
    kernels = stages.kernels
    found = kernels.told()
    yield facts(
        ("done", sum(d.taken for d in found)), ("considered, not done", sum(not d.taken for d in found))
    )
    yield {"kind": "decisions", "title": "Decisions, in order", "items": _decisions(found)}
    edges = kernels.schemes().edges
    head = ("kernel", "from", "to", "what goes", "scheme", "kept in", "why")
    rows = [(e.kernel, e.producer, e.consumer, e.tensor, e.scheme, e.storage.value, e.why) for e in edges]
    if rows:
        yield table("What goes from statement to statement", head, rows, len(head))


def _kernels(stages: Stages) -> Iterator[Part]:
    kernels = stages.kernels
    yield facts(
        ("launches", kernels.launches),
        ("barriers in kernels", kernels.barriers),
        ("bytes to and from memory", format_bytes(kernels.global_bytes)),
        ("on chip, the largest worker or block", format_bytes(kernels.shared_bytes)),
        ("calls of a library", kernels.library_calls),
    )
    layers = stages.asked.layers
    if layers:
        none = stages.kernels_with(())
        names = ("no layer", " + ".join(layers))
        yield picture("Launches without layers, and with them", lambda: plan(none, kernels, names=names))
    else:
        yield picture("Launches", lambda: plan(kernels))
    if stages.asked.target == "cuda":
        yield from _placements(stages)
    head = ("kernel", "tensor", "kept in", "elements", "why")
    rows = [
        (k.name, b.tensor, b.scope.value, f"{b.dtype}[{', '.join(map(str, b.extents))}]", b.reason or "")
        for k in kernels.kernels
        for part in _leaves(k)
        for b in part.buffers
    ]
    yield table("Where each tensor is", head, rows, len(head))
    if plans := kernels.plans():
        yield texts("Plans of the kernels, as `GpuPlan` has them", "\n".join(plans))
    yield texts("Kernels as text", str(kernels))


def _leaves(k: Kernel) -> tuple[Kernel, ...]:
    inner = k.parts or k.packed
    return tuple(x for p in inner for x in _leaves(p)) if inner else (k,)


def _placements(stages: Stages) -> Iterator[Part]:
    """Blocks and threads of what goes from one statement to another, at small sizes."""
    small = stages.kernels_with(stages.asked.layers, "cuda", small=True)
    pairs = dict.fromkeys(
        (e.producer, e.consumer) for e in small.schemes().edges if e.scheme in ("Local", "Regional")
    )
    at = ", ".join(f"{n} = {v}" for n, v in stages.small_sizes.items())
    for a, b in list(pairs)[:MOST_PICTURES]:
        yield picture(f"Blocks and threads of {a} and {b}, at {at}", _placement(small, a, b))


def _placement(kernels: object, producer: str, consumer: str) -> Callable[[], Picture]:
    return lambda: placement(kernels, producer, consumer)


# --- code --------------------------------------------------------------------------------------------------


def _code(stages: Stages) -> Iterator[Part]:
    code = stages.kernels.code()
    language = "C++" if stages.asked.target == "cpu" else "CUDA C++"
    lines, found = code.source.split("\n"), stages.kernels.line_map()
    statements = Statements(stages)
    origins = [statements.of(places) for places in found]
    first = next((k for k, from_there in enumerate(origins) if from_there), 0)
    while first and lines[first - 1].strip():
        first -= 1
    yield {
        "kind": "code", "language": language, "lines": lines, "origins": origins,
        "statements": statements.found, "first": first,
    }  # fmt: skip
    yield texts("Launch plan", str(code.plan))


class Statements:
    """The statements of the text that lines came from, numbered as they come up."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.units = Units(stages.asked.text)
        self.own = [s.span for op in stages.program.programs[0].ops for s in op.body]
        self.found: list[Part] = []
        self._numbers: dict[object, int] = {}

    def of(self, places: Sequence[Span]) -> list[int]:
        """The statements of some places, each once."""
        return list(dict.fromkeys(map(self._number, places)))

    def _number(self, place: Span) -> int:
        mine = own_span(place, self.stages.place)
        whole = next((s for s in self.own if mine and s.start <= mine.start < s.end), mine)
        key = whole or (place.source.name, place.line)
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            first, last = (self.units(whole.start), self.units(whole.end)) if whole else (0, 0)
            words = whole.text.split("\n")[0] if whole else place.source.line(place.line).strip()
            label = f"line {whole.line}: {words}" if whole else f"{short(place)}: {words}"
            self.found.append({"from": first, "to": last, "label": label})
        return self._numbers[key]


# --- cost --------------------------------------------------------------------------------------------------


def _cost(stages: Stages) -> Iterator[Part]:
    layers = stages.asked.layers
    chosen = stages.kernels
    ways = [("no layer", stages.kernels_with(()))] if layers else []
    for n in range(1, len(layers)):
        ways.append((" + ".join(layers[:n]), stages.kernels_with(layers[:n])))
    ways.append((" + ".join(layers) or "no layer", chosen))
    found = [(name, k.estimate()) for name, k in ways]
    last = found[-1][1]
    yield note(f"The cost model's figures for {last.machine}; nothing has run.", "faint")
    yield facts(
        ("projected time", _seconds(last.seconds)),
        ("bytes read", format_bytes(last.read)),
        ("bytes written", format_bytes(last.written)),
    )
    yield table(
        "With more and more layers",
        ("layers", "launches", "projected time", "speed-up", "read", "written"),
        [_way(name, e, found[0][1]) for name, e in found],
    )
    head = ("kernel", "projected time", "bound by", "read", "written", "operations", "workers or blocks")
    rows = [
        (
            k.name, _seconds(k.seconds), k.terms.bound, format_bytes(k.read), format_bytes(k.written),
            f"{k.work.weighted:,.0f}", str(k.blocks),
        )
        for k in last.kernels
    ]  # fmt: skip
    yield table("Kernels", head, rows)
    names = tuple(name for name, _ in ways)
    stack = tuple(k for _, k in ways)
    yield picture("Roofline", lambda: roofline(*stack, names=names))
    yield picture("Memory traffic", lambda: traffic(*stack, names=names))
    yield picture("Launches one after the other", lambda: timeline(chosen))


def _way(name: str, e: Estimate, first: Estimate) -> tuple[str, ...]:
    gain = f"{first.seconds / e.seconds:.2f}x" if e.seconds else ""
    return name, str(e.launches), _seconds(e.seconds), gain, format_bytes(e.read), format_bytes(e.written)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


# --- run ---------------------------------------------------------------------------------------------------


def _run(stages: Stages) -> Iterator[Part]:
    if stages.asked.target != "cpu":
        yield note("The explorer runs code for the CPU only; choose the target cpu.", "bad")
        return
    known, sizes = stages.specialized.open_graph, stages.sizes
    require_room(wanted_by(known, sizes), "the array")
    chosen = suitable(known, sizes, 0, {}, whole=False)
    inputs = make_inputs(known, sizes, 0, chosen)
    function = _function(stages)
    own = {p.name: sizes[p.name] for p in known.size_parameters}
    changed = {t.alias: t.name for t in known.tensors if t.alias is not None}
    start = time.perf_counter()
    built = function.built(**inputs, **own)
    compiled = time.perf_counter() - start
    mine = {n: a.copy() if n in changed else a for n, a in inputs.items()}
    value = function(**mine, **own)
    values = value if isinstance(value, tuple) else (value,)
    results = dict(zip(known.outputs, values, strict=False)) | {w: mine[n] for n, w in changed.items()}
    yield from _checked(stages, inputs, results)
    times = _times(lambda: function(**mine, **own))
    projected = built.kernels.estimate().seconds
    yield facts(
        *_sizes(sizes),
        ("one call, median", _seconds(statistics.median(times))),
        ("fastest, slowest", f"{_seconds(min(times))}, {_seconds(max(times))} of {len(times)} calls"),
        ("projected time of the kernels", _seconds(projected)),
        ("compiled in", _seconds(compiled)),
    )
    drawn = ", ".join(f"{n} {d.text}" for n, d in chosen.items())
    yield note(
        f"Inputs are random numbers{f'; {drawn}' if drawn else ''}. A call has its overhead with it.", "faint"
    )


def _function(stages: Stages) -> Compiled:
    layers = stages.asked.layers
    options = Options(progress=False, sizes="fixed")
    return compile(stages.program, stages.operator.name, target="cpu", layers=layers, options=options)


def _checked(stages: Stages, inputs: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[Part]:
    """How results compare with the float64 reference."""
    known, sizes = stages.specialized.open_graph, stages.sizes
    if instances(known, sizes) > MOST_CHECKED:
        yield note("Not checked: the reference would take long at these sizes. Choose smaller ones.", "faint")
        return
    expected = evaluate(known, sizes, inputs, checked=False, results=results)
    rows, wrong = [], False
    for name, got in results.items():
        t, want = known.tensor(name), expected[name]
        verdict, vague = agrees(_array(got), want, t.dtype), unchecked(want, inputs)
        word = "agrees" if vague < MOST_UNDECIDED else "cannot be checked with these inputs"
        if verdict.mismatches or not (verdict or vague):
            word, wrong = f"differs: {verdict.message}", True
        rows.append((t.alias or name, word, f"{verdict.worst_ratio:.2g} of what is allowed"))
    tone, words = ("bad", "A result differs from the reference.") if wrong else ("good", "Checked.")
    yield note(f"{words} Results are compared with the float64 reference.", tone)
    yield table("Results", ("result", "verdict", "worst error"), rows, 2)


def _array(value: object) -> Any:
    import numpy as np

    return np.asarray(value)


def _times(call: Callable[[], object]) -> list[float]:
    """Seconds of calls, as many as fit."""
    found: list[float] = []
    while len(found) < 3 or (sum(found) < RUNS_S and len(found) < MOST_RUNS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


_VIEWS: Mapping[str, Callable[[Stages], Iterator[Part]]] = {
    "graph": _graph,
    "tree": _tree,
    "domains": _domains,
    "decisions": _all_decisions,
    "kernels": _kernels,
    "code": _code,
    "cost": _cost,
    "run": _run,
}
