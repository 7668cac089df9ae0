"""Does it pay to compile kernels that know the sizes of a shape, where kernels with open sizes run it?

    gain of a call   =  seconds of the open kernels  -  seconds of the fixed ones
    it pays             calls so far * gain  >=  seconds of the compilation

Nobody knows how many calls are to come; calls so far stand for them.  Then what is spent is at most twice
what it would have been with foresight (the rule of renting skis; Karlin et al., "Competitive snoopy caching",
1988).  All seconds are the model's: no clock has a say in which kernels a call takes.

`cost.speed_of_light` sees what differs in structure: workers that share rows, passes over memory.  What the
code of fixed kernels has beside that are decisions which open ones had to leave; each counts with what it
brings (`WORTH`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf, prod

from polyfuse.decisions import Decision

WORTH = {
    "stream": 1.15,
    "prefetch rows": 1.1,
    "software-pipelining": 1.2,
    "online": 1.2,
    "rfactor": 1.2,
    "collapse": 1.1,
    "pack": 1.05,
    "outer-vectorize:short-rows": 1.5,
    "unroll-and-jam:batched-loops": 1.2,
    "unroll-and-jam:reductions": 1.1,
}
"""How many times as long calls take that leave a decision out, by its kind: `docs/reference/open_sizes.md`,
and `docs/lab/choices.md`."""
LEAST = 1.03
"""A smaller gain may be none."""
COMPILATION_S, KERNEL_S = 0.1, 0.15
"""Of a compilation, and of each of its kernels."""


@dataclass(frozen=True, slots=True)
class OpenGain:
    """Of fixed kernels at some sizes: seconds of a call with open and with fixed ones, seconds of compiling
    those, and kinds of decisions that open kernels leave."""

    open_s: float
    fixed_s: float
    compile_s: float
    left: tuple[str, ...] = ()

    @property
    def calls(self) -> float:
        """How many calls repay the compilation."""
        if self.open_s < LEAST * self.fixed_s:
            return inf
        return ceil(self.compile_s / (self.open_s - self.fixed_s))

    def __str__(self) -> str:
        both = f"{self.open_s * 1e6:.3g} us a call with open sizes, {self.fixed_s * 1e6:.3g} us without"
        by = f" ({', '.join(self.left)})" if self.left else ""
        if self.calls == inf:
            return f"{both}{by}: nothing to gain"
        return f"{both}{by}: {self.compile_s:.2g} s of compilation pay from {self.calls:.0f} calls on"


def open_gain(
    seconds: tuple[float, float],
    decisions: tuple[Iterable[Decision], Iterable[Decision]],
    kernels: int,
) -> OpenGain:
    """Of so many fixed kernels, by what the model says of open and of fixed ones, and by their decisions."""
    have, others = ({d.kind for d in each if d.taken} for each in decisions)
    left = tuple(k for k in WORTH if k in others - have)
    opened, fixed = seconds
    return OpenGain(opened * prod(WORTH[k] for k in left), fixed, COMPILATION_S + KERNEL_S * kernels, left)
