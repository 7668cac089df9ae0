"""Parameters of which a usual run takes some; `make test-all` takes all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int, several: bool = False) -> list[Any]:
    """The first of so many, and of those that follow; the others are marked slow. With `several` each is a
    tuple of values, for as many names."""
    parts = [v if several else (v,) for v in values]
    return [pytest.param(*p, marks=[pytest.mark.slow] * (k % every > 0)) for k, p in enumerate(parts)]
