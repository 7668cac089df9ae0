"""Random index expressions: isl's sets, intervals, simplified forms and printed code against exact integers.

Each expression is looked at for every value of its variables.  Python's integers judge; what is printed
for numbers that may leave 64 bits is compared with integers that wrap after every operation.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import islpy as isl
import numpy as np
import pytest
from random_indices import RandomIndex, random_index, wrapping_value

from polyfuse.codegen.analysis.periodicity import period_of as _period
from polyfuse.codegen.c_printer import Printer
from polyfuse.codegen.cuda.emit import CudaPrinter
from polyfuse.codegen.math.prelude import prelude
from polyfuse.frontend_dsl.semantics import size_algebra
from polyfuse.ir.dtypes import I64
from polyfuse.ir.index_expr import IBin, IConst, IndexExpr, IVar, binary, evaluate, substitute
from polyfuse.ir.intervals import of_tree
from polyfuse.ir.linear import Range, interval, linear, simplify
from polyfuse.ir.tensor_graph import Expr, IndexValue, TensorGraph, map_expr
from polyfuse.poly.legality.index_overflow import arithmetic, has_room, span, spans_of
from polyfuse.poly.model.isl_bridge import NotAffine, from_ast_expr, index_text, isl_lock
from polyfuse.poly.model.isl_text import IslText
from polyfuse.runtime.toolchain.compiler import load_shared

SHIM = Path(__file__).parents[1] / "helpers" / "cuda_shim.h"
GRAPH = TensorGraph("f", ("N",), (), (), (), (), ())
NAMES = {"i": "v0", "j": "v1"}

# 500 expressions in `make test`, 100,000 in `make test-all`; a compilation has so many.
FEW, SHARE = range(500), 500
MANY = [range(k, k + 2_000) for k in range(500, 100_500, 2_000)]


def at_size(c: RandomIndex) -> IndexExpr:
    """The expression with the size's value."""
    return substitute(c.expr, sizes={"N": IConst(c.size)})


def box(c: RandomIndex, names: dict[str, str]) -> str:
    return " and ".join(f"{low} <= {names[n]} <= {high}" for n, (low, high) in c.ranges.items())


# --- isl ------------------------------------------------------------------------------------------------


def check_isl(c: RandomIndex) -> bool:
    """Both texts for isl, and what comes back from it. False where the expression is not affine."""
    context = isl.Context()
    points = ((*(str(p[n]) for n in NAMES), str(v)) for p, v in zip(c.points, c.values, strict=True))
    want = isl.Set.read_from_str(context, f"{{ {'; '.join(f'[{chr(44).join(p)}]' for p in points)} }}")
    text = IslText(GRAPH, {"N": c.size}, context)
    known = at_size(c)
    try:
        proved = text.index(c.expr, NAMES)
        plain = index_text(known)
    except NotAffine:
        return False
    assert text.set([*NAMES.values(), "o"], [box(c, NAMES), f"o = {proved}"]).is_equal(want), str(c)
    own = {n: f"i_{n}" for n in NAMES}
    found = isl.Set.read_from_str(context, f"{{ [i_i, i_j, o] : {box(c, own)} and o = {plain} }}")
    assert found.is_equal(want), str(c)
    around = f"[i_i, i_j] -> {{ : {box(c, own)} }}"
    function = isl.PwAff.read_from_str(context, f"[i_i, i_j] -> {{ [({plain})] : {box(c, own)} }}")
    build = isl.AstBuild.from_context(isl.Set.read_from_str(context, around))
    try:
        back = from_ast_expr(build.expr_from_pw_aff(function))
    except NotAffine:
        return True  # a choice between values that are no known way apart
    assert [evaluate(back, {f"i_{n}": x for n, x in p.items()}) for p in c.points] == c.values, f"{c}: {back}"
    return True


# --- intervals and simplified forms -----------------------------------------------------------------------


def check_forms(c: RandomIndex) -> None:
    known = at_size(c)
    for ranges in (c.ranges, {}):
        for e in (known, c.expr):
            assert [evaluate(simplify(e, ranges), p) for p in c.points] == c.values, str(c)
    for form in (linear(known).expr(), size_algebra.simplify(c.expr), rebuilt(c.expr)):
        assert [evaluate(form, p) for p in c.points] == c.values, f"{c}: {form}"
    spans = spans_of((), {"N": c.size}) | c.ranges
    found = (interval(known, c.ranges), interval(known, {}), interval(c.expr, c.ranges), span(c.expr, spans))
    for values in found:
        assert values is None or all(values[0] <= v <= values[1] for v in c.values), f"{c}: {values}"
    if has_room(c.expr, spans):
        assert [wrapping_value(c.expr, p) for p in c.points] == c.values, str(c)
    number = of_tree(number_of(c.expr, c, spans), c.ranges)
    wrapping = [wrapping_value(c.expr, p) for p in c.points]
    assert all(number[0] <= v <= number[1] for v in wrapping), f"{c}: {number}"
    period = _period(known, "i")
    for p in c.points if period is not None else ():
        grown = evaluate(c.expr, {**p, "i": p["i"] + period[0]}) - evaluate(c.expr, p)
        assert grown == period[1], f"{c}: {period}"


def number_of(e: IndexExpr, c: RandomIndex, spans: dict[str, Range]) -> Expr:
    """An expression as a number of a program at the size: what wraps is told before the size is put in."""
    number = arithmetic(e, spans, IndexValue(e, I64))
    return map_expr(number, lambda x: x, lambda i: substitute(i, sizes={"N": IConst(c.size)}))


def rebuilt(e: IndexExpr) -> IndexExpr:
    """The expression as constructors fold it."""
    return binary(e.op, rebuilt(e.left), rebuilt(e.right)) if isinstance(e, IBin) else e


# --- printed code -----------------------------------------------------------------------------------------


def texts(c: RandomIndex, printer: Printer) -> Iterator[str]:
    """An expression as kernels print it: as a number of i64, and as an index where it has room."""
    spans = spans_of((), {"N": c.size}) | c.ranges
    folded, known = rebuilt(c.expr), rebuilt(at_size(c))
    yield printer.expr(number_of(folded, c, spans))
    if has_room(folded, spans):
        yield printer.index(known)
        yield printer.index(simplify(known, c.ranges))


def printed(cases: list[RandomIndex], cuda: bool) -> tuple[str, list[int]]:
    """A source whose function has all texts, and for each text the number of its expression."""
    functions: set[str] = set()
    lines: list[str] = []
    owners: list[int] = []
    for k, c in enumerate(cases):
        printer = cuda_printer(c.ranges) if cuda else Printer(no_element)
        for text in texts(c, printer):
            lines.append(f"    case {len(owners)}: return {text};")
            owners.append(k)
        functions |= printer.functions
    source = prelude(functions, target="cuda" if cuda else "cpu")
    source += "\nstatic pf_i64 value(pf_i64 k, pf_i64 i, pf_i64 j) {\n  switch (k) {\n" + "\n".join(lines)
    source += """
  }
  return 0;
}
extern "C" void run(const pf_i64* at, pf_i64* out, pf_i64 n) {
  for (pf_i64 p = 0; p < n; ++p) out[p] = value(at[3 * p], at[3 * p + 1], at[3 * p + 2]);
}
"""
    return (SHIM.read_text() + source if cuda else source), owners


def no_element(*_: object) -> str:
    raise AssertionError("an index reads nothing")


def cuda_printer(ranges: dict[str, Range]) -> CudaPrinter:
    return CudaPrinter(no_element, places=cast(Any, None), ranges=ranges, in_turn=False)


def cuda_library(source: str, folder: Path) -> ctypes.CDLL:
    """CUDA's text compiled as C++."""
    path = folder / f"indices{sum(1 for _ in folder.iterdir())}.cpp"  # a path is loaded once
    path.write_text(source)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared"]
    subprocess.run(["g++", *flags, str(path), "-o", str(path.with_suffix(".so"))], check=True)
    return ctypes.CDLL(str(path.with_suffix(".so")))


def check_printed(seeds: range, folder: Path | None) -> None:
    """What code gives, in CUDA where there is a folder to compile it in."""
    cases = [random_index(seed) for seed in seeds]
    source, owners = printed(cases, folder is not None)
    library = load_shared(source, extra_flags=("-O1",)) if folder is None else cuda_library(source, folder)
    rows = [(t, p["i"], p["j"]) for t, k in enumerate(owners) for p in cases[k].points]
    want = [wrapping_value(cases[k].expr, p) for k in owners for p in cases[k].points]
    at, out = np.array(rows, np.int64), np.zeros(len(rows), np.int64)
    library.run(ctypes.c_void_p(at.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(len(rows)))
    wrong = np.flatnonzero(out != np.array(want, np.int64))
    assert not len(wrong), f"{cases[owners[rows[wrong[0]][0]]]} at {rows[wrong[0]]}: {out[wrong[0]]}"


# --- tests ------------------------------------------------------------------------------------------------


def check(seeds: range, folder: Path) -> None:
    affine = 0
    for seed in seeds:
        c = random_index(seed)
        check_forms(c)
        with isl_lock:
            affine += check_isl(c)
    assert affine > 0.9 * len(seeds)
    for first in range(seeds.start, seeds.stop, SHARE):
        part = range(first, min(first + SHARE, seeds.stop))
        check_printed(part, None)
        if shutil.which("g++"):
            check_printed(part, folder)


def test_index_expressions(tmp_path: Path) -> None:
    check(FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MANY, ids=str)
def test_many_index_expressions(seeds: range, tmp_path: Path) -> None:
    check(seeds, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "(e % d) // d",
        "(e % d) % d",
        "(e // d * d + e) // d",
        "(e - e % d) // d",
        "(e % d - e // d) % d",
        "min(e % d, d) // d + e // d",
        "(2 * (e // d) * d - e) // d % d",
    ],
)
@pytest.mark.parametrize("divisor", [1, 2, 3, 8])
def test_quotients_of_quotients(text: str, divisor: int) -> None:
    """isl's set of expressions in which one quotient stands several times."""
    i, d = IVar("i"), IConst(divisor)
    for inner in (i, i + 3, 2 * i - 5, i % (2 * divisor)):
        e = eval(text, {"e": inner, "d": d, "min": lambda a, b: binary("min", a, b)})
        with isl_lock:
            assert check_isl(RandomIndex(e, {"i": (-9, 20), "j": (0, 0)}, 1))
        check_forms(RandomIndex(e, {"i": (-9, 20), "j": (0, 0)}, 1))
