"""One optimizer step for many tensors in one program: AdamW, and LAMB with clipping by the global norm.

python examples/models/optimizer.py          prints the program for a small network

Frameworks run such steps tensor by tensor, or with kernels made for lists of tensors.  Here the program is
written with a loop over the tensors, and what is small shares launches.
"""

from __future__ import annotations

from collections.abc import Sequence

import polyfuse as pf
from polyfuse.builder import OpBuilder, Tensor, fn, total

Shapes = Sequence[tuple[int, ...]]


def layers(count: int, width: int, middle: int) -> list[tuple[int, ...]]:
    """Five tensors for each of `count` layers: square matrix, bias, matrix up, its bias, matrix down."""
    one = [(width, width), (width,), (middle, width), (middle,), (width, middle)]
    return [shape for _ in range(count) for shape in one]


def encoder(count: int, width: int, words: int, positions: int) -> list[tuple[int, ...]]:
    """A BERT with `count` layers: 16 tensors each, 5 of embeddings, 3 of what stands on top."""
    square, middle, bias = (width, width), 4 * width, (width,)
    layer = [*(square, bias) * 4, bias, bias, (middle, width), (middle,), (width, middle), *(bias,) * 3]
    ends = [(words, width), (positions, width), (2, width), bias, bias, square, bias, (2, width)]
    return [*(shape for _ in range(count) for shape in layer), *ends]


def adamw(shapes: Shapes) -> pf.Program:
    """Operator adamw_all(step, p0, g0, m0, v0, p1, ..., lr, wd)."""
    b = pf.ProgramBuilder("adamw_all")
    f = b.op("adamw_all")
    step = f.param("step", "i64")
    tensors = [parameters(f, k, shape) for k, shape in enumerate(shapes)]
    lr, wd = f.param("lr", "f32", default=1e-3), f.param("wd", "f32", default=0.01)
    for p, g, m, v in tensors:
        f.call("adamw", p, g, m, v, step, lr=lr, wd=wd)
    return b.program()


def lamb(shapes: Shapes) -> pf.Program:
    """Operator lamb_all(step, p0, g0, m0, v0, p1, ..., lr, limit) -> (norm), the gradients' norm before it is
    clipped to `limit`."""
    b = pf.ProgramBuilder("lamb_all")
    f = b.op("lamb_all")
    step = f.param("step", "i64")
    tensors = [parameters(f, k, shape) for k, shape in enumerate(shapes)]
    lr, limit = f.param("lr", "f32", default=1e-3), f.param("limit", "f32", default=1.0)
    norm = f.result("norm", "f32")
    parts = [squares(f, g, len(shape)) for (_, g, _, _), shape in zip(tensors, shapes, strict=True)]
    norm[()] = fn.sqrt(total(parts))
    scale = f.scalar("scale", fn.min(1.0, limit / (norm + 1e-6)))
    for p, g, m, v in tensors:
        f.call("lamb", p, g, m, v, step, scale=scale, lr=lr)
    return b.program()


def parameters(f: OpBuilder, k: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parameter, gradient and moments of one tensor."""
    return (
        f.inout(f"p{k}", "f32", shape),
        f.param(f"g{k}", "f32", shape),
        f.inout(f"m{k}", "f32", shape),
        f.inout(f"v{k}", "f32", shape),
    )


def squares(f: OpBuilder, g: Tensor, rank: int) -> Tensor:
    """The sum of the squares of a tensor."""
    i = f.indices("i j k l"[: 2 * rank])
    return f.scalar("squares", fn.sum[i](g[i] * g[i]))


if __name__ == "__main__":
    print(lamb(layers(1, 64, 256)))
