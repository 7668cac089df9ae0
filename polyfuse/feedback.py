"""Feedback: a cluster that cannot be compiled, or is slow, as it is, is cut and tried again.

    a cluster fails (isl reaches its limit, an order cannot be proved, no kernel can be made)
      -> cut into parts that are tried each on their own, again and again
      -> a single statement, or what must stay together, is compiled without fusion
    a cluster is doubtful (`polyfuse.doubts`: lost coincidence, predicted or measured slower than its parts)
      -> cut at the edge that is to blame; the faster of both is taken, by the model or by a measurement

Apollo reports such a cluster to a developer; here it is cut.  Where isl reached its limit, recurrences are
cut off first: they are what isl was asked about, and the rest does not need it, so that this is paid once.
What was learnt is remembered by the form of the cluster, so that the next compilation does not try again what
failed; not where isl's helper process failed, which may go well the next time.  No graph fails because of
fusion: the unfused plan is always there.

Source: Apollo (MLSys'22) section 3.4, feedback between layers; automatic here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from typing import Protocol

from polyfuse.cost.stitching_gain import microseconds
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ScheduleError
from polyfuse.doubts import Doubt
from polyfuse.ir.index_expr import evaluate, product
from polyfuse.ir.rename import canonical
from polyfuse.ir.tensor_graph import Role, TensorGraph, statement_reads
from polyfuse.judges import Candidate, Judge, judge_of, pays
from polyfuse.layers.aggregation import bound_together
from polyfuse.layers.clusters import cut_off
from polyfuse.layers.collapse import collapse
from polyfuse.layers.joining import Joined, Piece, join
from polyfuse.lowering import Made, Passes, Single, lower_piece
from polyfuse.poly.scheduler import ScheduleTimeout

CUT_AT_RECURRENCES, CUT, UNFUSED = "cut at recurrences", "cut", "unfused"
# Of a doubtful cluster: its parts were no faster; or they were, and which statements the first one has.
KEPT, APART = "kept", "apart"
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
