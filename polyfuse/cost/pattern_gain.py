"""What a pattern of statements gains as one kernel, and a plan of patterns takes. From figures alone.

    f(pattern) = T_reduced_mem + T_reduced_calls - T_penalty

T_reduced_mem    time of the statements one by one less that of the pattern, on a machine that is busy all the
                 time: what goes from one to the other, and what several read, passes memory less often
T_reduced_calls  launches that are saved
T_penalty        what idle parts of the machine cost, where common loops are short

The time of a group is that of `cost.stitching_gain`; here all groups of a graph are judged by the same level
of memory, so that times of disjoint patterns add up.  Source: FusionStitching (2020) section 5, the delta
evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.cost.stitching_gain import Gain, NestFigures, StitchingCost, microseconds
from polyfuse.decisions import format_bytes


@dataclass(frozen=True, slots=True)
class PatternCost:
    """Times and gains on one machine. touched: bytes that the whole graph touches."""

    stitching: StitchingCost
    touched: float

    def seconds(self, f: NestFigures) -> float:
        """Of one kernel with its launches."""
        return self._real(f) + f.launches * self.stitching.launch_s

    def gain(self, parts: Sequence[NestFigures], whole: NestFigures) -> Gain:
        """What one kernel in place of several saves."""
        busy = sum(self._busy(p) for p in parts) - self._busy(whole)
        real = sum(self._real(p) for p in parts) - self._real(whole)
        launched = sum(p.launches for p in parts) - whole.launches
        nbytes = sum(p.nbytes for p in parts) - whole.nbytes
        return Gain(nbytes, busy, self.stitching.launch_s * launched, busy - real, launched)

    def packed(self, parts: Sequence[NestFigures]) -> float:
        """Seconds of kernels side by side in one launch: all their work spread over the machine, or the
        longest of them."""
        work, longest = sum(map(self._busy, parts)), max(map(self._real, parts))
        return max(f.launches for f in parts) * self.stitching.launch_s + max(work, longest)

    def _busy(self, f: NestFigures) -> float:
        return self.stitching.times(f, self.touched)[0]

    def _real(self, f: NestFigures) -> float:
        return self.stitching.times(f, self.touched)[1]


def terms(g: Gain) -> str:
    """For a decision: ``2.1 us for 12.6 MB less traffic + 1.4 us for 2 launches - 0.4 us for idle parts``."""
    sign, idle = ("-", g.parallelism) if g.parallelism >= 0 else ("+", -g.parallelism)
    traffic = f"{microseconds(g.traffic)} for {format_bytes(g.traffic_bytes)} less traffic"
    calls = f"{microseconds(g.launches)} for {g.launched} launch{'' if g.launched == 1 else 'es'}"
    return f"{traffic} + {calls} {sign} {microseconds(idle)} for idle parts"
