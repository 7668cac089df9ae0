"""Limits that every module keeps: small files, small functions, docstrings, nothing left to do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_sources import PACKAGE, ROOT, Module, modules

MODULE_LINES = 700
FUNCTION_LINES = 70
# A module of fewer lines has a reason to stand alone. Packages and `__main__` need none.
SHORT_LINES = 80
SHORT = {
    "polyfuse.autodiff.partials": "the words of the table of operations, read",
    "polyfuse.gpu_plan": "an option's value, which `import polyfuse` gives without the layers",
    "polyfuse.layers.mapping.gpu_plan": "read off kernels in the end; mapping does not ask it",
    "polyfuse.layers.mapping.gpu_row_shape": "one decision, whose numbers a page has",
    "polyfuse.tuning.gpu_maker": "a program: it runs in a process of its own",
    "polyfuse.codegen.analysis.row_phases": "one fact, asked by four transformations",
    "polyfuse.codegen.transforms.unroll_and_jam.interleaved_rows": "a rule: each has a module",
    "polyfuse.cli.build": "a command",
    "polyfuse.cli.app": "the command, which imports all the others",
    "polyfuse.cli.compiler": "what all commands take of the compiler",
    "polyfuse.cli.explore": "a command",
    "polyfuse.cli.pages": "pages of errors, for commands and for the shell",
    "polyfuse.codegen.analysis.op_cost": "one fact, asked by seven transformations",
    "polyfuse.codegen.analysis.renaming": "one spelling of names, for all transformations",
    "polyfuse.codegen.analysis.trip_count": "one fact, asked by most transformations",
    "polyfuse.codegen.common_passes": "the part that the pipelines of all targets share",
    "polyfuse.codegen.cpu.loop_seconds": "the cost of printed loops: cost may not import codegen",
    "polyfuse.codegen.cuda.pipeline": "the list of passes of a target",
    "polyfuse.codegen.decisions": "decisions of both targets",
    "polyfuse.codegen.function": "the form that functions have between passes",
    "polyfuse.codegen.math.conversions": "names of the prelude, for passes that do not print it",
    "polyfuse.codegen.math.headers": "the only reader of header files",
    "polyfuse.cost.open_gain": "one question of the cost model, with its table",
    "polyfuse.cost.machines": "one case for each target, imported by all of cost",
    "polyfuse.cost.speed_of_light": "the estimate above the times of both targets",
    "polyfuse.ir.quarter_floats": "one rounding, for all; `ir.dtypes` loads no NumPy",
    "polyfuse.decisions": "a noun that every package imports",
    "polyfuse.driver.parallel_helper": "a process of its own, started by name",
    "polyfuse.frontend_dsl.semantics.check": "the one call that runs all checks",
    "polyfuse.frontend_dsl.syntax.grammar_file": "the only place that knows where the grammar lies",
    "polyfuse.ir.functions": "one fact of the table of operations with powers, asked by all layers",
    "polyfuse.ir.identity": "one fact, asked by five packages",
    "polyfuse.ir.layouts": "a noun of calls, which graphs do not know",
    "polyfuse.ir.powers": "one rewrite that printers and costs share",
    "polyfuse.ir.truth_values": "one rewrite of graphs for memory of callers",
    "polyfuse.ir.verify_kernel": "the verifier of a form, beside its noun as others are",
    "polyfuse.ir.warp_work": "a noun that run time makes and costs read",
    "polyfuse.layers.graph.cleanup.run": "the order of the clean-up",
    "polyfuse.layers.graph.names": "fresh names, for all rewrites of graphs",
    "polyfuse.layers.graph.reindex.axis_order": "one rewrite, which only calls ask for",
    "polyfuse.layers.stitching.group": "the noun of layer II, below all of its verbs",
    "polyfuse.library": "files of the standard library, found without a compiler",
    "polyfuse.runtime.cpu.blas": "the only caller of BLAS on a CPU",
    "polyfuse.runtime.cuda.nvrtc_process": "a process of its own, started by path",
    "polyfuse.driver.names": "what PyTorch and JAX call an operator",
    "polyfuse.interop.by_hand": "what PyTorch and JAX have in common of gradients",
    "polyfuse.interop.traced": "torch is told of it when it is loaded",
    "polyfuse.runtime.cuda.open": "the choice between bindings, above all of them",
    "polyfuse.runtime.machine.room": "one question, asked before calls and by the command",
    "polyfuse.runtime.machine.stopwatch": "one measurement, above the runtime of a CPU",
    "polyfuse.runtime.toolchain.run_sanitized": "a program of its own, started by name",
    "polyfuse.learn.plans": "what is drawn for samples, which users never need",
    "polyfuse.tuning.judges": "the choice between cost models, asked by two modules of tuning",
}

# What users import. The methods of these classes are part of it.
PUBLIC = tuple(
    m
    for m in modules()
    if m.name in ("polyfuse", "polyfuse.api", "polyfuse.options", "polyfuse.diagnostics", "polyfuse.source")
    or m.name
    in ("polyfuse.decisions", "polyfuse.cli", "polyfuse.driver.pipeline", "polyfuse.driver.compiled")
    or m.name.startswith("polyfuse.interop")
)
METHODS_TOO = ("polyfuse.api", "polyfuse.driver.compiled", "polyfuse.options", "polyfuse.interop")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, Function))


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_size(module: Module) -> None:
    lines = module.text.count("\n")
    assert lines < MODULE_LINES, f"{module.where} has {lines} lines: cut it in two"
    for f in _functions(module.tree):
        told = f.body[0] if ast.get_docstring(f) is not None else None
        docstring = (told.end_lineno or told.lineno) - told.lineno + 1 if told is not None else 0
        length = (f.end_lineno or f.lineno) - f.lineno + 1 - docstring
        assert length < FUNCTION_LINES, f"{module.where}:{f.lineno} {f.name} has {length} lines"


def test_short_modules_have_a_reason() -> None:
    alone = [m for m in modules() if not m.path.name.startswith("__")]
    short = {m.name for m in alone if m.text.count("\n") < SHORT_LINES}
    silent = sorted(short - SHORT.keys())
    assert not silent, f"merge with what they belong to, or say why they stand alone: {silent}"
    assert not sorted(SHORT.keys() - {m.name for m in alone})


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_no_bare_except(module: Module) -> None:
    bare = [n.lineno for n in ast.walk(module.tree) if isinstance(n, ast.ExceptHandler) and n.type is None]
    assert not bare, f"{module.where}: lines {bare}"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name)
def test_every_module_says_what_it_is(module: Module) -> None:
    if module.text.strip():
        assert ast.get_docstring(module.tree), module.where


@pytest.mark.parametrize("module", PUBLIC, ids=lambda m: m.name)
def test_public_docstrings(module: Module) -> None:
    silent = [f"{module.where}:{n.lineno} {n.name}" for n in _public(module) if not ast.get_docstring(n)]
    assert not silent, "\n".join(silent)


def _public(module: Module) -> Iterator[ast.ClassDef | Function]:
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef) and module.name.startswith(METHODS_TOO):
            yield from (f for f in node.body if isinstance(f, Function) and _is_public_method(f))


def _is_public_method(f: Function) -> bool:
    """Properties are left out: their names and types often say everything."""
    return not f.name.startswith("_") and not any("property" in ast.unparse(d) for d in f.decorator_list)


def _texts() -> Iterator[Path]:
    for folder in (PACKAGE, ROOT / "grammars", ROOT / "examples", ROOT / "benchmarks", ROOT / "docs"):
        for suffix in ("*.py", "*.pf", "*.lark", "*.h", "*.cpp", "*.md"):
            yield from folder.rglob(suffix)


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by name, without their folders: of two alike it refuses one."""
    names = Counter(p.name for p in (ROOT / "tests").rglob("test_*.py"))
    assert [n for n, count in names.items() if count > 1] == []


def test_nothing_is_left_to_do() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted(_texts())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
