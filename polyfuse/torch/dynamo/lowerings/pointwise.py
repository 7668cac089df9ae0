"""Operators on elements: a row for each, which is what it computes of its operands.

Operands have one dtype, as torch promotes them: that of the result (`RESULT`), or for tests the one in
which they meet (`MEET`).  An operand that a row has several times is computed once, in a statement of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from polyfuse.ir import tensor_graph as g
from polyfuse.ir.dtypes import BOOL, F64, U8, DType
from polyfuse.torch.dynamo.lowerings.table import Arguments, Node, lowers, tensor_of, val
from polyfuse.torch.dynamo.sizes import Unsupported, dense_order, extent_of, is_number, to_ir
from polyfuse.torch.dynamo.terms import Term, apply, constant, converted, of_index, rounded, where
from polyfuse.torch.dynamo.values import Indices, Value, dtype_of

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.lowering import Lowering

Row: TypeAlias = Callable[..., Term]
RESULT, MEET, OWN = "result", "meet", "own"


@dataclass(frozen=True)
class Pointwise:
    """A row: what it computes, in which dtype, and which operands are read as truth values."""

    compute: Row
    operands: str = RESULT
    tests: tuple[int, ...] = ()


# --- rows of functions ------------------------------------------------------------------------------------


def _function(op: str) -> Row:
    return lambda x: apply(op, x)


def _whole(op: str) -> Row:
    """Of integers it is the operand."""
    return lambda x: apply(op, x) if x.dtype.is_float else x


def _float_test(op: str) -> Row:
    return lambda x: apply(op, x) if x.dtype.is_float else Term(constant(False, BOOL))


def _equals(x: Term, number: float) -> Term:
    return x == number if x.dtype.is_float else Term(constant(False, BOOL))


_SAME_NAME = (
    "abs acos acosh asin asinh atan atanh cos cosh digamma erf erfc exp exp2 expm1 lgamma log log1p log2 neg "
    "rsqrt sigmoid sin sinh sqrt tan tanh"
)
_SQRT_HALF, _SQRT_2_PI = 0.7071067811865476, 0.7978845608028654


def _sign(x: Term) -> Term:
    """0 for NaN, as torch has it."""
    one = x.like(1)
    if not x.dtype.is_float:
        return x if x.dtype.is_bool else apply("sign", x)
    return where(x > 0, one, where(x < 0, x.like(-1), x.like(0)))


def _signbit(x: Term) -> Term:
    if not x.dtype.is_float:
        return x < 0 if not x.dtype.is_bool else Term(constant(False, BOOL))
    bits = apply("bits", x)
    return apply("shr", bits, 63 if x.dtype is F64 else 31) != 0


def _copysign(x: Term, y: Term) -> Term:
    return where(_signbit(y), -apply("abs", x), apply("abs", x))


def _nan_to_num(x: Term, nan: Term | None, high: Term | None, low: Term | None) -> Term:
    if not x.dtype.is_float:
        return x
    top = 1.7976931348623157e308 if x.dtype is F64 else 3.4028234663852886e38
    found = where(apply("isnan", x), x.like(0) if nan is None else nan, x)
    found = where(x == math.inf, x.like(top) if high is None else high, found)
    return where(x == -math.inf, x.like(-top) if low is None else low, found)


def _sinc(x: Term) -> Term:
    angle = x * math.pi
    return where(x == 0, x.like(1), apply("sin", angle) / angle)


def _entropy(x: Term) -> Term:
    inside = where(x > 0, -x * apply("log", x), where(x == 0, x.like(0), x.like(-math.inf)))
    return where(apply("isnan", x), x, inside)


def _logit(x: Term, eps: Term | None) -> Term:
    z = x if eps is None else apply("min", apply("max", x, eps), x.like(1) - eps)
    return apply("log", z / (x.like(1) - z))


# --- rows of arithmetic -----------------------------------------------------------------------------------


def _add(x: Term, y: Term, alpha: Term) -> Term:
    return x + y * alpha


def _sub(x: Term, y: Term, alpha: Term) -> Term:
    return x - y * alpha


def _div(x: Term, y: Term, rounding: str | None = None) -> Term:
    if rounding == "floor":
        return x // y
    if rounding == "trunc":
        return apply("trunc", x / y) if x.dtype.is_float else _towards_zero(x, y)
    return x / y


def _towards_zero(x: Term, y: Term) -> Term:
    """A quotient of integers; the least of a dtype has no absolute value in it."""
    down = x // y
    if x.dtype is U8:
        return down
    return where((x % y != 0) & ((x < 0) != (y < 0)), down + 1, down)


def _fmod(x: Term, y: Term) -> Term:
    if x.dtype.is_float:
        return apply("fmod", x, y)
    rest = x % y
    if x.dtype is U8:
        return rest
    return where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)


def _pow(x: Term, y: Term) -> Term:
    if not x.dtype.is_float:
        return _integer_pow(x, y)
    match y.number:
        case 0.5:
            return apply("sqrt", x)
        case -0.5:
            return apply("rsqrt", x)
        case 1:
            return x
        case 2:
            return x * x
        case -1:
            return x.like(1) / x
        case _:
            return x**y


def _integer_pow(x: Term, y: Term) -> Term:
    """Powers of negative exponents are rounded towards 0."""
    if y.number is not None or x.dtype is U8:
        return x**y
    odd = (y % 2) != 0
    inverse = where(x == 1, x, where(x == -1, where(odd, x, x.like(1)), x.like(0)))
    return where(y < 0, inverse, x ** apply("max", y, 0))


def _clamp(x: Term, low: Term | None, high: Term | None) -> Term:
    found = x if low is None else apply("max", x, low)
    return found if high is None else apply("min", found, high)


def _lerp(x: Term, end: Term, w: Term) -> Term:
    step = end - x
    small = apply("abs", w) < 0.5
    if isinstance(w.number, float):
        return x + w * step if abs(w.number) < 0.5 else end - step * (x.like(1) - w)
    return where(small, x + w * step, end - step * (x.like(1) - w))


def _nan_or(x: Term, y: Term, pick: Callable[[], Term]) -> Term:
    """The other operand where one is NaN."""
    if not x.dtype.is_float:
        return pick()
    return where(apply("isnan", x), y, where(apply("isnan", y), x, pick()))


def _logaddexp(x: Term, y: Term) -> Term:
    most, gap = apply("max", x, y), apply("abs", x - y)
    return where((x == y) & apply("isinf", x), x, most + apply("log1p", apply("exp", -gap)))


def _logaddexp2(x: Term, y: Term) -> Term:
    most, gap = apply("max", x, y), apply("abs", x - y)
    more = apply("log1p", apply("exp2", -gap)) * (1 / math.log(2))
    return where((x == y) & apply("isinf", x), x, most + more)


def _times_log(op: str) -> Row:
    def row(x: Term, y: Term) -> Term:
        found = where(x == 0, x.like(0), x * apply(op, y))
        return where(apply("isnan", y), y, found)

    return row


def _heaviside(x: Term, at_zero: Term) -> Term:
    return where(x == 0, at_zero, where(x > 0, x.like(1), x.like(0)))


# --- rows of activations, and of their gradients ----------------------------------------------------------


def _elu(x: Term, alpha: Term, scale: Term, within: Term) -> Term:
    return where(x < 0, apply("expm1", x * within) * (alpha * scale), x * scale)


def _elu_backward(dy: Term, alpha: Term, scale: Term, within: Term, of_result: bool, x: Term) -> Term:
    down = alpha * scale
    slope = within * (x + down) if of_result else within * down * apply("exp", x * within)
    return dy * where(x <= 0, slope, scale)


def _gelu(x: Term, approximate: str) -> Term:
    if approximate == "tanh":
        inner = _SQRT_2_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + apply("tanh", inner))
    return 0.5 * x * (1 + apply("erf", x * _SQRT_HALF))


def _gelu_backward(dy: Term, x: Term, approximate: str) -> Term:
    if approximate == "tanh":
        t = apply("tanh", _SQRT_2_PI * (x + 0.044715 * (x * x * x)))
        slope = 0.5 * x * (1 - t * t) * (_SQRT_2_PI * (1 + 0.134145 * (x * x)))
        return dy * (0.5 * (1 + t) + slope)
    density = 0.3989422804014327 * apply("exp", -0.5 * (x * x))
    return dy * (0.5 * (1 + apply("erf", x * _SQRT_HALF)) + x * density)


def _softplus(x: Term, beta: Term, threshold: Term) -> Term:
    scaled = x * beta
    return where(scaled > threshold, x, apply("log1p", apply("exp", scaled)) / beta)


def _softplus_backward(dy: Term, x: Term, beta: Term, threshold: Term) -> Term:
    scaled = x * beta
    z = apply("exp", scaled)
    return where(scaled > threshold, dy, dy * z / (z + 1))


def _mish_softplus(x: Term) -> Term:
    return where(x > 20, x, apply("log1p", apply("exp", x)))


def _mish_backward(dy: Term, x: Term) -> Term:
    t = apply("tanh", _mish_softplus(x))
    return dy * (t + x * apply("sigmoid", x) * (1 - t * t))


def _silu_backward(dy: Term, x: Term) -> Term:
    s = apply("sigmoid", x)
    return dy * s * (1 + x * (1 - s))


def _softshrink(x: Term, width: Term) -> Term:
    return where(x > width, x - width, where(x < -width, x + width, x * 0))


def _beyond(dy: Term, x: Term, width: Term) -> Term:
    """The first operand where the second leaves -width..width, else 0."""
    return where((x >= -width) & (x <= width), dy.like(0), dy)


def _relu6_of(x: Term) -> Term:
    return apply("min", apply("max", x + 3, 0), 6)


def _hardswish_backward(dy: Term, x: Term) -> Term:
    return where(x <= -3, dy.like(0), where(x < 3, dy * (x / 3 + 0.5), dy))


def _hardtanh_backward(dy: Term, x: Term, low: Term, high: Term) -> Term:
    return where((x <= low) | (x >= high), dy.like(0), dy)


def _leaky(x: Term, slope: Term) -> Term:
    return where(x > 0, x, x * slope)


def _leaky_backward(dy: Term, x: Term, slope: Term, of_result: bool) -> Term:
    return where(x > 0, dy, dy * slope)


def _dropout_backward(dy: Term, mask: Term, scale: Term) -> Term:
    return where(mask, dy * scale, dy.like(0))


def _logit_backward(dy: Term, x: Term, eps: Term | None) -> Term:
    low, high = (x.like(0), x.like(1)) if eps is None else (eps, x.like(1) - eps)
    outside = x.like(math.nan) if eps is None else x.like(0)
    slope = where((x == 0) | (x == 1), dy * math.inf, dy / (x * (x.like(1) - x)))
    return where((x >= low) & (x <= high), slope, outside)


ROWS: dict[str, Pointwise] = {
    **{f"aten.{n}": Pointwise(_function(n)) for n in _SAME_NAME.split()},
    **{f"aten.{n}": Pointwise(_whole(n)) for n in ("ceil", "floor", "trunc")},
    "aten.sgn": Pointwise(_sign),
    "aten.sign": Pointwise(_sign),
    "aten.signbit": Pointwise(_signbit, MEET),
    "aten.reciprocal": Pointwise(lambda x: x.like(1) / x),
    "aten.log10": Pointwise(lambda x: apply("log2", x) * 0.30102999566398120),
    "aten.frac": Pointwise(lambda x: x - apply("trunc", x)),
    "aten.deg2rad": Pointwise(lambda x: x * (math.pi / 180)),
    "aten.rad2deg": Pointwise(lambda x: x * (180 / math.pi)),
    "aten.nan_to_num": Pointwise(_nan_to_num),
    "aten.sinc": Pointwise(_sinc),
    "aten.special_entr": Pointwise(_entropy),
    "aten.logit": Pointwise(_logit),
    "aten.isnan": Pointwise(_float_test("isnan"), MEET),
    "aten.isinf": Pointwise(_float_test("isinf"), MEET),
    "aten.isposinf": Pointwise(lambda x: _equals(x, math.inf), MEET),
    "aten.isneginf": Pointwise(lambda x: _equals(x, -math.inf), MEET),
    "aten.bitwise_not": Pointwise(lambda x: ~x),
    "aten.logical_not": Pointwise(lambda x: ~x, OWN, (0,)),
    "aten.add": Pointwise(_add),
    "aten.sub": Pointwise(_sub),
    "aten.rsub": Pointwise(lambda x, y, alpha: y - x * alpha),
    "aten.mul": Pointwise(lambda x, y: x * y),
    "aten.div": Pointwise(_div),
    "aten.floor_divide": Pointwise(lambda x, y: x // y),
    "aten.remainder": Pointwise(lambda x, y: x % y),
    "aten.fmod": Pointwise(_fmod),
    "aten.pow": Pointwise(_pow),
    "aten.maximum": Pointwise(lambda x, y: apply("max", x, y)),
    "aten.minimum": Pointwise(lambda x, y: apply("min", x, y)),
    "aten.fmax": Pointwise(lambda x, y: _nan_or(x, y, lambda: apply("max", x, y))),
    "aten.fmin": Pointwise(lambda x, y: _nan_or(x, y, lambda: apply("min", x, y))),
    "aten.atan2": Pointwise(lambda x, y: apply("atan2", x, y)),
    "aten.hypot": Pointwise(lambda x, y: apply("hypot", x, y)),
    "aten.copysign": Pointwise(_copysign),
    "aten.logaddexp": Pointwise(_logaddexp),
    "aten.logaddexp2": Pointwise(_logaddexp2),
    "aten.xlogy": Pointwise(_times_log("log")),
    "aten.special_xlog1py": Pointwise(_times_log("log1p")),
    "aten.heaviside": Pointwise(_heaviside),
    "aten.bitwise_and": Pointwise(lambda x, y: x & y),
    "aten.bitwise_or": Pointwise(lambda x, y: x | y),
    "aten.bitwise_xor": Pointwise(lambda x, y: x ^ y),
    "aten.bitwise_left_shift": Pointwise(lambda x, y: apply("shl", x, y)),
    "aten.bitwise_right_shift": Pointwise(lambda x, y: apply("shr", x, y)),
    "aten.logical_and": Pointwise(lambda x, y: x & y, OWN, (0, 1)),
    "aten.logical_or": Pointwise(lambda x, y: x | y, OWN, (0, 1)),
    "aten.logical_xor": Pointwise(lambda x, y: x != y, OWN, (0, 1)),
    "aten.eq": Pointwise(lambda x, y: x == y, MEET),
    "aten.ne": Pointwise(lambda x, y: x != y, MEET),
    "aten.lt": Pointwise(lambda x, y: x < y, MEET),
    "aten.le": Pointwise(lambda x, y: x <= y, MEET),
    "aten.gt": Pointwise(lambda x, y: x > y, MEET),
    "aten.ge": Pointwise(lambda x, y: x >= y, MEET),
    "aten.clamp": Pointwise(_clamp),
    "aten.clamp_min": Pointwise(lambda x, low: apply("max", x, low)),
    "aten.clamp_max": Pointwise(lambda x, high: apply("min", x, high)),
    "aten.lerp": Pointwise(_lerp),
    "aten.addcmul": Pointwise(lambda x, y, z, value: x + value * y * z),
    "prims.fma": Pointwise(lambda x, y, z: x * y + z),  # Dynamo writes addcmul_ so
    "aten.addcdiv": Pointwise(lambda x, y, z, value: x + value * y / z),
    "aten.where": Pointwise(where, RESULT, (0,)),
    "aten.masked_fill": Pointwise(lambda x, mask, value: where(mask, value, x), RESULT, (1,)),
    "aten.threshold": Pointwise(lambda x, low, value: where(x <= low, value, x)),
    "aten.threshold_backward": Pointwise(lambda dy, x, low: where(x <= low, dy.like(0), dy)),
    "aten.relu": Pointwise(lambda x: apply("max", x, 0)),
    "aten.hardtanh": Pointwise(_clamp),
    "aten.hardtanh_backward": Pointwise(_hardtanh_backward),
    "aten.leaky_relu": Pointwise(_leaky),
    "aten.leaky_relu_backward": Pointwise(_leaky_backward),
    "aten._prelu_kernel": Pointwise(_leaky),
    "aten.elu": Pointwise(_elu),
    "aten.elu_backward": Pointwise(_elu_backward),
    "aten.celu": Pointwise(lambda x, alpha: where(x > 0, x, alpha * apply("expm1", x / alpha))),
    "aten.gelu": Pointwise(_gelu),
    "aten.gelu_backward": Pointwise(_gelu_backward),
    "aten.silu": Pointwise(lambda x: x * apply("sigmoid", x)),
    "aten.silu_backward": Pointwise(_silu_backward),
    "aten.mish": Pointwise(lambda x: x * apply("tanh", _mish_softplus(x))),
    "aten.mish_backward": Pointwise(_mish_backward),
    "aten.softplus": Pointwise(_softplus),
    "aten.softplus_backward": Pointwise(_softplus_backward),
    "aten.softshrink": Pointwise(_softshrink),
    "aten.softshrink_backward": Pointwise(_beyond),
    "aten.hardshrink": Pointwise(lambda x, width: _beyond(x, x, width)),
    "aten.hardshrink_backward": Pointwise(_beyond),
    "aten.hardsigmoid": Pointwise(lambda x: _relu6_of(x) / 6),
    "aten.hardsigmoid_backward": Pointwise(lambda dy, x: where((x > -3) & (x < 3), dy / 6, dy.like(0))),
    "aten.hardswish": Pointwise(lambda x: x * _relu6_of(x) / 6),
    "aten.hardswish_backward": Pointwise(_hardswish_backward),
    "aten.sigmoid_backward": Pointwise(lambda dy, y: dy * (1 - y) * y),
    "aten.tanh_backward": Pointwise(lambda dy, y: dy * (1 - y * y)),
    "aten.logit_backward": Pointwise(_logit_backward),
    "aten.native_dropout_backward": Pointwise(_dropout_backward, RESULT, (1,)),
}  # fmt: skip
"""By operator: its overloads have the same operands in the same order."""

_NO_OPERANDS = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


# --- their rule -------------------------------------------------------------------------------------------


def _meeting(node: Node, operands: Sequence[Any]) -> DType:
    """The dtype in which torch compares operands."""
    import torch

    given = [tensor_of(x) if tensor_of_or_none(x) is not None else val_of(x) for x in operands]
    dtype = given[0].dtype if len(given) == 1 else torch.result_type(*given)
    found = dtype_of(dtype)
    if found is None:
        raise Unsupported(f"operands of {dtype}")
    return found


def tensor_of_or_none(x: Any) -> Any:
    """The fake tensor of an argument that is a node with one."""
    return tensor_of(x) if hasattr(x, "meta") else None


def val_of(x: Any) -> Any:
    """A number among the arguments; 1 or 1.0 for one that is no constant."""
    if not hasattr(x, "meta"):
        return x
    return 1.0 if "Float" in type(val(x)).__name__ else 1


def _is_operand(argument: Any) -> bool:
    kind = str(argument.type)
    return argument.name not in _NO_OPERANDS and (
        kind in ("Tensor", "Optional[Tensor]", "float", "Optional[float]") or "number" in kind
    )


@dataclass(frozen=True)
class _Operands:
    """The arguments of a node: nodes and numbers in order, and what is neither."""

    node: Node
    row: Pointwise
    dtype: DType
    given: tuple[Any, ...]
    are_operands: tuple[bool, ...]

    def terms(self, low: Lowering, idx: Indices) -> Iterator[Any]:
        """The arguments of the row for an element."""
        for k, (x, is_operand) in enumerate(zip(self.given, self.are_operands, strict=True)):
            dtype = BOOL if k in self.row.tests else self.dtype
            if x is None or not is_operand:
                yield x
            elif tensor_of_or_none(x) is not None:
                v = low.value(x)
                e = v.broadcast(idx) if v.number is None else constant(v.number, v.dtype.compute)
                yield Term(
                    rounded(converted(e, dtype), dtype) if self.row.operands == MEET else converted(e, dtype)
                )
            else:
                yield Term(_number(low, x, dtype, self.row.operands == MEET))

    def names(self) -> list[Any]:
        """The nodes with tensors."""
        return [
            x if ok and tensor_of_or_none(x) is not None else None
            for x, ok in zip(self.given, self.are_operands, strict=True)
        ]


def _number(low: Lowering, x: Any, dtype: DType, rounds: bool) -> g.Expr:
    """A number among the operands, or a size."""
    if hasattr(x, "meta"):
        e = low.extent(x)
        return constant(e, dtype.compute) if is_number(e) else of_index(to_ir(e), dtype.compute)
    made = constant(x, dtype.compute)
    return rounded(made, dtype) if rounds else made


def _operands(low: Lowering, node: Node, row: Pointwise) -> _Operands:
    schema = [a for a in node.target._schema.arguments if a.name not in _NO_OPERANDS]
    given: list[Any] = []
    for k, a in enumerate(node.target._schema.arguments):
        if a.name in _NO_OPERANDS:
            continue
        x = (
            node.args[k]
            if k < len(node.args)
            else node.kwargs.get(a.name, a.default_value if a.has_default_value() else None)
        )
        given.append(x)
    operands = tuple(map(_is_operand, schema))
    if row.operands == MEET:
        dtype = _meeting(node, [x for x, ok in zip(given, operands, strict=True) if ok])
    else:
        dtype = low.dtype(node)
    return _Operands(node, row, dtype, tuple(given), operands)


def _repeated(low: Lowering, o: _Operands) -> None:
    """Compute operands once that the row has several times."""
    marked = []
    for k, x in enumerate(o.given):
        dtype = BOOL if k in o.row.tests else o.dtype
        if o.names()[k] is None:
            ok = o.are_operands[k] and x is not None
            marked.append(Term(_number(low, x, dtype, False)) if ok else x)
        else:
            marked.append(Term(g.Read(f"#{k}", (), dtype.compute)))
    found = o.row.compute(*marked).expr
    counts: dict[str, int] = {}
    for r in g.reads(found):
        counts[r.tensor] = counts.get(r.tensor, 0) + 1
    for k, x in enumerate(o.names()):
        if x is not None and (counts.get(f"#{k}", 0) > 1 or o.names().count(x) > 1):
            low.stored_value(x)


def pointwise(low: Lowering, node: Node, row: Pointwise) -> Value:
    """The value of a node that a row computes."""
    o = _operands(low, node, row)
    _repeated(low, o)

    def at(idx: Indices) -> g.Expr:
        return row.compute(*o.terms(low, idx)).expr

    return Value(low.shape(node), low.dtype(node).compute, at)


def _by_row(row: Pointwise, low: Lowering, node: Node, a: Arguments) -> Value:
    return pointwise(low, node, row)


def _register() -> None:
    for name, row in ROWS.items():
        lowers(name, group="pointwise")(partial(_by_row, row))


_register()


@lowers("aten.round", group="pointwise", overloads=("default",))
def _round(low: Lowering, node: Node, a: Arguments) -> Value:
    return pointwise(low, node, Pointwise(_whole("round")))


# --- copies -----------------------------------------------------------------------------------------------


@lowers(
    "aten.clone", "aten._to_copy", "prims.convert_element_type", "aten.contiguous", group="copies", free=True
)
def _convert(low: Lowering, node: Node, a: Arguments) -> Value:
    return low.value(a["self"] if "self" in a else a["a"])


@lowers("aten.copy", group="copies")
def _copy(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["src"])
    return Value(low.shape(node), v.dtype, v.broadcast)


@lowers("aten.fill", group="copies", free=True)
def _fill(low: Lowering, node: Node, a: Arguments) -> Value:
    x = a["value"]
    if tensor_of_or_none(x) is None:
        number = _number(low, x, low.dtype(node), False)
        return Value(low.shape(node), low.dtype(node).compute, lambda idx: number)
    v = low.value(x)
    return Value(low.shape(node), v.dtype, v.broadcast)


def _own_argument(node: Node, a: Arguments) -> str:
    target, t = node.args[0], tensor_of(node.args[0])
    if target.op != "placeholder":
        return "it writes what is no argument of the graph"
    dense = dense_order(tuple(map(extent_of, t.shape)), tuple(map(extent_of, t.stride())))
    return "it writes memory with gaps" if dense is None else ""


@lowers("aten.copy_", group="copies", refuse=_own_argument)
def _write(low: Lowering, node: Node, a: Arguments) -> Value:
    v = low.value(a["src"])
    return low.mutate(node, v)
