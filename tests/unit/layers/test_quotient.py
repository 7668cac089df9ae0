"""Groups of a graph that merge without a cycle, against a search for cycles."""

from __future__ import annotations

import random
import time

import pytest

from polyfuse.layers.clustering.quotient import Quotient


def has_cycle(groups: list[list[int]], edges: list[tuple[int, int]]) -> bool:
    """Kahn's algorithm on the graph of groups."""
    of = {n: k for k, members in enumerate(groups) for n in members}
    pairs = {(of[a], of[b]) for a, b in edges if of[a] != of[b]}
    left = set(range(len(groups)))
    while True:
        free = {g for g in left if all(b != g or a not in left for a, b in pairs)}
        if not free:
            return bool(left)
        left -= free


@pytest.mark.parametrize("seed", range(30))
def test_merges_are_refused_where_and_only_where_they_make_a_cycle(seed: int) -> None:
    dice = random.Random(seed)
    n = dice.randint(2, 14)
    order = dice.sample(range(n), n)
    edges = [(order[a], order[b]) for b in range(n) for a in range(b) if dice.random() < 0.25]
    groups = Quotient(n, edges)
    for _ in range(3 * n):
        a, b = groups.group(dice.randrange(n)), groups.group(dice.randrange(n))
        if a == b:
            assert not groups.can_merge(a, b)
            continue
        merged = [m for g, m in groups.members.items() if g not in (a, b)]
        merged.append(groups.members[a] + groups.members[b])
        assert groups.can_merge(a, b) == (not has_cycle(merged, edges))
        if groups.can_merge(a, b) and dice.random() < 0.7:
            both = sorted(groups.members[a] + groups.members[b])
            assert groups.members[groups.merge(a, b)] == both
    place = {x: k for k, members in enumerate(groups.ordered()) for x in members}
    assert sorted(place) == list(range(n))
    assert all(place[a] <= place[b] for a, b in edges)


def test_paths_are_known_through_groups() -> None:
    groups = Quotient(5, [(0, 1), (1, 2), (3, 4)])
    assert groups.can_merge(0, 4)
    assert not groups.can_merge(0, 2), "1 lies between"
    both = groups.merge(1, 3)
    assert groups.inputs(4) == {both} and groups.outputs(both) == {2, 4}
    assert not groups.can_merge(0, 4), "the path through 1 and 3"
    assert groups.ordered() == [[0], [1, 3], [2], [4]]


def test_a_chain_of_thousands_is_quick() -> None:
    n = 20_000
    groups = Quotient(n, [(k, k + 1) for k in range(n - 1)])
    start = time.perf_counter()
    for k in range(n - 1):
        a, b = groups.group(k), groups.group(k + 1)
        assert groups.can_merge(a, b)
        groups.merge(a, b)
    assert len(groups) == 1
    assert time.perf_counter() - start < 20
