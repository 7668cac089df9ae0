"""What compiled models need of memory: sums of products are added up in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dynamo_runs import traced_function

from polyfuse.torch.dynamo.products import add_up

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
    sums = [n for n in module.graph.nodes if str(n.target).partition(".")[2].startswith(("addmm_", "baddbmm_"))]
    assert len(sums) == count
    for n in module.graph.nodes:
        if n in sums:
            assert [str(u.target) for u in n.args[0].users] == [str(n.target)]
