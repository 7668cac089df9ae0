"""Cases for every operator of the standard library: inputs, and what NumPy and SciPy say of them.

`CASES` is a list of `StdlibCase`; whatever runs operators (the reference evaluator, compiled
targets) can be tried on all of them.  The expected values are written here from scratch, in float64,
gradients by numerical differentiation of the forward function, so nothing of polyfuse is involved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from scipy import signal, special

from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.frontend_dsl.semantics.build_graph import instantiate
from polyfuse.frontend_dsl.semantics.signature import Signature, infer_generics, signature
from polyfuse.frontend_dsl.syntax import ast
from polyfuse.frontend_dsl.syntax.parse import parse_text
from polyfuse.ir import dtypes as dt
from polyfuse.ir.tensor_graph import TensorGraph
from polyfuse.library import read, source_files

Array = npt.NDArray[Any]
Expect = Callable[..., Any]

NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class StdlibCase:
    """One call of an operator.

    `inputs` holds arrays, and numpy scalars for scalar parameters (those left out have defaults).
    `expected()` maps results and inout parameters to float64, int64 or bool arrays. `tolerance` is the
    relative and absolute error that the expected values have themselves.
    """

    op: str
    dtype: str
    inputs: Mapping[str, Any]
    expect: Expect = field(repr=False)
    tolerance: float = 0.0
    label: str = ""
    given: Mapping[str, int] = field(default_factory=dict)
    """Size parameters."""

    def __str__(self) -> str:
        shapes = "-".join("x".join(map(str, np.shape(a))) or "scalar" for a in self.inputs.values())
        given = "".join(f"-{n}{v}" for n, v in self.given.items())
        return f"{self.op}-{self.dtype}-{shapes}{given}" + (f"-{self.label}" if self.label else "")

    def expected(self, results: Sequence[str] = ()) -> dict[str, Array]:
        """`results` are the operator's; they are looked up in the library if there are none."""
        wide = {name: _wide(a) for name, a in self.inputs.items()}
        with np.errstate(all="ignore"):
            found = self.expect(**wide, **self.given)
        if isinstance(found, dict):
            return {name: np.asarray(a) for name, a in found.items()}
        (only,) = results or [r.name for r in sig_of(self.op).results]
        return {only: np.asarray(found)}

    @property
    def signature(self) -> Signature:
        """That of the operator without the optional tensors that are no input."""
        whole = sig_of(self.op)
        absent = {q.name for q in whole.params if q.optional} - {*self.inputs}
        return whole.without(absent) if whole.is_open else whole

    def generics(self) -> tuple[dict[str, dt.DType], dict[str, int]]:
        """Dtypes of generics and lengths of rank variables, from the inputs."""
        kinds = {n: dt.from_numpy(np.asarray(a).dtype) for n, a in self.inputs.items()}
        given = {n: k for n, k in kinds.items() if k is not None}
        assert len(given) == len(kinds)
        return tuple(infer_generics(self.signature, given, {n: np.ndim(a) for n, a in self.inputs.items()}))

    def graph(self) -> TensorGraph:
        dtypes, ranks = self.generics()
        absent = self.signature.absent or ()
        return instantiate(programs_for(self.op), self.op, dtypes=dtypes, ranks=ranks, absent=absent)

    def sizes(self, graph: TensorGraph) -> dict[str, int]:
        return bind_sizes(graph, {n: np.shape(a) for n, a in self.inputs.items()}, self.given)


def _wide(a: Any) -> Any:
    a = np.asarray(a)
    return a if a.dtype.kind in "iub" and a.dtype != ml_dtypes.bfloat16 else a.astype(np.float64)


@cache
def programs() -> dict[str, ast.Program]:
    """File name -> syntax tree, of the whole library."""
    return {name: parse_text(read(name), name) for name in source_files()}


def programs_for(op: str) -> tuple[ast.Program, ...]:
    """All files, the one that defines `op` first."""
    home = next(p for p in programs().values() if any(o.name == op for o in p.ops))
    return (home, *(p for p in programs().values() if p is not home))


@cache
def sig_of(op: str) -> Signature:
    return signature(next(o for p in programs().values() for o in p.ops if o.name == op))


CASES: list[StdlibCase] = []


def add(
    op: str,
    expect: Expect,
    *,
    dtypes: Sequence[str] = ("f32", "f64"),
    tolerance: float = 0.0,
    label: str = "",
    given: Mapping[str, int] | None = None,
    **inputs: Any,
) -> None:
    """A case for each dtype. float64 arrays and Python floats take that dtype, others stay as they are."""
    for dtype in dtypes:
        typed = {name: _typed(a, NUMPY[dtype]) for name, a in inputs.items()}
        CASES.append(StdlibCase(op, dtype, typed, expect, tolerance, label, given or {}))


def _typed(a: Any, dtype: Any) -> Any:
    if isinstance(a, float) or (isinstance(a, np.ndarray) and a.dtype == np.float64):
        return np.asarray(a).astype(dtype)
    return np.asarray(a)


GRADIENT = 2e-8
ALL_FLOATS = ("f32", "f64", "f16", "bf16")
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (3, 5), (2, 1, 3))
LEADS: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (2, 1, 3))
_rng = np.random.default_rng(20250101)


def normal(*shape: int, scale: float = 1.0) -> Array:
    return np.asarray(_rng.standard_normal(shape) * scale)


def positive(*shape: int) -> Array:
    return np.asarray(_rng.uniform(0.2, 2.0, shape))


def integers(high: int, *shape: int, dtype: Any = np.int64) -> Array:
    return np.asarray(_rng.integers(0, high, shape), dtype=dtype)


def coin(*shape: int) -> Array:
    return np.asarray(_rng.random(shape) < 0.6)


def f32(a: Array) -> Array:
    return a.astype(np.float32)


def gradient(f: Callable[[Array], Array], x: Array, dy: Array) -> Array:
    """dy . df/dx by central differences of fourth order."""
    h = 1e-3
    result = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = h
        d = f(x - 2 * step) - 8 * f(x - step) + 8 * f(x + step) - f(x + 2 * step)
        result[at] = (dy * d).sum() / (12 * h)
    return result


def leading(a: Array) -> tuple[int, ...]:
    """All axes but the last."""
    return tuple(range(a.ndim - 1))


# --- activation ------------------------------------------------------------------------------------


def gelu(x: Array) -> Array:
    return x * special.ndtr(x)


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    return x * special.expit(x)


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


def _elementwise_gradient(f: Callable[[Array], Array], dy: Array, x: Array) -> Array:
    h = 1e-3
    return dy * (f(x - 2 * h) - 8 * f(x - h) + 8 * f(x + h) - f(x + 2 * h)) / (12 * h)


for _s in SHAPES:
    _x = normal(*_s, scale=2.0)
    add("relu", lambda x: np.maximum(x, 0), x=_x)
    add("relu_backward", lambda dy, x: np.where(x > 0, dy, 0), dy=normal(*_s), x=_x)
    add("leaky_relu", lambda x, slope=0.01: np.where(x > 0, x, slope * x), x=_x)
    add("leaky_relu", lambda x, slope: np.where(x > 0, x, slope * x), x=_x, slope=0.25)
    add("elu", elu, x=_x)
    add("elu", elu, x=_x, alpha=1.5)
    add("softplus", lambda x: np.logaddexp(x, 0), x=_x)
    for _name, _f in {"gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}.items():
        add(_name, _f, x=_x)
        _g = partial(_elementwise_gradient, _f)
        add(f"{_name}_backward", _g, dy=normal(*_s), x=_x, tolerance=GRADIENT)
    add("silu_mul", lambda a, b: silu(a) * b, a=_x, b=normal(*_s))
for _name, _f in {"gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}.items():
    add(_name, _f, dtypes=("f16", "bf16"), x=normal(4, 9))
add("relu", lambda x: np.maximum(x, 0), dtypes=ALL_FLOATS, label="special",
    x=np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]))  # fmt: skip
add("softplus", lambda x: np.logaddexp(x, 0), x=np.array([-80.0, 80.0, 300.0]), label="large")


def swiglu(x: Array) -> Array:
    a, b = np.split(x, 2, axis=-1)
    return silu(a) * b


for _l in LEADS:
    add("swiglu", swiglu, x=normal(*_l, 10))
add("swiglu", swiglu, dtypes=("f16", "bf16"), x=normal(3, 2))


# --- softmax ---------------------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    return np.asarray(special.softmax(x, axis=-1))


def log_softmax(x: Array) -> Array:
    return np.asarray(special.log_softmax(x, axis=-1))


def masked_softmax(x: Array, mask: Array, scale: float = 1.0) -> Array:
    return softmax(x * scale + mask.reshape(mask.shape[0], *([1] * (x.ndim - 2)), mask.shape[1]))


def causal_softmax(x: Array, scale: float = 1.0) -> Array:
    later = np.triu(np.ones(x.shape[-2:], bool), 1)
    return softmax(np.where(later, -np.inf, x * scale))


for _l in LEADS:
    add("softmax", softmax, x=normal(*_l, 7, scale=3.0))
    add("log_softmax", log_softmax, x=normal(*_l, 7, scale=3.0))
    add("causal_softmax", causal_softmax, x=normal(*_l, 5, 7))
    add("causal_softmax", causal_softmax, x=normal(*_l, 5, 3), scale=0.5)
    # y must be a softmax for the gradients: it is recovered from itself by its logarithm.
    add("softmax_backward", lambda dy, y: gradient(softmax, np.log(y), dy), dtypes=("f64",),
        tolerance=GRADIENT, dy=normal(*_l, 5), y=softmax(normal(*_l, 5)))  # fmt: skip
    add("log_softmax_backward", lambda dy, y: gradient(log_softmax, y, dy), dtypes=("f64",),
        tolerance=GRADIENT, dy=normal(*_l, 5), y=log_softmax(normal(*_l, 5)))  # fmt: skip
    add("masked_softmax", masked_softmax, x=normal(2, *_l, 7), mask=normal(2, 7), scale=0.125)
add("softmax", softmax, dtypes=ALL_FLOATS, x=normal(3, 1), label="one")
add("softmax", softmax, dtypes=ALL_FLOATS, x=normal(5, 9))
add("softmax", softmax, x=np.array([[0.0, -np.inf, 1.0], [1000.0, 999.0, -1000.0]]), label="extreme")
add("softmax_backward", lambda dy, y: y * (dy - (dy * y).sum(-1, keepdims=True)), dtypes=("f32", "bf16"),
    dy=normal(4, 5), y=softmax(normal(4, 5)))  # fmt: skip
add("log_softmax_backward", lambda dy, y: dy - np.exp(y) * dy.sum(-1, keepdims=True), dtypes=("f32", "f16"),
    dy=normal(4, 5), y=log_softmax(normal(4, 5)))  # fmt: skip
add("masked_softmax", masked_softmax, dtypes=ALL_FLOATS, x=normal(2, 3, 5), label="default",
    mask=np.where(coin(2, 5), 0.0, -1e4))  # fmt: skip


# --- dropout ---------------------------------------------------------------------------------------


def dropout(x: Array, keep: Array, p: float = 0.5) -> Array:
    return np.where(keep, x / (1 - p), 0.0)


def softmax_dropout(x: Array, keep: Array, p: float = 0.5) -> dict[str, Array]:
    return {"y": dropout(softmax(x), keep, p), "prob": softmax(x)}


def softmax_dropout_backward(dy: Array, prob: Array, keep: Array, p: float = 0.5) -> Array:
    return gradient(lambda x: dropout(softmax(x), keep, p), np.log(prob), dy)


def softmax_dropout_backward_given(dy: Array, prob: Array, keep: Array, p: float) -> Array:
    """The textbook formula, for a prob that is not exactly a softmax."""
    g = dropout(dy, keep, p)
    return prob * (g - (g * prob).sum(-1, keepdims=True))


def drawn(seed: int, stream: int, shape: tuple[int, ...]) -> Array:
    """Uniform numbers of Philox4x32-10, one counter after the other."""
    half, seed, stream = 2**32 - 1, int(seed), int(stream)

    def number(i: int) -> float:
        c, key = [i & half, i >> 32, stream & half, stream >> 32], [seed & half, seed >> 32]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ key[0], q & half, p >> 32 ^ c[3] ^ key[1], p & half]
            key = [key[0] + 0x9E3779B9 & half, key[1] + 0xBB67AE85 & half]
        return float((c[0] >> 8) / 2**24)

    return np.array([number(i) for i in range(math.prod(shape))]).reshape(shape)


def random_dropout(x: Array, seed: int, stream: int = 0, p: float = 0.5) -> Array:
    return dropout(x, drawn(seed, stream, x.shape) >= p, p)


for _s in SHAPES:
    add("random_dropout", random_dropout, x=normal(*_s), seed=np.uint64(2**64 - 3),
        stream=np.uint64(2**33), p=0.25)  # fmt: skip
add("random_dropout", random_dropout, dtypes=("f32", "f16", "bf16"), x=normal(3, 5), seed=np.uint64(1))
for _s in SHAPES:
    add("dropout", dropout, x=normal(*_s), keep=coin(*_s))
for _l in LEADS:
    add("softmax_dropout", softmax_dropout, x=normal(*_l, 6), keep=coin(*_l, 6), p=0.25)
    add("softmax_dropout_backward", softmax_dropout_backward, dtypes=("f64",), tolerance=GRADIENT,
        dy=normal(*_l, 6), prob=softmax(normal(*_l, 6)), keep=coin(*_l, 6), p=0.25)  # fmt: skip
add("softmax_dropout_backward", softmax_dropout_backward_given, dtypes=("f32", "bf16"), dy=normal(4, 6),
    prob=softmax(normal(4, 6)), keep=coin(4, 6), p=0.25)  # fmt: skip
add("dropout", dropout, dtypes=("f16", "bf16"), x=normal(3, 5), keep=coin(3, 5), p=0.25)


# --- normalisation -----------------------------------------------------------------------------------


def standard(x: Array, axes: int | tuple[int, ...], eps: float) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    return standard(x, -1, eps) * gamma + beta


def layer_norm_stats(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> dict[str, Array]:
    return {"y": layer_norm(x, gamma, beta, eps), "mu": x.mean(-1), "rstd": 1 / np.sqrt(x.var(-1) + eps)}


def layer_norm_backward(dy: Array, x: Array, gamma: Array, mu: Array, rstd: Array) -> dict[str, Array]:
    return {
        "dx": gradient(lambda v: layer_norm(v, gamma, 0 * gamma), x, dy),
        "dgamma": gradient(lambda v: layer_norm(x, v, 0 * gamma), gamma, dy),
        "dbeta": gradient(lambda v: layer_norm(x, gamma, v), 0 * gamma, dy),
    }


def rms_norm(x: Array, gamma: Array, eps: float = 1e-6) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gamma


def rms_norm_backward(dy: Array, x: Array, gamma: Array, eps: float = 1e-6) -> dict[str, Array]:
    return {
        "dx": gradient(lambda v: rms_norm(v, gamma, eps), x, dy),
        "dgamma": gradient(lambda v: rms_norm(x, v, eps), gamma, dy),
    }


for _l in LEADS:
    add("layer_norm", layer_norm, x=normal(*_l, 7), gamma=normal(7), beta=normal(7))
    add("layer_norm_stats", layer_norm_stats, x=normal(*_l, 7), gamma=normal(7), beta=normal(7), eps=1e-3)
    _x = normal(*_l, 5) + 2.0
    add("layer_norm_backward", layer_norm_backward, dtypes=("f64",), tolerance=GRADIENT, dy=normal(*_l, 5),
        x=_x, gamma=normal(5), mu=np.asarray(_x.mean(-1)),
        rstd=np.asarray(1 / np.sqrt(_x.var(-1) + 1e-5)))  # fmt: skip
    add("rms_norm", rms_norm, x=normal(*_l, 7), gamma=normal(7))
    add("rms_norm_backward", rms_norm_backward, dtypes=("f64",), tolerance=GRADIENT, dy=normal(*_l, 5),
        x=normal(*_l, 5), gamma=normal(5))  # fmt: skip
    add("rms_norm_backward", rms_norm_backward, dtypes=("f32",), tolerance=GRADIENT, dy=normal(*_l, 5),
        x=normal(*_l, 5), gamma=normal(5), eps=1e-3)  # fmt: skip
    add("l2_normalize", lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), x=normal(*_l, 6))
add("l2_normalize", lambda x, eps: 0 * x, x=np.zeros((2, 3)), eps=1e-3, label="zero")
add("layer_norm", layer_norm, dtypes=ALL_FLOATS, x=normal(5, 9) + 3.0, gamma=normal(9), beta=normal(9),
    eps=2.0**-10)  # fmt: skip
add("layer_norm", layer_norm, x=normal(5, 1), gamma=normal(1), beta=normal(1), label="one")
add("rms_norm", rms_norm, dtypes=("f16", "bf16"), x=normal(5, 9), gamma=normal(9), eps=2.0**-10)


def layer_norm_backward_given(dy: Array, x: Array, gamma: Array, mu: Array, rstd: Array) -> dict[str, Array]:
    """The textbook formula, for statistics that are not exactly those of x."""
    xhat = (x - mu[..., None]) * rstd[..., None]
    g, n = dy * gamma, x.shape[-1]
    dx = (n * g - g.sum(-1, keepdims=True) - xhat * (g * xhat).sum(-1, keepdims=True)) * rstd[..., None] / n
    return {"dx": dx, "dgamma": (dy * xhat).sum(leading(x)), "dbeta": dy.sum(leading(x))}


_x = normal(4, 6)
_stats = {"mu": f32(_x.mean(-1)), "rstd": f32(1 / np.sqrt(_x.var(-1) + 1e-5))}
add("layer_norm_backward", layer_norm_backward_given, dtypes=("f32", "f16", "bf16"), dy=normal(4, 6), x=_x,
    gamma=normal(6), **_stats, label="stats32")  # fmt: skip


def batch_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    shape = (1, -1, *([1] * (x.ndim - 2)))
    axes = (0, *range(2, x.ndim))
    return standard(x, axes, eps) * gamma.reshape(shape) + beta.reshape(shape)


def batch_norm_train(x: Array, gamma: Array, beta: Array, running_mean: Array, running_var: Array,
                     momentum: float = 0.1, eps: float = 1e-5) -> dict[str, Array]:  # fmt: skip
    mu, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    return {
        "y": batch_norm(x, gamma, beta, eps),
        "mu": mu,
        "rstd": 1 / np.sqrt(var + eps),
        "running_mean": running_mean * (1 - momentum) + momentum * mu,
        "running_var": running_var * (1 - momentum) + momentum * x.var((0, 2, 3), ddof=1),
    }


def batch_norm_relu_train(**inputs: Any) -> dict[str, Array]:
    found = batch_norm_train(**inputs)
    kept = {n: found[n] for n in ("running_mean", "running_var")}
    return {"y": np.maximum(found["y"], 0), **kept}


def batch_norm_inference(x: Array, gamma: Array, beta: Array, running_mean: Array, running_var: Array,
                         eps: float = 1e-5) -> Array:  # fmt: skip
    last = np.moveaxis(x, 1, -1)
    return np.moveaxis((last - running_mean) / np.sqrt(running_var + eps) * gamma + beta, -1, 1)


def batch_norm_backward(dy: Array, x: Array, gamma: Array, mu: Array, rstd: Array) -> dict[str, Array]:
    return {
        "dx": gradient(lambda v: batch_norm(v, gamma, 0 * gamma), x, dy),
        "dgamma": gradient(lambda v: batch_norm(x, v, 0 * gamma), gamma, dy),
        "dbeta": gradient(lambda v: batch_norm(x, gamma, v), 0 * gamma, dy),
    }


def batch_norm_backward_given(dy: Array, x: Array, gamma: Array, mu: Array, rstd: Array) -> dict[str, Array]:
    """As a layer normalisation of rows that are channels, with dy * gamma for dy."""
    rows = [np.moveaxis(a, 1, 0).reshape(x.shape[1], -1) for a in (dy, x)]
    found = layer_norm_backward_given(rows[0], rows[1], np.ones(rows[1].shape[1]), mu, rstd)
    dx = (gamma[:, None] * found["dx"]).reshape(x.shape[1], x.shape[0], *x.shape[2:])
    xhat = (rows[1] - mu[:, None]) * rstd[:, None]
    return {"dx": np.moveaxis(dx, 0, 1), "dgamma": (rows[0] * xhat).sum(1), "dbeta": rows[0].sum(1)}


def group_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5, G: int = 8) -> Array:
    rest = x.shape[2:]
    parts = x.reshape(x.shape[0], G, -1)
    per_channel = (1, -1, *([1] * len(rest)))
    return standard(parts, -1, eps).reshape(x.shape) * gamma.reshape(per_channel) + beta.reshape(per_channel)


def instance_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    return group_norm(x, gamma, beta, eps, len(gamma))


for _s in ((3, 2, 4, 5), (1, 3, 1, 7), (5, 1, 1, 1)):
    _c = _s[1]
    _bn = {"gamma": normal(_c), "beta": normal(_c), "running_mean": normal(_c), "running_var": positive(_c)}
    for _name, _f in (
        ("batch_norm_train", batch_norm_train),
        ("batch_norm_relu_train", batch_norm_relu_train),
    ):
        add(_name, _f, x=normal(*_s), **_bn)
        add(_name, _f, x=normal(*_s), **_bn, momentum=0.3, eps=1e-3)
        _bn32 = {n: f32(a) for n, a in _bn.items()}
        add(_name, _f, dtypes=("f16", "bf16"), x=normal(*_s), **_bn32, label="stats32")
for _s in ((3, 2), (3, 2, 5), (2, 3, 1, 4)):
    _c = _s[1]
    _bn = {"gamma": normal(_c), "beta": normal(_c), "running_mean": normal(_c), "running_var": positive(_c)}
    add("batch_norm_inference", batch_norm_inference, x=normal(*_s), **_bn)
    _x = normal(*_s)
    _axes = (0, *range(2, len(_s)))
    add("batch_norm_backward", batch_norm_backward, dtypes=("f64",), tolerance=GRADIENT, dy=normal(*_s), x=_x,
        gamma=normal(_c), mu=_x.mean(_axes), rstd=1 / np.sqrt(_x.var(_axes) + 1e-5))  # fmt: skip
_bn32 = {"gamma": f32(normal(3)), "mu": f32(normal(3)), "rstd": f32(positive(3))}
add("batch_norm_backward", batch_norm_backward_given, dtypes=("f32", "f16", "bf16"), dy=normal(2, 3, 5, 1),
    x=normal(2, 3, 5, 1), **_bn32, label="stats32")  # fmt: skip
for _rest in ((), (5,), (2, 3)):
    for _g, _k in ((2, 3), (1, 4), (3, 1)):
        if _k > 1 or _rest:
            add("group_norm", group_norm, x=normal(2, _g * _k, *_rest), gamma=normal(_g * _k),
                beta=normal(_g * _k), given={"G": _g})  # fmt: skip
    if _rest:
        add("instance_norm", instance_norm, x=normal(2, 3, *_rest), gamma=normal(3), beta=normal(3))
add("group_norm", group_norm, dtypes=("f16",), x=normal(2, 4, 3), gamma=normal(4), beta=normal(4),
    eps=2.0**-10, given={"G": 2})  # fmt: skip


# --- losses ----------------------------------------------------------------------------------------


def cross_entropy(x: Array, target: Array) -> Array:
    flat, t = log_softmax(x).reshape(-1, x.shape[-1]), target.reshape(-1)
    return np.asarray(-flat[np.arange(len(t)), t].mean())


def cross_entropy_backward(x: Array, target: Array, dloss: Any = 1.0) -> Array:
    return gradient(lambda v: cross_entropy(v, target), x, np.asarray(dloss))


def binary_cross_entropy(x: Array, z: Array) -> Array:
    p = special.expit(x)
    return -np.asarray((z * np.log(p) + (1 - z) * np.log(1 - p)).mean())


for _l in LEADS:
    add("cross_entropy", cross_entropy, x=normal(*_l, 9), target=integers(9, *_l))
    add("cross_entropy", cross_entropy, x=normal(*_l, 4), target=integers(4, *_l, dtype=np.int32))
add("cross_entropy", cross_entropy, dtypes=("f16", "bf16"), x=normal(5, 7), target=integers(7, 5))
add(
    "cross_entropy_backward",
    cross_entropy_backward,
    tolerance=GRADIENT,
    x=normal(5, 3),
    target=integers(3, 5),
)
add("cross_entropy_backward", cross_entropy_backward, tolerance=GRADIENT, x=normal(1, 4),
    target=integers(4, 1), dloss=2.5)  # fmt: skip
for _s in SHAPES:
    add("binary_cross_entropy", binary_cross_entropy, x=normal(*_s), z=coin(*_s).astype(np.float64))
    add("mse_loss", lambda x, z: np.square(x - z).mean(), dtypes=ALL_FLOATS, x=normal(*_s), z=normal(*_s))


# --- recurrent -------------------------------------------------------------------------------------


def lstm_cell(gx: Array, gh: Array, bias: Array, c: Array) -> dict[str, Array]:
    i, f, g, o = np.split(gx + gh + bias, 4, axis=-1)
    new = special.expit(f) * c + special.expit(i) * np.tanh(g)
    return {"c_next": new, "h_next": special.expit(o) * np.tanh(new)}


def gru_cell(gx: Array, gh: Array, h: Array) -> Array:
    (rx, zx, nx), (rh, zh, nh) = np.split(gx, 3, axis=-1), np.split(gh, 3, axis=-1)
    z = special.expit(zx + zh)
    return (1 - z) * np.tanh(nx + special.expit(rx + rh) * nh) + z * h


def rnn_layer(x: Array, u: Array, h0: Array) -> Array:
    found = [h0]
    for row in x:
        found.append(np.tanh(row + found[-1] @ u.T))
    return np.stack(found[1:])


def lstm_layer(x: Array, u: Array, h0: Array, c0: Array) -> dict[str, Array]:
    hs, h, c = [], h0, c0
    for row in x:
        step = lstm_cell(row, h @ u.T, np.zeros(row.shape[-1]), c)
        h, c = step["h_next"], step["c_next"]
        hs.append(h)
    return {"h": np.stack(hs), "c_last": c}


for _b, _h in ((3, 5), (1, 7), (4, 1)):
    _dtypes = ALL_FLOATS if _b == 3 else ("f32", "f64")
    add("lstm_cell", lstm_cell, dtypes=_dtypes, gx=normal(_b, 4 * _h), gh=normal(_b, 4 * _h),
        bias=normal(4 * _h), c=normal(_b, _h))  # fmt: skip
    add("gru_cell", gru_cell, dtypes=_dtypes, gx=normal(_b, 3 * _h), gh=normal(_b, 3 * _h), h=normal(_b, _h))
    for _t in (1, 2, 5):
        add("rnn_layer", rnn_layer, x=normal(_t, _b, _h), u=normal(_h, _h), h0=normal(_b, _h))
        add("lstm_layer", lstm_layer, x=normal(_t, _b, 4 * _h), u=normal(4 * _h, _h), h0=normal(_b, _h),
            c0=normal(_b, _h))  # fmt: skip


# --- optimizers ------------------------------------------------------------------------------------


def _moments(g: Array, m: Array, v: Array, step: Any, beta1: float, beta2: float) -> tuple[Array, ...]:
    m, v = m + (1 - beta1) * (g - m), v + (1 - beta2) * (g**2 - v)
    return m, v, m / (1 - beta1**step), v / (1 - beta2**step)


def adamw(p: Array, g: Array, m: Array, v: Array, step: Any, lr: float = 1e-3, beta1: float = 0.9,
          beta2: float = 0.999, eps: float = 1e-8, wd: float = 0.01) -> dict[str, Array]:  # fmt: skip
    m, v, mhat, vhat = _moments(g, m, v, float(step), beta1, beta2)
    return {"p": p - lr * wd * p - lr * mhat / (np.sqrt(vhat) + eps), "m": m, "v": v}


def lamb(p: Array, g: Array, m: Array, v: Array, step: Any, scale: float = 1.0, lr: float = 1e-3,
         beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-6, wd: float = 0.01
         ) -> dict[str, Array]:  # fmt: skip
    m, v, mhat, vhat = _moments(g * scale, m, v, float(step), beta1, beta2)
    u = mhat / (np.sqrt(vhat) + eps) + wd * p
    norms = np.linalg.norm(p.ravel()), np.linalg.norm(u.ravel())
    ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
    return {"p": p - lr * ratio * u, "m": m, "v": v}


def sgd_momentum(p: Array, g: Array, buf: Array, lr: float = 1e-2, momentum: float = 0.9, wd: float = 0.0
                 ) -> dict[str, Array]:  # fmt: skip
    buf = momentum * buf + g + wd * p
    return {"p": p - lr * buf, "buf": buf}


def clip_factor(g: Array, limit: float = 1.0) -> Array:
    return np.minimum(1.0, limit / (np.linalg.norm(g.ravel()) + 1e-6))


for _s in SHAPES:
    _p = {"p": normal(*_s), "g": normal(*_s)}
    _mv = {"m": normal(*_s), "v": positive(*_s)}
    add("adamw", adamw, **_p, **_mv, step=np.int64(3))
    add("adamw", adamw, **_p, **_mv, step=np.int64(1), lr=0.1, beta1=0.5, beta2=0.75, eps=1e-3, wd=0.2)
    add("lamb", lamb, **_p, **_mv, step=np.int64(3))
    add("lamb", lamb, **_p, **_mv, step=np.int64(2), scale=0.25, lr=0.1, beta1=0.5, beta2=0.75, wd=0.2)
    add("sgd_momentum", sgd_momentum, **_p, buf=normal(*_s))
    add("sgd_momentum", sgd_momentum, **_p, buf=normal(*_s), lr=0.5, momentum=0.5, wd=0.25)
    add("clip_factor", clip_factor, g=normal(*_s, scale=4.0))
    add("clip_factor", clip_factor, g=normal(*_s), limit=8.0)
    _mv = {n: f32(a) for n, a in _mv.items()}
    add("adamw", adamw, dtypes=("f16", "bf16"), **_p, **_mv, step=np.int64(7), label="moments32")
    add("lamb", lamb, dtypes=("bf16",), **_p, **_mv, step=np.int64(7), label="moments32")
    add("sgd_momentum", sgd_momentum, dtypes=("bf16",), **_p, buf=f32(normal(*_s)), label="moments32")
add("lamb", lamb, p=np.zeros(4), g=normal(4), m=np.zeros(4), v=np.zeros(4), step=np.int64(1), label="zero")


# --- embedding -------------------------------------------------------------------------------------


def summed(index: Array, values: Array, start: Array) -> Array:
    result = start.copy()
    np.add.at(result, index, values)
    return result


def by_offsets(values: Array, start: Array) -> Array:
    return np.stack([values[a:b].sum(0) for a, b in itertools.pairwise(start)])


def segment_softmax(x: Array, start: Array) -> Array:
    parts = (np.exp(x[a:b] - x[a:b].max(initial=-np.inf)) for a, b in itertools.pairwise(start))
    return np.concatenate([p / p.sum() for p in parts])


def edge_max(x: Array, src: Array, dst: Array) -> Array:
    result = np.full_like(x, -np.inf)
    np.maximum.at(result, dst, x[src])
    return result


for _l in LEADS:
    for _int in (np.int64, np.int32):
        add("embedding", lambda table, index: table[index], table=normal(11, 3),
            index=integers(11, *_l, dtype=_int))  # fmt: skip
    add("embedding_backward", lambda dy, index, dtable: {"dtable": summed(index, dy, dtable)},
        dy=normal(*_l, 3), index=integers(5, *_l), dtable=normal(5, 3))  # fmt: skip
    add("take", lambda x, index: x[index], x=normal(6), index=integers(6, *_l))
    add("take", lambda x, index: x[index], x=normal(6, 2, 3), index=integers(6, *_l))
    add("gather", lambda x, index: np.take_along_axis(x, index, -1), x=normal(*_l, 7),
        index=integers(7, *_l, 4))  # fmt: skip
add("embedding", lambda table, index: table[index], dtypes=("f16", "bf16"), table=normal(5, 4),
    index=integers(5, 7, dtype=np.int16))  # fmt: skip
for _n, _many in ((3, 5), (1, 1), (4, 1)):
    add("embedding_bag", lambda table, index: table[index].sum(1), dtypes=ALL_FLOATS, table=normal(9, 3),
        index=integers(9, _n, _many))  # fmt: skip
for _start in ([0, 2, 2, 7], [0, 7], [0, 0, 0, 7, 7]):
    _offsets = np.array(_start, np.int64)
    add("embedding_bag_offsets", lambda table, index, start: by_offsets(table[index], start),
        table=normal(5, 3), index=integers(5, 7), start=_offsets)  # fmt: skip
    add("segment_sum", lambda x, start: by_offsets(x, start), x=normal(7, 2), start=_offsets)
    add("segment_sum", lambda x, start: by_offsets(x, start), x=normal(7, 1), start=_offsets.astype(np.int32))
    add("segment_max", lambda x, start: np.stack([x[a:b].max(0, initial=-np.inf)
        for a, b in itertools.pairwise(start)]), x=normal(7, 2), start=_offsets)  # fmt: skip
    add("segment_mean", lambda x, start: by_offsets(x, start) / np.diff(start)[:, None],
        x=normal(7, 2), start=_offsets)  # fmt: skip
    add("segment_softmax", segment_softmax, x=normal(7), start=_offsets)
    add("csr_matmul", lambda value, column, start, x: by_offsets(value[:, None] * x[column], start),
        value=normal(7), column=integers(5, 7), start=_offsets, x=normal(5, 3))  # fmt: skip
for _d in ((), (3,), (2, 3)):
    add("scatter_add", lambda y, index, x: {"y": summed(index, x, y)}, y=normal(4, *_d), index=integers(4, 9),
        x=normal(9, *_d))  # fmt: skip
add("scatter_add", lambda y, index, x: {"y": summed(index, x, y)}, dtypes=("f16", "bf16"), y=normal(4, 2),
    index=integers(4, 9), x=normal(9, 2))  # fmt: skip
for _d in (1, 5):
    _edges = {"src": integers(6, 13), "dst": np.sort(integers(6, 13))}
    add("edge_sum", lambda x, w, src, dst: summed(dst, w[:, None] * x[src], np.zeros_like(x)),
        dtypes=ALL_FLOATS, x=normal(6, _d), w=normal(13), **_edges)  # fmt: skip
    add("edge_max", edge_max, dtypes=ALL_FLOATS, x=normal(6, _d), **_edges)


# --- linear algebra and attention ------------------------------------------------------------------


def linear_backward(dy: Array, x: Array, w: Array) -> dict[str, Array]:
    flat_dy, flat_x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    return {"dx": dy @ w, "dw": flat_dy.T @ flat_x, "dbias": flat_dy.sum(0)}


def attention(q: Array, k: Array, v: Array, mask: Array) -> Array:
    per_head = mask.reshape(mask.shape[0], *([1] * (q.ndim - 3)), *mask.shape[1:])
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + per_head) @ v


def causal_attention(q: Array, k: Array, v: Array) -> Array:
    return causal_softmax(q @ np.swapaxes(k, -1, -2), 1 / np.sqrt(q.shape[-1])) @ v


def rope(x: Array, cosine: Array, sine: Array) -> Array:
    a, b = np.split(x, 2, axis=-1)
    turned = (a + 1j * b) * (cosine + 1j * sine)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def split_heads(x: Array, bias: Array) -> dict[str, Array]:
    return dict(zip("qkv", np.einsum("nschd->cnhsd", x + bias), strict=True))


def interest_attention(q: Array, k: Array, keep: Array, w: Array, bias: Array) -> Array:
    many = np.broadcast_to(q[:, None], k.shape)
    score = np.concatenate([many, k, many - k, many * k], -1) @ w + bias
    return np.einsum("bt,bth->bh", softmax(np.where(keep, score, -1e4)), k)


for _l in LEADS:
    add("matmul", lambda a, b: a @ b, a=normal(*_l, 3, 5), b=normal(*_l, 5, 4))
    add("linear", lambda x, w, bias: x @ w.T + bias, x=normal(*_l, 5), w=normal(3, 5), bias=normal(3))
    add("linear_backward", linear_backward, dy=normal(*_l, 3), x=normal(*_l, 5), w=normal(3, 5))
    add("transpose", lambda x: np.swapaxes(x, -1, -2), x=normal(*_l, 3, 5))
    add("attention", attention, q=normal(2, *_l, 3, 4), k=normal(2, *_l, 5, 4), v=normal(2, *_l, 5, 2),
        mask=np.where(coin(2, 3, 5), 0.0, -1e4))  # fmt: skip
    add("causal_attention", causal_attention, q=normal(*_l, 5, 4), k=normal(*_l, 5, 4), v=normal(*_l, 5, 3))
    add("rope", rope, x=normal(*_l, 5, 6), cosine=np.cos(normal(5, 3)), sine=np.sin(normal(5, 3)))
add("matmul", lambda a, b: a @ b, dtypes=("f16", "bf16"), a=normal(3, 7), b=normal(7, 1))
add("matmul", lambda a, b: a @ b, a=normal(1, 1), b=normal(1, 1), label="one")
add("matvec", lambda a, x: a @ x, dtypes=ALL_FLOATS, a=normal(3, 7), x=normal(7))
add("matvec", lambda a, x: a @ x, a=normal(1, 1), x=normal(1))
add("linear", lambda x, w: x @ w.T, x=normal(4, 5), w=normal(3, 5))
add("linear", lambda x, w, bias: x @ w.T + bias, dtypes=("f16", "bf16"), x=normal(2, 5), w=normal(3, 5),
    bias=normal(3))  # fmt: skip
add("attention", attention, dtypes=("f16", "bf16"), q=normal(2, 2, 3, 4), k=normal(2, 2, 5, 4),
    v=normal(2, 2, 5, 2), mask=np.where(coin(2, 3, 5), 0.0, -1e4))  # fmt: skip
add("rope", rope, dtypes=("f16", "bf16"), x=normal(2, 3, 2), cosine=normal(3, 1), sine=normal(3, 1))
for _s in ((2, 5, 3, 4), (1, 3, 2, 1)):
    add("split_heads", split_heads, dtypes=ALL_FLOATS, x=normal(_s[0], _s[1], 3, *_s[2:]),
        bias=normal(3, *_s[2:]))  # fmt: skip
for _s in ((3, 5, 4), (1, 7, 1)):
    add("interest_attention", interest_attention, q=normal(_s[0], _s[2]), k=normal(*_s), keep=coin(*_s[:2]),
        w=normal(4 * _s[2]), bias=0.25)  # fmt: skip


def one_hot(index: Array, K: int) -> Array:
    return np.asarray(index[..., None] == np.arange(K)).astype(index.dtype)


def histogram(x: Array, low: Array, high: Array, K: int) -> Array:
    return np.histogram(x, K, (float(low), float(high)))[0]


for _s in SHAPES:
    for _dtype in (np.int64, np.int8):
        add("one_hot", one_hot, index=integers(5, *_s, dtype=_dtype), given={"K": 5})
    add("one_hot", one_hot, index=integers(5, *_s) - 1, given={"K": 3}, label="beyond")
    add("histogram", histogram, x=normal(*_s), low=-1.25, high=1.5, given={"K": 4})
    add("histogram", histogram, x=normal(*_s), low=-9.0, high=9.0, given={"K": 1})
_edges = np.array([0.05, 0.3, 0.6, 0.9, -0.3, 1.4])
add("histogram", lambda x, low, high, K: np.array([1, 1, 1, 1]), dtypes=("f32",), x=_edges, low=0.0, high=1.0,
    given={"K": 4}, label="edges")  # fmt: skip


# --- convolution -----------------------------------------------------------------------------------


def conv2d(
    x: Array, w: Array, bias: Array | None = None, S: int = 1, P: int = 0, D: int = 1, G: int | None = None
) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (P, P), (P, P)))
    of_group, groups = w.shape[1], x.shape[1] // w.shape[1]
    wide = np.zeros((*w.shape[:2], D * (w.shape[2] - 1) + 1, D * (w.shape[3] - 1) + 1))
    wide[:, :, ::D, ::D] = w

    def one(image: Array, k: int) -> Array:
        first = k // (len(w) // groups) * of_group
        channels = zip(image[first : first + of_group], wide[k], strict=True)
        return sum(signal.correlate2d(a, f, "valid") for a, f in channels)[::S, ::S] + (
            0.0 if bias is None else bias[k]
        )

    return np.stack([np.stack([one(i, k) for k in range(len(w))]) for i in padded])


def causal_conv1d(x: Array, w: Array, bias: Array | None = None) -> Array:
    def one(a: Array, f: Array) -> Array:
        return np.convolve(a, f[::-1])[: len(a)]

    bias = np.zeros(len(w)) if bias is None else bias
    rows = [[one(b[:, c], w[c]) + bias[c] for c in range(len(w))] for b in x]
    return np.moveaxis(np.array(rows), 1, 2)


def windows(x: Array, K: int, S: int, P: int, D: int = 1, value: float = 0.0) -> Array:
    """[N, C, P, Q, K, K]: the windows of a bordered image."""
    padded = np.pad(x, ((0, 0), (0, 0), (P, P), (P, P)), constant_values=value)
    length = D * (K - 1) + 1
    every = np.lib.stride_tricks.sliding_window_view(padded, (length, length), (2, 3))
    return np.asarray(every[:, :, ::S, ::S, ::D, ::D])


def max_pool(x: Array, K: int = 2, S: int | None = None, P: int = 0) -> Array:
    return np.asarray(windows(x, K, S or K, P, value=-np.inf).max((-2, -1)))


def avg_pool(x: Array, K: int = 2, S: int | None = None, P: int = 0) -> Array:
    return np.asarray(windows(x, K, S or K, P).mean((-2, -1)))


def unfold(x: Array, K: int = 3, S: int = 1, P: int = 0, D: int = 1) -> Array:
    found = windows(x, K, S, P, D)  # [N, C, P, Q, K, K]
    return found.transpose(0, 1, 4, 5, 2, 3).reshape(len(x), x.shape[1] * K * K, -1)


def pixel_shuffle(x: Array, R: int) -> Array:
    n, c, h, w = x.shape
    parts = x.reshape(n, c // R**2, R, R, h, w)
    return parts.transpose(0, 1, 4, 2, 5, 3).reshape(n, c // R**2, h * R, w * R)


def interpolate_nearest(x: Array, O: int, Q: int) -> Array:  # noqa: E741
    rows = x[:, :, np.arange(O) * x.shape[2] // O]
    return np.asarray(rows[..., np.arange(Q) * x.shape[3] // Q])


def between(x: Array, axis: int, at: Array) -> Array:
    """Samples between elements of an axis, linear."""
    first = np.floor(at + 1e-12).astype(int)
    part = np.clip(at - first, 0, 1).reshape(-1, *([1] * (-1 - axis)))
    second = np.minimum(first + 1, x.shape[axis] - 1)
    return np.take(x, first, axis) * (1 - part) + np.take(x, second, axis) * part


def interpolate_bilinear(x: Array, O: int, Q: int, A: int = 0) -> Array:  # noqa: E741
    for axis, new in ((-2, O), (-1, Q)):
        old, k = x.shape[axis], np.arange(new)
        corners = k * (old - 1) / max(new - 1, 1)
        x = between(x, axis, corners if A else np.maximum((k + 0.5) * old / new - 0.5, 0.0))
    return x


def sample_between(
    x: Array,
    O: int,  # noqa: E741
    Q: int,
    M: int,
    D: int,
    L: int,
    E: int,
    A: int = 0,
) -> Array:
    for axis, new, step, by in ((-2, O, M, D), (-1, Q, L, E)):
        x = between(x, axis, np.maximum(np.arange(new) * step + A * (x.shape[axis] - new), 0) / by)
    return x


for _hw in ((5, 6), (4, 7), (3, 3)):
    _x = normal(2, 2, *_hw)
    _rs = (3, 1) if _hw == (4, 7) else (3, 3)
    _wb = {"w": normal(3, 2, *_rs), "bias": normal(3)}
    add("conv2d", conv2d, x=_x, **_wb)
    add("conv2d", conv2d, x=_x, w=normal(1, 2, 2, 1), bias=normal(1))
    for _given in ({"P": 1}, {"P": 1, "S": 2}, {"P": 2, "S": 3, "D": 2}):
        add("conv2d", conv2d, x=_x, **_wb, given=_given)
    add("conv2d", conv2d, x=_x, w=normal(2, 1, 2, 3), bias=normal(2))
    add("conv2d", conv2d, x=_x, w=normal(2, 1, 2, 3), given={"P": 1})
    add("conv2d", conv2d, x=normal(2, 6, *_hw), w=normal(4, 3, *_rs), bias=normal(4), given={"P": 1, "G": 2})
    add("zero_pad2d", lambda x: np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), x=_x)
    for _given in ({}, {"K": 3}, {"K": 3, "S": 2, "P": 1}, {"K": 3, "S": 1, "P": 1}, {"K": 1, "S": 2}):
        add("max_pool", max_pool, x=_x, given=_given)
        add("avg_pool", avg_pool, x=_x, given=_given)
    for _given in ({}, {"K": 2, "S": 2, "P": 1}, {"K": 2, "D": 2}, {"K": 1}):
        add("unfold", unfold, x=_x, given=_given)
    for _o, _q in ((1, 1), (7, 9), _hw, (2, 5)):
        add("interpolate_nearest", interpolate_nearest, x=_x, given={"O": _o, "Q": _q})
        for _a in (0, 1):
            add("interpolate_bilinear", interpolate_bilinear, x=_x, given={"O": _o, "Q": _q, "A": _a})
    add("sample_between", sample_between, x=_x, given={"O": 4, "Q": 3, "M": 2, "D": 4, "L": 1, "E": 1})
for _name, _f in (("max_pool", max_pool), ("avg_pool", avg_pool)):
    add(_name, _f, dtypes=ALL_FLOATS, x=normal(1, 1, 1, 1), given={"K": 3, "S": 2, "P": 1}, label="one")
    add(_name, _f, dtypes=("f16", "bf16"), x=normal(1, 2, 4, 5))
add("zero_pad2d", lambda x: np.pad(x, 1)[1:-1, 1:-1], dtypes=ALL_FLOATS, x=normal(1, 1, 1, 1), label="one")
add("conv2d", conv2d, dtypes=("f16", "bf16"), x=normal(1, 2, 4, 4), w=normal(2, 2, 3, 3), bias=normal(2))
for _r in (1, 2, 3):
    add("pixel_shuffle", pixel_shuffle, x=normal(2, 2 * _r * _r, 3, 2), given={"R": _r})
for _t in (1, 2, 6):
    add("causal_conv1d", causal_conv1d, x=normal(2, _t, 3), w=normal(3, 4), bias=normal(3))
    add("causal_conv1d", causal_conv1d, x=normal(2, _t, 3), w=normal(3, 4))
for _rest in ((), (5,), (3, 4)):
    add("global_avg_pool", lambda x: x.reshape(*x.shape[:2], -1).mean(-1), x=normal(2, 3, *_rest))


# --- scans -----------------------------------------------------------------------------------------


def linear_recurrence(a: Array, x: Array) -> Array:
    result = np.zeros_like(x)
    for t in range(len(x)):
        for s in range(t + 1):
            result[t] += np.prod(a[s + 1 : t + 1], axis=0) * x[s]
    return result


def stencil3(start: Array, dt: Array) -> Array:
    rows = [start]
    for step in dt:
        new = rows[-1].copy()
        new[1:-1] += step * np.diff(rows[-1], 2)
        rows.append(new)
    return np.stack(rows)


def sliding(op: Callable[..., Array], x: Array, K: int) -> Array:
    """Of the last K elements, or of as many as there are."""
    every = [op(x[..., max(t - K + 1, 0) : t + 1], -1) for t in range(x.shape[-1])]
    return np.stack(every, -1) if every else x


for _l in LEADS:
    for _t in (1, 6):
        add("cumsum", lambda x: np.cumsum(x, -1), x=normal(*_l, _t))
        add("cumsum_reverse", lambda x: np.cumsum(x[..., ::-1], -1)[..., ::-1], x=normal(*_l, _t))
        add("cumprod", lambda x: np.cumprod(x, -1), x=normal(*_l, _t))
        add("cummax", lambda x: np.maximum.accumulate(x, -1), x=normal(*_l, _t))
        add("linear_recurrence", linear_recurrence, a=normal(_t, *_l), x=normal(_t, *_l))
add("cumsum", lambda x: np.cumsum(x, -1), dtypes=("f16", "bf16"), x=normal(3, 9))
add("cummax", lambda x: np.maximum.accumulate(x, -1), dtypes=("f16", "bf16"), x=normal(3, 9))
_scanned = np.random.default_rng(7)
for _l in LEADS:
    for _t, _k in ((0, 3), (1, 2), (6, 3), (6, 9), (150, 40)):
        _x = _scanned.normal(size=(*_l, _t))
        add("cumsum_reverse", lambda x: np.cumsum(x[..., ::-1], -1)[..., ::-1], x=_x)
        add("cummin", lambda x: np.minimum.accumulate(x, -1), x=_x)
        add("sliding_max", partial(sliding, np.max), x=_x, given={"K": _k})
        add("sliding_sum", partial(sliding, np.sum), x=_x, given={"K": _k})
for _n, _t in ((7, 4), (2, 3), (3, 1), (9, 9)):
    add("stencil3", stencil3, start=normal(_n), dt=positive(_t) * 0.2)


# --- chains ----------------------------------------------------------------------------------------


def bias_gelu_backward(dy: Array, x: Array, bias: Array) -> dict[str, Array]:
    return {
        "dx": gradient(lambda v: gelu(v + bias), x, dy),
        "dbias": gradient(lambda v: gelu(x + v), bias, dy),
    }


def bias_residual_layer_norm(x: Array, bias: Array, r: Array, gamma: Array, beta: Array, eps: float = 1e-5
                             ) -> Array:  # fmt: skip
    return layer_norm(x + bias + r, gamma, beta, eps)


def bias_dropout_residual_layer_norm(x: Array, bias: Array, keep: Array, r: Array, gamma: Array, beta: Array,
                                     p: float = 0.1, eps: float = 1e-5) -> Array:  # fmt: skip
    return layer_norm(dropout(x + bias, keep, p) + r, gamma, beta, eps)


def dropout_residual_layer_norm(x: Array, r: Array, gamma: Array, beta: Array, seed: int, stream: int = 0,
                                p: float = 0.1, eps: float = 1e-5) -> dict[str, Array]:  # fmt: skip
    s = random_dropout(x, seed, stream, p) + r
    return {**layer_norm_stats(s, gamma, beta, eps), "s": s}


def dropout_residual_layer_norm_backward(dy: Array, s: Array, gamma: Array, mu: Array, rstd: Array, seed: int,
                                         stream: int = 0, p: float = 0.1) -> dict[str, Array]:  # fmt: skip
    of_norm = layer_norm_backward_given(dy, s, gamma, mu, rstd)
    dr = of_norm["dx"]
    return {**of_norm, "dr": dr, "dx": random_dropout(dr, seed, stream, p)}


def residual_chain(x: Array, a: Array, b: Array, c: Array, gamma: Array, beta: Array, eps: float = 1e-5
                   ) -> Array:  # fmt: skip
    for r in (a, b, c):
        x = layer_norm(x + r, gamma, beta, eps)
    return x


def embedding_layer_norm(word: Array, position: Array, kind: Array, ids: Array, kinds: Array, gamma: Array,
                         beta: Array, eps: float = 1e-5) -> Array:  # fmt: skip
    return layer_norm(word[ids] + position[: ids.shape[1]] + kind[kinds], gamma, beta, eps)


for _l in LEADS:
    _norm = {"gamma": normal(7), "beta": normal(7)}
    add("bias_gelu", lambda x, bias: gelu(x + bias), x=normal(*_l, 7), bias=normal(7))
    add("bias_gelu_backward", bias_gelu_backward, tolerance=GRADIENT, dy=normal(*_l, 5), x=normal(*_l, 5),
        bias=normal(5))  # fmt: skip
    add("linear_gelu", lambda x, w, bias: gelu(x @ w.T + bias), x=normal(*_l, 5), w=normal(3, 5),
        bias=normal(3))  # fmt: skip
    add("linear_gelu", lambda x, w: gelu(x @ w.T), x=normal(*_l, 5), w=normal(3, 5))
    add("residual_layer_norm", lambda x, r, gamma, beta: {"y": layer_norm(x + r, gamma, beta), "s": x + r},
        x=normal(*_l, 7), r=normal(*_l, 7), **_norm)  # fmt: skip
    add("bias_residual_layer_norm", bias_residual_layer_norm, x=normal(*_l, 7), bias=normal(7),
        r=normal(*_l, 7), **_norm)  # fmt: skip
    add("bias_dropout_residual_layer_norm", bias_dropout_residual_layer_norm, x=normal(*_l, 7),
        bias=normal(7), keep=coin(*_l, 7), r=normal(*_l, 7), **_norm, p=0.25)  # fmt: skip
    add("dropout_residual_layer_norm", dropout_residual_layer_norm, x=normal(*_l, 7),
        r=normal(*_l, 7), **_norm, seed=np.uint64(7), stream=np.uint64(1))  # fmt: skip
    add("residual_chain", residual_chain, **{n: normal(*_l, 7) for n in "xabc"}, **_norm)
    add("rms_swiglu", lambda x, gamma: swiglu(rms_norm(x, gamma)), x=normal(*_l, 6), gamma=normal(6))
    add("dropout_residual_layer_norm_backward", dropout_residual_layer_norm_backward, dtypes=("f64", "f32"),
        dy=normal(*_l, 6), s=normal(*_l, 6), gamma=normal(6), mu=0.1 * normal(*_l),
        rstd=1 + 0.1 * normal(*_l), seed=np.uint64(3))  # fmt: skip
add("bias_gelu", lambda x, bias: gelu(x + bias), dtypes=("f16", "bf16"), x=normal(3, 5), bias=normal(5))
add("bias_residual_layer_norm", bias_residual_layer_norm, dtypes=("f16", "bf16"), x=normal(3, 8),
    bias=normal(8), r=normal(3, 8), gamma=normal(8), beta=normal(8), eps=2.0**-10)  # fmt: skip
add("rms_swiglu", lambda x, gamma, eps: swiglu(rms_norm(x, gamma, eps)), dtypes=("bf16",), x=normal(3, 6),
    gamma=normal(6), eps=2.0**-10)  # fmt: skip
for _b, _s, _pos in ((2, 3, 5), (1, 4, 4), (3, 1, 1)):
    add("embedding_layer_norm", embedding_layer_norm, word=normal(11, 6), position=normal(_pos, 6),
        kind=normal(2, 6), ids=integers(11, _b, _s), kinds=integers(2, _b, _s), gamma=normal(6),
        beta=normal(6))  # fmt: skip


# --- examples and workloads ------------------------------------------------------------------------


def msoftmax(x: Array, mask: Array, scale: float = 0.125) -> Array:
    return softmax(x * scale + mask)


def astitch(x: Array, y: Array) -> Array:
    c = (0.01 * (x**2).sum(-1, keepdims=True) + 1) ** 1.3 + y
    return c / np.sqrt((c**2).sum(-1, keepdims=True) + 1e-6)


def lamb_clipped(g: Array, **rest: Any) -> dict[str, Array]:
    return lamb(g=g, scale=float(clip_factor(g)), **rest)


def gelu_bwd_dbias(dy: Array, x: Array) -> dict[str, Array]:
    return bias_gelu_backward(dy, x, np.zeros(x.shape[1]))


def rope_both(q: Array, k: Array, cosine: Array, sine: Array) -> dict[str, Array]:
    return {"q_out": rope(q, cosine, sine), "k_out": rope(k, cosine, sine)}


def fm_gradient(v: Array, dy: Array) -> Array:
    return dy[:, None, None] * (v.sum(1, keepdims=True) - v)


def masked_softmax_dropout(x: Array, mask: Array, keep: Array) -> dict[str, Array]:
    prob = softmax(x * 0.125 + mask[:, None, None, :])
    return {"y": dropout(prob, keep, 0.1), "prob": prob}


def ocean(t: Array, s: Array, u: Array, v: Array, w: Array, depth: Array) -> dict[str, Array]:
    """UNESCO's equation of state as polynomials, lowest powers first."""
    pure = [999.842594, 6.793952e-2, -9.095290e-3, 1.001685e-4, -1.120083e-6, 6.536332e-9]
    first = [0.824493, -4.0899e-3, 7.6438e-5, -8.2467e-7, 5.3875e-9]
    root, bulk = [-5.72466e-3, 1.0227e-4, -1.6546e-6], [19652.21, 148.4206, -2.327105, 1.360477e-2]
    at = np.polynomial.polynomial.polyval
    surface = at(t, pure) + s * at(t, first) + np.abs(s) ** 1.5 * at(t, root) + 4.8314e-4 * s**2
    pressure = 0.1 * depth
    rho = surface / (1 - pressure / (at(t, bulk) + s * at(t, [54.6746, -0.603459]) + 3.2 * pressure))
    b = -9.81 * (rho - 1025) / 1025
    k = 1e-5 + 1e-2 / (1 + 5 * np.abs(b) / (u**2 + v**2 + w**2 + 1e-6)) ** 2
    change = 0.1 * k * (u + v - w)
    return {"rho": rho, "b": b, "k": k, "t2": t + change * (1 - t / 40), "s2": s + change * (1 - s / 42)}


def embedded(**inputs: Any) -> Array:
    return embedding_layer_norm(**inputs, eps=1e-12)


_rows = {"gamma": normal(7), "beta": normal(7)}
_bn = {"gamma": normal(2), "beta": normal(2), "running_mean": normal(2), "running_var": positive(2)}
_step = {"p": normal(9), "g": normal(9), "m": normal(9), "v": positive(9), "step": np.int64(3)}
_texts = {"ids": integers(11, 2, 3), "kinds": integers(2, 2, 3), "gamma": normal(6), "beta": normal(6)}
_texts |= {"word": normal(11, 6), "position": normal(5, 6), "kind": normal(2, 6)}
_edges = {"src": integers(6, 13), "dst": np.sort(integers(6, 13))}
_normed = {"x": normal(3, 7), "bias": normal(7), "r": normal(3, 7), **_rows}
_gates = {"gx": normal(3, 20), "gh": normal(3, 20), "bias": normal(20), "c": normal(3, 5)}

# Of each file in examples/ and in benchmarks/*/: inputs for its last operator, and the expectation.
_PROGRAMS: dict[str, tuple[dict[str, Any], Expect]] = {
    "adamw": (_step, adamw),
    "astitch_768": ({"x": normal(3, 7), "y": normal(3, 7)}, astitch),
    "batch_norm_train": ({"x": normal(3, 2, 4, 5), **_bn}, batch_norm_relu_train),
    "bias_gelu": ({"x": normal(3, 7), "bias": normal(7)}, lambda x, bias: gelu(x + bias)),
    "bias_residual_layer_norm": (_normed, bias_residual_layer_norm),
    "bn_train_relu": ({"x": normal(3, 2, 4, 5), **_bn}, batch_norm_relu_train),
    "dien_attention": (
        {"q": normal(3, 4), "k": normal(3, 5, 4), "keep": coin(3, 5), "w": normal(16), "bias": 0.25},
        interest_attention,
    ),
    "emb_sum_ln": (_texts, embedded),
    "embedding_layer_norm": (_texts, embedded),
    "gelu_bwd_dbias": ({"dy": normal(3, 5), "x": normal(3, 5)}, gelu_bwd_dbias),
    "gnn_segsum": (
        {"x": normal(6, 3), "w": normal(13), **_edges},
        lambda x, w, src, dst: summed(dst, w[:, None] * x[src], np.zeros_like(x)),
    ),
    "lamb": (_step, lamb_clipped),
    "ln_bwd": (
        {"dy": normal(3, 7), "x": normal(3, 7), "gamma": normal(7), "mu": normal(3), "rstd": positive(3)},
        layer_norm_backward_given,
    ),
    "ln_fwd": ({"x": normal(3, 7), **_rows}, layer_norm),
    "lstm_cell": (_gates, lstm_cell),
    "masked_softmax": ({"x": normal(2, 3, 5, 7), "mask": normal(2, 1, 1, 7)}, msoftmax),
    "mm_bias_gelu": (
        {"x": normal(3, 5), "w": normal(5, 4), "bias": normal(4)},
        lambda x, w, bias: gelu(x @ w + bias),
    ),
    "softmax": ({"x": normal(4, 7)}, lambda x: special.softmax(x, axis=-1)),
    "msoftmax": ({"x": normal(2, 3, 5, 7), "mask": normal(2, 1, 1, 7)}, msoftmax),
    "res_ln": (_normed, bias_residual_layer_norm),
    "residual_chain": ({**{n: normal(3, 7) for n in "xabc"}, **_rows}, residual_chain),
    "rms_swiglu": ({"x": normal(3, 6), "gamma": normal(6)}, lambda x, gamma: swiglu(rms_norm(x, gamma))),
    "rope": (
        {"q": normal(2, 3, 5, 6), "k": normal(2, 3, 5, 6), "cosine": normal(5, 3), "sine": normal(5, 3)},
        rope_both,
    ),
    "stencil": ({"start": normal(7), "dt": positive(4) * 0.2}, stencil3),
    "xent_fwd": ({"x": normal(5, 9), "target": integers(9, 5)}, cross_entropy),
    # benchmarks/ablation
    "fm_gradient": ({"v": normal(3, 5, 4), "dy": normal(3)}, fm_gradient),
    "group_norm_silu": (
        {"x": normal(2, 16, 3, 5), "gamma": normal(16), "beta": normal(16)},
        lambda x, gamma, beta: silu(group_norm(x, gamma, beta)),
    ),
    "masked_softmax_dropout": (
        {"x": normal(2, 3, 4, 7), "mask": normal(2, 7), "keep": coin(2, 3, 4, 7)},
        masked_softmax_dropout,
    ),
    "ocean": (
        {
            **{n: positive(3, 4, 5) * 9 for n in "ts"},
            **{n: normal(3, 4, 5) for n in "uvw"},
            "depth": positive(5),
        },
        ocean,
    ),
    "pair_distance": (
        {"x": normal(7, 3), "a": integers(7, 11), "b": integers(7, 11)},
        lambda x, a, b: ((x[a] - x[b]) ** 2).sum(-1),
    ),
    "scaled_log_softmax": (
        {"x": normal(4, 9), "bias": normal(9)},
        lambda x, bias: log_softmax((x + bias) * 0.5),
    ),
}
PROGRAMS: dict[str, tuple[dict[str, Any], Expect]] = {
    name: ({n: _typed(a, np.float32) for n, a in inputs.items()}, expect)
    for name, (inputs, expect) in _PROGRAMS.items()
}


# --- orders ----------------------------------------------------------------------------------------


def topk(x: Array, K: int) -> dict[str, Array]:
    at = np.lexsort((np.broadcast_to(np.arange(x.shape[-1]), x.shape), -x), axis=-1)[..., :K]
    return {"v": np.take_along_axis(x, at, -1), "i": at}


for _l in LEADS:
    for _t, _k in ((1, 1), (6, 2), (40, 5)):
        add("topk", topk, x=np.round(normal(*_l, _t), 1), given={"K": _k})
        add("sort", lambda x: np.sort(x, -1), x=np.round(normal(*_l, _t), 1))
        add("argsort", lambda x: np.argsort(x, -1, kind="stable"), x=np.round(normal(*_l, _t), 1))
add("topk", topk, dtypes=("f16", "bf16"), x=np.round(normal(3, 9), 1), given={"K": 4})
