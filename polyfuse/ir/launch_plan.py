"""The launch plan: what runs, in which order, on which memory.

    LaunchPlan = buffers, launches, scratch_bytes
    Launch     = one function of one kernel: `count` iterations, handed out in chunks if `parallel`

`buffers` fixes the order of the pointer table that every function gets; workspace buffers live in one
block at static offsets.  Counts and extents are index expressions, evaluated at launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import IndexExpr


class Kind(Enum):
    INPUT = "input"
    OUTPUT = "output"
    INOUT = "inout"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """`strided`: element strides come at run time; otherwise the memory is dense and row-major.

    `alias` names the inout entry value that an output shares memory with.
    """

    name: str
    dtype: DType
    shape: tuple[IndexExpr, ...]
    kind: Kind
    strided: bool = False
    alias: str | None = None

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        flags = " strided" * self.strided + (f" in place of {self.alias}" if self.alias else "")
        return f"{self.kind.value:9s} {self.name}: {self.dtype}[{shape}]{flags}"


@dataclass(frozen=True, slots=True)
class Launch:
    """`instances` is the number of statement instances, for choosing chunks and for reports."""

    function: str
    kernel: str
    count: IndexExpr
    instances: IndexExpr
    parallel: bool

    def __str__(self) -> str:
        how = f"parallel over {self.count}" if self.parallel else "serial"
        return f"{self.function} ({self.kernel}): {how}, {self.instances} instances"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """`copied` names inout parameters whose entry values are copied first (no in-place order exists)."""

    buffers: tuple[PlanBuffer, ...]
    launches: tuple[Launch, ...]
    scratch_bytes: int
    sizes: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = ["buffers", *(f"  {b}" for b in self.buffers)]
        lines += ["launches", *(f"  {k}. {launch}" for k, launch in enumerate(self.launches))]
        if self.copied:
            lines.append(f"copied at entry: {', '.join(self.copied)}")
        return "\n".join(lines)
