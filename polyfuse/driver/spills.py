"""Spills are a veto: of kernels that keep registers in local memory, a smaller plan is taken.

    as planned -> half of what threads keep -> a quarter -> without layer II -> without layers

The compiler says what spills (`runtime.cuda.cubin`), without a GPU: the choice follows from the program, the
architecture and the compiler's version alone.  The first plan without spills is taken, and where all of them
spill the one that moves the fewest bytes.  Source: nvFuser's LayerNorm backward, which fell from 70 to 45 %
of the limit by 80 bytes a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyfuse.codegen.cuda.emit import CudaCode
from polyfuse.decisions import Decision
from polyfuse.diagnostics import ScheduleError, ToolchainError
from polyfuse.driver.lowering import Lowered
from polyfuse.options import Options
from polyfuse.runtime.cuda.compiler import compile_cuda

if TYPE_CHECKING:
    from polyfuse.driver.pipeline import Compilation

# How often what a thread keeps is halved before layers are given up.
MOST_HALVINGS = 2
Made = tuple[Lowered, CudaCode]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan, what it is called, and the bytes that each of its kernels that spill moves so."""

    name: str
    made: Made
    spilled: dict[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.spilled.values())

    def __str__(self) -> str:
        kernels = ", ".join(f"{name} {n} bytes" for name, n in self.spilled.items())
        return f"{self.name} spills ({kernels} a thread)" if kernels else f"{self.name} spills nothing"


def spilled(code: CudaCode, arch: str, options: Options) -> dict[str, int]:
    """Bytes that a thread of each kernel spills, stored and loaded; kernels that do not are left out."""
    found = compile_cuda(code.source, arch, options=options).resources
    return {
        name: (r.spill_stores or 0) + (r.spill_loads or 0) or (r.stack or 0)
        for name, r in found.items()
        if r.spills
    }


def smaller(compilation: Compilation) -> Iterator[tuple[str, Compilation]]:
    """A compilation as it was asked for, then with less and less that a thread holds."""
    yield "the plan", compilation
    for k in range(1, MOST_HALVINGS + 1):
        yield f"1/{1 << k} of what threads keep", replace(compilation, halvings=k)
    if compilation.stitching is not None:
        yield "the plan without layer II", replace(compilation, stitching=None)
    if compilation.fusion is not None or compilation.packing is not None:
        yield "no fusion", replace(compilation, stitching=None, packing=None, fusion=None)


def unspilled(compilation: Compilation, arch: str, emit: Callable[[Compilation], Made]) -> Made:
    """The kernels of a compilation for the target "cuda", or those of a smaller plan where they spill.

    Raises ScheduleError as `emit` does of the first plan. What the compiler refuses is not judged here.
    """
    best: Attempt | None = None
    told: list[str] = []
    for name, each in smaller(compilation):
        try:
            made = emit(each)
        except ScheduleError:
            if best is None:
                raise
            continue
        found: dict[str, int] = {}
        with suppress(ToolchainError):  # loading says so
            found = spilled(made[1], arch, compilation.options)
        attempt = Attempt(name, made, found)
        told.append(str(attempt))
        if best is None or attempt.nbytes < best.nbytes:
            best = attempt
        if not found:
            break
    assert best is not None
    low, code = best.made
    if len(told) > 1:
        why = f"{'; '.join(told)}: {best.name} is taken"
        note = Decision("spills", compilation.graph.name, best.name == "the plan", why)
        low = replace(low, decisions=(*low.decisions, note))
    return low, code
