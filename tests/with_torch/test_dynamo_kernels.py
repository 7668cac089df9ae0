"""The samples of all operators, compiled: a model of many of them at a time, judged by eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dynamo_samples import SAMPLES, WITHOUT_VALUES, Call
from test_dynamo_operators import close

from polyfuse.torch.dynamo import polyfuse_backend, report
from polyfuse.torch.dynamo.report import GRAPHS

TOGETHER = 16
_SPECIAL = (
    "aten.lift_fresh",
    "prims.fma",
    "aten._reshape_alias",
    "prims.convert_element_type",
    "prims.iota",
    "prims.rev",
)
CALLS = [
    (name, k)
    for name, calls in sorted(SAMPLES.items())
    for k in range(len(calls))
    if name not in (*WITHOUT_VALUES, *_SPECIAL)
]
GROUPS = [CALLS[k : k + TOGETHER] for k in range(0, len(CALLS), TOGETHER)]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    GRAPHS.clear()
    yield


def _tensors(x: Any) -> Iterator[Any]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for y in x:
            yield from _tensors(y)


def _run(calls: list[tuple[str, Call]], tensors: list[Any]) -> list[Any]:
    """What all calls give, with these tensors in place of their own."""
    left = iter(tensors)

    def given(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return next(left)
        return [given(y) for y in x] if isinstance(x, list) else x

    found = []
    for name, call in calls:
        operator = getattr(torch.ops.aten, name.removeprefix("aten."))
        made = operator(*[given(a) for a in call.args], **{k: given(v) for k, v in call.kwargs.items()})
        found += [y.clone() for y in _tensors(made)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_kernels_agree_with_eager(group: int) -> None:
    calls = [(n, SAMPLES[n][k]) for n, k in GROUPS[group]]
    tensors = [t for _, c in calls for t in _tensors([*c.args, *c.kwargs.values()])]
    run = torch.compile(
        lambda *ts: _run(calls, list(ts)), backend=polyfuse_backend, options={"strict": True}, fullgraph=True
    )
    with torch.no_grad():
        for got, want in zip(run(*tensors), _run(calls, tensors), strict=True):
            close(got, want)
    assert report().fallbacks == []
