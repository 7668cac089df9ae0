"""What compiled models need of memory: sums of products are added up in one place, a region at the peak is
called in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dynamo_runs import traced_function
from test_dynamo_operators import close
from test_dynamo_partition import Program, inputs, ran

from polyfuse.torch.dynamo import memory
from polyfuse.torch.dynamo.memory import relieve
from polyfuse.torch.dynamo.partition import Region, components, partition, results_of
from polyfuse.torch.dynamo.products import add_up
from polyfuse.torch.dynamo.report import report

X, Y, Z = (torch.randn(3, 5) for _ in range(3))
U, V = torch.randn(2, 3, 5), torch.randn(2, 3, 5)

SUMS: dict[str, tuple[int, Callable[..., Any], Sequence[torch.Tensor]]] = {
    "two": (1, lambda x, y: x @ x.t() + y @ y.t(), (X, Y)),
    "three": (2, lambda x, y, z: z @ z.t() + (x @ x.t() + y @ y.t()), (X, Y, Z)),
    "turned": (1, lambda x, y: (x.t() @ y).t() + (y.t() @ x).t(), (X, Y)),
    "one turned": (1, lambda x, y: x @ y.t() + (y @ x.t()).t(), (X, Y)),
    "first turned": (1, lambda x, y: (x @ y.t()).t() + y @ x.t(), (X, Y)),
    "with a bias": (1, lambda x, y: torch.addmm(y[:, 0], x, y.t()) + y @ x.t(), (X, Y)),
    "the bias behind": (1, lambda x, y: y @ x.t() + torch.addmm(y[:, 0], x, y.t()), (X, Y)),
    "batches": (1, lambda u, v: u @ v.transpose(1, 2) + (v @ u.transpose(-1, -2)).transpose(2, 1), (U, V)),
    "of f64": (1, lambda x, y: x.double() @ x.t().double() + y.double() @ y.t().double(), (X, Y)),
    "itself": (0, lambda x: (lambda p: p + p)(x @ x.t()), (X,)),
    "read elsewhere": (0, lambda x, y: (lambda p: (p + y @ y.t(), p))(x @ x.t()), (X, Y)),
    "broadcast": (0, lambda x, y: x @ x.t() + y[:1] @ y.t(), (X, Y)),
    "other views": (0, lambda x, y: (x @ x.t()).flatten() + (y @ y.t()).flatten(), (X, Y)),
    "two types": (0, lambda x, y: x @ x.t() + y.double() @ y.t().double(), (X, Y)),
    "of 16 bits": (0, lambda x, y: x @ x.t() + y @ y.t(), (X.bfloat16(), Y.bfloat16())),
    "scaled": (0, lambda x, y: torch.add(x @ x.t(), y @ y.t(), alpha=2), (X, Y)),
    "one number": (0, lambda x: x @ x.t() + 1, (X,)),
}


@pytest.mark.parametrize("name", SUMS)
def test_products_are_added_up_where_the_first_lies(name: str) -> None:
    count, f, given = SUMS[name]
    module = traced_function(f, given)
    wanted = torch.utils._pytree.tree_leaves(f(*given))
    assert add_up(module.graph) == count
    module.graph.lint()
    module.recompile()
    for got, want in zip(module(*given), wanted, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
    sums = [
        n for n in module.graph.nodes if str(n.target).partition(".")[2].startswith(("addmm_", "baddbmm_"))
    ]
    assert len(sums) == count
    for n in module.graph.nodes:
        if n in sums:
            assert [str(u.target) for u in n.args[0].users] == [str(n.target)]


def test_compiled_models_add_up() -> None:
    torch._dynamo.reset()
    f = lambda x, y: (x @ x.t() + y @ y.t()).sigmoid() * 2  # noqa: E731
    run = torch.compile(f, backend="polyfuse", options={"strict": True})
    torch.testing.assert_close(run(X, Y), f(X, Y))
    names = {n for kinds in report().graphs[-1].aten.values() for n in kinds}
    assert names == {"mm", "addmm_"}


# --- regions in parts ---------------------------------------------------------------------------------------


def two_parts(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
    """A region reads a large product and a small one: a small result of the large one, large ones of w."""
    a, b = x @ x.t(), y @ y.t()
    return (a * a).sum(1) + 1, (b.repeat(40, 40) * 2).exp(), w @ w.t()


def test_a_region_at_the_peak_is_called_in_parts() -> None:
    given = (torch.randn(200, 2), torch.randn(5, 2), torch.randn(3, 2))
    nodes = list(traced_function(two_parts, given).graph.nodes)
    found = partition(nodes[0].graph, {})
    assert len(found.regions) == 1
    peaks = [max(m.bytes for m in memory._moments(nodes, found, True))]
    relieve(nodes, found, True)
    peaks.append(max(m.bytes for m in memory._moments(nodes, found, True)))
    assert len(found.regions) == 2 and found.earlier == {0: 1}
    assert peaks[1] < 0.51 * peaks[0]
    relieve(nodes, found, True)
    assert len(found.regions) == 2


def test_arguments_that_stay_are_no_reason_for_parts() -> None:
    given = (torch.randn(200, 200), torch.randn(5, 5))

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (x * x).sum(1) + 1, (y.repeat(40, 40) * 2).exp()

    for die, parts in ((False, 1), (True, 2)):
        nodes = list(traced_function(f, given).graph.nodes)
        found = partition(nodes[0].graph, {})
        relieve(nodes, found, die)
        assert len(found.regions) == parts


@pytest.mark.parametrize("seed", range(4))
def test_regions_in_parts_give_what_eager_gives(seed: int) -> None:
    both, given = (Program(seed, 12), Program(seed + 50, 12)), [*inputs(seed), *inputs(seed + 50)]

    def program(*xs: Any) -> list[Any]:
        return [*both[0](*xs[:3]), *both[1](*xs[3:])]

    module, parted = traced_function(program, given), []

    def change(nodes: Any, found: Any) -> None:
        for k, region in enumerate([*found.regions]):
            parts = components(region.nodes)
            if len(parts) > 1:
                early = [n for part in parts[1:] for n in part]  # the graph has them later
                found.regions[k] = Region(tuple(parts[0]), results_of(parts[0], found.kinds))
                found.earlier[k] = len(found.regions)
                found.regions.append(Region(tuple(early), results_of(early, found.kinds)))
                parted.append(k)

    for got, want in zip(ran(module, given, change), program(*given), strict=True):
        close(got.float(), want.float())
    assert parted
