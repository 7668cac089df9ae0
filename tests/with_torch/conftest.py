"""Tests with PyTorch and JAX, which `make test-torch` runs in an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if all(map(find_spec, ("torch", "jax"))) else ["test_*.py"]


@pytest.fixture(autouse=True)
def seed() -> None:
    """Random numbers are the same in each run."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Models are traced and compiled, even if an earlier run kept them."""
    import torch._functorch.config as config

    with config.patch(enable_autograd_cache=False):
        yield
