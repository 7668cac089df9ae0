"""Variants of an operator as code: lowered and printed one after the other, the likeliest compiled meanwhile.

    proposals --Maker--> Candidate (code, projected time) --Compilers--> a library in the cache

All has a deadline: what is not ready by then is left out, and told.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from polyfuse.children import jobs
from polyfuse.codegen.cpu import CpuCode
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates, project
from polyfuse.diagnostics import PolyfuseError
from polyfuse.layers.variants import Choices, Variant, proposals
from polyfuse.lowering import Lowered
from polyfuse.options import Options
from polyfuse.pipeline import Compilation, Watch, emitted, fixed_graph, printed, told
from polyfuse.runtime.plan_cache import keep_plan
from polyfuse.runtime.toolchain import compile_shared

COMPILERS = 2
LATE = "not compiled in time"
# Fewer candidates are not worth a measurement.
FEW = 4


@dataclass(frozen=True)
class Candidate:
    """A variant with its code, ready to be compiled."""

    variant: Variant
    compilation: Compilation
    code: CpuCode
    predicted: float

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return self.compilation.key


def compilation_of(base: Compilation, variant: Variant) -> Compilation:
    """The compilation that gives a variant's code."""
    made = variant.of(Choices(base.fusion, base.stitching, base.packing, base.knobs))
    return replace(base, fusion=made.fusion, stitching=made.stitching, packing=made.packing, knobs=made.knobs)


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
) -> Proposed:
    """All candidates that can be made until the deadline; where they are few, until the last moment. `begun`
    is told of each as soon as it is there."""
    graph = fixed_graph(base.graph, base.sizes)
    choices = Choices(base.fusion, base.stitching, base.packing, base.knobs)
    seen: set[object] = set()
    found: list[Candidate] = []
    complete = True
    for variant in proposals(graph, choices, make.machine):
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
        keep_plan(compilation.key, code, told(made, code), compilation.graph.name)
        seconds = project(made.kernels, self.machine, compilation.knobs, self.rates).seconds
        return Candidate(variant, compilation, code, seconds)


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
        heapq.heappush(self._waiting, (c.predicted if c.variant.changes else 0.0, len(self._turn), c))
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
        wait(self._turn.values(), timeout=max(0.0, deadline - time.monotonic()))
        notes = {}
        for key, future in self._turn.items():
            if future.cancel() or not future.done():
                notes[key] = LATE
            elif future.exception() is not None:
                notes[key] = f"not compiled: {str(future.exception()).splitlines()[0]}"
        return notes
