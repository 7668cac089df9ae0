"""Layers ask a target for what they mean, and not which class it is of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from package_sources import Module, modules

CLASSES = {"CpuTarget", "GpuTarget"}
# Questions that are asked by class: each has its reason in a comment.
MOST = 5
# Functions that choose among whole algorithms by the class of a target.
DISPATCH = ("cost.machines", "layers.mapping.targets", "layers.stitching.targets")


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def questions(module: Module) -> Iterator[int]:
    """Lines that ask of which class, or of which kind, a target is."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[given, classes]):
                number = module.name.endswith("ir.target") and "int" in _names(classes)
                if _names(classes) & CLASSES or number:
                    yield given.lineno
            case ast.MatchClass(cls=ast.Name(id=name)) if name in CLASSES:
                yield node.lineno
            case ast.Compare(comparators=[*others]) if any(_names(o) & CLASSES for o in others):
                yield node.lineno
            case ast.Compare(
                left=ast.Attribute(attr="kind"), comparators=[ast.Constant(value="cpu" | "gpu")]
            ):
                yield node.lineno
            case _:
                pass


def _explained(module: Module, line: int) -> bool:
    """Is there a comment on the line, or right before it?"""
    before = module.text.splitlines()[max(0, line - 3) : line]
    return any(x.lstrip().startswith("#") for x in before)


def test_few_questions_are_asked_by_class() -> None:
    found = [(m, line) for m in modules() for line in questions(m)]
    where = [f"{m.where}:{line}" for m, line in found]
    assert len(found) <= MOST, f"ask for a property of polyfuse.ir.target.Target instead: {where}"
    assert not [f"{m.where}:{line}" for m, line in found if not _explained(m, line)]


def test_the_questions_are_found() -> None:
    text = (
        "if isinstance(target, GpuTarget | None): pass\n"
        "if type(target) is CpuTarget: pass\n"
        "if target.kind == 'gpu': pass\n"
        "match target:\n    case CpuTarget(): pass\n"
        "if isinstance(value, int) or target.vector_loops: pass\n"
    )
    module = Module("polyfuse.x", modules()[0].path, text)
    assert sorted(questions(module)) == [1, 2, 3, 5]


def test_targets_are_no_numbers() -> None:
    """No union of a number with a GPU; only doors that users go through take the number of threads."""
    unions, doors = set(), set()
    for m in modules():
        if "Target" in m.text:
            found = [n for n in ast.walk(m.tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr)]
            unions |= {m.where for n in found if _names(n) >= {"int", "GpuTarget"}}
            doors |= {m.where for n in found if _names(n) >= {"int", "Target"}}
    assert not unions
    assert doors <= {
        f"polyfuse/{name}.py"
        for name in (
            "ir/target",
            "layers/clustering/clusters",
            "layers/mapping/kernels",
            "layers/stitching/stitching",
            "learn/plans",  # a clustering, which is one
        )
    }


def test_whole_algorithms_are_chosen_in_few_places() -> None:
    """`singledispatch` on a target: the modules that docs/internals/adding_a_target.md names."""
    found = {m.name.removeprefix("polyfuse.") for m in modules() if "@singledispatch" in m.text}
    assert found == set(DISPATCH)
