"""Plans of an operator's GPU kernels as code: made and compiled side by side, each by a process of its own.

    plans --makers, as many as there are cores--> machine code in the cache, projected time

A maker is told a compilation and one plan after the other (`polyfuse.tuning.gpu_maker`).  It does all of a
plan: layers, mapping, printing, and NVRTC; no device is used.  With one core this process does so itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from queue import Empty, SimpleQueue
from typing import Any

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.cost.machines import machine_of
from polyfuse.cost.speed_of_light import estimate
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.machine_work import projections
from polyfuse.driver.parallel import pack
from polyfuse.driver.pipeline import Compilation, Watch, planned
from polyfuse.driver.targets import chip, compile_ahead
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import Cubin
from polyfuse.runtime.cuda.sass import find_nvdisasm
from polyfuse.support.processes import Child, ChildDied, ChildLate, ChildUnavailable, jobs
from polyfuse.tuning.candidates import LATE, compilation_of
from polyfuse.tuning.table import GPU_CHANGES, Choices, Variant

GREETING = "polyfuse plan maker 1"
# Each holds about 100 MiB.
MOST_MAKERS = 16
# Changes that matter where there are several statements, and where some of them reduce.
OF_REDUCTIONS = ("reductions in one pass", "reductions in two passes")
OF_SEVERAL = (
    "kernels apart",
    "stitched wherever possible",
    "temporaries stored",
    "barriers of the grid",
    "no barriers of the grid",
    *OF_REDUCTIONS,
)
CRASHED = "it crashed the compiler"


def plans(graph: TensorGraph, base: Choices) -> Iterator[Variant]:
    """The model's plan, then all that differ from it in one change that can matter for the graph."""
    yield Variant()
    several = len(graph.statements) > 1
    reduces = any(s.reduction is not None for s in graph.statements)
    for name, change in GPU_CHANGES.items():
        matters = (several or name not in OF_SEVERAL) and (reduces or name not in OF_REDUCTIONS)
        if matters and change(base) != base:
            yield Variant((name,))


@dataclass(frozen=True)
class GpuCandidate:
    """A plan whose machine code is in the cache. form: equal for equal code and launches."""

    variant: Variant
    compilation: Compilation
    predicted: float
    form: str

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return self.compilation.key


def made(base: Compilation, variant: Variant, exact: bool = True) -> dict[str, Any]:
    """Make and compile one plan: its projected time and its form, or what is wrong. `exact`: by its machine
    code, where that can be read."""
    compilation = compilation_of(base, variant)
    try:
        low, code, _ = planned(Watch(Options(dump=None, verify=False)), compilation)
        cubin = compile_ahead(code, compilation.target, compilation.options)
        kernels = low.kernels if low is not None else compilation.lowered(Watch(Options(dump=None))).kernels
        assert isinstance(code, CudaCode)
        seconds = _projected(compilation, kernels, code, cubin if exact else None)
    except PolyfuseError as error:
        return {"error": str(error).splitlines()[0]}
    except (ValueError, KeyError) as error:  # the cost model cannot say
        return {"error": f"no projected time: {error}"}
    form = sha256(f"{code.source}\0{code.plan!r}".encode()).hexdigest()
    return {"seconds": seconds, "form": form}


def _projected(compilation: Compilation, kernels: KernelGraph, code: CudaCode, cubin: Cubin | None) -> float:
    """Seconds by the machine code, if it is given and can be read, else by the loops."""
    rough = estimate(kernels, machine_of(compilation.machine))
    if cubin is None or find_nvdisasm() is None or any(x.library is not None for x in code.plan.launches):
        return rough.seconds
    device = chip(compilation.options, compilation.target)
    try:
        return sum(p.time.seconds for p in projections(code.plan, cubin, rough, device))
    except (PolyfuseError, LookupError, ValueError):  # code that nobody has read before
        return rough.seconds


# --- many at once -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proposed:
    """Plans that are ready: the model's, then what differs from all before it in code, by rising projected
    time. notes: what is wrong with the others."""

    candidates: tuple[GpuCandidate, ...]
    notes: Mapping[Variant, str]


class Makers:
    """Processes that make plans; `with` ends them."""

    def __init__(self, base: Compilation, command: Sequence[str] = ()) -> None:
        # A report of progress is a function of this process.
        self.base = replace(base, options=replace(base.options, progress=False))
        self._command = command
        self._children: list[Child] = []

    def __enter__(self) -> Makers:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def make(self, variants: Sequence[Variant], deadline: float) -> Proposed:
        """All that are ready in time; the first, the model's, is made in this process, which waits for it."""
        first, *rest = variants
        waiting: SimpleQueue[Variant] = SimpleQueue()
        for variant in rest:
            waiting.put(variant)
        found: dict[Variant, dict[str, Any]] = {}
        count = min(jobs(), MOST_MAKERS, len(rest) + 1) - 1
        threads = [
            threading.Thread(target=self._serve, args=(waiting, found, deadline), daemon=True)
            for _ in range(count)
        ]
        for t in threads:
            t.start()
        found[first] = made(self.base, first)
        self._here(waiting, found, deadline)
        for t in threads:
            t.join(max(0.0, deadline - time.monotonic()))
        return self._sorted(variants, dict(found))

    def _here(
        self, waiting: SimpleQueue[Variant], found: dict[Variant, dict[str, Any]], deadline: float
    ) -> None:
        while time.monotonic() < deadline:
            try:
                variant = waiting.get_nowait()
            except Empty:
                return
            found[variant] = made(self.base, variant)

    def _serve(
        self, waiting: SimpleQueue[Variant], found: dict[Variant, dict[str, Any]], deadline: float
    ) -> None:
        """One process, which takes what waits. A plan that it dies of, or is late with, is told; then it is
        over."""
        child = Child("polyfuse.tuning.gpu_maker", GREETING, command=self._command)
        self._children.append(child)

        def asked(request: bytes) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(child.exchange(request, deadline - time.monotonic()))
            return found

        current: Variant | None = None
        with child.lock:
            try:
                child.ensure_started()
                asked(pack(self.base))
                while time.monotonic() < deadline:
                    current = waiting.get_nowait()
                    found[current] = {"error": LATE}
                    found[current] = asked(json.dumps(current.as_json()).encode())
            except ChildDied:
                if current is not None:
                    found[current] = {"error": CRASHED}
            except (Empty, ChildLate, ChildUnavailable, ValueError):
                pass
            finally:
                child.kill()

    def _sorted(self, variants: Sequence[Variant], found: Mapping[Variant, dict[str, Any]]) -> Proposed:
        notes = {
            v: str(found.get(v, {"error": LATE})["error"]) for v in variants if "form" not in found.get(v, {})
        }
        ready = [
            GpuCandidate(v, compilation_of(self.base, v), float(found[v]["seconds"]), str(found[v]["form"]))
            for v in variants
            if v not in notes
        ]
        distinct: dict[str, GpuCandidate] = {}
        for c in ready:
            distinct.setdefault(c.form, c)
        first = [c for c in distinct.values() if c.variant == variants[0]]
        rest = sorted((c for c in distinct.values() if c not in first), key=lambda c: c.predicted)
        return Proposed((*first, *rest), notes)
