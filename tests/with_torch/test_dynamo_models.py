"""Models through `torch.compile(backend="polyfuse")`: results and gradients as near to float64 as eager's."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polyfuse as pf
from benchmarks.torch_zoo import MODELS, optimizer_of
from polyfuse.diagnostics import PolyfuseError
from polyfuse.torch.dynamo import kernels, polyfuse_backend, report
from polyfuse.torch.dynamo.report import GRAPHS
from polyfuse.torch.dynamo.settings import PRECISIONS, RESTS, Settings


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    GRAPHS.clear()
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compiled(f: Any, dynamic: bool | None = None, **options: Any) -> Any:
    """By the backend, with failures as errors."""
    options = {"strict": True, **options}
    return torch.compile(f, backend=polyfuse_backend, options=options, dynamic=dynamic)


def step(model: Any, run: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """The result, and gradients of all parameters and inputs."""
    own = [x for x in (*model.parameters(), *inputs) if x.requires_grad]
    for x in own:
        x.grad = None
    y = run(*inputs)
    (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)).sum().backward()
    return [y.detach(), *(x.grad.clone() for x in own if x.grad is not None)]


def doubled(x: Any) -> Any:
    """A tensor in float64."""
    return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x


def as_near(ours: list[Any], eager: list[Any], judge: list[Any]) -> None:
    """Not further from float64 than eager is, but for rounding, and laid out alike."""
    assert len(ours) == len(eager) == len(judge)
    scale = max(float(j.abs().max()) for j in judge)
    for o, e, j in zip(ours, eager, judge, strict=True):
        assert (o.shape, o.stride(), o.dtype) == (e.shape, e.stride(), e.dtype)
        allowed = 4 * float((e.double() - j).abs().max()) + 4e-6 * max(float(j.abs().max()), 1e-3 * scale)
        assert float((o.double() - j).abs().max()) <= allowed


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_training_step_is_as_near_to_float64_as_eagers(name: str) -> None:
    model, inputs = MODELS[name].small()
    double = copy.deepcopy(model).double()
    ours = step(model, compiled(model), inputs)
    as_near(ours, step(model, model, inputs), step(double, double, list(map(doubled, inputs))))
    found = report(model)
    assert [x.kind for x in found.graphs] == ["forward", "backward"]
    assert found.fallbacks == []
    assert all(x.regions for x in found.graphs)


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.has_optimizer])
def test_steps_with_an_optimizer_are_near_to_float64(name: str) -> None:
    model, inputs = MODELS[name].small()

    def trained(model: nn.Module, inputs: list[Any], by: Callable[[Any], Any]) -> list[Any]:
        optimizer = optimizer_of(model)
        run, update = by(model), by(optimizer.step)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(*inputs)
            loss.backward()
            update()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in model.parameters())]

    double, own = copy.deepcopy(model).double(), copy.deepcopy(model)
    judge = trained(double, list(map(doubled, inputs)), lambda f: f)
    for x, y in zip(trained(own, inputs, compiled), judge, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-6)
    assert report().fallbacks == []
    assert [set(x.aten) for x in report().graphs if x.kind == "inference"] == [set()]


class AdamW:
    """Parameters, gradients and moments."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        g = torch.Generator().manual_seed(1)
        self.parameters = [torch.randn(s, generator=g) for s in shapes]
        self.gradients = [torch.randn(s, generator=g) for s in shapes]
        self.means = [torch.zeros(s) for s in shapes]
        self.squares = [torch.zeros(s) for s in shapes]
        self.step = torch.tensor(0.0)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of `adamw`."""
        return self.parameters, self.gradients, self.means, self.squares, self.step


def adamw(p: list[Any], g: list[Any], m: list[Any], v: list[Any], step: torch.Tensor) -> None:
    """A step, in place."""
    step.add_(1)
    one, two = 1 - 0.9**step, 1 - 0.999**step
    for a, b, c, d in zip(p, g, m, v, strict=True):
        a.mul_(1 - 1e-3 * 0.01)
        c.mul_(0.9).add_(b, alpha=0.1)
        d.mul_(0.999).addcmul_(b, b, value=0.001)
        a.sub_(1e-3 * (c / one) / ((d / two).sqrt() + 1e-8))


def test_parameters_are_updated_in_place() -> None:
    ours, eager = AdamW([(8, 4), (8,), (5, 3)]), AdamW([(8, 4), (8,), (5, 3)])
    run = compiled(adamw)
    places = [p.data_ptr() for p in ours.parameters]
    for _ in range(3):
        run(*ours.arguments)
        adamw(*eager.arguments)
    for mine, theirs in zip(ours.arguments[:4], eager.arguments[:4], strict=True):
        for x, y in zip(mine, theirs, strict=True):
            torch.testing.assert_close(x, y, rtol=2e-6, atol=1e-7)
    assert float(ours.step) == 3
    assert places == [p.data_ptr() for p in ours.parameters]
    (graph,) = report().graphs
    assert len(graph.regions) == 1
    assert not graph.aten


def test_an_optimizer_is_one_graph_of_ours() -> None:
    ours = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(4))]
    eager = [nn.Parameter(p.detach().clone()) for p in ours]
    one, other = torch.optim.AdamW(ours, foreach=True), torch.optim.AdamW(eager)
    step = compiled(lambda: one.step())
    for _ in range(3):
        for p, q in zip(ours, eager, strict=True):
            p.grad = torch.randn(p.shape)
            q.grad = p.grad.clone()
        step()
        other.step()
    for p, q in zip(ours, eager, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=1e-7)
    assert [(len(x.regions), dict(x.aten)) for x in report().graphs[-1:]] == [(1, {})]


def test_equal_layers_are_compiled_once() -> None:
    layers = [nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU()) for _ in range(4)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        compiled(model)(torch.randn(3, 6))
    (graph,) = report(model).graphs
    assert len(graph.regions) == 4
    assert len({id(c.program) for c in graph.calls}) == 1


@pytest.mark.parametrize("precision", ["eager", "fused"])
def test_floats_of_16_bits_are_rounded_as_asked(precision: str) -> None:
    def f(x: Any, y: Any) -> Any:
        return (x + y) * y - x * y

    x = torch.tensor([256.0, 1.0, 3.0], dtype=torch.bfloat16)
    y = torch.tensor([1.0, 2.0**-8, 0.3], dtype=torch.bfloat16)
    found = compiled(f, precision=precision)(x, y)
    wide = f(x.float(), y.float()).bfloat16()
    assert torch.equal(found, f(x, y) if precision == "eager" else wide)
    assert not torch.equal(f(x, y), wide)


def test_sizes_stay_sizes() -> None:
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(x * w, -1) + x.mean(-1, keepdim=True)

    run = compiled(f, dynamic=True)
    for shape in ((3, 5), (7, 9), (20, 33), (2, 64)):
        x, w = torch.randn(shape), torch.randn(shape[1])
        torch.testing.assert_close(run(x, w), f(x, w))
    (graph,) = report().graphs
    assert len(graph.calls[0].program.family.variants) == 1


def test_views_of_two_open_sizes_are_affine() -> None:
    def f(x: Any, w: Any) -> Any:
        b, t, h = x.shape
        return ((x.view(b * t, h) @ w + 1).view(b, t, 2, h // 2).transpose(1, 2) * 2 + 1).sum(-1)

    run = compiled(f)
    for b, t in ((2, 3), (5, 7), (4, 11)):
        x, w = torch.randn(b, t, 8), torch.randn(8, 8)
        torch._dynamo.mark_dynamic(x, (0, 1))
        torch.testing.assert_close(run(x, w), f(x, w))
    calls = [c for g in report().graphs for c in g.calls]
    assert [len(c.program.family.variants) for c in calls] == [1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strickt": True}, "no option 'strickt'"),
        ({"precision": "half"}, "cannot be 'half'"),
        ({"strict": 2}, "cannot be 2"),
    ],
)
def test_options_that_there_are_not_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match="PF810") as caught:
        torch.compile(lambda x: x.exp() + 1, backend=polyfuse_backend, options=options)(torch.ones(3))
    assert words in str(caught.value)


def test_the_page_of_options_has_all_values() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.d" / "PF810.md").read_text(encoding="utf-8")
    mend = " ".join(page.partition("Mend: ")[2].split())
    words = re.findall(r"`([^`]*)`", mend)
    names = {f.name for f in fields(Settings)}
    assert set(words) == names | {f'"{v}"' for v in (*PRECISIONS, *RESTS)}


def test_a_region_that_cannot_be_compiled_goes_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PolyfuseError("no such kernels", code="PF600")

    monkeypatch.setattr(kernels, "build", refuse)
    monkeypatch.setattr(kernels.PROGRAMS, "_found", {})

    def f(x: Any) -> Any:
        return (x.exp() + 1).sum(1)

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(f, strict=False)(x), f(x))
    (why,) = report().fallbacks
    assert "no such kernels" in why
    script = why.rsplit(" ", 1)[1]
    assert "torch.ops.aten.exp" in Path(script).read_text(encoding="utf-8")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="PF811"):
        compiled(f)(x)


def test_sizes_that_cannot_be_compiled_for_go_to_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PolyfuseError("no such kernels", code="PF600")

    def f(x: Any) -> Any:
        return (x.exp() + 1).sum(1)

    run = compiled(f, dynamic=True, strict=False)
    monkeypatch.setattr(kernels, "build", refuse)
    monkeypatch.setattr(kernels.PROGRAMS, "_found", {})
    x = torch.randn(3, 5)
    torch.testing.assert_close(run(x), f(x))
    assert ["no such kernels" in why for why in report().fallbacks] == [True]


LAST = torch.channels_last
UNUSUAL: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "complex": (lambda x: (x * 2 + 1).abs().exp(), [torch.randn(4, dtype=torch.complex64)]),
    "sparse": (lambda x: torch.sparse.sum(x * 2), [torch.eye(3).to_sparse()]),
    "sizes from data": (lambda x: x[x > 0].exp() + 1, [torch.randn(9)]),
    "empty": (lambda x: (x.exp() + 1).sum(), [torch.randn(0, 3)]),
    "no axes": (lambda x: (x.exp() + 1) * x, [torch.tensor(1.5)]),
    "quarters": (lambda x: x.float() * 2 + 1, [torch.ones(3).to(torch.float8_e5m2)]),
    "gaps": (lambda x: x.exp() + x * 2, [torch.randn(6, 8)[::2, 1:7:2]]),
    "broadcast": (lambda x: x.exp() + x * 2, [torch.randn(3, 1).expand(3, 4)]),
    "transposed": (lambda x: x.exp() + x * 2, [torch.randn(3, 4).t()]),
    "channels last": (lambda x: x.exp() + x * 2, [torch.randn(2, 3, 4, 5).to(memory_format=LAST)]),
    "many": (lambda x: (x.exp() + 1, x.split(2), x.t(), x), [torch.randn(4, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNUSUAL))
def test_unusual_arguments_are_computed_as_eager_does(name: str) -> None:
    f, inputs = UNUSUAL[name]
    found, want = compiled(f, strict=False)(*inputs), f(*inputs)
    torch.testing.assert_close(found, want)
    if isinstance(want, torch.Tensor) and want.layout is torch.strided:
        assert found.stride() == want.stride()


def test_the_report_of_a_function_says_that_it_is_of_all() -> None:
    first, second = compiled(lambda x: x.exp() + 1), compiled(lambda x: x.sin() * 2)
    assert str(report(second)).splitlines()[1:] == ["nothing was compiled"]
    first(torch.ones(3)), second(torch.ones(3))
    model = compiled(nn.LayerNorm(3))
    model(torch.ones(2, 3))
    for unknown in (second, nn.ReLU()):
        head, *lines = str(report(unknown)).splitlines()
        assert "all of this process" in head and lines == str(report()).splitlines()
    assert len(report(second).graphs) == 3 and not report().is_of_process
    assert len(report(model).graphs) == 1 and "all of this process" not in str(report(model))


def test_regions_of_the_report_have_their_program_and_its_decisions() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    compiled(model)(torch.randn(3, 4)).sum().backward()
    found = report(model).regions
    assert [r.name for r in found] == [r.name for g in report(model).graphs for r in g.regions]
    forward = found[0]
    text = str(forward.program)
    assert "p0: f32[3, 4]" in text and "rsqrt(" in text
    names = dict(re.findall(r"(q\d+):(\w+)", text))
    told = forward.explain()
    assert "legal" in told and set(re.findall(r"\bq\d+", told)) <= names.keys()


def test_the_program_of_a_region_computes_what_it_computes() -> None:
    x = torch.randn(3, 4)
    found = compiled(lambda x: torch.softmax(x, 1) * 2)(x)
    (region,) = report().regions
    torch.testing.assert_close(torch.from_numpy(pf.compile(region.program)(x.numpy())), found)


def test_a_region_with_open_sizes_is_explained_once_it_was_called() -> None:
    f = compiled(lambda x: (x.exp() + 1).sum(1), dynamic=True)
    f(torch.ones(3, 5))
    (region,) = report().regions
    assert "s0" in str(region.program) and "sizes are parameters" in region.explain()
    copied = pickle.loads(pickle.dumps(region))
    assert "not compiled yet" in copied.explain() and str(copied.program) == str(region.program)


def test_the_report_names_what_ends_a_region() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    with torch.no_grad():
        compiled(model)(torch.randn(3, 4))
    text = str(report(model))
    assert "ends: aten.addmm.default is left to ATen" in text
    assert "var_mean" in text
