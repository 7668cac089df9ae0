"""Passes that tests of code generation call are verified as those of a compilation are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polyfuse.codegen.passes import observed
from polyfuse.codegen.verify import PassVerifier


@pytest.fixture(autouse=True)
def verified_passes() -> Iterator[None]:
    with observed(PassVerifier()):
        yield
