"""Layer III: independent kernels side by side in one launch.

    k0; k1; k2      becomes      one launch: blocks 0..a run k0, blocks a..b run k1, blocks b..c run k2

Kernels that do not touch what the others write may run in any order, so also at once: several heads of one
tensor, several tails, branches that have nothing in common, stitched kernels among them.  What a launch
costs is paid once, and small kernels fill the machine together.  It pays while

    sum of the times apart  -  time of the pack  >  0

where the pack takes as long as all its work spread over the machine, or as its longest part that cannot be
spread.  On a CPU a pack is one step of the parallel region, over a list of tasks of all parts.

Sources: Apollo (MLSys'22) section 4.3 and algorithm 3 (gain = sum - max; parts by falling cost), with the
machine's filling in the model; more than 7 parts, and stitched ones, are allowed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from polyfuse.cost.figures import KernelEstimate
from polyfuse.cost.machines import Machine
from polyfuse.cost.packing_gain import PackedTimes, packs_on
from polyfuse.cost.speed_of_light import estimate
from polyfuse.decisions import Decision
from polyfuse.ir.index_expr import sizes
from polyfuse.ir.kernel import Buffer, Kernel, KernelGraph, in_steps, touched_memory
from polyfuse.ir.rename import kernel_form
from polyfuse.ir.tensor_graph import Tensor
from polyfuse.layers.mapping.gpu_row_shape import WARP, ceil

# A pack gains at least this part of the time of its kernels: less is lost in what the model does not see.
LEAST_GAIN = 0.01
# Threads of a block, up to which kernels share a launch whatever theirs are: idle ones cost little.
SMALL_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Packing:
    """Layer III as a pass: independent kernels side by side in one launch.

    Parameters
    ----------
    always
        Pack whatever may be packed (True) instead of what pays (None).
    most
        Parts of one pack at most.

    Notes
    -----
    Apollo (MLSys 2022), section 4.3 and algorithm 3.

    Examples
    --------
    >>> text = "op f(x: f32[N], y: f32[M]) -> (u: f32[N], v: f32[M]) { u[i] = -x[i]; v[j] = -y[j] }"
    >>> kernels = pf.parse(text).op().specialize(N=64, M=128).schedule().lower(target="cuda")
    >>> kernels, kernels.apply(pf.Packing())
    (<polyfuse Kernels f: 2 launched>, <polyfuse Kernels f: 1 launched>)
    """

    always: bool | None = None
    most: int = 2048

    def pack(self, kernels: KernelGraph, machine: Machine, decisions: list[Decision]) -> KernelGraph:
        """The kernels in packs, in an order that dependences agree with.

        Parameters
        ----------
        kernels, machine
            What is launched, and where.
        decisions
            The list that what is decided goes to.
        """
        opened = any(sizes(b.elements) for k in kernels.kernels for b in k.arguments)
        if len(kernels.kernels) < 2 or (opened and not packs_on(machine).at_any_sizes):
            return kernels
        times = PackedTimes(machine, _estimates(kernels, machine), opened)
        made: list[Kernel] = []
        for level in levels(kernels):
            made += self._packs(kernels, level, times, decisions)
        return replace(kernels, kernels=tuple(made))

    def _packs(
        self, kernels: KernelGraph, level: list[int], times: PackedTimes, decisions: list[Decision]
    ) -> list[Kernel]:
        """Kernels that are independent of each other, in packs where that pays."""
        able: dict[object, list[int]] = defaultdict(list)
        alone: list[list[int]] = []
        for k in level:
            kind = _kind(kernels.kernels[k])
            if kind is None:
                alone.append([k])
            else:
                able[kind].append(k)
        packs: list[list[int]] = []
        for alike in able.values():
            packs += self._chosen(
                kernels, sorted(alike, key=lambda k: (-times.alone(k), k)), times, decisions
            )
        alone += self._across(kernels, packs, times, decisions)
        alone.sort(key=min)
        return [packed([kernels.kernels[k] for k in sorted(p)]) for p in alone]

    def _chosen(
        self, kernels: KernelGraph, ranked: list[int], times: PackedTimes, decisions: list[Decision]
    ) -> list[list[int]]:
        """Packs of kernels by falling cost: the most that gain, then what is left in the same way."""
        found: list[list[int]] = []
        while ranked:
            best = self._best(ranked[: self.most], times)
            part, ranked = ranked[:best], ranked[best:]
            found.append(part)
            if best > 1 or ranked:
                names = ", ".join(kernels.kernels[k].name for k in part)
                decisions.append(Decision("pack", names, best > 1, times.reason(part, ranked[:1])))
        return found

    def _across(
        self, kernels: KernelGraph, packs: list[list[int]], times: PackedTimes, decisions: list[Decision]
    ) -> list[list[int]]:
        """Packs with blocks of different sizes in one, of the largest blocks, where that pays."""

        def threads(pack: Sequence[int]) -> int:
            return _threads([kernels.kernels[k] for k in pack])

        found: list[list[int]] = []
        for pack in sorted(packs, key=lambda p: (-threads(p), min(p))):
            mine = times.in_blocks(pack, threads(pack))
            for other in found:
                apart = mine + times.in_blocks(other, threads(other))
                gain = apart - times.in_blocks([*other, *pack], max(threads(other), threads(pack)))
                if len(other) + len(pack) <= self.most and (self.always or gain > LEAST_GAIN * apart):
                    names = ", ".join(kernels.kernels[k].name for k in (*other, *pack))
                    why = f"one launch with the largest blocks of all saves {gain * 1e6:.3g} us"
                    decisions.append(Decision("pack", names, True, why))
                    other += pack
                    break
            else:
                found.append(list(pack))
        return found

    def _best(self, ranked: list[int], times: PackedTimes) -> int:
        """How many of the kernels, from the first on, gain most in one pack."""
        if self.always:
            return len(ranked)
        gains = times.gains(ranked)
        best = max(range(len(gains)), key=lambda k: gains[k])
        apart = sum(times.alone(k) for k in ranked[: best + 1])
        # Where sizes are open there may be little to do, and then a step more or less is what counts.
        return best + 1 if gains[best] > (0.0 if times.opened else LEAST_GAIN * apart) else 1


def _estimates(kernels: KernelGraph, machine: Machine) -> tuple[KernelEstimate, ...]:
    """Of each kernel, as if it ran alone; those that differ in names only are estimated once."""
    known: dict[Kernel, KernelEstimate] = {}
    found = []
    for k in kernels.kernels:
        form = kernel_form(k)
        if form not in known:
            known[form] = estimate(replace(kernels, kernels=(k,)), machine).kernels[0]
        found.append(known[form])
    return tuple(found)


def levels(kernels: KernelGraph) -> list[list[int]]:
    """Kernels by the longest way to them: those of one level are independent of each other."""
    depth: list[int] = []
    written: dict[str, int] = {}
    read: dict[str, int] = {}
    found: dict[int, list[int]] = defaultdict(list)
    memory = {t.name: t for t in kernels.graph.tensors}
    for k, kernel in enumerate(kernels.kernels):
        touched = touched_memory(kernel, memory)
        after = [written[m] for m in touched.read | touched.written if m in written]
        after += [read[m] for m in touched.written if m in read]
        depth.append(1 + max(after, default=-1))
        found[depth[k]].append(k)
        for m in touched.read:
            read[m] = max(read.get(m, 0), depth[k])
        for m in touched.written:
            written[m] = max(written.get(m, 0), depth[k])
    return [found[d] for d in sorted(found)]


def _kind(k: Kernel) -> object:
    """Kernels of one kind may share a launch; None for one that may share it with no other."""
    if k.parts or k.library is not None or in_steps(k):
        return None  # packs come before what is joined by barriers; a library has threads of its own
    # Blocks of a GPU have one number of threads throughout a launch: small ones take that of the largest.
    return max(SMALL_BLOCK, prod(k.threads))


def _threads(parts: Sequence[Kernel]) -> int:
    """Threads of a block that every part has room in: whole warps, for lanes must exist to be asked."""
    most = max(prod(p.threads) for p in parts)
    return most if most == 1 else ceil(most, WARP) * WARP


def packed(parts: Sequence[Kernel]) -> Kernel:
    """One kernel that runs several side by side."""
    if len(parts) == 1:
        return parts[0]
    inner = [x for p in parts for x in (p.packed or (p,))]
    tensors: dict[str, Tensor] = {t.name: t for p in inner for t in p.graph.tensors}
    buffers: dict[str, Buffer] = {b.tensor: b for p in inner for b in p.buffers}
    graph = replace(
        inner[0].graph,
        statements=tuple(s for p in inner for s in p.graph.statements),
        tensors=tuple(tensors.values()),
    )
    return Kernel(
        inner[0].name,
        graph,
        tuple(s for p in inner for s in p.stages),
        tuple(buffers.values()),
        (_threads(inner), 1),
        atomic=frozenset(n for p in inner for n in p.atomic),
        packed=tuple(inner),
    )
