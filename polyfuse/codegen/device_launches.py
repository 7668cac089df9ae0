"""Launches of a GPU that run several kernels: their functions as text, and how they are launched.

Kernels of one form share a function.  What such functions declare of shared memory adds up, for the compiler
gives each its own.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from polyfuse.codegen.device_packs import (
    STATE,
    PackPart,
    PackStage,
    PackText,
    Parameter,
    pack_function,
    staged_function,
)
from polyfuse.codegen.spmd import DeviceTask
from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.index_expr import as_index, evaluate
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.launch_plan import Argument, GridLaunch, Passing

# Of every shared array, as `PF_SHARED` says.
SHARED_ALIGNMENT = 16
# Shared memory of a multiprocessor that every GPU of the table has.
SHARED_PER_SM = 96 * 1024


class PartFunction(Protocol):
    """What a launch of several kernels asks of the function of one."""

    name: str
    task: DeviceTask
    declared: list[Parameter]
    inner: bool
    alike: object

    def text(self) -> str: ...
    def parameters(self) -> None: ...
    def launch(self) -> GridLaunch: ...


@dataclass(frozen=True, slots=True)
class Together:
    """Functions, the one that is launched last; nothing where no kernel has a block."""

    texts: tuple[str, ...]
    launch: GridLaunch


def together(name: str, kernel: Kernel, parts: Sequence[PartFunction]) -> Together:
    """Independent kernels side by side, each on its own range of blocks."""
    texts: list[str] = []
    launched: list[GridLaunch] = []
    stage = _stage(parts, texts, launched)
    threads = prod(kernel.threads)
    main = pack_function(name, threads, stage, "pf_i64") if stage.parts else PackText("", ())
    room, dynamic = _shared_bytes(launched)
    blocks = as_index(stage.blocks)
    launch = GridLaunch(
        name, kernel.name, blocks, (threads, 1), room, main.arguments, False, dynamic, main.table
    )
    return Together((*texts, main.text) if stage.parts else (), launch)


def staged(name: str, kernel: Kernel, stages: Sequence[Sequence[PartFunction]]) -> Together:
    """Stages of independent kernels, with a barrier of the grid between two.

    Raises ScheduleError PF532 where the shared memory that they declare leaves no room for the grid.
    """
    texts: list[str] = []
    launched: list[GridLaunch] = []
    found = []
    for parts in stages:
        stage = _stage(parts, texts, launched)
        if stage.parts:
            found.append(stage)
    threads = prod(kernel.threads)
    room, dynamic = _shared_bytes(launched)
    if room * kernel.per_sm > SHARED_PER_SM:
        message = f"{kernel.name}: {kernel.per_sm} blocks with {room} bytes of shared memory are not resident"
        raise ScheduleError([Diagnostic("PF532", message, hint="cut the kernel between two stages")])
    blocks = min(kernel.resident, max((s.blocks for s in found), default=0))
    state = Parameter(STATE, "pf_u32", "grid_state", Argument(Passing.BARRIER))
    main = staged_function(name, threads, kernel.per_sm, found, state, blocks)
    launch = GridLaunch(
        name, kernel.name, as_index(blocks), (threads, 1), room, main.arguments, True, dynamic, main.table
    )
    return Together((*texts, main.text) if found else (), launch)


def written_memory(kernel: Kernel) -> frozenset[str]:
    """What the stages of a launch write; an inout parameter and its new value are one."""
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}
    return frozenset(memory[s.target] for s in kernel.graph.statements)


def words(functions: Iterable[str]) -> list[str]:
    """The words that launches in stages and those with tables are written in, where functions need them."""
    if not any("PF_STAGE_" in text or "PF_TABLE" in text for text in functions):
        return []
    text = importlib.resources.files(__package__).joinpath("device_words.h").read_text(encoding="utf-8")
    return [text.split("\n\n", 1)[1]]


def _stage(parts: Sequence[PartFunction], texts: list[str], launched: list[GridLaunch]) -> PackStage:
    """Calls of the functions of all parts; one is printed for each form."""
    known: dict[object, str] = {}
    calls: list[PackPart] = []
    shared = False
    for p in parts:
        p.inner = True
        blocks = evaluate(p.launch().blocks, {})
        if not blocks:
            continue
        if p.alike in known:
            p.parameters()
        else:
            known[p.alike] = p.name
            texts.append(p.text())
            launched.append(p.launch())
        shared = shared or any(b.scope is Scope.SHARED for b in p.task.kernel.buffers)
        calls.append(PackPart(known[p.alike], blocks, tuple(p.declared)))
    return PackStage(tuple(calls), shared)


def _shared_bytes(launched: Sequence[GridLaunch]) -> tuple[int, int]:
    """(declared and asked for, asked for) by functions of one launch."""
    dynamic = max((x.dynamic_bytes for x in launched), default=0)
    declared = [x.shared_bytes for x in launched if not x.dynamic_bytes]
    return dynamic + sum(-(-n // SHARED_ALIGNMENT) * SHARED_ALIGNMENT for n in declared), dynamic
