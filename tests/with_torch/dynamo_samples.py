"""Calls of ATen operators, for the tests of their lowerings: at least one of each operator of the table.

SAMPLES["aten.cumsum"]    a list of argument lists; Call has keywords as well
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.inductor_prims  # has operators that Dynamo makes

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 20.5, -20.5, math.inf, -math.inf, math.nan)


def f(*shape: int, seed: int = 0) -> torch.Tensor:
    """Floats around 0."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def u(*shape: int, seed: int = 0) -> torch.Tensor:
    """Floats in 0.05..0.95."""
    return 0.05 + 0.9 * torch.rand(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def i(*shape: int, most: int = 5, least: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers in least..most, which is not among them."""
    return torch.randint(least, most, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def b(*shape: int) -> torch.Tensor:
    """Truth values."""
    return i(*shape, most=2).bool()


@dataclass(frozen=True)
class Call:
    """Arguments by position and by name; `overload` where the operator itself is not called."""

    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    overload: str = ""


def c(*args: Any, overload: str = "", **kwargs: Any) -> Call:
    """A call."""
    return Call(args, kwargs, overload)


S = torch.tensor(SPECIAL)
A, B, W = f(3, 4), f(3, 4, seed=1), f(4, seed=2)
PAIRS = (S[:, None].expand(-1, len(S)).clone(), S[None, :].expand(len(S), -1).clone())
N, M = i(3, 4, most=9, least=-9), i(3, 4, most=7, least=1)

_UNARY = (
    "abs acos acosh asin asinh atan atanh ceil celu cos cosh deg2rad elu erf erfc exp exp2 expm1 floor frac "
    "hardshrink hardsigmoid hardswish hardtanh isinf isnan isneginf isposinf leaky_relu log log10 log1p log2 "
    "logical_not logit mish nan_to_num neg rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit silu "
    "sin sinc sinh softplus special_entr sqrt tan tanh trunc"
)
_BINARY = (
    "add atan2 copysign div eq floor_divide fmax fmin fmod ge gt heaviside hypot le logaddexp logaddexp2 lt "
    "maximum minimum mul ne pow remainder rsub special_xlog1py sub xlogy"
)
_BITS = "bitwise_and bitwise_or bitwise_xor"
_REDUCED = "sum mean prod amax amin any all count_nonzero nansum"

SAMPLES: dict[str, list[Call]] = {
    **{f"aten.{n}": [c(A), c(S)] for n in _UNARY.split()},
    **{f"aten.{n}": [c(A, W), c(*PAIRS)] for n in _BINARY.split()},
    **{f"aten.{n}": [c(N, M), c(b(3, 4), b(4)), c(N, 6)] for n in _BITS.split()},
    **{f"aten.logical_{n}": [c(A, W > 0), c(b(3, 4), b(4)), c(N, M)] for n in ("and", "or", "xor")},
}

# Domains, integers, numbers among the operands.
SAMPLES["aten.digamma"] = SAMPLES["aten.lgamma"] = [c(u(3, 4) * 9), c(A)]
SAMPLES["aten.signbit"] += [c(N)]
SAMPLES["aten.sign"] += [c(N)]
SAMPLES["aten.floor"] += [c(N)]
SAMPLES["aten.sqrt"] += [c(M)]
SAMPLES["aten.isnan"] += [c(N)]
SAMPLES["aten.logit"] += [c(A, 0.1)]
SAMPLES["aten.nan_to_num"] += [c(S, 1.0, 2.0, 3.0)]
SAMPLES["aten.elu"] += [c(S, 0.5, 2.0, 3.0)]
SAMPLES["aten.celu"] += [c(S, 0.5)]
SAMPLES["aten.gelu"] = [c(A), c(S[:9]), c(S[:9], approximate="tanh")]  # eager has NaN of infinities
SAMPLES["aten.hardtanh"] += [c(S, -0.5, 2.0)]
SAMPLES["aten.leaky_relu"] += [c(S, 0.2)]
SAMPLES["aten.hardshrink"] += [c(S, 1.5)]
SAMPLES["aten.softplus"] += [c(S, 2.0, 3.0)]
SAMPLES["aten.softshrink"] = [c(S), c(A, 0.3)]
SAMPLES["aten.add"] += [
    c(A, 2, alpha=3),
    c(N, M, alpha=2),
    c(b(4), b(4)),
    c(A, N),
    c(N, 1.5),
    c(A, W.double()),
]
SAMPLES["aten.sub"] += [c(A, B, alpha=0.5), c(N, 3), c(A.bfloat16(), B)]
SAMPLES["aten.rsub"] += [c(A, 2, alpha=3)]
SAMPLES["aten.mul"] += [
    c(N, M),
    c(b(4), b(4)),
    c(A, 0.1),
    c(N.int(), 7),
    c(i(4, most=100, dtype=torch.uint8), 3),
]
SAMPLES["aten.div"] += [
    c(N, M),
    c(A, 3),
    c(A, B, rounding_mode="floor"),
    c(A, B, rounding_mode="trunc"),
    c(N, M, rounding_mode="trunc"),
    c(N, M, rounding_mode="floor"),
    c(N, -M, rounding_mode="trunc"),
]
SAMPLES["aten.floor_divide"] += [c(N, M)]
SAMPLES["aten.remainder"] += [c(N, M), c(N, -M), c(A, 0.3)]
SAMPLES["aten.fmod"] += [c(N, M), c(A, 0.3)]
SAMPLES["aten.pow"] += (
    [c(i(3, 4, least=-2, most=3), N)]
    + [c(A, e) for e in (2, 3, 0.5, -1, -0.5, 1, 0, 2.5)]
    + [
        c(2.0, A),
        c(M, 2),
        c(M, N.abs()),
    ]
)
SAMPLES["aten.maximum"] += [c(N, M), c(b(4), b(4))]
SAMPLES["aten.eq"] += [c(N, 3), c(A.bfloat16(), 0.1), c(b(4), b(4))]
SAMPLES["aten.lt"] += [c(N, 2.5), c(A.bfloat16(), 0.3), c(b(4), b(4)), c(N, A)]
SAMPLES["aten.bitwise_not"] = [c(N), c(b(4))]
SAMPLES["aten.bitwise_left_shift"] = SAMPLES["aten.bitwise_right_shift"] = [c(N.abs(), M), c(M, 2)]
SAMPLES["aten.clamp"] = [
    c(S, -1.0, 2.0),
    c(S, None, 0.5),
    c(S, 0.5),
    c(A, B, B + 1),
    c(N, -2, 3),
    c(S, 3.0, 1.0),
]
SAMPLES["aten.clamp_min"] = [c(S, 0.5), c(A, B)]
SAMPLES["aten.clamp_max"] = [c(S, 0.5), c(A, B)]
SAMPLES["aten.lerp"] = [c(A, B, 0.3), c(A, B, 0.7), c(A, B, u(3, 4))]
SAMPLES["aten.addcmul"] = [c(A, B, W), c(A, B, W, value=0.5)]
SAMPLES["aten.addcdiv"] = [c(A, B, W), c(A, B, W, value=0.5)]
SAMPLES["prims.fma"] = [c(A, B, B), c(A, 0.5, B)]
SAMPLES["aten.where"] = [c(b(3, 1), A, W), c(b(3, 4), A, 0.0), c(b(4), b(4), b(4)), c(b(4), N, 2)]
SAMPLES["aten.masked_fill"] = [c(A, b(4), 2.5), c(A, b(3, 4), torch.tensor(1.5)), c(N, b(4), 3)]
SAMPLES["aten.threshold"] = [c(S, 0.5, 7.0)]
_GRADIENTS = {
    "threshold_backward": (0.5,),
    "hardtanh_backward": (-1.0, 1.0),
    "leaky_relu_backward": (0.1, False),
    "gelu_backward": (),
    "silu_backward": (),
    "mish_backward": (),
    "softplus_backward": (1.0, 20.0),
    "softshrink_backward": (0.5,),
    "hardshrink_backward": (0.5,),
    "hardsigmoid_backward": (),
    "hardswish_backward": (),
    "sigmoid_backward": (),
    "tanh_backward": (),
    "logit_backward": (),
}
for _name, _more in _GRADIENTS.items():
    SAMPLES[f"aten.{_name}"] = [c(A, B, *_more), c(torch.ones_like(S), S, *_more)]
SAMPLES["aten.gelu_backward"] += [c(A, B, approximate="tanh")]
SAMPLES["aten.logit_backward"] += [c(A, u(3, 4), 0.2)]
SAMPLES["aten.elu_backward"] = [c(A, 1.5, 2.0, 0.5, False, B), c(A, 1.5, 2.0, 0.5, True, B)]
SAMPLES["aten._prelu_kernel"] = [c(A, W)]
SAMPLES["aten.native_dropout_backward"] = [c(A, b(3, 4), 2.0)]
SAMPLES["aten.copy"] = [c(A, W), c(A, N)]
SAMPLES["aten.fill"] = [c(A, 2.0), c(A, torch.tensor(3))]
SAMPLES["aten.clone"] = [c(A), c(A.t(), memory_format=torch.contiguous_format)]
SAMPLES["aten._to_copy"] = [
    c(A, dtype=d) for d in (torch.float64, torch.bfloat16, torch.int32, torch.bool)
] + [c(N, dtype=torch.int8)]
SAMPLES["prims.convert_element_type"] = [c(A, torch.float64), c(b(4), torch.float32), c(N, torch.float16)]

# Views.
T = f(2, 3, 4)
SAMPLES |= {
    "aten.view": [c(T, [6, 4]), c(T, [2, 12]), c(T, [4, 6]), c(T, [24]), c(f(6, 4), [2, 3, 2, 2])],
    "aten._unsafe_view": [c(T, [3, 8])],
    "aten.reshape": [c(T, [8, 3])],
    "aten.view_copy": [c(T, [6, 4])],
    "aten._reshape_alias": [c(T, [6, 4], [4, 1])],
    "aten.permute": [c(T, [2, 0, 1]), c(T, [-1, 0, 1])],
    "aten.permute_copy": [c(T, [2, 0, 1])],
    "aten.t": [c(A), c(W)],
    "aten.t_copy": [c(A)],
    "aten.transpose": [c(T, 0, -1)],
    "aten.transpose_copy": [c(T, 0, -1)],
    "aten.unsqueeze": [c(T, 1), c(T, -1)],
    "aten.unsqueeze_copy": [c(T, 1)],
    "aten.squeeze": [c(f(1, 3, 1)), c(f(1, 3, 1), 0), c(f(1, 3, 1), [0, 1]), c(f(1, 3, 1), 1)],
    "aten.squeeze_copy": [c(f(1, 3, 1))],
    "aten.expand": [c(f(3, 1), [2, 3, 4])],
    "aten.expand_copy": [c(f(3, 1), [2, 3, 4])],
    "aten.alias": [c(T)],
    "aten.alias_copy": [c(T)],
    "aten.detach": [c(T)],
    "aten.detach_copy": [c(T)],
    "aten.lift_fresh": [c(T)],
    "aten.lift_fresh_copy": [c(T)],
    "aten.slice": [c(T, 2, 1, 3), c(T, 1, -2), c(f(9), 0, 1, 9, 3), c(T, 0, 1, 99)],
    "aten.slice_copy": [c(T, 2, 1, 3)],
    "aten.select": [c(T, 1, 2), c(T, 1, -1)],
    "aten.select_copy": [c(T, 1, 2)],
    "aten.split": [c(f(7, 2), 3), c(T, 2, 2)],
    "aten.split_copy": [c(f(7, 2), 3)],
    "aten.split_with_sizes": [c(f(7, 2), [1, 4, 2])],
    "aten.split_with_sizes_copy": [c(f(7, 2), [1, 4, 2])],
    "aten.unbind": [c(T, 1)],
    "aten.unbind_copy": [c(T, 1)],
    "aten.diagonal": [c(f(4, 5)), c(f(4, 5), 1), c(f(4, 5), -2), c(T, 0, 0, 2)],
    "aten.diagonal_copy": [c(f(4, 5), 1)],
    "aten.unfold": [c(f(3, 9), 1, 4, 2), c(f(9, 2), 0, 3, 3)],
    "aten.unfold_copy": [c(f(3, 9), 1, 4, 2)],
    "aten.as_strided": [
        c(f(4, 6), [3, 2], [6, 2]),
        c(f(4, 6), [2, 2, 2], [12, 3, 1], 2),
        c(f(6, 4).t(), [4, 6], [6, 1]),
    ],
    "aten.as_strided_copy": [c(f(4, 6), [3, 2], [6, 2])],
}

# Numbers and parts.
SAMPLES |= {
    "aten.full": [c([2, 3], 1.5), c([2], 3, dtype=torch.int64), c([2], True)],
    "aten.full_like": [c(A, 2.0)],
    "aten.new_full": [c(A, [2, 3], 4.0)],
    "aten.scalar_tensor": [c(2.5), c(3, dtype=torch.int64)],
    "aten.arange": [c(5), c(2, 9), c(1, 9, 3), c(0.0, 2.0, 0.5), c(4, dtype=torch.float32)],
    "prims.iota": [c(5, start=2, step=3, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)],
    "aten.eye": [c(3), c(3, 5)],
    "aten.tril": [c(f(4, 5)), c(f(2, 4, 4), 1), c(f(4, 4), -1)],
    "aten.triu": [c(f(4, 5)), c(f(2, 4, 4), 1)],
    "aten.cat": [
        c([A, B]),
        c([f(2, 3), f(2, 1), f(2, 4)], 1),
        c([A, N], -1),
        c([A.bfloat16(), A.bfloat16()], 1),
    ],
    "aten.stack": [c([A, B]), c([A, B], 1), c([A, B], -1)],
    "aten.constant_pad_nd": [
        c(A, [1, 2], 3.0),
        c(b(3, 4), [1, 2]),
        c(A, [1, 0, 0, 2]),
        c(A, [-1, 1]),
        c(A, [0, -2, 1, 0]),
    ],
    "aten.slice_scatter": [c(f(5, 6), f(5, 2), 1, 2, 4), c(f(9), f(3), 0, 1, 9, 3), c(A, B, 0)],
    "aten.select_scatter": [c(A, W, 0, 1), c(A, f(3), 1, -1)],
    "aten.flip": [c(T, [0, 2]), c(A, [])],
    "prims.rev": [c(T, [1])],
    "aten.repeat": [c(A, [2, 3]), c(W, [2, 1, 3])],
    "aten.roll": [c(A, [1], [1]), c(T, [1, -2], [0, 2]), c(W, [3])],
}
for _name in ("zeros", "ones"):
    SAMPLES |= {
        f"aten.{_name}": [c([2, 3])],
        f"aten.{_name}_like": [c(A)],
        f"aten.new_{_name}": [c(A, [2, 3])],
    }
SAMPLES["aten.zero"] = [c(A)]

# Reductions.
for _name in _REDUCED.split():
    SAMPLES[f"aten.{_name}"] = [c(A), c(S)]
for _name in ("sum", "mean", "amax", "amin", "nansum"):
    SAMPLES[f"aten.{_name}"] += [c(T, [1]), c(T, [0, 2], True), c(T, [-1], False)]
SAMPLES["aten.prod"] += [c(T, 1), c(T, -1, True), c(M)]
SAMPLES["aten.sum"] += [c(N), c(b(3, 4), [0]), c(f(), []), c(A.bfloat16(), [1])]
SAMPLES["aten.any"] += [c(b(3, 4), 1), c(b(3, 4), [0, 1]), c(N)]
SAMPLES["aten.all"] += [c(b(3, 4), 1, True), c(N, 0)]
SAMPLES["aten.count_nonzero"] += [c(N, [1]), c(N)]
for _name in ("max", "min"):
    SAMPLES[f"aten.{_name}"] = [c(A), c(S), c(T, 1), c(T, -1, True), c(N, 0)]
for _name in ("argmax", "argmin"):
    SAMPLES[f"aten.{_name}"] = [c(A), c(T, 1), c(T, -1, True), c(S), c(i(3, 5, most=3), 1)]
SAMPLES["aten.aminmax"] = [c(A), c(A, dim=1), c(A, dim=1, keepdim=True)]
SAMPLES["aten.var"] = SAMPLES["aten.std"] = [
    c(A, [1]),
    c(A, [1], correction=0),
    c(A, [1], correction=0.7),
    c(T, [0, 2], correction=1, keepdim=True),
]
SAMPLES["aten.var_mean"] = SAMPLES["aten.std_mean"] = SAMPLES["aten.var"]
SAMPLES["aten.linalg_vector_norm"] = [c(A, o, [1]) for o in (0, 1, 2, math.inf, -math.inf)] + [c(A)]
SAMPLES["aten.logsumexp"] = [
    c(A, [1]),
    c(T, [0, 2], True),
    c(torch.tensor([[-math.inf, -math.inf], [math.inf, 1.0]]), [1]),
]
SAMPLES["aten._softmax"] = [c(A, 1, False), c(T, 0, False), c(A.bfloat16(), 1, False)]
SAMPLES["aten._safe_softmax"] = [c(torch.tensor([[-math.inf, -math.inf], [0.0, 1.0]]), 1)]
SAMPLES["aten._log_softmax"] = [c(A, 1, False), c(T, -2, False)]
SAMPLES["aten._softmax_backward_data"] = [c(A, B.softmax(1), 1, torch.float32)]
SAMPLES["aten._log_softmax_backward_data"] = [c(A, B.log_softmax(0), 0, torch.float32)]
SAMPLES["aten.cumsum"] = [c(A, 1), c(T, 0), c(N, 0), c(A.bfloat16(), 1), c(f(1, 3), 0), c(b(3, 4), 1)]
SAMPLES["aten.cumprod"] = [c(A, 1), c(T, -2)]

# Gathers, scatters, windows.
K = i(3, 2, most=4)
SAMPLES |= {
    "aten.embedding": [c(f(7, 3), i(2, 4, most=7)), c(f(7, 3), i(4, most=7, dtype=torch.int32))],
    "aten.index_select": [c(A, 1, i(5, most=4)), c(T, 0, i(3, most=2))],
    "aten.gather": [c(A, 1, K), c(T, 0, i(1, 3, 4, most=2))],
    "aten.index": [
        c(A, [i(5, most=3)]),
        c(A, [None, i(2, 2, most=4)]),
        c(A, [i(5, most=3, least=-3), i(5, most=4)]),
        c(T, [i(2, 1, most=2), None, i(3, most=4)]),
        c(T, [None, i(2, most=3), i(2, most=4)]),
    ],
    "aten._unsafe_index": [c(A, [i(5, most=3)])],
    "aten._unsafe_masked_index": [c(A, b(5, 1), [i(5, 1, most=3), i(4, most=4)], 2.5)],
    "aten.index_put": [c(A, [i(5, most=3)], f(5, 4), True), c(A, [None, i(5, most=4)], f(3, 5), True)],
    "aten._unsafe_index_put": [c(A, [i(5, most=3)], f(5, 4), True)],
    "aten._unsafe_masked_index_put_accumulate": [c(A, b(5), [i(5, most=3), i(5, most=4)], f(5))],
    "aten.scatter_add": [c(A, 1, K, f(3, 4)), c(A, 0, i(2, 4, most=3), f(2, 4))],
    "aten.scatter_reduce": [c(A, 1, K, f(3, 4), r) for r in ("sum", "amax", "amin")],
    "aten.index_add": [c(A, 0, i(5, most=3), f(5, 4)), c(A, 1, i(2, most=4), f(3, 2), alpha=2)],
    "aten.embedding_dense_backward": [
        c(f(2, 4, 3), i(2, 4, most=7), 7, -1, False),
        c(f(5, 3), i(5, most=4), 4, 2, False),
    ],
    "aten.scatter": [c(A, 1, i(3, 1, most=4), 2.0), c(A, 1, i(3, 1, most=4), f(3, 1))],
    "aten.max_pool2d_with_indices": [
        c(f(2, 3, 7, 6), [2, 2]),
        c(f(2, 3, 7, 6), [3, 3], [2, 2], [1, 1]),
        c(f(3, 7, 8), [2, 3], [1, 2], [0, 0], [2, 2]),
    ],
    "aten.max_pool3d_with_indices": [c(f(2, 4, 5, 6), [2, 2, 2])],
    "aten.avg_pool2d": [
        c(f(2, 3, 7, 6), [2, 2]),
        c(f(2, 3, 7, 6), [3, 3], [2, 2], [1, 1]),
        c(f(2, 3, 6, 6), [3], [1], [0], False, True, 5),
    ],
    "aten.avg_pool3d": [c(f(2, 4, 5, 6), [2, 2, 2])],
    "aten.avg_pool2d_backward": [
        c(f(2, 3, 3, 3), f(2, 3, 7, 6), [2, 2], [2, 2], [0, 0], False, True, None),
        c(f(2, 3, 4, 3), f(2, 3, 7, 6), [3, 3], [2, 2], [1, 1], False, True, None),
    ],
    "aten.avg_pool3d_backward": [
        c(f(2, 2, 2, 3), f(2, 4, 5, 6), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None)
    ],
}
_X = f(2, 3, 7, 6)
_P = torch.ops.aten.max_pool2d_with_indices(_X, [3, 3], [2, 2], [1, 1])
SAMPLES["aten.max_pool2d_with_indices_backward"] = [
    c(f(*_P[0].shape), _X, [3, 3], [2, 2], [1, 1], [1, 1], False, _P[1])
]
_Y = f(2, 4, 5, 6)
_Q = torch.ops.aten.max_pool3d_with_indices(_Y, [2, 2, 2])
SAMPLES["aten.max_pool3d_with_indices_backward"] = [
    c(f(*_Q[0].shape), _Y, [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False, _Q[1])
]

# What has no values of its own, or is a statement: compiled in models.
WITHOUT_VALUES = ("aten.empty", "aten.empty_like", "aten.new_empty", "aten.copy_", "aten.contiguous")
