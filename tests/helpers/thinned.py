"""Parameters of which a usual run takes some; `make test-all` takes all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int, several: bool = False) -> list[Any]:
    """The first of so many, and of those that follow; the others are marked slow. With `several` each is a
    tuple of values, for as many names."""
    parts = [v if several else (v,) for v in values]
    return [pytest.param(*p, marks=[pytest.mark.slow] * (k % every > 0)) for k, p in enumerate(parts)]


def places_of_thin_tests(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, int, int]]:
    """Tests that are marked thin(k), and not slow: each with k and the sum of the places that its parameters
    have among those of the function, one place for each `parametrize`.

    `callspec.indices` of newer versions of pytest are one running number for all parameters.
    """
    found: dict[tuple[str, object], dict[tuple[int, ...], int]] = defaultdict(dict)
    for test in items:
        marker, call = test.get_closest_marker("thin"), getattr(test, "callspec", None)
        if marker is None or call is None or test.get_closest_marker("slow"):
            continue
        place = 0
        for mark in test.iter_markers("parametrize"):
            names = mark.args[0]
            given = names.replace(" ", "").split(",") if isinstance(names, str) else names
            places = found[test.nodeid.partition("[")[0], names]
            place += places.setdefault(tuple(id(call.params[n]) for n in given), len(places))
        yield test, marker.args[0], place
