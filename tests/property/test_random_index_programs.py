"""Random index expressions in programs: as numbers, as conditions, and as places that are read.

    op f(x: f32[N], z: i64[5, 3]) -> (y0: i64[5, 3], r0: i64[5, 3], ...) {
      y0[i, j] = z[i, j] + (max((i + 3)%8//8 - 1, 4*N))
      r0[i, j] = t[min(max((i + 3)%8//8 - 1, 0), 6)] + ...
    }

All targets are compared with integers that wrap after every operation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import islpy as isl
import numpy as np
import pytest
from random_indices import random_index, wrapping_value

import polyfuse as pf
from polyfuse.ir.index_expr import IBin, IndexExpr, IVar, binary, substitute, variables
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.poly.legality.index_overflow import has_room, spans_of
from polyfuse.poly.model.isl_bridge import NotAffine
from polyfuse.poly.model.isl_text import IslText

FEW = range(6)
MANY = [range(k, k + 25) for k in range(100, 1100, 25)]
GRAPH = TensorGraph("f", ("N",), (), (), (), (), ())
TOGETHER = 10  # expressions in a program
TABLE = 7


@dataclass(frozen=True)
class Program:
    text: str
    arguments: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]


def affine(e: IndexExpr, size: int) -> bool:
    """Do the language and isl take it as an index?"""
    if not variables(e) or products(e):
        return False
    try:
        IslText(GRAPH, {"N": size}, isl.Context()).index(e, {"i": "i", "j": "j"})
    except NotAffine:
        return False
    return True


def products(e: IndexExpr) -> bool:
    """Are variables multiplied by one another?"""
    if not isinstance(e, IBin):
        return False
    here = e.op == "*" and variables(e.left) and variables(e.right)
    return bool(here) or products(e.left) or products(e.right)


def program(seed: int) -> Program:
    rng = random.Random(seed)
    size, shape = rng.randint(1, 9), (rng.randint(1, 40), rng.randint(1, 4))
    table = np.array([rng.randint(-99, 99) for _ in range(TABLE)])
    zeros = np.zeros(shape, np.int64)
    declared, lines, results = [], [], []
    for k in range(TOGETHER):
        c = random_index(1_000_000 + TOGETHER * seed + k, rng.choice((50, 2**20, 2**63)))
        moved = {n: binary("+", IVar(n), low) for n, (low, _) in c.ranges.items()}
        e = substitute(c.expr, variables=moved)
        at = [{"i": i, "j": j, "N": size} for i in range(shape[0]) for j in range(shape[1])]
        values = np.array([wrapping_value(e, p) for p in at], np.int64).reshape(shape)
        spans = spans_of((), {"N": size}) | {"i": (0, shape[0] - 1), "j": (0, shape[1] - 1)}
        with np.errstate(over="ignore"):
            match rng.randint(0, 3) if affine(e, size) and has_room(e, spans) else rng.randint(2, 3):
                case 0:
                    line = f"t[min(max({e}, 0), {TABLE - 1})] + z[i, j]"
                    results.append(table[np.clip(values, 0, TABLE - 1)])
                case 1:
                    line = f"t[{e}] + 1 if 0 <= {e} < {TABLE} else z[i, j]"
                    inside = (values >= 0) & (values < TABLE)
                    results.append(np.where(inside, table[np.clip(values, 0, TABLE - 1)] + 1, 0))
                case 2:
                    line = f"z[i, j] + ({e})"
                    results.append(values)
                case _:
                    bound = rng.randint(-3, 9)
                    line = f"z[i, j] + (1 if {e} > {bound} else 2)"
                    results.append(np.where(values > bound, 1, 2))
        declared.append(f"y{k}: i64[A, B]")
        lines.append(f"  y{k}[i, j] = {line}")
    head = f"op f(x: i64[N], t: i64[{TABLE}], z: i64[A, B]) -> ({', '.join(declared)})"
    body = "\n".join(lines)
    return Program(f"{head} {{\n{body}\n}}\n", (np.zeros(size, np.int64), table, zeros), tuple(results))


def check(seed: int, targets: tuple[str, ...]) -> None:
    p = program(seed)
    for target in targets:
        got = pf.compile(p.text, target=target)(*p.arguments)  # type: ignore[arg-type]
        for k, (mine, want) in enumerate(zip(got, p.results, strict=True)):
            line = p.text.splitlines()[k + 1]
            assert np.array_equal(mine, want), f"{seed}, {target}: {line}\n{mine}\n{want}"


@pytest.mark.parametrize("seed", FEW)
def test_programs_of_index_expressions(seed: int) -> None:
    check(seed, ("cpu", "interpret", "emulate"))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", MANY, ids=str)
def test_many_programs_of_index_expressions(seeds: range) -> None:
    for seed in seeds:
        check(seed, ("cpu", "interpret"))
