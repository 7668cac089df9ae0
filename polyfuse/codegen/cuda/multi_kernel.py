"""Kernels that share a launch of a GPU: side by side, and one after the other behind barriers of the grid.

    side by side    if (block < 12) part_0(block, ...); else part_1(block - 12, ...);

    in stages       for (task = blockIdx.x; task < 30; task += gridDim.x)  part_0 or part_1, by `task`
                    barrier of the grid
                    for (task = blockIdx.x; task < 8; task += gridDim.x)   ...

Kernels that differ in names only share a function, which gets the memory of each as arguments.  Side by side
a block runs just one kernel, so barriers of the block and shared memory are those of each kernel alone.  In
stages the blocks, all resident, take the tasks of a stage in turn; all of them come to all barriers,
whatever they had to do before.

A launch takes 4,096 bytes of arguments on every driver.  Where that is not enough they are cells of a table
in the memory of the device, a row for each kernel.

`pack_function` and `staged_function` print them; `together` and `staged` say how they are launched.
"""

from __future__ import annotations

import importlib.resources
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

from polyfuse.codegen.cuda.spmd import DeviceTask
from polyfuse.diagnostics import Diagnostic, ScheduleError
from polyfuse.ir.index_expr import as_index, evaluate
from polyfuse.ir.kernel import Kernel, Scope
from polyfuse.ir.launch_plan import Argument, GridLaunch, Passing
from polyfuse.ir.loop_ir import (
    Barrier,
    Block,
    RegisterTile,
    Store,
    Update,
    VectorLoad,
    VectorStore,
    map_values,
    nodes_of,
)
from polyfuse.ir.tensor_graph import Expr, Read

# Arguments of 8 bytes that a launch takes: newer drivers take more, all take so many.
MOST_PASSED = 512
# Of these, scalars that all kernels of a launch have in common and that are passed although there is a table.
MOST_COMMON = 128

INPUT, OUTPUT, INOUT, STAGE_INPUT, STAGE_OUTPUT, NUMBER, STATE = (
    "PF_IN", "PF_OUT", "PF_INOUT", "PF_STAGE_IN", "PF_STAGE_OUT", "", "state"
)  # fmt: skip
_WRITTEN = (OUTPUT, INOUT, STAGE_OUTPUT)
_FROM_TABLE = {INPUT: "pf_in", STAGE_INPUT: "pf_in"} | dict.fromkeys(_WRITTEN, "pf_out")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function: how it is declared (a pointer that is read or written, a number, the
    address of a state), and what is passed for it."""

    how: str
    type: str
    name: str
    argument: Argument

    @property
    def text(self) -> str:
        if self.how == STATE:
            return f"{self.type}* const {self.name}"
        return f"{self.how}({self.type}) {self.name}" if self.how else f"const {self.type} {self.name}"

    @property
    def movable(self) -> bool:
        """May it lie in a table?"""
        return self.how != STATE

    def in_row(self, place: int) -> str:
        """Its value from a row of the table."""
        return f"{_FROM_TABLE.get(self.how, 'pf_number')}<{self.type}>(row, {place})"


@dataclass(frozen=True, slots=True)
class PackPart:
    """A call of a part's function: its blocks, and its parameters as the caller has them."""

    function: str
    blocks: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class PackStage:
    """What runs side by side; `shared`: blocks use shared memory."""

    parts: tuple[PackPart, ...]
    shared: bool = False

    @property
    def blocks(self) -> int:
        return sum(p.blocks for p in self.parts)


@dataclass(frozen=True, slots=True)
class PackText:
    """A function that is launched, with its arguments and those in its table."""

    text: str
    arguments: tuple[Argument, ...]
    table: tuple[Argument, ...] = ()


def pack_function(name: str, threads: int, stage: PackStage, kind: str) -> PackText:
    """Kernels side by side, each on its own range of blocks. `kind` is the type of block numbers."""
    passed = _passed([stage])
    lines = [
        f"// {len(stage.parts)} kernels side by side",
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}(',
        f"    {passed.declared()}) {{",
        f"  const {kind} block = blockIdx.x;",
        *_calls(stage, passed, "block", "  "),
        "}",
        "",
    ]
    return passed.done("\n".join(lines))


def staged_function(
    name: str, threads: int, per_sm: int, stages: Sequence[PackStage], state: Parameter, resident: int
) -> PackText:
    """Stages with a barrier of the grid between two, on a grid of `resident` blocks."""
    passed = _passed(stages, state)
    lines = [
        f"// {len(stages)} stages, with barriers of the grid between",
        f'extern "C" __global__ void __launch_bounds__({threads}, {per_sm}) {name}(',
        f"    {passed.declared()}) {{",
    ]
    for k, stage in enumerate(stages):
        if k:
            lines.append(f"  pf_grid_barrier({state.name});  // all blocks have done the stage before")
        again = stage.shared and stage.blocks > resident
        lines += [
            f"  // {_side_by_side(stage)}",
            f"  for (pf_i64 task = blockIdx.x; task < {stage.blocks}; task += gridDim.x) {{",
            *_calls(stage, passed, "task", "    "),
            *["    __syncthreads();  // the next task uses the same shared memory"] * again,
            "  }",
        ]
    return passed.done("\n".join([*lines, "}", ""]))


def _side_by_side(stage: PackStage) -> str:
    count = len(stage.parts)
    return f"{count} kernels side by side" if count > 1 else "one kernel"


class _Passed:
    """Parameters of the function that is launched, and the table that grows while calls are printed."""

    def __init__(self, parameters: dict[Argument, Parameter], in_table: bool) -> None:
        self.parameters = parameters
        self.in_table = in_table
        self.table: list[Argument] = []

    def declared(self) -> str:
        texts = [p.text for p in self.parameters.values()]
        return ",\n    ".join([*texts, "PF_TABLE table"] if self.in_table else texts)

    def done(self, text: str) -> PackText:
        arguments = tuple(self.parameters)
        if not self.in_table:
            return PackText(text, arguments)
        return PackText(text, (*arguments, Argument(Passing.TABLE)), tuple(self.table))

    def direct(self, p: Parameter) -> bool:
        return p.argument in self.parameters


def _passed(stages: Sequence[PackStage], state: Parameter | None = None) -> _Passed:
    """What a launch takes: all that its kernels need if it is not too much, else a table as well."""
    found: dict[Argument, Parameter] = {}
    for p in (p for s in stages for part in s.parts for p in part.parameters):
        known = found.setdefault(p.argument, p)
        if p.how in _WRITTEN and (known.how not in _WRITTEN or p.how == INOUT):
            found[p.argument] = p  # a later part writes it, or its threads exchange it
    if state is not None:  # memory that is written is not this function's alone to know of
        found = {a: replace(p, how=STAGE_OUTPUT) if p.how == OUTPUT else p for a, p in found.items()}
        found.setdefault(state.argument, state)
    if len(found) <= MOST_PASSED:
        return _Passed(found, False)
    fixed = {a: p for a, p in found.items() if not p.movable}
    numbers = [(a, p) for a, p in found.items() if p.how == NUMBER]
    return _Passed({**dict(numbers[:MOST_COMMON]), **fixed}, True)


def _calls(stage: PackStage, passed: _Passed, block: str, indent: str) -> list[str]:
    """The call of the part that a block has, found by halves: the condition is the same for all threads."""
    if not passed.in_table:
        firsts = [sum(p.blocks for p in stage.parts[:k]) for k in range(len(stage.parts) + 1)]

        def call(k: int, inner: str) -> list[str]:
            p = stage.parts[k]
            number = f"{block} - {firsts[k]}" if firsts[k] else block
            return [f"{inner}{p.function}({', '.join((number, *(x.name for x in p.parameters)))});"]

        return _by_halves(firsts, 0, len(stage.parts), block, indent, call)
    return _rows(stage, passed, block, indent)


def _rows(stage: PackStage, passed: _Passed, block: str, indent: str) -> list[str]:
    """The same where arguments are in the table: one call for all kernels of one function."""
    parts = sorted(stage.parts, key=lambda p: p.function)
    firsts = [sum(p.blocks for p in parts[:k]) for k in range(len(parts) + 1)]
    starts = [k for k, p in enumerate(parts) if not k or parts[k - 1].function != p.function]
    bounds = [*starts, len(parts)]

    def call(k: int, inner: str) -> list[str]:
        alike = parts[bounds[k] : bounds[k + 1]]
        places = [j for j in range(len(alike[0].parameters)) if not _common(alike, j, passed)]
        row = f"table + {len(passed.table)} + (part - {bounds[k]}) * {len(places)}"
        passed.table += [p.parameters[j].argument for p in alike for j in places]
        values = [
            x.in_row(places.index(j)) if j in places else x.name for j, x in enumerate(alike[0].parameters)
        ]
        called = ", ".join((f"{block} - first[part]", *values))
        lines = [f"{inner}PF_ROW row = {row};"] if places else []
        return [*lines, f"{inner}{alike[0].function}({called});"]

    return [
        f"{indent}static const pf_i64 first[] = {{{', '.join(map(str, firsts))}}};",
        f"{indent}const int part = pf_part(first, {len(parts)}, {block});",
        *_by_halves(bounds, 0, len(starts), "part", indent, call),
    ]


def _common(alike: Sequence[PackPart], place: int, passed: _Passed) -> bool:
    """Is a parameter passed to the launch, and the same for all kernels of a function?"""
    one = alike[0].parameters[place]
    return passed.direct(one) and all(p.parameters[place].argument == one.argument for p in alike)


def _by_halves(
    bounds: Sequence[int],
    low: int,
    high: int,
    value: str,
    indent: str,
    call: Callable[[int, str], list[str]],
) -> list[str]:
    """Nested conditions that find k with bounds[k] <= value < bounds[k + 1]; the calls come in order."""
    if high - low == 1:
        return call(low, indent)
    middle = (low + high) // 2
    return [
        f"{indent}if ({value} < {bounds[middle]}) {{",
        *_by_halves(bounds, low, middle, value, indent + "  ", call),
        f"{indent}}} else {{",
        *_by_halves(bounds, middle, high, value, indent + "  ", call),
        f"{indent}}}",
    ]


# --- launches ---------------------------------------------------------------------------------------------

# Kernels of one form share a function.  What such functions declare of shared memory adds up, for the
# compiler gives each its own.


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


def exchanged(kernel: Kernel, block: Block) -> frozenset[str]:
    """What threads may pass on to each other at the barriers of a function: the buffers that it writes and
    reads, or writes in two places; an inout parameter and its new value are one."""
    nodes = list(nodes_of(block))
    if not any(isinstance(n, Barrier) for n in nodes):
        return frozenset()
    read = {n.buffer for n in nodes if isinstance(n, (VectorLoad, Update))}
    read |= {r.tensor for n in nodes if isinstance(n, RegisterTile) for r in (n.left, n.right)}

    def seen(e: Expr) -> Expr:
        if isinstance(e, Read):
            read.add(e.tensor)
        return e

    map_values(block, seen, lambda i: i)
    memory = {t.name: t.alias or t.name for t in kernel.graph.tensors}
    read = {memory.get(b, b) for b in read}
    stores = [n.buffer for n in nodes if isinstance(n, (Store, Update, VectorStore))]
    written = Counter(memory.get(b, b) for b in stores)
    found = {b for b, places in written.items() if places > 1 or b in read}
    return frozenset(name for name, root in memory.items() if root in found)


def words(functions: Iterable[str]) -> list[str]:
    """The words that launches in stages and those with tables are written in, where functions need them."""
    if not any("PF_STAGE_" in text or "PF_TABLE" in text for text in functions):
        return []
    text = (
        importlib.resources.files("polyfuse.codegen.math")
        .joinpath("device_words.h")
        .read_text(encoding="utf-8")
    )
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
