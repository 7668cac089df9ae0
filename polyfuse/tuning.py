"""The fastest of several variants of an operator's CPU code, measured (`tune="measure"`).

    proposals --lowered, printed--> code of each, once --projected--> the likeliest
              --compiled, two at a time--> libraries --run and timed in a child process--> the fastest

All is bounded in time.  The child runs a variant only after it was compiled, compares its results with those
of the model's choice, and times all in turns, of which the shortest count.  What crashes, hangs or computes
something else is left out with a note; where nothing can be measured, the model's choice stands.  The choice
is kept in the cache by what the compilation follows from, compiler and machine.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from polyfuse.children import jobs
from polyfuse.codegen.cpu import CpuCode
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates, project
from polyfuse.decisions import Decision
from polyfuse.diagnostics import PolyfuseError
from polyfuse.estimates import projected_cpu
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.clusters import Clustering
from polyfuse.layers.loop_fusion import LoopFusion
from polyfuse.layers.packing import Packing
from polyfuse.layers.stitching import Stitching
from polyfuse.layers.variants import Choices, Variant, proposals
from polyfuse.lowering import Lowered
from polyfuse.options import Options
from polyfuse.pipeline import Built, Compilation, Watch, emitted, fixed_graph, printed, run
from polyfuse.runtime.cache import Cache, cache_key
from polyfuse.runtime.plan_cache import keep_plan
from polyfuse.runtime.toolchain import compile_shared, cpu_identity, find_compiler
from polyfuse.trials import ChildTimer, Timer, TrialFailed
from polyfuse.tuned import Row, Tuning

# Variants that are compiled and timed at most, and seconds for each step.
MOST = 9
LOWER_S, COMPILE_S, TIME_S = 1.4, 2.0, 0.8
COMPILERS = 2
# A projected time so many times the model's choice's is not worth a measurement.
HOPELESS = 1.6
# In each turn a variant runs for about so long; after some rounds those far behind are out.
TURN_S, MOST_CALLS, MOST_ROUNDS = 0.002, 64, 100
FEWEST_ROUNDS, FAR = 5, 1.25
# The model's choice stands unless another is faster by more than noise.
GAIN = 0.97


@dataclass(frozen=True)
class Candidate:
    """A variant with its code, ready to be compiled."""

    variant: Variant
    compilation: Compilation
    code: CpuCode
    predicted: float


def build_tuned(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    *,
    target: str = "cpu",
    fusion: LoopFusion | None,
    stitching: Stitching | None = None,
    packing: Packing | None = None,
    clustering: Clustering | None = None,
    options: Options,
    strided: frozenset[str] = frozenset(),
) -> Built:
    """As `pipeline.build`, with the variant that was measured to be the fastest."""
    cut = clustering or Clustering()
    base = Compilation(graph, sizes, fusion, options, strided, target, stitching, packing, cut)
    if target != "cpu" or not base.kept:
        why = "variants are timed on a CPU" if target != "cpu" else "its steps are to be looked at"
        return _with(run(base), Tuning(graph.name, (), Variant(), f"not measured: {why}"))
    tuning = tuned(base)
    return _with(run(compilation_of(base, tuning.chosen)), tuning)


def _with(built: Built, tuning: Tuning) -> Built:
    why = tuning.note or f"the fastest of {len(tuning.timed)} variants measured"
    decision = Decision("tune", str(tuning.chosen), not tuning.note, why)
    return replace(built, decisions=(*built.decisions, decision), tuning=tuning)


def tuned(base: Compilation, timer: Timer | None = None) -> Tuning:
    """The choice for a compilation, from the cache if it was made before; `timer` is replaced in tests."""
    key = tuning_key(base)
    kept = _kept(key)
    if kept is not None:
        return kept
    start = time.perf_counter()
    try:
        with timer or ChildTimer(base) as measuring:
            found = _search(base, measuring)
    except (TrialFailed, OSError) as error:
        found = Tuning(base.graph.name, (), Variant(), f"not measured: {error}")
    found = replace(found, seconds=time.perf_counter() - start)
    if not found.note:
        data = json.dumps(found.as_json()).encode()
        Cache.open_default().put(key, {"tuning.json": data}, {"kind": "tuning", "operator": base.graph.name})
    return found


def tuning_key(base: Compilation) -> str:
    """What a choice follows from: the compilation, the compiler, the machine."""
    return cache_key(
        [
            ("kind", "tuning"),
            ("compilation", base.key),
            ("denormals", base.options.denormals),
            ("compiler", find_compiler().identity),
            ("cpu", cpu_identity()),
            ("host", platform.node()),
        ]
    )


def _kept(key: str) -> Tuning | None:
    entry = Cache.open_default().get(key)
    if entry is None:
        return None
    try:
        return Tuning.of_json(json.loads((entry / "tuning.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        Cache.open_default().remove(key)
        return None


# --- candidates ------------------------------------------------------------------------------------------


def compilation_of(base: Compilation, variant: Variant) -> Compilation:
    """The compilation that gives a variant's code."""
    made = variant.of(Choices(base.fusion, base.stitching, base.packing, base.knobs))
    return replace(base, fusion=made.fusion, stitching=made.stitching, packing=made.packing, knobs=made.knobs)


def candidates(base: Compilation, make: Maker, limit_s: float) -> list[Candidate]:
    """The model's choice, then what differs from all before it in code, by rising projected time."""
    deadline = time.monotonic() + limit_s
    graph = fixed_graph(base.graph, base.sizes)
    choices = Choices(base.fusion, base.stitching, base.packing, base.knobs)
    seen: set[object] = set()
    found: list[Candidate] = []
    for variant in proposals(graph, choices, make.machine):
        if found and time.monotonic() > deadline:
            break
        made = make(compilation_of(base, variant), variant)
        if made is not None and (form := (made.code.source, repr(made.code.plan))) not in seen:
            seen.add(form)
            found.append(made)
    return [found[0], *sorted(found[1:], key=lambda c: c.predicted)]


class Maker:
    """Makes candidates; variants that differ only in how kernels are printed share these."""

    def __init__(self, machine: CpuDevice, rates: Rates) -> None:
        self.machine, self.rates = machine, rates
        self._lowered: dict[str, Lowered] = {}
        self._watch = Watch(Options(dump=None, verify=False))

    def __call__(self, compilation: Compilation, variant: Variant) -> Candidate | None:
        """A variant lowered and printed; None where it cannot be, and is not the model's choice."""
        same = replace(compilation, knobs=compilation.knobs.of_kernels).key
        try:
            if same not in self._lowered:
                self._lowered[same], code = emitted(self._watch, compilation)
            else:
                code = printed(self._watch, compilation, self._lowered[same])
        except PolyfuseError:
            if not variant.changes:
                raise
            return None
        assert isinstance(code, CpuCode)
        made = self._lowered[same]
        keep_plan(compilation.key, code, made.decisions, compilation.graph.name)
        seconds = project(made.kernels, self.machine, compilation.knobs, self.rates).seconds
        return Candidate(variant, compilation, code, seconds)


def _likely(found: Sequence[Candidate]) -> tuple[list[Candidate], list[Row]]:
    """Those to measure, and rows of the others."""
    first, rest = found[0], found[1:]
    near = [c for c in rest if c.predicted <= HOPELESS * first.predicted][: MOST - 1]
    left = [Row(c.variant, c.predicted, None, "by its projected time") for c in rest if c not in near]
    return [first, *near], left


# --- the measurement -------------------------------------------------------------------------------------


def _search(base: Compilation, timer: Timer) -> Tuning:
    make = Maker(*projected_cpu(base.options.threads))
    chosen, left = _likely(candidates(base, make, LOWER_S))
    rows = _timed(chosen, timer)
    joined = _joined(rows)
    if joined is not None:
        more = make(compilation_of(base, joined), joined)
        chosen += [more] if more is not None else []
    if fastest(rows).variant.changes:  # it meets the model's choice, and the joined changes, again
        last = (Variant(), fastest(rows).variant, joined)
        rows = _merged(rows, _timed([c for c in chosen if c.variant in last], timer))
    best = fastest(rows)
    for c in chosen:
        if c.variant not in (best.variant, Variant()):
            Cache.open_default().remove(c.compilation.key)
    return Tuning(base.graph.name, (*rows, *left), best.variant, "")


def _merged(rows: Sequence[Row], again: Sequence[Row]) -> list[Row]:
    """The shorter time of each."""
    found = {r.variant: r for r in rows}
    for r in again:
        shorter = [x.measured for x in (r, found.get(r.variant, r)) if x.measured is not None]
        found[r.variant] = replace(r, measured=min(shorter, default=None))
    return list(found.values())


def _timed(found: Sequence[Candidate], timer: Timer) -> list[Row]:
    """A row for each; the first one is what the others are compared with. Raises TrialFailed if it fails."""
    notes = _compiled(found)
    ready = [c for c in found if c.compilation.key not in notes]
    if found[0] not in ready:
        raise TrialFailed(notes[found[0].compilation.key])
    seconds = shortest([c.compilation.key for c in ready], timer, notes, TIME_S)
    keys = [c.compilation.key for c in found]
    return [
        Row(c.variant, c.predicted, seconds.get(k), notes.get(k, ""))
        for c, k in zip(found, keys, strict=True)
    ]


def _compiled(found: Sequence[Candidate]) -> dict[str, str]:
    """Compile them side by side; key -> what is wrong, for those that are not ready in time."""
    pool = ThreadPoolExecutor(min(COMPILERS, jobs()))
    futures = {pool.submit(compile_shared, c.code.source): c.compilation.key for c in found}
    first = next(iter(futures))
    try:
        wait([first])
        wait(futures, timeout=COMPILE_S)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    notes = {}
    for future, key in futures.items():
        if future.cancelled() or not future.done():
            notes[key] = "not compiled in time"
        elif future.exception() is not None:
            notes[key] = f"not compiled: {str(future.exception()).splitlines()[0]}"
    return notes


def shortest(keys: Sequence[str], timer: Timer, notes: dict[str, str], limit_s: float) -> dict[str, float]:
    """Seconds of each that runs, in turns, the shortest of all; what fails is told in `notes`.

    Raises TrialFailed if the first one fails: there is nothing to compare with.
    """
    alive: dict[str, float] = {}
    best: dict[str, float] = {}
    for key in keys:
        try:
            alive[key] = timer.first(key)
        except TrialFailed as failed:
            if key == keys[0]:
                raise
            notes[key] = str(failed)
    deadline = time.monotonic() + limit_s
    for k in range(MOST_ROUNDS):
        for key in list(alive):
            calls = max(1, min(MOST_CALLS, int(TURN_S / max(alive[key], 1e-9))))
            try:
                best[key] = min(best.get(key, float("inf")), timer.seconds(key, calls))
            except TrialFailed as failed:
                notes[key] = str(failed)
                del alive[key]
        if k + 1 >= FEWEST_ROUNDS:
            least = min((best[key] for key in alive), default=0.0)
            alive = {key: x for key, x in alive.items() if key == keys[0] or best[key] <= FAR * least}
            if time.monotonic() > deadline:
                break
    return {key: x for key, x in best.items() if key not in notes}


def fastest(rows: Sequence[Row]) -> Row:
    """The model's choice, or one that is faster by more than noise."""
    timed = [r for r in rows if r.measured is not None]
    first, best = timed[0], min(timed, key=lambda r: r.measured or 0.0)
    assert first.measured is not None and best.measured is not None
    return best if best.measured < GAIN * first.measured else first


def _joined(rows: Sequence[Row]) -> Variant | None:
    """The changes that gained, together, as far as they are of different things; None for fewer than two."""
    first = rows[0]
    assert first.measured is not None
    gained = [r for r in rows[1:] if r.measured is not None and r.measured < GAIN * first.measured]
    found: Variant | None = None
    for r in sorted(gained, key=lambda r: r.measured or 0.0)[:4]:
        both = found.joined(r.variant) if found is not None else r.variant
        found = both or found
    return found if found is not None and len(found.changes) > 1 else None
