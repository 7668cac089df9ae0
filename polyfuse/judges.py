"""Who says whether a cluster is faster in parts: the cost model, or a clock.

Both name the doubt that makes a second try worth its time, and tell the seconds of either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from polyfuse.cost.speed_of_light import estimate
from polyfuse.cost.stitching_gain import MARGIN
from polyfuse.doubts import APART, Doubt, any_cut, doubt_of
from polyfuse.ir.kernel import KernelGraph
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.layers.gpu_rows import GpuTarget
from polyfuse.layers.group_figures import machine_of
from polyfuse.layers.joining import Piece
from polyfuse.lowering import Passes
from polyfuse.runtime.stopwatch import TooLarge, seconds_of_run


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

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        """Of all kernels of a cluster."""
        ...


@dataclass(frozen=True, slots=True)
class ByModel:
    """The speed-of-light model, for the tables' machine: the same program gives the same kernels anywhere."""

    machine: int | GpuTarget
    margin: float = APART

    def doubt(self, piece: Piece) -> Doubt | None:
        return doubt_of(piece, self.machine)

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        return sum(k.seconds for k in estimate(made.kernels, machine_of(self.machine)).kernels)


@dataclass(frozen=True, slots=True)
class ByClock:
    """Short runs on inputs that are made up; where those would take too much memory, the model."""

    machine: int
    margin: float = MARGIN

    def doubt(self, piece: Piece) -> Doubt | None:
        return doubt_of(piece, self.machine) or any_cut(piece, self.machine)

    def seconds(self, graph: TensorGraph, made: Candidate) -> float:
        try:
            return seconds_of_run(graph, made.kernels, made.copied, self.machine)
        except TooLarge:
            return ByModel(self.machine).seconds(graph, made)


def judge_of(passes: Passes) -> Judge | None:
    """The judge that a clustering asks for; a clock only for a CPU."""
    if passes.clustering.feedback == "failures" or (passes.fusion is None and passes.stitching is None):
        return None
    if passes.clustering.feedback == "measure" and isinstance(passes.machine, int):
        return ByClock(passes.machine)
    return ByModel(passes.machine)
