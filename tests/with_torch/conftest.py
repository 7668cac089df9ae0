"""Tests with PyTorch and JAX, which `make test-torch` runs in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if all(map(find_spec, ("torch", "jax"))) else ["test_*.py"]


@pytest.fixture(autouse=True)
def seed() -> None:
    """Random numbers are the same in each run."""
    import torch

    torch.manual_seed(0)
