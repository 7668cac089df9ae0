"""Passes over the loops of a kernel, one list for each target (`codegen.cpu.pipeline`,
`codegen.cuda.pipeline`).

    Loops --pass--> Loops --pass--> ...        a kernel, its loops, later the functions that they become

A pass takes what a kernel has become and gives it again, the same object where it has nothing to do.  After
each one the pipeline notes which tensors' loops it changed and which it could have changed but for a reason
(`missed`), tells whoever looks on (dumps, times), and verifies the loops where that is asked for.  An
optional pass can be switched off: the code is as right without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyfuse.codegen.function import Function, head
from polyfuse.ir.cpu_core import Core, CpuKnobs, is_off
from polyfuse.ir.kernel import Buffer, Kernel
from polyfuse.ir.loop_ir import Block, For, Node, Store, TransposedTile, Update, format_block, nodes_of


@dataclass(frozen=True, slots=True)
class Loops:
    """What a kernel has become: `block` are its loops, until they are outlined as functions, `functions`.
    `arrays` are arrays of workers that passes added, declared when all passes are done."""

    kernel: Kernel
    block: Block = ()
    functions: tuple[Function, ...] = ()
    arrays: tuple[Buffer, ...] = ()

    def __str__(self) -> str:
        parts = [format_block(self.block)] if self.block else []
        for k, t in enumerate(self.functions):
            over = ", ".join(f"{x.var} in {x.lower}..{x.upper}" for x in t.loops)
            parts.append(f"function {k}" + (f" over {over}" if over else "") + ":")
            parts.append(format_block(t.block, "  "))
        return "\n".join(parts)

    @property
    def rows(self) -> int:
        """So many iterations of a function are run together, at most."""
        each = [[n for n in head(x) if n.over is None] for t in self.functions for x in t.batches]
        return max((1, *map(len, each)))


@dataclass(slots=True)
class PassContext:
    """What passes of one kernel share: choices of code generation, and numbers for new names.

    checked: indices that are data are checked where they are used.  strided: tensors whose strides come at
    run time.  numbers: for new names.  changed: for each pass that acted, tensors whose loops it changed.
    declined: for a pass and each of its reasons, tensors whose loops it left as they were.  aligned: how
    many bytes vector accesses need tensors aligned to (GPU).  forms: approximate forms of functions (GPU),
    each with the tensors whose values have it.
    """

    knobs: CpuKnobs = field(default_factory=CpuKnobs)
    checked: bool = False
    strided: frozenset[str] = frozenset()
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    declined: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    aligned: dict[str, int] = field(default_factory=dict)
    forms: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def note_forms(self, found: Mapping[str, tuple[str, ...]]) -> None:
        """Forms of functions that the statements of a kernel have."""
        for op, tensors in found.items():
            self.forms[op] = _joined(self.forms.get(op, ()), tensors)

    def note(self, name: str, before: Loops, after: Loops, missed: Sequence[Missed]) -> None:
        """What a pass has changed; what it `missed` for a reason and has not changed either, told of memory
        outside where there is any."""
        changed = changed_tensors(before, after) if after is not before else ()
        if changed:
            self.changed[name] = _joined(self.changed.get(name, ()), changed)
        known = {b.tensor for b in before.kernel.buffers} - {*changed}
        outside = {b.tensor for b in before.kernel.arguments}
        for tensors, reason in missed:
            left = [n for n in tensors if n in known]
            if left := [n for n in left if n in outside] or left:
                self.declined[name, reason] = _joined(self.declined.get((name, reason), ()), left)

    @property
    def core(self) -> Core:
        return self.knobs.on


@dataclass(frozen=True, slots=True)
class Pass:
    """A named step.  `does`: one line for people.  A rule of a larger idea is called `idea:rule`."""

    name: str
    does: str
    run: Callable[[Loops, PassContext], Loops]
    optional: bool = True

    @property
    def idea(self) -> str:
        """What it is a rule of: its name up to the colon."""
        return self.name.partition(":")[0]

    def is_off(self, disabled: Iterable[str]) -> bool:
        """Is it switched off, by its own name or by that of its idea?"""
        return self.optional and is_off(self.name, disabled)


# Is called before the first pass of a list, and after each one: with the names of the list and the pass
# (before: none), and what came out.
Observer: TypeAlias = Callable[[str, str, Loops], None]
_observer: ContextVar[Observer | None] = ContextVar("_observer", default=None)


@contextmanager
def observed(by: Observer) -> Iterator[None]:
    """Passes that run inside tell what came out of them."""
    token = _observer.set(by)
    try:
        yield
    finally:
        _observer.reset(token)


# Tensors that are stored where a pass had something to do and did not do it, and why not.
Missed: TypeAlias = tuple[tuple[str, ...], str]
_missed: ContextVar[list[Missed] | None] = ContextVar("_missed", default=None)


def missed(nodes: Iterable[Node], reason: str) -> None:
    """Said by a pass: these loops have the form that it looks for, and stay as they are for a reason.

    A reason is one of few sentences of a pass, without names: it is told once for all tensors.
    """
    found = _missed.get()
    if found is not None:
        found.append((_stored(tuple(nodes)), reason))


@contextmanager
def _listening() -> Iterator[list[Missed]]:
    found: list[Missed] = []
    token = _missed.set(found)
    try:
        yield found
    finally:
        _missed.reset(token)


def _joined(names: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *more)))


def on_block(change: Callable[[Kernel, Block, PassContext], Block]) -> Callable[[Loops, PassContext], Loops]:
    """A pass over the loops of a kernel."""

    def run(x: Loops, cx: PassContext) -> Loops:
        block = change(x.kernel, x.block, cx)
        return x if block is x.block else replace(x, block=block)

    return run


def on_functions(
    change: Callable[[Kernel, Sequence[Function], PassContext], Sequence[Function]],
) -> Callable[[Loops, PassContext], Loops]:
    """A pass over the functions of a kernel."""

    def run(x: Loops, cx: PassContext) -> Loops:
        return _with_functions(x, change(x.kernel, x.functions, cx))

    return run


def on_each(
    change: Callable[[Kernel, Function, PassContext], Function],
) -> Callable[[Loops, PassContext], Loops]:
    """A pass over each function of a kernel. Those that are pipelined stay: parts of them are there twice."""

    def run(x: Loops, cx: PassContext) -> Loops:
        return _with_functions(x, [t if t.pipelined else change(x.kernel, t, cx) for t in x.functions])

    return run


def _with_functions(x: Loops, functions: Sequence[Function]) -> Loops:
    same = len(functions) == len(x.functions) and all(
        a is b for a, b in zip(functions, x.functions, strict=True)
    )
    return x if same else replace(x, functions=tuple(functions))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A list of passes, in order."""

    name: str
    passes: tuple[Pass, ...]

    def run(self, loops: Loops, cx: PassContext) -> Loops:
        """Apply all passes that are not switched off (`CpuKnobs.disabled`)."""
        observer = _observer.get()
        if observer:
            observer(self.name, "", loops)
        for p in self.passes:
            if p.is_off(cx.knobs.disabled):
                continue
            with _listening() as found:
                after = p.run(loops, cx)
            if p.optional:
                cx.note(p.name, loops, after, found)
            if observer:
                observer(self.name, p.name, after)
            loops = after
        return loops


def changed_tensors(before: Loops, after: Loops) -> tuple[str, ...]:
    """Tensors that are stored where a pass changed something, in order."""
    found = dict.fromkeys(_changed(before.block, after.block)) if not after.functions else {}
    if len(before.functions) == len(after.functions):
        for old, new in zip(before.functions, after.functions, strict=True):
            if old is not new and old != new:
                found |= dict.fromkeys(_changed(old.body, new.body) or _stored(new.body))
    return tuple(n for n in found if any(b.tensor == n for b in before.kernel.buffers))


def _changed(before: Block, after: Block) -> tuple[str, ...]:
    """Tensors that are stored in the smallest loops that differ; all of a block that differs in length."""
    if before is after or before == after:
        return ()
    if len(before) != len(after):
        return _stored(after)
    found: list[str] = []
    for old, new in zip(before, after, strict=True):
        if isinstance(old, For) and isinstance(new, For) and replace(new, body=old.body) == old:
            found += _changed(old.body, new.body)
        elif old is not new and old != new:
            found += _stored((new,))
    return tuple(found) or _stored(after)


def _stored(block: Sequence[Node]) -> tuple[str, ...]:
    every = list(nodes_of(tuple(block)))
    tiles = [n.to[0] for n in every if isinstance(n, TransposedTile) and n.to]
    return (*(n.buffer for n in every if isinstance(n, Store | Update)), *tiles)
