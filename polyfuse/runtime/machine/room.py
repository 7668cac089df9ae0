"""Whether tensors fit the machine's memory, and what is said where they do not."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from polyfuse.decisions import format_bytes
from polyfuse.diagnostics import HostMemoryError
from polyfuse.ir.dtypes import DType
from polyfuse.ir.index_expr import evaluate
from polyfuse.ir.tensor_graph import Role, Tensor, TensorGraph
from polyfuse.runtime.cpu.memory import usable_memory
from polyfuse.source import Span


@dataclass(frozen=True, slots=True)
class Wanted:
    """Memory that one tensor takes."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    span: Span | None = None

    @classmethod
    def by(cls, t: Tensor, shape: tuple[int, ...]) -> Wanted:
        """By a tensor of a graph."""
        return cls(t.name, t.dtype, shape, t.span)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.bytes


def machine_memory() -> int:
    """Bytes of RAM and swap, or the limit of the container if that is less."""
    ram = usable_memory()
    if ram < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        return ram
    with suppress(OSError), open("/proc/meminfo") as f:
        found = re.search(r"^SwapTotal:\s*(\d+) kB$", f.read(), re.MULTILINE)
        return ram + (int(found[1]) << 10 if found else 0)
    return ram


def wanted_by(graph: TensorGraph, sizes: Mapping[str, int]) -> list[Wanted]:
    """What arguments and results take."""
    arrays = [t for t in graph.tensors if t.role is not Role.TEMP and t.alias is None]
    return [Wanted.by(t, tuple(evaluate(e, sizes) for e in t.shape)) for t in arrays]


def require_room(wanted: Sequence[Wanted], what: str) -> None:
    """Raises HostMemoryError PF423 for tensors that the machine's whole memory cannot hold."""
    if wanted and sum(w.nbytes for w in wanted) > machine_memory():
        raise no_room(wanted, what)


def no_room(wanted: Sequence[Wanted], what: str) -> HostMemoryError:
    """The error for tensors that do not fit; `what` they are: a result, a temporary."""
    most = max(wanted, key=lambda w: w.nbytes)
    total = sum(w.nbytes for w in wanted)
    message = f"{what} '{most.name}' of shape {most.shape} takes {format_bytes(most.nbytes)}"
    if len(wanted) > 1 and total > most.nbytes:
        message += f" of {format_bytes(total)} in all"
    return HostMemoryError(
        f"{message}; this machine has {format_bytes(machine_memory())} of memory",
        span=most.span,
        hint="choose smaller sizes, or compute it in parts",
    )
