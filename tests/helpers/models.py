"""Models at small sizes: programs, inputs, and what NumPy says of them in float64.

`MODELS` is a list of `Model`; whatever compiles graphs (the reference, targets, subsets of the layers) can be
tried on all of them.  The expected values are written here from scratch, gradients by differentiating
the forward function numerically, so nothing of polyfuse is involved.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special
from stdlib_cases import GRADIENT, gradient

import polyfuse as pf
from polyfuse.frontend_dsl.semantics.bind_sizes import bind_sizes
from polyfuse.ir import dtypes as dt
from polyfuse.ir.tensor_graph import TensorGraph

Array = npt.NDArray[Any]
FOLDER = Path(__file__).parents[2] / "examples" / "models"


@dataclass(frozen=True)
class Model:
    """One call of a model. `expect` maps the inputs, in float64, to results and inout parameters.

    `tolerance` is the relative and absolute error of the expected values themselves.
    """

    name: str
    program: Callable[[], pf.Program]
    op: str
    inputs: Mapping[str, Any]
    expect: Callable[..., dict[str, Any]] = field(repr=False)
    tolerance: float = 0.0

    def __str__(self) -> str:
        return self.name

    def graph(self) -> TensorGraph:
        """Its tensor graph, sizes open, at the dtypes of the inputs."""
        operator = self.program().op(self.op)
        kinds: dict[str, dt.DType | str] = {}
        for p in operator.signature.params:
            if p.dtype in dict(operator.signature.generics):
                found = (
                    dt.from_numpy(np.asarray(self.inputs[p.name]).dtype) if p.name in self.inputs else None
                )
                kinds |= {p.dtype: found} if found is not None else {}
        return operator.graph(dtypes=kinds)

    def sizes(self, graph: TensorGraph) -> dict[str, int]:
        """Its sizes at the shapes of the inputs."""
        return bind_sizes(graph, {n: np.shape(a) for n, a in self.inputs.items()})

    def expected(self) -> dict[str, Array]:
        """Results and inout parameters, by name."""
        wide = {
            n: np.asarray(a).astype("f8") if np.asarray(a).dtype.kind == "f" else np.asarray(a)
            for n, a in self.inputs.items()
        }
        with np.errstate(all="ignore"):
            return {n: np.asarray(a) for n, a in self.expect(**wide).items()}

    def call(self, **how: Any) -> dict[str, Array]:
        """Compiles and runs it on copies of the inputs; `how` goes to `pf.compile`."""
        arrays = {n: np.array(a) if np.ndim(a) else a for n, a in self.inputs.items()}
        compiled = pf.compile(self.program(), self.op, **how)
        found = compiled(**arrays)
        results = found if isinstance(found, tuple) else () if found is None else (found,)
        names = [r.name for r in compiled.signature.results]
        inouts = {p.name: arrays[p.name] for p in compiled.signature.params if p.inout}
        return {**dict(zip(names, map(np.asarray, results), strict=True)), **inouts}


MODELS: list[Model] = []
_rng = np.random.default_rng(20250301)


def normal(*shape: int, scale: float = 1.0) -> Array:
    return (_rng.standard_normal(shape) * scale).astype("f4")


def positive(*shape: int) -> Array:
    return _rng.uniform(0.2, 1.8, shape).astype("f4")


def coin(*shape: int) -> Array:
    return np.asarray(_rng.random(shape) < 0.6)


@cache
def parsed(name: str) -> pf.Program:
    return pf.parse(FOLDER / name)


@cache
def script(name: str) -> ModuleType:
    """A Python file of the examples, which are no package."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add(
    name: str,
    file: str,
    op: str,
    expect: Callable[..., dict[str, Any]],
    inputs: Mapping[str, Any],
    tolerance: float = 0.0,
) -> None:
    MODELS.append(Model(name, lambda: parsed(file), op, inputs, expect, tolerance))


# --- the transformer encoder layer -----------------------------------------------------------------------


def softmax(x: Array) -> Array:
    return special.softmax(x, axis=-1)


def standard(x: Array, eps: float) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def encoder(
    x: Array, mask: Array, w_qkv: Array, b_qkv: Array, w_out: Array, b_out: Array, gamma1: Array,
    beta1: Array, w_up: Array, b_up: Array, w_down: Array, b_down: Array, gamma2: Array, beta2: Array,
    eps: float = 1e-5,
) -> dict[str, Array]:  # fmt: skip
    """Head by head, with matrix products: all that encoder_layer_train returns."""
    heads, features = w_qkv.shape[1:3]
    q, k, v = (np.stack([x @ w_qkv[c, a].T + b_qkv[c, a] for a in range(heads)], 1) for c in range(3))
    p = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(features) + mask[:, None, None, :])
    context = np.moveaxis(p @ v, 1, 2)
    attended = context.reshape(*x.shape[:2], -1) @ w_out.reshape(len(w_out), -1).T
    s1 = attended + b_out + x
    h = standard(s1, eps) * gamma1 + beta1
    up = h @ w_up.T + b_up
    s2 = up * special.ndtr(up) @ w_down.T + b_down + h
    y = standard(s2, eps) * gamma2 + beta2
    saved = {"q": q, "k": k, "v": v, "p": p, "context": context, "s1": s1, "h": h, "up": up, "s2": s2}
    for n, s in ((1, s1), (2, s2)):
        saved |= {f"mu{n}": s.mean(-1), f"rstd{n}": 1 / np.sqrt(s.var(-1) + eps)}
    return {"y": y, **saved}


def encoder_parameters(heads: int, features: int, width: int, middle: int) -> dict[str, Array]:
    return {
        "w_qkv": normal(3, heads, features, width, scale=0.5),
        "b_qkv": normal(3, heads, features, scale=0.5),
        "w_out": normal(width, heads, features, scale=0.5),
        "b_out": normal(width, scale=0.5),
        "gamma1": positive(width),
        "beta1": normal(width, scale=0.5),
        "w_up": normal(middle, width, scale=0.5),
        "b_up": normal(middle, scale=0.5),
        "w_down": normal(width, middle, scale=0.5),
        "b_down": normal(width, scale=0.5),
        "gamma2": positive(width),
        "beta2": normal(width, scale=0.5),
    }


SAVED = ("q", "k", "v", "p", "context", "s1", "mu1", "rstd1", "h", "up", "s2", "mu2", "rstd2")
TAKEN = ("w_qkv", "w_out", "gamma1", "w_up", "w_down", "gamma2")


def encoder_backward_case(x: Array, mask: Array, weights: dict[str, Array]) -> dict[str, Any]:
    """Inputs of the backward operator: what the forward one saved is computed here, in float64."""
    wide = {n: a.astype("f8") for n, a in {"x": x, "mask": mask, **weights}.items()}
    forward = encoder(**wide)
    dy = normal(*x.shape).astype("f8")

    def expect(**_: Array) -> dict[str, Array]:
        found = {}
        for name in ("x", *weights):
            found[f"d{name}"] = gradient(lambda v, n=name: encoder(**{**wide, n: v})["y"], wide[name], dy)
        return found

    inputs = {"dy": dy, "x": wide["x"], **{n: wide[n] for n in TAKEN}, **{n: forward[n] for n in SAVED}}
    return {"inputs": inputs, "expect": expect}


for _n, _s, _a, _d, _e, _m in ((2, 5, 3, 2, 7, 11), (1, 1, 1, 1, 2, 1)):
    _x, _mask = normal(_n, _s, _e), np.where(coin(_n, _s), 0.0, -1e4).astype("f4")
    _weights = encoder_parameters(_a, _d, _e, _m)
    _inputs = {"x": _x, "mask": _mask, **_weights}
    _label = "x".join(map(str, (_n, _s, _a, _d, _e, _m)))
    add(f"encoder-{_label}", "transformer_encoder.pf", "encoder_layer", lambda **k: {"y": encoder(**k)["y"]},
        _inputs)  # fmt: skip
    add(f"encoder_train-{_label}", "transformer_encoder.pf", "encoder_layer_train", encoder, _inputs)
_weights = encoder_parameters(2, 2, 5, 7)
_back = encoder_backward_case(normal(2, 3, 5), np.float32([[0, 0, -1e4], [0, 0, 0]]), _weights)
add("encoder_backward-2x3x2x2x5x7", "transformer_encoder.pf", "encoder_layer_backward", _back["expect"],
    _back["inputs"], GRADIENT)  # fmt: skip
_f4 = {n: a.astype("f4") for n, a in _back["inputs"].items()}
add("encoder_backward_f32-2x3x2x2x5x7", "transformer_encoder.pf", "encoder_layer_backward", _back["expect"],
    _f4, 1e-5)  # fmt: skip


# --- recurrent models ------------------------------------------------------------------------------------

sigmoid = special.expit


def lstm(x: Array, w: Array, u: Array, bias: Array, h0: Array, c0: Array) -> dict[str, Array]:
    h, c, steps = h0, c0, []
    for step in x:
        i, f, g, o = np.split(step @ w.T + h @ u.T + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        steps.append(h)
    return {"h": np.stack(steps), "h_last": h, "c_last": c}


for _t, _b, _i, _h in ((5, 3, 4, 2), (1, 2, 1, 3), (3, 1, 2, 1)):
    add(f"lstm-{_t}x{_b}x{_i}x{_h}", "lstm.pf", "lstm", lstm, {
        "x": normal(_t, _b, _i), "w": normal(4 * _h, _i), "u": normal(4 * _h, _h), "bias": normal(4 * _h),
        "h0": normal(_b, _h), "c0": normal(_b, _h),
    })  # fmt: skip


def dien_weights(q: Array, k: Array, keep: Array, w: Array, bias: Array) -> Array:
    wide = np.broadcast_to(q[:, None], k.shape)
    score = np.concatenate([wide, k, wide - k, wide * k], -1) @ w + bias
    return softmax(np.where(keep, score, -1e4))


def dien_attention(q: Array, k: Array, keep: Array, w: Array, bias: Array) -> dict[str, Array]:
    return {"y": np.stack([p @ rows for p, rows in zip(dien_weights(q, k, keep, w, bias), k, strict=True)])}


def gru(x: Array, w: Array, b: Array, u: Array, c: Array, weight: Array) -> Array:
    """As torch.nn.GRU from a state of zeros, with update gates times `weight`, which is [B, T]."""
    h, steps = np.zeros((len(x), u.shape[1])), []
    for t in range(x.shape[1]):
        xr, xz, xn = np.split(x[:, t] @ w.T + b, 3, axis=1)
        hr, hz, hn = np.split(h @ u.T + c, 3, axis=1)
        z = sigmoid(xz + hz) * weight[:, t, None]
        h = (1 - z) * h + z * np.tanh(xn + sigmoid(xr + hr) * hn)
        steps.append(h)
    return np.stack(steps, 1)


def dien(
    x: Array, q: Array, keep: Array, w1: Array, b1: Array, u1: Array, c1: Array, w: Array, bias: Array,
    w2: Array, b2: Array, u2: Array, c2: Array,
) -> dict[str, Array]:  # fmt: skip
    interest = gru(x, w1, b1, u1, c1, np.ones(x.shape[:2]))
    p = dien_weights(q, interest, keep, w, bias)
    return {"y": gru(interest, w2, b2, u2, c2, p)[:, -1], "p": p}


for _b, _t, _h in ((3, 7, 5), (2, 1, 1), (1, 4, 3)):
    _keep = coin(_b, _t)
    _keep[0] = _t == 1  # nobody: all weights alike
    add(f"dien_attention-{_b}x{_t}x{_h}", "dien.pf", "dien_attention", dien_attention, {
        "q": normal(_b, _h), "k": normal(_b, _t, _h), "keep": _keep, "w": normal(4 * _h),
        "bias": np.float32(0.3),
    })  # fmt: skip
    add(f"dien-{_b}x{_t}x{_h}", "dien.pf", "dien", dien, {
        "x": normal(_b, _t, 4), "q": normal(_b, _h), "keep": _keep, "w1": normal(3 * _h, 4),
        "b1": normal(3 * _h), "u1": normal(3 * _h, _h), "c1": normal(3 * _h), "w": normal(4 * _h),
        "bias": np.float32(-0.2), "w2": normal(3 * _h, _h), "b2": normal(3 * _h), "u2": normal(3 * _h, _h),
        "c2": normal(3 * _h),
    })  # fmt: skip


# --- the loss of a detector ------------------------------------------------------------------------------


def yolo(
    x: Array, box: Array, object: Array, ignore: Array, kind: Array, anchor: Array,
    box_weight: float = 5.0, empty_weight: float = 0.5,
) -> dict[str, Any]:  # fmt: skip
    """Cell by cell."""
    boxes = there = nothing = classes = 0.0
    for at in np.ndindex(object.shape):
        z = x[at]
        if object[at]:
            t, (aw, ah) = box[at], anchor[at[1]]
            off = (sigmoid(z[0]) - t[0]) ** 2 + (sigmoid(z[1]) - t[1]) ** 2
            off += (z[2] - np.log(t[2] / aw)) ** 2 + (z[3] - np.log(t[3] / ah)) ** 2
            boxes += (2 - t[2] * t[3]) * off
            there -= np.log(sigmoid(z[4]))
            truth = np.arange(len(z) - 5) == kind[at]
            classes -= np.where(truth, special.log_expit(z[5:]), special.log_expit(-z[5:])).sum()
        elif not ignore[at]:
            nothing -= np.log(sigmoid(-z[4]))
    count = max(int(object.sum()), 1)
    terms = {
        "box_loss": box_weight * boxes / count,
        "object_loss": (there + empty_weight * nothing) / count,
        "class_loss": classes / count,
    }
    return {"loss": sum(terms.values()), **terms}


for _shape, _c, _some in (((2, 3, 4, 5), 7, True), ((1, 1, 1, 3), 1, True), ((2, 1, 2, 2), 3, False)):
    _object = coin(*_shape) if _some else np.zeros(_shape, bool)
    _box = np.where(_object[..., None], positive(*_shape, 4) / 2, 0).astype("f4")
    _label = "x".join(map(str, (*_shape, _c))) + ("" if _some else "-empty")
    add(f"yolo-{_label}", "yolo_loss.pf", "yolo_loss", yolo, {
        "x": normal(*_shape, 5 + _c), "box": _box, "object": _object, "ignore": coin(*_shape),
        "kind": np.asarray(_rng.integers(0, _c, _shape), dtype="i4"), "anchor": positive(_shape[1], 2),
    })  # fmt: skip


# --- optimizers of many tensors --------------------------------------------------------------------------

Shapes = Sequence[tuple[int, ...]]


def moments(g: Array, m: Array, v: Array, step: int) -> tuple[Array, Array, Array, Array]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return m, v, m / (1 - 0.9**step), v / (1 - 0.999**step)


def adamw(step: int, lr: float = 1e-3, wd: float = 0.01, **tensors: Array) -> dict[str, Array]:
    found = {}
    for k in range(len(tensors) // 4):
        p, g, m, v = (tensors[f"{n}{k}"] for n in "pgmv")
        m, v, mhat, vhat = moments(g, m, v, int(step))
        found |= {f"p{k}": p - lr * wd * p - lr * mhat / (np.sqrt(vhat) + 1e-8), f"m{k}": m, f"v{k}": v}
    return found


def lamb(step: int, lr: float = 1e-3, limit: float = 1.0, **tensors: Array) -> dict[str, Any]:
    count = len(tensors) // 4
    norm = np.linalg.norm(np.concatenate([tensors[f"g{k}"].ravel() for k in range(count)]))
    found: dict[str, Any] = {"norm": norm}
    for k in range(count):
        p, g, m, v = (tensors[f"{n}{k}"] for n in "pgmv")
        m, v, mhat, vhat = moments(g * min(1.0, limit / (norm + 1e-6)), m, v, int(step))
        u = mhat / (np.sqrt(vhat) + 1e-6) + 0.01 * p
        ratio = np.linalg.norm(p) / np.linalg.norm(u) if p.any() and u.any() else 1.0
        found |= {f"p{k}": p - lr * ratio * u, f"m{k}": m, f"v{k}": v}
    return found


def optimizer_inputs(shapes: Shapes, scale: float = 1.0) -> dict[str, Any]:
    found: dict[str, Any] = {"step": np.int64(3)}
    for k, shape in enumerate(shapes):
        found |= {f"p{k}": normal(*shape), f"g{k}": normal(*shape, scale=scale), f"m{k}": normal(*shape)}
        found[f"v{k}"] = positive(*shape)
    return found


def optimizer_cases() -> None:
    module = script("optimizer")
    few = [*module.layers(1, 4, 7), (1,), (3, 1, 2)]
    many = {"50": module.layers(10, 4, 6), "200": module.encoder(12, 2, 5, 3)}
    for name, expect in (("adamw", adamw), ("lamb", lamb)):
        for label, shapes in {"few": few, **many}.items():
            program = cache(lambda n=name, s=shapes: getattr(module, n)(s))
            inputs = optimizer_inputs(shapes, 0.01 if label == "few" else 1.0)
            MODELS.append(Model(f"{name}-{label}", program, f"{name}_all", inputs, expect))


optimizer_cases()


# --- many operators --------------------------------------------------------------------------------------


def forty(**tensors: Array) -> dict[str, Array]:
    found = {}
    for k in range(len(tensors) // 2):
        a, b = tensors[f"a{k}"], tensors[f"b{k}"]
        found |= {f"y{k}": np.clip(1.5 * a + 0.1, 0, None) * b, f"s{k}": np.exp(b / 10) @ np.ones(b.shape[1])}
    return found


def branches(**tensors: Array) -> dict[str, Array]:
    kinds: list[Callable[[Array, Array], Array]] = [
        lambda x, w: (x + w) * special.ndtr(x + w),
        lambda x, w: softmax(x * w),
        lambda x, w: standard(x, 1e-5) * w + w,
        lambda x, w: np.tanh(x * w + 0.5),
        lambda x, w: x * w / np.sqrt((x * x).sum(1, keepdims=True) + 1e-6),
    ]
    pairs = [(tensors[f"x{k}"], tensors[f"w{k}"]) for k in range(len(tensors) // 2)]
    return {f"y{k}": kinds[k % 5](x, w) for k, (x, w) in enumerate(pairs)}


def losses(**tensors: Array) -> dict[str, Any]:
    pairs = [(tensors[f"x{k}"], tensors[f"z{k}"]) for k in range(len(tensors) // 2)]
    parts = [-(z * special.log_expit(x) + (1 - z) * special.log_expit(-x)).mean() for x, z in pairs]
    return {"loss": sum(parts), **{f"loss{k}": part for k, part in enumerate(parts)}}


def added(**tensors: Array) -> dict[str, Array]:
    return {"y": np.sum([a.sum(1) for a in tensors.values()], axis=0)}


def casts(**tensors: Array) -> dict[str, Array]:
    return {n.replace("x", "y"): a for n, a in tensors.items()}


def many_operators_cases() -> None:
    module = script("many_operators")
    pair = {f"{n}{k}": normal(5, 7) for k in range(20) for n in "ab"}
    shapes = [(3, 5), (1, 1), (6, 4), (3, 5), (2, 9), (3, 5), (5, 2)]
    rows = {n: a for k, s in enumerate(shapes) for n, a in ((f"x{k}", normal(*s)), (f"w{k}", normal(s[1])))}
    flat = [(11, 1), (3, 5), (2, 3, 4)]
    bits = {f"x{k}": normal(*s) for k, s in enumerate(flat)}
    bits |= {f"z{k}": coin(*s).astype("f4") for k, s in enumerate(flat)}
    trio = {f"{n}{k}": normal(4, 9) for k in range(3) for n in "ab"}
    seven = {f"x{k}": normal(5, 3) for k in range(7)}
    cases = [
        ("forty", cache(lambda: module.forty(20, 5, 7)), pair, forty),
        ("branches", cache(lambda: module.branches(shapes)), rows, branches),
        ("losses", cache(lambda: module.losses(flat)), bits, losses),
        ("added", cache(lambda: module.added(3, 4, 9)), trio, added),
        ("casts", cache(lambda: module.casts(7, 5, 3)), seven, casts),
    ]
    for name, program, inputs, expect in cases:
        MODELS.append(Model(name, program, name, inputs, expect))


many_operators_cases()
