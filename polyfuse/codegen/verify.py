"""What a pass gives is verified: it keeps the facts of loop IR (`ir.verify_loops`), and computes what was
computed before it (`codegen.translation_validation`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from polyfuse.codegen.analysis.renaming import arrays_of_rows
from polyfuse.codegen.function import BEGIN, END, Function
from polyfuse.codegen.passes import Loops
from polyfuse.codegen.translation_validation import USUAL_BUDGET, Verdict, compared
from polyfuse.diagnostics import InternalError
from polyfuse.ir.verify_loops import LoopVerifier, places_of


@dataclass(slots=True)
class PassVerifier:
    """Looks on at passes (`codegen.passes.observed`).  Raises InternalError PF905 or PF906: these name the
    pass.

    At most `budget` statements are run for a pass, and none if it is 0; `verdicts` counts what
    became of that, by pass.
    """

    budget: int = USUAL_BUDGET
    verdicts: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    before: Loops | None = None
    around: frozenset[str] = frozenset()

    def __call__(self, pipeline: str, name: str, loops: Loops) -> None:
        """After a pass, or with no name before the first one."""
        before, self.before = self.before, loops
        if not name:
            self.around = variables_around(loops)
        elif loops == before:
            return
        verify_loops(pipeline, name, loops, self.around)
        if name and before is not None and self.budget:
            found = compared(before, loops, self.budget)
            self.verdicts[name, found.verdict] += 1
            if found.verdict is Verdict.DIFFERENT:
                message = f"kernel {loops.kernel.name}: the pass {name} ({pipeline}) changed {found.what}"
                raise InternalError(message, code="PF906")


def variables_around(loops: Loops) -> frozenset[str]:
    """Variables that a block reads and no loop of it has: those of loops around it."""
    verifier = _verifier(loops, False)
    verifier.free = set()
    verifier.block(loops.block)
    return frozenset(verifier.free)


def verify_loops(pipeline: str, name: str, loops: Loops, around: Set[str] = frozenset()) -> None:
    """Raise InternalError PF905, naming the pass and the loop, if these loops break a fact.

    `around`: variables that loops around the block may have.
    """
    try:
        _verify_block(loops, around)
        for t in loops.functions:
            _verify_function(loops, t)
    except InternalError as error:
        after = f"after the pass {name}" if name else "before the first pass"
        message = f"kernel {loops.kernel.name}, {after} ({pipeline}): {error.diagnostics[0].message}"
        raise InternalError(message, code="PF905") from None


def _verifier(loops: Loops, declared: bool) -> LoopVerifier:
    kernel = loops.kernel
    known = places_of((*kernel.buffers, *loops.arrays), declared)
    for name, b in arrays_of_rows(kernel, loops.rows).items():  # `declare-arrays` comes last
        known.setdefault(name, known[b.tensor])
    return LoopVerifier(known, frozenset(loops.kernel.graph.sizes))


def _verify_block(loops: Loops, around: Set[str]) -> None:
    verifier = _verifier(loops, False)
    verifier.variables |= around
    verifier.block(loops.block)


def _verify_function(loops: Loops, f: Function) -> None:
    v = _verifier(loops, True)
    v.variables |= {f.time.var} if f.time else set()
    v.variables |= {BEGIN.name, END.name} if f.loops else set()
    v.block(f.block)
