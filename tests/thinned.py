"""Parameters of which a usual run takes some; `make test-all` takes all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int) -> list[Any]:
    """The first of so many, and of those that follow; the others are marked slow."""
    return [v if k % every == 0 else pytest.param(v, marks=pytest.mark.slow) for k, v in enumerate(values)]
