"""Programs of many small operators that have nothing to do with one another: launches are all they cost.

python examples/models/many_operators.py     prints all five
"""

from __future__ import annotations

from collections.abc import Sequence

import polyfuse as pf
from polyfuse.builder import fn, total


def forty(pairs: int = 20, rows: int = 128, columns: int = 128) -> pf.Program:
    """For each pair of matrices relu(1.5 a + 0.1) * b, and the row sums of exp(0.1 b)."""
    b = pf.ProgramBuilder("forty")
    f = b.op("forty")
    i, j = f.indices("i j")
    for k in range(pairs):
        x, y = (f.param(f"{name}{k}", "f32", (rows, columns)) for name in "ab")
        made, sums = f.result(f"y{k}", "f32", (rows, columns)), f.result(f"s{k}", "f32", rows)
        made[i, j] = fn.max(x[i, j] * 1.5 + 0.1, 0.0) * y[i, j]
        sums[i] = fn.sum[j](fn.exp(y[i, j] * 0.1))
    return b.program()


def branches(shapes: Sequence[tuple[int, int]] = ((512, 256),) * 7) -> pf.Program:
    """Independent branches of five kinds, each of a matrix and a row of weights."""
    b = pf.ProgramBuilder("branches")
    f = b.op("branches")
    i, j = f.indices("i j")
    for k, (rows, columns) in enumerate(shapes):
        x, w = f.param(f"x{k}", "f32", (rows, columns)), f.param(f"w{k}", "f32", columns)
        y = f.result(f"y{k}", "f32", (rows, columns))
        match k % 5:
            case 0:
                f.call("bias_gelu", x, w, into=y)
            case 1:
                scaled = f.tensor("scaled")
                scaled[i, j] = x[i, j] * w[j]
                f.call("softmax", scaled, into=y)
            case 2:
                f.call("layer_norm", x, w, w, into=y)
            case 3:
                y[i, j] = fn.tanh(x[i, j] * w[j] + 0.5)
            case _:
                norm = f.tensor("norm")
                norm[i] = fn.sqrt(fn.sum[j](x[i, j] * x[i, j]) + 1e-6)
                y[i, j] = x[i, j] * w[j] / norm[i]
    return b.program()


def losses(shapes: Sequence[tuple[int, ...]] = ((4096, 1), (512, 64), (64, 32, 32))) -> pf.Program:
    """Mean binary cross entropies of tensors of different shapes, and their sum."""
    b = pf.ProgramBuilder("losses")
    f = b.op("losses")
    parts = []
    for k, shape in enumerate(shapes):
        x, z = f.param(f"x{k}", "f32", shape), f.param(f"z{k}", "f32", shape)
        parts.append(f.call("binary_cross_entropy", x, z, into=f.result(f"loss{k}", "f32")))
    f.result("loss", "f32")[()] = total(parts)
    return b.program()


def added(parts: int = 3, rows: int = 1024, columns: int = 512) -> pf.Program:
    """[add, sum] several times, then the sum of what they gave."""
    b = pf.ProgramBuilder("added")
    f = b.op("added")
    i, j = f.indices("i j")
    sums = []
    for k in range(parts):
        x, y = (f.param(f"{name}{k}", "f32", (rows, columns)) for name in "ab")
        both, row = f.tensor("both"), f.tensor("row")
        both[i, j] = x[i, j] + y[i, j]
        row[i] = fn.sum[j](both[i, j])
        sums.append(row[i])
    f.result("y", "f32", rows)[i] = total(sums)
    return b.program()


def casts(count: int = 7, rows: int = 768, columns: int = 768) -> pf.Program:
    """Matrices of f32 to f16."""
    b = pf.ProgramBuilder("casts")
    f = b.op("casts")
    i, j = f.indices("i j")
    for k in range(count):
        x, y = f.param(f"x{k}", "f32", (rows, columns)), f.result(f"y{k}", "f16", (rows, columns))
        y[i, j] = fn.f16(x[i, j])
    return b.program()


if __name__ == "__main__":
    print(*(make() for make in (forty, branches, losses, added, casts)), sep="\n")
