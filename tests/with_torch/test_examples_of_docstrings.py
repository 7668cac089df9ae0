"""The examples in docstrings of `pf.torch` and `pf.jax`."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import polyfuse as pf

EXAMPLES = (pf.torch.op, pf.torch.report, pf.jax.op)


@pytest.mark.parametrize("function", EXAMPLES, ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_examples(function: Any) -> None:
    (found,) = doctest.DocTestFinder().find(function, module=False, globs={"pf": pf})
    assert found.examples and doctest.DocTestRunner().run(found).failed == 0
