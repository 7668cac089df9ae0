"""What passes decided about loops, as the printed code has it.

Some decisions are offers: whether a loop takes them up shows when it is printed, after all else was done to
it.

    stream           a result has non-temporal stores        not where loops store no whole lines
    prefetch lines   a tensor's lines, shortly before use    where no vector loop goes along them
    prefetch rows    a row's lines, in the row before        where rows are computed several at a time
    transpose        tiles of a tensor are transposed        where the arrays would be too large
    tile             a contraction's sums stay in registers  where its loops have become others

One is of the code alone:

    lanes      a tensor is loaded lane by lane          (`codegen.cpu.workarounds`)

The printers note what they make in `Printer.made`; `as_printed` divides each such decision by it.

Passes over loops note whose loops they changed, as `pass NAME` of a tensor, and whose they left as they were,
as `declined NAME: REASON`.  Each that acted is a decision, and each reason of one that did not.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from polyfuse.codegen.passes import PassContext, Pipeline
from polyfuse.decisions import Decision
from polyfuse.ir.functions import FORMS
from polyfuse.ir.kernel import Kernel

# What was made of what: the kind of a decision, and a tensor or statement.
Made = frozenset[tuple[str, str]]

# Tensors that vector loops load lane by lane (`codegen.cpu.workarounds`), and how.
LANES = "lanes"
_LOADED = "loaded one by one for vectors, by a step that is hidden: gcc makes none of a power of two"

# What is said of results that no layer made tiles of, but loops store by rows and lanes all the same.
_TURNED = "columns of it are transposed together, after their loops"

# Decisions about memory that is far.
HINTS = ("stream", "prefetch lines", "prefetch rows")

PASS, DECLINED = "pass ", "declined "

# Forms of functions of GPUs, and why each is exact enough.
MATH = "math"
_ENOUGH = {
    "short": "in f32 within 2**-16 of the value, which is rounded to 16 bits or one of many terms of a sum",
    "near": "its error is a part of what the constant beside it, or its operand, may be off by in f32",
    "joint": "its error is a part of what the constant beside it may be off by in f32",
    "fast": "no further from the value than each operation of f32 may be",
}
_WITHOUT = {
    "stream": "no loop stores whole lines of it, one behind the other",
    "prefetch lines": "no vector loop goes along lines that are not near yet",
    "prefetch rows": "rows are computed in loops without a place to prefetch the next one",
    "transpose": "no loop reads or stores its tiles row by row",
    "tile": "its loops are no tiles of registers",
}


def as_printed(
    decisions: Sequence[Decision], made: Set[tuple[str, str]], pipelines: Sequence[Pipeline] = ()
) -> tuple[Decision, ...]:
    """The decisions, those that the code has only a part of divided into what it has and what it has not;
    then what was decided of the code alone, and the passes over loops that acted."""
    lanes = ", ".join(sorted(n for kind, n in made if kind == LANES))
    own = (Decision(LANES, lanes, True, _LOADED),) if lanes else ()
    return (*(x for d in decisions for x in _divided(d, made)), *own, *of_passes(made, pipelines))


def noted(cx: PassContext) -> Made:
    """What passes noted, as what was made."""
    changed = {(PASS + name, t) for name, tensors in cx.changed.items() for t in tensors}
    left = {(f"{DECLINED}{p}: {why}", t) for (p, why), tensors in cx.declined.items() for t in tensors}
    forms = {(f"{MATH} {op}", t) for op, tensors in cx.forms.items() for t in tensors}
    return frozenset(changed | left | forms)


def of_forms(made: Set[tuple[str, str]]) -> tuple[Decision, ...]:
    """A decision for each form of functions, with the tensors whose values have it."""
    found = []
    for name, (op, form) in FORMS.items():
        if tensors := sorted(t for kind, t in made if kind == f"{MATH} {name}"):
            reason = f"{op} by {form.by}: {_ENOUGH[form.prefix]}"
            found.append(Decision(MATH, ", ".join(tensors), True, reason))
    return tuple(found)


def of_passes(made: Set[tuple[str, str]], pipelines: Sequence[Pipeline]) -> tuple[Decision, ...]:
    """A decision for each pass that acted, in the order of the passes, and one for each reason of one that
    did not, where it did not act on the same tensor elsewhere."""
    names: dict[str, set[str]] = {}
    for kind, name in made:
        names.setdefault(kind, set()).add(name)
    found: list[Decision] = []
    for p in {p.name: p for line in pipelines for p in line.passes}.values():
        changed, head = names.get(PASS + p.name, set()), f"{DECLINED}{p.name}: "
        if changed:
            found.append(Decision(p.name, ", ".join(sorted(changed)), True, p.does))
        for kind in sorted(k for k in names if k.startswith(head)):
            if left := sorted(names[kind] - changed):
                found.append(Decision(p.name, ", ".join(left), False, kind.removeprefix(head)))
    return tuple(found)


def _divided(d: Decision, made: Set[tuple[str, str]]) -> list[Decision]:
    names = d.subject.split(", ")
    if d.kind == "transpose" and all((d.kind, n) in made for n in names):
        return [d if d.taken else replace(d, taken=True, reason=_TURNED)]
    if not d.taken or d.kind not in _WITHOUT:
        return [d]
    done = [n for n in names if (d.kind, n) in made]
    left = [n for n in names if n not in done]
    found = [replace(d, subject=", ".join(done))] if done else []
    if left:
        found.append(Decision(d.kind, ", ".join(left), False, _WITHOUT[d.kind]))
    return found


def in_names_of(kernel: Kernel, printed: Kernel, made: Set[tuple[str, str]]) -> Made:
    """What was made for `printed`, of a kernel that differs from it in names only."""
    names = {a.tensor: b.tensor for a, b in zip(printed.buffers, kernel.buffers, strict=False)}
    alike = zip(printed.graph.statements, kernel.graph.statements, strict=False)
    statements = {a.name: b.name for a, b in alike}
    return frozenset((kind, (statements if kind == "tile" else names).get(n, n)) for kind, n in made)
