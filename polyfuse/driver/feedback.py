"""Feedback: a cluster that cannot be compiled, or is slow, as it is, is cut and tried again.

    a cluster fails (isl reaches its limit, an order cannot be proved, no kernel can be made)
      -> cut into parts that are tried each on their own, again and again
      -> a single statement, or what must stay together, is compiled without fusion
    a cluster is doubtful (lost coincidence, predicted or measured slower than its parts)
      -> cut at the edge that is to blame; the faster of both is taken, by the model or by a measurement

Apollo reports such a cluster to a developer; here it is cut.  Where isl reached its limit, recurrences are
cut off first: they are what isl was asked about, and the rest does not need it, so that this is paid once.
What was learnt is remembered by the form of the cluster, so that the next compilation does not try again what
failed; not where isl's helper process failed, which may go well the next time.  No graph fails because of
fusion: the unfused plan is always there.

Source: Apollo (MLSys'22) section 3.4, feedback between layers; automatic here.

`doubt_of` finds what is doubtful, a `Judge` says which way is faster, `pieces_of` compiles clusters and cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Protocol

from polyfuse.codegen.cpu.loop_seconds import loop_seconds
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.extents import tensor_bytes
from polyfuse.cost.figures import KernelEstimate
from polyfuse.cost.machines import Machine, machine_of
from polyfuse.cost.speed_of_light import busy_s, estimate
from polyfuse.cost.stitching_gain import MARGIN, microseconds
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ScheduleError
from polyfuse.driver.lowering import Made, Passes, Single, lower_piece
from polyfuse.ir.cpu_core import CpuKnobs
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.rename import canonical
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.layers.clustering.clusters import cut_off, search_of
from polyfuse.layers.clustering.join import Joined, Piece, join
from polyfuse.layers.clustering.search import PlanSearch, bits, union
from polyfuse.layers.fusion.micro_graphs import bound_together
from polyfuse.layers.graph.reindex.collapse import collapse
from polyfuse.poly.scheduling.isl_scheduler import ScheduleTimeout
from polyfuse.runtime.machine.stopwatch import TooLarge, seconds_of_run

# --- what is doubtful -------------------------------------------------------------------------------------

# What makes a fused cluster doubtful, once there are kernels of it, and where to cut it.
#
# lost coincidence   a kernel keeps so little of the machine busy, because its statements share loops, that
#                    one of them alone would be faster by more than a launch
# predicted slower   the model says of a kernel that it takes longer than its statements one by one, and that
#                    most of its time parts of the machine are idle
# rows in pieces     memory takes long for short pieces of many rows, which a statement alone reads whole
# measured slower    where kernels are timed: nothing speaks against the slowest kernel, but a clock might
#
# Figures of statements are those of the plan search (`layers.stitching.figures`), those of kernels are of the
# speed-of-light model.  A doubt is no verdict: the parts are compiled, and what is faster is taken.


# Two ways to do the same are told apart by the model where one takes so many times as long: it is not exact,
# and what shares loops is fused for reasons that were weighed before.
APART_INPUTS = 1.5
# A kernel that is busy for more than this share of its time is not slow because of what it shares.
BUSY = 0.6


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why a cluster may be faster in parts ("" if a clock is to tell), the parts in dependence order, and the
    edge where it is cut.  `deep`: parts may have the same fault, and are cut before they are judged."""

    why: str
    parts: tuple[tuple[str, ...], ...]
    edge: str
    deep: bool = False


def doubt_of(piece: Piece, target: Target) -> Doubt | None:
    """About the kernel of a cluster that is slowest compared with what its statements could be."""
    if piece.graph.sizes or len(piece.graph.statements) < 2:
        return None
    return _Suspicion(piece, target).doubt()


def any_cut(piece: Piece, target: Target) -> Doubt | None:
    """Where a cluster would be cut if it must be: in its slowest kernel that has several statements."""
    if piece.graph.sizes or len(piece.graph.statements) < 2:
        return None
    return _Suspicion(piece, target).cut_somewhere()


class _Suspicion:
    """The kernels of a cluster beside the figures of its statements."""

    def __init__(self, piece: Piece, target: Target) -> None:
        self.piece, self.target, self.machine = piece, target, machine_of(target)
        self.search: PlanSearch = search_of(piece.graph, target)
        self.kernels = estimate(piece.kernels, self.machine).kernels
        self.home = _homes(piece, self.search)

    def doubt(self) -> Doubt | None:
        found = []
        for k, group in self._shared():
            kernel = self.kernels[k]
            pieces = self._in_pieces(kernel)
            why = pieces or self._lost(kernel, group) or self._slower(kernel, group)
            if why is not None:
                seconds, first = self._cut(group, after_sums=pieces is not None)
                cut = self._at(k, first, group, why)
                # Figures of statements know no pieces; those of the kernels of parts do.
                if seconds * (1.0 if pieces else APART_INPUTS) < self.kernels[k].seconds and cut is not None:
                    cut = replace(cut, deep=pieces is not None)
                    found.append((self.kernels[k].seconds - seconds, cut))
        return max(found, key=lambda f: f[0])[1] if found else None

    def cut_somewhere(self) -> Doubt | None:
        shared = [(self.kernels[k].seconds, k, group) for k, group in self._shared()]
        if not shared:
            return None
        _, k, group = max(shared)
        return self._at(k, self._cut(group)[1], group, "")

    def _shared(self) -> Iterator[tuple[int, int]]:
        """Kernels that have several nodes of the search, and these."""
        for k in range(len(self.kernels)):
            group = union(1 << node for node, home in enumerate(self.home) if home == k)
            if group & (group - 1):
                yield k, group

    # --- reasons ------------------------------------------------------------------------------------------

    def _lost(self, kernel: KernelEstimate, group: int) -> str | None:
        """Does a statement lose more than a launch because the kernel keeps less of the machine busy?"""
        stitching = self.search.cost.stitching
        whole = stitching.share_of(kernel.blocks)
        for node in bits(group):
            alone = self.search.of(1 << node)
            busy, real = stitching.times(alone, self.search.cost.touched)
            lost = busy / whole - real
            if stitching.share(alone) > APART_INPUTS * whole and lost > stitching.launch_s:
                names = self._names(1 << node)
                return (
                    f"lost coincidence: common loops keep {whole:.0%} of the machine busy, "
                    f"{names} alone {stitching.share(alone):.0%}"
                )
        return None

    def _slower(self, kernel: KernelEstimate, group: int) -> str | None:
        """Is the kernel slower than its statements one by one, and idle?"""
        apart = self.search.seconds(1 << node for node in bits(group))
        if kernel.seconds <= apart * APART_INPUTS or busy_s(kernel, self.machine) > BUSY * kernel.terms.spent:
            return None
        return (
            f"predicted slower: its kernel takes {microseconds(kernel.seconds)}, its statements one by one "
            f"{microseconds(apart)}"
        )

    def _in_pieces(self, kernel: KernelEstimate) -> str | None:
        """Does memory behind caches take much of its time for short pieces of many rows?"""
        lost = kernel.terms.latency
        if not self.target.row_caches or lost * APART_INPUTS < kernel.seconds - lost:
            return None
        return f"rows in pieces: of many rows it touches a piece at a time, {microseconds(lost)} longer"

    # --- where to cut ---------------------------------------------------------------------------------------

    def _cut(self, group: int, after_sums: bool = False) -> tuple[float, int]:
        """The faster halves that an edge, or what two read, can be cut into: seconds of both, the first.

        `after_sums`: what follows a reduction is cut off, if anything does."""
        order = self.search.explorer.order
        firsts = {group & ~(order.after[n] | 1 << n) for n in bits(group)}
        firsts |= {group & (order.before[n] | 1 << n) for n in bits(group)}
        sums = [n for n in bits(group) if self._reduces(n)]
        ended = {group & (order.before[n] | 1 << n) for n in sums if after_sums} - {group}
        able = [first for first in ended or firsts if first and first != group]
        return min((self.search.seconds((first, group & ~first)), first) for first in able)

    def _at(self, kernel: int, first: int, group: int, why: str) -> Doubt | None:
        """The cluster cut there: what runs before is with the first half, what runs later with the second.

        None where the first half needs all of the second, which an earlier kernel recomputes.
        """
        before = first | union(1 << n for n, home in enumerate(self.home) if home < kernel)
        everything = (1 << len(self.home)) - 1
        before |= union(self.search.explorer.order.before[n] for n in bits(before))
        if before & group == group:
            return None
        statements = self.piece.graph.statements
        parts = tuple(
            tuple(statements[s].name for s in sorted(x for n in bits(half) for x in self._of(n)))
            for half in (before, everything & ~before)
        )
        return Doubt(why, parts, self._edge(first, group & ~first))

    def _edge(self, first: int, second: int) -> str:
        """The first edge between two halves."""
        for a, b in self.search.nodes.edges:
            if first >> a & 1 and second >> b & 1:
                return f"{self._names(1 << a)} -> {self._names(1 << b)}"
        return f"{self._names(first)} | {self._names(second)}"

    def _reduces(self, node: int) -> bool:
        return any(self.piece.graph.statements[s].reduction for s in self._of(node))

    def _of(self, node: int) -> Sequence[int]:
        return self.search.nodes.statements[node]

    def _names(self, group: int) -> str:
        names = [self.piece.graph.statements[s].name for n in bits(group) for s in self._of(n)]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _homes(piece: Piece, search: PlanSearch) -> list[int]:
    """For each node of the search the kernel that computes it; what was inlined is with its first reader."""
    written: dict[str, int] = {}
    for k, kernel in enumerate(piece.kernels.kernels):
        for s in kernel.graph.statements:
            written[s.target] = k
    statements = piece.graph.statements
    last = len(piece.kernels.kernels) - 1
    homes: dict[str, int] = {}
    for s in reversed(statements):
        readers = [homes[r.name] for r in statements if r.name in homes and _reads(r, s.target)]
        homes[s.name] = written.get(s.target, min(readers, default=last))
    return [homes[statements[node[0]].name] for node in search.nodes.statements]


def _reads(reader: object, tensor: str) -> bool:
    return any(r.tensor == tensor for r in statement_reads(reader))  # type: ignore[arg-type]


# --- judges -----------------------------------------------------------------------------------------------

# Who says whether a cluster is faster in parts: the cost model, or a clock.
#
# Both name the doubt that makes a second try worth its time, and tell the seconds of either way.


# A cluster that takes no longer than this many times its least traffic is not tried by fewer layers.
WELL = 1.15
# Fewer layers must be faster by this factor: the model is not exact, and does not see all that code
# generation makes of rows that are fused.
LESS = 1.2
# Seconds beyond the least that are worth a second look, and that fewer layers must save: the model knows
# short calls less well.
WORTH_S, SAVED_S = 20e-6, 5e-6
# Statements of a cluster that is tried: the second look takes as long as the first, for each way. Without
# fusion it takes little, so that larger ones are tried so.
MOST_TRIED, MOST_UNFUSED = 16, 48


@dataclass(frozen=True, slots=True)
class Candidate:
    """Kernels of a cluster, made one way or the other, and the inout parameters that are copied first."""

    kernels: KernelGraph
    copied: frozenset[str]


class Judge(Protocol):
    """Tells what may be slow, and how slow it is: parts must be faster by a factor of `margin`."""

    @property
    def margin(self) -> float: ...

    def doubt(self, piece: Piece) -> Doubt | None:
        """Why a cluster should be tried in parts, and which; None where it is well as it is."""
        ...

    def rivals(self, piece: Piece, passes: Passes) -> Mapping[str, Passes]:
        """By fewer layers, if these may be faster: what to try, by name."""
        ...

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        """Of all kernels of a cluster."""
        ...

    def closely(self, graph: TensorGraph, made: Candidate) -> float:
        """The same, where kernels by fewer layers are compared."""
        ...


@dataclass(frozen=True, slots=True)
class ByModel:
    """The speed-of-light model, for the tables' machine: the same program gives the same kernels anywhere."""

    target: Target
    margin: float = APART_INPUTS

    def rivals(self, piece: Piece, passes: Passes) -> Mapping[str, Passes]:
        machine, ways = machine_of(self.target), fewer_layers(piece, passes)
        if isinstance(machine, Device) or not ways:
            return {}
        spent = seconds_of(piece.kernels, machine)
        well = WELL * least_s(piece.graph, machine) + WORTH_S
        return ways if spent > well else {}

    def doubt(self, piece: Piece) -> Doubt | None:
        return doubt_of(piece, self.target)

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        return sum(k.seconds for k in estimate(made.kernels, machine_of(self.target)).kernels)

    def closely(self, graph: TensorGraph, made: Candidate) -> float:
        return seconds_of(made.kernels, machine_of(self.target))


@dataclass(frozen=True, slots=True)
class ByClock:
    """Short runs on inputs that are made up; where those would take too much memory, the model."""

    target: CpuTarget
    margin: float = MARGIN

    def rivals(self, piece: Piece, passes: Passes) -> Mapping[str, Passes]:
        return {}  # the clock is asked about one cut; `ByModel` tries what it can tell without running it

    def doubt(self, piece: Piece) -> Doubt | None:
        return doubt_of(piece, self.target) or any_cut(piece, self.target)

    def closely(self, graph: TensorGraph, made: Candidate) -> float:
        return self.seconds(graph, made)

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        try:
            return seconds_of_run(graph, made.kernels, made.copied, self.target.threads)
        except TooLarge:
            return ByModel(self.target).seconds(graph, made)


def seconds_of(kernels: KernelGraph, machine: Machine) -> float:
    """Of all kernels, by the model; on a CPU their loops are looked at as they would be printed."""

    def core_s(kernel: Kernel) -> float:
        assert isinstance(machine, CpuDevice)
        return loop_seconds(kernel, machine, CpuKnobs())

    loops = None if isinstance(machine, Device) else core_s
    return sum(k.seconds for k in estimate(kernels, machine, loops).kernels)


def pays(seconds: float, before: float) -> bool:
    """Are fewer layers faster, by a factor and by more than the model may be wrong?"""
    return seconds * LESS < before and before - seconds > SAVED_S


def least_s(graph: TensorGraph, machine: CpuDevice) -> float:
    """Seconds of the traffic that no plan saves: arguments and results, each once."""
    touched = [t for t in graph.tensors if t.role is not Role.TEMP]
    nbytes = sum(tensor_bytes(graph, t.name) for t in touched)
    return nbytes / machine.levels[machine.level(nbytes / machine.threads)].bandwidth


def fewer_layers(piece: Piece, passes: Passes) -> dict[str, Passes]:
    """The same without layer II, without layer I, and without both; large clusters without both alone."""
    count = len(piece.graph.statements)
    if piece.graph.sizes or not 2 <= count <= MOST_UNFUSED:
        return {}
    ways = {
        "layer I alone": replace(passes, stitching=None),
        "layer II alone": replace(passes, fusion=None),
        "no fusion": replace(passes, fusion=None, stitching=None),
    }
    ways = ways if count <= MOST_TRIED else {"no fusion": ways["no fusion"]}
    return {name: by for name, by in ways.items() if by != passes}


def judge_of(passes: Passes) -> Judge | None:
    """The judge that a clustering asks for; a clock only for a CPU."""
    if passes.clustering.feedback == "failures" or (passes.fusion is None and passes.stitching is None):
        return None
    # Kernels of a GPU need a GPU that nobody else uses: only those of a CPU are timed while others are made.
    if passes.clustering.feedback == "measure" and isinstance(passes.target, CpuTarget):
        return ByClock(passes.target)
    return ByModel(passes.target)


CUT_AT_RECURRENCES, CUT, UNFUSED = "cut at recurrences", "cut", "unfused"
# Of a doubtful cluster: its parts were no faster; or they were, and which statements the first one has.
KEPT, APART = "kept", "apart"
# --- clusters that are compiled, and cut ------------------------------------------------------------------

# Of the lesson which layers a cluster is compiled by.
FEWER = " by fewer layers"
# What no way of compiling mends: sizes that must be known.
OPEN_SIZES = "PF513"
# What may be otherwise the next time: isl's helper process hangs or ends.
BY_CHANCE = "PF514"


class Lessons(Protocol):
    """What earlier compilations learnt, by the form of a cluster."""

    def recall(self, key: str) -> str | None:
        """What to do with a cluster that failed before, or None."""
        ...

    def keep(self, key: str, lesson: str) -> None:
        """Remember what to do."""
        ...


class NoLessons:
    """Nothing is remembered beyond the compilation."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def recall(self, key: str) -> str | None:
        return self._known.get(key)

    def keep(self, key: str, lesson: str) -> None:
        self._known[key] = lesson


def pieces_of(
    graph: TensorGraph, passes: Passes, lessons: Lessons, refused: ScheduleError | None = None
) -> Made:
    """A cluster's kernels, as one piece or cut into several; `refused` says that one piece failed already.

    Raises ScheduleError PF513 for open sizes, and where not even the unfused plan can be made.
    """
    key = _key(graph, passes)
    lesson = lessons.recall(key)
    why = "it failed before"
    if lesson is None or lesson == KEPT:
        try:
            if refused is None:
                made = lower_piece(graph, passes)
                return _settled(graph, passes, lessons, made)
        except ScheduleError as error:
            refused = error
        if refused.code == OPEN_SIZES:
            raise refused
        why = refused.diagnostics[0].message
        lesson = CUT_AT_RECURRENCES if isinstance(refused, ScheduleTimeout) else CUT
    elif lesson.startswith(APART):
        why = "its parts were faster before"
    parts = _cut(graph, lesson)
    learnt = NoLessons() if refused is not None and refused.code == BY_CHANCE else lessons
    if lesson == UNFUSED or len(parts) < 2:
        learnt.keep(key, UNFUSED)
        piece, decisions = lower_piece(graph, replace(passes, fusion=None, stitching=None))
        return [(piece, (_decision(graph, f"{why}: compiled without fusion"), *decisions))]
    learnt.keep(key, lesson)
    found = _parts(graph, parts, passes, lessons)
    first, decisions = found[0]
    note = _decision(graph, f"{why}: cut into {len(parts)} parts, each tried on its own")
    return [(first, (note, *decisions)), *found[1:]]


def _parts(graph: TensorGraph, parts: Sequence[tuple[str, ...]], passes: Passes, lessons: Lessons) -> Made:
    return [made for part in cut_off(graph, parts) for made in pieces_of(part, passes, lessons)]


# --- doubts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """A cluster that may be faster in parts, and what says so."""

    key: str
    doubt: Doubt
    judge: Judge


def tried_by(passes: Passes, doubt: Doubt) -> Passes:
    """What the parts of a doubtful cluster are tried by; only those that are taken are doubted themselves,
    unless one cut alone may be no way out."""
    if doubt.deep:
        return passes
    return replace(passes, clustering=replace(passes.clustering, feedback="failures"))


def trial_of(piece: Piece, passes: Passes, lessons: Lessons) -> Trial | None:
    """Is a cluster worth another try, in parts? Not where an earlier compilation knows."""
    judge = judge_of(passes)
    doubt = judge.doubt(piece) if judge else None
    if judge is None or doubt is None:
        return None
    key = _key(piece.graph, passes)
    return None if lessons.recall(key) == KEPT else Trial(key, doubt, judge)


def remembered_parts(
    graph: TensorGraph, passes: Passes, lessons: Lessons
) -> tuple[list[tuple[str, ...]], Decision] | None:
    """The parts of a cluster that were faster in an earlier compilation."""
    lesson = lessons.recall(_key(graph, passes))
    if lesson is None or not lesson.startswith(APART):
        return None
    parts = _cut(graph, lesson)
    return parts, _decision(graph, f"its parts were faster before: cut into {len(parts)} parts")


def settle(
    graph: TensorGraph, trial: Trial, whole: Candidate, apart: Candidate, lessons: Lessons
) -> tuple[bool, Decision]:
    """Are the parts of a doubtful cluster faster? What is found out is kept."""
    before, after = trial.judge.seconds(graph, whole), trial.judge.seconds(graph, apart)
    better = after * trial.judge.margin < before
    first = set(trial.doubt.parts[0])
    places = [str(k) for k, s in enumerate(graph.statements) if s.name in first]
    lessons.keep(trial.key, " ".join((APART, *places)) if better else KEPT)
    why = trial.doubt.why or ("measured slower than its parts" if better else "measured")
    done = f"cut at {trial.doubt.edge}" if better else f"a cut at {trial.doubt.edge} is not worth it"
    found = f"{microseconds(after)} in parts, {microseconds(before)} as one"
    return better, replace(_decision(graph, f"{why}: {done}, {found}"), taken=not better)


def _settled(
    graph: TensorGraph, passes: Passes, lessons: Lessons, made: tuple[Piece, tuple[Decision, ...]]
) -> Made:
    """A cluster's kernels as one piece, in parts where it is doubtful and they are faster, or by fewer
    layers."""
    best = _in_parts(graph, passes, lessons, made)
    rival = less_fused(made[0], _candidate(graph, best), passes, lessons)
    return best if rival is None else rival.made


def _in_parts(graph: TensorGraph, passes: Passes, lessons: Lessons, made: Single, deep: bool = True) -> Made:
    """A cluster's kernels as one piece, or in parts where it is doubtful and they are faster; `deep`: which
    may be in parts, or by fewer layers, themselves."""
    # Parts that collapse dims each in their own way do not agree on what goes between them.
    one_way = passes.fusion is None or not passes.fusion.collapse
    trial = trial_of(made[0], passes, lessons) if one_way else None
    parts: Made | None = None
    if trial is not None:
        with suppress(ScheduleError):
            parts = _parts(graph, trial.doubt.parts, tried_by(passes, trial.doubt), lessons)
    best: Made = [made]
    if trial is not None and parts is not None:
        better, note = settle(graph, trial, _candidate(graph, best), _candidate(graph, parts), lessons)
        if better:
            best = [m for p in parts for m in _settled(p[0].graph, passes, lessons, p)] if deep else parts
        best = [(best[0][0], (note, *best[0][1])), *best[1:]]
    return best


# --- less fusion ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fewer:
    """Kernels of a cluster by fewer layers, which may be in parts; `graph` is what these have together."""

    graph: TensorGraph
    made: Made

    def joined(self) -> tuple[Piece | Joined, list[Decision]]:
        """As one piece, and what was decided."""
        pieces, why = [p for p, _ in self.made], [d for _, decisions in self.made for d in decisions]
        return pieces[0] if len(pieces) == 1 else join(self.graph, pieces), why

    def told(self, why: str) -> Fewer:
        """With a note before their decisions."""
        (first, decisions), *others = self.made
        return replace(self, made=[(first, (_decision(self.graph, why), *decisions)), *others])


def less_fused(piece: Piece, best: Candidate, passes: Passes, lessons: Lessons) -> Fewer | None:
    """A cluster's kernels by fewer layers, where the judge finds these faster than the best that fusion gave;
    `piece` is how all layers make it."""
    judge = judge_of(passes)
    rivals = judge.rivals(piece, passes) if judge else {}
    if judge is None or not rivals:
        return None
    graph, key = piece.graph, _key(piece.graph, passes) + FEWER
    known = lessons.recall(key)
    if known == KEPT:
        return None
    if known is not None and known in rivals:
        return _by_fewer(graph, rivals[known], lessons).told(f"{known} was faster before")
    fused = least = judge.closely(graph, best)
    name, found = KEPT, None
    for each, by in rivals.items():
        try:
            other = _by_fewer(graph, by, lessons)
        except ScheduleError:
            continue
        seconds = judge.closely(other.graph, _candidate(other.graph, other.made))
        if pays(seconds, fused) and seconds < least:
            least, name, found = seconds, each, other
    lessons.keep(key, name)
    if found is None:
        return None
    lessons.keep(_key(graph, passes), KEPT)  # whatever was found out about its parts
    note = f"{name} is faster: {microseconds(least)}, fused {microseconds(fused)}"
    return found.told(note)


def _by_fewer(graph: TensorGraph, passes: Passes, lessons: Lessons) -> Fewer:
    """A cluster's kernels by fewer layers, in parts where that is faster."""
    fusion, found = passes.fusion, list[Decision]()
    if fusion is not None and fusion.collapse:  # parts must agree on the shapes of what goes between them
        graph = collapse(graph, found, frozenset(fusion.strided))
        passes = replace(passes, fusion=replace(fusion, collapse=False))
    key, judge = _key(graph, passes), judge_of(passes)
    lesson = lessons.recall(key)
    if lesson is not None and lesson.startswith(APART):
        simple = replace(passes, clustering=replace(passes.clustering, feedback="failures"))
        made = _parts(graph, _cut(graph, lesson), simple, lessons)
    else:
        whole = lower_piece(graph, passes)
        made = _in_parts(graph, passes, lessons, whole, deep=False)
        if judge and len(made) > 1:  # doubts do not look at loops as closely
            seconds, cut = (judge.closely(graph, _candidate(graph, m)) for m in ([whole], made))
            if not pays(cut, seconds):
                lessons.keep(key, KEPT)
                made = [whole]
    (first, decisions), *others = made
    return Fewer(graph, [(first, (*found, *decisions)), *others])


def _candidate(graph: TensorGraph, made: Made) -> Candidate:
    """The kernels of all pieces of a cluster."""
    if len(made) == 1:
        return Candidate(made[0][0].kernels, made[0][0].copied)
    joined = join(graph, [p for p, _ in made])
    return Candidate(joined.kernels, joined.copied)


# --- cuts -------------------------------------------------------------------------------------------------


def _decision(graph: TensorGraph, why: str) -> Decision:
    names = [s.name for s in graph.statements]
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return Decision("feedback", shown, False, why)


def _key(graph: TensorGraph, passes: Passes) -> str:
    """A name for the cluster's form and for what it was to be compiled by."""
    return sha256(repr((canonical(graph), passes)).encode()).hexdigest()


def _cut(graph: TensorGraph, lesson: str) -> list[tuple[str, ...]]:
    """Parts of a cluster in dependence order: in two, or with its recurrences apart."""
    if lesson.startswith(APART):
        first = set(map(int, lesson.split()[1:]))
        names = [(k in first, s.name) for k, s in enumerate(graph.statements)]
        return [tuple(n for inside, n in names if inside == half) for half in (True, False)]
    bound = bound_together(graph)
    if lesson == UNFUSED or len(bound) < 2:
        return [tuple(n for part in bound for n in part)]
    if lesson == CUT_AT_RECURRENCES:
        runs = [list(run) for _, run in groupby(bound, lambda part: _repeats(graph, part) and part)]
        if len(runs) > 1:
            return [tuple(n for part in run for n in part) for run in runs]
    at = _best_cut(graph, bound)
    return [tuple(n for part in half for n in part) for half in (bound[:at], bound[at:])]


def _best_cut(graph: TensorGraph, bound: list[tuple[str, ...]]) -> int:
    """Where in the middle third of the order the fewest bytes go from what is before to what is after."""
    place = {n: k for k, part in enumerate(bound) for n in part}
    crossing = [0] * (len(bound) + 1)
    for t in graph.tensors:
        ends = [place[s.name] for s in (*graph.writers(t.name), *graph.readers(t.name))]
        if t.role is not Role.INPUT and ends:
            for k in range(min(ends) + 1, max(ends) + 1):
                crossing[k] += evaluate(product(t.shape), dict.fromkeys(graph.sizes, 1024)) * t.dtype.bytes
    third = len(bound) // 3
    middle = range(max(1, third), max(2, len(bound) - third + 1))
    return min((k for k in middle if k < len(bound)), key=lambda k: (crossing[k], abs(2 * k - len(bound))))


def _repeats(graph: TensorGraph, part: tuple[str, ...]) -> bool:
    """Is it a recurrence?"""
    targets = {graph.statement(n).target for n in part}
    return len(part) > 1 or any(
        r.tensor in targets for n in part for r in statement_reads(graph.statement(n))
    )
