"""Random programs with one number changed: what the proofs let pass, the reference can evaluate.

The reference evaluator meets every read and write at run time, so that it judges the proofs: where it
finds a read out of range, an element without a definition or a cycle, the proofs must have found one,
and a range error of the proofs must show when the program runs (guards by data aside, and loops that
never run).
"""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from programs import random_program

from polyfuse.diagnostics import Diagnostics, DslError, PolyfuseError
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir.index_expr import evaluate as evaluate_index
from polyfuse.ir.tensor_graph import Constraint, TensorGraph
from polyfuse.poly.legality.ranges import prove_ranges
from polyfuse.runtime.reference.evaluate import evaluate

NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.(*])")
CHANGES = (
    (r"i0 - 1", "i0"),
    (r"i0 \+ 1\b", "i0 + 2"),
    (r">= 1", ">= 0"),
    (r"1\.\.", "0.."),
    (r"<= i0", "< i0"),
)


def mutant(seed: int) -> str | None:
    """The text of a program with a number in its body, or an operator, changed."""
    rng = random.Random(seed)
    text = random_program(seed // 4).text
    head, body = text.split("{\n", 1)
    if rng.random() < 0.4:
        pattern, new = rng.choice(CHANGES)
        places = list(re.finditer(pattern, body))
        if not places:
            return None
        at = rng.choice(places)
        return head + "{\n" + body[: at.start()] + new + body[at.end() :]
    places = [m for m in NUMBER.finditer(body) if "let" not in body[max(0, m.start() - 30) : m.start()]]
    if not places:
        return None
    at = rng.choice(places)
    number = max(0, int(at.group()) + rng.choice([-1, 1, 1, 2]))
    return f"{head}{{\n{body[: at.start()]}{number}{body[at.end() :]}"


def build(text: str) -> TensorGraph | None:
    try:
        return instantiate(parse_text(text), "p")
    except DslError:
        return None


def outcome(seed: int) -> tuple[str, str] | None:
    """Codes of the proofs at the program's sizes and of the run; None if the mutant is no program.

    A run that fails must have failed the proofs, with symbolic sizes or, for what they left open, at
    the sizes of the run.
    """
    text = mutant(seed)
    graph = build(text) if text else None
    p = random_program(seed // 4)
    if graph is None or not all(_holds(c, p.sizes) for c in graph.constraints):
        return None
    run = ""
    try:
        evaluate(graph, p.sizes, p.inputs, checked=False)
    except PolyfuseError as e:
        run = e.code
    found, sized = Diagnostics(), Diagnostics()
    still_open = prove_ranges(graph, None, found)
    if not found.errors:
        prove_ranges(graph, p.sizes, found, still_open)
    assert not prove_ranges(graph, p.sizes, sized)
    assert not run or (found.errors and sized.errors), f"seed {seed}: the run says {run}\n{text}"
    return sized.errors[0].code if sized.errors else "", run


def _holds(c: Constraint, sizes: dict[str, int]) -> bool:
    left, right = evaluate_index(c.left, sizes), evaluate_index(c.right, sizes)
    return {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right,
            ">": left > right, ">=": left >= right}[c.op]  # fmt: skip


def check(seeds: range) -> Counter[tuple[str, str]]:
    return Counter(codes for codes in map(outcome, seeds) if codes is not None)


def test_what_is_proved_runs() -> None:
    counts = check(range(200))
    assert sum(n for (proofs, _), n in counts.items() if proofs) > 30, counts
    seen_at_run = ("PF350", "PF351", "PF354", "PF355", "PF359")
    unseen = sum(n for (proofs, run), n in counts.items() if proofs in seen_at_run and not run)
    assert unseen <= 2, counts  # a guard by data may hide a read that the proofs must refuse


@pytest.mark.slow
@pytest.mark.parametrize("start", range(200, 8200, 400))
def test_what_is_proved_runs_many(start: int) -> None:
    check(range(start, start + 400))
