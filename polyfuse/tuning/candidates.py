"""Variants of an operator as code: lowered and printed one after the other, the likeliest compiled meanwhile.

    proposals --Maker--> Candidate (code, time by a cost model) --Compilers--> a library in the cache

All has a deadline: what is not ready by then is left out, and told.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from math import inf, prod
from types import TracebackType
from typing import Self

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.extents import tensor_bytes
from polyfuse.cost.projection import Rates
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.pipeline import Compilation, Watch, emitted, fixed_graph, lowered, printed
from polyfuse.driver.targets import told
from polyfuse.ir.index_expr import IConst, binary, variables
from polyfuse.ir.tensor_graph import EXPR_TYPES, Role, Statement, TensorGraph, depends_on, statement_reads
from polyfuse.options import Options
from polyfuse.runtime.cache.plans import keep_plan
from polyfuse.runtime.toolchain.compiler import compile_shared
from polyfuse.support.processes import jobs
from polyfuse.tuning.judges import Judge, Prediction, ProjectedJudge
from polyfuse.tuning.table import CHANGES, LIMITS, PLAN_CHANGES, Choices, Variant

# --- variants ---------------------------------------------------------------------------------------------

# Variants of an operator's CPU code: the choices of passes and code generation, taken one way or another.
#
# A variant is a set of named changes to what the passes would do on their own:
#
#     Variant(("non-temporal stores", "prefetch 2 rows ahead"))
#
# `proposals` lists those that can matter for a graph, the likeliest first; whether one changes the code at
# all shows when it is printed (`polyfuse.tuning.tuner` measures equal code once).


# Longer rows are not tried several at a time: what they keep would not stay in registers and L1.
LONGEST_TOGETHER = 512
# Sums across rows below this share of L1 are not worth it either.
SHARE_OF_L1 = 4


def proposals(
    graph: TensorGraph, base: Choices, machine: CpuDevice, plans: bool = False
) -> Iterator[Variant]:
    """The model's choice, then all that differ from it in one change that can matter for the graph; `plans`:
    also in how statements are fused."""
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
    for name, change in PLAN_CHANGES.items() if plans and one_pass else ():
        if change(base) != base and LIMITS.get(name, 0) < len(graph.statements):
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


# --- their code -------------------------------------------------------------------------------------------

COMPILERS = 2
LATE = "not compiled in time"
# Fewer candidates are not worth a measurement.
FEW = 4
# Kernels that a maker keeps, to print them again.
MOST_KEPT = 64


@dataclass(frozen=True)
class Candidate:
    """A variant with its code, ready to be compiled."""

    variant: Variant
    compilation: Compilation
    code: CpuCode
    prediction: Prediction

    @property
    def predicted(self) -> float:
        """Seconds by the model."""
        return self.prediction.seconds

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return self.compilation.key


def compilation_of(base: Compilation, variant: Variant) -> Compilation:
    """The compilation that gives a variant's code."""
    made = variant.of(choices_of(base))
    return replace(
        base,
        fusion=made.fusion,
        stitching=made.stitching,
        packing=made.packing,
        knobs=made.knobs,
        mapping=made.mapping,
        clustering=made.clustering,
    )


def choices_of(base: Compilation) -> Choices:
    """What variants change, as a compilation has it."""
    return Choices(base.fusion, base.stitching, base.packing, base.knobs, base.mapping, base.clustering)


@dataclass(frozen=True)
class Proposed:
    """The model's choice, then what differs from all before it in code, by rising projected time; is there
    anything that was not tried, because time was up?"""

    candidates: tuple[Candidate, ...]
    complete: bool


def proposed(
    base: Compilation,
    make: Maker,
    deadline: float,
    last: float | None = None,
    begun: Callable[[Candidate], None] = lambda c: None,
    plans: bool = False,
) -> Proposed:
    """All candidates that can be made until the deadline; where they are few, until the last moment. `begun`
    is told of each as soon as it is there; `plans`: other plans of fusion are among them."""
    graph = fixed_graph(base.graph, base.sizes)
    choices = choices_of(base)
    seen: set[object] = set()
    found: list[Candidate] = []
    complete = True
    for variant in proposals(graph, choices, make.machine, plans):
        until = deadline if last is None or len(found) >= FEW else last
        if found and time.monotonic() > until:
            complete = False
            break
        made = make(compilation_of(base, variant), variant)
        if made is not None and (form := (made.code.source, repr(made.code.plan))) not in seen:
            seen.add(form)
            found.append(made)
            begun(made)
    return Proposed((found[0], *sorted(found[1:], key=lambda c: c.predicted)), complete)


class Maker:
    """Makes candidates; variants that differ only in how kernels are printed share these."""

    def __init__(self, machine: CpuDevice, rates: Rates, judge: Judge | None = None) -> None:
        self.machine, self.judge = machine, judge or ProjectedJudge(machine, rates)
        self._lowered: dict[str, Lowered] = {}  # the latest last
        self._watch = Watch(Options(dump=None, verify=False))

    def __call__(self, compilation: Compilation, variant: Variant) -> Candidate | None:
        """A variant lowered and printed; None where it cannot be, and is not the model's choice."""
        try:
            made, code = self._made(compilation)
        except PolyfuseError:
            if variant.is_model:
                raise
            return None
        assert isinstance(code, CpuCode)
        keep_plan(compilation.key, code, told(made.decisions, code, made.kernels), compilation.graph.name)
        return Candidate(variant, compilation, code, self.judge.predict(made, compilation.knobs))

    def predict(self, compilation: Compilation) -> Prediction:
        """What the model says of a compilation, which is not printed; infinite where it cannot be made."""
        same = _same_kernels(compilation)
        try:
            if same not in self._lowered:
                self._keep(same, lowered(self._watch, compilation))
            return self.judge.predict(self._lowered[same], compilation.knobs)
        except PolyfuseError:
            return Prediction((inf,))

    def _made(self, compilation: Compilation) -> tuple[Lowered, CpuCode | CudaCode]:
        same = _same_kernels(compilation)
        if same in self._lowered:
            return self._lowered[same], printed(self._watch, compilation, self._lowered[same])
        made, code = emitted(self._watch, compilation)
        self._keep(same, made)
        return made, code

    def _keep(self, same: str, made: Lowered) -> None:
        self._lowered[same] = made
        if len(self._lowered) > MOST_KEPT:
            del self._lowered[next(iter(self._lowered))]


def _same_kernels(compilation: Compilation) -> str:
    """Equal for compilations that differ only in how kernels are printed."""
    return replace(compilation, knobs=compilation.knobs.of_kernels).key


class Compilers:
    """Compilers that run side by side; each takes the likeliest of what waits, the model's choice first."""

    def __init__(self, compile_one: Callable[[str], object] | None = None) -> None:
        self._compile = compile_one or compile_shared
        self._pool = ThreadPoolExecutor(min(COMPILERS, jobs()))
        self._waiting: list[tuple[float, int, Candidate]] = []
        self._turn: dict[str, Future[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def add(self, c: Candidate) -> None:
        """To be compiled as soon as a compiler is free."""
        self._turn[c.key] = Future()
        heapq.heappush(self._waiting, (0.0 if c.variant.is_model else c.predicted, len(self._turn), c))
        self._pool.submit(self._one)

    def _one(self) -> None:
        _, _, c = heapq.heappop(self._waiting)
        done = self._turn[c.key]
        if not done.set_running_or_notify_cancel():
            return
        try:
            self._compile(c.code.source)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    def notes(self, first: Candidate, deadline: float) -> dict[str, str]:
        """Wait for the first one, and for all until the deadline; key -> what is wrong, for those that are
        not ready."""
        wait([self._turn[first.key]])
        left = None if deadline == inf else max(0.0, deadline - time.monotonic())
        wait(self._turn.values(), timeout=left)
        notes = {}
        for key, future in self._turn.items():
            if future.cancel() or not future.done():
                notes[key] = LATE
            elif future.exception() is not None:
                notes[key] = f"not compiled: {str(future.exception()).splitlines()[0]}"
        return notes
