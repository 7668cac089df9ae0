"""Who says whether a cluster is faster in parts: the cost model, or a clock.

Both name the doubt that makes a second try worth its time, and tell the seconds of either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from polyfuse.codegen.loop_seconds import loop_seconds
from polyfuse.cost.cpu_device import CpuDevice
from polyfuse.cost.device import Device
from polyfuse.cost.machines import Machine, machine_of
from polyfuse.cost.speed_of_light import estimate
from polyfuse.cost.stitching_gain import MARGIN
from polyfuse.doubts import APART, Doubt, any_cut, doubt_of
from polyfuse.ir.cpu_knobs import CpuKnobs
from polyfuse.ir.kernel import Kernel, KernelGraph
from polyfuse.ir.target import CpuTarget, Target
from polyfuse.ir.tensor_graph import Role, TensorGraph
from polyfuse.layers.joining import Piece
from polyfuse.layers.rematerialise import tensor_bytes
from polyfuse.lowering import Passes
from polyfuse.runtime.stopwatch import TooLarge, seconds_of_run

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
    margin: float = APART

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
