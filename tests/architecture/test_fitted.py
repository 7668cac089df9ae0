"""Numbers that were fitted to machines are in `polyfuse.cost.cpu_tables`, with where they are from."""

from __future__ import annotations

import ast
import re
from datetime import date

import pytest
from package_sources import Module, modules

from polyfuse.cost.cpu_tables import AVX2, AVX512, FITTED, UNKNOWN, ZEN4, origins

# Numbers of code generation that are no thresholds: widths of vectors, what compilers and GPUs can do, limits
# of numbers, precision of sums.
STRUCTURAL = {
    "cuda.exported": {"ALIGNMENT", "BARRIER_BYTES"},
    "interface": {"DRIVER"},
    "analysis.loop_values": {"INTEGERS", "LEAST", "PRIME", "WHOLE"},
    "translation_validation": {"SOME", "USUAL_BUDGET"},
    "analysis.guards": {"MOST_BOUNDS"},
    "analysis.row_phases": {"LONG"},
    "c_printer": {"UNROLLED"},
    "cpu.printer": {"WIDEST"},
    "cpu.vectorize.predicated_epilogues": {"FEWEST_LANES", "_BYTES"},
    "cpu.workarounds": {"LEAST_BYTES"},
    "cuda.early_loads": {"MOST_EARLY"},
    "cuda.emit": {"BYTES_IN_FLIGHT", "MOST_CALLED", "MOST_DECLARED", "MOST_UNROLLED"},
    "cuda.index_width": {"LIMIT"},
    "cuda.interleaved": {"ACCESS_BYTES", "MOST_BYTES", "MOST_STEPS"},
    "cuda.multi_kernel": {"MOST_COMMON", "MOST_PASSED", "SHARED_ALIGNMENT", "SHARED_PER_SM"},
    "cuda.spmd": {"WARP"},
    "cuda.vectorize": {"MOST_ROWS", "VECTOR_BYTES"},
    "math.conversions": {"STEP"},
    "math.vector_reduce": {"FEWEST_BYTES", "_PIECE", "_WIDTHS"},
    "transforms.approximate_functions": {"SHARE", "_LEAST", "_MOST", "_SCALE"},
    "transforms.index_set_splitting.div_mod": {"LEAST_HALVES", "UNROLLED"},
    "transforms.load_balance": {"OF_CUT_ROWS", "SHARES"},
    "transforms.outer_vectorize.full_unroll": {"SIZES"},
    "transforms.outer_vectorize.recurrences": {"_LINE_BYTES", "_SIZES"},
    "transforms.outer_vectorize.short_rows": {"_LINE_BYTES"},
    "transforms.precision": {"MANY", "MOST", "UNIT"},
    "transforms.prefetch": {"WHOLE"},
    "transforms.register_tiling": {"LEAST_BYTES", "MOST_BYTES", "VECTOR_BYTES"},
    "transforms.vector_epilogues": {"LEAST_BYTES", "WIDTHS"},
    "transforms.strength_reduction": {"LARGEST", "SCALES", "SMALLEST", "_DIVIDERS"},
    "transforms.unroll_and_jam.batched_rows": {"_VECTOR_BYTES"},
    "transforms.unroll_and_jam.overlapping_windows": {"NARROWEST"},
    "transforms.unroll_and_jam.stencils": {"EVEN_BYTES"},
    "transforms.wide_accumulators": {"CHAIN", "FEWEST_ROWS", "LONG", "MOST_ELEMENTS"},
}
CODEGEN = [m for m in modules() if m.name.startswith("polyfuse.codegen.")]


def _is_number(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) and _is_number(right)
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.Tuple(elts=elts):
            return bool(elts) and all(map(_is_number, elts))
        case ast.Dict(values=values):
            return bool(values) and all(map(_is_number, values))
        case _:
            return False


def numbers(module: Module) -> set[str]:
    """The constants of a module that are numbers."""
    found = set()
    for node in module.tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            found |= {n for n in names if re.fullmatch("[A-Z0-9_]+", n) and _is_number(node.value)}
    return found


@pytest.mark.parametrize("module", CODEGEN, ids=lambda m: m.name)
def test_thresholds_of_code_generation_are_in_the_table(module: Module) -> None:
    assert numbers(module) == STRUCTURAL.get(module.name.removeprefix("polyfuse.codegen."), set())


def test_every_number_has_an_origin() -> None:
    for name, origin in origins().items():
        assert origin.unit and origin.weighs and origin.machine in (AVX512, AVX2, ZEN4, UNKNOWN), name
        assert date.fromisoformat(origin.date).year >= 2026, name


def test_every_number_is_used() -> None:
    text = "\n".join(m.text for m in modules() if m.name != "polyfuse.cost.cpu_tables")
    assert set(re.findall(r"\bFITTED\.(\w+)", text)) == set(origins())


def test_a_test_may_set_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FITTED, "jam_reductions_together", 5)
    assert FITTED.jam_reductions_together == 5
    with pytest.raises(AttributeError):
        FITTED.no_such_number = 1  # type: ignore[attr-defined]
