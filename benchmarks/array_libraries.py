"""What the models are written in: few functions that PyTorch and JAX both have, each as its users write it.

`numpy`-like names where the two agree.  `scan` is a Python loop in PyTorch, which its compiler unrolls, and
`lax.scan` in JAX: there is no other way that either compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Value = Any
Step = Callable[[Any, Any], tuple[Any, Any]]


class Library(Protocol):
    """Functions of arrays that models need beside operators, `.sum` and indexing."""

    def exp(self, x: Value) -> Value: ...
    def log(self, x: Value) -> Value: ...
    def sqrt(self, x: Value) -> Value: ...
    def rsqrt(self, x: Value) -> Value: ...
    def tanh(self, x: Value) -> Value: ...
    def abs(self, x: Value) -> Value: ...
    def erf(self, x: Value) -> Value: ...
    def relu(self, x: Value) -> Value: ...
    def sigmoid(self, x: Value) -> Value: ...
    def gelu(self, x: Value) -> Value: ...
    def softmax(self, x: Value) -> Value: ...
    def at_most(self, x: Value, bound: float) -> Value: ...
    def at_least(self, x: Value, bound: float) -> Value: ...
    def where(self, condition: Value, yes: Value, no: Value) -> Value: ...
    def broadcast(self, x: Value, shape: Sequence[int]) -> Value: ...
    def zeros_like(self, x: Value) -> Value: ...
    def ones_like(self, x: Value) -> Value: ...
    def mean(self, x: Value) -> Value: ...
    def variance(self, x: Value) -> Value: ...
    def half(self, x: Value) -> Value: ...
    def permute(self, x: Value, axes: Sequence[int]) -> Value: ...
    def concatenate(self, parts: Sequence[Value]) -> Value: ...
    def stack(self, parts: Sequence[Value], axis: int = 0) -> Value: ...
    def linear(self, x: Value, w: Value, bias: Value = None) -> Value: ...
    def layer_norm(self, x: Value, gamma: Value, beta: Value) -> Value: ...
    def cross_entropy(self, x: Value, z: Value) -> Value: ...
    def count_like(self, x: Value, length: int) -> Value: ...
    def scan(self, step: Step, state: Any, xs: Any, length: int) -> tuple[Any, Any]: ...


class Torch:
    """PyTorch: its functional forms, which its compiler knows best."""

    def __init__(self, torch: Any) -> None:
        f = torch.nn.functional
        self.exp, self.log, self.sqrt, self.rsqrt = torch.exp, torch.log, torch.sqrt, torch.rsqrt
        self.tanh, self.abs, self.erf, self.relu = torch.tanh, torch.abs, torch.erf, torch.relu
        self.sigmoid, self.gelu, self.where = torch.sigmoid, f.gelu, torch.where
        self.concatenate, self.linear = lambda parts: torch.cat(parts, -1), f.linear
        self.stack, self.permute, self.broadcast = torch.stack, torch.permute, torch.broadcast_to
        self.zeros_like, self.ones_like = torch.zeros_like, torch.ones_like
        self._torch, self._f = torch, f

    def softmax(self, x: Value) -> Value:
        return self._f.softmax(x, -1)

    def at_most(self, x: Value, bound: float) -> Value:
        return x.clamp(max=bound)

    def at_least(self, x: Value, bound: float) -> Value:
        return x.clamp(min=bound)

    def mean(self, x: Value) -> Value:
        return x.mean(-1, keepdim=True)

    def variance(self, x: Value) -> Value:
        return x.var(-1, keepdim=True, correction=0)

    def half(self, x: Value) -> Value:
        return x.to(self._torch.float16)

    def layer_norm(self, x: Value, gamma: Value, beta: Value) -> Value:
        return self._f.layer_norm(x, x.shape[-1:], gamma, beta)

    def cross_entropy(self, x: Value, z: Value) -> Value:
        return self._f.binary_cross_entropy_with_logits(x, z)

    def count_like(self, x: Value, length: int) -> Value:
        return self._torch.arange(length, device=x.device)

    def scan(self, step: Step, state: Any, xs: Any, length: int) -> tuple[Any, Any]:
        made = []
        for t in range(length):
            state, out = step(state, tuple(x[t] for x in xs))
            made.append(out)
        return state, self._torch.stack(made)


class Jax:
    """JAX: jax.numpy and jax.nn."""

    def __init__(self, jax: Any) -> None:
        n, nn = jax.numpy, jax.nn
        self.exp, self.log, self.sqrt, self.rsqrt = n.exp, n.log, n.sqrt, jax.lax.rsqrt
        self.tanh, self.abs, self.erf, self.relu = n.tanh, n.abs, jax.scipy.special.erf, nn.relu
        self.sigmoid, self.softmax, self.where = nn.sigmoid, nn.softmax, n.where
        self.stack, self.permute, self.broadcast = n.stack, n.transpose, n.broadcast_to
        self.zeros_like, self.ones_like = n.zeros_like, n.ones_like
        self._jax, self._n = jax, n

    def gelu(self, x: Value) -> Value:
        return self._jax.nn.gelu(x, approximate=False)

    def at_most(self, x: Value, bound: float) -> Value:
        return self._n.minimum(x, bound)

    def at_least(self, x: Value, bound: float) -> Value:
        return self._n.maximum(x, bound)

    def mean(self, x: Value) -> Value:
        return x.mean(-1, keepdims=True)

    def variance(self, x: Value) -> Value:
        return x.var(-1, keepdims=True)

    def half(self, x: Value) -> Value:
        return x.astype(self._n.float16)

    def concatenate(self, parts: Sequence[Value]) -> Value:
        return self._n.concatenate(parts, -1)

    def linear(self, x: Value, w: Value, bias: Value = None) -> Value:
        return x @ w.T if bias is None else x @ w.T + bias

    def layer_norm(self, x: Value, gamma: Value, beta: Value) -> Value:
        return (x - self.mean(x)) * self.rsqrt(self.variance(x) + 1e-5) * gamma + beta

    def cross_entropy(self, x: Value, z: Value) -> Value:
        return (self._n.maximum(x, 0) - x * z + self._n.log1p(self._n.exp(-self._n.abs(x)))).mean()

    def count_like(self, x: Value, length: int) -> Value:
        return self._n.arange(length)

    def scan(self, step: Step, state: Any, xs: Any, length: int) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self._jax.lax.scan(step, state, xs)
        return found


def library(name: str) -> Library:
    """By name: "torch" or "jax". Raises ImportError where it is missing."""
    if name == "torch":
        import torch

        return Torch(torch)
    import jax

    return Jax(jax)
