"""Temporaries in one block: none over another that is alive at the same step."""

from __future__ import annotations

import random

import pytest

from polyfuse.ir.dtypes import F32
from polyfuse.ir.index_expr import IConst
from polyfuse.ir.launch_plan import Kind, PlanBuffer
from polyfuse.runtime.cpu.memory import layout


def buffer(name: str, elements: int, live: tuple[int, int] | None) -> PlanBuffer:
    return PlanBuffer(name, F32, (IConst(elements),), Kind.WORKSPACE, live=live)


def test_a_chain_takes_two_places() -> None:
    chain = [buffer(f"t{k}", 1000, (k, k + 1)) for k in range(20)]
    found = layout(chain, (), {}, 64)
    assert found.nbytes == 2 * 4032 and found.apart == 20 * 4032
    assert {s.offset for s in found.spaces.values()} == {0, 4032}


def test_what_has_no_lifetime_is_always_there() -> None:
    copy = PlanBuffer("p", F32, (IConst(10),), Kind.INOUT)
    found = layout([copy, buffer("a", 10, (0, 0)), buffer("b", 10, (5, 6))], ("p",), {}, 64, start=128)
    offsets = {n: s.offset for n, s in found.spaces.items()}
    assert offsets["a"] == offsets["b"] != offsets["p"]
    assert min(offsets.values()) == 128 and found.nbytes == 256


@pytest.mark.parametrize("seed", range(20))
def test_no_two_that_are_alive_together_meet(seed: int) -> None:
    dice = random.Random(seed)
    buffers = []
    for k in range(40):
        first = dice.randrange(12)
        live = None if dice.random() < 0.1 else (first, first + dice.randrange(4))
        buffers.append(buffer(f"t{k}", dice.choice((0, 1, 100, 5000, 70000)), live))
    found = layout(buffers, (), {}, 64)
    assert found.nbytes <= found.apart
    for a in buffers:
        for b in buffers:
            together = a.live is None or b.live is None or (a.live[0] <= b.live[1] and b.live[0] <= a.live[1])
            x, y = found.spaces[a.name], found.spaces[b.name]
            if a is not b and together and x.nbytes and y.nbytes:
                assert x.offset + x.nbytes <= y.offset or y.offset + y.nbytes <= x.offset
    assert all(s.offset % 64 == 0 for s in found.spaces.values())
