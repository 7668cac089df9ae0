"""Making of samples: an operator is compiled in many ways, and what it becomes is put into a folder.

    Program  --Made--> graphs of features, keys of plans in the cache of the folder   FOLDER/<name>.made
             --g++-->  libraries in that cache

Nothing is timed here: compilers use all cores, and timing needs quiet ones (`learn.timing`).
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.projection import Rates, project
from polyfuse.diagnostics import PolyfuseError
from polyfuse.driver.lowering import Lowered
from polyfuse.driver.pipeline import Compilation, Watch, emitted, fixed_graph, printed
from polyfuse.driver.targets import knobs_for, projected_cpu, told
from polyfuse.ir.cpu_core import AVX2, Core, CpuKnobs
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.learn.features import kernel_graphs, learned_cpu
from polyfuse.learn.plans import pairs, plans
from polyfuse.learn.samples import PLANS, VARIANTS, Sample, collected
from polyfuse.options import Options
from polyfuse.runtime.cache.plans import keep_plan
from polyfuse.runtime.toolchain.compiler import compile_shared
from polyfuse.tuning.candidates import compilation_of, proposals
from polyfuse.tuning.table import OF_THREADS, Choices, Variant
from polyfuse.tuning.trial import recipes

MADE = ".made"
# More memory, time or code than this is left out: one sample would take as long as a hundred others.
MOST_BYTES, MOST_S, MOST_CHARS = 256 << 20, 0.03, 60_000
# Plans are drawn until so many one after the other were there before.
_IDLE = 6


@dataclass(frozen=True)
class Program:
    """An operator at known sizes: its name, one of `samples.FAMILIES`, and what gives it."""

    name: str
    family: str
    make: Callable[[], tuple[TensorGraph, Mapping[str, int]]]


CORES: Mapping[str, Core | None] = {"own": None, "avx2": AVX2}
"""Cores that code can be made for: that of the machine, or one that it can do the work of.  Then the compiler
must be told, too: ``CXX="g++ -mno-avx512f"``."""


@dataclass(frozen=True)
class Wanted:
    """How many samples of each task an operator has at most, for how many threads and which of `CORES`, and
    how many seconds of the processor it may take to draw them, beside those of compilers."""

    variants: int = 12
    plans: int = 8
    threads: int = 1
    seconds: float = 4.0
    core: str = "own"

    def knobs(self, options: Options) -> CpuKnobs:
        """For the machine at hand, or for one of `CORES` with its caches."""
        usual = knobs_for("cpu", options)
        other = CORES[self.core]
        return usual if other is None else replace(usual, core=replace(other, l1=usual.on.l1, l2=usual.on.l2))


@dataclass
class Maker:
    """Makes the samples of programs in a folder, which is the cache's, too."""

    folder: Path
    wanted: Wanted = field(default_factory=Wanted)

    def __post_init__(self) -> None:
        self.options = Options(threads=self.wanted.threads, progress=False, verify=False, dump=None)
        self.knobs = self.wanted.knobs(self.options)
        self.projected: tuple[CpuDevice, Rates] = projected_cpu(self.wanted.threads)
        self.machine = learned_cpu(self.knobs.on, self.wanted.threads)

    def file(self, program: Program) -> Path:
        """Where the samples of a program are put."""
        return self.folder / f"{file_name(program.name)}{MADE}"

    def compilation(self, graph: TensorGraph, sizes: Mapping[str, int]) -> Compilation:
        """What the compiler does on its own."""
        return Compilation(
            graph,
            sizes,
            LoopFusion(),
            self.options,
            stitching=Stitching(),
            packing=Packing(),
            knobs=self.knobs,
        )

    def make(self, program: Program) -> int:
        """Lower, print and compile all samples of a program; how many there are."""
        graph, sizes = program.make()
        base = self.compilation(graph, sizes)
        require_small(base)
        found = _Ways(self, program, base)
        found.draw()
        about: dict[str, Any] = {
            "keys": found.keys,
            "inputs": [r.as_json() for r in recipes(graph, sizes)],
            "refused": found.refused,
            "threads": self.wanted.threads,
        }
        collected(found.samples, about).save(self.file(program))
        return len(found.samples)


class TooLarge(Exception):
    """A program is not worth the time."""


def require_small(base: Compilation) -> None:
    """Raises TooLarge for an operator with too much memory."""
    total = sum(
        math.prod((evaluate(product(t.shape), base.sizes), t.dtype.bytes)) for t in base.graph.tensors
    )
    if total > MOST_BYTES:
        raise TooLarge(f"{total >> 20} MB")


class _Ways:
    """The ways in which one program is compiled; each code once."""

    def __init__(self, maker: Maker, program: Program, base: Compilation) -> None:
        self.maker, self.program, self.base = maker, program, base
        self.samples: list[Sample] = []
        self.keys: list[str] = []
        self.refused = 0
        self._until = time.process_time() + maker.wanted.seconds
        self._lowered: dict[str, Lowered] = {}
        self._watch = Watch(maker.options)
        self._seen: dict[int, set[object]] = {VARIANTS: set(), PLANS: set()}
        self._first: set[object] = set()
        self._labels: set[tuple[int, str]] = set()

    def draw(self) -> None:
        """All that are wanted. Raises PolyfuseError where the model's choice cannot be made."""
        wanted = self.maker.wanted
        graph = fixed_graph(self.base.graph, self.base.sizes)
        self._draw_variants(graph, wanted.variants)
        if wanted.plans and len(graph.statements) > 1:
            self._as_plan()
            self._draw_plans(wanted.plans)

    def _draw_variants(self, graph: TensorGraph, wanted: int) -> None:
        """The model's choice, all that tuning would try, and pairs of what has other code."""
        usual = Choices(self.base.fusion, self.base.stitching, self.base.packing, self.base.knobs)
        model, *singles = proposals(graph, usual, self.maker.projected[0])
        random.Random(self.program.name).shuffle(singles)
        self._try(str(model), VARIANTS, self.base, needed=True)
        able: list[str] = []
        for variant in singles:
            if variant.changes[0] in OF_THREADS and self.maker.wanted.threads == 1:
                continue
            if self._goes_on(wanted) and self._try_variant(variant):
                able += variant.changes
        for variant in islice(pairs(able, self.program.name), wanted // 3):
            if self._goes_on(wanted):
                self._try_variant(variant)

    def _goes_on(self, wanted: int) -> bool:
        """Plans have half of the time for themselves."""
        return (
            len(self.samples) < wanted and time.process_time() < self._until - self.maker.wanted.seconds / 2
        )

    def _try_variant(self, variant: Variant) -> bool:
        """Has a variant other code than those before? Made without feedback, which takes as long as the rest
        and seldom has another opinion."""
        before = len(self.samples)
        free = replace(self.base, clustering=replace(self.base.clustering, feedback="failures"))
        self._try(str(variant), VARIANTS, compilation_of(free, variant))
        return len(self.samples) > before

    def _draw_plans(self, wanted: int) -> None:
        """So many plans, or fewer, where what is drawn was there before, again and again."""
        made = idle = 0
        for label, way in plans(self.base, self.program.name):
            before = len(self.samples)
            self._try(label, PLANS, way)
            made, idle = (made + 1, 0) if len(self.samples) > before else (made, idle + 1)
            if made >= wanted or idle >= _IDLE or time.process_time() > self._until:
                break

    def _as_plan(self) -> None:
        """The model's choice is one of the plans, too."""
        first = self.samples[0]
        self.samples.append(replace(first, task=PLANS))
        self.keys.append(self.keys[0])
        self._seen[PLANS] |= self._first

    def _try(self, label: str, task: int, way: Compilation, needed: bool = False) -> None:
        if (task, label) in self._labels:
            return
        self._labels.add((task, label))
        try:
            low, code = self._made(way)
            form = code.source, repr(self._one_thread(code))
            if len(code.source) > MOST_CHARS and needed:
                raise TooLarge(f"its code has {len(code.source)} characters")
            if form in self._seen[task] or len(code.source) > MOST_CHARS:
                return
            graphs = kernel_graphs(low.kernels, self.maker.machine, way.knobs)
            looks = tuple(g.key for g in graphs)
            if looks in self._seen[task]:
                return  # to the model it is that one, and it takes as long
            machine, rates = self.maker.projected
            seconds = project(low.kernels, machine, way.knobs, rates).seconds
            if needed and seconds > MOST_S:
                raise TooLarge(f"it takes about {seconds:.2g} s")
            compile_shared(code.source)
        except PolyfuseError:
            if needed:
                raise
            self.refused += 1
            return
        if needed:
            self._first = {form, looks}
        self._seen[task] |= {form, looks}
        keep_plan(way.key, code, told(low.decisions, code, low.kernels), way.graph.name)
        self.keys.append(way.key)
        name, family = self.program.name, self.program.family
        self.samples.append(Sample(name, family, task, label, needed, math.nan, 0.0, seconds, graphs))

    def _made(self, way: Compilation) -> tuple[Lowered, CpuCode]:
        """Kernels and code; ways that differ only in how kernels are printed share these."""
        same = replace(way, knobs=way.knobs.of_kernels).key
        if same in self._lowered:
            code = printed(self._watch, way, self._lowered[same])
        else:
            self._lowered[same], code = emitted(self._watch, way)
        assert isinstance(code, CpuCode)
        return self._lowered[same], code

    def _one_thread(self, code: CpuCode) -> object:
        """The plan as far as this many threads tell plans apart."""
        alone = self.maker.wanted.threads == 1
        return replace(code.plan, chunks=None, threads=None) if alone else code.plan


def file_name(name: str) -> str:
    """A name for files, another one for each name."""
    plain = re.sub(r"[^A-Za-z0-9.=-]+", "_", name)[:60]
    return f"{plain}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def made_files(folder: Path) -> Iterator[Path]:
    """The programs that are made in a folder."""
    yield from sorted(folder.glob(f"*{MADE}"))
