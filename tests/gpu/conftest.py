"""Tests of this folder need a GPU; without one they are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfuse.runtime.cuda.open import cuda_available

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [i for i in items if i.path.is_relative_to(HERE)]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if mine and not cuda_available():
        for item in mine:
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))
