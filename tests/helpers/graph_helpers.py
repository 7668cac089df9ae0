"""Tensor graphs by hand, without the frontend: short constructors for tests."""

from __future__ import annotations

from typing import Any

from polyfuse.ir.dtypes import BOOL, F32, I64, DType
from polyfuse.ir.index_expr import ISize, IVar, as_index
from polyfuse.ir.tensor_graph import (
    Apply,
    Cast,
    Const,
    Constraint,
    Expr,
    IndexValue,
    IterDim,
    Read,
    Role,
    Select,
    Statement,
    Tensor,
    TensorGraph,
)

N, M, K, T = ISize("N"), ISize("M"), ISize("K"), ISize("T")
i, j, k, t = IVar("i"), IVar("j"), IVar("k"), IVar("t")
_BOOLEAN = {"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "isnan", "isinf", "isfinite"}


def read(tensor: str, *indices: Any, dtype: DType = F32) -> Read:
    return Read(tensor, tuple(as_index(x) if isinstance(x, int) else x for x in indices), dtype)


def op(name: str, *args: Expr) -> Apply:
    return Apply(name, args, BOOL if name in _BOOLEAN else args[0].dtype)


def const(value: float | int | bool, dtype: DType = F32) -> Const:
    return Const(value, dtype)


def number(index: Any, dtype: DType = I64) -> IndexValue:
    return IndexValue(as_index(index), dtype)


def where(cond: Expr, then: Expr, other: Expr) -> Select:
    return Select(cond, then, other, then.dtype)


def cast(arg: Expr, dtype: DType) -> Cast:
    return Cast(arg, dtype)


def dim(var: IVar, upper: Any, lower: Any = 0) -> IterDim:
    return IterDim(var.name, as_index(lower), as_index(upper))


def inner(var: IVar, upper: Any, lower: Any = 0) -> IterDim:
    return IterDim(var.name, as_index(lower), as_index(upper), reduce=True)


def source(name: str, *shape: Any, dtype: DType = F32, role: Role = Role.INPUT) -> Tensor:
    return Tensor(name, dtype, tuple(map(as_index, shape)), role)


def result(name: str, *shape: Any, dtype: DType = F32, alias: str | None = None) -> Tensor:
    return Tensor(name, dtype, tuple(map(as_index, shape)), Role.OUTPUT, alias=alias)


def temp(name: str, *shape: Any, dtype: DType = F32) -> Tensor:
    return Tensor(name, dtype, tuple(map(as_index, shape)), Role.TEMP)


def define(
    target: str, dims: list[IterDim], write: list[Any], expr: Expr, reduction: str | None = None,
    accumulate: bool = False,
) -> Statement:  # fmt: skip
    write_at = tuple(as_index(x) if isinstance(x, int) else x for x in write)
    return Statement("?", target, tuple(dims), write_at, expr, reduction, accumulate)


def graph(
    tensors: list[Tensor],
    statements: list[Statement],
    sizes: str = "N M K T",
    constraints: tuple[Constraint, ...] = (),
) -> TensorGraph:
    named = tuple(
        Statement(f"S{n}", s.target, s.dims, s.write, s.expr, s.reduction, s.accumulate)
        for n, s in enumerate(statements)
    )
    inputs = tuple(x.name for x in tensors if x.role in (Role.INPUT, Role.INOUT))
    outputs = tuple(x.name for x in tensors if x.role is Role.OUTPUT and x.alias is None)
    return TensorGraph("g", tuple(sizes.split()), constraints, tuple(tensors), named, inputs, outputs)
