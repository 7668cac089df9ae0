"""Facts are fields: no module looks into the spelling of a name that the compiler made.

Counted are questions about texts: how one begins or ends, what it is without that, a pattern in it, a part
of it by place.  What is left asks texts (generated C, a user's input, what isl prints), or makes a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from package_sources import Module, modules

ASKED = ("codegen", "cost", "driver", "ir", "layers", "poly", "tuning", "visualize", "runtime.report")
METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition"}
PATTERNS = {"match", "search", "fullmatch", "findall", "finditer", "sub", "compile", "split"}

C_TEXT, ISL_TEXT, INPUT, FRESH, SHOWN = (
    "text of C",
    "text of isl",
    "text from outside",
    "makes a name",
    "shown",
)
# Module -> how many there are, and why they may be.
ALLOWED: dict[str, tuple[int, str]] = {
    "polyfuse.codegen.analysis.loop_values": (2, FRESH),  # of Python functions, whose forms are as exact
    "polyfuse.codegen.analysis.renaming": (2, FRESH),  # the name in C, a row's array
    "polyfuse.codegen.c_printer": (3, C_TEXT),  # parentheses
    "polyfuse.codegen.cpu.units": (5, C_TEXT),
    "polyfuse.codegen.cpu.workarounds": (1, C_TEXT),
    "polyfuse.codegen.line_map": (2, C_TEXT),  # marks at the ends of lines
    "polyfuse.codegen.math.conversions": (1, C_TEXT),
    "polyfuse.codegen.math.headers": (1, C_TEXT),
    "polyfuse.codegen.math.prelude": (1, C_TEXT),
    "polyfuse.codegen.math.prelude_cuda": (3, C_TEXT),
    "polyfuse.codegen.cpu.exported": (1, C_TEXT),
    "polyfuse.codegen.interface": (1, C_TEXT),
    "polyfuse.codegen.decisions": (2, SHOWN),
    "polyfuse.ir.cpu_core": (1, INPUT),  # names of passes that are switched off
    "polyfuse.codegen.passes": (1, INPUT),  # `POLYFUSE_DISABLE` names passes, or their family
    "polyfuse.codegen.transforms.strength_reduction": (1, C_TEXT),
    "polyfuse.cost.device": (1, INPUT),  # what drivers call a GPU
    "polyfuse.driver.feedback": (4, INPUT),  # lessons of earlier compilations, as they were stored
    "polyfuse.driver.resources": (5, "text of PTX"),
    "polyfuse.driver.targets": (2, INPUT),
    "polyfuse.ir.schedule_tree": (1, SHOWN),
    "polyfuse.layers.graph.cleanup.simplify": (1, SHOWN),
    "polyfuse.layers.graph.pipeline": (1, INPUT),  # as `codegen.passes`
    "polyfuse.layers.mapping.reductions": (1, FRESH),
    "polyfuse.poly.ast_build": (1, ISL_TEXT),
    "polyfuse.poly.barriers.conflicts": (1, ISL_TEXT),
    "polyfuse.poly.legality.schedules": (2, ISL_TEXT),
    "polyfuse.poly.legality.separate": (3, ISL_TEXT),
    "polyfuse.poly.model.isl_bridge": (3, ISL_TEXT),
    "polyfuse.poly.scheduling.isl_scheduler": (1, FRESH),
    "polyfuse.poly.scheduling.macro_statements": (1, ISL_TEXT),
    "polyfuse.poly.scheduling.placement": (1, ISL_TEXT),
    "polyfuse.poly.scheduling.tree_convert": (4, ISL_TEXT),
    "polyfuse.poly.scheduling.tree_edit": (1, INPUT),  # a place in a user's schedule
    "polyfuse.tuning.candidates": (1, "a fact: what a choice of the tuner changes"),
    "polyfuse.visualize.launches": (1, SHOWN),
    "polyfuse.visualize.schedule": (4, SHOWN),
    "polyfuse.visualize.svg": (1, SHOWN),
}


def test_names_are_not_asked_for_facts() -> None:
    """Facts are fields (`Declare.role`, `Statement.purpose`), or looked up (`Kernel.find`)."""
    known = {name: count for name, (count, _) in ALLOWED.items()}
    found = {m.name: [*questions(m)] for m in modules() if asked(m)}
    assert {name: len(lines) for name, lines in found.items() if lines} == known, {
        name: lines for name, lines in found.items() if len(lines) != known.get(name, 0)
    }


@pytest.mark.parametrize(
    "text",
    [
        'n.buffer.startswith("%")',
        'name.removeprefix("row")',
        '"[" not in element(name)',
        'name[0] == "%"',
        'name[:2] != "b_"',
        're.match("t[0-9]+", name)',
    ],
)
def test_a_question_is_found(text: str) -> None:
    assert list(questions_of(ast.parse(text))) == [1]


@pytest.mark.parametrize("text", ['"sum" in ops', "a[0] == b", '", ".join(x)', 'kinds["%"]', 'x == "%"'])
def test_others_are_none(text: str) -> None:
    assert not list(questions_of(ast.parse(text)))


def asked(m: Module) -> bool:
    """Does a module know names that the compiler made?"""
    return m.name.removeprefix("polyfuse.").startswith(ASKED)


def questions(m: Module) -> Iterator[int]:
    return questions_of(m.tree)


def questions_of(tree: ast.AST) -> Iterator[int]:
    """Lines of questions about the spelling of a text."""
    for n in ast.walk(tree):
        match n:
            case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr=attr)) if attr in PATTERNS:
                yield n.lineno
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in METHODS:
                yield n.lineno
            case ast.Compare(left=ast.Constant(str(part)), ops=[ast.In() | ast.NotIn()]) if _is_mark(part):
                yield n.lineno
            case ast.Compare(left=ast.Subscript(slice=place), comparators=[ast.Constant(str(part))]):
                if isinstance(place, ast.Slice) or (isinstance(place, ast.Constant) and _is_mark(part)):
                    yield n.lineno
            case _:
                pass


def _is_mark(part: str) -> bool:
    """Is it punctuation, so a part of a text rather than one of several words?"""
    return not any(c.isalnum() for c in part)
