"""The way of the data, top to bottom.

    text --frontend_dsl--> TensorGraph --cleaned--> TensorGraph --LoopFusion--> ScheduledGraph
         --Stitching, Packing--> KernelGraph --emit--> CpuCode --CpuExecutable--> NumPy arrays in and out

Between two steps one callback sees what came out: it verifies, dumps and times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from polyfuse.codegen.cpu.emit import CpuCode, Request, emit_together
from polyfuse.codegen.cuda.emit import CudaCode, emit_cuda
from polyfuse.codegen.passes import Loops, observed
from polyfuse.codegen.verify import PassVerifier
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ArgumentError, Diagnostics, DslError, ScheduleError, ToolchainError
from polyfuse.driver import feedback
from polyfuse.driver.feedback import (
    Candidate,
    Lessons,
    NoLessons,
    Trial,
    remembered_parts,
    settle,
    trial_of,
    tried_by,
)
from polyfuse.driver.lowering import (
    Lowered,
    Maker,
    Passes,
    cluster_kernels,
    in_one_pass,
    launches,
    lower_clusters,
    schedule_by,
)
from polyfuse.driver.parallel import lower_all, peak_bytes
from polyfuse.driver.spills import unspilled
from polyfuse.driver.targets import Machine, chip, knobs_for, load, mapped_for, told
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.layouts import DENSE, Layouts
from polyfuse.ir.linear import index_operand
from polyfuse.ir.schedule_tree import ScheduledGraph
from polyfuse.ir.target import Target
from polyfuse.ir.tensor_graph import EXPR_TYPES, Apply, Expr, Select, TensorGraph, map_expr, statement_reads
from polyfuse.ir.truth_values import with_truth_values
from polyfuse.ir.verify_graph import report_large, verify_graph
from polyfuse.ir.verify_kernel import verify_kernels
from polyfuse.layers.clustering.clusters import Clustering
from polyfuse.layers.clustering.join import Piece
from polyfuse.layers.fusion.loop_fusion import LoopFusion, require_legal
from polyfuse.layers.graph.orders import with_orders
from polyfuse.layers.graph.pipeline import GraphContext, prepared
from polyfuse.layers.graph.reindex.axis_order import in_memory_order
from polyfuse.layers.mapping.kernels import entry_copies
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import ON_GPU, Options
from polyfuse.poly.element_space import in_element_space
from polyfuse.poly.legality.index_overflow import wrapping
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.poly.legality.zero_divisions import without_zero_divisions
from polyfuse.poly.model.domains import specialize
from polyfuse.runtime.cache.plans import KeptLessons, keep_plan, load_plan, plan_key
from polyfuse.runtime.cuda.compiler import find_cuda_compiler
from polyfuse.runtime.interpreter.interpreter import InterpretedKernels
from polyfuse.runtime.report import loops_text
from polyfuse.support.progress import tell

if TYPE_CHECKING:
    from polyfuse.tuning.table import Tuning


Result = TypeVar("Result")
# Shorter steps are left out where people read, and all passes but the slowest.
SHOWN_S = 0.001
SLOWEST = 3
# Steps whose loops are compiled; others make loops to estimate their times.
PRINTED = ("cpp", "cuda")


@dataclass(slots=True)
class Watch:
    """The callback between two steps. `seconds` tells how long each step took."""

    options: Options
    seconds: dict[str, float] = field(default_factory=dict)
    dumped: int = 0
    passes: dict[str, float] = field(default_factory=dict)

    def __call__(self, step: str, make: Callable[[], Result]) -> Result:
        """Run a step; then verify what came out, write it to the dump folder, and take the time."""
        tell(step, 0, 1)
        start = time.perf_counter()
        with observed(_Passes(self, step)):
            result = make()
        self.seconds[step] = time.perf_counter() - start
        if self.options.verify:
            _verify(result)
        if self.options.dump is not None and result is not None:
            self._dump(step, result)
        return result

    def _dump(self, step: str, result: object) -> None:
        folder = self.options.dump
        assert folder is not None
        self.dumped += 1
        name = f"{self.dumped - 1:02d}_{step}.{_suffix(result)}"
        _write(folder, name, _text(result))


class _Passes:
    """Looks at passes over loops: how long each takes, and what came out, for the folder of dumps.  Loops
    that a step prints are verified."""

    def __init__(self, watch: Watch, step: str) -> None:
        self.watch, self.number, self.before = watch, 0, 0.0
        folder = watch.options.dump
        self.folder = folder and folder / f"{watch.dumped:02d}_{step}_passes"
        self.verify = PassVerifier() if watch.options.verify and step in PRINTED else None

    def __call__(self, pipeline: str, name: str, loops: Loops) -> None:
        if name:
            spent = self.watch.passes
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - self.before
        if self.folder is not None:
            self._write(pipeline, name or "before", loops)
        if self.verify is not None:
            self.verify(pipeline, name, loops)
        self.before = time.perf_counter()

    def _write(self, pipeline: str, name: str, loops: Loops) -> None:
        assert self.folder is not None
        file = f"{self.number:03d}_{pipeline}_{name.replace(':', '_')}.txt"
        self.number += 1
        _write(self.folder / loops.kernel.name, file, str(loops))


def _write(folder: Path, name: str, text: str) -> None:
    """A file of the folder of dumps. Raises ArgumentError PF490 where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    except OSError as e:
        message = f"the folder of dumps cannot be written: {e}"
        raise ArgumentError(message, code="PF490", hint="it is that of dump= or POLYFUSE_DUMP") from None


def _suffix(result: object) -> str:
    return "cpp" if isinstance(result, CpuCode) else "cu" if isinstance(result, CudaCode) else "txt"


def _text(result: object) -> str:
    """What a dump shows of a step's result."""
    match result:
        case CpuCode() | CudaCode():
            return result.source
        case _ if hasattr(result, "plan"):
            return str(result.plan)
        case Lowered():
            return str(result.kernels)
        case list():
            return "\n".join(f"cluster {k}: {', '.join(names)}" for k, names in enumerate(result))
        case tuple():  # what was made, then the decisions that led to it
            return "\n".join(_text(part) for part in result)
        case frozenset():
            return f"copied at entry: {', '.join(sorted(map(str, result))) or 'nothing'}"
        case _:
            return str(result)


def _verify(result: object) -> None:
    if isinstance(result, ScheduledGraph):
        verify_graph(result.graph)
        require_legal(result.graph, result.tree)
    if isinstance(result, TensorGraph):
        verify_graph(result)
    if isinstance(result, Lowered):
        verify_kernels(result.kernels)
    if isinstance(result, tuple) and isinstance(result[0], KernelGraph):
        verify_kernels(result[0])


@dataclass(frozen=True)
class Compilation:
    """What a compilation follows from: a graph with open sizes and values of all or some, passes and options.

    halvings: how often threads of a GPU keep half of what they could (`driver.spills`).  mapping: fields of
    the GPU that kernels are mapped for, in place of its own (`ir.target.GpuTarget`)."""

    graph: TensorGraph
    sizes: Mapping[str, int]
    fusion: LoopFusion | None
    options: Options
    layouts: Layouts = DENSE
    target: str = "cpu"
    stitching: Stitching | None = None
    packing: Packing | None = None
    clustering: Clustering = field(default_factory=Clustering)
    knobs: CpuKnobs = field(default_factory=CpuKnobs)
    halvings: int = 0
    mapping: tuple[tuple[str, object], ...] = ()

    def __post_init__(self) -> None:
        plan, stitching = self.options.gpu_plan, self.stitching
        if plan and plan.barriers is not None and stitching and stitching.barriers is None:
            object.__setattr__(self, "stitching", replace(stitching, barriers=plan.barriers))

    @cached_property
    def machine(self) -> Target:
        """What kernels are mapped for."""
        return mapped_for(self.target, self.options, self.halvings, self.mapping)

    @property
    def key(self) -> str:
        """Its name in the cache of plans.

        No cached property: Python 3.11 computes those under a lock, which stays closed in a forked child.
        """
        return plan_key(
            [
                ("source", self.graph.span.source.text),
                ("graph", repr(self.graph)),
                ("sizes", repr(sorted(self.sizes.items()))),
                ("fusion", repr(self.fusion)),
                ("stitching", repr(self.stitching)),
                ("packing", repr(self.packing)),
                ("clustering", repr(self.clustering)),
                ("knobs", repr(self.knobs)),
                ("machine", repr(self.machine)),
                ("on", "gpu" if self.target in ON_GPU else "cpu"),
                ("judged by", _compiler() if self.target == "cuda" else ""),
                ("strided", ",".join(sorted(self.layouts.strided))),
                ("orders", repr(sorted(self.layouts.orders.items()))),
                ("scan", self.options.scan),
            ]
        )

    @property
    def kept(self) -> bool:
        """May an earlier compilation stand in for this one? Not where its steps are to be looked at."""
        return not (self.options.checked or self.options.verify or self.options.dump)

    def lowered(self, step: Watch) -> Lowered:
        """The way from the graph to kernels."""
        found: list[Decision] = []
        fixed = self.prepared(step, found)
        # TensorGraph -> clusters of statements; several of them take the next steps one by one
        clusters = step("clusters", lambda: self.clusters_of(fixed, found))
        fusion = self.fusion and replace(self.fusion, late="raise")
        cut = replace(self.clustering, groups=None)  # what is cut further is not cut by hand
        passes = Passes(cut, fusion, self.stitching, self.packing, self.machine, self.knobs)
        lessons = KeptLessons() if self.kept else NoLessons()
        made: Maker = partial(lower_all, lessons=lessons)
        if len(clusters) == 1 and (known := remembered_parts(fixed, passes, lessons)):
            clusters = known[0]
            found.append(known[1])
        if len(clusters) == 1:
            try:
                low = self._settled(step, passes, lessons, *self._one_cluster(step, fixed, passes))
                return replace(low, decisions=(*found, *low.decisions))
            except ScheduleError as error:  # it is cut, and tried again
                made = partial(lower_all, lessons=lessons, refused=error)
        low = step("kernels", lambda: lower_clusters(fixed, clusters, passes, made))
        return replace(low, decisions=(*found, *low.decisions))

    def prepared(self, step: Watch, found: list[Decision]) -> TensorGraph:
        """The graph that is cut into clusters."""
        # text and its TensorGraph (open sizes), as they came
        step("source", lambda: (self.graph.span.source.text, self.graph))
        # TensorGraph (open sizes) -> TensorGraph (sizes known, ranges proved)
        specific = step("graph", lambda: fixed_graph(self.graph, self.sizes, found))
        # TensorGraph -> TensorGraph (axes of inputs as they lie in memory)
        specific = in_memory_order(specific, self.layouts.orders, found)
        # TensorGraph -> TensorGraph (without what it need not compute)
        checked, own = must_report(self.options, self.target), self.knobs
        online = self.stitching is not None and self.stitching.online is not False
        strided, parallel = self.layouts.strided, self.options.scan == "parallel"
        cx = GraphContext(found, self.machine, own.on, checked, strided, online, own.disabled, parallel)
        return step("clean", lambda: prepared(specific, cx))

    def clusters_of(self, fixed: TensorGraph, found: list[Decision]) -> list[tuple[str, ...]]:
        """How that graph is cut."""
        remote, strided = self.packing is not None, self.layouts.strided
        return self.clustering.clusters(fixed, found, self.machine, remote, self.knobs.on, strided)

    def _settled(self, step: Watch, passes: Passes, lessons: Lessons, low: Lowered, piece: Piece) -> Lowered:
        """The kernels of one cluster; those of its parts, or by fewer layers, where these are faster."""
        trial = trial_of(piece, passes, lessons)
        if trial is not None:
            low = self._tried(step, passes, lessons, low, trial, piece)
        best = Candidate(low.kernels, low.copied)
        rival = step("rivals", lambda: feedback.less_fused(piece, best, passes, lessons))
        if rival is None:
            return low
        found, why = rival.joined()
        kernels, packs = step("launches", lambda: launches(found.kernels, passes))
        return Lowered(found.scheduled, kernels, found.copied, (*why, *packs))

    def _tried(
        self, step: Watch, passes: Passes, lessons: Lessons, low: Lowered, trial: Trial, piece: Piece
    ) -> Lowered:
        """The kernels of one cluster, or of its parts where these are faster."""
        parts, made = trial.doubt.parts, partial(lower_all, lessons=lessons)
        try:
            tried = tried_by(passes, trial.doubt)
            apart = step("parts", lambda: lower_clusters(piece.graph, parts, tried, made))
        except ScheduleError:
            return low
        whole, other = Candidate(low.kernels, low.copied), Candidate(apart.kernels, apart.copied)
        better, note = settle(piece.graph, trial, whole, other, lessons)
        if better:
            low = step("parts", lambda: lower_clusters(piece.graph, parts, passes, made))
        return replace(low, decisions=(note, *low.decisions))

    def _one_cluster(self, step: Watch, fixed: TensorGraph, passes: Passes) -> tuple[Lowered, Piece]:
        # TensorGraph -> TensorGraph (with reductions in one pass over memory, where that pays)
        passed, forms = step("online", lambda: in_one_pass(fixed, passes))
        # TensorGraph -> ScheduledGraph (layer I)
        scheduled = step("schedule", lambda: schedule_by(passed, passes))
        # ScheduledGraph -> KernelGraph (layer II; mapped, storage planned, proved legal)
        separate, decisions = step("kernels", lambda: cluster_kernels(scheduled, passes))
        # inout parameters: in place, or copied first
        copied, in_place = step("in_place", lambda: entry_copies(separate))
        # KernelGraph -> KernelGraph (layer III; and barriers between kernels)
        kernels, packs = step("launches", lambda: launches(separate, passes))
        why = (*forms, *scheduled.decisions, *decisions, *in_place, *packs)
        return Lowered(scheduled, kernels, copied, why), Piece(fixed, scheduled, separate, copied)


@dataclass(frozen=True)
class Built:
    """A finished compilation.

    `seconds` are those of the steps that ran: an earlier compilation found in the cache leaves out all
    but loading, and then `scheduled` and `kernels` are made when they are asked for.  `tuning`: what was
    measured to choose among variants, where that was asked for.  `passes` are seconds by pass over loops, in
    this process.  `at`: the values of sizes that the executable is for.
    """

    compilation: Compilation
    code: CpuCode | CudaCode | None
    executable: Machine
    decisions: tuple[Decision, ...]
    seconds: Mapping[str, float]
    made: Lowered | None = None
    tuning: Tuning | None = None
    at: Mapping[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    passes: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> str:
        """What the compilation took: seconds by step, memory, and the slowest passes over loops."""
        steps = _listed(self.seconds.items())
        slowest = _listed(sorted(self.passes.items(), key=lambda p: -p[1])[:SLOWEST])
        steps += f"; slowest passes: {slowest}" if slowest else ""
        whole = f"compiled in {sum(self.seconds.values()):.3g} s"
        return f"{whole}{' (' + steps + ')' if steps else ''}, peak memory {self.peak_bytes >> 20} MiB"

    @property
    def scalar_loops(self) -> tuple[Decision, ...]:
        """The innermost loops of a CPU's code that gcc did not vectorise, as it says."""
        return getattr(self.executable, "scalar_loops", ())

    @cached_property
    def lowered(self) -> Lowered:
        return self.made or self.compilation.lowered(Watch(Options(dump=None)))

    @property
    def scheduled(self) -> ScheduledGraph:
        return self.lowered.scheduled

    @property
    def kernels(self) -> KernelGraph:
        return self.lowered.kernels


def _listed(seconds: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{n} {s:.3g} s" for n, s in seconds if s >= SHOWN_S)


def build(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    *,
    target: str = "cpu",
    fusion: LoopFusion | None,
    stitching: Stitching | None = None,
    packing: Packing | None = None,
    clustering: Clustering | None = None,
    options: Options,
    layouts: Layouts = DENSE,
    knobs: CpuKnobs | None = None,
    at: Mapping[str, int] | None = None,
) -> Built:
    """Compile a graph at known sizes for a target (`TARGETS` less "auto") by the layers given.

    Sizes that are not known stay open in the kernels; `at` has their values for what is loaded."""
    made = compilation(
        graph,
        sizes,
        target=target,
        fusion=fusion,
        stitching=stitching,
        packing=packing,
        clustering=clustering,
        options=options,
        layouts=layouts,
        knobs=knobs,
    )
    return run(made, at)


def compilation(
    graph: TensorGraph,
    sizes: Mapping[str, int],
    *,
    target: str,
    fusion: LoopFusion | None,
    stitching: Stitching | None,
    packing: Packing | None,
    clustering: Clustering | None,
    options: Options,
    layouts: Layouts = DENSE,
    knobs: CpuKnobs | None = None,
) -> Compilation:
    """What `build` does, not done yet."""
    cut, usual = clustering_of(clustering, options), knobs_for(target, options)
    if knobs is not None:
        off = knobs.disabled or usual.disabled
        usual = replace(knobs, core=knobs.core or usual.core, disabled=off)
    return Compilation(graph, sizes, fusion, options, layouts, target, stitching, packing, cut, usual)


def clustering_of(clustering: Clustering | None, options: Options) -> Clustering:
    """How graphs are cut, by what was asked for and the options."""
    cut = clustering or Clustering()
    return cut if options.library == "auto" else replace(cut, library=options.library)


def must_report(options: Options, target: str) -> bool:
    """Must nothing be left out that may be found to be wrong while it runs?"""
    return options.checked or target == "interpret"


def run(compilation: Compilation, at: Mapping[str, int] | None = None) -> Built:
    """A compilation, from the cache if it was made before; loaded at these values of open sizes."""
    target, options = compilation.target, compilation.options
    step = Watch(options)
    if target == "interpret":
        low = compilation.lowered(step)
        machine = InterpretedKernels(low.kernels, at, checked=True, copied=low.copied)
        found = Built(compilation, None, machine, low.decisions, step.seconds, low, peak_bytes=peak_bytes())
        return replace(found, passes=step.passes, at=at or compilation.sizes)
    made, code, decisions = planned(step, compilation)
    # C++ or CUDA C++ -> loaded kernels
    executable = step("build", lambda: load(code, target, options, at))
    found = Built(compilation, code, executable, decisions, step.seconds, made, peak_bytes=peak_bytes())
    return replace(found, passes=step.passes, at=at or compilation.sizes)


def planned(
    step: Watch, compilation: Compilation
) -> tuple[Lowered | None, CpuCode | CudaCode, tuple[Decision, ...]]:
    """Source, launch plan and decisions, from the cache if they were made before; then without kernels."""
    key = compilation.key if compilation.kept else None
    kept = load_plan(key, compilation.graph.span.source) if key else None
    if kept is not None:
        return None, *kept
    made, code = _without_spills(step, compilation)
    decisions = told(made.decisions, code, made.kernels)
    if key:
        keep_plan(key, code, decisions, compilation.graph.name)
    return made, code, decisions


def _compiler() -> str:
    """What says which kernels spill, if there is any."""
    try:
        return find_cuda_compiler().identity
    except ToolchainError:
        return "none"


def _without_spills(step: Watch, compilation: Compilation) -> tuple[Lowered, CpuCode | CudaCode]:
    """`emitted`; for a GPU the plan is smaller where kernels would spill."""
    if compilation.target != "cuda":
        return emitted(step, compilation)

    def emit(each: Compilation) -> tuple[Lowered, CudaCode]:
        low, code = emitted(step, each)
        assert isinstance(code, CudaCode)
        return low, code

    return unspilled(compilation, chip(compilation.options, "cuda").arch, emit)


def emitted(step: Watch, compilation: Compilation) -> tuple[Lowered, CpuCode | CudaCode]:
    """`_emitted` with as much of the layers as can be kept in order: they are an offer.

    What cannot be done with barriers of the grid is tried without, then without layer II, then without any.
    """
    notes: list[Decision] = []
    made, code = _offered(compilation, lambda attempt: _emitted(step, attempt), notes)
    return replace(made, decisions=(*made.decisions, *notes)), code


def lowered(step: Watch, compilation: Compilation) -> Lowered:
    """The kernels of `emitted`, not printed: enough for a cost model."""
    return _offered(compilation, lambda attempt: attempt.lowered(step), [])


def _offered(
    compilation: Compilation, make: Callable[[Compilation], Result], notes: list[Decision]
) -> Result:
    *offers, last = _offers(compilation)
    for attempt in offers:
        try:
            return make(attempt)
        except ScheduleError as refused:
            kind = "stitch" if attempt.stitching else "fuse"
            notes.append(Decision(kind, compilation.graph.name, False, refused.diagnostics[0].message))
    return make(last)


def _offers(compilation: Compilation) -> list[Compilation]:
    """The compilation, then with less and less of the layers."""
    found = [compilation]
    if compilation.stitching is not None:
        if compilation.stitching.barriers is not False:
            found.append(replace(compilation, stitching=replace(compilation.stitching, barriers=False)))
        found.append(replace(compilation, stitching=None))
    if compilation.fusion is not None or compilation.packing is not None:
        found.append(replace(compilation, stitching=None, packing=None, fusion=None))
    return found


def _emitted(step: Watch, compilation: Compilation) -> tuple[Lowered, CpuCode | CudaCode]:
    """The way from the graph to source text and launch plan."""
    low = compilation.lowered(step)
    return low, printed(step, compilation, low)


def printed(step: Watch, compilation: Compilation, low: Lowered) -> CpuCode | CudaCode:
    """Source text and launch plan of kernels."""
    on_gpu = compilation.target in ON_GPU
    if compilation.options.dump is not None:
        # emitting goes through them without keeping them
        step("loops", lambda: loops_text(low.kernels, on_gpu))
    checked, knobs = compilation.options.checked, compilation.knobs
    request = Request(low.kernels, compilation.layouts.strided, low.copied, checked, knobs)
    # KernelGraph -> C++ or CUDA C++, and launch plan
    if on_gpu:
        return step("cuda", lambda: emit_cuda(request))
    return step("cpp", lambda: emit_together([request])[0])


def fixed_graph(
    graph: TensorGraph, sizes: Mapping[str, int], decisions: list[Decision] | None = None
) -> TensorGraph:
    """The graph at the given sizes, its ranges proved, bools of callers read as truth values.

    Raises DslError with an example index, ArgumentError PF424 for extents beyond 64 bits.
    """
    found = Diagnostics()
    report_large(graph, sizes, found)
    found.raise_if_errors(ArgumentError)
    prove_ranges(graph, sizes, found)
    found.raise_if_errors()
    fixed = with_truth_values(without_zero_divisions(specialize(wrapping(graph, sizes), sizes)))
    fixed = with_orders(fixed, [] if decisions is None else decisions)
    if any(e == IConst(0) for t in fixed.tensors for e in t.shape):
        statements = (replace(s, expr=map_expr(s.expr, _chosen)) for s in fixed.statements)
        fixed = replace(fixed, statements=tuple(statements))
        _refuse_empty_gathers(fixed)
    return in_element_space(fixed)


def _chosen(e: Expr) -> Expr:
    """The other side of a choice that nothing makes: of `x[k] if 0 <= k < 0 else v`, which is v."""
    if not isinstance(e, Select):
        return e
    parts, tests = [e.cond], list[Apply]()
    while parts:
        part = parts.pop()
        if isinstance(part, Apply):
            parts += part.args if part.op == "and" else ()
            tests += [part] if part.op in ("le", "lt") else []
    not_negative = [t.args[1] for t in tests if t.op == "le" and index_operand(t.args[0]) == IConst(0)]
    negative = [t.args[0] for t in tests if t.op == "lt" and index_operand(t.args[1]) == IConst(0)]
    return e.other if any(n in not_negative for n in negative) else e


def _refuse_empty_gathers(graph: TensorGraph) -> None:
    """An index from data cannot be clamped into an axis without elements. Raises DslError PF361."""
    for s in graph.statements:
        if any(d.upper == d.lower for d in s.dims):
            continue
        for place, tensor, indices in (
            (s.span, s.target, s.write),
            *((r.span, r.tensor, r.indices) for r in statement_reads(s)),
        ):
            shape = graph.tensor(tensor).shape
            if any(isinstance(i, EXPR_TYPES) and e == IConst(0) for i, e in zip(indices, shape, strict=True)):
                message = f"'{tensor}' has no elements along an axis that is indexed by data"
                raise DslError(message, code="PF361", span=place)
