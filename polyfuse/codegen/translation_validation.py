"""Does a pass keep what loops compute? Both forms are run, on numbers that do not round
(`codegen.analysis.loop_values`), and the memory that they leave is compared.

    before                        after                          what is run, first
    A                             A
    for t in 0..4096:             for t in 0..4096:              B for t = 0, 2048, 4095, from any memory,
      B                             B'                           then B' for these
    C                             C

The smallest blocks that differ come first, with a few values for the variables of loops around.  They may
differ where the whole does not, as a value that is found before a loop; then the blocks around are compared,
and only the outermost ones tell.  Functions are run for some iterations from the first one on, and for some
up to the last one.  Vector loops of the later form run backwards: their iterations must be independent.

Nothing of a pass is trusted but that it leaves dead what was dead: at the outermost level arguments and
memory between kernels count, no arrays of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain

from polyfuse.codegen.analysis.loop_values import LoopProgram, Memories, Skipped, Unknown
from polyfuse.codegen.analysis.renaming import arrays_of_rows
from polyfuse.codegen.function import BEGIN, END, Function
from polyfuse.codegen.passes import Loops
from polyfuse.ir.index_expr import binary, evaluate
from polyfuse.ir.kernel import Buffer, Scope
from polyfuse.ir.loop_ir import Block, Declare, For, If, RegisterTile, TransposedTile, VectorLoad

# Statements that are run to compare two forms.
USUAL_BUDGET = 20_000
DECLARING = (Declare, RegisterTile, TransposedTile, VectorLoad)
# Iterations of a function that are run, besides those that go together.
SOME = 3


class Verdict(Enum):
    SAME = "same"
    DIFFERENT = "different"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """What comparing two forms told; `what` is an element that differs, or why they were not run."""

    verdict: Verdict
    what: str = ""


SAME = Finding(Verdict.SAME)


def compared(before: Loops, after: Loops, budget: int = USUAL_BUDGET) -> Finding:
    """Do the loops after a pass compute what they did before it?"""
    validator = _Validator(before, after, budget)
    try:
        return validator.whole()
    except Skipped as why:
        return Finding(Verdict.SKIPPED, str(why))


@dataclass(slots=True)
class _Validator:
    before: Loops
    after: Loops
    budget: int
    registers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.after.functions and not self.before.functions:
            known = self.before.kernel.buffers
            self.registers = frozenset(b.tensor for b in known if b.scope is Scope.REGISTER)

    def whole(self) -> Finding:
        old, new = self.before, self.after
        if not (old.functions or new.functions):
            if not old.block:
                raise Skipped("there were no loops")
            return self.blocks(old.block, new.block, (), self.outside)
        if new.functions and not old.functions:  # outlined
            nests = tuple(chain.from_iterable(map(_nest, new.functions)))
            return self.blocks(old.block, nests, (), self.outside)
        if len(old.functions) != len(new.functions):
            return self.run(lambda p, x: _everything(p, x), ({},), self.outside)
        for k, (a, b) in enumerate(zip(old.functions, new.functions, strict=True)):
            if a != b and (found := self.functions(k, a, b)) != SAME:
                return found
        return SAME

    def functions(self, k: int, a: Function, b: Function) -> Finding:
        """Of one function: its body for some iterations, or these in turn, as a worker runs them."""
        if a.with_body(b.body) == b and not (a.batches or a.pipelined or a.run):
            around = (*([a.time] if a.time else []), *a.loops)
            found = self.blocks(a.body, b.body, around, self.outside if not a.loops else self.every)
            if found == SAME or not a.loops:
                return found
        return self.run(lambda p, x: p.block(x.functions[k].block), _ranges(a, b), self.outside)

    # --- blocks ---------------------------------------------------------------------------------------

    def blocks(self, a: Block, b: Block, around: tuple[For, ...], counts: Callable[[str], bool]) -> Finding:
        """The parts that differ, if these tell; else the blocks."""
        c, d = _differing(a, b)
        pairs = _pairs(c, d)
        if pairs and all(self._inner(x, y, around) == SAME for x, y in pairs):
            return SAME
        outermost = counts == self.outside
        if not outermost or (c, d) != (a, b):
            try:
                found = self.run_blocks(c, d, around, self.every)
            except Unknown as name:  # it is declared in front
                found = Finding(Verdict.DIFFERENT, str(name))
            if found == SAME or not outermost:
                return found
        return self.run_blocks(a, b, around, counts)

    def _inner(self, a: object, b: object, around: tuple[For, ...]) -> Finding:
        match a, b:
            case For(), For() if replace(a, body=b.body) == b:
                return self.blocks(a.body, b.body, (*around, a), self.every)
            case If(), If() if a.cond == b.cond:
                found = self.blocks(a.then, b.then, around, self.every)
                return self.blocks(a.other, b.other, around, self.every) if found == SAME else found
            case _:
                return SAME if a == b else Finding(Verdict.DIFFERENT)

    def run_blocks(self, a: Block, b: Block, around: Sequence[For], counts: Callable[[str], bool]) -> Finding:
        return self.run(lambda p, x: p.block(a if x is self.before else b), _samples(around), counts)

    def run(
        self,
        make: Callable[[LoopProgram, Loops], None],
        samples: Sequence[Mapping[str, int]],
        counts: Callable[[str], bool],
    ) -> Finding:
        """Both forms, for each set of variables."""
        programs = []
        for x in (self.before, self.after):
            programs.append(LoopProgram(_buffers(x), backwards=x is self.after))
            make(programs[-1], x)
        for values in samples:
            left = []
            for p in programs:
                left.append(Memories())
                self.budget = p.run(left[-1], values, self.budget)
            if place := left[0].differs(left[1], counts):
                at = ", ".join(f"{name} = {value}" for name, value in values.items())
                return Finding(Verdict.DIFFERENT, f"{place}{f' for {at}' if at else ''}")
        return SAME

    def outside(self, name: str) -> bool:
        """Does memory outlive the kernel?"""
        return any(b.tensor == name for b in self.before.kernel.arguments)

    def every(self, name: str) -> bool:
        """Any memory; but registers, once they are declared where they are needed."""
        return name not in self.registers


def _buffers(x: Loops) -> dict[str, Buffer]:
    own = arrays_of_rows(x.kernel, x.rows)  # `declare-arrays` comes last
    return own | {b.tensor: b for b in (*x.kernel.buffers, *x.arrays)}


def _differing(a: Block, b: Block) -> tuple[Block, Block]:
    """The blocks without what they begin and end with both; what follows a declaration may need it."""
    first, most = 0, min(len(a), len(b))
    while first < most and a[first] == b[first]:
        first += 1
    last = 0
    while last < most - first and a[-1 - last] == b[-1 - last]:
        last += 1
    if any(isinstance(n, DECLARING) for n in (*a[first : len(a) - last], *b[first : len(b) - last])):
        last = 0
    return a[first : len(a) - last], b[first : len(b) - last]


def _pairs(a: Block, b: Block) -> list[tuple[object, object]]:
    return list(zip(a, b, strict=True)) if len(a) == len(b) else []


def _samples(around: Sequence[For]) -> list[dict[str, int]]:
    """First, last and middle values of the variables of loops; none where a loop has no iteration."""
    found: list[dict[str, int]] = []
    for part in (0, 2, 1):
        values: dict[str, int] = {}
        for x in around:
            try:
                low, high = evaluate(x.lower, values), evaluate(x.upper, values)
            except KeyError:
                raise Skipped("sizes are open") from None
            count = max(0, -((low - high) // x.step))
            if not count:
                break
            values[x.var] = low + (count - 1) * part // 2 * x.step
        else:
            if values not in found:
                found.append(values)
    return found


# --- functions -----------------------------------------------------------------------------------------


def _ranges(*functions: Function) -> list[dict[str, int]]:
    """From the first iteration on, and up to the last one."""
    times = _samples([f.time for f in functions[:1] if f.time])
    if not functions[0].loops:
        return times
    total = _total(functions[0])
    some = min(total, SOME + max(x.step for f in functions for x in f.worker))
    ranges = [{BEGIN.name: 0, END.name: some}, {BEGIN.name: total - some, END.name: total}]
    return [{**r, **t} for t in times for r in (ranges if some < total else ranges[:1])]


def _total(f: Function) -> int:
    total = 1
    for x in f.loops:
        try:
            total *= max(0, evaluate(binary("-", x.upper, x.lower), {}))
        except KeyError:
            raise Skipped("sizes are open") from None
    return total


def _nest(f: Function) -> Block:
    """A function as the loops that it was made of."""
    body = f.body
    for x in reversed((*([f.time] if f.time else []), *f.loops)):
        body = (replace(x, body=body),)
    return body


def _everything(p: LoopProgram, x: Loops) -> None:
    """A kernel from its first function to its last one."""
    p.block(x.block)
    for f in x.functions:
        if f.time is not None:
            raise Skipped("functions take turns")
        if f.loops:
            p.line(f"i_{BEGIN.name}, i_{END.name} = 0, {_total(f)}", 1)
            p.own |= {BEGIN.name, END.name}
        p.inside(f.block, 1)
