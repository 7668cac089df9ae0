"""`pf.torch.op`: operators of torch, in modules, compiled and exported models, with gradients."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polyfuse as pf
from polyfuse.diagnostics import ArgumentError

LN = pf.torch.op(pf.stdlib.layer_norm)
SCALE = "op scale(x: f32[N, M], a: f32 = 2.0) -> (y: f32[N, M], s: f32[N]) {\n" \
    " y[i, j] = a * x[i, j]\n s[i] = sum[j](x[i, j])\n}"  # fmt: skip
STEP = "op step(inout p: f32[N], g: f32[N], lr: f32) { p[i] = p[i] - lr * g[i] }"


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def same_gradients(mine: Callable[..., Any], theirs: Callable[..., Any], *inputs: torch.Tensor) -> None:
    grads = []
    for f in (mine, theirs):
        y = f(*inputs)
        y = y[0] if isinstance(y, tuple) else y
        w = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        grads.append((y.detach(), *torch.autograd.grad((y * w).sum(), inputs)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


class Layer(torch.nn.Module):
    """A module whose forward is an operator between others of torch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(width, width)
        self.gamma, self.beta = (torch.nn.Parameter(t(width)) for t in (torch.ones, torch.zeros))
        self.norm = LN

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.inner(x), self.gamma, self.beta)
        return torch.relu(found)


def plain(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.layer_norm(layer.inner(x), layer.gamma.shape, layer.gamma, layer.beta, 1e-5))


# --- what an operator of torch has to do --------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_opcheck(grad: bool) -> None:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, requires_grad=grad)

    torch.library.opcheck(LN.overload, (tensor(3, 8), tensor(8), tensor(8), 1e-5))
    torch.library.opcheck(pf.torch.op(SCALE).overload, (tensor(3, 4), 1.5))


def test_opcheck_of_what_writes() -> None:
    step = pf.torch.op(STEP, name="tests::step")
    assert str(step.overload._schema) == "tests::step(Tensor(a!) p, Tensor g, float lr) -> ()"
    torch.library.opcheck(step.overload, (torch.ones(4), torch.ones(4), 0.5))


def test_symbols_stay_symbols() -> None:
    """One graph for all sizes, and extents that are no parameters' own."""
    pairs = pf.torch.op("op pairs(x: f32[2 * N, M], w: f32[M]) -> (y: f32[N, M + 1]) {\n"
        " y[i, j] = x[2 * i, min(j, M - 1)] * w[min(j, M - 1)]\n}")  # fmt: skip
    compiled = torch.compile(
        lambda x, w: pairs(x * 1.0, w), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for n in (2, 6, 10):
        x, w = torch.randn(n, 3), torch.randn(3)
        assert torch.equal(compiled(x, w), pairs(x, w)) and pairs(x, w).shape == (n // 2, 4)
    exported = torch.export.export(
        Layer(8), (torch.randn(3, 8),), dynamic_shapes=({0: torch.export.Dim("B")},)
    )
    assert exported.module()(torch.randn(11, 8)).shape == (11, 8)


def test_gradients_are_those_of_torch() -> None:
    x, g, b = leaf(5, 8), leaf(8), leaf(8)
    same_gradients(LN, lambda x, g, b: F.layer_norm(x, (8,), g, b, 1e-5), x, g, b)
    same_gradients(pf.torch.op(pf.stdlib.softmax), lambda x: torch.softmax(x, -1), x)
    same_gradients(pf.torch.op(pf.stdlib.gelu), F.gelu, x)
    assert torch.autograd.gradcheck(LN, (x, g, b))
    assert torch.autograd.gradgradcheck(LN, (leaf(2, 3), leaf(3), leaf(3)))


def test_some_gradients_only() -> None:
    x, g, b = leaf(5, 8).detach(), leaf(8), leaf(8).detach()
    same_gradients(lambda g: LN(x, g, b), lambda g: F.layer_norm(x, (8,), g, b, 1e-5), g)


def test_a_size_that_no_argument_of_the_backward_says() -> None:
    pick = pf.torch.op("op pick(x: f64[N, M], k: i64[N]) -> (y: f64[N]) { y[i] = x[i, k[i]] }")
    k = torch.tensor([0, 4, 2])
    same_gradients(lambda x: pick(x, k), lambda x: x[torch.arange(3), k], leaf(3, 5))
    compiled = torch.compile(lambda x: pick(x * 1, k), fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (5, 7):
        same_gradients(compiled, lambda x: x[torch.arange(3), k], leaf(3, m))
    pool = pf.torch.op(pf.stdlib.max_pool)
    same_gradients(lambda x: pool(x, K=3, S=2), lambda x: F.max_pool2d(x, 3, 2), leaf(1, 2, 7, 9))


def test_a_number_that_is_learnt() -> None:
    scale = pf.torch.op(SCALE)
    a, x = torch.tensor(3.0, requires_grad=True), torch.randn(2, 3)
    y, s = scale(x, a)
    assert torch.equal(y, 3 * x)
    torch.testing.assert_close(s.detach(), x.sum(1))
    y.sum().backward()
    torch.testing.assert_close(a.grad, x.sum())


def test_results_that_nobody_uses_and_those_of_integers() -> None:
    top = pf.torch.op("op top(x: f64[N, M]) -> (y: f64[N], k: i64[N]) {\n"
        " y[i] = max[j](x[i, j])\n k[i] = argmax[j](x[i, j])\n}")  # fmt: skip
    x = leaf(3, 4)
    _, k = top(x)
    assert not k.requires_grad and torch.equal(k, x.argmax(1))
    same_gradients(top, lambda x: x.amax(1), x)
    both = pf.torch.op(
        "op both(x: f64[N]) -> (y: f64[N], z: f64[N]) { y[i] = 2.0 * x[i]\n z[i] = x[i] * x[i] }"
    )
    v = leaf(4)
    both(v)[1].sum().backward()
    torch.testing.assert_close(v.grad, 2 * v.detach())


def test_a_training_step_compiled_is_the_one_that_is_not() -> None:
    layer, x = Layer(8), torch.randn(4, 8)
    compiled = torch.compile(layer, fullgraph=True)
    w = torch.randn(4, 8)
    grads = [
        torch.autograd.grad((run(x) * w).sum(), tuple(layer.parameters()))
        for run in (compiled, layer, lambda x: plain(layer, x))
    ]
    for mine, eager, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, eager)
        torch.testing.assert_close(eager, theirs)


def test_writes_inside_of_compiled_models() -> None:
    step, plain = pf.torch.op(STEP), pf.compile(STEP)

    def update(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        q = p * 1
        step(q, g, 0.5)
        plain(q, g, 0.5)
        plain(p, g, 0.25)
        return q

    p, g = torch.ones(4), torch.ones(4)
    assert torch.compile(update, fullgraph=True)(p, g).tolist() == [0.0] * 4 and p.tolist() == [0.75] * 4


def test_compiled_functions_inside_of_compiled_models() -> None:
    f = pf.compile(SCALE)
    for _ in range(2):  # before it has ever been called, and when it knows the call
        model = torch.compile(lambda x: f(x + 1, a=3.0)[0] * 2, fullgraph=True)
        x = torch.randn(2, 3)
        torch.testing.assert_close(model(x), 6 * (x + 1))
        f(x, 3.0)
        torch._dynamo.reset()


def test_modules_are_copied_and_saved() -> None:
    layer, x = Layer(8), torch.randn(2, 8)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(made(x), layer(x))
    other, file = Layer(8), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), layer(x))
    file = io.BytesIO()
    torch.export.save(torch.export.export(layer, (x,)), file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), layer(x))


def test_autocast_gives_one_type() -> None:
    layer, x = Layer(8), torch.randn(4, 8)
    for run in (layer, torch.compile(layer, fullgraph=True)):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        assert y.dtype == torch.float32  # the parameters are
        torch.testing.assert_close(y, plain(layer, x), atol=0.05, rtol=0.05)
        y.sum().backward()
        assert layer.gamma.grad is not None
    fixed = pf.torch.op("op plus(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + 1.0 }")
    with torch.autocast("cpu", torch.bfloat16):
        assert fixed(torch.ones(3, dtype=torch.bfloat16)).tolist() == [2.0] * 3


def test_subclasses_and_modes_see_one_operator() -> None:
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, g, b = torch.randn(2, 8), torch.ones(8), torch.zeros(8)
    with Mode():
        LN(x, g, b)
    assert seen == [LN.overload]
    mine = type("Mine", (torch.Tensor,), {})
    assert type(LN(x.as_subclass(mine), g, b)) is mine


def test_torch_func_grad() -> None:
    x, g, b = leaf(3, 8).detach(), leaf(8).detach(), leaf(8).detach()
    mine = torch.func.grad(lambda x: LN(x, g, b).square().sum())(x)
    torch.testing.assert_close(mine, torch.func.grad(lambda x: F.layer_norm(x, (8,), g, b).square().sum())(x))


def test_levels_of_torch_func_around_one_another() -> None:
    softmax, x = pf.torch.op(pf.stdlib.softmax), leaf(2, 3).detach()

    def loss(f: Any) -> Any:
        return lambda x: (f(x) ** 2).sum()

    rows = (softmax, lambda x: torch.softmax(x, -1))
    mine, theirs = (torch.func.jacrev(torch.func.jacrev(loss(f)))(x) for f in rows)
    torch.testing.assert_close(mine, theirs)
    y = x.clone().requires_grad_()
    mine, theirs = (torch.autograd.grad(torch.func.grad(loss(f))(y).square().sum(), y)[0] for f in rows)
    torch.testing.assert_close(mine, theirs)


def test_tangents_are_refused() -> None:
    softmax, x = pf.torch.op(pf.stdlib.softmax), torch.randn(2, 3)
    plain = pf.compile(pf.stdlib.softmax)
    for f in (softmax, plain):
        for call in (
            lambda f=f: torch.func.jvp(f, (x,), (x,)),
            lambda f=f: torch.func.jacfwd(f)(x),
            lambda: torch.func.hessian(lambda x: softmax(x).square().sum())(x),
        ):
            with pytest.raises(ArgumentError) as error:
                call()
            assert error.value.code == "PF421"


# --- backwards by hand, and none ----------------------------------------------------------------------------

TWICE = "op twice(x: f64[N]) -> (y: f64[N]) { y[i] = 2.0 * x[i] }"


def test_backward_by_hand() -> None:
    marked = "op twice_backward(dy: f64[N], x: f64[N]) -> (dx: f64[N]) { dx[i] = 7.0 * dy[i] + x[i] }"

    def python(dy: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"x": 7 * dy + y / 2}

    for backward in (marked, pf.compile(marked), pf.torch.op(marked), python):
        x = leaf(4)
        pf.torch.op(TWICE, backward=backward)(x).sum().backward()
        torch.testing.assert_close(x.grad, 7 + x.detach())


def test_a_backward_that_adds_up() -> None:
    lookup = pf.torch.op(pf.stdlib.embedding, backward=pf.stdlib.embedding_backward)
    table, index = leaf(5, 3), torch.tensor([1, 3, 1])
    name = lookup.function.signature.params
    args = [table if p.dtype == "F" and p.extents else index for p in name]
    w = torch.randn(3, 3, dtype=torch.float64)
    (lookup(*args) * w).sum().backward()
    torch.testing.assert_close(table.grad, torch.autograd.grad((table[index] * w).sum(), table)[0])


@pytest.mark.parametrize(
    "backward",
    [
        "op b(dz: f64[N]) -> (dx: f64[N]) { dx[i] = dz[i] }",
        "op b(dy: f64[N]) -> (g: f64[N]) { g[i] = dy[i] }",
    ],
)
def test_names_that_do_not_fit(backward: str) -> None:
    with pytest.raises(ArgumentError) as error:
        pf.torch.op(TWICE, backward=backward)
    assert error.value.code == "PF804"


def test_names_that_torch_cannot_have() -> None:
    for name in ("my norm", "a::b::c", "a::"):
        with pytest.raises(ArgumentError) as error:
            pf.torch.op(TWICE, name=name)
        assert error.value.code == "PF804"


def test_what_has_no_gradient_says_so() -> None:
    step, f = pf.torch.op(STEP), pf.compile(TWICE)
    p, g = torch.ones(3), torch.ones(3, requires_grad=True)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    calls = (lambda: step(p, g, 0.1), "argument 'g' of step"), (lambda: f(w), "pf.torch.op(f) has one")
    for call, words in calls:
        with pytest.raises(ArgumentError) as error:
            call()
        assert error.value.code == "PF420" and words in str(error.value)
    with pytest.raises(Exception, match="PF420"):
        torch.compile(lambda x: f(x), fullgraph=True)(w)
    with pytest.raises(Exception, match="PF805"):
        torch.compile(lambda x, y: f(x, out=y), fullgraph=True)(w.detach(), torch.empty_like(w))
    with torch.no_grad():
        step(p, g, 0.5)
    assert p.tolist() == [0.5] * 3


def test_hints_for_an_operator_that_writes_an_argument_work() -> None:
    p, g = torch.ones(3, requires_grad=True), torch.ones(3)
    for backward in (None, lambda g: {"g": g}):
        with pytest.raises(ArgumentError) as error:
            pf.torch.op(STEP, backward=backward)(p, g, 0.5)
        told = str(error.value)
        assert "it writes 'p' in place" in told and "a result in place of inout" in told
        assert "p.detach()" in told and "backward=" not in told
    pf.torch.op(STEP)(p.detach(), g, 0.5)
    assert p.tolist() == [0.5] * 3
    step = STEP.replace("inout p", "p").replace(") {", ") -> (q: f32[N]) {").replace("p[i] =", "q[i] =")
    pf.torch.op(step)(p, g, 0.5).sum().backward()
    assert p.grad is not None and p.grad.tolist() == [1.0] * 3


# --- vmap ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "in_dims", [(0, None, None), (1, None, None), (0, 0, None), (2, 1, 0), (None, None, 0)]
)
def test_vmap(in_dims: tuple[Any, ...]) -> None:
    def tensor(dim: int | None, *shape: int) -> torch.Tensor:
        return torch.randn(*shape if dim is None else (*shape[:dim], 5, *shape[dim:]), dtype=torch.float64)

    args = [tensor(d, *s) for d, s in zip(in_dims, [(3, 8), (8,), (8,)], strict=True)]
    theirs = torch.vmap(lambda x, g, b: F.layer_norm(x, (8,), g, b), in_dims)(*args)
    torch.testing.assert_close(torch.vmap(LN, in_dims)(*args), theirs)


def test_vmap_of_results_that_do_not_depend_and_of_numbers() -> None:
    scale = pf.torch.op(SCALE)
    x, a = torch.randn(3, 4), torch.tensor([1.0, 2.0])
    y, s = torch.vmap(scale, (None, 0))(x, a)
    torch.testing.assert_close(y, torch.stack([x, 2 * x]))
    torch.testing.assert_close(s, x.sum(1).expand(2, 3))


def test_vmap_of_gathers_scatters_and_recurrences() -> None:
    table, index = torch.randn(6, 3), torch.randint(6, (4, 5))
    lookup = pf.torch.op("op lookup(t: f32[V, D], k: i64[N]) -> (y: f32[N, D]) { y[i, d] = t[k[i], d] }")
    assert torch.equal(torch.vmap(lookup, (None, 0))(table, index), table[index])
    count = pf.torch.op("op count(k: i64[N], inout c: f32[V]) { c[k[i]] += 1.0 }")
    counts = torch.zeros(4, 6)
    torch.vmap(lambda k, c: (count(k, c), c)[1])(index, counts)
    assert torch.equal(counts, F.one_hot(index, 6).sum(1).float())
    with pytest.raises(ArgumentError) as error:
        torch.vmap(lambda k, c: (count(k, c), c)[1], (0, None))(index, torch.zeros(6))
    assert error.value.code == "PF806"
    sums = pf.torch.op(
        "op sums(x: f64[N]) -> (y: f64[N]) {\n y[0] = x[0]\n y[i] = y[i - 1] + x[i] for i in 1..N\n}"
    )
    x = torch.randn(3, 7, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(sums)(x), x.cumsum(1))


def test_gradients_of_batches_and_batches_of_gradients() -> None:
    x, g, b = torch.randn(4, 3, 8), torch.randn(8), torch.randn(8)

    def loss(norm: Any) -> Any:
        return lambda x, g: norm(x, g, b).square().sum()

    def theirs(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (8,), g, b)

    for transform in (
        lambda f: torch.vmap(torch.func.grad(f, (0, 1)), (0, None)),
        lambda f: torch.func.grad(lambda x, g: torch.vmap(f, (0, None))(x, g).sum(), (0, 1)),
        lambda f: torch.func.jacrev(lambda x, g: f(x[0], g)),
    ):
        for mine, right in zip(transform(loss(LN))(x, g), transform(loss(theirs))(x, g), strict=True):
            torch.testing.assert_close(mine, right, atol=1e-4, rtol=1e-4)
    twice = torch.vmap(torch.vmap(LN, (0, None, None)), (0, None, None))(x[None], g, b)
    torch.testing.assert_close(twice[0], theirs(x, g, b))
